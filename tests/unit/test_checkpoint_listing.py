"""What 'checkpoints' lists, and which set it says that a restart takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import FolderLink, JobOptions, JobSpec
from blobsync.keep.marks import Mark, MarkedFile, Marks
from blobsync.project.checkpoints import NO_SEAL, SetsPlace, half_problem, list_sets
from blobsync.store.open_locations import OpenBlob
from tests.fakes.jobs import make_spec
from tests.fakes.lineages import keys, their_keys
from tests.fakes.store import MemoryStore

VALUE = "trainer_state.json:loss"
RULE = CheckpointRule("checkpoint-*", keep_best=VALUE)


@pytest.fixture
def place(tmp_path: Path) -> SetsPlace:
    return SetsPlace(RULE, tmp_path, OpenBlob(MemoryStore(), "out"), "output", keys)


def mark(place: SetsPlace, step: int, run_id: str, lineage: str, *, loss: float = 0.0, generation: int = 1) -> None:
    """As a job has left it, with one file."""
    store, name, body = place.there.store, f"checkpoint-{step}", str(step).encode()
    assert isinstance(store, MemoryStore)
    etag = store.add(f"out/{name}/model.bin", body).etag
    file = MarkedFile("model.bin", len(body), hashlib.md5(body).hexdigest(), etag)
    values = {VALUE: loss}
    made = Mark(name, name, step, float(step), run_id, lineage, generation, values=values, files=(file,))
    assert Marks(store, "out", print, keys).write(made)


def job_of(run_id: str, lineage: str, rule: CheckpointRule, *, earlier: bool = False) -> JobSpec:
    folder = FolderLink("output", "https://acct.blob.core.windows.net/c", "out", "upload", checkpoints=rule)
    options: JobOptions = {"lineage": lineage, "sealed_marks": not earlier}
    return make_spec(run_id=run_id, folders=(folder,), options=options)


def taken(place: SetsPlace, rule: CheckpointRule, job: tuple[str, str] | None = None) -> tuple[Sequence[str], ...]:
    """The sets that are listed, and those that a restart takes."""
    restarted = job_of(*job, rule) if job else None
    # The job's own rule counts, not today's.
    place = replace(place, rule=rule if job is None else replace(rule, restore="none"))
    found = list_sets(place, print, job=restarted)
    return [each.path for each in found], [each.path for each in found if each.is_next]


@pytest.fixture
def runs(place: SetsPlace) -> SetsPlace:
    """Job a, job b that was submitted in its place, and a stranger. The best one is a's first."""
    mark(place, 10, "a", "a", loss=0.1)
    mark(place, 20, "a", "a", loss=0.5)
    mark(place, 15, "b", "a", loss=0.7, generation=2)
    mark(place, 18, "b", "a", loss=0.9, generation=2)
    mark(place, 90, "other", "other", loss=0.9)
    return place


@pytest.mark.parametrize("restore", ["latest", "best", "10", "own"])
def test_a_restart_takes_the_last_set_of_its_own_job_whatever_it_first_started_from(
    runs: SetsPlace, restore: str
) -> None:
    rule = replace(RULE, restore=restore)
    listed, following = taken(runs, rule)
    assert len(listed) == 5 and following == ["output/checkpoint-90", "output/checkpoint-18"]
    assert taken(runs, rule, ("b", "a"))[1] == ["output/checkpoint-18"]


@pytest.mark.parametrize(
    ("restore", "expected"), [("latest", 18), ("best", 10), ("20", 20), ("7", None), ("none", None)]
)
def test_a_job_without_sets_of_its_own_takes_the_one_that_it_names(
    runs: SetsPlace, restore: str, expected: int | None
) -> None:
    listed, following = taken(runs, replace(RULE, restore=restore), ("c", "a"))
    assert "output/checkpoint-90" not in listed, "another lineage's"
    assert following == ([f"output/checkpoint-{expected}"] if expected else [])


def test_an_earlier_job_of_a_lineage_goes_on_from_its_own_last_one_or_the_lineages(runs: SetsPlace) -> None:
    assert taken(runs, replace(RULE, restore="best"), ("a", "a"))[1] == ["output/checkpoint-20"]
    assert taken(runs, RULE, ("a", "a"))[1] == ["output/checkpoint-18"]


