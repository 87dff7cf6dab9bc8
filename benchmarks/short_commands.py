"""The CPU time of short commands: ``python -m benchmarks.short_commands [--pairs N] [--against CHECKOUT]``.

Each command runs N times on the fast server, as a whole process, and with ``--against`` in turn with the blobsync of
another checkout, in the same project. Printed are medians, and the median of the ratios of the pairs: it holds on a
machine that does other things meanwhile, where the seconds do not.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.emulator import ACCOUNT, ROOT
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Place

_COMPLETE = {"_BLOBSYNC_COMPLETE": "complete_bash", "COMP_WORDS": "blobsync u da", "COMP_CWORD": "2"}
_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("u, one file of 1 KiB", ("u", "data/one.bin")),
    ("d, unchanged", ("d", "data/one.bin")),
    ("ls", ("ls", "data")),
    ("status", ("status",)),
    ("q", ("q",)),
    ("--help", ("--help",)),
    ("u --help", ("u", "--help")),
    ("completion of a PATH", ()),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.short_commands", description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with this one")
    options = parser.parse_args()
    trees = [ROOT, *([options.against.resolve()] if options.against else [])]
    with tempfile.TemporaryDirectory() as folder, fast_server() as server:
        local = Path(folder, "project", "data", "one.bin")
        local.parent.mkdir(parents=True)
        place = Place(f"{server.url}/{ACCOUNT}", server.new_container(), "base/one.bin", local, single=True)
        project = Blobsync(Path(folder)).project(place)
        for name, words in _COMMANDS:
            taken: list[list[float]] = [[] for _ in trees]
            for turn in range(options.pairs + 1):
                for number in range(len(trees)) if turn % 2 else reversed(range(len(trees))):
                    if name.startswith("u,"):
                        local.write_bytes(os.urandom(1024))
                    seconds = _run(trees[number], words, project, Path(folder))
                    # The first compiles modules, and makes the state folder.
                    taken[number] += [seconds] if turn else []
            shown = [f"{median(each) * 1000:.0f} ms" for each in taken]
            if len(trees) > 1:
                shown.append(f"ratio {median(here / there for here, there in zip(*taken, strict=True)):.2f}")
            print(f"{name:24}{', '.join(shown)}", flush=True)


def _run(tree: Path, words: tuple[str, ...], project: Path, home: Path) -> float:
    """User and system seconds of one command."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPATH": str(tree), "HOME": str(home), **({} if words else _COMPLETE)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [str(Path(sys.executable).with_name("blobsync")), *words]
    subprocess.run(argv, cwd=project, env=environ, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
