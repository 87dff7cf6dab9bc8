"""A job's own outputs: their files, links to them, and copies of them into the project.

A job writes to the directories that it names, to a folder of its own (``output: per_job``), or else to the output
folder that all jobs share; of that only what changed while the job ran is its own. A linked folder is on a disk,
which is not always the project's own folder (Slurm's ``shared_root``); every other one is in a container. Copying from
such a disk never replaces a file of the project: it may be all that is left of an earlier run.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import field
from datetime import timedelta
from pathlib import Path

from blobsync.base.errors import (
    BlobsyncError,
    ConfigError,
    FailureCode,
    FileFailure,
    JobError,
    NothingMatchedError,
    UsageError,
)
from blobsync.base.exit_codes import ExitCode
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import BlobContainer, BlobLocation, below
from blobsync.base.records import dataclass
from blobsync.config.account_files import ACCOUNT_FOLDER
from blobsync.config.accounts import AccountFile
from blobsync.config.mapping import Resolution, is_below, resolve
from blobsync.config.model import DEFAULT_CLUSTER, Cluster, StorageAccount
from blobsync.config.trust_store import TRUSTED_LINKS
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.node_secrets import known_accounts
from blobsync.jobspec.spec import OWN_OUTPUT, FolderLink, JobSpec
from blobsync.local.files import LocalFolder, SourceFile, WaitForDisk, hash_file, wait_for_disk
from blobsync.local.names import local_problem, relative_name
from blobsync.local.os_errors import NotAFileError, local_error, raise_unless_gone
from blobsync.store.protocol import BlobStore
from blobsync.store.sas import LINK_LIFETIME, READ_BLOB, sas_url

_RUN = pattern(r"\$\{?BLOBSYNC_RUN_ID\}?")


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A place of outputs, ``below`` a folder entry. All of it belongs to the job, unless ``is_shared``."""

    id: str
    folder: FolderLink
    below: str = ""
    is_shared: bool = False

    @property
    def path(self) -> str:
        """As a user would type it, from the project's root."""
        return f"{self.folder.name}/{self.below}".rstrip("/")

    @property
    def in_container(self) -> str:
        """The same in the folder's container."""
        return below(self.folder.path, self.below)

    def part(self, asked: str) -> str:
        """What ``asked`` means below this place: a path of the project, one that begins with the id, or a name."""
        for start in (self.path, self.id):
            if asked == start or asked.startswith(f"{start}/"):
                return asked[len(start) + 1 :]
        return asked


def output_places(spec: JobSpec, task: int | None = None) -> tuple[OutputPlace, ...]:
    """Where the job, or one task of it, writes; empty if nothing of it stays. Pure. Raises ``UsageError`` for a task
    whose outputs are not its own, and for outputs on a disk of somebody else."""
    places = _places_of(spec, task)
    linked = next((place for place in places if place.folder.mode == "link"), None)
    if linked is not None and "recalled" in spec.options:
        raise UsageError(
            f"the outputs of {spec.run_id} are on the disk where it ran; they are seen from here with mode: upload for"
            f" {linked.folder.name}_folder",
            hint=f"blobsync d {shlex.quote(linked.path)} brings what was uploaded since",
        )
    return places


def _places_of(spec: JobSpec, task: int | None) -> tuple[OutputPlace, ...]:
    if task is not None and OWN_OUTPUT not in spec.options:
        raise UsageError(
            f"the tasks of {spec.run_id} share their outputs",
            hint=f"blobsync outputs {spec.run_id} lists them; output: per_job in the cluster file gives each its own",
        )
    if "outputs" in spec.options:
        found = (_named_place(spec, name, path) for name, path in spec.options["outputs"].items())
        return tuple(place for place in found if place)
    own = spec.options.get(OWN_OUTPUT)
    mine = [folder for folder in spec.folders if folder.name == own]
    if mine:
        return (OutputPlace("output", mine[0], spec.run_id if task is None else f"{spec.run_id}/{task}"),)
    written = [folder for folder in spec.folders if folder.mode not in ("download", "ro_mount")]
    named = [folder for folder in written if folder.name.startswith("output")]
    chosen = named or [folder for folder in written if folder.mode == "upload"]
    return tuple(OutputPlace(folder.name, folder, is_shared=True) for folder in chosen)


