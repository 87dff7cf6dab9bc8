"""Runs ``blobsync`` with the arguments after the first, each thread under the profiler: ``profiled.py OUTPUT WORD...``.

Writes to OUTPUT as JSON what each function took, waiting left out. A process of its own, so that start-up counts.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sys
import threading
from collections import defaultdict
from pathlib import Path

_WAITING = ("'acquire'", "'select'", "sleep", "select.")

_profiles: list[cProfile.Profile] = []


def _profile(*_: object) -> None:
    """Called in each new thread; the profiler takes its place."""
    _profiles.append(cProfile.Profile())
    _profiles[-1].enable()


def _taken() -> dict[str, float]:
    """Seconds by ``folder/file:function``; what is not Python counts for the function that called it."""
    taken: dict[str, float] = defaultdict(float)
    for profile in _profiles:
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        for (file, _, function), (_, _, own, _, callers) in stats.items():
            if file != "~":
                taken[_named(file, function)] += own
                continue
            if any(wait in function for wait in _WAITING):
                continue
            for (caller, _, name), (_, _, part, _) in callers.items():
                taken[_named(caller, name)] += part
    return taken


def _named(file: str, function: str) -> str:
    return f"{'/'.join(Path(file).parts[-2:])}:{function}"


def main(output: str, *words: str) -> int:
    threading.setprofile(_profile)
    _profile()
    from blobsync.cli.main import main as blobsync

    code = blobsync(words)
    _profiles[0].disable()
    Path(output).write_text(json.dumps(_taken()), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
