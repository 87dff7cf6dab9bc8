"""The code of a project, as ``blobsync init`` handles it.

from blobsync import Code, Project

result = Code(Project.open()).publish()
print(result.digest, result.status)
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from blobsync.base.background_calls import Ahead
from blobsync.base.errors import ArchiveError, BackendUnavailableError, BlobNotFoundError, ConfigError, StorageError
from blobsync.base.events import Listener, Looked, Note, Phase
from blobsync.base.locations import BlobLocation
from blobsync.base.process import DOCKER_VERSION, ProcessRunner, why_it_fails
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken
from blobsync.base.user_folders import locked
from blobsync.code.git import GitState, ask_git
from blobsync.code.packed_files import CodeRules, Decision, code_rules, why
from blobsync.code.publish import (
    CodePlace,
    RemoteCode,
    listed_digest,
    look_up_code,
    manifest,
    prune_archives,
    publish_archive,
    published_digest,
    write_archive,
)
from blobsync.code.snapshot import (
    BIGGEST,
    LARGE,
    CodeSnapshot,
    HashedFile,
    holds_secret,
    secret_configuration,
    take_snapshot,
)
from blobsync.code.unpack import MANIFEST_NAME, digest_of_archive
from blobsync.config.mapping import project_relative
from blobsync.config.model import Cluster, CodeEntry, FolderEntry
from blobsync.config.trusted_code import is_digest, record_published
from blobsync.config.trusted_docker import DockerArgs, demand_docker
from blobsync.local.ignore_patterns import IgnoreRules
from blobsync.local.os_errors import ChangedWhileReadError
from blobsync.local.private_folders import container_folder
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import Connections
from blobsync.store.sas import CODE_COPY_SECONDS, READ_BLOB, sas_minter

_ATTEMPTS = 3
# ACT's name for the project's compile script.
_COMPILE_SCRIPT = "compile.aml.sh"
_DOCKER_SECONDS = 20.0
# How much of a blob is read at once (bytes).
_PIECE = 1 << 20

_T = TypeVar("_T")


class CodeProject(Protocol):
    """What this package needs of a project; ``blobsync.Project`` is one."""

    root: Path
    cwd: Path
    cluster: Cluster
    environ: Mapping[str, str]
    listener: Listener

    @property
    def state(self) -> StateDir: ...

    @property
    def connections(self) -> Connections: ...

    def with_cluster(self, cluster: Cluster) -> CodeProject:
        """The same project through another cluster."""
        ...

    def upload(self, paths: str, options: TransferOptions) -> TransferResult: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """``max_file_size`` in bytes, over the cluster file's; ``allow_secrets`` packs what looks like a credential."""

    max_file_size: int | None = None
    allow_secrets: bool = False