def _named_place(spec: JobSpec, name: str, path: str) -> OutputPlace | None:
    """None for a directory that lies in no folder of the job: it goes with the node."""
    below = _RUN.sub(spec.run_id, path).strip("/")
    covering = [folder for folder in spec.folders if f"{below}/".startswith(f"{folder.name}/")]
    if not covering:
        return None
    folder = max(covering, key=lambda folder: len(folder.name))
    return OutputPlace(name, folder, below[len(folder.name) + 1 :])


# The last uploads come after the end that the cluster reports (seconds).
_AFTER_END = 300.0


@dataclass(frozen=True, slots=True)
class OutputFile:
    """One file: ``name`` below the place ``output``, ``path`` from the project's root. Bytes; seconds since 1970.

    ``blob`` is where it is, None for a file on this machine's disk, which is at ``on_disk``: not always at ``path``.
    """

    output: str
    name: str
    path: str
    size: int
    last_modified: float
    blob: BlobLocation | None = field(default=None, repr=False)
    on_disk: Path | None = None

    @property
    def shown(self) -> str:
        """The name with its output's id first, which ``outputs ID PATH`` takes."""
        return f"{self.output}/{self.name}"


@dataclass(frozen=True, slots=True, repr=False)
class JobOutputs:
    """What a job has written so far. ``notes`` are for people; ``paths`` is what a download has to name.

    Files on a disk are not downloaded: ``project.jobs.copy_outputs`` brings those that the project does not have.
    """

    record: JobRecord
    files: tuple[OutputFile, ...]
    context: JobContext = field(repr=False, compare=False)
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<JobOutputs of {self.record.run_id}: {len(self.files):,} files>"

    def is_here(self, one: OutputFile) -> bool:
        """Whether the file on a disk is the one at its path of the project."""
        return one.on_disk is not None and is_same(one.on_disk, self.context.root / one.path)

    @property
    def are_here(self) -> bool:
        """Whether none has to be downloaded."""
        return all(self.is_here(one) for one in self.files)

    def link(self, one: OutputFile, expiry: timedelta = LINK_LIFETIME) -> str:
        """A URL that reads this file alone until it expires: a secret. That of a file on a disk is its blob's.

        Raises ``UsageError`` for a file on a disk whose blob is not there or not the same, ``MappingError`` where the
        project has no blob for it, ``CredentialError`` where the account cannot sign such a link.
        """
        context, cluster = self.context, self.context.cluster_of(self.record)
        if one.blob is None:
            place = resolve(one.path, cwd=context.root, root=context.root, cluster=cluster)
            self._demand_uploaded(one, cluster, place)
            blob, account = place.remote, place.entry.account
        else:
            blob, account = one.blob, account_of(context, cluster, str(one.blob.container))
        seconds, cli_login = int(expiry.total_seconds()), cluster.flag("use_cli_auth")
        return sas_url(account, blob, READ_BLOB, seconds, environ=context.environ, use_cli_auth=cli_login)

    def _demand_uploaded(self, one: OutputFile, cluster: Cluster, place: Resolution) -> None:
        """Raise ``UsageError`` unless the file's blob has the same bytes."""
        with self.context.store(cluster, place.entry.account) as store:
            blob = store.head(place.remote.name)
        other = "" if cluster.name == DEFAULT_CLUSTER else f"-c {cluster.name} "
        path = shlex.quote(one.path)
        upload = f"blobsync {other}u {path}"
        if not self.is_here(one):
            upload = f"blobsync outputs {self.record.run_id} {shlex.quote(one.shown)} --download, then {upload}"
        if blob is None:
            raise UsageError(f"{one.path} is on this machine, not in a container", hint=upload, path=one.path)
        known = hash_file(one.on_disk) if one.on_disk else None
        if known is None or (known.size, known.md5) != (blob.size, blob.md5):
            raise UsageError(
                f"{one.path} on this machine is not known to be what {place.remote} holds",
                hint=f"{upload} brings it there; blobsync {other}url {path} links to what is there",
                path=one.path,
            )


