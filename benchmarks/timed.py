"""Runs the command in its arguments (``timed.py LOG COMMAND...``) and prints one JSON object about it.

A process of its own, and a small one: the kernel counts what a parent's memory was at the time of the fork as the
child's peak.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time


def main(log: str, *argv: str) -> None:
    with open(log, "ab") as sink:
        began = time.perf_counter()
        # Standard input is a pipe that stays open: without one azcopy burns a core.
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=sink, stderr=sink)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    answer = {
        "wall": wall,
        "cpu": usage.ru_utime + usage.ru_stime,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        "exit_code": process.returncode,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