@dataclass(frozen=True, slots=True)
class CodeState:
    """The code as it is now. ``git`` is None outside a repository."""

    snapshot: CodeSnapshot
    git: GitState | None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, one sentence each."""
        snapshot = self.snapshot
        notes = list(snapshot.notes)
        notes += [f"left out: {one.path}: {one.reason}" for one in snapshot.left_out]
        if snapshot.size > LARGE:
            biggest = ", ".join(f"{file.path} ({file.size / 1e6:.1f} MB)" for file in snapshot.biggest(BIGGEST))
            notes.append(f"the code is {snapshot.size / 1e6:.0f} MB; its biggest files are {biggest}")
        return tuple(notes)


@dataclass(frozen=True, slots=True, repr=False)
class CodeResult:
    """What ``init`` did. ``status``: ``published``, ``unchanged``, or ``would_publish`` (dry run).

    ``archive_bytes`` is None if no archive was needed; ``removed`` are old archives that were deleted.
    """

    state: CodeState
    status: str
    remote: BlobLocation
    kept: BlobLocation
    archive_bytes: int | None
    seconds: float
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<CodeResult {self.status} {self.digest[:12]} at {self.remote}>"

    @property
    def digest(self) -> str:
        """The digest, which names the code; see ``code.snapshot``."""
        return self.state.snapshot.digest


class Code:
    """What ``init`` can do for one project and its cluster."""

    def __init__(self, project: CodeProject, options: CodeOptions | None = None) -> None:
        self._project = project
        self._options = options or CodeOptions()
        self._runner = ProcessRunner()

    def __repr__(self) -> str:
        return f"<Code of {self._project!r}>"

    def current_state(self) -> CodeState:
        """The code now, without any network. Raises ``ArchiveError`` and its kin."""
        cache, secrets = self._project.state.folder("code") / "files.json", self._options.allow_secrets
        git = Ahead(ask_git, self._project.root, self._runner, self._project.environ)
        snapshot = _steadily(lambda: take_snapshot(self._rules(), cache, allow_secrets=secrets))
        report = git.result()
        if not snapshot.files:
            raise ArchiveError(
                f"nothing to pack in {self._project.root}",
                hint="'blobsync init --why FILE' shows which pattern decides",
            )
        return CodeState(snapshot, report.state(file.path for file in snapshot.files) if report else None)

    def claimed_digest(self) -> str | None:
        """The digest that the blob at ``code_path`` claims to have, None if it claims none.

        Anyone who can write there chooses it; nodes check that the code matches it.
        """
        if self.goes_to_a_folder:
            entry = self._entry()
            return listed_digest(self._project.connections.store(entry.account.container), entry.path)
        claimed = published_digest(self._place())
        return claimed if claimed and is_digest(claimed) else None

    def read_digest(self) -> str | None:
        """The digest of the archive at ``code_path``, computed from its content; None if there is no blob.

        Raises ``ArchiveError`` for one that no node would unpack.
        """
        place = self._place()
        with tempfile.NamedTemporaryFile(dir=self._project.state.folder("code"), prefix="read-") as file:
            try:
                with place.store.open(place.name) as reader:
                    while piece := reader.read(_PIECE):
                        file.write(piece)
            except BlobNotFoundError:
                return None
            file.flush()
            return digest_of_archive(Path(file.name))

    @property
    def goes_to_a_folder(self) -> bool:
        """Whether ``code_path`` names a blob folder and not an archive."""
        code = self._project.cluster.code
        return code is not None and not code.path.endswith(".zip")

    def why(self, path: str) -> Decision:
        """What decides whether ``path`` (relative to the current folder) is code. Raises ``MappingError``."""
        relative = project_relative(path, cwd=self._project.cwd, root=self._project.root)
        decision = why(self._rules(), relative)
        if decision.included and holds_secret(self._project.root, relative):
            return secret_configuration(relative, decision.size or 0)
        return decision

    def publish(self, *, dry_run: bool = False) -> CodeResult:
        """Pack and upload the code, unless ``code_path`` holds it already.

        Raises ``ConfigError`` without a ``code_path``, ``ArchiveError`` and its kin, and what the store raises;
        ``code_path`` is then unchanged.
        """
        started = time.monotonic()
        place = self._place()
        return self._publish(place, self.current_state, started, dry_run=dry_run)

    def publish_compiled(self, *, dry_run: bool = False) -> CodeResult:
        """Compile in the cluster's docker image (``initc``), then publish the result.

        Raises ``UntrustedDockerError`` for ``docker.args`` that reach beyond the project.
        """
        started = time.monotonic()
        place = self._place()
        state = self.current_state()
        demand_docker(DockerArgs.of(self._project.cluster), self._project.environ)
        parent = self._project.state.folder("code")
        with container_folder("compile-", parent) as folder:
            scratch = folder / "code"
            scratch.mkdir()
            _compile(self._project.cluster, state.snapshot, scratch, self._runner)
            compiled = replace(
                self._rules(), root=scratch, ignore=IgnoreRules(), excludes=(), ignore_files=False, chosen=True
            )
            snapshot = take_snapshot(compiled, scratch.parent / "none", allow_secrets=self._options.allow_secrets)
            return self._publish(place, lambda: CodeState(snapshot, state.git), started, dry_run=dry_run)

    def sync_folder(self, *, dry_run: bool = False) -> tuple[CodeState, TransferResult | None]:
        """Upload the same files one by one to a blob folder: ``code_path`` without ``.zip`` at its end.

        Files of the folder that are no longer code stay; jobs do not get them. With ``dry_run`` there is no result.
        """
        entry = self._entry()
        state = self.current_state()
        if dry_run:
            return state, None
        tree = self._project.state.folder("code") / "tree"
        try:
            inside = tree.relative_to(self._project.root)
        except ValueError as error:
            raise ArchiveError(
                f"{self._project.root} is not writable, and init --folder writes to it",
                hint="make the project's folder writable, or use 'blobsync init'",
            ) from error
        folder = FolderEntry(str(inside), entry.account, entry.path.removesuffix(".zip"))
        cluster = self._project.cluster._replace(folders=(folder,))
        project = self._project.with_cluster(cluster)
        # Another 'init --folder' has the same tree, and would take it away.
        with locked(tree.with_name("tree.lock")):
            try:
                _copy_tree(state, tree)
                result = project.upload(f"{inside}/", TransferOptions(overwrite=True))
                if not result.exit_code:
                    for note in self._record(str(entry.account.container.child(folder.path)), state.snapshot.digest):
                        self._project.listener.emit(Note(note))
                return state, result
            finally:
                project.close()
                shutil.rmtree(tree, ignore_errors=True)

    def reason_for(self, file: HashedFile) -> str:
        """Why a file is included, in words."""
        decision = why(self._rules(), file.path)
        if decision.pattern is None:
            return decision.reason
        return f"{decision.reason}: {decision.file}:{decision.line or ''} {decision.pattern}"

    def _publish(self, place: CodePlace, find: Callable[[], CodeState], started: float, *, dry_run: bool) -> CodeResult:
        remote = self._entry().remote

        def once() -> CodeResult:
            state = find()
            digest = state.snapshot.digest
            there = look_up_code(place, digest)
            is_there = there.digest == digest and there.kept
            status, size = "unchanged" if is_there else "would_publish" if dry_run else "published", None
            removed, notes = tuple[str, ...](), state.notes
            if status == "published":
                size = self._publish_archive(place, state, there)
                removed, more = self._prune(place, digest)
                notes += more
            if not dry_run:
                notes += self._record(str(remote), digest)
            kept, seconds = remote.container.child(place.kept(digest)), time.monotonic() - started
            return CodeResult(state, status, remote, kept, size, seconds, removed, notes)

        return _steadily(once)

    def _publish_archive(self, place: CodePlace, state: CodeState, there: RemoteCode) -> int | None:
        """Returns the size of the zip (None: it was not needed). Its file has no name, so that no kill leaves it."""
        listener, sizes = self._project.listener, list[int]()

        def packed(files: int) -> None:
            listener.emit(Looked(files))

        with tempfile.TemporaryFile(dir=self._project.state.folder("code")) as file:

            def archive() -> tuple[BinaryIO, int]:
                if not sizes:
                    listener.emit(Phase("packing"))
                    sizes.append(write_archive(state.snapshot, state.git, file, progress=packed))
                    listener.emit(Phase("moving"))
                return file, sizes[0]

            publish_archive(place, state.snapshot.digest, there, archive, listener)
        return next(iter(sizes), None)

    def _record(self, where: str, digest: str) -> tuple[str, ...]:
        """Record that this user published it, so that jobs accept it."""
        try:
            record_published(self._project.root, where, digest, self._project.environ)
        except ConfigError as error:
            # The code is published, and a job can name it.
            command = f"'blobsync submit --code {digest}' runs it"
            return (f"the code is not on record as yours, so submit will ask for it: {error.message}; {command}",)
        return ()

    def _prune(self, place: CodePlace, digest: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        try:
            return prune_archives(place, digest), ()
        except StorageError as error:
            # The code is published; old archives only cost some storage.
            return (), (f"old code archives could not be removed: {error.message}",)

    def _rules(self) -> CodeRules:
        project = self._project
        return code_rules(project.cluster, max_file_size=self._options.max_file_size, environ=project.environ)

    def _entry(self) -> CodeEntry:
        return code_entry_of(self._project.cluster)

    def _place(self) -> CodePlace:
        entry = self._entry()
        project = self._project
        if self.goes_to_a_folder:
            raise ConfigError(
                f"{entry.path} names a folder, not a .zip archive",
                file=project.cluster.file,
                key="config_param.code_path",
                hint="end the path with .zip, or use 'blobsync init --folder'",
            )

        def sas() -> SasToken:
            return sas_minter(project.cluster, project.environ)(entry.account, READ_BLOB, CODE_COPY_SECONDS)

        return CodePlace(project.connections.store(entry.account.container), entry.path, sas)


def code_entry_of(cluster: Cluster) -> CodeEntry:
    """Where the code of a cluster is. Raises ``ConfigError`` if its file does not say so."""
    if cluster.code is None:
        raise ConfigError(
            "does not say where the code is",
            file=cluster.file,
            key="config_param.code_path",
            hint="add code_path: {azure_blob_config_file: FILE, path: path/to/code.zip}, then blobsync init",
        )
    return cluster.code


def _copy_tree(state: CodeState, tree: Path) -> None:
    """A folder with the files of the code and their list; leaves out links to folders, which blobs cannot represent.

    A real copy and not links: a transfer follows none into ``aux_data``, and code is small.
    """
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    (tree / MANIFEST_NAME).write_bytes(manifest(state.snapshot, state.git))
    state.snapshot.copy_to(tree, links=False)


def _steadily(action: Callable[[], _T]) -> _T:
    """Run ``action`` again if a file changed meanwhile: an editor saves in a moment, a log never stops."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(ChangedWhileReadError):
            return action()
    return action()