def is_same(one: Path, other: Path) -> bool:
    """Whether both are there and one and the same file or folder."""
    with suppress(OSError):
        return os.path.samefile(one, other)
    return False


def list_outputs(context: JobContext, record: JobRecord, asked: str = "", task: int | None = None) -> JobOutputs:
    """What is there now, below ``asked`` (empty: all of it), of the job or of one ``task`` of it.

    Raises ``NothingMatchedError`` if the job has no outputs, or none of that name; ``CredentialError`` and the
    container's errors; ``JobError`` for a disk that is not this machine's.
    """
    wanted = asked.strip("/")
    if wanted and local_problem(wanted, str(context.root)):
        raise UsageError(f"{asked!a} is not a path below the outputs of {record.run_id}")
    places = output_places(record.spec, task)
    if not places:
        raise NothingMatchedError(
            f"{record.run_id} has no output folder that stays",
            hint="add output_folder to the cluster file, and output: per_job to give each job its own",
        )
    cluster = context.cluster_of(record)
    files: list[OutputFile] = []
    paths: list[str] = []
    for place in places:
        part = place.part(wanted)
        found = list(_files(context, cluster, record, place, part))
        files += found
        if found and place.folder.mode != "link":
            paths += [one.path for one in found] if place.is_shared else [f"{place.path}/{part}".rstrip("/")]
    if not files and wanted:
        known = ", ".join(place.id for place in places)
        if wanted in {place.id for place in places}:
            yet = "" if record.info.state.is_final else " so far"
            hint = f"blobsync outputs {record.run_id} lists the rest"
            raise NothingMatchedError(f"{record.run_id} has written nothing to {wanted}{yet}", hint=hint, path=asked)
        raise NothingMatchedError(f"{record.run_id} has written no {asked}", hint=f"its outputs: {known}", path=asked)
    notes = tuple(sentence for place in places if (sentence := _elsewhere(context, place))) + tuple(
        f"{place.path} is shared by all jobs: these files changed while {record.run_id} ran; output: per_job in the"
        " cluster file gives each job its own"
        for place in places
        if place.is_shared
    )
    return JobOutputs(record, tuple(sorted(files, key=lambda one: one.shown)), context, tuple(paths), notes)


def demand_mapped(outputs: JobOutputs, cluster: Cluster) -> None:
    """Raise ``UsageError`` unless the project still has the job's folders where the job had them."""
    for place in output_places(outputs.record.spec):
        entry, folder = cluster.folder(place.folder.name), place.folder
        if folder.mode != "link" and (
            entry is None or (str(entry.account.container), entry.path) != (folder.container, folder.path)
        ):
            raise UsageError(
                f"{folder.name} of {cluster.file} is not what it was for {outputs.record.run_id}: {folder.container}/"
                f"{folder.path}",
                hint="blobsync outputs ID --url gives links instead",
            )


def _files(
    context: JobContext, cluster: Cluster, record: JobRecord, place: OutputPlace, part: str
) -> Iterator[OutputFile]:
    if place.folder.mode == "link":
        found = _on_disk(context, cluster, record, place, part)
    else:
        account = account_of(context, cluster, place.folder.container)
        with context.store(cluster, account) as store:
            found = list(_in_container(store, place, part))
    yield from (one for one in found if not place.is_shared or _is_of(record, one.last_modified))


