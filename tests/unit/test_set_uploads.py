"""Sets of files go up as one, get a mark, are let go, and come back."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from blobsync.base.errors import FailureCode, FileFailure, LocalFileError, StorageError
from blobsync.base.file_states import LocalState
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.keep.checkpoint_sets import FileSet
from blobsync.keep.marks import Mark, MarkedFile, Marks
from blobsync.keep.node_messages import Announced, Answer, Notes, mark_what_is_left
from blobsync.keep.restore import decide_restore, wanted_files
from blobsync.keep.set_files import FolderContent, files_of, unlike
from blobsync.keep.set_uploads import FolderSets, Uploaded, Writer, limited_cores
from tests.fakes.lineages import keys
from tests.fakes.store import MemoryStore, Request

HF = CheckpointRule("checkpoint-*", settle_seconds=0)


@dataclass
class Here:
    """A folder, a container, and what uploads sets from one to the other; ``during`` runs in the middle of each."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    rule: CheckpointRule = HF
    writer: Writer = field(default_factory=lambda: Writer("job", "job"))
    during: Callable[[FileSet], None] = lambda one: None
    fails: bool = False
    said: list[str] = field(default_factory=list)
    uploads: list[str] = field(default_factory=list)
    now: Callable[[], float] = time.time
    nodes: tuple[int, ...] = (0,)
    since: float = 0.0
    brought: tuple[str, str] | None = None
    sleep: Callable[[float], None] = lambda seconds: None
    requests: Path | None = None
    writes: int = 0

    def __post_init__(self) -> None:
        self.marks = Marks(self.store, "out", self.said.append, keys)
        self.notes = Notes(self.store, "out", self.writer.lineage, self.said.append, keys)
        self.sets = self.start()

    def start(self) -> FolderSets:
        """As after a restart: nothing is known."""
        self.sets = FolderSets(
            self.rule,
            self.folder / self.writer.within,
            self.marks,
            self.upload,
            self.writer,
            say=self.said.append,
            notes=self.notes,
            requests=self.requests,
            nodes=lambda: self.nodes,
            since=lambda: self.since,
            brought=lambda: self.brought,
            now=self.now,
            sleep=self.sleep,
        )
        return self.sets

    def upload(self, one: FileSet, stored: str) -> Uploaded:
        self.uploads.append(stored)
        etags = {}
        for number, path in enumerate(sorted(one.files)):
            if number == 1:
                self.during(one)
            source = self.folder / self.writer.within / one.name / path if path else self.folder / one.name
            if not source.exists():
                continue
            if self.fails:
                failure = FileFailure(path, FailureCode.STORAGE_UNREACHABLE, "no answer", "")
                return Uploaded([failure], {})
            etags[path] = self.store.add("/".join(p for p in ("out", stored, path) if p), source.read_bytes()).etag
        if len(one.files) == 1:
            self.during(one)
        return Uploaded((), etags)

    def write(self, name: str, **files: str) -> None:
        for file, text in files.items():
            path = self.folder / self.writer.within / name / file.replace("__", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            # Two versions of one size may be written within one tick of the file system's clock.
            self.writes += 1
            times = path.stat()
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + self.writes))

    def checkpoint(self, step: int, **more: str) -> str:
        name = f"checkpoint-{step}"
        self.write(name, model__bin=f"weights {step}", trainer_state__json=json.dumps({"global_step": step, **more}))
        return name

    def round(self, *, last: bool = False) -> list[FileFailure]:
        files = {path: state for path, state in files_of(self.folder) if self.sets.owns(path)}
        return list(self.sets.round(files, last=last))

    @property
    def marked(self) -> list[str]:
        return [mark.stored for mark in self.marks.of(self.writer.lineage)]


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def test_a_set_goes_up_as_one_and_the_mark_comes_last(here: Here) -> None:
    here.checkpoint(10)
    order: list[str] = []
    here.store.before = lambda request: order.append(request.name) if request.operation == "put" else None
    assert here.round() == []
    (mark,) = here.marks.of("job")
    assert (mark.set, mark.stored, mark.step, mark.run_id, mark.lineage) == ("checkpoint-10",) * 2 + (10, "job", "job")
    assert [each.path for each in mark.files] == ["model.bin", "trainer_state.json"]
    assert here.marks.mismatch(mark) == "" and order[-1].endswith("/job/checkpoint-10.json")
    here.uploads.clear()
    assert here.round() == [] and here.uploads == [], "it is there"
    assert here.sets.behind(time.time()) is None


def test_a_half_set_waits_and_in_the_last_round_goes_up_without_a_mark(here: Here) -> None:
    here.write("checkpoint-5", model__bin="half")
    assert here.round() == [] and here.uploads == [] and here.marked == []
    here.round(last=True)
    assert here.uploads == ["checkpoint-5"] and here.marked == [] and here.sets.unmarked == {"checkpoint-5"}
    assert (
        "is not complete (it has no trainer_state.json yet; if the program writes none, complete: NAME" in here.said[-1]
    )


def test_the_number_of_listings_of_all_marks_does_not_grow_with_the_sets(here: Here) -> None:
    def listings(sets: int) -> int:
        for step in range(100, 100 + sets):
            here.checkpoint(step)
            here.write(f"checkpoint-{step + 500}", model__bin="half")
        here.round()
        here.start()
        here.store.requests.clear()
        here.round(last=True)
        return sum(each.name.startswith(".blobsync/checkpoints/") for each in here.store.asked("list"))

    assert listings(3) == listings(9)
    assert len(here.marked) == 9 and len(here.sets.unmarked) == 9
    asked = {each.name for each in here.store.asked("list") if each.name.startswith("out/")}
    assert "out/checkpoint-606/" in asked, "not all that begins so"


