"""Chooses the code that a job runs: the last upload of ``init`` from here, trusted code, or what the user names.

Anyone who may write to the container can replace the code at ``code_path`` and its digest. A digest is accepted if it
is recorded here (``config.trusted_code``), or is that of the code here; the node verifies the code against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path

from blobsync.base.errors import ArchiveError, NothingMatchedError, UntrustedCodeError, UsageError
from blobsync.base.records import dataclass
from blobsync.code.project_code import Code, CodeProject, CodeState, code_entry_of
from blobsync.config.model import Cluster, CodeEntry
from blobsync.config.trusted_code import (
    KnownCode,
    demand_digest,
    load_known_code,
    trust_code,
    trust_code_command,
)
from blobsync.jobspec.spec import CodeRef


@dataclass(frozen=True, slots=True)
class CodeOptions:
    """The user's options for code: ``init`` packs and uploads it first, ``digest`` is that of this job's code,
    ``trust`` that of code which the project's jobs may run from now on. ``looks_only``: nothing is recorded."""

    init: bool = False
    digest: str = ""
    trust: str = ""
    looks_only: bool = False

    def __post_init__(self) -> None:
        asked = {"init": self.init, "code": self.digest, "trust-code": self.trust}
        given = [f"--{name}" for name, is_given in asked.items() if is_given]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} cannot be combined", hint="each says which code the job runs")


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """The code that a job runs (None: the project's folder itself), and warnings."""

    ref: CodeRef | None
    warnings: tuple[str, ...] = ()


ChooseCode = Callable[[Cluster], CodeChoice]


# Opens the project with a cluster; the caller closes it.
ProjectOpener = Callable[[Cluster], CodeProject]

_LAST = CodeOptions()


def code_chooser(open_project: ProjectOpener, options: CodeOptions = _LAST) -> ChooseCode:
    """Choose the code at a cluster's ``code_path``."""

    def choose(cluster: Cluster) -> CodeChoice:
        with closing(open_project(cluster)) as project:
            return choose_code(project, options)

    return choose


def choose_code(project: CodeProject, options: CodeOptions = _LAST) -> CodeChoice:
    """The code of one cluster. Raises ``ConfigError``, ``NothingMatchedError``, ``UntrustedCodeError`` and what init
    raises."""
    entry = code_entry(project.cluster, init=options.init)
    if entry is None:
        if options.digest or options.trust:
            option = "--code" if options.digest else "--trust-code"
            raise UsageError(f"{option}: cluster {project.cluster.name} has no code_path: its jobs run the code here")
        return CodeChoice(None)
    code = Code(project)
    if options.init:
        return _published(code, entry, looks_only=options.looks_only)
    choice = _Choice(project, code, entry)
    if options.digest:
        return choice.named(demand_digest(options.digest, "--code"))
    return choice.last(
        demand_digest(options.trust, "--trust-code") if options.trust else "", looks_only=options.looks_only
    )


def code_entry(cluster: Cluster, *, init: bool = False) -> CodeEntry | None:
    """The blob folder of jobs' code; None: the project's folder itself. Raises ``ConfigError``. Pure."""
    return code_entry_of(cluster) if cluster.platform != "local" or init else cluster.code


def demand_known(root: Path, ref: CodeRef | None, run_id: str, *, is_ours: bool, environ: Mapping[str, str]) -> None:
    """Raise ``UntrustedCodeError`` unless a job's own code may run again.

    ``is_ours``: the job was submitted from here, not found on a service.
    """
    if ref is None or (is_ours and ref.digest):
        return
    if not ref.digest:
        raise UntrustedCodeError(
            f"{run_id} has no digest of its code, so nothing tells whether {ref.blob} is still what it ran",
            digest="",
            hint="blobsync resubmit --latest-code takes the code of the last init",
        )
    known = load_known_code(root, environ)
    if ref.digest not in known.trusted and known.find(ref.digest) is None:
        raise UntrustedCodeError(
            f"{run_id} was not submitted from here, and its code was not published from here: digest {ref.digest}",
            digest=ref.digest,
            hint=f"if you trust who submitted it: {trust_code_command(ref.digest)}; for the code of your last init: "
            "blobsync resubmit --latest-code",
        )


def _published(code: Code, entry: CodeEntry, *, looks_only: bool) -> CodeChoice:
    """Pack the current code, which is uploaded first."""
    if looks_only:
        state = code.current_state()
        return CodeChoice(_ref(entry, state.snapshot.digest, state), state.notes)
    if not code.goes_to_a_folder:
        published = code.publish()
        return CodeChoice(_ref(entry, published.digest, published.state), published.notes)
    state, result = code.sync_folder()
    if result is not None and result.exit_code:
        raise ArchiveError(f"not all of the code arrived at {entry.remote}", hint="blobsync init says what is missing")
    return CodeChoice(_ref(entry, state.snapshot.digest, state), state.notes)


