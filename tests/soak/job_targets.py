"""Logs of jobs, and what the clusters answer."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blobsync.jobs.failure_causes import is_retriable, log_lines, read_causes, summarise
from blobsync.jobs.logs import fetch_logs, follow, rank_of
from blobsync.jobspec.spec import LogFile
from blobsync.keep.marks import Mark, MarkedFile
from blobsync.local.names import local_problem
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


def _mark(data: bytes) -> None:
    """A mark is refused, or all that it names may be joined to a folder and to a container's name."""
    try:
        mark = Mark.from_json(data)
    except ValueError:
        return
    assert all(local_problem(each.path) is None for each in mark.files if each.path)
    assert local_problem(mark.set) is None and local_problem(mark.stored) is None
    assert Mark.from_json(mark.to_json()) == mark


_FILES = (MarkedFile("model.bin", 7, "a" * 32, "0x1"), MarkedFile("deep/er.bin", 0, "b" * 32, "0x2", 1))
_MARK = Mark("checkpoint-5", "checkpoint-5@20261125T170300Z", 5, 1.5, "me_1", "me_0", 2, "ab", {"a:b": 1.0}, 2, _FILES)

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
        "checkpoint-mark",
        ignoring(_mark),
        (_MARK.to_json().encode(),),
        (
            b"../",
            b"/etc/passwd",
            b"null",
            b"9" * 30,
            b"-1",
            b"1e999",
            b"NaN",
            b"\\u0000",
            b"[",
            b"{}",
            b"@",
            b'"path": ""',
        ),
    ),
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
