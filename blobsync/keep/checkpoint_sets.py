"""Which sets of files a folder has, which are complete, their order and stored names, and which old ones may go. Pure.

A set is a folder or a single file that a pattern names. When a program is done with one is known by kind; the order in
which each framework writes was read in its source:

    Hugging Face Trainer   checkpoint-N/   trainer_state.json is the last file (Trainer._save_checkpoint, 5.24)
    torch.distributed      .metadata is renamed to its name when all ranks have written
    .checkpoint (DCP)                      (FileSystemWriter.finish, torch 2.13)
    DeepSpeed              global_stepN/   ``latest`` beside it names the set, written at the end (save_checkpoint)
    Megatron-LM            iter_NNNNNNN/   latest_checkpointed_iteration.txt beside it, written at the end
    PyTorch Lightning      *.ckpt          one file, written elsewhere and moved (_atomic_save, 2.6): still
    anything else                          still

``still`` waits longer, since nothing but time says that it is over. A file that its own format shows to be cut off
(a zip, as torch.save writes them, safetensors) makes no set complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Protocol

from blobsync.base.file_states import LocalState
from blobsync.base.locations import below
from blobsync.base.records import NamedTuple
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.keep.marks import MAX_VALUE, Mark

STILL = "still"
# How long nothing may change in a set (seconds): after its last file, and where only stillness is known.
SETTLED_SECONDS, STILL_SECONDS = 5, 60
# How many versions of an overwritten set stay where the cluster file does not say it.
VERSIONS = 3
# In a job's folder: what an earlier start left, and no set is restored or marked from.
ASIDE = ".set-aside"
_BESIDE = "../"
_LATEST, _MEGATRON = f"{_BESIDE}latest", f"{_BESIDE}latest_checkpointed_iteration.txt"
_BY_NAME = (
    (re.compile(r"checkpoint-\d+"), "trainer_state.json"),
    (re.compile(r"global_step\d+"), _LATEST),
    (re.compile(r"iter_\d{7}"), _MEGATRON),
)
# For programs that call their sets as a framework does, and write no such file.
_OTHERWISE = "; if the program writes none, complete: NAME in the cluster file or blobsync checkpoint done says it"
_METADATA = "*.metadata"
_DISTRIBUTED = (".metadata", ".distcp", ".metadata.tmp")
_OF_RANK = re.compile(r"__\d+\.metadata(\.tmp)?")
_STEP = re.compile(r"step[=_-]?(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}")


class FileSet(NamedTuple):
    """A set here: its name below the folder, and its files by their paths below it (``""``: the set is one file)."""

    name: str
    files: Mapping[str, LocalState]

    @property
    def is_file(self) -> bool:
        """Whether it is a single file."""
        return "" in self.files

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(state.size for state in self.files.values())

    @property
    def changed_at(self) -> float:
        """When something in it last changed, in seconds since 1970."""
        return max(state.ctime_ns for state in self.files.values()) / 1e9

    def same_as(self, other: FileSet) -> bool:
        """Whether both have the same files, unchanged by their ``stat``."""
        return self.files.keys() == other.files.keys() and all(
            state.same_file(other.files[path]) for path, state in self.files.items()
        )


class Told(NamedTuple):
    """What programs said about a set: by how many ranks on this node, of how many that must say it, and when last.

    ``of`` is how many ranks must say it on all nodes. ``went_on``: one rank alone says anything here, and it has said
    it of another set since.
    """

    ranks: int
    needed: int
    at: float
    of: int = 1
    went_on: bool = False


class Reach(str, Enum):
    """For which nodes holds what node 0 knows when it takes a set for complete.

    ``ALL``: all have written their files. ``RANKS``: each rank says it of its own. ``OWN``: node 0 alone has.
    """

    ALL = "all"
    RANKS = "ranks"
    OWN = "own"

    @classmethod
    def _missing_(cls, value: object) -> Reach | None:
        # Of an unknown one, of a later version, as little as possible is believed.
        return cls.OWN if isinstance(value, str) else None


class Judgement(NamedTuple):
    """Whether a set is complete; ``missing`` says what is not there yet."""

    is_complete: bool
    missing: str = ""


class Content(Protocol):
    """Reads files of the folder, by their paths below it."""

    def text(self, path: str) -> str | None:
        """A small text file; None if there is none."""
        ...

    def is_whole(self, path: str) -> bool:
        """Whether the file's own format says that nothing of it is missing; True if the format is unknown."""
        ...

    def is_json(self, path: str) -> bool:
        """Whether the file can be read as JSON."""
        ...


