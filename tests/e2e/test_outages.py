"""Network outages in the middle of a transfer: it waits, says so, and completes.

An outage resets all connections and refuses new ones, for longer than a single request is retried. Twenty random
moments are spread over the ways to transfer, and over the widths of a bar; with ``OUTAGE_GRID`` set, each of them gets
twenty, which takes hours.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.terminal import CTRL_C, Terminal, on_terminal
from tests.e2e.world import Container, Project, hashes, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.delay_proxy import DelayHandle, delay_proxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

_SEED = int(os.environ.get("OUTAGE_SEED") or random.SystemRandom().randrange(1 << 31))
_MIB = 1 << 20
_GRID = bool(os.environ.get("OUTAGE_GRID"))
_COLUMNS = [40, 80, 120]
# Seconds. Seven attempts of a request take less.
_OUTAGE = 20.0
# Files that take a few seconds over a network of so many megabits a second.
_FILES = random_files(7, 120, [3 * _MIB, 2 * _MIB])
_MBPS = 8.0

_OUTAGE_TOLD = re.compile(r"no connection for \d+ s")


def _told(bar: str) -> str:
    """The text of a progress bar about an outage; empty if there is none."""
    found = _OUTAGE_TOLD.search(bar)
    return found[0] if found else ""


class Way(NamedTuple):
    """A kind of transfer: the command, and where the files are at first."""

    words: tuple[str, ...]
    uploads: bool = True
    copies: bool = False


WAYS = {
    "upload": Way(("u", "data", "--engine", "direct")),
    "upload, processes": Way(("u", "data", "--engine", "direct", "--processes", "2")),
    "upload, azcopy": Way(("u", "data", "--engine", "azcopy")),
    "download": Way(("d", "data", "--engine", "direct"), uploads=False),
    "download, processes": Way(("d", "data", "--engine", "direct", "--processes", "2"), uploads=False),
    "download, azcopy": Way(("d", "data", "--engine", "azcopy"), uploads=False),
    "copy": Way(("-c", "eu", "-f", "we3v32", "u", "data", "--engine", "direct"), copies=True),
    "relay": Way(("-c", "eu", "-f", "we3v32", "u", "data", "--engine", "relay"), copies=True),
}


def _moments(kinds: Sequence[Any]) -> list[tuple[Any, int]]:
    """Each kind with the numbers of its moments."""
    return [(kind, number) for number in range(20) for kind in (kinds if _GRID else [kinds[number % len(kinds)]])]


def _seed(number: int) -> random.Random:
    print(f"OUTAGE_SEED={_SEED}, round {number}")
    return random.Random(f"{_SEED}/{number}")


@pytest.fixture
def line(service: str) -> Iterator[DelayHandle]:
    with copy_source_proxy(service) as copying, delay_proxy(copying.url, round_trip_ms=20.0, mbps=_MBPS) as proxy:
        yield proxy


def _prepare(way: Way, project: Project, containers: Sequence[Container], line: DelayHandle) -> None:
    source, destination = containers
    if way.copies:
        project.configure(source, cluster="we3v32", url=line.url)
        project.configure(destination, cluster="eu", url=line.url)
    else:
        project.configure(destination, url=line.url)
    if way.uploads and not way.copies:
        write_tree(project.data, _FILES)
        return
    for name, data in _FILES.items():
        (source if way.copies else destination).put(f"data/{name}", data)


def _has_begun(way: Way, project: Project, containers: Sequence[Container]) -> bool:
    if way.uploads:
        return bool(containers[1].names("data/", uncommitted=True))
    return project.data.exists() and any(project.data.rglob("*.bin"))


@contextmanager
def _outage(line: DelayHandle, seconds: float) -> Iterator[None]:
    """An outage while the block runs, and at least for so long."""
    line.go_away()
    ends = time.monotonic() + seconds
    try:
        yield
        time.sleep(max(ends - time.monotonic(), 0))
    finally:
        line.come_back()


def _exact(way: Way, project: Project, containers: Sequence[Container]) -> None:
    there = containers[1].contents("data/") if way.uploads else read_tree(project.data)
    assert there == hashes(_FILES)


@pytest.mark.soak
@pytest.mark.parametrize(("way", "number"), _moments(list(WAYS)))
def test_an_outage_at_any_moment_is_waited_for(
    way: str,
    number: int,
    project: Project,
    new_container: Callable[[str], Container],
    line: DelayHandle,
    request: pytest.FixtureRequest,
) -> None:
    chance = _seed(number)
    _survives(WAYS[way], project, new_container, line, request, chance, chance.uniform(12, 25))


def _survives(
    way: Way,
    project: Project,
    new_container: Callable[[str], Container],
    line: DelayHandle,
    request: pytest.FixtureRequest,
    chance: random.Random,
    seconds: float,
) -> None:
    if "azcopy" in way.words:
        request.getfixturevalue("with_azcopy")
    containers = (new_container("one"), new_container("two"))
    _prepare(way, project, containers, line)
    process = project.start(*way.words, "--json")
    try:
        assert wait_until(lambda: _has_begun(way, project, containers) or process.poll() is not None, seconds=60)
        time.sleep(chance.uniform(0, 3))
        with _outage(line, seconds):
            pass
        done = project.finish(process, seconds=200)
    finally:
        process.kill()
    assert done.code == 0, str(done)
    assert done.data["failed"] == 0
    _exact(way, project, containers)


def _with_bar(
    project: Project,
    container: Container,
    line: DelayHandle,
    columns: int,
    during: Callable[[Terminal], None],
    *words: str,
) -> Terminal:
    write_tree(project.data, _FILES)
    project.configure(container, url=line.url)
    with on_terminal(project, "u", "data", *words, columns=columns) as terminal:
        terminal.wait_for(lambda seen: any(re.match(r"uploading +[1-9]", bar) for bar in seen.bars()))
        with _outage(line, _OUTAGE if columns == 80 else 0.0):
            during(terminal)
        return terminal.finish(seconds=100)


@pytest.mark.parametrize("way", ["upload", "download"])
def test_a_short_outage_is_waited_for_and_shown(
    project: Project, new_container: Callable[[str], Container], line: DelayHandle, way: str
) -> None:
    containers = (new_container("one"), new_container("two"))
    _prepare(WAYS[way], project, containers, line)
    with on_terminal(project, *WAYS[way].words, columns=100) as terminal:
        assert wait_until(lambda: _has_begun(WAYS[way], project, containers), seconds=60)
        with _outage(line, 0.0):
            terminal.wait_for(lambda seen: any(_OUTAGE_TOLD.search(bar) for bar in seen.bars()))
        ended = terminal.finish(seconds=100)
    assert ended.code == 0, str(ended)
    assert f"{way}ed {len(_FILES)} files" in " ".join(ended.answer()), str(ended)
    _hold_to_the_truth(ended.bars(), doing=f"{way}ing")
    _exact(WAYS[way], project, containers)


@pytest.mark.soak
@pytest.mark.parametrize("columns", _COLUMNS)
def test_the_bar_says_that_there_is_no_connection_and_no_time_left(
    project: Project, container: Container, line: DelayHandle, columns: int
) -> None:
    said: list[str] = []

    def look(terminal: Terminal) -> None:
        terminal.wait_for(lambda seen: any(_OUTAGE_TOLD.search(bar) for bar in seen.bars()))
        drawn = len(terminal.bars())
        # By the seconds that it shows: a loaded machine draws late.
        terminal.wait_for(lambda seen: len({_told(bar) for bar in seen.bars()[drawn:]}) >= 3)
        said.extend(terminal.bars()[drawn:])

    ended = _with_bar(project, container, line, columns, look)
    assert ended.code == 0, str(ended)
    assert all(_told(bar) for bar in said), said
    assert not any("left" in bar or "/s" in bar for bar in said), said
    if columns > 40:
        assert all("trying again" in bar for bar in said), said
    answer = " ".join(ended.answer())
    assert f"uploaded {len(_FILES)} files" in answer
    assert "failed" not in answer
    assert container.contents("data/") == hashes(_FILES)


def _changes(file: Path, times: int) -> Callable[[], None]:
    """Write other bytes of the same size, a few times, a tenth of a second apart."""

    def change() -> None:
        for number in range(times):
            file.write_bytes(bytes([number]) * file.stat().st_size)
            time.sleep(0.1)

    return change


def _hold_to_the_truth(bars: Sequence[str], files: int = len(_FILES), doing: str = "uploading") -> None:
    """Check the bars: no more than the total, no progress, and no speed or remaining time during an outage."""
    places, wholes = set(), set()
    for bar in (each for each in bars if each.startswith(doing)):
        assert int(re.search(r"(\d+)%", bar)[1]) <= 100, bar  # type: ignore[index]
        if counted := re.search(r"([\d,]+)/([\d,]+) files?", bar):
            done, whole = (int(each.replace(",", "")) for each in counted.groups())
            assert done <= whole == files, bar
            places.add(counted.start(2))
        if sizes := re.search(r"([\d.]+) of ([\d.]+) (\w+)", bar):
            assert float(sizes[1]) <= float(sizes[2]), bar
            wholes.add(sizes[2])
        assert not (_OUTAGE_TOLD.search(bar) and ("left" in bar or "/s" in bar)), bar
        assert "failed" not in bar, bar
    assert len(places) <= 1 and len(wholes) <= 1, (places, wholes)


@pytest.mark.soak
@pytest.mark.parametrize(("columns", "number"), _moments(_COLUMNS))
def test_bars_tell_the_truth_whatever_happens(
    project: Project, container: Container, line: DelayHandle, number: int, columns: int
) -> None:
    """A file changes while it moves, and the network breaks, at random moments."""
    chance = _seed(number)
    write_tree(project.data, _FILES)
    project.configure(container, url=line.url)
    with on_terminal(project, "u", "data", "--engine", "direct", columns=columns) as terminal:
        terminal.wait_for(lambda seen: any(bar.startswith("uploading") for bar in seen.bars()))
        moments = [
            (chance.uniform(0, 3), _changes(project.data / "large0.bin", chance.randrange(1, 8))),
            (chance.uniform(0, 4), lambda: _cut(line, chance.uniform(0.5, 5))),
        ]
        for after, happens in sorted(moments, key=lambda each: each[0]):
            time.sleep(after)
            happens()
        ended = terminal.finish(seconds=150)
    _hold_to_the_truth(ended.bars())
    there, here = container.contents("data/"), read_tree(project.data)
    if ended.code == 0:
        assert {name for name in here if there.get(name) != here[name]} <= {"large0.bin"}, str(ended)
        # A file that changes after it has gone up is that of the next command.
        again = project.json("u", "data", "--engine", "direct")
        assert again.code == 0, str(again)
        there = container.contents("data/")
        assert there == here, f"{_differences(container, project.data, there, here)}\n{ended}\n{again}"
        return
    # A file may change in its second attempt, too: then only that file is named.
    assert ended.code == 3 and "data/large0.bin" in " ".join(ended.answer()), str(ended)
    assert {name for name in here if there.get(name) != here[name]} <= {"large0.bin"}


@pytest.mark.soak
@pytest.mark.parametrize("number", range(4))
def test_the_bar_of_a_file_of_which_the_difference_is_sent_tells_the_truth(
    project: Project, container: Container, line: DelayHandle, number: int
) -> None:
    """The network breaks at a random moment."""
    chance = _seed(number)
    files = dict(random_files(number, 0, [32 * _MIB]))
    write_tree(project.data, files)
    project.configure(container, url=line.url)
    assert project.run("u", "data", "--engine", "direct").code == 0
    with (project.data / "large0.bin").open("r+b") as file:
        for part in range(0, 32, 8):
            file.seek(part * _MIB)
            file.write(b"changed")
    with on_terminal(project, "u", "data", "--engine", "direct", columns=100) as terminal:
        terminal.wait_for(lambda seen: any(bar.startswith("uploading") for bar in seen.bars()))
        time.sleep(chance.uniform(0, 3))
        _cut(line, chance.uniform(0.5, 5))
        ended = terminal.finish(seconds=150)
    assert ended.code == 0, str(ended)
    assert "were there already" in " ".join(ended.answer()), str(ended)
    _hold_to_the_truth(ended.bars(), 1)
    # What was compared and not sent is done, too.
    assert [bar for bar in ended.bars() if bar.startswith("uploading 100%")], str(ended)
    assert container.contents("data/") == read_tree(project.data)


def _differences(container: Container, data: Path, there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """Each file that differs, with the MiB in which it does."""
    found = []
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            blob = container.get(f"data/{name}") if name in there else b""
            file = (data / name).read_bytes() if name in here else b""
            places = [at for at in range(0, max(len(blob), len(file)), _MIB) if blob[at:][:_MIB] != file[at:][:_MIB]]
            found.append(f"{name}: {len(blob):,} bytes there, {len(file):,} here, other MiB at {places}")
    return found


def _cut(line: DelayHandle, seconds: float) -> None:
    with _outage(line, seconds):
        pass


@pytest.mark.parametrize(
    "words",
    [pytest.param((), id="one process"), pytest.param(("--processes", "2"), id="processes", marks=[pytest.mark.soak])],
)
def test_ctrl_c_in_an_outage_ends_at_once(
    project: Project, container: Container, line: DelayHandle, words: tuple[str, ...]
) -> None:

    def stop(terminal: Terminal) -> None:
        terminal.wait_for(lambda seen: any(_OUTAGE_TOLD.search(bar) for bar in seen.bars()))
        terminal.type(CTRL_C)
        # The outage lasts until then, and its tries would go on for longer.
        terminal.process.wait(12)

    ended = _with_bar(project, container, line, 100, stop, *words)
    assert ended.code == 130, str(ended)
    assert "the same command again" in " ".join(ended.answer())


@pytest.mark.soak
def test_an_outage_without_an_end_is_given_up_with_the_tries_that_were_made(
    project: Project, container: Container, line: DelayHandle
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=line.url)
    project.environ["BLOBSYNC_OUTAGE_SECONDS"] = "3"
    process: subprocess.Popen[str] = project.start("u", "data", "--engine", "direct", "--json")
    assert wait_until(lambda: bool(container.names("data/")), seconds=60)
    line.go_away()
    done = project.finish(process, seconds=100)
    # 1 if nothing had been confirmed by then.
    assert done.code in (1, 3), str(done)
    assert done.codes == {"storage_unreachable"}
    tried = {each["message"] for each in done.errors if "not tried" not in each["message"]}
    rest = [each for each in done.errors if "not tried" in each["message"]]
    assert tried and all(
        re.search(r"refuses connections or cannot be reached \(\d+ tries in \d+ s\)", each) for each in tried
    ), tried
    assert rest and not any("tries" in each["message"] for each in rest), (len(done.errors), done.seconds, tried)
    assert all("answered before" in each["hint"] for each in done.errors), {each["hint"] for each in done.errors}
    there = container.names("data/")
    # The response for a file that arrived may have been lost.
    assert {each["path"] for each in done.errors} >= {f"data/{name}" for name in _FILES} - set(there)
    line.come_back()
    again = project.json("u", "data", "--engine", "direct")
    assert again.code == 0, str(again)
    assert container.contents("data/") == hashes(_FILES)
