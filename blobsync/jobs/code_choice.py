"""Which code a job runs: the last upload of ``init``, identified by its digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blobsync.base.errors import ArchiveError, ConfigError, NothingMatchedError
from blobsync.code.project_code import Code, CodeProject, CodeState
from blobsync.config.model import Cluster, CodeEntry
from blobsync.jobs.spec import CodeRef


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """The code that a job is to run, None for the project's folder as it is, and what the user should know."""

    ref: CodeRef | None
    warnings: tuple[str, ...] = ()


ChooseCode = Callable[[Cluster], CodeChoice]


# The project through a cluster; whoever asks closes it.
ProjectOpener = Callable[[Cluster], CodeProject]


def code_chooser(open_project: ProjectOpener, *, init: bool = False) -> ChooseCode:
    """Choose the code at ``code_path`` of a cluster; with ``init``, put today's there first."""

    def choose(cluster: Cluster) -> CodeChoice:
        project = open_project(cluster)
        try:
            return choose_code(project, init=init)
        finally:
            project.close()

    return choose


def choose_code(project: CodeProject, *, init: bool = False) -> CodeChoice:
    """The code of one cluster. Raises ``ConfigError``, ``NothingMatchedError`` and what init raises."""
    entry = code_entry(project.cluster, init=init)
    if entry is None:
        return CodeChoice(None)
    if not entry.path.endswith(".zip"):
        return CodeChoice(CodeRef(str(entry.account.container), entry.path, ""))
    code = Code(project)
    if init:
        published = code.publish()
        return CodeChoice(_ref(entry, published.digest, published.state), published.notes)
    return _published(project, code, entry)


def code_entry(cluster: Cluster, *, init: bool = False) -> CodeEntry | None:
    """Where the code of jobs lies; None for the project's own folder. Raises ``ConfigError``. Pure."""
    if cluster.code is None and (cluster.platform != "local" or init):
        raise ConfigError(
            "does not say where the code is",
            file=cluster.file,
            key="config_param.code_path",
            hint="add code_path: {azure_blob_config_file: FILE, path: path/to/code.zip}, then blobsync init",
        )
    return cluster.code


def _published(project: CodeProject, code: Code, entry: CodeEntry) -> CodeChoice:
    store = project.connections.store(entry.account.container)
    digest = code.published_digest()
    if digest is None:
        if store.head(entry.path) is None:
            raise NothingMatchedError(
                f"there is no code at {entry.remote}", hint="run blobsync init, or submit with --init"
            )
        ref = CodeRef(str(entry.account.container), entry.path, "")
        return CodeChoice(ref, (f"{entry.remote} was not made by blobsync init: nodes use it as it is",))
    kept = f"{entry.path}.d/{digest}.zip"
    if store.head(kept) is None:
        raise NothingMatchedError(
            f"the archive {kept} of the last init is gone", hint="to make it again: blobsync init"
        )
    try:
        state = code.current_state()
    except ArchiveError as error:
        return CodeChoice(_ref(entry, digest, None), (f"the job runs the code of the last init: {error.message}",))
    if state.snapshot.digest == digest:
        return CodeChoice(_ref(entry, digest, state))
    warning = "the job runs the code of the last init, which differs from the code here; submit --init uploads it first"
    return CodeChoice(_ref(entry, digest, None), (warning,))


def _ref(entry: CodeEntry, digest: str, state: CodeState | None) -> CodeRef:
    git = state.git if state else None
    return CodeRef(
        str(entry.account.container),
        f"{entry.path}.d/{digest}.zip",
        digest,
        git_commit=(git.commit or "") if git else "",
        git_dirty=git.dirty if git else False,
        size=state.snapshot.size if state else 0,
    )
