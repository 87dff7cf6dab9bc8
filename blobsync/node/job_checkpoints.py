"""A job's sets of files on its node: uploads and marks them while the command runs, and brings one back before it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, FailureCode, LocalFileError
from blobsync.base.formatting import count_text
from blobsync.base.locations import below
from blobsync.base.plain_json import parse_object
from blobsync.base.records import dataclass
from blobsync.base.seals import SealKey
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import LINEAGE_KEYS, OWN_OUTPUT, FolderLink, lineage_of_job
from blobsync.keep import checkpoint_sets
from blobsync.keep.checkpoint_sets import FileSet
from blobsync.keep.marks import Keys, Mark, Marks
from blobsync.keep.node_messages import Choice, Notes, Over, mark_what_is_left
from blobsync.keep.restore import NAMES_ONE, choosable, decide_restore, wanted_files
from blobsync.keep.set_files import FolderContent, files_of, unlike
from blobsync.keep.set_uploads import FolderSets, Uploaded, Writer
from blobsync.node.job import NodeJob, read_text, write_text
from blobsync.node.job_stores import JobStores
from blobsync.node.ranks import NotReadyError
from blobsync.node.transfers import NodeTransfers, kept_of
from blobsync.plan.transfer_options import ignored_by

# How long a node waits for what node 0 decides, and node 0 for what the others say of the set that they have brought
# (seconds): all start at about the same time.
DECISION_SECONDS = 600.0
# How long a node that has its set waits for node 0, which may still be bringing its own.
AGREED_SECONDS = 3600.0
_POLL_SECONDS = 1.0


def folder_sets(job: NodeJob, places: JobStores, transfers: NodeTransfers, entry: FolderLink) -> FolderSets | None:
    """The sets of a folder entry; None if it has none."""
    rule = entry.checkpoints
    if rule is None:
        return None
    writer = _writer(job, entry)

    def upload(one: FileSet, stored: str) -> Uploaded:
        local = job.root / entry.name / writer.within / one.name
        destination = places.blobs(entry.container, below(entry.path, stored))
        return transfers.upload_set(entry, one, local, destination, cap_mbps=rule.cap_mbps)

    return FolderSets(
        rule,
        job.root / entry.name / writer.within,
        _marks(job, places, entry),
        upload,
        writer,
        say=job.say,
        notes=_notes(job, places, entry),
        requests=job.set_requests,
        ignored=ignored_by([("", entry.ignore)]),
        nodes=job.members,
        since=partial(_since, job),
        brought=partial(_brought, job, entry),
    )


def _since(job: NodeJob) -> float:
    """When the command was last about to start here, in seconds since 1970; 0: it was not."""
    try:
        return job.sets_since.stat().st_mtime
    except OSError:
        return 0.0


def outside_sets(job: NodeJob, entry: FolderLink, wanted: Callable[[str], bool] | None) -> Callable[[str], bool]:
    """Which files of an earlier attempt come back by themselves: none of a set, which is brought back as one."""
    rule, within = entry.checkpoints, _writer(job, entry).within
    lead = f"{within}/" if within else ""

    def is_outside(path: str) -> bool:
        if wanted is not None and not wanted(path):
            return False
        if rule is None or not path.startswith(lead):
            return True
        inner = path[len(lead) :]
        return not inner.startswith(f"{checkpoint_sets.ASIDE}/") and not checkpoint_sets.is_of_set(rule, inner)

    return is_outside


def restore_checkpoint(
    job: NodeJob,
    places: JobStores,
    transfers: NodeTransfers,
    entry: FolderLink,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Bring the last complete set that matches its mark to this node, record where it is, and set aside what an earlier
    start left and no mark names.

    With several nodes all get the one that node 0 decides on; one that is not as its mark says on one of them is passed
    over by all. Raises ``NotReadyError`` if a job would start from nothing although sets of its own are marked, or if
    node 0 does not decide.
    """
    rule = entry.checkpoints
    if rule is None:
        return
    marks, notes, writer = _marks(job, places, entry), _notes(job, places, entry), _writer(job, entry)
    if job.spec.is_elastic:
        # What this node said at the end of an earlier start of its own counts no more.
        over = Over(job.spec.run_id, "", well=False, sets=(), whole=())
        notes.say(over, job.spec.run_id, job.node_rank)
    if not job.node_rank:
        mark_what_is_left(notes, marks, writer.lineage, job.say)
    if rule.restore == "none":
        return
    # A node that joins an elastic job takes the last set there is.
    kind = _Together if job.spec.nodes > 1 and not job.spec.is_elastic else _Alone
    choice = kind(job, entry, rule, marks, writer, notes, sleep, clock)
    while (mark := choice.next()) is not None:
        problem = choice.agree(_bring(job, places, transfers, entry, mark), mark)
        if not problem:
            _record(job, entry, mark, writer)
            break
        job.say(f"checkpoint {mark.stored} is passed over: {problem}")
        choice.passed.add(mark.stored)
        if not job.in_place:
            # It may be whole here, and not on another node.
            _clear(job.root / entry.name / writer.within / mark.set)
    _set_aside_left(job, places, transfers, entry, mark)


