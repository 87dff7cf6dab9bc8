"""Runs ``blobsync`` with the arguments after the first (``sampled.py OUTPUT WORD...``), and looks often at what
it does, and writes to OUTPUT as JSON what that took. A process of its own, so that start-up counts.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

_TICK = 0.005


class Sampler(threading.Thread):
    """Gives what each thread has used of the CPU since the last look to where the thread is now."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[tuple[CodeType, ...]] = Counter()
        self._used: dict[int, float] = {}

    def run(self) -> None:
        # Whoever works gives way at once, wherever it is.
        sys.setswitchinterval(1e-5)
        while True:
            time.sleep(_TICK)
            self.look()

    def look(self) -> None:
        for thread, frame in sys._current_frames().items():
            if thread != self.ident:
                with suppress(OSError):
                    used = time.clock_gettime(time.pthread_getcpuclockid(thread))
                    self.seen[_stack(frame)] += used - self._used.get(thread, 0.0)
                    self._used[thread] = used


def _stack(frame: FrameType | None) -> tuple[CodeType, ...]:
    """The functions from the innermost outwards."""
    codes = []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return tuple(codes)


def _named(stack: tuple[CodeType, ...]) -> str:
    return " ".join(f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_name}" for code in stack)


def main(output: str, *words: str) -> int:
    sampler = Sampler()
    sampler.start()
    from blobsync.cli.main import main as blobsync

    code = blobsync(words)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seen = [(_named(stack), seconds) for stack, seconds in list(sampler.seen.items())]
    facts = {"user": used.ru_utime, "system": used.ru_stime, "switches": used.ru_nvcsw + used.ru_nivcsw}
    Path(output).write_text(json.dumps({"seen": seen, **facts}), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
