"""The time of short commands: ``python -m benchmarks.short_commands [--pairs N] [--against CHECKOUT | --rclone]``.

Each command runs N times on the fast server, as a whole process. With ``--against`` it runs in turn with the blobsync
of another checkout, each in its own project (an earlier version refuses the state of a newer one), and what is compared
is CPU time: the median of the ratios of the pairs holds on a machine that does other things meanwhile, where the
seconds do not. With ``--rclone`` it runs in turn with what is nearest to it in rclone, and what is compared is seconds
on the clock, which need a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.emulator import ACCOUNT, ROOT
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Command, Place, Tool, all_tools

_COMPLETE = {"_BLOBSYNC_COMPLETE": "complete_bash", "COMP_WORDS": "blobsync u da", "COMP_CWORD": "2"}


class Short(NamedTuple):
    """``words`` of blobsync; ``peer``: rclone's action of the benchmark, or its words."""

    name: str
    words: tuple[str, ...]
    peer: str | tuple[str, ...] | None = None


_COMMANDS = (
    Short("u, one file of 1 KiB", ("u", "data/one.bin"), "up"),
    Short("d, unchanged", ("d", "data/one.bin"), "down"),
    Short("ls", ("ls", "data"), "list"),
    Short("status", ("status",)),
    Short("q", ("q",)),
    Short("--help", ("--help",), ("--help",)),
    Short("u --help", ("u", "--help"), ("copy", "--help")),
    Short("completion of a PATH", (), ("__complete", "copy", "da")),
)


class Taken(NamedTuple):
    """Of one command: seconds of CPU, user and system, and on the clock."""

    cpu: float
    wall: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.short_commands", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--against", type=Path, help="another checkout, to be compared with this one")
    other.add_argument("--rclone", action="store_true", help="compare with rclone")
    options = parser.parse_args()
    scratch = Path(tempfile.gettempdir()) / "blobsync-benchmarks"
    scratch.mkdir(parents=True, exist_ok=True)
    rclone = all_tools(scratch, None)[0]["rclone"] if options.rclone else None
    trees = [ROOT, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory() as folder, fast_server() as server:
        homes = [Path(folder, str(number)) for number in range(len(trees))]
        files = [*(Path(home, "project", "data", "one.bin") for home in homes), Path(folder, "apart.bin")]
        # Blobs of their own: blobsync replaces none that another program has written meanwhile.
        url = f"{server.url}/{ACCOUNT}"
        places = [Place(url, server.new_container(), "base/one.bin", file, single=True) for file in files]
        for file in files:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(os.urandom(1024))
        projects = [Blobsync(home).project(place) for home, place in zip(homes, places, strict=False)]
        for one in _COMMANDS:
            rows = [_ours(tree, one.words, project) for tree, project in zip(trees, projects, strict=True)]
            if rclone is not None and one.peer is not None:
                rows.append(_theirs(rclone, one.peer, places[-1]))
            taken: list[list[Taken]] = [[] for _ in rows]
            for turn in range(options.pairs + 1):
                for number in range(len(rows)) if turn % 2 else reversed(range(len(rows))):
                    if one.words[:1] == ("u",):
                        files[number].write_bytes(os.urandom(1024))
                    found = _timed(rows[number], Path(folder))
                    # The first compiles modules, and makes the state folder.
                    taken[number] += [found] if turn else []
            print(f"{one.name:24}{', '.join(_shown(taken, by_clock=options.rclone))}", flush=True)


def _ours(tree: Path, words: tuple[str, ...], project: Path) -> Command:
    argv = [str(Path(sys.executable).with_name("blobsync")), *words]
    return Command(argv, {"PYTHONPATH": str(tree), **({} if words else _COMPLETE)}, project)


def _theirs(rclone: Tool, peer: str | tuple[str, ...], place: Place) -> Command:
    if isinstance(peer, str):
        return rclone.command(peer, place)
    command = rclone.command("list", place)
    return Command([command.argv[0], *peer], command.env)


def _timed(command: Command, home: Path) -> Taken:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environ |= {"HOME": str(home), **command.env}
    subprocess.run(command.argv, cwd=command.cwd, env=environ, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def _shown(taken: list[list[Taken]], *, by_clock: bool) -> Iterator[str]:
    seconds: Callable[[Taken], float] = (lambda each: each.wall) if by_clock else (lambda each: each.cpu)
    columns = [[seconds(each) for each in row] for row in taken]
    yield from (f"{median(column) * 1000:.0f} ms" for column in columns)
    if len(columns) > 1:
        yield f"ratio {median(here / there for here, there in zip(*columns, strict=True)):.2f}"


if __name__ == "__main__":
    main()
