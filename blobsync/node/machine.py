"""Runs programs on this machine for a job, and describes its health, to help debug one."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import ProcessError
from blobsync.base.process import ProcessGroup, ProcessRunner
from blobsync.node.job import NodeJob

_PROBES = (("nvidia-smi", "-L"), ("rocm-smi",), ("ibstatus",), ("df", "-h", "."))
_GPU_USE = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")
_PATIENCE_SECONDS = 30.0


def describe_machine(job: NodeJob) -> None:
    """Log the machine's disks, GPUs and network, once."""
    facts = (socket.gethostname(), f"{os.cpu_count()} CPUs", f"Python {sys.version.split()[0]}")
    job.say(f"node {job.node_rank} is {', '.join(facts)}")
    for command in _PROBES:
        if shutil.which(command[0], path=job.environ.get("PATH")):
            job.say(f"$ {' '.join(command)}\n{_answer(command, job.root.parent)}")


def heartbeat(job: NodeJob, behind: float | None = None, preparing: str = "") -> str:
    """The current free disk space, load and GPU use, and how long a complete checkpoint has been on this node alone.

    ``preparing`` is how far a node is that is being made ready."""
    disk = shutil.disk_usage(job.root if job.root.is_dir() else "/")
    parts = [
        f"heartbeat: disk {disk.free / 1e9:.0f} of {disk.total / 1e9:.0f} GB free",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    if shutil.which(_GPU_USE[0], path=job.environ.get("PATH")):
        used = [line.replace(", ", "%/") + "MB" for line in _answer(_GPU_USE, Path("/")).splitlines()]
        parts.append("GPU " + " ".join(used))
    if behind is not None:
        parts.append(f"checkpoint {behind:.0f} s behind")
    if preparing:
        parts.append(f"preparing {preparing}")
    return ", ".join(parts)


def _answer(command: Sequence[str], cwd: Path) -> str:
    try:
        done = ProcessRunner().run(command, cwd=cwd, timeout=_PATIENCE_SECONDS)
    except ProcessError as error:
        return error.message
    return f"{done.stdout}{done.stderr}".strip()


def run_into_log(argv: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path) -> int:
    """Run a program and append its output to ``log``; returns the exit code."""
    with log.open("ab") as sink:
        return ProcessGroup(argv, env=env, cwd=cwd, output=sink).wait()
