"""Files that killed runs wrote without a record: known by their intents and their content, and nobody else's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.direct.engine import DirectEngine
from blobsync.direct.relay import RelayEngine
from blobsync.local.resume_records import INTENTS_FOLDER, WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, TransferPlan
from blobsync.project.killed_runs import forget_killed_runs, record_killed_runs
from blobsync.transfer.carry_out import carry_out
from blobsync.transfer.engines import CollectedReport, Engine, Engines, Moved, MoveTask
from tests.fakes.project_context import SILENT, World

_BLOCKS = 5 << 20


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


class Case:
    """A transfer of one file, ``u``, ``d`` or a copy, whose process is killed after it has written it."""

    def __init__(self, word: str, world: World, state: StateDir) -> None:
        self.word, self.world, self.state = word[0], world, state
        self.is_copy = "copy" in word
        self.relay = word.endswith("relay")

    def plan(self, path: str = "data/x", options: TransferOptions | None = None) -> TransferPlan:
        return self.world.plan(self.word, path, copy=self.is_copy, options=options or TransferOptions())

    def put_source(self, body: bytes, name: str = "a", *, with_md5: bool = True) -> None:
        if self.word == "u" and not self.is_copy:
            self._write(name, body)
        else:
            store = self.world.store("us" if self.is_copy else "eu")
            store.add(f"store/data/x/{name}", body, with_md5=with_md5)

    def put_destination(self, body: bytes, name: str = "a", *, with_md5: bool = True) -> None:
        if self.word == "d":
            self._write(name, body)
        else:
            self.world.store("eu").add(f"store/data/x/{name}", body, with_md5=with_md5)

    def _write(self, name: str, body: bytes) -> None:
        file = self.world.root / "data/x" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_name("fresh")
        fresh.write_bytes(body)
        os.replace(fresh, file)

    def killed(self, path: str = "data/x") -> None:
        plan, intents = self.plan(path), WriteIntents(self.state)
        context = self.world.context(copy=self.is_copy)
        engine: Engine = RelayEngine(intents) if self.relay else DirectEngine(intents=intents)
        for part in plan.parts:
            live, report = context.opened(part), CollectedReport()
            engine.move(MoveTask(live, tuple(part.actions)), report, SILENT)
            assert not report.failed and report.moved
        # The file of a process that is gone has no lock.
        for file in tuple((self.state.root / INTENTS_FOLDER).iterdir()):
            shutil.copy(file, file.with_name(f"0{file.name}"))
        intents.forget()

    def record(self, path: str = "data/x") -> int:
        return record_killed_runs(self.plan(path), self.world.context(copy=self.is_copy), self.state)

    def actions(self) -> list[Action]:
        return [action.action for _, action in self.plan().each()]


WORDS = pytest.mark.parametrize("word", ["u", "d", "u copy", "u relay copy relay"])


@WORDS
@pytest.mark.parametrize("size", [4, _BLOCKS])
def test_what_a_killed_run_wrote_gives_way_to_the_new_version(
    word: str, size: int, world: World, state: StateDir
) -> None:
    case = Case(word, world, state)
    case.put_source(b"o" * size)
    case.killed()
    case.put_source(b"n" * size)
    assert case.actions() == [Action.CONFLICT]
    assert case.record() == 1
    assert case.actions() == [Action.TRANSFER]
    assert case.record() == 0


@WORDS
def test_what_somebody_else_wrote_since_stays_a_conflict(word: str, world: World, state: StateDir) -> None:
    case = Case(word, world, state)
    case.put_source(b"old")
    case.killed()
    case.put_source(b"the new one")
    for theirs in (b"his", b"longer"):
        case.put_destination(theirs)
        assert (case.record(), case.actions()) == (0, [Action.CONFLICT])


def test_a_blob_whose_content_nobody_knows_stays_a_conflict(world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    case.killed()
    case.put_source(b"the new one")
    case.put_destination(b"old", with_md5=False)
    assert (case.record(), case.actions()) == (0, [Action.CONFLICT])


def test_a_file_of_another_name_with_that_content_is_somebody_elses(world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    case.killed()
    case.put_source(b"the new one", "b")
    case.put_destination(b"old", "b")
    assert case.record() == 0


def test_the_intents_of_an_upload_say_nothing_of_a_copy_to_the_same_place(world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    case.killed()
    other = Case("u copy", world, state)
    other.put_source(b"the new one")
    assert (other.record(), other.actions()) == (0, [Action.CONFLICT])


def test_each_version_that_was_about_to_be_written_counts(world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"one")
    case.killed()
    case.record()
    case.put_source(b"two two")
    for blob in list(world.store("eu").blobs):
        world.store("eu").delete(blob)
    case.killed()
    case.put_source(b"three")
    case.put_destination(b"one")
    assert case.record() == 1


def test_a_file_that_is_gone_here_is_no_conflict_any_more(world: World, state: StateDir) -> None:
    case = Case("d", world, state)
    case.put_source(b"old")
    case.killed()
    case.put_source(b"the new one")
    plan = case.plan()
    (world.root / "data/x/a").unlink()
    assert record_killed_runs(plan, world.context(), state) == 0


def test_where_no_file_is_doubtful_no_intent_is_read(world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    case.killed()
    assert case.record() == 0
    assert case.actions() == [Action.UNCHANGED]


def test_a_source_that_went_back_is_not_left_alone_as_older(world: World, state: StateDir) -> None:
    """The destination alone differs from the record; a killed run wrote it."""
    case = Case("u", world, state)
    case.put_source(b"first")
    assert world.run("u", "data/x").ok
    case.put_source(b"second one")
    case.killed()
    case.put_source(b"first")
    assert case.actions() == [Action.NEWER_AT_DESTINATION]
    assert (case.record(), case.actions()) == (1, [Action.TRANSFER])


@pytest.mark.parametrize(
    ("path", "goes"), [("data/x", True), ("data", True), ("data/x/sub", False), ("data/xx", False)]
)
def test_intents_go_when_a_plan_has_moved_everything_that_they_are_of(
    path: str, goes: bool, world: World, state: StateDir
) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    case.put_source(b"deeper", "sub/b")
    (world.root / "data/xx").mkdir()
    (world.root / "data/xx/c").write_bytes(b"c")
    case.killed()
    forget_killed_runs(case.plan(path), state)
    assert bool(list((state.root / INTENTS_FOLDER).iterdir())) is not goes


@pytest.mark.parametrize("options", [TransferOptions(include=("b",)), TransferOptions(wildcards=True)])
def test_intents_stay_when_a_plan_has_moved_some_of_their_files(
    options: TransferOptions, world: World, state: StateDir
) -> None:
    case = Case("u", world, state)
    for name in ("a", "b"):
        case.put_source(b"one", name)
    case.killed()
    forget_killed_runs(case.plan("data/x/[b]" if options.wildcards else "data/x", options), state)
    assert tuple((state.root / INTENTS_FOLDER).iterdir())


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_keeps_its_intents_where_a_file_has_failed(fails: bool, world: World, state: StateDir) -> None:
    case = Case("u", world, state)
    case.put_source(b"old")
    plan = case.plan()
    if fails:
        case.put_destination(b"somebody else's")
    intents = WriteIntents(state)
    make: dict[str, Callable[[], Engine]] = {"direct": lambda: DirectEngine(intents=intents)}
    result = carry_out(plan, world.context(), Engines(make, intents=intents), SILENT, None)
    assert bool(result.failures) is fails
    assert bool(list((state.root / INTENTS_FOLDER).iterdir())) is fails


def test_what_moved_is_reported_as_without_intents(world: World, state: StateDir) -> None:
    case = Case("d", world, state)
    case.put_source(b"old")
    (part,) = case.plan().parts
    live = world.context().opened(part)
    noted, plain = CollectedReport(), CollectedReport()
    DirectEngine(intents=WriteIntents(state)).move(MoveTask(live, tuple(part.actions)), noted, SILENT)
    (world.root / "data/x/a").unlink()
    DirectEngine().move(MoveTask(live, tuple(part.actions)), plain, SILENT)
    assert _sources(noted.moved) == _sources(plain.moved)


def _sources(moved: list[Moved]) -> list[Moved]:
    return [replace_destination(each) for each in moved]


def replace_destination(moved: Moved) -> Moved:
    return moved._replace(destination=None, action=moved.action._replace(destination=None))
