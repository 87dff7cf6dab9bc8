"""The size from which azcopy is worth its start-up time: ``python -m benchmarks.run --crossover``.

The same work once with ``--engine direct`` and once with ``--engine azcopy``, in turns, for growing numbers of files
and bytes. ``python -m benchmarks.engine_fit`` fits the model that chooses an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.bench import CaseRun
from benchmarks.cases import KIB, MIB, Case
from benchmarks.measure import Series, paired_ratio
from benchmarks.tools import Blobsync, Tool
from benchmarks.trees import Tree

GRID = (
    Tree(1, KIB),
    Tree(1, 8 * MIB),
    Tree(1, 64 * MIB),
    Tree(1, 512 * MIB),
    Tree(10, 100 * MIB),
    Tree(20, 100 * MIB),
    Tree(40, 100 * MIB),
    Tree(100, 4 * KIB),
    Tree(100, MIB),
    Tree(1_000, 4 * KIB),
    Tree(1_000, MIB),
    Tree(5_000, 4 * KIB),
    Tree(20_000, 4 * KIB),
    Tree(50_000, 4 * KIB),
)
# Over plain http what azcopy uploaded is read back; over TLS, as with a real account, it is not.
TLS_GRID = (
    Tree(10, 100 * MIB),
    Tree(20, 100 * MIB),
    Tree(40, 100 * MIB),
    Tree(20_000, 4 * KIB),
)


class Forced(Blobsync):
    """blobsync with one engine."""

    def __init__(self, scratch: Path, program: list[str], engine: str) -> None:
        super().__init__(scratch, program)
        self.name = engine
        self._words = {"up": ["u", "--engine", engine], "down": ["d", "--engine", engine]}

    def words(self, action: str) -> list[str]:
        return self._words[action]


def crossover(
    cases: Sequence[Case], tools: Mapping[str, Tool], scratch: Path, rounds: int
) -> Iterator[tuple[Case, list[Series]]]:
    """Measure and print the curve, line by line."""
    ours = tools["blobsync"]
    assert isinstance(ours, Blobsync)
    both: dict[str, Tool] = {name: Forced(scratch, ours.program, name) for name in ("direct", "azcopy")}
    both["blobsync"] = ours
    print(f"\n{'':32} {'direct s':>9} {'azcopy s':>9} {'ratio':>6} {'CPU direct':>11} {'CPU azcopy':>11}")
    for case in cases:
        series = CaseRun(case, both, scratch).work(rounds)
        direct, azcopy = series
        print(
            f"{case.title:32} {direct.median('wall'):9.2f} {azcopy.median('wall'):9.2f} "
            f"{paired_ratio(direct, azcopy):6.2f} {direct.median('cpu'):11.2f} {azcopy.median('cpu'):11.2f}",
            flush=True,
        )
        yield case, series


def curve_table(results: Sequence[tuple[Case, Sequence[Series]]]) -> str:
    """The curve, as a table."""
    rows = ["| | direct s | azcopy s | direct / azcopy | CPU s direct | CPU s azcopy |", "|---|---|---|---|---|---|"]
    for case, (direct, azcopy) in results:
        rows.append(
            f"| {case.title} | {direct.median('wall'):.2f} | {azcopy.median('wall'):.2f} "
            f"| {paired_ratio(direct, azcopy):.2f} | {direct.median('cpu'):.2f} | {azcopy.median('cpu'):.2f} |"
        )
    return "\n".join(rows)


def _size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count // KIB} KiB"


def _cases(trees: Sequence[Tree], *, tls: bool = False) -> Iterator[Case]:
    for tree in trees:
        for action in ("up", "down"):
            key = f"{'tls-' if tls else ''}{tree.name}-{action}"
            title = f"{tree.files:,} x {_size(tree.size)}{' over TLS' if tls else ''}, {action}"
            # What one engine has put there makes the server slower for the other, and takes its memory.
            fresh = action == "up" and (tree.files > 1_000 or tree.files * tree.size > 1024 * MIB)
            yield Case(key, title, action, tree, ("direct", "azcopy"), fresh_server=fresh, tls=tls)


CURVE = (*_cases(GRID), *_cases(TLS_GRID, tls=True))
