"""Tables from measurements: all figures for the terminal, ratios for docs/performance.md, few for the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cases import AZURITE, FAST, PROGRAMS, Case
from benchmarks.measure import Series, paired_ratio

SERVERS = {AZURITE: "Azurite", FAST: "the fast server"}

# What the README shows.
IN_SHORT = tuple(f"{key}@{FAST}" for key in ("1k-up", "300m-up", "2000-up", "20000-down", "4g-down"))

# Above this share of one core the server's single thread sets the pace, and a real account would be faster.
_LIMITED_BY_SERVER = 0.9


def table(case: Case, series: Sequence[Series]) -> str:
    """One case, every tool."""
    ours = series[0]
    lines = [f"\n{case.title}  (on {SERVERS[case.server]}, n = {len(ours.samples)})"]
    lines.append(f"  {'':10} {'median s':>9} {'min-max':>15} {'ours/it':>8} {'CPU s':>7} {'server':>7} {'peak MB':>8}")
    for one in series:
        ratio = "" if one is ours else f"{paired_ratio(ours, one):.2f}"
        busy = one.median("server_busy")
        limited = " (the server sets the pace)" if busy > _LIMITED_BY_SERVER else ""
        lines.append(
            f"  {one.tool:10} {one.median('wall'):9.3f} {min(one.walls):7.3f}-{max(one.walls):7.3f} {ratio:>8} "
            f"{one.median('cpu'):7.2f} {busy:7.0%} {one.median('peak_mb'):8.0f}{limited}"
        )
    for peer, target in case.targets.items():
        found = next((one for one in series if one.tool == peer), None)
        if found is None:
            lines.append(f"  target {target:g} of {peer}: not measured, {peer} is not there")
        else:
            ratio_found = paired_ratio(ours, found)
            word = "met" if ratio_found <= target else "MISSED"
            lines.append(f"  target {target:g} of {peer}: {ratio_found:.2f}, {word}")
    return "\n".join(lines)


def summary_table(results: Sequence[tuple[Case, Sequence[Series]]]) -> str:
    """Markdown for the README: seconds of each program in a few cases, some of which rclone wins."""
    found = {case.key: _seconds(case, series) for case, series in results}
    rows = [f"| {' | '.join(found[key])} |" for key in IN_SHORT if key in found]
    return "\n".join(["| | blobsync | azcopy | rclone |", "|---|---|---|---|", *rows])


def ratios_table(results: Sequence[tuple[Case, Sequence[Series]]]) -> str:
    """Markdown for docs/performance.md: seconds of each program on the fast server, and blobsync's ratios."""
    rows = ["| | blobsync | azcopy | rclone | vs azcopy | vs rclone |", "|---|---|---|---|---|---|"]
    for case, series in results:
        by_tool = {one.tool: one for one in series}
        title, *seconds = _seconds(case, series)
        ratios = [_ratio_cell(case, series[0], by_tool.get(peer), peer) for peer in ("azcopy", "rclone")]
        if case.action != "start" and case.server == FAST:
            rows.append("| " + " | ".join((title, *seconds, *ratios)) + " |")
    return "\n".join(rows)


def _seconds(case: Case, series: Sequence[Series]) -> list[str]:
    by_tool = {one.tool: f"{one.median('wall'):.2f} s" for one in series}
    return [case.title, *(by_tool.get(tool, "-") for tool in PROGRAMS)]


def _ratio_cell(case: Case, ours: Series, peer: Series | None, name: str) -> str:
    if peer is None:
        return "-"
    ratio = paired_ratio(ours, peer)
    target = case.targets.get(name)
    return f"{ratio:.2f}" if target is None or ratio <= target else f"{ratio:.2f} (target {target:g})"


def write_into(file: Path, marker: str, text: str) -> bool:
    """Put ``text`` between the comments ``marker: begin`` and ``marker: end`` of ``file``; False without them."""
    begin, end = f"<!-- {marker}: begin -->", f"<!-- {marker}: end -->"
    whole = file.read_text() if file.exists() else ""
    before, found, rest = whole.partition(begin)
    _, also, after = rest.partition(end)
    if not found or not also:
        return False
    file.write_text(f"{before}{begin}\n{text}\n{end}{after}")
    return True