class _Choice:
    """The code at ``code_path``, verified against known digests."""

    def __init__(self, project: CodeProject, code: Code, entry: CodeEntry) -> None:
        self._project, self._code, self._entry = project, code, entry
        self._store = project.connections.store(entry.account.container)
        self._where = str(entry.remote)

    def named(self, digest: str) -> CodeChoice:
        """The code with the digest that the user named."""
        state, _ = self._here()
        ref = self._find(digest)
        if state is not None and state.snapshot.digest == digest:
            return CodeChoice(_ref(self._entry, digest, state, ref.blob))
        return CodeChoice(ref, (f"the job runs the code {digest[:12]}, which --code names, not the code here",))

    def last(self, trust: str, *, looks_only: bool) -> CodeChoice:
        """The latest code there, if it was uploaded from here, equals the code here, or is trusted."""
        digest, blob = self._there()
        state, problem = self._here()
        if state is not None and state.snapshot.digest == digest:
            return CodeChoice(_ref(self._entry, digest, state, blob))
        known = load_known_code(self._project.root, self._project.environ)
        last = known.last(self._where)
        ref = _ref(self._entry, digest, None, blob)
        if last is not None and last.digest == digest:
            warning = "the job runs the code of the last init"
            if problem:
                return CodeChoice(ref, (f"{warning}: {problem}",))
            return CodeChoice(ref, (f"{warning}, which differs from the code here; submit --init uploads it first",))
        if trust == digest and digest not in known.trusted and not looks_only:
            trust_code(self._project.root, (digest,), self._project.environ)
        if digest in (*known.trusted, trust):
            warning = f"the job runs the code {digest[:12]}, which was not published from here and which you trust"
            return CodeChoice(ref, (f"{warning}; it differs from the code here",))
        raise self._refusal(digest, known, trust)

    def _there(self) -> tuple[str, str]:
        """The digest and the blob of the latest code there."""
        claimed = self._code.claimed_digest()
        if self._code.goes_to_a_folder:
            if claimed is None:
                raise self._nothing()
            return claimed, self._entry.path
        if claimed is not None:
            kept = _kept(self._entry, claimed)
            if self._store.head(kept) is None:
                raise NothingMatchedError(
                    f"the archive {kept} of the last init is gone", hint="to make it again: blobsync init"
                )
            return claimed, kept
        read = self._read()
        if read is None:
            raise self._nothing()
        return read, self._entry.path

    def _nothing(self) -> NothingMatchedError:
        if self._code.goes_to_a_folder:
            return NothingMatchedError(
                f"there is no code at {self._where} with a list of its files",
                hint="blobsync init uploads the code here, with the list",
            )
        return NothingMatchedError(
            f"there is no code at {self._where}", hint="run blobsync init, or submit with --init"
        )

    def _read(self) -> str | None:
        try:
            return self._code.read_digest()
        except ArchiveError as error:
            error.message = f"{self._where} was not made by blobsync init: {error.message}"
            error.hint = "to upload the code here: blobsync init"
            raise

    def _find(self, digest: str) -> CodeRef:
        """The blob with this digest. Raises ``NothingMatchedError``."""
        if self._code.goes_to_a_folder:
            if self._code.claimed_digest() == digest:
                return _ref(self._entry, digest, None, self._entry.path)
        elif self._store.head(_kept(self._entry, digest)) is not None:
            return _ref(self._entry, digest, None)
        elif self._code.claimed_digest() is None and self._read() == digest:
            return _ref(self._entry, digest, None, self._entry.path)
        raise NothingMatchedError(
            f"there is no code {digest} at {self._where}", hint="to upload the code here: blobsync init"
        )

    def _here(self) -> tuple[CodeState | None, str]:
        """The code in the project folder, or why there is none."""
        try:
            return self._code.current_state(), ""
        except ArchiveError as error:
            return None, error.message

    def _refusal(self, digest: str, known: KnownCode, trust: str) -> UntrustedCodeError:
        if trust:
            return UntrustedCodeError(
                f"{self._where} holds the code {digest}, and not {trust}, which --trust-code names",
                digest=digest,
                hint="ask who published it for the digest, or publish the code here: blobsync init",
            )
        once = f"for one job: blobsync submit --code {digest} CMD"
        earlier = known.find(digest)
        if earlier is not None:
            day = datetime.fromtimestamp(earlier.at).strftime("%Y-%m-%d %H:%M")
            return UntrustedCodeError(
                f"{self._where} holds the code {digest}, which you published on {day}, and not that of your last init",
                digest=digest,
                hint="to publish the code here: blobsync init; to run the earlier one: "
                f"{trust_code_command(digest)}, or {once}",
            )
        return UntrustedCodeError(
            f"the code at {self._where} was not published from here, and you do not trust it yet: digest {digest}",
            digest=digest,
            hint=f"if you published it elsewhere, or trust who did: {trust_code_command(digest)}, or {once}; "
            "to publish the code here instead: blobsync init",
        )


def _kept(entry: CodeEntry, digest: str) -> str:
    return f"{entry.path}.d/{digest}.zip"


def _ref(entry: CodeEntry, digest: str, state: CodeState | None, blob: str = "") -> CodeRef:
    git = state.git if state else None
    return CodeRef(
        str(entry.account.container),
        blob or (_kept(entry, digest) if entry.path.endswith(".zip") else entry.path),
        digest,
        git_commit=(git.commit or "") if git else "",
        git_dirty=git.dirty if git else False,
        size=state.snapshot.size if state else 0,
    )