@dataclass
class _Alone:
    """Chooses the set that a node starts from."""

    job: NodeJob
    entry: FolderLink
    rule: CheckpointRule
    marks: Marks
    writer: Writer
    notes: Notes
    sleep: Callable[[float], None]
    clock: Callable[[], float]
    passed: set[str] = field(default_factory=set)

    def next(self) -> Mark | None:
        """The set to bring; None: the job starts from nothing. Raises ``NotReadyError``."""
        decided = decide_restore(self.rule, self.marks, self.writer, self.job.say, without=self.passed)
        if decided.refused:
            raise NotReadyError(f"folder {self.entry.name}: {decided.refused}", hint=NAMES_ONE)
        self.passed.update(decided.passed_over)
        if decided.mark is None and self.passed:
            raise self._none_fits(len(self.passed))
        return decided.mark

    def agree(self, problem: str, mark: Mark) -> str:
        """Why the set is passed over, after it was brought with this ``problem``; empty: the job starts from it."""
        return problem

    def _none_fits(self, passed: int) -> NotReadyError:
        return NotReadyError(
            f"folder {self.entry.name}: {count_text(passed, 'checkpoint')} marked, and none is as its mark says",
            hint="blobsync checkpoints names them; with restore: none the job starts without one",
        )


@dataclass
class _Together(_Alone):
    """The same for a job with several nodes.

    Node 0 says which set they take, each of the others whether it has it, and node 0 that all have: then they start.
    Else it names another one.
    """

    number: int = -1

    def next(self) -> Mark | None:
        if self.job.node_rank:
            return self._named()
        self.number += 1
        try:
            mark = super().next()
        except NotReadyError:
            self._say(Choice(self.job.attempt, self.number, passed=len(self.passed)))
            raise
        self._say(self._proposed(mark))
        return mark

    def agree(self, problem: str, mark: Mark) -> str:
        if self.job.node_rank:
            return self._wait_for_all(problem, mark)
        problem = problem or self._ask_others()
        if not problem:
            self._say(replace(self._proposed(mark), agreed=True))
        return problem

    def _proposed(self, mark: Mark | None) -> Choice:
        said = Choice(self.job.attempt, self.number)
        return replace(said, stored=mark.stored, lineage=mark.lineage) if mark else said

    def _say(self, said: Choice) -> None:
        self.notes.say(said, self.job.spec.run_id, self.job.node_rank)

    def _said(self, node: int = 0) -> Choice | None:
        """What a node said in this start, not in an earlier one."""
        said = self.notes.said(Choice, self.job.spec.run_id, node)
        return said if said is not None and said.attempt == self.job.attempt else None

    def _ask_others(self) -> str:
        """Which other node has a problem with the set; empty: none."""
        missing = list(range(1, self.job.spec.nodes))
        until = self.clock() + DECISION_SECONDS
        while True:
            for node in list(missing):
                said = self._said(node)
                if said is not None and said.number == self.number:
                    if said.problem:
                        return f"node {node} does not have it as its mark says"
                    missing.remove(node)
            if not missing or self.job.stopped:
                return ""
            if self.clock() > until:
                names = ", ".join(map(str, missing))
                self.job.say(f"starting, although these nodes did not say that they have the checkpoint: {names}")
                return ""
            self.sleep(_POLL_SECONDS)

    def _wait(self, seconds: float, wanted: Callable[[Choice], bool]) -> Choice:
        until = self.clock() + seconds
        while (said := self._said()) is None or not wanted(said):
            if self.clock() > until or self.job.stopped:
                raise NotReadyError(f"node 0 did not say within {seconds:g} s which checkpoint all nodes take")
            self.sleep(_POLL_SECONDS)
        return said

    def _named(self) -> Mark | None:
        """The set that node 0 names."""
        self.job.say("waiting for node 0 to say which checkpoint all nodes take")
        said = self._wait(DECISION_SECONDS, lambda said: said.number > self.number)
        self.number = said.number
        if said.passed is not None:
            raise self._none_fits(said.passed)
        if said.stored is None:
            return None
        for mark in choosable(self.rule, self.marks, self.writer, self.job.say)[0]:
            if (mark.stored, mark.lineage) == (said.stored, said.lineage):
                return mark
        raise NotReadyError(f"checkpoint {said.stored!a}, which node 0 chose, has no mark any more")

    def _wait_for_all(self, problem: str, mark: Mark) -> str:
        number = self.number
        self._say(Choice(self.job.attempt, number, problem=bool(problem)))
        said = self._wait(AGREED_SECONDS, lambda said: said.number > number or said.agreed)
        if said.number > number:
            return problem or "another node does not have it as its mark says"
        if problem:
            # Node 0 has waited long enough, and the others start from it.
            raise NotReadyError(f"folder {self.entry.name}: checkpoint {mark.stored}, which all nodes take: {problem}")
        return ""


