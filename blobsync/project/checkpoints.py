"""Lists the sets of files of a project's folders, here and in their containers: which are complete, and which one a
restart would take; refuses to download half a one."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from blobsync.base.errors import BlobsyncError, NothingMatchedError, UsageError
from blobsync.base.file_states import LocalState
from blobsync.base.records import NamedTuple, dataclass
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.config.mapping import Resolution, is_below
from blobsync.config.model import Cluster, FolderEntry
from blobsync.jobspec.make_spec import own_output
from blobsync.jobspec.node_secrets import own_lineage_keys
from blobsync.jobspec.spec import OWN_OUTPUT, JobSpec
from blobsync.keep import checkpoint_sets
from blobsync.keep.checkpoint_sets import FileSet
from blobsync.keep.marks import Keys, Mark, Marks
from blobsync.keep.restore import decide_restore
from blobsync.keep.set_files import FolderContent, files_of
from blobsync.keep.set_uploads import Writer, told_of
from blobsync.plan.project_context import ProjectContext
from blobsync.store.open_locations import OpenBlob

NO_SEAL = "its mark has no seal of yours: restored only by its job and step"
COMPLETE, HALF, NONE = "complete", "half", "none"
_MAX_POINTER = 65_536


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A set: ``here`` and ``there`` (in the container) are ``complete``, ``half`` or ``none``.

    ``path`` is from the project's root. ``time`` is when it was written, in seconds since 1970, None if unknown;
    ``size`` is in bytes. ``missing`` says why one of the two is half, or what its mark lacks. ``run_id``, ``lineage``:
    those of its mark, or empty; ``sealed``: the mark has this user's seal. ``is_next``: a restart takes it, of the job
    that was asked about, else of the last job of that lineage.
    """

    path: str
    step: int | None
    time: float | None
    files: int
    size: int
    here: str
    there: str
    missing: str = ""
    run_id: str = ""
    lineage: str = ""
    sealed: bool = False
    is_next: bool = False


@dataclass(frozen=True, slots=True)
class SetsPlace:
    """A folder with sets: its entry's rule, the folder here, the one in the container, and its path in the project.

    ``keys`` are the user's, of any lineage. ``is_per_job``: the sets of each job are below a folder with its id.
    """

    rule: CheckpointRule
    here: Path
    there: OpenBlob
    shown: str
    keys: Keys
    is_per_job: bool = False

    @property
    def pattern(self) -> CheckpointRule:
        """The rule for paths below the entry."""
        return _below_entry(self.rule, is_per_job=self.is_per_job)

    def marks(self, warn: Callable[[str], None]) -> Marks:
        """Its marks."""
        return Marks(self.there.store, self.there.name, warn, self.keys)


def _below_entry(rule: CheckpointRule, *, is_per_job: bool) -> CheckpointRule:
    return replace(rule, sets=f"*/{rule.sets}") if is_per_job else rule


class _BlobContent:
    """What is in a container, for the question whether a set there could be complete."""

    def __init__(self, place: SetsPlace) -> None:
        self._place = place

    def text(self, path: str) -> str | None:
        try:
            with self._place.there.store.open(self._place.there.at(path)) as reader:
                return reader.read(_MAX_POINTER).decode("utf-8", "replace")
        except BlobsyncError:
            return None

    def is_whole(self, path: str) -> bool:
        return True

    def is_json(self, path: str) -> bool:
        return True


