"""A job's sets of files on its node: uploads and marks them while the command runs, and brings one back before it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, FailureCode
from blobsync.config.model import CheckpointRule
from blobsync.jobspec.spec import OWN_OUTPUT, FolderLink
from blobsync.keep import checkpoints
from blobsync.keep.checkpoints import FileSet
from blobsync.keep.marks import Mark, Marks
from blobsync.keep.sets import (
    FolderContent,
    FolderSets,
    Uploaded,
    Writer,
    decide_restore,
    files_of,
    unlike,
    wanted_files,
)
from blobsync.node.job import NodeJob, write_text
from blobsync.node.places import JobPlaces
from blobsync.node.ranks import NotReadyError
from blobsync.node.transfers import NodeTransfers
from blobsync.plan.transfer_options import ignored_by

# How long a node waits for what node 0 decides (seconds): it starts at about the same time, and only reads marks.
DECISION_SECONDS = 600.0
_POLL_SECONDS = 1.0


def folder_sets(job: NodeJob, places: JobPlaces, transfers: NodeTransfers, entry: FolderLink) -> FolderSets | None:
    """The sets of a folder entry; None if it has none."""
    rule = entry.checkpoints
    if rule is None:
        return None
    writer = _writer(job, entry)

    def upload(one: FileSet, stored: str) -> Uploaded:
        local = job.root / entry.name / writer.within / one.name
        destination = places.blobs(entry.container, _below(entry.path, stored))
        return transfers.upload_set(entry, one, local, destination, cap_mbps=rule.cap_mbps)

    return FolderSets(
        rule,
        job.root / entry.name / writer.within,
        _marks(job, places, entry),
        upload,
        writer,
        say=job.say,
        requests=job.set_requests,
        ignored=ignored_by([("", entry.ignore)]),
        nodes=job.members,
    )


def outside_sets(job: NodeJob, entry: FolderLink, wanted: Callable[[str], bool] | None) -> Callable[[str], bool]:
    """Which files of an earlier attempt come back by themselves: none of a set, which is brought back as one."""
    rule, within = entry.checkpoints, _writer(job, entry).within
    lead = f"{within}/" if within else ""

    def is_outside(path: str) -> bool:
        if wanted is not None and not wanted(path):
            return False
        inside = path.startswith(lead)
        return rule is None or not inside or not checkpoints.is_of_set(rule, path[len(lead) :])

    return is_outside


def restore_checkpoint(
    job: NodeJob,
    places: JobPlaces,
    transfers: NodeTransfers,
    entry: FolderLink,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Bring the last complete set that matches its mark to this node, and record where it is.

    With several nodes all get the one that node 0 decides on. Raises ``NotReadyError`` if a job would start from
    nothing although sets of its own are marked, or if node 0 does not decide.
    """
    rule = entry.checkpoints
    if rule is None or rule.restore == "none":
        return
    marks, writer = _marks(job, places, entry), _writer(job, entry)
    passed = set[str]()
    mark = _mark_to_take(job, entry, marks, writer, sleep)
    while mark is not None:
        problem = _bring(job, places, transfers, entry, mark)
        if not problem:
            _record(job, entry, mark, writer)
            return
        job.say(f"checkpoint {mark.stored} is passed over: {problem}")
        passed.add(mark.stored)
        if _is_one_of_many(job):
            raise NotReadyError(f"folder {entry.name}: checkpoint {mark.stored}, which all nodes take: {problem}")
        mark = decide_restore(rule, marks, writer, job.say, without=passed).mark
    if passed:
        _demand_none(entry, passed)


def _mark_to_take(
    job: NodeJob, entry: FolderLink, marks: Marks, writer: Writer, sleep: Callable[[float], None]
) -> Mark | None:
    rule = entry.checkpoints
    if rule is None:
        return None
    if job.node_rank and _is_one_of_many(job):
        return _decided(job, rule, marks, writer, sleep)
    decided = decide_restore(rule, marks, writer, job.say)
    if decided.mark is None and decided.passed_over:
        _demand_none(entry, decided.passed_over)
    if _is_one_of_many(job):
        place = {"stored": decided.mark.stored, "lineage": decided.mark.lineage} if decided.mark else {}
        marks.note(writer.lineage, "restore", job.spec.run_id, {"attempt": job.attempt, **place})
    return decided.mark


def _demand_none(entry: FolderLink, passed: Collection[str]) -> None:
    raise NotReadyError(
        f"folder {entry.name}: {len(passed)} marked checkpoints are there, and none is as its mark says",
        hint="blobsync checkpoints names them; with restore: none the job starts without one",
    )


