"""Completion of names: from the container, in time or not at all, and none with a meaning for the shell."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import StorageUnreachableError
from blobsync.cli import completion
from blobsync.cli.commands import OptionGroup, completed_by
from blobsync.cli.transfer import TransferWords
from blobsync.config.loader import load_cluster
from blobsync.project.completion_names import names_below
from tests.fakes.store import MemoryStore
from tests.unit.project_files import NO_ENVIRON, ProjectFiles
from tests.waiting import wait_until

CLUSTER = """\
config_param:
  data_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: p/data}
  data/coco_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: coco}
"""


@pytest.fixture
def offered(tmp_path: Path) -> object:
    ProjectFiles(tmp_path).cluster(CLUSTER)
    cluster = load_cluster(tmp_path, environ=NO_ENVIRON)
    environ = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "own-state")}

    def ask(folder: str, start: str = "", *, store: MemoryStore | None = None, remote: bool = True) -> list[str]:
        def connect(place: object) -> MemoryStore:
            assert store is not None, "the container was asked"
            return store

        return sorted(
            names_below(cluster, folder, start, cwd=tmp_path, remote=remote, environ=environ, connect=connect)
        )

    return ask


def _store(names: Iterable[str]) -> MemoryStore:
    store = MemoryStore()
    for name in names:
        store.add(name, b"x")
    return store


def test_names_of_the_container_stand_below_its_folder_entry(offered: object) -> None:
    store = _store(["p/data/voc20/a", "p/data/b.txt", "other/x"])
    expected = ["b.txt", "coco/", "voc20/"]
    assert wait_until(lambda: offered("data", store=store) == expected, seconds=60)  # type: ignore[operator]
    assert offered("data", store=None) == expected, "kept for seconds: nobody is asked again"  # type: ignore[operator]


def test_nothing_is_asked_outside_of_folder_entries_or_where_only_local_names_count(offered: object) -> None:
    assert offered(".") == ["data/", "data/"]  # type: ignore[operator]
    assert offered("src") == []  # type: ignore[operator]
    assert offered("data", remote=False) == ["coco/"]  # type: ignore[operator]


def test_an_answer_that_is_late_is_not_waited_for_and_there_the_next_time(offered: object, tmp_path: Path) -> None:
    store, gate = _store(["p/data/late"]), tmp_path / "gate"

    def slow(request: object) -> None:
        # In a process of its own: only the disk is shared.
        wait_until(gate.exists, seconds=60)

    store.before = slow
    assert offered("data", store=store) == ["coco/"]  # type: ignore[operator]
    gate.touch()
    assert wait_until(lambda: offered("data", store=store) == ["coco/", "late"], seconds=60)  # type: ignore[operator]


def test_a_container_that_cannot_be_reached_offers_nothing(offered: object) -> None:
    store = MemoryStore()

    def fail(request: object) -> None:
        raise StorageUnreachableError("no")

    store.before = fail
    assert offered("data", store=store) == ["coco/"]  # type: ignore[operator]
    assert threading.active_count() >= 1


# Only paths depend on the rest of the command line.
NO_CONTEXT: Any = None


def test_saved_plans_are_told_from_other_files(tmp_path: Path) -> None:
    (tmp_path / "voc.plan").write_text('{\n "blobsync_plan": 1,')
    (tmp_path / "voc.txt").write_text("{}")
    (tmp_path / "below").mkdir()
    assert completion.offered("PLAN", NO_CONTEXT, f"{tmp_path}/") == [
        (f"{tmp_path}/below/", "folder"),
        (f"{tmp_path}/voc.plan", "saved plan"),
    ]


def test_values_of_an_option_come_from_its_metavar() -> None:
    complete = {each.name: completed_by(each) for each in OptionGroup(TransferWords, "plan").rows}
    assert complete["keep"] and complete["keep"](NO_CONTEXT, "") == [("local", ""), ("remote", ""), ("both", "")]
    assert complete["cap_mbps"] is None
    assert complete["from_path"] is not None