def list_sets(place: SetsPlace, warn: Callable[[str], None], *, job: JobSpec | None = None) -> list[Checkpoint]:
    """The sets of a folder, the last one first; ``job``: only those that it can go on from, and what its lineage has
    without a mark, as far as that is known."""
    marks = place.marks(warn)
    known = marks.lineages()
    lineages = {each for those in known.values() for each in those}
    if job is None:
        by_lineage = [marks.of(each) for each in sorted(lineages)]
        sealed = [mark for those in by_lineage for mark in those]
        unsealed = [mark for each in sorted(lineages) for mark in marks.unsealed(each)]
        last = [those[-1] for those in map(checkpoint_sets.in_order, by_lineage) if those]
        following = {_next_of(place.rule, marks, Writer(mark.run_id, mark.lineage)) for mark in last}
    else:
        # Its own rule, which may be another one than the cluster file's today.
        rules = {link.name: link.checkpoints for link in job.folders if link.checkpoints}
        rule = rules.get(place.shown, place.rule)
        whose = job.lineage if job.lineage in lineages else rule.restore_from
        sealed, unsealed = (marks.named(whose), marks.named(whose, sealed=False)) if whose else ([], [])
        following = {_next_of(rule, marks, Writer(job.run_id, job.lineage, earlier=job.has_earlier_marks))}
    marked = [*((mark, True) for mark in sealed), *((mark, False) for mark in unsealed)]
    here = {one.name: one for one in checkpoint_sets.sets_in(place.pattern, dict(files_of(place.here)))}
    found = []
    for mark, is_sealed in marked:
        one = _marked(place, marks, mark, here.get(mark.stored))
        is_next = (mark.lineage, mark.stored) in following
        missing = one.missing or ("" if is_sealed or is_next else NO_SEAL)
        found.append(replace(one, sealed=is_sealed, is_next=is_next, missing=missing))
    names = {mark.stored for mark, _ in marked}
    there = {one.name: one for one in checkpoint_sets.sets_in(place.pattern, _states(place))}
    for name in sorted({*here, *there} - names):
        # Of sets without a mark only the folder of a job says whose they are.
        is_of = place.is_per_job and job is not None and name.partition("/")[0] in (job.run_id, job.lineage)
        if name in known or (job is not None and not is_of):
            # Another lineage's.
            continue
        found.append(_unmarked(place, name, here.get(name), there.get(name)))
    return sorted(found, key=lambda each: (each.step if each.step is not None else -1, each.time or 0), reverse=True)


def half_problem(place: SetsPlace, path: str, warn: Callable[[str], None]) -> str:
    """Why what is at ``path`` below the entry belongs to a set that is not complete in the container; else empty."""
    name = checkpoint_sets.set_of(place.pattern, path) or (
        checkpoint_sets.set_of(place.pattern, f"{path}/-") if path else None
    )
    if name is None:
        return ""
    marks = place.marks(warn)
    why = ""
    for lineage in marks.lineages().get(name, ()):
        if mark := marks.at(lineage, name):
            why = marks.mismatch(mark)
            if not why:
                return ""
    listed = marks.listing(name)
    if not listed:
        return ""
    return why or _lacking(place, FileSet(name, {path: _state(blob.size) for path, blob in listed.items()}))


def _next_of(rule: CheckpointRule, marks: Marks, writer: Writer) -> tuple[str, str]:
    """The lineage and the set that the next start of a job takes; empty: none."""
    mark = decide_restore(rule, marks, writer, lambda _: None).mark
    return (mark.lineage, mark.stored) if mark else ("", "")


def _marked(place: SetsPlace, marks: Marks, mark: Mark, here: FileSet | None) -> Checkpoint:
    why = marks.mismatch(mark)
    # Marks stay when 'rm' has removed the files.
    there = COMPLETE if not why else HALF if marks.listing(mark.stored) else NONE
    state, missing = _state_here(place, here)
    return Checkpoint(
        f"{place.shown}/{mark.stored}",
        mark.step,
        mark.time,
        len(mark.files),
        mark.size,
        state,
        there,
        why or missing,
        mark.run_id,
        mark.lineage,
    )


def _unmarked(place: SetsPlace, name: str, here: FileSet | None, there: FileSet | None) -> Checkpoint:
    state, missing = _state_here(place, here)
    shown = here or there
    files, size = (len(shown.files), shown.size) if shown else (0, 0)
    lacking = _lacking(place, there) if there else ""
    return Checkpoint(
        f"{place.shown}/{name}",
        checkpoint_sets.step_of(name),
        here.changed_at if here else None,
        files,
        size,
        state,
        HALF if there else NONE,
        lacking or missing,
    )


def _state_here(place: SetsPlace, here: FileSet | None) -> tuple[str, str]:
    if here is None:
        return NONE, ""
    told = told_of(place.here / here.name, None)
    judged = checkpoint_sets.judge(place.rule, here, FolderContent(place.here), time.time(), told=told)
    return (COMPLETE, "") if judged.is_complete else (HALF, judged.missing)


