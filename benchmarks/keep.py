"""What ``blobsync keep`` costs while it waits and while files change: ``python -m benchmarks.keep``.

CPU time is that of the keeper alone, as shares of one core; the server and the program that writes the files are other
processes. The delay is from the last write to a file until the container has it, without the settle time.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.emulator import Emulator
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Place
from benchmarks.trees import Tree

_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE = 5.0
_PATIENCE = 600.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, with all of its threads."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def keeper(ours: Blobsync, project: Path, environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A keeper of the whole folder ``data``."""
    words = [*ours.program, "keep", "data", "--settle", f"{_SETTLE:g}s"]
    with log.open("wb") as sink:
        process = subprocess.Popen(words, cwd=project, env=dict(environ), stdout=sink, stderr=sink)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


class Scene:
    """One project with ``tree`` below ``data``, and a server."""

    def __init__(self, scratch: Path, tree: Tree, server: Emulator, *, polls: bool) -> None:
        self.tree, self._server, self._scratch = tree, server, scratch
        self.container = server.new_container()
        project = scratch / ("polls" if polls else "events") / "project"
        self.data = project / "data"
        self._ours = Blobsync(scratch, _without_watchfiles() if polls else None)
        place = Place(f"{server.url}/benchmark", self.container, "data", self.data / "x", single=False)
        self.project = self._ours.project(place)
        tree.make(scratch / "trees")
        tree.link(scratch / "trees", self.data)
        self._environ = {**os.environ, "HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch / "config")}

    def measure(self, rate: int, seconds: float) -> None:
        log = self._scratch / "output"
        with keeper(self._ours, self.project, self._environ, log) as process:
            began = time.monotonic()
            self._until(lambda: self._count() >= self.tree.files, log)
            _tell(f"{self.tree.files:,} new files arrived", cpu_seconds(process.pid), time.monotonic() - began)
            time.sleep(2 * _SETTLE)
            _tell("idle", *_spent(process.pid, seconds))
            changed = self._change(rate, seconds, process.pid)
            last = time.monotonic()
            self._until(lambda: self._has(changed), log)
            print(f"  the last change arrived after {max(0.0, time.monotonic() - last - _SETTLE):.1f} s of delay")

    def _change(self, rate: int, seconds: float, pid: int) -> Path:
        """Write ``rate`` files a second, each another one; the share of a core that the keeper takes meanwhile."""
        before, began, number = cpu_seconds(pid), time.monotonic(), 0
        path = self.data / self.tree.path(0)
        while (now := time.monotonic()) < began + seconds:
            while number < (now - began) * rate:
                path = self.data / self.tree.path(number * 7 % self.tree.files)
                # A new file in the place of the old one, whose bytes may be those of other names.
                fresh = path.with_suffix(".new")
                fresh.write_bytes(os.urandom(self.tree.size))
                fresh.replace(path)
                number += 1
            time.sleep(0.01)
        wall = time.monotonic() - began
        _tell(f"{number / wall:,.0f} changes a second", cpu_seconds(pid) - before, wall)
        return path

    def _has(self, path: Path) -> bool:
        blob = f"base/{path.relative_to(self.data).as_posix()}"
        client = self._server.container(self.container).get_blob_client(blob)
        return bool(client.download_blob().readall() == path.read_bytes())

    def _count(self) -> int:
        return self._server.count(self.container)[0]

    def _until(self, true: object, log: Path) -> None:
        assert callable(true)
        until = time.monotonic() + _PATIENCE
        while not true():
            if time.monotonic() > until:
                sys.exit(log.read_text(errors="replace")[-2000:])
            time.sleep(1.0)


def _spent(pid: int, seconds: float) -> tuple[float, float]:
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return cpu_seconds(pid) - before, time.monotonic() - began


def _without_watchfiles() -> list[str]:
    code = "import sys; sys.modules['watchfiles'] = None; from blobsync.cli.main import main; sys.exit(main())"
    return [sys.executable, "-c", code]


def _tell(what: str, cpu: float, wall: float) -> None:
    print(f"  {what}: {cpu:.2f} s of CPU in {wall:.1f} s, {100 * cpu / wall:.1f} % of a core", flush=True)


def main() -> int:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep", description=__doc__)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--rate", type=int, default=200, help="changes a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each figure")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, fast_server() as server:
        for polls in (False, True):
            print("by walking alone:" if polls else "told by the system:")
            Scene(Path(folder), Tree(chosen.files, 1024), server, polls=polls).measure(chosen.rate, chosen.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