def _elsewhere(context: JobContext, place: OutputPlace) -> str:
    """A sentence if the linked folder is not the project's own."""
    source = place.folder.source
    if place.folder.mode != "link" or is_same(Path(source), context.root / place.folder.name):
        return ""
    what = "is not the project's folder: --download copies from there" if Path(source).is_dir() else "is not there"
    return f"{place.folder.name} of this job is {source}, which {what}"


def _is_of(record: JobRecord, modified: float) -> bool:
    """Whether a file in a shared folder changed while the job ran; times of blobs are whole seconds."""
    ended = record.info.ended
    return int(record.submitted) <= modified and (ended is None or modified <= ended + _AFTER_END)


def _in_container(store: BlobStore, place: OutputPlace, part: str) -> Iterator[OutputFile]:
    url = BlobContainer.parse(place.folder.container)
    base = place.in_container
    name = below(base, part)
    one = store.head(name) if part else None
    blobs = [one] if one and not one.is_folder_stub else store.list_blobs(f"{name}/" if name else "")
    start = len(base) + 1 if base else 0
    for blob in blobs:
        if not blob.is_folder_stub and not blob.name.endswith("/"):
            inner = blob.name[start:]
            path = f"{place.path}/{inner}"
            yield OutputFile(place.id, inner, path, blob.size, blob.last_modified, url.child(blob.name))


def _on_disk(
    context: JobContext, cluster: Cluster, record: JobRecord, place: OutputPlace, part: str
) -> list[OutputFile]:
    # Other people's records of jobs come from Azure ML.
    base = Path(place.folder.source, relative_name(place.below) if place.below else "")
    if cluster.platform == "slurm" and cluster.text("ssh"):
        raise JobError(
            f"the outputs of {record.run_id} are on {cluster.text('ssh')}, in {base}",
            hint=f"{_copy_command(context, cluster, place, base)} brings them here;"
            f" mode: upload for {place.folder.name}_folder brings those of later jobs to the container",
        )
    start = base / part
    folders = os.walk(start, onerror=raise_unless_gone)
    walked = (Path(folder, name) for folder, _, names in folders for name in names)
    found = []
    for path in [start] if start.is_file() else walked:
        # A program may remove its files meanwhile; a link may lead to nothing.
        with suppress(FileNotFoundError):
            known = path.stat()
            if stat.S_ISREG(known.st_mode):
                inner = path.relative_to(base).as_posix()
                size, modified = known.st_size, known.st_mtime
                found.append(OutputFile(place.id, inner, f"{place.path}/{inner}", size, modified, on_disk=path))
    return found


def _copy_command(context: JobContext, cluster: Cluster, place: OutputPlace, base: Path) -> str:
    """What brings a folder of the login node here; rsync makes no folders above its own."""
    there, here = shlex.quote(f"{cluster.text('ssh')}:{base}/"), shlex.quote(str(context.root / place.path))
    return f"mkdir -p {here} && rsync -a {there} {here}/"


def account_of(context: JobContext, cluster: Cluster, container: str) -> StorageAccount:
    """The account file that opens a container: one of the cluster file, or another one of the project."""
    known = known_accounts([cluster]).get(container)
    folder = context.root / ACCOUNT_FOLDER
    for path in sorted(folder.glob("*.y*ml")) if known is None and folder.is_dir() else ():
        with suppress(ConfigError):
            account = AccountFile(path, f"{ACCOUNT_FOLDER}/{path.name}", context.environ).account
            if account and str(account.container) == container:
                return account
    if known is None:
        raise UsageError(
            f"the outputs are in {container}, which neither {cluster.file} nor {ACCOUNT_FOLDER}/ opens",
            hint="restore the storage account file",
        )
    return known