def _lacking(place: SetsPlace, there: FileSet) -> str:
    """What a set in the container has not, besides a mark."""
    judged = checkpoint_sets.judge(place.rule, there, _BlobContent(place), time.time(), last=True, ended_well=True)
    return judged.missing or "it has no mark that says that it is complete"


def _states(place: SetsPlace) -> Mapping[str, LocalState]:
    lead = f"{place.there.name}/" if place.there.name else ""
    found = place.there.store.list_blobs(lead)
    return {blob.name[len(lead) :]: _state(blob.size) for blob in found if not blob.is_folder_stub}


def _state(size: int) -> LocalState:
    return LocalState(size, 0, 0, 0)


class CheckpointFolders(NamedTuple):
    """The folder entries of a cluster, and what their sets are looked up with."""

    cluster: Cluster
    context: ProjectContext
    environ: Mapping[str, str]
    warn: Callable[[str], None]

    def list(self, place: Resolution | None, *, job: JobSpec | None = None) -> tuple[Checkpoint, ...]:
        """The sets of all entries, or of what is at ``place``; ``job``: only those that it can go on from.

        Raises ``UsageError`` if there is no entry with ``checkpoints``, ``NothingMatchedError`` if nothing is there.
        """
        file = self.cluster.file
        entries = [each for each in self.cluster.folders if each.checkpoints and (not place or each is place.entry)]
        if not entries:
            where = f"{place.entry.key} in {file}" if place else f"no folder entry of {file}"
            raise UsageError(
                f"{where} has {'no ' if place else ''}checkpoints",
                hint="add checkpoints: PATTERN to an entry with mode: upload, such as run-*/checkpoint-*",
            )
        sets = (each for entry in entries for each in self._sets(entry))
        found = [each for one in sets for each in list_sets(one, self.warn, job=job)]
        if place is not None:
            found = [each for each in found if is_below(each.path, place.path)]
        if not found:
            shown = place.path if place else ", ".join(entry.prefix for entry in entries)
            of_job = f" that {job.run_id} could go on from" if job else ""
            raise NothingMatchedError(
                f"{shown}: there is no checkpoint{of_job}, neither here nor in the container",
                hint="the pattern of checkpoints names them below the folder entry: blobsync config check",
            )
        return tuple(found)

    def demand_complete(self, place: Resolution) -> None:
        """Raise ``UsageError`` if ``place`` is a set, or in one, that is not complete in the container."""
        for sets in self._sets(place.entry):
            if why := half_problem(sets, place.relative, self.warn):
                again = f"blobsync d {shlex.quote(place.given)} --incomplete"
                shown = f"blobsync checkpoints {shlex.quote(place.entry.prefix)} shows the whole ones"
                raise UsageError(
                    f"{place.path} is half a checkpoint: {why}",
                    hint=f"{shown}; {again} takes it anyway",
                    path=place.path,
                )

    def _sets(self, entry: FolderEntry) -> Iterator[SetsPlace]:
        """The sets of an entry, if it has any."""
        if entry.checkpoints is not None:
            there, keys = self.context.connections.open(entry.remote), own_lineage_keys(self.environ)
            here, is_per_job = self.context.root / entry.prefix, _is_per_job(self.cluster, entry)
            yield SetsPlace(entry.checkpoints, here, there, entry.prefix, keys, is_per_job)


def _is_per_job(cluster: Cluster, entry: FolderEntry) -> bool:
    return own_output(cluster).get(OWN_OUTPUT) == entry.prefix


def demand_set(cluster: Cluster, place: Resolution) -> None:
    """Raise ``UsageError`` if ``place`` is no set of its folder entry."""
    entry, rule = place.entry, place.entry.checkpoints
    if rule is None:
        raise UsageError(
            f"{place.path} is no checkpoint: {entry.key} in {cluster.file} has no checkpoints",
            hint="add checkpoints: PATTERN to it, or name its cluster with -c",
            path=place.path,
        )
    pattern = _below_entry(rule, is_per_job=_is_per_job(cluster, entry))
    if checkpoint_sets.set_of(pattern, place.relative) != place.relative:
        raise UsageError(
            f"{place.path} is no checkpoint: {entry.key}.checkpoints in {cluster.file} names"
            f" {entry.prefix}/{pattern.sets}",
            hint="name a folder or file that the pattern names, or its cluster with -c",
            path=place.path,
        )
