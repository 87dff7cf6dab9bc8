"""Logs of jobs, and what the clusters answer."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blobsync.jobs.logs import fetch_logs, follow, rank_of
from blobsync.jobs.parse import is_retriable, log_lines, read_causes, summarise
from blobsync.jobspec.spec import LogFile
from tests.soak.target import Target, ignoring, text


def _causes(data: bytes) -> None:
    lines = log_lines(io.StringIO(text(data)))
    is_retriable(summarise(read_causes("std_log.txt", lines)))


@dataclass
class _Listed:
    """Logs that the input names, with the sizes that it claims."""

    found: Sequence[LogFile]
    lags = False

    def files(self) -> Sequence[LogFile]:
        return self.found

    def read(self, log: LogFile, start: int, end: int | None) -> bytes:
        return b"line\n"[start : min(end or 5, start + 5)]


def _fetched(scratch: Path) -> Callable[[bytes], None]:
    folder = scratch / "assets" / "me_1"

    def run(data: bytes) -> None:
        shutil.rmtree(scratch / "assets", ignore_errors=True)
        logs = []
        for line in text(data).split("\n")[:50]:
            size, _, name = line.partition(" ")
            logs.append(LogFile(name, int(size) if size.isdecimal() and len(size) < 19 else None, ""))
            rank_of(name)
        source = _Listed(logs)
        fetched = fetch_logs([lambda: source], folder, scratch)
        assert os.listdir(scratch) in ([], ["assets"])
        assert os.listdir(scratch / "assets") == ["me_1"] if (scratch / "assets").exists() else True
        list(follow(lambda: fetched, lambda: True, lambda: None))
        for name in fetched.names:
            fetched.tail(name, 5)

    return run


_LOG = b"""\
step 1 loss 0.5
Traceback (most recent call last):
RuntimeError: CUDA out of memory. Tried to allocate 2 GiB
NCCL WARN Net/Socket : connection closed, failed
kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1
heartbeat: disk 1 of 2 GB free, load 0.1, GPU 100%/10MB 100%/10MB
slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-11-20T00:00:00 DUE TO TIME LIMIT ***
barrier()
"""

TARGETS = (
    Target(
        "log-lines",
        ignoring(_causes),
        (_LOG,),
        (b"GPU 100%/1 ", b"Xid", b": 79", b"NCCL WARN", b"Net", b"barrier()", b"cannot start ", b"the code archive "),
    ),
    Target(
        "log-names",
        _fetched,
        (b"5 user_logs/std_log.txt\n5 system_logs/node_0.txt\n3 task_1/user_logs/std_log_process_0.txt\n x.txt\n",),
        (b"../", b"/etc/", b"..", b"task_", b"9" * 18, b"user_logs/", b"\x1b", b".txt"),
    ),
)