@dataclass(frozen=True, slots=True, repr=False)
class CopiedOutputs:
    """What became of the files on a disk: ``copied`` and verified, or in the project already (``present``)."""

    copied: tuple[OutputFile, ...] = ()
    present: tuple[OutputFile, ...] = ()
    failures: tuple[FileFailure, ...] = ()

    def __repr__(self) -> str:
        return f"<CopiedOutputs: {len(self.copied)} copied, {len(self.present)} present, {len(self.failures)} failed>"

    @property
    def exit_code(self) -> ExitCode:
        """0: all are in the project; 3: some failed or conflict; 1: none is there."""
        if not self.failures:
            return ExitCode.DONE
        if self.copied or self.present or any(each.code == FailureCode.CONFLICT for each in self.failures):
            return ExitCode.PARTIAL
        return ExitCode.FAILED


def copy_outputs(
    outputs: JobOutputs, root: Path, environ: Mapping[str, str], wait: WaitForDisk = wait_for_disk
) -> CopiedOutputs:
    """Bring each file that lies on a disk, and not in the project at ``root``, to its path there.

    Writes through no link out of the project that the user has not trusted. Raises ``LocalFileError`` and
    ``ConfigError`` before anything is written.
    """
    trusted = [Path(link.target) for link in TRUSTED_LINKS.load(root, environ)]
    folder = LocalFolder(root, (root, *trusted))
    # The project's folders on that disk, without links: the job's own files may be links within them.
    roots = ((place.id, place.folder) for place in output_places(outputs.record.spec))
    boundaries = {each: os.path.realpath(one.source.removesuffix(one.name) or "/") for each, one in roots}
    copied: dict[str, OutputFile] = {}
    present: list[OutputFile] = []
    failures: list[FileFailure] = []
    for one in outputs.files:
        if one.on_disk is None:
            continue
        done: bool | FileFailure
        try:
            done = not outputs.is_here(one) and _copy(folder, one, one.on_disk, boundaries[one.output])
        except BlobsyncError as error:
            done = FileFailure(one.path, error.code, error.message, error.hint)
        if isinstance(done, FileFailure):
            failures.append(done)
        elif done:
            copied[folder.path_of(relative_name(one.path))] = one
        else:
            present.append(one)
    # What is called copied may be removed where it came from.
    for file, why in wait(copied).items():
        lost = local_error(why, file)
        failures.append(FileFailure(copied.pop(file).path, lost.code, lost.message, lost.hint))
    return CopiedOutputs(tuple(copied.values()), tuple(present), tuple(failures))


def _copy(folder: LocalFolder, one: OutputFile, path: Path, boundary: str) -> bool | FileFailure:
    """Whether it was copied: False if the same bytes are there already. Raises ``BlobsyncError``."""
    real = os.path.realpath(path)
    if not is_below(real, boundary):
        why = f"{path} leads to {real}, outside of {boundary}"
        return FileFailure(one.path, FailureCode.LINK_REFUSED, why, "copy the file itself, if you trust the link")
    name = relative_name(one.path)
    target = folder.path_of(name)
    is_new = not os.path.lexists(target)
    with ExitStack() as opened:
        source = SourceFile(real)
        opened.callback(source.close)
        if is_new:
            part = folder.create(name, source.state.size)
            opened.callback(part.discard)
            part.copy_from(source.fd, 0, source.state.size)
        elif not (os.path.isfile(target) or os.path.isdir(target) or os.path.islink(target)):
            raise NotAFileError(target)
        theirs = hash_file(Path(real))
        if is_new:
            # Only now: a version of a file that is still written gets no name here, which would be a conflict later.
            source.check_unchanged()
            part.commit(None)
    ours = hash_file(Path(target))
    if theirs and ours and (theirs.size, theirs.md5) == (ours.size, ours.md5):
        return is_new
    if is_new:
        why = f"{target} is not what was copied from {path}"
        return FileFailure(one.path, FailureCode.MD5_MISMATCH, why, "move it away, then run the same command again")
    why = f"{one.path}: the project has another version than {path}; it was left alone"
    hint = f"cp {shlex.quote(str(path))} {shlex.quote(target)} replaces it"
    return FileFailure(one.path, FailureCode.CONFLICT, why, hint)
