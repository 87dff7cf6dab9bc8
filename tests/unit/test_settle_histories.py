"""Random histories of edits, ``u``, ``d``, ``--keep`` and kills, with the real planner and a simulated transfer.

Each edit makes a unique content. Only contents that a later edit or ``--keep local|remote`` replaced may be lost;
after a ``--keep`` nothing is left to do in either direction.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.plan_reasons import Reason
from blobsync.local.index import Record
from blobsync.local.sorted_runs import IN_MEMORY
from blobsync.plan.decisions import Decisions, Settlement, decide_all
from blobsync.plan.keep_both_names import sibling
from blobsync.plan.pairing import Pair, source_is_near
from blobsync.plan.transfer_options import Keep, TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.transfer.ledger import outdated

NAMES = ("a.txt", "d/b", "d/c.tar.gz")
KEEPS: tuple[Keep, ...] = ("local", "remote", "both", "both")


@dataclass
class Ends:
    """``near`` and ``far`` as name -> state, whose MD5 is the content; a copy has blobs at both ends."""

    is_copy: bool = False
    near: dict[str, FileState] = field(default_factory=dict)
    far: dict[str, FileState] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    given_up: set[bytes] = field(default_factory=set)
    made: set[bytes] = field(default_factory=set)
    clock: int = 0

    def write(self, end: dict[str, FileState], name: str, content: bytes) -> FileState:
        self.clock += 1
        if end is self.near and not self.is_copy:
            end[name] = LocalState(7, self.clock, self.clock, self.clock, content)
        else:
            end[name] = RemoteState(7, f"e{self.clock}", content)
        return end[name]

    def edit(self, end: dict[str, FileState], name: str) -> None:
        before = end.get(name)
        if before is not None and before.md5:
            self.given_up.add(before.md5)
        content = self.clock.to_bytes(16, "big")
        self.made.add(content)
        self.write(end, name, content)

    def plan(self, command: str, options: TransferOptions) -> tuple[FileAction, ...]:
        source, destination = self._sides(command)
        names = self.near.keys() | self.far.keys()
        pairs = [Pair(name, source.get(name), destination.get(name), self.records.get(name)) for name in names]
        return decide_all(pairs, self.route(command), options, both_ends=not self.is_copy)[0]

    def route(self, command: str) -> Route:
        return Route.SAME_ACCOUNT if self.is_copy else Route.UPLOAD if command == "u" else Route.DOWNLOAD

    def steps(self, command: str, options: TransferOptions) -> Iterator[str]:
        """Carry a plan out; a kill may happen at each yield."""
        source, destination = self._sides(command)
        for action in self.plan(command, options):
            if action.action is Action.UNCHANGED:
                self._record(action.path)
            elif action.action is Action.TRANSFER:
                yield from self._transfer(command, action, options)
            if action.action is Action.SKIP and action.reason is Reason.KEEP_DESTINATION and action.source is not None:
                self.given_up.add(action.source.md5 or b"")
                other = outdated(action.source, self.route(command))
                near, far = (action.source, other) if source_is_near(self.route(command)) else (other, action.source)
                assert isinstance(far, RemoteState)
                self.records[action.path] = Record(near, far)
                yield "settled"
            if action.action is Action.ADOPT:
                self.given_up.add(source[action.path].md5 or b"")
                self.write(source, action.path, destination[action.path].md5 or b"")
                yield "adopted"
                self._record(action.path)

    def _transfer(self, command: str, action: FileAction, options: TransferOptions) -> Iterator[str]:
        source, destination = self._sides(command)
        here = source[action.path].md5 or b""
        aside = sibling(action.path, action.aside or "")
        if action.aside is not None:
            there = destination[action.path].md5 or b""
            assert aside not in destination or destination[aside].md5 == there
            self.write(destination, aside, there)
            yield "set aside"
            if not self.is_copy:
                if aside not in source:
                    self.write(source, aside, there)
                assert source[aside].md5 == there
                yield "brought"
                self._record(aside)
        elif action.reason in (Reason.KEEP_SOURCE, Reason.OVERWRITE):
            self.given_up.add(destination[action.path].md5 or b"")
        self.write(destination, action.path, here)
        yield "moved"
        self._record(action.path)

    def _sides(self, command: str) -> tuple[dict[str, FileState], dict[str, FileState]]:
        return (self.near, self.far) if command == "u" else (self.far, self.near)

    def _record(self, name: str) -> None:
        near, far = self.near[name], self.far[name]
        assert near.md5 == far.md5, "only what is equal is recorded as equal"
        assert isinstance(far, RemoteState)
        self.records[name] = Record(near, far)

    def lost(self) -> set[bytes]:
        held = {state.md5 for end in (self.near, self.far) for state in end.values()}
        return self.made - self.given_up - held


def carry_out(ends: Ends, command: str, options: TransferOptions, kill_after: int | None = None) -> None:
    for number, _ in enumerate(ends.steps(command, options), 1):
        assert not ends.lost(), f"lost after step {number} of {command} {options.keep}"
        if number == kill_after:
            return


def is_left(action: FileAction) -> bool:
    return action.action in (Action.TRANSFER, Action.ADOPT, Action.CONFLICT, Action.DELETE)


def one_history(chance: random.Random, *, is_copy: bool) -> int:
    """Run the history; returns the number of resolved conflicts."""
    ends = Ends(is_copy=is_copy)
    settled = 0
    commands = ("u",) if is_copy else ("u", "d")
    for _ in range(chance.randrange(5, 30)):
        what = chance.choice(("edit", "edit", "edit", "run", "lose the index", "keep", "keep"))
        if what == "edit":
            name = chance.choice((*NAMES, *sorted(ends.near.keys() | ends.far.keys())))
            ends.edit(chance.choice((ends.near, ends.far)), name)
        elif what == "lose the index":
            ends.records = {name: record for name, record in ends.records.items() if chance.random() < 0.7}
        else:
            command = chance.choice(commands)
            keep: Keep | None = chance.choice(KEEPS) if what == "keep" else None
            options = TransferOptions(keep=keep)
            conflicts = [each.path for each in ends.plan(command, TransferOptions()) if each.action is Action.CONFLICT]
            kill = chance.randrange(1, 6) if chance.random() < 0.3 else None
            carry_out(ends, command, options, kill)
            if keep and kill is None:
                settled += len(conflicts)
                for after in commands:
                    # This command may still have to move an edited file that was not in conflict.
                    left = [each for each in ends.plan(after, TransferOptions()) if is_left(each)]
                    assert not [each for each in left if each.path in conflicts or each.action is Action.CONFLICT], left
        assert not ends.lost()
    return settled


@pytest.mark.parametrize("is_copy", [False, True], ids=["local and blob", "blob and blob"])
def test_no_history_loses_a_version_and_a_resolved_conflict_stays_resolved(*, is_copy: bool) -> None:
    settled = sum(one_history(random.Random(seed), is_copy=is_copy) for seed in range(1500))
    assert settled > 1000


@pytest.mark.parametrize("command", ["u", "d"])
@pytest.mark.parametrize("keep", ["local", "remote", "both"])
@pytest.mark.parametrize("kill_after", [None, 1, 2, 3, 4, 5])
def test_the_same_command_finishes_a_killed_resolution(kill_after: int | None, keep: Keep, command: str) -> None:
    ends = Ends()
    for name in NAMES[:2]:
        ends.edit(ends.near, name)
        ends.edit(ends.far, name)
    options = TransferOptions(keep=keep)
    carry_out(ends, command, options, kill_after)
    carry_out(ends, command, options)
    assert {name: state.md5 for name, state in ends.near.items()} == {name: s.md5 for name, s in ends.far.items()}
    assert len(ends.near) == (4 if keep == "both" else 2)
    assert not [each for command in ("u", "d") for each in ends.plan(command, TransferOptions()) if is_left(each)]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_an_aside_name_in_use_is_not_overwritten(*, one_by_one: bool) -> None:
    ends = Ends()
    ends.edit(ends.near, "a.txt")
    ends.edit(ends.far, "a.txt")
    both = Settlement("both", ends.near["a.txt"], ends.far["a.txt"])
    options = TransferOptions(keep=None if one_by_one else "both")
    settlements = {"data/a.txt": both} if one_by_one else {}

    def planned() -> FileAction:
        names = sorted(ends.near.keys() | ends.far.keys())
        pairs = [Pair(name, ends.near.get(name), ends.far.get(name), None) for name in names]
        actions = Decisions(
            pairs, Route.UPLOAD, options, IN_MEMORY, both_ends=True, shown="data", most=100, settlements=settlements
        )
        return next(each for each in actions if each.path == "a.txt")

    action = planned()
    assert action.reason is Reason.KEEP_BOTH and action.aside is not None
    ends.edit(ends.near, action.aside)
    again = planned()
    assert again.aside not in (None, action.aside)
    assert again._replace(aside=action.aside) == action
