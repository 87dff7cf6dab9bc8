"""Transfers under kills and network faults: ``python -m benchmarks.reliability [--rounds N] [--seed S] [--write]``.

Each round makes a tree from its seed, puts a blob server behind a proxy that fails by the same seed, or kills blobsync
(and azcopy with it) at random moments, and gives the same command again until it says that all is done. After every
single run each file's SHA-256 is compared, read past the proxy: a run that ends with exit code 0 must have left all
files equal, any other must have named each file that is not, and left nothing half done under a final name.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.emulator import ROOT, TOOLS, installed_azcopy
from benchmarks.report import write_into
from blobsync.emulator import Emulator, new_key
from tests.e2e.world import (
    Container,
    Done,
    Project,
    check_exact_or_honest,
    hashes,
    kill_tree,
    processes,
    random_files,
    read_tree,
    write_tree,
)
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import FaultHandle, fault_proxy, weather

_MIB = 1 << 20
_MOST_RUNS = 12
_MARKER = "reliability"


@dataclass(frozen=True)
class Trial:
    """``words`` is the command; ``route`` where the files begin; ``kills`` a round, and ``bad_weather`` on the line."""

    title: str
    route: str
    words: tuple[str, ...]
    kills: int = 0
    bad_weather: bool = False
    flips: bool = True


@dataclass
class Tally:
    """Results of one trial, over its rounds."""

    rounds: int = 0
    files: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    honest: int = 0
    wrong: list[str] = field(default_factory=list)


_COPY = ("u", "data", "-f", "from")
TRIALS = (
    Trial("upload, bad line", "u", ("u", "data", "--engine", "direct"), bad_weather=True),
    Trial("upload with azcopy, bad line", "u", ("u", "data", "--engine", "azcopy"), bad_weather=True, flips=False),
    Trial("download, bad line", "d", ("d", "data", "--engine", "direct"), bad_weather=True),
    Trial("download with azcopy, bad line", "d", ("d", "data", "--engine", "azcopy"), bad_weather=True),
    Trial("copy server to server, bad line", "c", (*_COPY, "--engine", "direct"), bad_weather=True),
    Trial("copy by relay, bad line", "c", (*_COPY, "--engine", "relay"), bad_weather=True),
    Trial("upload, kill -9", "u", ("u", "data", "--engine", "direct"), kills=6),
    Trial("upload with azcopy, kill -9 of both", "u", ("u", "data", "--engine", "azcopy"), kills=3),
    Trial("download, kill -9", "d", ("d", "data", "--engine", "direct"), kills=6),
    Trial("download with azcopy, kill -9 of both", "d", ("d", "data", "--engine", "azcopy"), kills=3),
    Trial("copy server to server, kill -9", "c", (*_COPY, "--engine", "direct"), kills=6),
    Trial("download, bad line and kill -9", "d", ("d", "data", "--engine", "direct"), kills=3, bad_weather=True),
)


class Ground:
    """The blob server with its two accounts, and fresh containers and projects on it."""

    def __init__(self, url: str, keys: Mapping[str, str], scratch: Path) -> None:
        self.url = url
        self._keys = keys
        self._scratch = scratch
        self._made = 0

    def container(self, account: str) -> Container:
        self._made += 1
        made = Container(self.url, account, self._keys[account], f"reliability{self._made:05}")
        made.create()
        return made

    def project(self) -> Project:
        self._made += 1
        root = self._scratch / f"round{self._made:05}"
        home = root / "home"
        home.mkdir(parents=True)
        environ = {"HOME": str(home)}
        if found := installed_azcopy():
            environ["BLOBSYNC_AZCOPY"] = found
        return Project(root, environ)


@contextmanager
def ground(scratch: Path) -> Iterator[Ground]:
    """A fresh server, which ends with the block."""
    keys = {"one": new_key(), "two": new_key()}
    with Emulator(TOOLS).session(keys) as state:
        yield Ground(f"http://127.0.0.1:{state.port}", {name: key.reveal() for name, key in keys.items()}, scratch)


class Round:
    """One tree, one command, and all its runs."""

    def __init__(self, trial: Trial, place: Ground, seed: str, tally: Tally) -> None:
        self._trial = trial
        self._tally = tally
        self._chance = random.Random(seed)
        self._place = place
        self._files = random_files(
            self._chance.randrange(1 << 30),
            self._chance.randrange(40, 250),
            [self._chance.randrange(1, 40 * _MIB) for _ in range(self._chance.randrange(4))],
            folder_of=self._chance.choice((1, 7, 40, 1000)),
        )
        self._expected = hashes(self._files)
        self._project = place.project()
        self._ends = (place.container("one"), place.container("two"))

    def go(self) -> None:
        """Set the ends up, then run until done."""
        source, destination = self._ends
        if self._trial.route == "u":
            write_tree(self._project.data, self._files)
        else:
            for name, data in self._files.items():
                source.put(f"data/{name}", data)
        with copy_source_proxy(self._place.url) as copying, fault_proxy(copying.url) as line:
            for end, cluster in ((source, "from"), (destination, "aml")):
                self._project.configure(end, cluster=cluster, url=line.url, sas=end.sas("rwl"))
            if self._trial.route != "c":
                self._project.configure(source, url=line.url, sas=source.sas("rwl"))
            if self._trial.bad_weather:
                flipped = 0.03 if self._trial.flips else 0.0
                line.inject(*weather(flipped=flipped), seed=self._chance.randrange(1 << 30))
            self._runs(line)
            self._tally.injected.update(line.stats().injected)
        self._tally.rounds += 1
        self._tally.files += len(self._files)
        shutil.rmtree(self._project.root)

    def _runs(self, line: FaultHandle) -> None:
        for run in range(_MOST_RUNS):
            # A kill has to find work under way, which an emulator next door ends in a moment.
            slowly = ("--cap-mbps", "200") if run < self._trial.kills else ()
            process = self._project.start(*self._trial.words, *slowly, "--json")
            killed = run < self._trial.kills and self._kill(process.pid, line, lambda: process.poll() is None)  # noqa: B023
            done = self._project.finish(process)
            if killed:
                self._tally.injected["kill -9"] += 1
                self._demand(lambda: self._check_killed(done))  # noqa: B023
                continue
            self._demand(lambda: check_exact_or_honest(done, self._expected, self._arrived()))  # noqa: B023
            if done.code == 0:
                self._tally.exact += 1
                self._demand(self._check_nothing_left)
                return
            self._tally.honest += 1
        self._demand(lambda: self._never(done))

    def _kill(self, pid: int, line: FaultHandle, alive: Callable[[], bool]) -> bool:
        """kill -9 of the process group after a random number of further requests; False if it ended before."""
        target = line.stats().requests + self._chance.randrange(1, max(2, len(self._files) // 3))
        while alive() and line.stats().requests < target:
            time.sleep(0.002)
        family = [*processes(pid), pid]
        if not alive():
            return False
        kill_tree(pid)
        while any(Path(f"/proc/{each}/stat").exists() and _runs(each) for each in family):
            time.sleep(0.01)
        return True

    def _arrived(self) -> dict[str, str]:
        source, destination = self._ends
        if self._trial.route == "d":
            return read_tree(self._project.data)
        return (source if self._trial.route == "u" else destination).contents("data/")

    def _check_killed(self, done: Done) -> None:
        """Check that no unfinished file has a final name."""
        damaged = {
            name for name, found in self._arrived().items() if name in self._expected and found != self._expected[name]
        }
        assert not damaged, f"partial under a final name: {sorted(damaged)[:5]}\n{done}"

    def _check_nothing_left(self) -> None:
        assert self._arrived() == self._expected
        if self._trial.route != "d":
            end = self._ends[self._trial.route == "c"]
            assert set(end.names(uncommitted=True)) == set(end.names()), "blocks that were never committed"
        left = [file for file in self._project.root.rglob("*") if file.name.endswith(".part") or ".azDown" in file.name]
        assert not left, left

    def _never(self, done: Done) -> None:
        raise AssertionError(f"not done after {_MOST_RUNS} runs\n{done}")

    def _demand(self, check: Callable[[], None]) -> None:
        try:
            check()
        except AssertionError as error:
            self._tally.wrong.append(str(error))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def table(results: Mapping[str, Tally]) -> str:
    """Markdown, one row a trial and one for all."""
    rows = [
        "| | rounds | files | injected | runs that ended exact | runs that failed and named every file | wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    every = Tally()
    for title, tally in results.items():
        rows.append(_row(title, tally))
        every = replace(
            every,
            rounds=every.rounds + tally.rounds,
            files=every.files + tally.files,
            injected=every.injected + tally.injected,
            exact=every.exact + tally.exact,
            honest=every.honest + tally.honest,
            wrong=every.wrong + tally.wrong,
        )
    return "\n".join([*rows, _row("**all**", every)])


def _row(title: str, tally: Tally) -> str:
    kills = tally.injected["kill -9"]
    faults = tally.injected.total() - kills
    injected = " + ".join(text for count, text in ((faults, f"{faults} faults"), (kills, f"{kills} kills")) if count)
    cells = (title, tally.rounds, f"{tally.files:,}", injected or "-", tally.exact, tally.honest, len(tally.wrong))
    return "| " + " | ".join(map(str, cells)) + " |"


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-reliability-"))
    print(f"seed {options.seed}, {options.rounds} rounds of each trial", flush=True)
    results: dict[str, Tally] = {}
    for trial in TRIALS:
        if options.trial and not any(word in trial.title for word in options.trial):
            continue
        if "azcopy" in trial.words and installed_azcopy() is None:
            print(f"{trial.title}: left out, there is no azcopy", flush=True)
            continue
        tally = results[trial.title] = Tally()
        started = time.monotonic()
        # A server of its own for each trial: what Azurite holds makes it slower.
        with ground(scratch) as place:
            for number in range(options.rounds):
                Round(trial, place, f"{options.seed}/{trial.title}/{number}", tally).go()
        print(f"{_row(trial.title, tally)} {time.monotonic() - started:.0f} s", flush=True)
        for text in tally.wrong:
            print(text, file=sys.stderr)
    shutil.rmtree(scratch, ignore_errors=True)
    text = table(results)
    print(f"\n{text}")
    kinds = sum((tally.injected for tally in results.values()), Counter[str]())
    print(f"\n{kinds.total()} in all: {', '.join(f'{count} {kind}' for kind, count in sorted(kinds.items()))}")
    if options.write:
        command = f"python -m benchmarks.reliability --rounds {options.rounds} --seed {options.seed}"
        page = ROOT / "docs" / "reliability.md"
        if not write_into(page, _MARKER, f"{text}\n\n`{command}`"):
            print(f"{page.name} has no reliability markers", file=sys.stderr)
    return 1 if any(tally.wrong for tally in results.values()) else 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each trial (5; about a minute each)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="printed either way")
    parser.add_argument("--trial", action="append", help="only those whose title has this in it")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
