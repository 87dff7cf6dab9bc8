"""Speed with several nodes: ``python -m benchmarks.spread [--rounds 5] [--files 100000] [--most 2]``.

Uploads and downloads of files of 16 KiB to and from the fast server with ``--nodes`` 1 and more of ``local``, in turn.
Each node is one worker here. The time is that of the whole command: the plan, the job's start and end, and the look at
the files in the end are in it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import CaseRun
from benchmarks.cases import FAST, Case
from benchmarks.measure import paired_ratio
from benchmarks.tools import Blobsync, Command, Place
from benchmarks.trees import Tree

_SIZE = 16 * 1024


class Nodes(Blobsync):
    """blobsync with that many nodes of this machine."""

    def __init__(self, scratch: Path, count: int) -> None:
        super().__init__(scratch)
        self.name = str(count)

    def command(self, action: str, place: Place) -> Command:
        command = super().command(action, place)
        return replace(command, argv=[*command.argv, "--nodes", self.name])


def main(argv: list[str]) -> None:
    options = _parse(argv)
    names = tuple(str(count) for count in range(1, options.most + 1))
    tree = Tree(options.files, _SIZE)
    for way in ("up", "down"):
        case = Case(f"spread-{way}", way, way, tree, names, server=FAST)
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            tools = {"blobsync": Blobsync(scratch), **{name: Nodes(scratch, int(name)) for name in names}}
            found = CaseRun(case, tools, scratch).work(options.rounds)
        print(f"{options.files:,} files of 16 KiB, {way}")
        for series in found:
            gain = 1 / paired_ratio(series, found[0])
            busy = series.median("server_busy")
            print(f"  {series.tool} nodes: {series.median('wall'):6.2f} s, {gain:.2f} times as fast as one; ", end="")
            print(f"server busy {busy:.0%}", flush=True)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spread", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--most", type=int, default=2, help="nodes at most")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
