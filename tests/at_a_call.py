"""Runs ``blobsync`` and sends it a signal at a chosen function call.

    python tests/at_a_call.py SIGKILL 1234 transfer,direct u data

counts the calls of functions of these packages, in all threads (``-``: every call from the first instruction on, in the
main thread). At call 0 it sends nothing, and the last line on standard error is the number of calls.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

# Not the tests' own folder.
sys.path[0] = str(Path(__file__).parent.parent)

_SIGNAL, _AT = signal.Signals[sys.argv[1]], int(sys.argv[2])
_ROOMS = tuple(f"{os.sep}blobsync{os.sep}{room}{os.sep}" for room in sys.argv[3].split(",") if room != "-")
_count = 0


def _called(frame: FrameType, event: str, arg: object) -> None:
    global _count
    if not _ROOMS or any(room in frame.f_code.co_filename for room in _ROOMS):
        _count += 1
        if _count == _AT:
            sys.setprofile(None)
            os.kill(os.getpid(), _SIGNAL)


if __name__ == "__main__":
    from blobsync.__main__ import end, run

    sys.argv[1:] = sys.argv[4:]
    if _ROOMS:
        threading.setprofile(_called)
    sys.setprofile(_called)
    code = run()
    sys.setprofile(None)
    if not _AT:
        sys.stderr.write(f"{_count}\n")
    end(code)
    sys.exit(code)
