"""What a process does with memory that it has freed."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

# Buffers of a thread, as those of a large download: each is freed before the next one.
_PROGRAM = """
import resource, sys, threading
from blobsync.base.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def use():
    for _ in range(200):
        held = [bytes(1 << 20) for _ in range(4)]
        del held
thread = threading.Thread(target=use)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    command = [sys.executable, "-c", _PROGRAM, how]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's mallopt")
def test_freed_buffers_are_used_again_and_not_mapped_anew() -> None:
    assert faults("kept") < faults("returned") / 10
