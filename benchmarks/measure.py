"""Runs one command and measures its wall time, CPU time and peak memory, and the server's CPU time."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.emulator import Emulator

_TIMED = Path(__file__).with_name("timed.py")


@dataclass(frozen=True)
class Sample:
    """One run of one command. Seconds, megabytes (10^6); CPU includes children that it waited for."""

    wall: float
    cpu: float
    server_cpu: float
    peak_mb: float
    exit_code: int

    @property
    def server_busy(self) -> float:
        """The emulator's one thread: 1.0 is a core for the whole time, above which it cannot go far."""
        return self.server_cpu / self.wall if self.wall else 0.0


@dataclass
class Series:
    """All runs of one command in one case."""

    tool: str
    samples: list[Sample] = field(default_factory=list)
    note: str = ""

    def median(self, what: str) -> float:
        return statistics.median(float(getattr(sample, what)) for sample in self.samples)

    @property
    def walls(self) -> list[float]:
        return [sample.wall for sample in self.samples]

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Series:
        return cls(raw["tool"], [Sample(**sample) for sample in raw["samples"]], raw["note"])

    def as_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "note": self.note, "samples": [asdict(sample) for sample in self.samples]}


def paired_ratio(ours: Series, theirs: Series) -> float:
    """The median over the rounds of ours / theirs: what disturbs a round disturbs both."""
    return statistics.median(a / b for a, b in zip(ours.walls, theirs.walls, strict=False))


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, server: Emulator | None) -> Sample:
    """Run to the end; what it prints goes to ``log``."""
    before = server.cpu_seconds() if server else 0.0
    # As installed: modules are compiled once. The first run of a case, which compiles them, is not counted.
    compiled = {**os.environ, **env, "PYTHONPYCACHEPREFIX": str(log.parent / "pycache")}
    compiled.pop("PYTHONDONTWRITEBYTECODE", None)
    watched = [sys.executable, "-I", "-S", str(_TIMED), str(log), *argv]
    done = subprocess.run(watched, capture_output=True, text=True, check=True, env=compiled, cwd=cwd)
    server_cpu = server.cpu_seconds() - before if server else 0.0
    return Sample(server_cpu=server_cpu, **json.loads(done.stdout))
