"""Speed with several processes: ``python -m benchmarks.processes [--rounds 5] [--files 20000] [--most 2] [--apart]``.

Uploads and downloads of files of 16 KiB on the fast server with ``--processes`` 1 and more, and without, in turn: then
blobsync decides by itself, and must not be slower than one process by more than 3 %. The server runs on
the same cores, and takes its share of them: "server elsewhere" is the speed-up that the CPU times allow if it did not,
with a core for each process. With ``--apart`` the server and each process get an equal share of all cores, by cgroups
of version 1 (root): as on a slower machine with one core more than processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import CaseRun
from benchmarks.cases import FAST, Case
from benchmarks.emulator import Emulator
from benchmarks.measure import Series, paired_ratio
from benchmarks.tools import Blobsync, Command, Place
from benchmarks.trees import Tree

_SIZE = 16 * 1024
_ITSELF = "default"
# Short beside a run, long beside what the kernel gives a process at a time.
_PERIOD_US = 30_000


class Processes(Blobsync):
    """blobsync with that many processes, or as many as it takes by itself."""

    def __init__(self, scratch: Path, name: str, group: Path | None = None) -> None:
        super().__init__(scratch)
        self.name = name
        self._within = ["sh", "-c", f'echo $$ > {group}/tasks; exec "$@"', "sh"] if group else []

    def command(self, action: str, place: Place) -> Command:
        command = super().command(action, place)
        processes = [] if self.name == _ITSELF else ["--processes", self.name]
        return replace(command, argv=[*self._within, *command.argv, "--engine", "direct", *processes])


class ApartRun(CaseRun):
    """A case whose server has a share of the cores to itself."""

    def __init__(self, case: Case, tools: dict[str, Blobsync], scratch: Path, group: Path) -> None:
        super().__init__(case, tools, scratch)
        self._group = group

    @contextmanager
    def _server(self) -> Iterator[tuple[Emulator, str]]:
        with super()._server() as (server, endpoint):
            for thread in os.listdir(f"/proc/{server.pid}/task"):
                (self._group / "tasks").write_text(thread)
            yield server, endpoint


@contextmanager
def _group(name: str, cores: float) -> Iterator[Path]:
    """A cgroup whose processes together get that many cores."""
    folder = Path(f"/sys/fs/cgroup/cpu/blobsync-{os.getpid()}-{name}")
    folder.mkdir()
    try:
        (folder / "cpu.cfs_period_us").write_text(f"{_PERIOD_US}")
        (folder / "cpu.cfs_quota_us").write_text(f"{int(cores * _PERIOD_US)}")
        yield folder
    finally:
        folder.rmdir()


def main(argv: list[str]) -> None:
    options = _parse(argv)
    counts = range(1, options.most + 1)
    # What blobsync takes by itself depends on which cores it sees idle, and quotas leave all of them so.
    names = [*map(str, counts), *([] if options.apart else [_ITSELF])]
    share = (os.cpu_count() or 1) / (options.most + 1)
    for action in ("up", "down"):
        tree = Tree(options.files, _SIZE)
        case = Case(f"processes-{action}", action, action, tree, tuple(names), tls=options.tls, server=FAST)
        case = replace(case, fresh_server=action == "up")
        with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
            scratch = Path(folder)
            tools: dict[str, Blobsync] = {"blobsync": Blobsync(scratch)}
            groups = {
                str(count): held.enter_context(_group(str(count), count * share)) for count in counts if options.apart
            }
            tools |= {name: Processes(scratch, name, groups.get(name)) for name in names}
            if options.apart:
                run: CaseRun = ApartRun(case, tools, scratch, held.enter_context(_group("server", share)))
            else:
                run = CaseRun(case, tools, scratch)
            found = run.work(options.rounds)
        _show(action, options.files, found)


def _show(action: str, files: int, found: list[Series]) -> None:
    one = found[0]
    print(f"{files:,} files of 16 KiB, {action}")
    for series in found:
        wall, cpu = series.median("wall"), series.median("cpu")
        print(f"  {series.tool:>7}: {wall:6.2f} s, {paired_ratio(series, one):.2f} of the time of one;", end=" ")
        print(f"CPU {cpu:6.2f} s, {cpu / files * 1e3:.3f} ms a file;", end=" ")
        print(f"server busy {series.median('server_busy'):.0%}", end="")
        if series.tool != _ITSELF:
            print(f"; server elsewhere: {one.median('cpu') / (cpu / int(series.tool)):.2f} times as fast", end="")
        print(flush=True)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--most", type=int, default=2, help="up to so many processes")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--apart", action="store_true", help="the server and each process get a share of the cores")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