def _bring(job: NodeJob, places: JobStores, transfers: NodeTransfers, entry: FolderLink, mark: Mark) -> str:
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
    _make_room(job, job.root / entry.name / writer.within, mark.set, names)
    remote = places.blobs(entry.container, below(entry.path, mark.stored))
    try:
        if names:
            target.parent.mkdir(parents=True, exist_ok=True)
            # What is wanted are names below a folder; a set that is one file has none.
            wanted = None if "" in names else names.__contains__
            transfers.download(f"{entry.name}/{mark.set}", remote, target, wanted=wanted, kept=kept_of(entry))
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
    return checkpoint_sets.judge(rule, one, content, time.time(), last=True).is_complete


def _make_room(job: NodeJob, folder: Path, name: str, names: Collection[str]) -> None:
    """Take away what lies under a set's name: a restored set is exactly the set, and no file of it goes.

    In a root of our own, files of the same names are what a killed start was bringing.
    """
    target = folder / name
    there = dict(files_of(target))
    if there.keys() - names or (job.in_place and there):
        _set_aside(job, folder, name, "the checkpoint that comes is another one")
    _clear(target)


def _set_aside_left(
    job: NodeJob, places: JobStores, transfers: NodeTransfers, entry: FolderLink, mark: Mark | None
) -> None:
    """Set aside what an earlier start left that is later than the set that came back (None: none did), and that no mark
    will name: it may be half, and a program that takes the last name in the folder would start from it."""
    folder, step = job.root / entry.name / _writer(job, entry).within, mark.step if mark else None

    def is_later(name: str) -> bool:
        own = checkpoint_sets.step_of(name)
        return (mark is None or name != mark.set) and (own is None or step is None or own > step)

    sets = folder_sets(job, places, transfers, entry)
    try:
        left = sets.left_over(is_later) if sets else []
        # In the user's own folder another job may be writing its sets, and in an elastic job the ranks themselves take
        # the last one that a node has.
        if not (job.in_place or job.spec.is_elastic):
            for one in left:
                _set_aside(job, folder, one.name, "an earlier start left it, and nothing says that it is whole")
        elif left:
            what = f"{count_text(len(left), 'checkpoint')} of an earlier start, such as {left[-1].name}"
            job.say(f"{folder}: {what}: still here, perhaps half; start from BLOBSYNC_RESTORED, not from the last name")
    except (LocalFileError, OSError) as error:
        job.say(f"{folder}: what an earlier start left there stays: {error}")


