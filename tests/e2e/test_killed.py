"""kill -9 at any moment: the same command completes; no partial file has a final name, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.e2e.tally import Tally
from tests.e2e.test_changed_blocks import in_journal
from tests.e2e.test_resumed_downloads import recorded
from tests.e2e.world import Container, Project, hashes, processes, random_files, read_tree, sha256, write_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

_SEED = int(os.environ.get("FAULTS_SEED", "20261121"))
# So slow that every kill happens during work: 20 MB take about two seconds.
_SLOWLY = ("--cap-mbps", "80")
_FILES = random_files(_SEED, 120, [17 << 20])
HOW_OFTEN = pytest.mark.parametrize("kills", [1, pytest.param(6, marks=pytest.mark.soak)])


class Watch:
    """Checks all files with final names continuously, and records incomplete ones."""

    def __init__(self, folder: Path, expected: Mapping[str, str]) -> None:
        self._folder = folder
        self._expected = expected
        self._known: set[tuple[str, int, int, int]] = set()
        self.wrong: set[str] = set()
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self._look()

    def _look(self) -> None:
        self.looks += 1
        for name in self._expected:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                file = self._folder / name
                before = file.stat()
                stamp = (name, before.st_ino, before.st_size, before.st_mtime_ns)
                if stamp not in self._known:
                    self._known.add(stamp)
                    if sha256(file.read_bytes()) != self._expected[name]:
                        self.wrong.add(name)


def _kill_when(count: Callable[[], int], threshold: int, kill: Callable[[], None], alive: Callable[[], bool]) -> bool:
    """Kill as soon as ``count`` reaches ``threshold``; False if the process ended before."""
    wait_until(lambda: count() >= threshold or not alive(), seconds=60, pause=0.003)
    if not alive():
        return False
    kill()
    return True


def _verified(project: Project, *words: str) -> set[str]:
    """The unchanged files of a plan."""
    done = project.json("plan", *words)
    assert done.code in (0, 3), str(done)
    return {each["path"] for each in done.data["actions"] if each["action"] == "unchanged"}


def _moved(proxy: FaultHandle, operations: tuple[str, ...], prefix: str) -> set[str]:
    return {
        entry.path.partition(prefix)[2]
        for entry in proxy.journal()
        if entry.operation in operations and entry.status in (200, 201, 206)
    }


def _rounds(
    project: Project,
    words: tuple[str, ...],
    counting: FaultHandle,
    moves: tuple[str, ...],
    victims: Callable[[int], list[int]],
    kills: int,
) -> int:
    """Run and kill ``kills`` times, then run to the end; returns how many kills hit."""
    chance = random.Random(_SEED)
    hits = 0
    verified: set[str] = set()
    for _ in range(kills):
        counting.reset()
        process = project.start(*words)
        threshold = chance.randrange(1, max(2, (len(_FILES) - len(verified)) // 4))

        def kill(pid: int = process.pid) -> None:
            for victim in victims(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)

        hits += _kill_when(
            lambda: sum(counting.stats().operations.get(move, 0) for move in moves),
            threshold,
            kill,
            lambda process=process: process.poll() is None,  # type: ignore[misc]
        )
        project.finish(process)
        again = {name for name in _moved(counting, moves, "/data/") if f"data/{name}" in verified}
        assert not again, f"verified, but moved again: {sorted(again)[:5]}"
        verified = _verified(project, *words)
    counting.reset()
    done = project.json(*words)
    assert done.code == 0, str(done)
    again = {name for name in _moved(counting, moves, "/data/") if f"data/{name}" in verified}
    assert not again, f"verified, but moved again: {sorted(again)[:5]}"
    return hits


def _no_leftovers(project: Project) -> None:
    assert set(read_tree(project.data)) == set(_FILES)
    left = [
        file
        for file in project.root.rglob("*")
        if file.is_file() and (".azDownload" in file.name or file.name.endswith(".part"))
    ]
    assert not left


def _both(pid: int) -> list[int]:
    return [pid, *processes(pid)]


@HOW_OFTEN
def test_upload_through_kills(
    project: Project, container: Container, counting: FaultHandle, tally: Tally, kills: int
) -> None:
    write_tree(project.data, _FILES)
    project.configure(container, url=counting.url)
    words, moves = ("u", "data", "--engine", "direct", *_SLOWLY), ("put blob", "put block")
    hits = _rounds(project, words, counting, moves, _both, kills)
    assert container.contents("data/") == _FILES.hashes
    assert set(container.names(uncommitted=True)) == set(container.names())
    tally.faults({"kill -9": hits})
    tally.runs(exact=1)


@HOW_OFTEN
def test_download_through_kills(
    project: Project, container: Container, counting: FaultHandle, tally: Tally, kills: int
) -> None:
    for name, data in _FILES.items():
        container.put(f"data/{name}", data)
    project.configure(container, url=counting.url)
    with Watch(project.data, _FILES.hashes) as watch:
        words = ("d", "data", "--engine", "direct", *_SLOWLY)
        hits = _rounds(project, words, counting, ("get blob",), _both, kills)
        assert wait_until(lambda: watch.looks > 10)
    assert not watch.wrong
    assert read_tree(project.data) == _FILES.hashes
    _no_leftovers(project)
    tally.faults({"kill -9": hits})
    tally.runs(exact=1)


@pytest.mark.parametrize(
    ("victim", "direction"),
    [
        ("both", "d"),
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in (("blobsync", "d"), ("azcopy", "u"), ("azcopy", "d"), ("both", "u"))
        ),
    ],
)
def test_azcopy_at_work_through_a_kill(
    victim: str, direction: str, with_azcopy: Project, container: Container, counting: FaultHandle, tally: Tally
) -> None:
    project = with_azcopy
    if direction == "u":
        write_tree(project.data, _FILES)
    else:
        for name, data in _FILES.items():
            container.put(f"data/{name}", data)
    project.configure(container, url=counting.url)
    words = (direction, "data", "--engine", "azcopy")
    operation = ("put blob", "put block") if direction == "u" else ("get blob",)
    victims: set[int] = set()
    with Watch(project.data, _FILES.hashes if direction == "d" else {}) as watch:
        counting.reset()
        process = project.start(*words)
        assert wait_until(lambda: processes(process.pid, "azcopy") or process.poll() is not None)
        victims.update(processes(process.pid, "azcopy"))

        def kill() -> None:
            # The first one seen may only have been asked for its version.
            victims.update(processes(process.pid, "azcopy"))
            chosen = {"blobsync": [process.pid], "azcopy": list(victims), "both": [process.pid, *victims]}[victim]
            for pid in chosen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        hit = _kill_when(
            lambda: sum(counting.stats().operations.get(each, 0) for each in operation),
            random.Random(f"{_SEED}{victim}{direction}").randrange(5, 100),
            kill,
            lambda: process.poll() is None,
        )
        killed = project.finish(process)
        if victim == "azcopy":
            assert killed.code in (0, 1, 3), str(killed)
        again = project.json(*words)
        assert again.code == 0, str(again)
    # A process that outlived its parent ends by itself, or the next run ends it.
    assert wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in victims)), victims
    assert not watch.wrong
    assert (container.contents("data/") if direction == "u" else read_tree(project.data)) == _FILES.hashes
    _no_leftovers(project)
    tally.faults({"kill -9": int(hit)})
    tally.runs(exact=1)


@pytest.mark.soak
def test_a_copy_through_kills(
    project: Project, new_container: Callable[[str], Container], service: str, tally: Tally
) -> None:
    source, destination = new_container("one"), new_container("two")
    files = {name: data for name, data in _FILES.items() if name < "large2" or "part" < name < "part4"}
    for name, data in files.items():
        source.put(f"data/{name}", data)
    with copy_source_proxy(service) as copying, fault_proxy(copying.url) as counting:
        project.configure(source, cluster="from", url=counting.url, sas=source.sas())
        project.configure(destination, url=counting.url, sas=destination.sas())
        words = ("u", "data", "-f", "from", "--engine", "direct")
        hits = _rounds(project, words, counting, ("put blob from url", "put block from url"), _both, kills=2)
        assert copying.stats().downloaded == 0
    assert destination.contents("data/") == hashes(files)
    assert set(destination.names(uncommitted=True)) == set(destination.names())
    tally.faults({"kill -9": hits})
    tally.runs(exact=1)


@pytest.mark.parametrize("count", ["1", pytest.param("2", marks=pytest.mark.soak)])
@pytest.mark.parametrize("word", ["u", *(pytest.param(word, marks=pytest.mark.soak) for word in ("d", "copy"))])
def test_what_a_killed_run_wrote_is_no_conflict_where_every_file_has_changed_since(
    word: str, count: str, project: Project, new_container: Callable[[str], Container], service: str, tally: Tally
) -> None:
    """The index has nothing of the last seconds before the kill."""
    one, two = new_container("one"), new_container("two")
    files = random_files(_SEED, 60, [3 << 20] * 3)
    newer = {name: data[::-1] + b"newer" for name, data in files.items()}
    source = project.data if word == "u" else one

    def fill(bodies: Mapping[str, bytes]) -> None:
        if isinstance(source, Path):
            write_tree(source, bodies)
        else:
            for name, data in bodies.items():
                source.put(f"data/{name}", data)

    fill(files)
    # However late the kill comes, it is not after the end.
    ends = ("put blob", "put block list", "get blob", "put blob from url", "put block from url")
    end = Fault("hold", at=tuple(range(30, 1000)), operations=ends)
    with copy_source_proxy(service) as copying, fault_proxy(copying.url, end) as line:
        project.configure(one, cluster="from", url=line.url, sas=one.sas())
        project.configure(two, url=line.url, sas=two.sas())
        words = {"u": ("u", "data"), "d": ("-c", "from", "d", "data"), "copy": ("u", "data", "-f", "from")}[word]
        words = (*words, "--engine", "direct", "--processes", count, "--cap-mbps", "50")

        def there() -> dict[str, str]:
            return read_tree(project.data) if word == "d" else two.contents("data/")

        def begun() -> int:
            return len(list(project.data.rglob("*.bin")) if word == "d" else two.names("data/"))

        process = project.start(*words, "--json")
        assert wait_until(lambda: begun() > 5 or process.poll() is not None, seconds=60, pause=0.05)
        workers = processes(process.pid)
        process.kill()
        killed = project.finish(process)
        assert killed.code == -signal.SIGKILL and (count == "1" or workers), str(killed)
        assert wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in workers))
        line.inject()
        line.drop()
        fill(newer)
        again = project.json(*words)
    assert (again.code, again.errors) == (0, []), str(again)
    assert there() == hashes(newer)
    assert not list(project.root.glob(".blobsync/*/intents/*"))
    tally.faults({"kill -9": 1})
    tally.runs(exact=1)


@pytest.mark.parametrize(
    ("direction", "number", "engine"),
    [
        pytest.param("d", signal.SIGTERM, "direct", id="down, SIGTERM"),
        pytest.param("u", signal.SIGTERM, "azcopy", id="up with azcopy, SIGTERM"),
        pytest.param("u", signal.SIGINT, "direct", id="up", marks=pytest.mark.soak),
        pytest.param("d", signal.SIGINT, "azcopy", id="down with azcopy", marks=pytest.mark.soak),
    ],
)
def test_an_interrupt_stops_says_what_is_left_and_cleans_up(
    direction: str,
    number: signal.Signals,
    engine: str,
    project: Project,
    container: Container,
    counting: FaultHandle,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = random_files(_SEED, 20, [5 << 20] * 2)
    if direction == "u":
        write_tree(project.data, files)
    else:
        for name, data in files.items():
            container.put(f"data/{name}", data)
    project.configure(container, url=counting.url)
    operations = ("put blob", "put block") if direction == "u" else ("get blob",)
    # It takes ten seconds, of which a few pass.
    process = project.start(direction, "data", "--engine", engine, "--cap-mbps", "8", "--json")
    assert wait_until(lambda: sum(counting.stats().operations.get(each, 0) for each in operations) > 4)
    azcopies = processes(process.pid, "azcopy")
    assert bool(azcopies) == (engine == "azcopy")
    os.kill(process.pid, number)
    done = project.finish(process)
    assert (done.code, done.document["status"]) == (130, "cancelled"), str(done)
    assert "left" in done.errors[0]["message"], str(done)
    assert wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in azcopies))
    here = read_tree(project.data)
    there = container.contents("data/")
    expected = hashes(files)
    side = there if direction == "u" else here
    assert set(side.items()) <= set(expected.items()), "partial or temporary files are left"
    again = project.json(direction, "data")
    assert again.code == 0, str(again)
    assert (container.contents("data/") if direction == "u" else read_tree(project.data)) == expected


@pytest.mark.parametrize("direction", ["u", "d"])
def test_an_interrupt_in_a_large_file_says_what_is_kept_of_it(
    direction: str, project: Project, container: Container, counting: FaultHandle
) -> None:
    large = {"large": random_files(_SEED, 0, [24 << 20])["large0.bin"]}
    if direction == "u":
        write_tree(project.data, large)
    else:
        container.put("data/large", large["large"])
    project.configure(container, url=counting.url)
    process = project.start(direction, "data", "--engine", "direct", "--cap-mbps", "40", "--json")
    on_record = in_journal if direction == "u" else recorded
    assert wait_until(lambda: on_record(project) >= 4 << 20)
    os.kill(process.pid, signal.SIGINT)
    stopped = project.finish(process)
    said = re.search(r"1 is left; ([\d.]+) MB of unfinished files are kept, and the next run resumes", stopped.out)
    # Three digits are said.
    kept = float(said[1]) * 1e6 if said else 0.0
    assert 0 < kept < 24 << 20, str(stopped)
    again = project.json(direction, "data")
    moved = again.data["bytes_transferred"]
    assert (again.code, moved + again.data["bytes_reused"]) == (0, 24 << 20), str(again)
    assert moved <= (24 << 20) - kept * 0.99
    assert (container.contents("data/") if direction == "u" else read_tree(project.data)) == hashes(large)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_keep_that_is_killed_is_finished_by_the_same_command(
    rounds: int, project: Project, container: Container, tally: Tally
) -> None:
    """Stop at any function call of a transfer: exit code 0 of the second run means that both ends are equal."""
    project.configure(container)
    chance = random.Random(_SEED)
    names = ("a.txt", "d/b.bin", "d/c")
    total: dict[tuple[str, ...], int] = {}
    hits = 0
    for number in range(rounds):
        words = (("u", "d")[number % 2], "data", "--keep", ("both", "local", "remote")[number % 3])
        if words not in total:
            _edit_both_ends(project, container, names, f"first {number}")
            whole = _at_a_call(project, 0, words)
            assert whole.returncode == 0, whole.stderr
            total[words] = int(whole.stderr.split()[-1])
        here, there = _edit_both_ends(project, container, names, str(number))
        at = chance.randrange(1, total[words])
        hits += _at_a_call(project, at, words).returncode == -signal.SIGKILL
        done = project.json(*words)
        where = f"call {at:,} of {total[words]:,} of {words}, seed {_SEED}: {done}"
        assert done.code == 0, where
        ends = read_tree(project.data), container.contents("data/")
        assert ends[0] == ends[1], where
        kept = {"both": {*here, *there}, "local": {*here}, "remote": {*there}}[words[-1]]
        assert kept <= set(ends[0].values()), where
    tally.faults({"kill -9": hits})
    tally.runs(exact=rounds)
    assert hits >= rounds // 2


def _edit_both_ends(
    project: Project, container: Container, names: tuple[str, ...], what: str
) -> tuple[list[str], list[str]]:
    """The digests of both ends."""
    here = {name: f"{what} here {name}".encode() for name in names}
    there = {name: f"{what} there {name} too".encode() for name in names}
    write_tree(project.data, here)
    for name, data in there.items():
        container.put(f"data/{name}", data)
    return list(hashes(here).values()), list(hashes(there).values())


def _at_a_call(project: Project, at: int, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).parent.parent / "at_a_call.py"
    return subprocess.run(
        [sys.executable, str(program), "SIGKILL", str(at), "transfer,direct,store,local", *words],
        cwd=project.root,
        env={**os.environ, **project.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
