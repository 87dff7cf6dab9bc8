"""Speed with several worker processes: ``python -m benchmarks.processes [--rounds 5] [--files 20000] [--most 2]``.

Uploads and downloads of files of 16 KiB on the fast server with ``--processes`` 1 and more, and without, in turn: then
blobsync decides by itself, and must not be slower than one process by more than 3 %. The server runs on
the same cores, and takes its share of them: "server elsewhere" is the speed-up that the CPU times allow if it did not,
with a core for each process.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import CaseRun
from benchmarks.cases import FAST, Case
from benchmarks.measure import Series, paired_ratio
from benchmarks.tools import Blobsync, Command, Place
from benchmarks.trees import Tree

_SIZE = 16 * 1024
_ITSELF = "default"


class Processes(Blobsync):
    """blobsync with that many processes, or as many as it takes by itself."""

    def __init__(self, scratch: Path, name: str) -> None:
        super().__init__(scratch)
        self.name = name

    def command(self, action: str, place: Place) -> Command:
        command = super().command(action, place)
        processes = [] if self.name == _ITSELF else ["--processes", self.name]
        return replace(command, argv=[*command.argv, "--engine", "direct", *processes])


def main(argv: list[str]) -> None:
    options = _parse(argv)
    names = (*(str(count) for count in range(1, options.most + 1)), _ITSELF)
    for action in ("up", "down"):
        tree = Tree(options.files, _SIZE)
        case = Case(f"processes-{action}", action, action, tree, names, tls=options.tls, server=FAST)
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            tools = {"blobsync": Blobsync(scratch), **{name: Processes(scratch, name) for name in names}}
            found = CaseRun(replace(case, fresh_server=action == "up"), tools, scratch).work(options.rounds)
        _show(action, options.files, found)


def _show(action: str, files: int, found: list[Series]) -> None:
    one = found[0]
    print(f"{files:,} files of 16 KiB, {action}")
    for series in found:
        wall, cpu = series.median("wall"), series.median("cpu")
        print(f"  {series.tool:>7}: {wall:6.2f} s, {paired_ratio(series, one):.2f} of the time of one;", end=" ")
        print(f"CPU {cpu:6.2f} s, {cpu / files * 1e3:.3f} ms a file;", end=" ")
        print(f"server busy {series.median('server_busy'):.0%}", end="")
        if series.tool != _ITSELF:
            print(f"; server elsewhere: {one.median('cpu') / (cpu / int(series.tool)):.2f} times as fast", end="")
        print(flush=True)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--most", type=int, default=2, help="up to so many processes")
    parser.add_argument("--tls", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
