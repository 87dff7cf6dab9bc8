"""Programs say that a set of files is complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from blobsync.local.link_policy import LinkPolicy
from blobsync.local.mark_complete import is_request, mark_complete, requests_beside, requests_in
from blobsync.local.names import is_temporary
from blobsync.local.tree import walk

SAY = "import sys, blobsync; blobsync.mark_complete(sys.argv[1], ranks=int(sys.argv[2]))"


def say(path: Path, ranks: int = 1, **variables: str) -> subprocess.CompletedProcess[str]:
    """From a process of its own, which has these variables."""
    known = {name: value for name, value in os.environ.items() if name not in ("RANK", "BLOBSYNC_COMPLETE")}
    environ: Mapping[str, str] = {**known, **variables}
    return subprocess.run(
        [sys.executable, "-c", SAY, str(path), str(ranks)], env=environ, capture_output=True, text=True
    )


def test_the_ranks_of_a_job_say_it_in_its_folder(tmp_path: Path) -> None:
    made, folder = tmp_path / "checkpoint-1", tmp_path / "requests"
    made.mkdir()
    folder.mkdir()
    for rank in ("0", "1", "1"):
        assert say(made, 2, RANK=rank, BLOBSYNC_COMPLETE=str(folder)).returncode == 0
    found = list(requests_in(folder))
    assert sorted((each.path, each.ranks, each.rank) for each in found) == [(str(made), 2, "0"), (str(made), 2, "1")]
    assert len(list(folder.iterdir())) == 2, "a rank that says it again replaces what it said"
    assert all(each.at >= made.stat().st_mtime for each in found)


def test_elsewhere_it_lies_beside_the_set_and_is_no_data(tmp_path: Path) -> None:
    made = tmp_path / "out" / "last.ckpt"
    made.parent.mkdir()
    made.write_text("x")
    assert say(made).returncode == 0
    (beside,) = [path.name for path in made.parent.iterdir() if path != made]
    assert is_request(beside) and is_temporary(beside)
    assert [each.path for each in requests_beside(made.parent)] == [str(made)]
    policy = LinkPolicy("follow", str(tmp_path), "out")
    assert [entry.path for entry in walk(made.parent, policy)] == ["last.ckpt"]


def test_a_program_does_not_end_because_nobody_listens(tmp_path: Path) -> None:
    made = tmp_path / "a"
    made.mkdir()
    assert say(made, BLOBSYNC_COMPLETE=str(tmp_path / "gone")).returncode == 0
    assert len(list(requests_beside(tmp_path))) == 1


def test_it_costs_a_program_no_other_module_of_blobsync(tmp_path: Path) -> None:
    line = f"import sys; {SAY}; print([name for name in sys.modules if name.startswith('blobsync')])"
    done = subprocess.run([sys.executable, "-c", line, str(tmp_path), "1"], capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout.replace("'", '"'))) == {
        *("blobsync", "blobsync.local", "blobsync.local.mark_complete")
    }


def test_what_is_not_there_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        mark_complete(tmp_path / "nothing")
    with pytest.raises(ValueError, match="at least 1"):
        mark_complete(tmp_path, ranks=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", "7", '{"path": 7, "ranks": 1, "rank": "0"}', '{"path": "x", "ranks": "1", "rank": "0"}'),
        *('{"path": "x", "ranks": 1}', "[" * 50_000, '{"path": "' + "x" * 100_000),
    ],
)
def test_what_is_no_request_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "1.0.json").write_text(text)
    assert list(requests_in(tmp_path)) == []
    assert list(requests_in(tmp_path / "missing")) == []


def test_a_link_or_a_pipe_says_nothing(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text('{"path": "x", "ranks": 1, "rank": "0"}')
    folder = tmp_path / "requests"
    folder.mkdir()
    (folder / "1.0.json").symlink_to(real)
    os.mkfifo(folder / "2.0.json")
    assert list(requests_in(folder)) == []