def test_a_job_that_names_another_ones_sets_takes_and_lists_those_until_it_has_some(runs: SetsPlace) -> None:
    rule = replace(RULE, restore_from="other")
    assert taken(runs, rule, ("new", "new")) == (["output/checkpoint-90"], ["output/checkpoint-90"])
    assert taken(runs, replace(rule, restore_from="a", restore="best"), ("new", "new"))[1] == ["output/checkpoint-10"]
    assert taken(runs, replace(rule, restore_from="b"), ("new", "new"))[1] == ["output/checkpoint-18"]
    assert taken(runs, RULE, ("new", "new")) == ([], [])
    mark(runs, 3, "new", "new")
    assert taken(runs, rule, ("new", "new")) == (["output/checkpoint-3"], ["output/checkpoint-3"])


def test_a_set_that_is_not_as_its_mark_says_is_not_the_next_one(runs: SetsPlace) -> None:
    store = runs.there.store
    assert isinstance(store, MemoryStore)
    store.add("out/checkpoint-18/model.bin", b"other")
    found = {each.path: each for each in list_sets(runs, print)}
    assert found["output/checkpoint-18"].there == "half" and not found["output/checkpoint-18"].is_next
    assert found["output/checkpoint-15"].is_next


def test_the_marks_of_sets_that_were_removed_with_their_folder_count_for_nothing(runs: SetsPlace) -> None:
    store = runs.there.store
    for blob in [*store.list_blobs("out/")]:
        store.delete(blob.name)
    found = list_sets(runs, print)
    assert len(found) == 5 and {(each.there, each.is_next) for each in found} == {("none", False)}
    assert "out/checkpoint-18/model.bin is missing" in [each.missing for each in found]
    assert half_problem(runs, "checkpoint-18", print) == ""


def test_half_sets_of_other_jobs_are_not_listed_for_a_job(runs: SetsPlace) -> None:
    store = runs.there.store
    assert isinstance(store, MemoryStore)
    for name in ("checkpoint-30", "a/checkpoint-31", "b/checkpoint-32", "other/checkpoint-33"):
        store.add(f"out/{name}/model.bin", b"half")
    job = job_of("b", "a", RULE)
    whole = {"output/checkpoint-10", "output/checkpoint-20", "output/checkpoint-15", "output/checkpoint-18"}
    assert {each.path for each in list_sets(runs, print)} - whole >= {"output/checkpoint-30"}
    assert {each.path for each in list_sets(runs, print, job=job)} == whole
    # A folder of each job says whose they are.
    own = replace(runs, is_per_job=True)
    assert {each.path for each in list_sets(own, print, job=job)} - whole == {
        "output/a/checkpoint-31",
        "output/b/checkpoint-32",
    }


def test_a_mark_without_a_seal_of_the_user_is_listed_as_such_and_is_nobodys_next_one(place: SetsPlace) -> None:
    mark(place, 10, "a", "a")
    mark(place, 20, "b", "b")
    colleague = replace(place, keys=their_keys)
    found = {each.path: (each.there, each.sealed, each.is_next, each.missing) for each in list_sets(colleague, print)}
    assert set(found.values()) == {("complete", False, False, NO_SEAL)} and len(found) == 2
    named = job_of("c", "c", replace(RULE, restore_from="b", restore="20"))
    assert [(each.path, each.is_next) for each in list_sets(colleague, print, job=named)] == [
        ("output/checkpoint-20", True)
    ]
    assert half_problem(colleague, "checkpoint-10", print) == ""


def test_a_job_of_an_earlier_version_goes_on_from_its_marks_without_seals(place: SetsPlace) -> None:
    mark(place, 10, "a", "a")
    old = replace(place, keys=their_keys)
    for earlier, missing in ((True, ""), (False, NO_SEAL)):
        (found,) = list_sets(old, print, job=job_of("a", "a", RULE, earlier=earlier))
        assert (found.is_next, found.missing) == (earlier, missing)
