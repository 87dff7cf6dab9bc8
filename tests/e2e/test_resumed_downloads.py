"""A large download resumes from verified recorded ranges only, and copies unchanged blocks from the last version."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.formatting import size_text
from tests.e2e.world import Container, Done, Project, read_tree, sha256, write_tree
from tests.servers.fault_proxy import Fault, FaultHandle
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_MIB = 1 << 20
_SIZE = 32 * _MIB
_LARGE = random.Random(20261122).randbytes(_SIZE)
_SLOWLY = ("--cap-mbps", "100")
# The end comes so slowly that a kill is never too late.
_DRIPPING = Fault("drip", rate=1, operations=("get blob",), from_byte=_SIZE * 3 // 4, seconds=20)
_DIRECT = ("d", "data", "--engine", "direct")


@pytest.fixture
def ready(project: Project, container: Container, counting: FaultHandle) -> Project:
    container.put("data/large", _LARGE)
    project.configure(container, url=counting.url)
    return project


def parts(project: Project) -> list[Path]:
    return sorted(project.data.glob(".blobsync-*.part"))


def records(project: Project) -> list[str]:
    return [name for (name,) in project.unfinished("SELECT name FROM unfinished")]


def on_disk(project: Project) -> int:
    """The number of bytes in part files."""
    return sum(part.stat().st_blocks * 512 for part in parts(project))


def recorded(project: Project) -> int:
    """The number of bytes in records: less than on the disk, of what was written before a record begins."""
    return int(sum(size for (size,) in project.unfinished("SELECT size FROM pieces")))


def stopped_at_half(project: Project, counting: FaultHandle, number: signal.Signals = signal.SIGKILL) -> Done:
    counting.inject(_DRIPPING)
    process = project.start(*_DIRECT, *_SLOWLY)
    assert wait_until(lambda: recorded(project) >= _SIZE // 2, seconds=60, pause=0.005)
    os.kill(process.pid, number)
    done = project.finish(process)
    counting.inject()
    return done


def finishes(project: Project, body: bytes = _LARGE) -> Done:
    """Run the same command again, and check that all files have arrived, and nothing else."""
    done = project.json(*_DIRECT)
    assert done.code == 0, str(done)
    assert read_tree(project.data) == {"large": sha256(body)}
    assert not records(project)
    return done


def test_after_a_kill_at_half_the_rest_is_fetched(ready: Project, counting: FaultHandle) -> None:
    stopped_at_half(ready, counting)
    (part,) = parts(ready)
    planned = ready.json("plan", "d", "data")
    there = planned.data["bytes_on_record"]
    assert planned.data["actions"][0]["on_record"] == there >= _SIZE // 2
    assert "are there already" in ready.run("plan", "d", "data").out
    found = ready.json("doctor").data["findings"]
    (told,) = [each["detail"] for each in found if each["about"] == "this project"]
    assert re.match(rf"data/large is not finished: {there:,} of {_SIZE:,} bytes are here, in data/{part.name} \(", told)
    assert part.exists(), "looking changes nothing"
    counting.reset()
    done = finishes(ready)
    assert counting.stats().downloaded <= _SIZE // 2
    assert (done.data["bytes_reused"], done.data["bytes_transferred"]) == (there, _SIZE - there)


def test_ctrl_c_says_what_is_kept(ready: Project, counting: FaultHandle) -> None:
    stopped = stopped_at_half(ready, counting, signal.SIGINT)
    assert stopped.code == 130, str(stopped)
    said = re.search(r"([\d.]+ MB) of unfinished files are kept, and the next run resumes from there", stopped.err)
    assert said, str(stopped)
    kept = finishes(ready).data["bytes_reused"]
    assert _SIZE // 2 <= kept < _SIZE
    # Three digits are said; and what was on its way may be recorded after that.
    least = float(said[1].removesuffix(" MB")) * 1e6
    assert kept * 0.9 <= least <= kept * 1.005, (said[1], size_text(kept))


@pytest.mark.soak
def test_another_version_between_starts_anew(ready: Project, container: Container, counting: FaultHandle) -> None:
    stopped_at_half(ready, counting)
    other = random.Random(2).randbytes(_SIZE)
    container.put("data/large", other)
    counting.reset()
    done = finishes(ready, other)
    assert (done.data["bytes_reused"], done.data["bytes_transferred"]) == (0, _SIZE)


def _overwritten(part: Path) -> None:
    with part.open("r+b") as file:
        for at in range(0, _SIZE, _MIB // 2):
            file.seek(at)
            file.write(b"not the blob's")


def _linked(part: Path) -> None:
    victim = part.parent.parent / "victim"
    victim.write_bytes(bytes(_SIZE))
    part.unlink()
    part.symlink_to(victim)


@pytest.mark.parametrize(
    "tamper", [pytest.param(_linked, id="a link"), pytest.param(_overwritten, id="other bytes", marks=pytest.mark.soak)]
)
def test_a_part_file_that_somebody_changed_counts_for_nothing(
    tamper: Callable[[Path], None], ready: Project, counting: FaultHandle
) -> None:
    stopped_at_half(ready, counting)
    (part,) = parts(ready)
    tamper(part)
    done = ready.json(*_DIRECT)
    assert (done.code, done.data["bytes_reused"]) == (0, 0), str(done)
    assert sha256((ready.data / "large").read_bytes()) == sha256(_LARGE)
    if tamper is _linked:
        assert (ready.root / "victim").read_bytes() == bytes(_SIZE)
        part.unlink()
    assert not parts(ready) and not records(ready)


@pytest.mark.soak
def test_a_line_that_was_cut_keeps_what_came(ready: Project, counting: FaultHandle) -> None:
    counting.inject(Fault("reset_download", rate=1, operations=("get blob",), from_byte=_SIZE // 2))
    process = ready.start(*_DIRECT, *_SLOWLY, "--json")
    cut = ready.finish(process)
    counting.inject()
    assert cut.code in (1, 3), str(cut)
    assert not (ready.data / "large").exists()
    assert " of unfinished files are kept" in cut.err
    assert finishes(ready).data["bytes_reused"] > 0


def test_two_downloads_of_one_file_at_once(ready: Project, counting: FaultHandle) -> None:
    first = ready.start(*_DIRECT, *_SLOWLY, "--json")
    # On a busy machine it may be over before this looks.
    assert wait_until(lambda: on_disk(ready) > _SIZE // 4 or first.poll() is not None, seconds=60, pause=0.005)
    ended = [ready.json(*_DIRECT), ready.finish(first)]
    assert sha256((ready.data / "large").read_bytes()) == sha256(_LARGE)
    # The second one finds that the file exists, and leaves it alone.
    assert {0} <= {each.code for each in ended} <= {0, 1}, "\n".join(map(str, ended))
    assert {code for each in ended if each.code for code in each.codes} <= {"changed_meanwhile"}
    assert finishes(ready).data["transferred"] == 0


def test_what_is_a_week_old_goes_with_the_next_command(
    ready: Project, container: Container, counting: FaultHandle
) -> None:
    container.put("data/other/small", b"small")
    stopped_at_half(ready, counting)
    assert ready.json("d", "data/other").code == 0
    assert len(records(ready)) == len(parts(ready)) == 1
    ready.unfinished(f"UPDATE unfinished SET at = at - {8 * 24 * 3600}")
    container.put("data/other/more", b"more")
    assert ready.json("d", "data/other").code == 0
    assert not records(ready) and not parts(ready)


@pytest.mark.parametrize("change", ["in one place", pytest.param("appended", marks=pytest.mark.soak)])
def test_of_a_changed_file_only_the_changed_blocks_are_fetched(
    change: str, project: Project, container: Container, counting: FaultHandle, tmp_path: Path
) -> None:
    project.configure(container, url=counting.url)
    write_tree(project.data, {"large": _LARGE})
    assert project.json("u", "data", "--engine", "direct").code == 0
    # Another program changes it.
    other = Project(tmp_path / "other", project.environ)
    other.root.mkdir()
    other.configure(container)
    text = random.Random(3).randbytes(2 * _MIB)
    new = _LARGE + text if change == "appended" else _LARGE[: 20 * _MIB] + text + _LARGE[22 * _MIB :]
    write_tree(other.data, {"large": _LARGE})
    assert other.json("u", "data", "--engine", "direct").code == 0
    write_tree(other.data, {"large": new})
    assert other.json("u", "data", "--engine", "direct").code == 0
    counting.reset()
    done = finishes(project, new)
    assert counting.stats().downloaded <= 0.1 * len(new)
    assert done.data["bytes_transferred"] + done.data["bytes_reused"] == len(new)
