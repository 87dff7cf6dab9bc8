"""Which checkpoint a restarted job starts from, and which of its files a node gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from blobsync.base.formatting import count_text
from blobsync.base.records import NamedTuple
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.keep import checkpoint_sets
from blobsync.keep.marks import Mark, MarkedFile, Marks
from blobsync.keep.set_uploads import Writer


class Decision(NamedTuple):
    """Which set a job starts from; ``mark`` None: none. ``refused``: why it may not start without one that is named."""

    mark: Mark | None
    passed_over: Sequence[str] = ()
    refused: str = ""


# What the user can do where marks without a seal are all there are.
NAMES_ONE = "blobsync checkpoints lists them; restore_from: JOB with restore: STEP takes one"


def decide_restore(
    rule: CheckpointRule,
    marks: Marks,
    writer: Writer,
    say: Callable[[str], None],
    *,
    without: Collection[str] = (),
) -> Decision:
    """The set that a job starts from: the first that matches its mark. Those that do not are named.

    Sets ``without`` could not be brought. A job whose own sets are there goes on from the last of them, whatever it
    first started from. A mark without the seal of its lineage counts only if its job and its step are named.
    """
    listed, refused = choosable(rule, marks, writer, say)
    if refused:
        return Decision(None, refused=refused)
    passed = list[str]()
    for mark in listed:
        if mark.stored in without:
            continue
        why = marks.mismatch(mark)
        if not why:
            return Decision(mark, passed)
        say(f"checkpoint {mark.stored} is passed over: {why}")
        passed.append(mark.stored)
    return Decision(None, passed)


def choosable(
    rule: CheckpointRule, marks: Marks, writer: Writer, say: Callable[[str], None]
) -> tuple[Sequence[Mark], str]:
    """The sets that a start may take, in this order; or why it may not choose one that is not named."""
    if rule.restore == "none":
        return [], ""
    of_lineage = _of_lineage(rule, marks, writer, say)
    own = [mark for mark in of_lineage if mark.run_id == writer.run_id]
    if own and rule.restore not in ("latest", "own"):
        return list(reversed(checkpoint_sets.in_order(own))), ""
    if of_lineage or not rule.restore_from:
        return checkpoint_sets.preferred(rule, of_lineage), ""
    others = checkpoint_sets.fitting(rule, marks.named(rule.restore_from))
    return (checkpoint_sets.preferred(rule, others), "") if others else _unsealed(rule, marks)


def _of_lineage(rule: CheckpointRule, marks: Marks, writer: Writer, say: Callable[[str], None]) -> list[Mark]:
    found = checkpoint_sets.fitting(rule, marks.of(writer.lineage))
    if found:
        return found
    if writer.earlier:
        return checkpoint_sets.fitting(rule, marks.unsealed(writer.lineage))
    left = sorted(name for name, those in marks.lineages().items() if writer.lineage in those)
    if left:
        said = f"{count_text(len(left), 'mark')} of {writer.lineage} without its seal, such as that of {left[-1]}"
        say(f"checkpoints {rule.sets}: {said}: left alone; {NAMES_ONE}")
    return []


def _unsealed(rule: CheckpointRule, marks: Marks) -> tuple[list[Mark], str]:
    """The set without a seal that is named by its job and its step, or why none is taken."""
    found = checkpoint_sets.fitting(rule, marks.named(rule.restore_from, sealed=False))
    if not found:
        return [], ""
    if not rule.restore.isdecimal():
        which = f"restore: {rule.restore} would let anybody who can write to the container choose"
        return [], f"the marks of {rule.restore_from} have no seal of yours, so {which}"
    wanted = [mark for mark in found if mark.step == int(rule.restore)]
    if len(wanted) > 1:
        names = ", ".join(sorted(mark.stored for mark in wanted))
        return [], f"several checkpoints of step {rule.restore} have no seal of yours: {names}"
    return wanted, ""


def wanted_files(rule: CheckpointRule, mark: Mark, node: int, nodes: int) -> list[MarkedFile]:
    """The files of a set that a node gets: all, or with ``restore: own`` its own, if there are as many nodes."""
    if rule.restore == "own" and mark.nodes == nodes > 1:
        return [each for each in mark.files if each.node == node]
    return list(mark.files)