def _set_aside(job: NodeJob, folder: Path, name: str, why: str) -> None:
    """Move a set of ``folder`` to where no set is looked for; from there it is uploaded as other files are."""
    beside = folder / checkpoint_sets.ASIDE
    beside.mkdir(parents=True, exist_ok=True)
    source = folder / name
    aside = Path(tempfile.mkdtemp(prefix=f"{source.name}-", dir=beside)) / source.name
    count = count_text(sum(1 for _ in files_of(source)), "file")
    source.rename(aside)
    job.say(f"{source}: {count} moved to {aside}: {why}")


def _clear(target: Path) -> None:
    """Remove what an earlier attempt left under a set's name."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


def _record(job: NodeJob, entry: FolderLink, mark: Mark, writer: Writer) -> None:
    folder = job.root / entry.name / writer.within
    one = FileSet(mark.set, dict(files_of(folder / mark.set)))
    pointer = checkpoint_sets.pointer_of(entry.checkpoints, one) if entry.checkpoints and one.files else None
    if pointer:
        (folder / pointer[0]).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / pointer[0], pointer[1])
    step = "" if mark.step is None else f", step {mark.step}"
    job.say(f"checkpoint {mark.stored} restored: {count_text(len(one.files), 'file')}, {one.size:,} bytes{step}")
    text = read_text(job.restored)
    first: dict[str, Any] = {"path": str(folder / mark.set), "step": mark.step, "stored": mark.stored, "sets": {}}
    found = parse_object(text) if text else first
    found["sets"][entry.name] = [mark.lineage, mark.stored]
    write_text(job.restored, json.dumps(found))


def _brought(job: NodeJob, entry: FolderLink) -> tuple[str, str] | None:
    """The lineage and the stored name of the set that was brought back for this start; None: none."""
    text = read_text(job.restored)
    found = parse_object(text)["sets"].get(entry.name) if text else None
    return (found[0], found[1]) if found else None


def _writer(job: NodeJob, entry: FolderLink) -> Writer:
    within = job.spec.run_id if job.spec.options.get(OWN_OUTPUT) == entry.name else ""
    code = job.spec.code.digest if job.spec.code else ""
    # The nodes of an elastic job are started one by one: they do not know each other's starts.
    start = "any" if job.spec.is_elastic else f"{job.attempt}.end" if job.is_at_end else job.attempt
    earlier = bool(job.spec.options.get("earlier_marks"))
    return Writer(job.spec.run_id, job.lineage, code, job.node_rank, within, start, earlier)


def _marks(job: NodeJob, places: JobStores, entry: FolderLink) -> Marks:
    return Marks(places.container(entry.container), entry.path, job.say, _keys(job))


def _keys(job: NodeJob) -> Keys:
    """The keys of lineages that came with the job. Raises ``NotReadyError`` if it has none of its own."""
    with suppress(ValueError):
        sent = {name: SealKey(bytes.fromhex(str(key))) for name, key in parse_object(job.secret(LINEAGE_KEYS)).items()}
        if lineage_of_job(job.lineage) in sent:
            return lambda lineage: sent.get(lineage_of_job(lineage))
    raise NotReadyError(
        "the key that seals the marks of its checkpoints did not come with the job",
        hint="submit it again: blobsync resubmit ID",
    )


def _notes(job: NodeJob, places: JobStores, entry: FolderLink) -> Notes:
    return Notes(places.container(entry.container), entry.path, job.lineage, job.say, _keys(job))