def set_of(rule: CheckpointRule, path: str) -> str | None:
    """The set that the file ``path`` belongs to; None if it belongs to none, as a pointer and what was set aside."""
    wanted, parts = rule.sets.split("/"), path.split("/")
    if parts[0] == ASIDE or len(parts) < len(wanted) or not all(map(fnmatchcase, parts, wanted)):
        return None
    if len(parts) == len(wanted) and f"{_BESIDE}{parts[-1]}" in (*rule.complete, _LATEST, _MEGATRON):
        return None
    return "/".join(parts[: len(wanted)])


def is_of_set(rule: CheckpointRule, path: str) -> bool:
    """Whether a blob, by its path below the folder, is of a set or of a version of one (``last.ckpt@1200``)."""
    at = rule.sets.count("/")
    parts = path.split("/")
    plain = [part.rpartition("@")[0] or part if number == at else part for number, part in enumerate(parts)]
    return set_of(rule, path) is not None or set_of(rule, "/".join(plain)) is not None


def fitting(rule: CheckpointRule, marks: Iterable[Mark]) -> list[Mark]:
    """The marks of sets that the rule means; what else a mark names is none of its business."""
    return [mark for mark in marks if set_of(rule, mark.set) == mark.set]


def sets_in(rule: CheckpointRule, files: Mapping[str, LocalState]) -> list[FileSet]:
    """The sets among these files, in the order of their names."""
    found: dict[str, dict[str, LocalState]] = {}
    for path, state in files.items():
        name = set_of(rule, path)
        if name is not None:
            found.setdefault(name, {})[path[len(name) + 1 :]] = state
    return [FileSet(name, found[name]) for name in sorted(found)]


def distributed_in(paths: Iterable[str]) -> frozenset[str]:
    """The folders with what DCP writes, below a set; the set itself is ``""``."""
    return frozenset(path.rpartition("/")[0] for path in paths if path.endswith(_DISTRIBUTED))


def completing(rule: CheckpointRule, one: FileSet, others: Collection[str] = ()) -> tuple[str, ...]:
    """The files that say that a set is complete, or ``still``.

    ``others`` are the folders with what DCP writes in other sets of the same program.
    """
    if rule.complete:
        return rule.complete
    if one.is_file:
        return (STILL,)
    last = one.name.rpartition("/")[2]
    distributed = distributed_in(one.files)
    if distributed == {""} and distributed.issuperset(others) and not any(map(_OF_RANK.fullmatch, one.files)):
        return (_METADATA,)
    named = next(((needed,) for form, needed in _BY_NAME if form.fullmatch(last)), (STILL,))
    # Several in one set are written one after the other, and without collectives each rank writes one of its own:
    # nothing but time says that the next one will not begin.
    return (_METADATA, STILL) if distributed and named == (STILL,) else named


def settle_seconds(rule: CheckpointRule, needed: Sequence[str]) -> float:
    """How long nothing may change in a set."""
    if rule.settle_seconds is not None:
        return rule.settle_seconds
    return STILL_SECONDS if STILL in needed else SETTLED_SECONDS


def judge(
    rule: CheckpointRule,
    one: FileSet,
    content: Content,
    now: float,
    *,
    told: Told | None = None,
    last: bool = False,
    ended_well: bool = False,
    others: Collection[str] = (),
) -> Judgement:
    """Whether the program is done with a set. ``others`` as in :func:`completing`.

    ``last``: nothing writes any more, so a set with all its files need not be still; ``ended_well``: the program did
    not fail either, so that a set without any such file is as it wanted it.
    """
    if cut := _cut_off(one, content):
        return Judgement(False, cut)
    if told is not None and told.at >= one.changed_at:
        # One rank may say it for all, with their number. What tells that from ranks that are not done yet: it goes on.
        for_all = (last and ended_well) or (told.went_on and now - one.changed_at >= STILL_SECONDS)
        missing = "" if told.ranks >= told.needed or for_all else _few(told)
        return Judgement(not missing, missing)
    if told is not None and not rule.complete:
        return Judgement(False, "it changed after it was said to be complete")
    needed = completing(rule, one, others)
    otherwise = "" if rule.complete or _METADATA in needed else _OTHERWISE
    missing = _missing(one, [text for text in needed if text != STILL], content, otherwise)
    if missing:
        return Judgement(False, missing)
    wait = settle_seconds(rule, needed)
    if last and (STILL not in needed or ended_well):
        return Judgement(True)
    if now - one.changed_at < wait:
        return Judgement(False, f"it has not been still for {wait:g} s")
    return Judgement(True)


def reach_of(rule: CheckpointRule, one: FileSet, told: Told | None, others: Collection[str] = ()) -> Reach:
    """What a complete set of node 0 says of the other nodes' files.

    DCP gathers what all ranks have written before it writes ``.metadata``; every other framework's last file, the
    pointers too, may be there while ranks of other nodes still write.
    """
    if told is not None and told.at >= one.changed_at:
        return Reach.RANKS if told.of > 1 else Reach.ALL
    return Reach.ALL if not rule.complete and completing(rule, one, others) == (_METADATA,) else Reach.OWN