def _compile(cluster: Cluster, snapshot: CodeSnapshot, scratch: Path, runner: ProcessRunner) -> None:
    """Copy the code to ``scratch`` and run the project's own script there, in the docker image of the cluster.

    All that is there then is the code, because ``.gitignore`` usually excludes compiled files. The script's output goes
    to standard error: standard output is for the result. Raises ``ConfigError`` without a script or an image,
    ``BackendUnavailableError`` without docker, and ``ArchiveError`` when compiling fails.
    """
    if _COMPILE_SCRIPT not in {file.path for file in snapshot.files}:
        raise ConfigError(
            f"initc runs {_COMPILE_SCRIPT} in the project root, and the code does not contain it",
            hint=f"write it (for example: python setup.py build_ext --inplace), or use 'blobsync init'; "
            f"'blobsync init --why {_COMPILE_SCRIPT}' shows whether a pattern excludes it",
        )
    image = cluster.docker.reference
    if not image:
        raise ConfigError("does not name a docker image to compile in", file=cluster.file, key="docker.image")
    if problem := why_it_fails(runner, DOCKER_VERSION, _DOCKER_SECONDS):
        raise BackendUnavailableError(
            f"initc needs docker, which does not answer: {problem}",
            hint="install it, or start it (sudo systemctl start docker), or use 'blobsync init': the job compiles then",
        )
    snapshot.copy_to(scratch)
    command = ("bash", _COMPILE_SCRIPT, *(cluster.text("compile_args") or "").split())
    # As the user, so that what it writes can be read here. The cluster's own arguments win over ours.
    done = runner.attach(
        (
            *("sh", "-c", 'exec "$@" >&2', "sh"),
            *("docker", "run", "--rm", "--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp"),
            *("--volume", f"{scratch}:/code", "--workdir", "/code", *cluster.docker.args, image, *command),
        )
    )
    if done:
        raise ArchiveError(
            f"'{' '.join(command)}' ended with {done} in {image}; nothing was uploaded",
            hint="see its output above",
        )