def _decided(
    job: NodeJob, rule: CheckpointRule, marks: Marks, writer: Writer, sleep: Callable[[float], None]
) -> Mark | None:
    """What node 0 decided for this start."""
    until = time.monotonic() + DECISION_SECONDS
    job.say("waiting for node 0 to say which checkpoint all nodes take")
    while True:
        said = marks.noted(writer.lineage, "restore", job.spec.run_id)
        # Not what it said for an earlier start.
        if said is not None and said.get("attempt") == job.attempt:
            break
        if time.monotonic() > until or job.stopped:
            raise NotReadyError(f"node 0 did not say within {DECISION_SECONDS:g} s which checkpoint all nodes take")
        sleep(_POLL_SECONDS)
    stored, lineage = said.get("stored"), said.get("lineage")
    if stored is None:
        return None
    with suppress(ValueError):
        found = [mark for mark in checkpoints.fitting(rule, marks.of(str(lineage))) if mark.stored == stored]
        if found:
            return found[0]
    raise NotReadyError(f"checkpoint {stored!a}, which node 0 chose, has no mark any more")


def _bring(job: NodeJob, places: JobPlaces, transfers: NodeTransfers, entry: FolderLink, mark: Mark) -> str:
    """Bring a set to this node and compare it with its mark; returns why that failed, and leaves nothing then."""
    rule, writer = entry.checkpoints, _writer(job, entry)
    if rule is None:
        return ""
    files = wanted_files(rule, mark, job.node_rank, job.spec.nodes)
    target = job.root / entry.name / writer.within / mark.set
    if job.in_place and _is_here(rule, target, mark.set):
        job.say(f"checkpoint {mark.set} is here already, and complete")
        return ""
    names = {each.path for each in files}
    if names and names == dict(files_of(target)).keys() and not unlike(target, files):
        # An earlier start left it.
        return ""
    _clear(target)
    remote = places.blobs(entry.container, _below(entry.path, mark.stored))
    try:
        if names:
            target.parent.mkdir(parents=True, exist_ok=True)
            transfers.download(f"{entry.name}/{mark.set}", remote, target, wanted=names.__contains__)
        wrong = unlike(target, files)
    except BlobsyncError as error:
        if error.code in (FailureCode.STORAGE_UNREACHABLE, FailureCode.ACCESS_DENIED):
            raise
        _clear(target)
        return error.message
    if wrong:
        _clear(target)
        return f"{wrong} is not as its mark says"
    return ""


def _is_here(rule: CheckpointRule, target: Path, name: str) -> bool:
    """Whether the folder of a job that runs in place has this set, complete: it may be newer than the marked one."""
    one = FileSet(name, dict(files_of(target)))
    if not one.files:
        return False
    content = FolderContent(target.parents[name.count("/")])
    return checkpoints.judge(rule, one, content, time.time(), last=True).is_complete


def _clear(target: Path) -> None:
    """Remove what an earlier attempt left under a set's name."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _record(job: NodeJob, entry: FolderLink, mark: Mark, writer: Writer) -> None:
    folder = job.root / entry.name / writer.within
    one = FileSet(mark.set, dict(files_of(folder / mark.set)))
    pointer = checkpoints.pointer_of(entry.checkpoints, one) if entry.checkpoints and one.files else None
    if pointer:
        (folder / pointer[0]).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / pointer[0], pointer[1])
    step = "" if mark.step is None else f", step {mark.step}"
    job.say(f"checkpoint {mark.stored} restored: {len(one.files):,} files, {one.size:,} bytes{step}")
    if not job.restored.exists():
        found: dict[str, Any] = {"path": str(folder / mark.set), "step": mark.step, "stored": mark.stored}
        write_text(job.restored, json.dumps(found))


def _writer(job: NodeJob, entry: FolderLink) -> Writer:
    within = job.spec.run_id if job.spec.options.get(OWN_OUTPUT) == entry.name else ""
    code = job.spec.code.digest if job.spec.code else ""
    # The nodes of an elastic job are started one by one.
    start = "" if job.spec.is_elastic else job.attempt
    return Writer(job.spec.run_id, job.lineage, code, job.node_rank, within, start)


def _marks(job: NodeJob, places: JobPlaces, entry: FolderLink) -> Marks:
    return Marks(places.container(entry.container), entry.path, job.say)


def _is_one_of_many(job: NodeJob) -> bool:
    """Whether the nodes of a job take one decision. One that joins an elastic job takes the last set there is."""
    return job.spec.nodes > 1 and not job.spec.is_elastic


def _below(path: str, name: str) -> str:
    return "/".join(part for part in (path, name) if part)