class Heard(NamedTuple):
    """What a node has heard of a set from node 0: its reach, and for how many seconds.

    ``went_on``: no rank of this node has ever said anything of a set, and node 0's have said it of a later one.
    """

    reach: Reach
    seconds: float
    went_on: bool = False


def judge_part(
    rule: CheckpointRule,
    one: FileSet | None,
    heard: Heard,
    content: Content,
    now: float,
    *,
    told: Told | None = None,
    last: bool = False,
    ended_well: bool = False,
) -> Judgement:
    """Whether a node other than node 0 has all its files of a set that node 0 takes for complete; None: it has none.

    With ``last`` nothing writes any more, and ``now`` is when that began: a file that a kill cut off is still, too.
    """
    if one is not None and (cut := _cut_off(one, content)):
        return Judgement(False, cut)
    if told is not None:
        if one is not None:
            return judge(rule, one, content, now, told=told, last=last, ended_well=ended_well)
        return Judgement(True) if told.ranks >= told.needed else Judgement(False, _few(told))
    if last and ended_well:
        return Judgement(True)
    quiet = heard.seconds if one is None else now - one.changed_at
    if heard.reach is Reach.RANKS:
        spoken_for = heard.went_on and quiet >= STILL_SECONDS
        return Judgement(True) if spoken_for else Judgement(False, "no rank on this node said so")
    if one is None:
        is_over = heard.reach is Reach.ALL or quiet >= STILL_SECONDS
        return (
            Judgement(True) if is_over else Judgement(False, "it has no files on this node, which may write some yet")
        )
    if judge(rule, one, content, now, last=last).is_complete:
        return Judgement(True)
    wait = settle_seconds(rule, completing(rule, one))
    if heard.reach is Reach.ALL:
        wait = 0 if last else min(wait, SETTLED_SECONDS)
    else:
        wait = max(wait, SETTLED_SECONDS)
    return Judgement(True) if quiet >= wait else Judgement(False, f"it has not been still for {wait:g} s")


def _cut_off(one: FileSet, content: Content) -> str:
    """The first file that its own format shows to be cut off; empty if none is."""
    cut = next((path for path in sorted(one.files) if not content.is_whole(below(one.name, path))), None)
    return "" if cut is None else f"{below(one.name, cut)} is cut off"


def _few(told: Told) -> str:
    return f"{told.ranks} of {told.needed} ranks on this node said so"


def _missing(one: FileSet, needed: Sequence[str], content: Content, otherwise: str) -> str:
    """What says that a set is complete, and is not there, and what a program can do ``otherwise``; empty if all is."""
    for text in needed:
        if text.startswith(_BESIDE):
            pointer = below(one.name.rpartition("/")[0], text.removeprefix(_BESIDE))
            if not _points_to(content.text(pointer), one.name):
                return f"{pointer} does not name it yet{otherwise}"
            continue
        there = [path for path in one.files if path == text or fnmatchcase(path.rpartition("/")[2], text)]
        if text.endswith(".metadata") and (begun := _begun(one)) is not None:
            return f"{begun or 'it'} has no .metadata yet"
        if not there:
            return f"it has no {'.metadata' if text == _METADATA else text} yet{otherwise}"
        whole = [path for path in there if path.endswith(".json")]
        if any(not content.is_json(below(one.name, path)) for path in whole):
            return f"{text} is cut off"
        # A program may say it with an empty file of its own.
        if any(one.files[path].size == 0 for path in there if path.endswith((".json", ".metadata"))):
            return f"{text} is empty"
    return ""


def _begun(one: FileSet) -> str | None:
    """A folder in a set, or the set itself (``""``), with shards of DCP and without what it writes last."""
    shards = {path.rpartition("/")[0] for path in one.files if path.endswith(".distcp")}
    done = {path.rpartition("/")[0] for path in one.files if path.endswith(".metadata")}
    return min(shards - done, default=None)


def _points_to(text: str | None, name: str) -> bool:
    """Whether a pointer names this set, or a later one of the same kind."""
    last, said = name.rpartition("/")[2], (text or "").strip()
    if said == last:
        return True
    named, own = step_of(said), step_of(last)
    return named is not None and own is not None and named >= own


def pointer_of(rule: CheckpointRule, one: FileSet) -> tuple[str, str] | None:
    """The pointer beside a restored set: its path below the folder and its text; None if its kind has none."""
    last = one.name.rpartition("/")[2]
    for text in completing(rule, one):
        if text.startswith(_BESIDE):
            path = below(one.name.rpartition("/")[0], text.removeprefix(_BESIDE))
            return path, str(step_of(last)) if text == _MEGATRON else last
    return None


