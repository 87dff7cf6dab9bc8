"""Fits what an engine costs: ``python -m benchmarks.engine_fit [--write]``.

On the fast server, over plain http and over TLS, both ways: ``--engine direct``, ``--engine azcopy``, and azcopy by
itself, with one tiny file, with many small ones and with a few large ones. Counted is CPU time, which a loaded machine
hardly changes. ``--write`` puts the figures where the model reads them (``blobsync/plan/engine_costs.py``).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.bench import CaseRun
from benchmarks.cases import FAST, KIB, MIB, Case
from benchmarks.crossover import Forced
from benchmarks.emulator import ROOT
from benchmarks.tools import Blobsync, Tool, all_tools
from benchmarks.trees import Tree, remove_aside
from blobsync.plan.engine_model import EngineCost

_TINY, _SMALL, _LARGE = Tree(1, KIB), Tree(10_000, 4 * KIB), Tree(40, 25 * MIB)
_SERIES = ("direct", "azcopy", "alone")
_TARGET = ROOT / "blobsync" / "plan" / "engine_costs.py"

_HEAD = '''"""The costs of each engine, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is the cost of azcopy
itself, on all cores; ``around`` that of blobsync's work for it: hashing, checking, recording.
"""

from __future__ import annotations

COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
'''


def fit(scratch: Path, program: list[str] | None, rounds: int, small: int) -> dict[tuple[str, str, bool], EngineCost]:
    """Measure, and solve for the three figures of each."""
    tools, missing = all_tools(scratch, program)
    ours = tools["blobsync"]
    assert isinstance(ours, Blobsync) and "azcopy" in tools, missing
    runs: dict[str, Tool] = {name: Forced(scratch, ours.program, name) for name in ("direct", "azcopy")}
    runs |= {"alone": tools["azcopy"], "blobsync": ours}
    trees = {"tiny": _TINY, "small": Tree(small, _SMALL.size), "large": _LARGE}
    found: dict[tuple[str, str, bool], EngineCost] = {}
    for tls in (False, True):
        for action in ("up", "down"):
            cpu = {name: _measured(runs, tree, action, scratch, rounds, tls=tls) for name, tree in trees.items()}
            costs = {name: _solved({tree: of[name] for tree, of in cpu.items()}, trees) for name in _SERIES}
            pairs = zip(costs["azcopy"], costs["alone"], strict=True)
            around = EngineCost(*(max(both - itself, 0.0) for both, itself in pairs))
            for engine, cost in (("direct", costs["direct"]), ("azcopy", costs["alone"]), ("around", around)):
                found[engine, action, tls] = cost
                print(_line(engine, action, cost, tls=tls), flush=True)
    return found


def _measured(
    tools: Mapping[str, Tool], tree: Tree, action: str, scratch: Path, rounds: int, *, tls: bool
) -> Mapping[str, float]:
    # A first run may have to compile our modules.
    case = Case(f"{tree.name}-{action}", "", action, tree, _SERIES, tls=tls, server=FAST)
    turns = max(rounds, 3) if tree == _TINY else rounds
    return {series.tool: series.median("cpu") for series in CaseRun(case, tools, scratch).work(turns)}


def _solved(cpu: Mapping[str, float], trees: Mapping[str, Tree]) -> EngineCost:
    start = cpu["tiny"]
    small, large = trees["small"], trees["large"]
    file = max(cpu["small"] - start, 0.0) / small.files
    byte = max(cpu["large"] - start - large.files * file, 0.0) / (large.files * large.size)
    return EngineCost(start, file, byte)


def _line(engine: str, action: str, cost: EngineCost, *, tls: bool) -> str:
    figures = f"{cost.start:.2f}, {cost.file * 1e3:.3f}e-3, {cost.byte * 1e9:.2f}e-9"
    return f'    ("{engine}", "{action}", {tls}): ({figures}),'


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_fit", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each tool (3)")
    parser.add_argument("--files", type=int, default=_SMALL.files, help=f"how many small files ({_SMALL.files:,})")
    parser.add_argument("--write", action="store_true", help=f"rewrite {_TARGET.name}")
    parser.add_argument("--work", help="a folder with room for 5 GB (default: the temporary folder)")
    parser.add_argument("--blobsync", help="the command to measure")
    options = parser.parse_args(argv)
    scratch = Path(options.work or tempfile.gettempdir()) / "blobsync-benchmarks"
    scratch.mkdir(parents=True, exist_ok=True)
    found = fit(scratch, options.blobsync.split() if options.blobsync else None, options.rounds, options.files)
    remove_aside(scratch / "aside")
    if options.write:
        lines = [_line(engine, action, cost, tls=tls) for (engine, action, tls), cost in found.items()]
        _TARGET.write_text(_HEAD + "\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
