"""The benchmark: ``python -m benchmarks.run [--quick] [--case KEY ...]``; ``./dev bench`` calls it.

Every round runs each tool once, in turns, and ratios are medians over the rounds, so that a noisy machine disturbs
both sides alike. After each run everything is counted at the destination. blobsync's time has its verification in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import charts
from benchmarks.bench import CaseRun
from benchmarks.cases import AZURITE, CASES, EVERYBODY, FAST, PROGRAMS, Case
from benchmarks.crossover import CURVE, crossover, curve_table
from benchmarks.emulator import ROOT
from benchmarks.measure import Series
from benchmarks.report import ratios_table, summary_table, table, write_into
from benchmarks.tools import Tool, all_tools
from benchmarks.trees import remove_aside

Results = list[tuple[Case, list[Series]]]

_INTRODUCTION = """\
Each case runs on two servers, both in memory on this machine, one busy thread each, on the same cores as the clients:
Azurite, which checks what it is told, and the fast one (benchmarks/fast_blob_server.js), which takes a tenth of the
time. 'server' is how busy that thread was: near 100 % the row says more of the server than of the tool."""


def main(argv: list[str] | None = None) -> int:
    options = _parse(argv)
    results: Results = []
    began = time.monotonic()
    scratch = Path(options.work or tempfile.gettempdir()) / "blobsync-benchmarks"
    scratch.mkdir(parents=True, exist_ok=True)
    tools, missing = all_tools(scratch, options.blobsync.split() if options.blobsync else None)
    versions = {name: tool.version() for name, tool in tools.items()}
    print(_INTRODUCTION, *(f"{name}: {version}" for name, version in versions.items()), *missing, sep="\n")
    rounds = options.rounds or (3 if options.quick or options.crossover else 5)
    target = Path(options.json or scratch / ("crossover.json" if options.crossover else "results.json"))
    facts = {"versions": versions, "missing": missing, "rounds": rounds}
    every = CURVE if options.crossover else CASES
    wanted = [_quick(case) if options.quick else case for case in every if _is_wanted(case, options)]
    measure = crossover if options.crossover else _measure
    # Rows that are not measured now stay as they were, so that one can be measured again by itself.
    measured = {case.key: (case, series) for case, series in _earlier(target, every)}
    for case, series in measure(wanted, tools, scratch, rounds):
        measured[case.key] = (case, series)
        results = [measured[known.key] for known in every if known.key in measured]
        _save(target, results, facts)
    remove_aside(scratch / "aside")
    print(f"\n{time.monotonic() - began:.0f} s in all; every sample is in {target}")
    if options.crossover:
        print(curve_table(results))
    if options.write:
        shutil.copyfile(target, ROOT / "docs" / f"performance-{target.stem}.json")
    return _tables(results) if options.write and not options.crossover else 0


def _is_wanted(case: Case, options: argparse.Namespace) -> bool:
    if options.server and case.server != options.server:
        return False
    if options.case:
        key = case.key.partition("@")[0]
        return any(key == wanted or key.startswith(f"{wanted}-") for wanted in options.case)
    return case.quick or not options.quick


def _measure(
    cases: Sequence[Case], tools: Mapping[str, Tool], scratch: Path, rounds: int
) -> Iterator[tuple[Case, list[Series]]]:
    for case in cases:
        series = CaseRun(case, tools, scratch).work(rounds)
        print(table(case, series), flush=True)
        yield case, series


def _quick(case: Case) -> Case:
    """The case without the libraries, the slowest with many files."""
    return replace(case, tools=PROGRAMS) if case.tools == EVERYBODY and not case.tree.single else case


def _earlier(file: Path, cases: Sequence[Case]) -> Results:
    if not file.exists():
        return []
    known = {case.key: case for case in cases}
    raw = json.loads(file.read_text())["cases"]
    return [
        (known[each["key"]], [Series.from_json(one) for one in each["series"]]) for each in raw if each["key"] in known
    ]


def _save(file: Path, results: Results, facts: dict[str, Any]) -> None:
    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()}
    cases = [
        {
            "key": case.key,
            "title": case.title,
            "targets": dict(case.targets),
            "series": [one.as_json() for one in series],
        }
        for case, series in results
    ]
    file.write_text(json.dumps({"machine": machine, **facts, "cases": cases}, indent=1) + "\n")


def _tables(results: Results) -> int:
    page = ROOT / "docs" / "performance.md"
    written = _write(ROOT / "README.md", "benchmark", summary_table(results))
    return written or _write(page, "benchmark", ratios_table(results)) or charts.main()


def _write(file: Path, marker: str, text: str) -> int:
    if write_into(file, marker, text):
        return 0
    print(f"{file.name} has no place for the {marker} table", file=sys.stderr)
    return 1


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer cases, three rounds, under three minutes")
    parser.add_argument("--crossover", action="store_true", help="direct beside azcopy, for the planner's choice")
    parser.add_argument("--case", action="append", help="only this one (its key, or the beginning of it)")
    parser.add_argument("--server", choices=(AZURITE, FAST), help="only on this one (default: on both)")
    parser.add_argument("--rounds", type=int, help="turns of each tool (5; 3 with --quick)")
    parser.add_argument("--json", help="where the samples go")
    parser.add_argument("--write", action="store_true", help="put it into docs/performance.md, 5 rows in README.md")
    parser.add_argument("--work", help="a folder with room for 10 GB (default: the temporary folder)")
    parser.add_argument("--blobsync", help="the command to measure")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