def step_of(name: str) -> int | None:
    """The step in a set's name: after ``step``, else its last number; None if it has none."""
    last = name.rpartition("/")[2]
    if found := _STEP.search(last):
        return int(found[1])
    numbers = _NUMBER.findall(last)
    return int(numbers[-1]) if numbers else None


def stored_names(name: str, step: int | None, now: float) -> tuple[str, ...]:
    """The names that a set may get in the container, the first that no mark has counts.

    What was marked is never replaced: another version of ``last.ckpt`` becomes ``last.ckpt@1200``, or, without a step
    of its own or with one in its name, ``last.ckpt@20261125T170300Z``.
    """
    stamp = datetime.fromtimestamp(now, timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    own = (f"{name}@{step}",) if step is not None and step_of(name) is None else ()
    return (name, *own, f"{name}@{stamp}")


def in_order(marks: Iterable[Mark]) -> list[Mark]:
    """From the first to the last: by generation, in one by step, or by time where one has no step.

    Each start of a job begins a generation, so that what it writes comes after what it started from, whatever clocks
    say and however far back that was.
    """
    listed = list(marks)
    timed = {each.generation for each in listed if each.step is None}

    def place(each: Mark) -> tuple[int, float, float, str]:
        step = 0 if each.generation in timed or each.step is None else each.step
        return each.generation, step, each.time, each.stored

    return sorted(listed, key=place)


def best_first(rule: CheckpointRule, marks: Iterable[Mark]) -> list[Mark]:
    """Those with a value of ``keep_best``, the best one first; of equal ones the latest."""
    if not rule.keep_best:
        return []
    name, most = best_field(rule.keep_best)
    valued = [each for each in reversed(in_order(marks)) if name in each.values]
    return sorted(valued, key=lambda each: -each.values[name] if most else each.values[name])


def best_field(text: str) -> tuple[str, bool]:
    """The name of a value in marks (``FILE:FIELD``), and whether the largest is the best."""
    file, field, *order = text.split(":")
    return f"{file}:{field}", order == ["max"]


def value_at(document: Any, field: str) -> float | None:
    """The number at a dotted path in JSON; in a list, of its last entry that has one; None if there is none."""
    here, *rest = [document], *field.split(".")
    for part in rest:
        inner = [item for each in here for item in (each if isinstance(each, list) else [each])]
        here = [item[part] for item in inner if isinstance(item, dict) and part in item]
    numbers = [item for item in here if isinstance(item, (int, float)) and not isinstance(item, bool)]
    return float(numbers[-1]) if numbers and abs(numbers[-1]) <= MAX_VALUE else None


def kept(rule: CheckpointRule, marks: Collection[Mark]) -> list[Mark]:
    """The sets that stay in the container; all of them without a key that lets some go, and always the last one."""
    ordered = in_order(marks)
    if not rule.rotates or not ordered:
        return ordered
    stays = {ordered[-1].stored}
    if rule.keep_last:
        stays.update(each.stored for each in ordered[-rule.keep_last :])
    if rule.keep_every:
        stays.update(each.stored for each in ordered if each.step is not None and each.step % rule.keep_every == 0)
    stays.update(each.stored for each in best_first(rule, ordered)[:1])
    if not rule.keep_last:
        for name in {each.set for each in ordered}:
            versions = [each for each in ordered if each.set == name]
            if len(versions) > 1:
                stays.update(each.stored for each in versions[-VERSIONS:])
    return [each for each in ordered if each.stored in stays]


def removable(
    rule: CheckpointRule, marks: Collection[Mark], verified: Collection[str], mismatch: Callable[[Mark], str]
) -> list[Mark]:
    """The old sets that may be removed: none, unless one of those that stay is whole in the container.

    That is one whose stored name this start has ``verified``, or one that has no ``mismatch`` with its mark.
    """
    stays = kept(rule, marks)
    goes = [mark for mark in marks if mark not in stays]
    is_one_whole = any(mark.stored in verified for mark in stays) or not all(map(mismatch, stays))
    return goes if is_one_whole else []


def preferred(rule: CheckpointRule, marks: Collection[Mark]) -> list[Mark]:
    """The sets that a start may take, in this order: if one does not match its mark, the next is looked at."""
    if rule.restore == "none":
        return []
    latest = list(reversed(in_order(marks)))
    if rule.restore == "best":
        return best_first(rule, marks) or latest
    if rule.restore in ("latest", "own"):
        return latest
    return [each for each in latest if each.step == int(rule.restore)]


def seconds_behind(here: Sequence[FileSet], there: Callable[[FileSet], bool], now: float) -> float | None:
    """How long the oldest complete set here that has no mark yet has been complete; None if all have one."""
    waiting = [one.changed_at for one in here if not there(one)]
    return max(0.0, now - min(waiting)) if waiting else None
