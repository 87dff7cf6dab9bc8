"""How a plan is divided, and whether nodes see the same files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import UsageError
from blobsync.base.file_states import LocalState
from blobsync.base.locations import LocalLocation
from blobsync.local.names import is_temporary
from blobsync.plan.spreading import Load, SpreadPlan, choose_spread
from blobsync.plan.transfer_options import TransferOptions, check_spread
from blobsync.plan.transfer_plan import Action
from blobsync.spread.probe import (
    files_probe,
    own_probe,
    probe_problem,
    remove_own_probe,
    remove_probe,
    source_probe,
    written_probe,
)
from blobsync.transfer.engines import MoveTask
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import upload


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    root = tmp_path / "data"
    root.mkdir()
    for number in range(30):
        (root / f"f{number}").write_bytes(b"x" * number)
    return upload(root, MemoryStore("box"), "sets")


def test_a_probe_of_ours_tells_whether_two_machines_see_the_same_files(tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    asked = own_probe(root, "0123456789abcdef")
    given = written_probe(asked)
    assert probe_problem(given) is None and probe_problem(None) is None
    # The same path on another machine.
    root.rename(tmp_path / "elsewhere")
    assert "cannot be read here" in (probe_problem(given) or "")
    root.mkdir()
    (root / ".probe-of-blobsync-0123456789abcdef").write_text("b" * 32)
    assert "is another file here" in (probe_problem(given) or "")
    remove_own_probe(asked)
    remove_own_probe(asked)
    assert not list(root.iterdir())


def test_files_that_change_while_others_move_do_not_stop_the_nodes(task: MoveTask) -> None:
    assert isinstance(task.part.source, LocalLocation)
    root = task.part.source.path
    given = source_probe(own_probe(root, "0123456789abcdef"), task.part.source, task.actions)
    for file in root.glob("f*"):
        file.write_bytes(b"changed")
    assert given is not None and probe_problem(given) is None
    # The command's own probe file is not a file of the folder.
    assert is_temporary(Path(given["own"]["file"]).name)


def test_where_there_can_be_no_file_of_ours_the_oldest_files_tell_and_one_of_them_is_enough(task: MoveTask) -> None:
    source = task.part.source
    assert isinstance(source, LocalLocation)
    in_the_way = own_probe(source.path / "f0", "0123456789abcdef")
    states = {action.path: action.source for action in task.actions}
    for number, action in enumerate(reversed(task.actions)):
        os.utime(source.path / action.path, ns=(0, number))
        states[action.path] = LocalState.of(os.stat(source.path / action.path))
    actions = [action._replace(source=states[action.path]) for action in task.actions]
    given = source_probe(in_the_way, source, actions)
    assert given is not None
    named = [Path(each["file"]).name for each in given["files"]]
    assert named == [action.path for action in reversed(task.actions)][:16]
    for name in named[1:]:
        (source.path / name).write_bytes(b"changed")
    assert probe_problem(given) is None
    (source.path / named[0]).unlink()
    assert f"{source.path / named[0]} cannot be read here" in (probe_problem(given) or "")
    (source.path / named[0]).write_bytes(b"x" * int(named[0].removeprefix("f")))
    assert f"{source.path / named[0]} is another file here" in (probe_problem(given) or "")
    assert source_probe(in_the_way, source, ()) is None
    # Only files that are to move, and were seen here, can be compared.
    others = [actions[0]._replace(action=Action.UNCHANGED), actions[1]._replace(source=None)]
    assert source_probe(in_the_way, source, others) is None


def test_of_files_of_one_age_the_first_by_name_tell(task: MoveTask) -> None:
    source = task.part.source
    assert isinstance(source, LocalLocation)
    state = LocalState(1, 1, 1, 1)
    actions = [task.actions[0]._replace(path=f"{number:02}", source=state) for number in reversed(range(20))]
    # The same path twice is no reason to compare states.
    probe = files_probe(source, [*actions, actions[-1]._replace(source=replace(state, inode=2))])
    assert [Path(each["file"]).name for each in probe["files"]][1:] == [f"{number:02}" for number in range(15)]


def test_a_task_of_a_command_that_was_killed_still_finds_the_probe_that_the_next_command_keeps(
    tmp_path: Path,
) -> None:
    first = written_probe(own_probe(tmp_path, "x"))
    second = written_probe(own_probe(tmp_path, "x"))
    assert first == second and probe_problem(first) is None


@pytest.mark.parametrize("left", ["", "a" * 31, "A" * 32, "\n" * 32, "link"])
def test_what_no_probe_of_ours_can_be_is_written_anew_and_nothing_else_is_touched(tmp_path: Path, left: str) -> None:
    file, other = tmp_path / ".probe-of-blobsync-x", tmp_path / "other"
    other.write_text("a" * 32)
    if left == "link":
        file.symlink_to(other)
    else:
        file.write_text(left)
    given = written_probe(own_probe(tmp_path, "x"))
    assert probe_problem(given) is None
    assert not file.is_symlink() and given["own"]["text"] != left and other.read_text() == "a" * 32


def test_whoever_carries_a_transfer_out_removes_its_own_probes_and_no_other_file(tmp_path: Path) -> None:
    given = written_probe(own_probe(tmp_path, "0123456789abcdef"))
    file, data = Path(given["own"]["file"]), tmp_path / "data"
    data.write_text("text")
    remove_probe(None)
    remove_probe({"files": [{"file": str(data), "size": 4, "mtime_ns": 0, "inode": 0}]})
    remove_probe({"own": {"file": str(data), "text": "text"}})
    remove_probe({"own": {"file": str(file), "text": "another transfer's"}})
    assert data.exists() and file.exists()
    remove_probe(given)
    remove_probe(given)
    assert data.exists() and not file.exists()


def test_how_much_is_cut_into_how_many_shards() -> None:
    def chosen(nodes: int, platform: str, weight: int) -> SpreadPlan:
        options = TransferOptions(nodes=nodes)
        return choose_spread(options, platform, "c", Load(10**6, weight), copies=True)

    assert (chosen(2, "local", 0).shards, chosen(2, "local", 10**12).shards) == (2, 8)
    assert (chosen(8, "slurm", 10**12).workers_per_node, chosen(8, "slurm", 10**12).shards) == (4, 32)
    # Starting a task for less costs more than it saves.
    assert (chosen(2, "slurm", 6 * 200 << 20).shards, chosen(2, "local", 6 * 50 << 20).shards) == (6, 6)
    assert chosen(8, "kubernetes", 10**12).workers_per_node == 4


@pytest.mark.parametrize("platform", ["kubernetes", "aml", "itp", "singularity"])
def test_a_cluster_whose_nodes_do_not_see_this_disk_takes_copies_alone(platform: str) -> None:
    with pytest.raises(UsageError, match="do not see this disk"):
        choose_spread(TransferOptions(nodes=2), platform, "c", copies=False)
    assert choose_spread(TransferOptions(nodes=2), platform, "c", copies=True).nodes == 2


def test_this_machine_takes_no_more_tasks_at_a_time_than_it_can() -> None:
    with pytest.raises(UsageError, match="--nodes 65: this machine takes at most 64 as nodes"):
        choose_spread(TransferOptions(nodes=65), "local", "c", copies=True)


@pytest.mark.parametrize("words", [{"mirror": True}, {"keep": "both"}, {"receipt": True}])
def test_what_needs_the_command_to_wait_cannot_be_detached(words: dict[str, object]) -> None:
    check: Callable[..., TransferOptions] = TransferOptions
    check_spread(check(nodes=2, **words))
    with pytest.raises(UsageError, match="--detach and --"):
        check_spread(check(nodes=2, detach=True, **words))