def test_what_a_killed_start_left_and_no_mark_will_name_is_left_over(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    here.checkpoint(20)
    here.write("checkpoint-30", model__bin="half")
    here.start()
    assert [one.name for one in here.sets.left_over(lambda name: True)] == ["checkpoint-30"]
    assert [one.name for one in here.sets.left_over(lambda name: name != "checkpoint-30")] == []
    # Nothing but time says that such a set is whole, nor any that other nodes wrote.
    here.nodes, here.since = (0, 1), time.time() + 60
    here.start()
    assert [one.name for one in here.sets.left_over(lambda name: True)] == ["checkpoint-20", "checkpoint-30"]


def test_a_half_version_never_touches_the_marked_one(here: Here) -> None:
    here.checkpoint(5)
    here.round()
    (here.folder / "checkpoint-5/trainer_state.json").write_text("{")
    here.uploads.clear()
    here.round(last=True)
    assert here.uploads == [] and here.marks.mismatch(here.marks.of("job")[0]) == ""
    assert "the marked one stays" in here.said[-1]


@pytest.mark.parametrize("how", ["content", "new file", "touched"])
def test_a_set_that_changes_while_it_goes_up_gets_no_mark_and_goes_again(here: Here, how: str) -> None:
    here.checkpoint(10)

    def change(one: FileSet) -> None:
        path = here.folder / one.name / ("more.bin" if how == "new file" else "model.bin")
        if how == "touched":
            os.utime(path, ns=(1, 1))
        else:
            path.write_text("other")
        here.during = lambda one: None

    here.during = change
    assert here.round() == [] and here.marked == []
    assert "changed while it went up: no mark" in here.said[-1]
    assert here.round() == [] and here.marked == ["checkpoint-10"]
    assert here.marks.mismatch(here.marks.of("job")[0]) == ""


@pytest.mark.parametrize("whole", [True, False])
def test_a_set_that_is_deleted_while_it_is_read_is_dropped_without_a_failure(here: Here, whole: bool) -> None:
    here.checkpoint(10)

    def delete(one: FileSet) -> None:
        for path in one.files if whole else ["trainer_state.json"]:
            (here.folder / one.name / path).unlink()

    here.during = delete
    assert here.round() == [] and here.marked == []
    assert "dropped" in here.said[-1]
    here.during = lambda one: None
    assert here.round() == [] and here.marked == []


def test_a_set_with_a_folder_that_cannot_be_read_gets_no_mark(here: Here) -> None:
    # Longer than a path may be: no call with its name succeeds, also for root.
    here.checkpoint(1)
    files = {path: state for path, state in files_of(here.folder) if here.sets.owns(path)}
    fd = os.open(here.folder / "checkpoint-1", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("x" * 250, dir_fd=fd)
        inner = os.open("x" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    (failure,) = here.sets.round(files, last=False)
    assert here.marked == [] and (failure.path, failure.code) == ("checkpoint-1", FailureCode.LOCAL_FILE)
    assert any("gets no mark while it cannot be read" in each for each in here.said)
    with pytest.raises(LocalFileError, match="name too long"):
        dict(files_of(here.folder / "checkpoint-1"))


def test_a_failed_upload_is_told_and_tried_again(here: Here) -> None:
    began = time.time()
    here.checkpoint(10)
    here.fails = True
    (failure,) = here.round()
    assert failure.code is FailureCode.STORAGE_UNREACHABLE and here.marked == []
    now = time.time()
    behind = here.sets.behind(now + 5)
    # Since it was written; the clock of a file system is a tick late.
    assert behind is not None and 5 <= behind <= 5 + now - began + 0.1
    here.fails = False
    assert here.round() == [] and here.marked == ["checkpoint-10"]


def test_what_the_container_has_is_looked_at_before_the_mark(here: Here) -> None:
    here.checkpoint(10)
    # Somebody else writes there, after our file was verified.

    def write(one: FileSet) -> None:
        here.store.add("out/checkpoint-10/model.bin", b"WEIGHTS 10")

    here.during = write
    (failure,) = here.round()
    assert failure.code is FailureCode.MD5_MISMATCH and here.marked == []
    assert here.said == ["checkpoint checkpoint-10 is not in the container as it is here: no mark, it goes again"]


def test_a_blob_without_an_md5_gets_no_mark(here: Here) -> None:
    here.checkpoint(10)
    body = b"weights 10"

    def write(one: FileSet) -> None:
        here.store.add("out/checkpoint-10/model.bin", body, with_md5=False)

    here.during = write
    assert here.round() and here.marked == []


def test_what_was_marked_is_never_replaced_in_place(here: Here) -> None:
    here.rule = CheckpointRule("last.ckpt", settle_seconds=0)
    here.start()
    for number in range(3):
        (here.folder / "last.ckpt").write_text(f"version {number}")
        assert here.round() == []
    first, *others = here.uploads
    assert first == "last.ckpt" and len(set(others)) == 2 and all(each.startswith("last.ckpt@2") for each in others)
    assert here.store.body("out/last.ckpt") == b"version 0"
    assert sorted(mark.set for mark in here.marks.of("job")) == ["last.ckpt"] * 3
    assert all(here.marks.mismatch(mark) == "" for mark in here.marks.of("job"))


def test_a_killed_program_whose_sets_have_a_second_folder_of_dcp_gets_no_mark_before_that_was_begun(
    tmp_path: Path,
) -> None:
    here = Here(tmp_path, rule=CheckpointRule("step-*"))
    for file in ("__0_0__distcp", "__metadata"):
        here.write("step-10", **{file: "a"})
        here.write("step-10/ema", **{file: "b"})
        here.write("step-20", **{file: "c"})
    here.round(last=True)
    assert here.marked == [] and "step-20 is not complete (it has not been still" in here.said[-1]
    here.sets.ended_well = True
    here.round(last=True)
    assert here.marked == ["step-10", "step-20"]


def test_another_lineages_set_of_that_name_is_left_alone(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    other = replace(here, folder=here.folder.parent / "elsewhere", writer=Writer("job2", "job2"))
    other.folder.mkdir()
    other.write("checkpoint-10", model__bin="others", trainer_state__json="{}")
    other.round()
    assert other.uploads[-1].startswith("checkpoint-10@2")
    assert here.marks.mismatch(here.marks.of("job")[0]) == ""


def test_two_jobs_that_write_sets_of_one_name_at_once_replace_nothing_of_each_other(tmp_path: Path) -> None:
    one = Here(tmp_path / "a", writer=Writer("one", "one"))
    two = Here(tmp_path / "b", store=one.store, writer=Writer("two", "two"))
    for here in (one, two):
        here.write("checkpoint-10", model__bin=here.writer.run_id, trainer_state__json="{}")

    def meanwhile(_: FileSet) -> None:
        one.during = lambda _: None
        two.round()

    one.during = meanwhile
    one.round()
    assert one.marked == ["checkpoint-10"] and [name.partition("@")[0] for name in two.marked] == ["checkpoint-10"]
    for here in (one, two):
        (mark,) = here.marks.of(here.writer.lineage)
        assert here.marks.mismatch(mark) == ""
        assert here.store.body(f"out/{mark.stored}/model.bin") == here.writer.run_id.encode()


def test_a_half_set_replaces_what_a_restart_left_and_nothing_of_another_lineage(here: Here) -> None:
    here.write("checkpoint-5", model__bin="half")
    here.round(last=True)
    other = Here(here.folder, store=here.store, writer=Writer("other", "other"))
    other.round(last=True)
    assert other.uploads[0].startswith("checkpoint-5@")
    here.uploads.clear()
    here.marks = Marks(here.store, "out", here.said.append, keys)
    here.start()
    here.checkpoint(5)
    here.round()
    assert here.uploads == here.marked == ["checkpoint-5"]


def test_after_a_restart_the_marked_set_is_known_by_its_content(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    here.uploads.clear()
    here.start()
    os.utime(here.folder / "checkpoint-10/model.bin", ns=(5, 5))
    assert here.round() == [] and here.uploads == []
    here.write("checkpoint-10", model__bin="weights !!")
    here.round()
    assert len(here.uploads) == 1 and here.uploads[0].startswith("checkpoint-10@")


def test_each_start_begins_a_generation(here: Here) -> None:
    here.checkpoint(1000)
    here.round()
    here.start()
    here.checkpoint(600)
    here.round()
    assert {mark.step: mark.generation for mark in here.marks.of("job")} == {1000: 1, 600: 2}
    assert decide_restore(HF, here.marks, here.writer, print).mark == here.marks.of("job")[1]


def test_a_set_that_stays_elsewhere_is_let_go_only_by_a_key(here: Here) -> None:
    for step in (10, 20, 30):
        here.checkpoint(step)
        here.round()
    (here.folder / "checkpoint-10/model.bin").unlink()
    (here.folder / "checkpoint-10/trainer_state.json").unlink()
    here.round()
    assert len(here.marked) == 3, "the program deleted one here"
    here.rule = replace(HF, keep_last=2)
    here.start()
    here.checkpoint(40)
    here.round()
    assert here.marked == ["checkpoint-30", "checkpoint-40"]
    names = [name for name in here.store.blobs if "checkpoint-10" in name or "checkpoint-20" in name]
    assert names == []


def test_an_old_set_that_would_go_at_once_is_not_uploaded(here: Here) -> None:
    here.rule = replace(HF, keep_last=2)
    here.start()
    for step in (10, 20, 30, 40):
        here.checkpoint(step)
    here.round()
    assert sorted(here.uploads) == ["checkpoint-30", "checkpoint-40"]
    here.uploads.clear()
    here.round()
    assert here.uploads == [] and sorted(here.marked) == ["checkpoint-30", "checkpoint-40"]
    assert here.sets.behind(time.time()) is None


def test_what_a_start_writes_comes_after_the_set_that_it_was_given(here: Here) -> None:
    here.rule = replace(HF, keep_last=1, keep_every=20)
    here.start()
    for step in (20, 30):
        here.checkpoint(step)
        here.round()
    # Another start, from 20: its own sets are newer, whatever their step is.
    for name in ("checkpoint-20", "checkpoint-30"):
        shutil.rmtree(here.folder / name)
    here.checkpoint(20)
    here.start()
    here.checkpoint(10)
    here.round()
    assert here.marked == ["checkpoint-10", "checkpoint-20"], here.said


def test_what_a_killed_program_left_gets_no_mark_for_being_still(here: Here) -> None:
    here.rule = CheckpointRule("*", settle_seconds=1)
    here.now = lambda: time.time() + 100
    here.start()
    here.write("given", weights__bin="whole")
    here.round()
    assert here.marked == ["given"]
    here.write("half", weights__bin="ha")
    (here.folder / "checkpoint-5").mkdir()
    (here.folder / "checkpoint-5/trainer_state.json").write_text("{}")
    # It was killed, and is started again on this node; what it had been given is there, too.
    here.since = time.time() + 0.01
    time.sleep(0.02)
    here.uploads.clear()
    here.start()
    here.round()
    assert here.marked == ["checkpoint-5", "given"], "its framework says of this one that it is whole"
    assert here.uploads == ["checkpoint-5"]
    here.round(last=True)
    assert here.uploads == ["checkpoint-5", "half"] and "half" not in here.marked
    assert here.said[-1].startswith("checkpoint half is not complete (it was there before the program started")
    here.start()
    here.write("half", weights__bin="half")
    here.round()
    assert "half" in here.marked and here.store.body("out/half/weights.bin") == b"half"


def test_nothing_goes_before_a_newer_one_is_verified(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    here.rule = replace(HF, keep_last=1)
    here.start()
    here.fails = True
    here.checkpoint(20)
    here.round()
    assert here.marked == ["checkpoint-10"]


def forge(here: Here, stored: str, **changes: Any) -> Mark:
    """A mark of the job's lineage with real files, by somebody who may write to the container and has no key."""
    info = here.store.add(f"out/{stored}/model.bin", b"junk")
    name = stored.partition("@")[0]
    file = MarkedFile("model.bin", 4, hashlib.md5(b"junk").hexdigest(), info.etag)
    mark = replace(Mark(name, stored, 7, 5.0, "job", "job", 999_999_990, files=(file,)), **changes)
    body = json.dumps(json.loads(mark.to_json())).encode()
    here.store.add(f".blobsync/checkpoints/out/job/{quote(stored, safe='')}.json", body)
    return mark


def test_a_forged_mark_displaces_nothing_and_has_nothing_deleted(tmp_path: Path) -> None:
    here = Here(tmp_path, rule=replace(HF, keep_last=2))
    for step in (10, 20):
        here.checkpoint(step)
        here.round()
    for number in range(1, 4):
        forge(here, f"checkpoint-9{number}", step=90 + number, generation=999_999_990 + number)
    here.start()
    here.checkpoint(30)
    here.round()
    assert here.marked == ["checkpoint-20", "checkpoint-30"], "the real ones alone are counted"
    assert here.marks.of("job")[-1].generation == 2
    assert "out/checkpoint-91/model.bin" in here.store.blobs, "and what was forged is let go by nobody"
    assert decide_restore(HF, here.marks, here.writer, print).mark == here.marks.of("job")[-1]
    shutil.rmtree(tmp_path / "checkpoint-30")
    here.checkpoint(30)
    here.start()
    here.round()
    assert here.marked == ["checkpoint-20", "checkpoint-30"]


def test_a_mark_whose_stored_name_lies_in_another_set_has_nothing_of_that_deleted(tmp_path: Path) -> None:
    here = Here(tmp_path, rule=replace(HF, keep_last=1))
    forge(here, "checkpoint-7@20261125T170300Z/sub", set="checkpoint-7", generation=1)
    here.store.add("out/checkpoint-7@20261125T170300Z/sub/model.bin", b"theirs")
    for step in (10, 20):
        here.checkpoint(step)
        here.round()
    assert here.marked == ["checkpoint-20"]
    assert here.store.body("out/checkpoint-7@20261125T170300Z/sub/model.bin") == b"theirs"


def test_an_unsealed_set_is_restored_only_where_its_job_and_its_step_are_named(here: Here) -> None:
    mark = forge(here, "checkpoint-7")
    said: list[str] = []
    assert decide_restore(HF, here.marks, here.writer, said.append).mark is None
    assert "1 mark of job without its seal, such as that of checkpoint-7: left alone" in said[0]
    other = Writer("new", "new")
    named = replace(HF, restore_from="job")
    decided = decide_restore(named, here.marks, other, print)
    assert decided.mark is None and "would let anybody who can write to the container choose" in decided.refused
    assert decide_restore(replace(named, restore="7"), here.marks, other, print) == (mark, [], "")
    assert decide_restore(replace(named, restore="8"), here.marks, other, print) == (None, [], "")
    here.store.add("out/checkpoint-7/model.bin", b"else")
    assert decide_restore(replace(named, restore="7"), here.marks, other, said.append).passed_over == ["checkpoint-7"]
    forge(here, "checkpoint-7@9")
    refused = decide_restore(replace(named, restore="7"), here.marks, other, print).refused
    assert refused == "several checkpoints of step 7 have no seal of yours: checkpoint-7, checkpoint-7@9"


def test_a_set_without_a_seal_that_was_brought_back_is_there_already(here: Here) -> None:
    forge(here, "checkpoint-7")
    for name in ("checkpoint-7", "checkpoint-8"):
        here.write(name, model__bin="junk")
        here.write(name, trainer_state__json="{}")
    (here.folder / "checkpoint-7/trainer_state.json").unlink()
    here.writer, here.brought, here.rule = Writer("new", "new"), ("job", "checkpoint-7"), replace(HF, complete=("*",))
    here.start()
    here.round()
    assert here.uploads == ["checkpoint-8"] and here.marked == ["checkpoint-8"]


def test_a_lineage_from_before_the_seals_goes_on_from_its_marks_and_lets_none_go(tmp_path: Path) -> None:
    here = Here(tmp_path, rule=replace(HF, keep_last=1), writer=Writer("job", "job", earlier=True))
    old = forge(here, "checkpoint-7", generation=1)
    assert decide_restore(HF, here.marks, here.writer, print).mark == old
    here.checkpoint(10)
    here.round()
    here.checkpoint(20)
    here.round()
    assert here.marked == ["checkpoint-20"] and here.marks.unsealed("job") == [old]
    assert decide_restore(HF, here.marks, here.writer, print).mark == here.marks.of("job")[0]


def test_the_verified_set_stays_while_no_other_one_is_as_its_mark_says(tmp_path: Path) -> None:
    here = Here(tmp_path, rule=replace(HF, keep_last=1))
    here.checkpoint(10)
    here.round()
    # A later start of the lineage has marked a newer one, which somebody has damaged.
    other = Here(tmp_path / "other", store=here.store)
    other.checkpoint(20)
    other.round()
    here.store.delete("out/checkpoint-20/model.bin")
    here.round()
    assert here.marked == ["checkpoint-10", "checkpoint-20"] and "is removed" not in here.said[-1]


@pytest.mark.parametrize("how", ["content", "deleted"])
def test_a_set_that_changes_while_it_is_compared_gets_no_mark(here: Here, how: str) -> None:
    name = here.checkpoint(10)

    def change(request: Request) -> None:
        # The listing that the files are compared with comes after the upload.
        if request.operation == "list" and request.name == f"out/{name}/" and here.uploads:
            here.store.before = lambda request: None
            (here.folder / name / "model.bin").write_text("WEIGHTS 10")
            if how == "deleted":
                shutil.rmtree(here.folder / name)

    here.store.before = change
    here.round()
    assert here.marked == []
    assert here.said[-1] == "checkpoint checkpoint-10 changed while it was checked: no mark, it goes again"


def test_rotation_leaves_other_lineages_alone(here: Here) -> None:
    here.checkpoint(1)
    here.round()
    here.writer = Writer("job2", "job2")
    here.rule = replace(HF, keep_last=1)
    here.start()
    for step in (2, 3):
        here.checkpoint(step)
        here.round()
    assert [mark.stored for mark in here.marks.of("job")] == ["checkpoint-1"]
    assert here.marked == ["checkpoint-3"]


def test_an_unreachable_container_is_a_failure_of_the_round_and_no_more(here: Here) -> None:
    here.checkpoint(10)

    def broken(request: object) -> None:
        raise StorageError("it does not answer")

    here.store.before = broken
    for _ in range(2):
        (failure,) = here.round()
        assert failure.message == "it does not answer"
    assert here.said == ["checkpoints checkpoint-*: it does not answer; the next round tries again"], "once"
    here.store.before = lambda request: None
    assert here.round() == [] and here.marked == ["checkpoint-10"]
    here.store.before = broken
    here.checkpoint(20)
    here.round()
    assert here.said[-1].endswith("tries again"), "it had worked meanwhile"


def test_sets_of_a_job_with_a_folder_of_its_own_are_marked_below_that(tmp_path: Path) -> None:
    here = Here(tmp_path, writer=Writer("job", "job", within="job"))
    here.checkpoint(10)
    (tmp_path / "other/checkpoint-9").mkdir(parents=True)
    (tmp_path / "other/checkpoint-9/trainer_state.json").write_text("{}")
    here.round()
    (mark,) = here.marks.of("job")
    assert (mark.set, mark.stored) == ("checkpoint-10", "job/checkpoint-10")
    assert "out/job/checkpoint-10/model.bin" in here.store.blobs
    assert not here.sets.owns("other/checkpoint-9/trainer_state.json")


def test_the_best_value_is_in_the_mark_and_nan_is_none(here: Here) -> None:
    here.rule = replace(HF, keep_best="trainer_state.json:log_history.eval_loss")
    here.start()
    here.write("checkpoint-1", trainer_state__json='{"log_history": [{"eval_loss": 0.25}]}')
    here.write("checkpoint-2", trainer_state__json='{"log_history": [{"eval_loss": NaN}]}')
    here.round()
    values = {mark.step: dict(mark.values) for mark in here.marks.of("job")}
    assert values == {1: {"trainer_state.json:log_history.eval_loss": 0.25}, 2: {}}


def test_the_step_of_a_set_without_a_number_is_the_trainers(here: Here) -> None:
    here.rule = CheckpointRule("last", complete=("trainer_state.json",), settle_seconds=0)
    here.start()
    for step in (7, 8):
        here.write("last", trainer_state__json=json.dumps({"global_step": step}))
        here.round()
    assert {mark.stored: mark.step for mark in here.marks.of("job")} == {"last": 7, "last@8": 8}


def test_a_request_marks_a_set_that_no_rule_knows(tmp_path: Path) -> None:
    requests = tmp_path / "requests"
    requests.mkdir()
    here = Here(tmp_path / "out", rule=CheckpointRule("*", settle_seconds=10_000), requests=requests)
    here.write("a", weights__bin="x")
    here.round()
    assert here.marked == []
    said = {"path": str(tmp_path / "out/a"), "ranks": 2, "rank": "0"}
    time.sleep(0.02)
    (requests / "1.0.json").write_text(json.dumps(said))
    here.round()
    assert here.marked == [], "the other rank has not said so"
    (requests / "1.1.json").write_text(json.dumps({**said, "rank": "1"}))
    here.round()
    assert here.marked == ["a"]


# -- several nodes ---------------------------------------------------------------------------------------------------


def two_nodes(tmp_path: Path) -> tuple[Here, Here]:
    store = MemoryStore()
    rule = CheckpointRule("step-*", settle_seconds=0)
    first = Here(tmp_path / "0", store, rule, Writer("job", "job", node=0, start="0"), nodes=(0, 1))
    second = Here(tmp_path / "1", store, rule, Writer("job", "job", node=1, start="0"), nodes=(0, 1))
    for each in (first, second):
        each.folder.mkdir()
    return first, second


def settled(*nodes: Here) -> None:
    """Node 1 takes part with files that have been still for a while."""
    for each in nodes:
        each.now = lambda: time.time() + 60
        each.start()


def test_a_set_of_two_nodes_is_marked_when_both_have_uploaded_their_files(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    settled(first, second)
    first.write("step-1", __metadata="m", rank0__distcp="zero")
    second.write("step-1", rank1__distcp="one")
    assert first.round() == [] and first.marked == []
    assert second.round() == []
    assert first.round() == [] and first.marked == ["step-1"]
    (mark,) = first.marks.of("job")
    assert [(each.path, each.node) for each in mark.files] == [
        (".metadata", 0),
        ("rank0.distcp", 0),
        ("rank1.distcp", 1),
    ]
    assert mark.nodes == 2 and first.marks.mismatch(mark) == ""
    assert [each.path for each in wanted_files(replace(first.rule, restore="own"), mark, 1, 2)] == ["rank1.distcp"]
    assert len(wanted_files(replace(first.rule, restore="own"), mark, 1, 3)) == 3
    assert len(wanted_files(first.rule, mark, 1, 2)) == 3
    first.uploads.clear()
    first.round()
    second.round()
    assert first.uploads == []


def test_a_node_without_files_of_a_set_says_so(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    first.round()
    second.round()
    first.round()
    assert first.marked == ["step-1"]


def say_complete(here: Here, name: str, ranks: int, rank: int) -> None:
    """As a rank of this node does."""
    assert here.requests is not None
    here.requests.mkdir(exist_ok=True)
    variables = {"RANK": str(rank), "BLOBSYNC_COMPLETE": str(here.requests)}
    line = "import sys, blobsync; blobsync.mark_complete(sys.argv[1], ranks=int(sys.argv[2]))"
    words = [sys.executable, "-c", line, str(here.folder / name), str(ranks)]
    subprocess.run(words, env={**os.environ, **variables}, check=True)


def two_nodes_with_programs(tmp_path: Path) -> tuple[Here, Here, list[float]]:
    """Two nodes whose programs say themselves which sets are complete, and how far clocks are ahead (seconds)."""
    first, second = two_nodes(tmp_path)
    ahead = [0.0]
    for number, each in enumerate((first, second)):
        each.rule, each.requests = CheckpointRule("*", settle_seconds=10_000), tmp_path / f"requests{number}"
        each.now = lambda: time.time() + ahead[0]
        each.start()
    return first, second, ahead


def rounds(*nodes: Here) -> None:
    for each in (*nodes, *nodes):
        assert each.round() == []


def test_a_set_of_two_nodes_is_marked_when_every_rank_has_said_so(tmp_path: Path) -> None:
    first, second, ahead = two_nodes_with_programs(tmp_path)
    first.write("a", zero="0")
    say_complete(first, "a", 2, 0)
    rounds(first, second)
    assert first.marked == [], "node 1 has no files yet, and its rank has said nothing"
    second.write("a", one="half")
    ahead[0] = 9_000
    rounds(first, second)
    assert first.marked == [], "its file is still, and nobody said that it is whole"
    second.write("a", one="whole", two="2")
    rounds(first, second)
    assert first.marked == []
    say_complete(second, "a", 2, 1)
    rounds(first, second)
    assert first.marked == ["a"]
    (mark,) = first.marks.of("job")
    assert [each.path for each in mark.files] == ["one", "two", "zero"] and first.marks.mismatch(mark) == ""
    assert first.store.body("out/a/one") == b"whole"


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_rank_may_say_it_for_all_nodes(tmp_path: Path, ranks: int) -> None:
    first, second, ahead = two_nodes_with_programs(tmp_path)
    for name in ("a", "b"):
        first.write(name, zero="0")
        second.write(name, one="1")
        ahead[0] += 6
        say_complete(first, name, ranks, 0)
        rounds(first, second)
    if ranks == 1:
        assert first.marked == ["a", "b"]
        return
    assert first.marked == [], "the other rank may still write"
    ahead[0] += 61
    rounds(first, second)
    assert first.marked == ["a"], "rank 0 went on to the next one"
    second.sets.ended_well = True
    second.round(last=True)
    first.round(last=True)
    assert first.marked == ["a", "b"], "and the program ended well"


def test_files_of_another_node_that_arrive_late_are_waited_for(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    # It goes on only when this test says so, from the time of a file: a busy machine may take seconds for a round.
    clock = [time.time()]
    for each in (first, second):
        each.rule, each.now = HF, lambda: clock[0]
        each.start()
    # The Trainer writes this one without waiting for the ranks of other nodes.
    first.checkpoint(10)
    rounds(first, second)
    assert first.marked == [], "node 1 may write some yet"
    written = 0.0
    for text in ("ha", "half", "whole"):
        second.write("checkpoint-10", rng_state_8__pth=text)
        written = (second.folder / "checkpoint-10/rng_state_8.pth").stat().st_mtime
        clock[0] = written + 4
        rounds(first, second)
        assert first.marked == [], "it has not been still for 5 s"
    clock[0] = written + 6
    rounds(first, second)
    assert first.marked == ["checkpoint-10"]
    assert first.store.body("out/checkpoint-10/rng_state_8.pth") == b"whole"
    first.checkpoint(20)
    began = max(clock[0], time.time())
    for seconds, marked in ((6, 1), (64, 1), (67, 2)):
        clock[0] = began + seconds
        rounds(first, second)
        assert len(first.marked) == marked, "node 1 writes nothing to this one, which takes a minute to know"


def test_what_another_node_has_from_an_earlier_start_is_no_part_of_a_new_set(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    settled(first, second)
    for each in (first, second):
        each.rule = HF
        each.start()
    second.write("checkpoint-10", optimizer_1__pt="before")
    second.since = time.time() + 0.01
    time.sleep(0.02)
    first.checkpoint(10)
    rounds(first, second)
    assert first.marked == []
    second.write("checkpoint-10", optimizer_1__pt="now")
    rounds(first, second)
    assert first.marked == ["checkpoint-10"] and first.store.body("out/checkpoint-10/optimizer_1.pt") == b"now"


def test_a_file_of_another_node_that_is_cut_off_gets_no_mark(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    settled(first, second)
    first.write("step-1", __metadata="m")
    (second.folder / "step-1").mkdir()
    (second.folder / "step-1/rank1.distcp").write_bytes(zipped()[:1000])
    rounds(first, second)
    assert first.marked == [] and second.uploads == []
    (second.folder / "step-1/rank1.distcp").write_bytes(zipped())
    rounds(first, second)
    assert first.marked == ["step-1"]


def test_the_shard_of_a_killed_program_gets_no_mark(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    clock = [time.time()]
    for each in (first, second):
        each.rule, each.now = HF, lambda: clock[0]
        each.sleep = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        each.start()
    first.checkpoint(10)
    second.write("checkpoint-10", optimizer_1__pt="ha")
    clock[0] = (second.folder / "checkpoint-10/optimizer_1.pt").stat().st_mtime + 1
    first.round()
    # It ends with this round, in which node 1 waits for a minute: the file is still all the time.
    second.round(last=True)
    first.round()
    assert first.marked == []
    assert second.said[-1].startswith("checkpoint checkpoint-10 is not complete (it has not been still for 5 s)")


@pytest.mark.parametrize("earlier", [Writer("before", "job", start="1"), Writer("job", "job", start="0")])
def test_an_announcement_of_an_earlier_job_or_start_is_not_answered(tmp_path: Path, earlier: Writer) -> None:
    first, second = two_nodes(tmp_path)
    first.writer = earlier
    second.writer = second.writer._replace(start="1")
    second.start()
    first.start()
    first.write("step-1", __metadata="m")
    first.round()
    second.round()
    first.round()
    assert first.marked == []


def test_a_set_that_changes_while_the_others_upload_goes_again(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    first.round()
    second.round()
    first.write("step-1", __metadata="other")
    first.round()
    assert first.marked == []
    second.round()
    first.round()
    assert first.marked == ["step-1"]
    assert first.marks.mismatch(first.marks.of("job")[0]) == ""


def test_the_last_round_of_node_0_waits_for_the_others_within_bounds(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    clock = [time.time()]
    first.now, first.sleep = lambda: clock[0], lambda seconds: clock.__setitem__(0, clock[0] + seconds)
    first.start()
    assert first.round(last=True) == [] and first.marked == []
    assert "not all nodes have uploaded their files after 60 s" in first.said[-1]
    # Its files are there, and nothing writes them any more: whoever answers last marks it, in that start or the next.
    second.write("step-1", rank1__distcp="one")
    second.sets.ended_well = True
    second.round(last=True)
    assert first.marked == ["step-1"]
    (mark,) = first.marks.of("job")
    assert [(each.path, each.node) for each in mark.files] == [(".metadata", 0), ("rank1.distcp", 1)]


def test_the_last_round_of_another_node_waits_for_node_0(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    second.write("step-1", rank1__distcp="one")

    def meanwhile(seconds: float) -> None:
        first.round()

    second.sleep = meanwhile
    second.start()
    assert second.round(last=True) == []
    first.round()
    assert first.marked == ["step-1"]


def ended(*nodes: Here, well: bool = True) -> list[float]:
    """The program ended; returns how long nodes slept in their last rounds, which nothing else makes shorter."""
    slept: list[float] = []
    for each in nodes:
        each.now, each.sleep = lambda: time.time() + sum(slept), slept.append
        each.start().ended_well = well
    return slept


def test_where_rank_0_alone_writes_no_node_waits_at_the_end(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    for each in (first, second):
        each.rule = HF
    first.checkpoint(10)
    slept = ended(first, second)
    assert second.round(last=True) == [] and first.round(last=True) == []
    assert first.marked == ["checkpoint-10"] and slept == []


def test_node_0_waits_no_longer_than_the_other_one_takes(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    for each in (first, second):
        each.rule = HF
    first.checkpoint(10)
    ended(second)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        second.round(last=True)

    first.sleep = sleep
    first.start().ended_well = True
    assert first.round(last=True) == []
    assert first.marked == ["checkpoint-10"] and len(slept) == 1


def test_a_node_that_ended_first_has_said_what_it_has_of_each_set(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    for each in (first, second):
        each.rule = HF
    first.checkpoint(10)
    second.write("checkpoint-10", rng_state_1__pth="one")
    slept = ended(first, second)
    assert second.round(last=True) == [] and first.round(last=True) == []
    assert first.marked == ["checkpoint-10"] and slept == []
    (mark,) = first.marks.of("job")
    assert [(each.path, each.node) for each in mark.files][1] == ("rng_state_1.pth", 1)


def test_a_killed_node_has_not_said_that_it_has_no_files(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    for each in (first, second):
        each.rule = HF
    first.checkpoint(10)
    slept = ended(first, second, well=False)
    second.round(last=True)
    first.round(last=True)
    assert first.marked == [] and slept == [], "and nobody waits for what never comes"
    assert first.said[-1] == "checkpoint checkpoint-10: node 1 ended without all its files of it: no mark"
    mark_what_is_left(first.notes, first.marks, "job", first.said.append)
    assert first.marked == []


@pytest.mark.parametrize("metadata", [True, False])
def test_a_set_of_a_killed_start_gets_no_mark_when_another_node_has_lost_its_files(
    tmp_path: Path, metadata: bool
) -> None:
    first, second = two_nodes(tmp_path)
    if not metadata:
        first.rule = second.rule = HF
    name = "step-10" if metadata else first.checkpoint(10)
    if metadata:
        first.write(name, __metadata="m", rank0__distcp="zero")
    first.round()
    assert first.marked == [], "and node 1 is gone, with its disk"
    time.sleep(0.02)
    for each in (first, second):
        each.writer, each.since = each.writer._replace(start="1"), time.time()
    ended(first, second)
    rounds(first, second)
    second.round(last=True)
    first.round(last=True)
    assert first.marked == [] and "may not have their files of it" in first.said[-1]


def test_a_set_whose_last_node_answered_when_node_0_was_gone_is_marked_at_the_next_start(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    second.write("step-1", rank1__distcp="one")
    ended(first, second)
    first.round(last=True)
    second.round()
    assert first.marked == [], "it was killed right behind its answer"
    mark_what_is_left(first.notes, first.marks, "job", first.said.append)
    assert first.marked == ["step-1"] and first.marks.mismatch(first.marks.of("job")[0]) == ""


def test_what_two_nodes_wrote_differently_is_no_set(tmp_path: Path) -> None:
    first, second = two_nodes(tmp_path)
    settled(first, second)
    first.write("step-1", __metadata="m", same__bin="zero")
    second.write("step-1", same__bin="one!")
    first.round()
    second.round()
    first.round()
    assert first.marked == []
    assert any("wrote same.bin differently" in each for each in first.said)


def test_a_forged_answer_of_a_node_is_held_against_the_container(tmp_path: Path) -> None:
    first, _ = two_nodes(tmp_path)
    first.write("step-1", __metadata="m")
    first.round()
    said = first.notes.said(Announced, "step-1")
    assert said is not None
    forged = MarkedFile("rank1.distcp", 1, "a" * 32, "e")
    first.notes.say(Answer(said.stored, said.token, said.start, (forged,)), "step-1", 1)
    first.round()
    assert first.marked == [] and "rank1.distcp is missing" in first.said[-1]


# -- bringing one back -----------------------------------------------------------------------------------------------


def test_a_set_that_does_not_match_its_mark_is_named_and_the_one_before_is_taken(here: Here) -> None:
    for step in (10, 20, 30):
        here.checkpoint(step)
        here.round()
    here.store.delete("out/checkpoint-30/model.bin")
    here.store.add("out/checkpoint-20/model.bin", b"WEIGHTS 20")
    here.said.clear()
    decision = decide_restore(HF, here.marks, here.writer, here.said.append)
    assert decision.mark is not None and decision.mark.step == 10
    assert list(decision.passed_over) == ["checkpoint-30", "checkpoint-20"]
    assert here.said == [
        "checkpoint checkpoint-30 is passed over: out/checkpoint-30/model.bin is missing",
        "checkpoint checkpoint-20 is passed over: out/checkpoint-20/model.bin has other content",
    ]


def test_a_chosen_step_counts_for_the_first_start_of_a_job_only(here: Here) -> None:
    for step in (10, 20):
        here.checkpoint(step)
        here.round()
    rule = replace(HF, restore="10")
    later = Writer("job2", "job")
    assert decide_restore(rule, here.marks, later, print).mark == here.marks.of("job")[0]
    here.writer = later
    here.start()
    here.write("checkpoint-15", trainer_state__json="{}")
    here.round()
    found = decide_restore(rule, here.marks, later, print).mark
    assert found is not None and found.step == 15


def test_another_jobs_sets_come_only_if_they_are_named_and_only_at_first(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    other = Writer("job2", "job2")
    assert decide_restore(HF, here.marks, other, print).mark is None
    named = replace(HF, restore_from="job")
    found = decide_restore(named, here.marks, other, print).mark
    assert found is not None and found.lineage == "job"
    here.writer, here.rule, here.brought = other, named, ("job", "checkpoint-10")
    here.start()
    here.write("checkpoint-3", trainer_state__json="{}")
    here.round()
    found = decide_restore(named, here.marks, other, print).mark
    assert found is not None and (found.lineage, found.step) == ("job2", 3)
    assert here.uploads == ["checkpoint-10", "checkpoint-3"], "what it started from is there already"
    assert decide_restore(replace(HF, restore="none"), here.marks, other, print).mark is None


def test_what_arrived_is_compared_with_the_mark(here: Here) -> None:
    here.checkpoint(10)
    here.round()
    (mark,) = here.marks.of("job")
    path = here.folder / "checkpoint-10"
    assert unlike(path, mark.files) == ""
    (path / "model.bin").write_text("weights 11")
    assert unlike(path, mark.files) == "model.bin"
    (path / "model.bin").unlink()
    assert unlike(path, mark.files) == "model.bin"


# -- files that are cut off ------------------------------------------------------------------------------------------


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", os.urandom(100_000))
    return buffer.getvalue()


def tensors() -> bytes:
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": {"dtype": "F32", "data_offsets": [0, 400]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(400)


@pytest.mark.parametrize(("name", "body"), [("last.ckpt", zipped()), ("model.safetensors", tensors())])
def test_a_file_that_is_cut_off_is_seen_by_its_format(tmp_path: Path, name: str, body: bytes) -> None:
    content = FolderContent(tmp_path)
    for size in (len(body), len(body) - 1, len(body) // 2, 20, 5):
        (tmp_path / name).write_bytes(body[:size])
        assert content.is_whole(name) == (size == len(body)), size
    (tmp_path / name).unlink()
    assert not content.is_whole(name)


@pytest.mark.parametrize("header", [b'{"a": 1}', b'{"a": {}}', b'{"a": {"data_offsets": [0]}}', b"[]", b"[" * 99_999])
def test_what_only_has_the_name_of_tensors_counts_as_cut_off(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert not FolderContent(tmp_path).is_whole("a.safetensors")


def test_other_formats_say_nothing_of_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"any")
    (tmp_path / "empty.ckpt").write_bytes(b"")
    content = FolderContent(tmp_path)
    assert content.is_whole("a.bin") and content.is_whole("empty.ckpt")
    for text, is_json in (("{}", True), ('{"loss": NaN}', True), ('{"a": ', False), ("", False), ("[" * 99_999, False)):
        (tmp_path / "a.json").write_text(text)
        assert content.is_json("a.json") == is_json
    assert not content.is_json("missing.json") and content.text("missing.json") is None


def test_a_pipe_in_a_sets_place_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "latest")
    assert FolderContent(tmp_path).text("latest") is None
    assert dict(files_of(tmp_path / "latest")) == {}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_uploads_run_on_few_cores_with_the_threads_that_they_start() -> None:
    before, seen = os.sched_getaffinity(0), []
    with limited_cores(1):
        seen.append(os.sched_getaffinity(0))
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert [len(each) for each in seen] == [1, 1] and os.sched_getaffinity(0) == before


def test_states_of_marked_files_are_those_of_stat(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / ".a.0.blobsync-complete").write_text("{}")
    found: dict[str, Any] = dict(files_of(tmp_path))
    assert found == {"a": LocalState.of((tmp_path / "a").stat())}
    assert Mark("s", "s", None, 0.0, "job", "job").size == 0
