"""The cases of the benchmark and their targets: ratios of whole-process wall time, blobsync's over the peer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.trees import Tree

KIB = 1024
MIB = 1024 * KIB

ONE_SMALL = Tree(1, KIB)
ONE_MEDIUM = Tree(1, 8 * MIB)
ONE_LARGE = Tree(1, 300_000_000)
WAN_MANY = Tree(500, 4 * KIB)
MANY = Tree(2_000, 4 * KIB)
VERY_MANY = Tree(20_000, 16 * KIB)
VERY_MANY_TINY = Tree(20_000, KIB)
BULK = Tree(40, 100_000_000)

EVERYBODY = ("blobsync", "azcopy", "rclone", "sdk", "obstore")
PROGRAMS = ("blobsync", "azcopy", "rclone")

# The emulator, correct and slow; and ``fast_blob_server.js``, fast enough not to be the bottleneck.
AZURITE, FAST = "azurite", "fast"


@dataclass(frozen=True)
class Case:
    """One row of the table. ``action`` is up, down, sync-up, sync-down (nothing changed), delta, list, or start.

    ``words`` are added to blobsync's command; with ``start`` they are all of it. ``server`` is ``AZURITE`` or ``FAST``.
    """

    key: str
    title: str
    action: str
    tree: Tree
    tools: tuple[str, ...] = EVERYBODY
    targets: Mapping[str, float] = field(default_factory=dict)
    round_trip_ms: float = 0.0
    changed: int = 0
    words: tuple[str, ...] = ()
    quick: bool = False
    fresh_server: bool = False
    tls: bool = False
    server: str = AZURITE


def _both(
    key: str, title: str, tree: Tree, up: Mapping[str, float], down: Mapping[str, float], **more: object
) -> list[Case]:
    return [
        Case(f"{key}-up", f"{title}, up", "up", tree, targets=up, **more),  # type: ignore[arg-type]
        Case(f"{key}-down", f"{title}, down", "down", tree, targets=down, **more),  # type: ignore[arg-type]
    ]


def _by_azcopy(key: str, title: str, *, tls: bool = False) -> list[Case]:
    words, tools, aim = ("--engine", "azcopy"), ("blobsync", "azcopy"), {"azcopy": 1.0}
    return [
        Case(f"{key}-up", title.format("up"), "up", BULK, tools, aim, words=words, fresh_server=True, tls=tls),
        Case(f"{key}-down", title.format("down"), "down", BULK, tools, aim, words=words, tls=tls),
    ]


_ON_AZURITE = (
    Case(
        "help", "`--help`", "start", ONE_SMALL, ("blobsync", "python"), {"python": 9.0}, words=("--help",), quick=True
    ),
    Case(
        "resolve",
        "`resolve data/x`",
        "start",
        ONE_SMALL,
        ("blobsync", "python"),
        {"python": 9.0},
        words=("resolve", "data/x"),
        quick=True,
    ),
    *_both(
        "1k",
        "one file of 1 KiB",
        ONE_SMALL,
        {"azcopy": 0.12},
        {"azcopy": 0.12},
        quick=True,
    ),
    *_both(
        "8m",
        "one file of 8 MiB",
        ONE_MEDIUM,
        {"azcopy": 0.18, "rclone": 2.0},
        {"azcopy": 0.18, "rclone": 2.0},
        quick=True,
    ),
    *_both("300m", "one file of 300 MB", ONE_LARGE, {"azcopy": 0.75, "rclone": 0.75}, {"azcopy": 0.75}),
    *_both(
        "2000",
        "2,000 files of 4 KiB",
        MANY,
        {"azcopy": 0.7, "rclone": 0.65},
        {"azcopy": 0.7, "rclone": 0.9},
        quick=True,
    ),
    *_both("1k-tls", "one file of 1 KiB over TLS", ONE_SMALL, {}, {}, tools=PROGRAMS, tls=True),
    *_both(
        "2000-tls",
        "2,000 files of 4 KiB over TLS",
        MANY,
        {"azcopy": 0.7, "rclone": 0.7},
        {"azcopy": 0.7, "rclone": 1.0},
        tools=PROGRAMS,
        tls=True,
    ),
    # What one tool has put there makes the server slower for the next one.
    Case(
        "20000-up",
        "20,000 files of 16 KiB, up",
        "up",
        VERY_MANY,
        PROGRAMS,
        {"azcopy": 0.75, "rclone": 0.8},
        fresh_server=True,
    ),
    Case(
        "20000-down",
        "20,000 files of 16 KiB, down",
        "down",
        VERY_MANY,
        PROGRAMS,
        {"azcopy": 0.75, "rclone": 0.8},
    ),
    Case("4g-up", "4 GB in 40 files, up", "up", BULK, ("blobsync", "azcopy"), {"azcopy": 0.75}, fresh_server=True),
    Case("4g-down", "4 GB in 40 files, down", "down", BULK, ("blobsync", "azcopy"), {"azcopy": 0.9}),
    *_by_azcopy("4g-azcopy", "4 GB in 40 files, {}, `--engine azcopy`"),
    *_by_azcopy("4g-azcopy-tls", "4 GB in 40 files over TLS, {}, `--engine azcopy`", tls=True),
    Case(
        "same-2000-up",
        "nothing changed, 2,000 files, up",
        "sync-up",
        MANY,
        PROGRAMS,
        {"azcopy": 0.3, "rclone": 1.4},
        quick=True,
    ),
    Case(
        "same-2000-down",
        "nothing changed, 2,000 files, down",
        "sync-down",
        MANY,
        PROGRAMS,
        {"azcopy": 0.3, "rclone": 1.4},
    ),
    Case(
        "same-20000-up",
        "nothing changed, 20,000 files, up",
        "sync-up",
        VERY_MANY_TINY,
        PROGRAMS,
        {"azcopy": 0.5, "rclone": 0.8},
    ),
    Case(
        "same-20000-down",
        "nothing changed, 20,000 files, down",
        "sync-down",
        VERY_MANY_TINY,
        PROGRAMS,
        {"azcopy": 0.5, "rclone": 0.8},
    ),
    Case(
        "delta",
        "50 files changed in 20,000, up",
        "delta",
        VERY_MANY_TINY,
        PROGRAMS,
        {"azcopy": 0.55, "rclone": 0.8},
        changed=50,
    ),
    Case("list", "`ls -r` of 20,000", "list", VERY_MANY_TINY, EVERYBODY, {"azcopy": 1.0, "rclone": 0.85}),
    *_both(
        "wan-500",
        "500 files of 4 KiB at 40 ms",
        WAN_MANY,
        {"azcopy": 0.35, "rclone": 0.7},
        {"azcopy": 0.75, "rclone": 1.5},
        round_trip_ms=40.0,
        quick=True,
    ),
    *_both("wan-8m", "one file of 8 MiB at 40 ms", ONE_MEDIUM, {}, {}, tools=PROGRAMS, round_trip_ms=40.0),
)

CASES = tuple(
    one
    for case in _ON_AZURITE
    for one in (case, replace(case, key=f"{case.key}@{FAST}", server=FAST))
    if one is case or case.action != "start"
)
