"""Runs ``blobsync`` with the arguments after the first, each thread under the profiler: ``profiled.py OUTPUT WORD...``.

Writes to OUTPUT as JSON what each function took, waiting left out, and its calls: those of it, and those of what is not
Python by it. A process of its own, so that start-up counts.
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


def _taken() -> dict[str, tuple[float, int, int]]:
    """Seconds, calls, and calls of what is not Python by ``folder/file:function``.

    What is not Python counts for the function that called it.
    """
    taken: dict[str, tuple[float, int, int]] = defaultdict(lambda: (0.0, 0, 0))

    def add(file: str, function: str, seconds: float, python: int, native: int) -> None:
        name = f"{'/'.join(Path(file).parts[-2:])}:{function}"
        known = taken[name]
        taken[name] = known[0] + seconds, known[1] + python, known[2] + native

    for profile in _profiles:
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        for (file, _, function), (_, calls, own, _, callers) in stats.items():
            if file != "~":
                add(file, function, own, calls, 0)
                continue
            waits = any(wait in function for wait in _WAITING)
            for (caller, _, name), (_, native, part, _) in callers.items():
                add(caller, name, 0.0 if waits else part, 0, native)
    return taken


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
