"""Where the CPU time of a small file goes: ``python -m benchmarks.where [--files N] [--size BYTES] [--tls]``.

Moves the files up and down with the whole command, in one process, on the fast server: once as it is, for the time, and
once under the profiler, for the shares and the calls (of Python, and of what is not Python). The profiler makes calls
dearer, so that stages of many small ones look larger.

With ``--against CHECKOUT`` it prints only the CPU time, medians of ``--rounds``, beside that of the blobsync of another
checkout in turn, and the median of the ratios of the rounds; also of the same commands again, when nothing has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from functools import reduce
from pathlib import Path
from statistics import median

from benchmarks.emulator import ACCOUNT, ROOT, Emulator
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Command, Place
from benchmarks.trees import Tree

_PROFILED = Path(__file__).with_name("profiled.py")
# A stage, and what is in the names of the functions that belong to it: the first that fits counts.
_STAGES = (
    ("libcurl: sockets, TLS", ("rest/curl.py:_step", "rest/curl.py:sleep", "base/socket_owners.py")),
    ("a request into libcurl, an answer out", ("rest/curl.py", "rest/transport.py")),
    ("requests, signatures, answers, retries", ("rest/", "store/", "base64.py", "hmac.py", "urllib/parse.py")),
    (
        "files: open, read, write, name",
        ("local/files.py", "local/part_files.py", "local/os_errors.py", "local/names.py"),
    ),
    ("MD5", ("direct/upload.py:order", "direct/download.py:landed")),
    ("the engine and its jobs", ("direct/", "pathlib.py")),
    ("the walk", ("local/tree.py",)),
    ("the index", ("local/index.py", "local/index.py")),
    ("ledger, receipt, log", ("transfer/", "base/redaction.py", "json/", "project/transfer_history.py")),
    ("planning", ("plan/", "spread/", "local/", "base/")),
)
_REST = "start-up: the interpreter, imports, configuration, command line"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=16 * 1024)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--lines", type=int, default=0, help="add so many functions that took most")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with this one")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    tree = Tree(options.files, options.size)
    # What was there last time is kept: ext4 is slow to make files where it has just removed as many.
    kept = Path(tempfile.gettempdir()) / "blobsync-where"
    kept.mkdir(exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=kept))
    ours = Blobsync(scratch)
    with fast_server(tls=options.tls) as server:
        if options.against:
            _compare(options, ours, tree, kept, scratch, server)
            return
        cpu: dict[str, tuple[float, float, int]] = {}
        for turn in ("plain", "profiled"):
            box = server.new_container()
            for way in ("up", "down"):
                local = scratch / f"{turn}-{way}" / "data" / "tree"
                local.parent.mkdir(parents=True)
                if way == "up":
                    tree.link(kept / "trees", local)
                command = ours.command(way, Place(f"{server.url}/{ACCOUNT}", box, "base/tree", local, single=False))
                # Other processes are not measured here.
                words = [*command.argv[len(ours.program) :], "--processes", "1"]
                output = scratch / f"{way}.json"
                if turn == "plain":
                    cpu[way] = _run(command, [*ours.program, *words], server)
                    continue
                _run(command, [sys.executable, str(_PROFILED), str(output), *words], server)
                _print(way, options, cpu[way], json.loads(output.read_text(encoding="utf-8")))


def _compare(
    options: argparse.Namespace, ours: Blobsync, tree: Tree, kept: Path, scratch: Path, server: Emulator
) -> None:
    checkouts = (ROOT, options.against.resolve())
    taken: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for turn in range(options.rounds):
        for number in (0, 1) if turn % 2 else (1, 0):
            box = server.new_container()
            for way in ("up", "down"):
                local = scratch / f"{turn}-{number}-{way}" / "data" / "tree"
                local.parent.mkdir(parents=True)
                if way == "up":
                    tree.link(kept / "trees", local)
                command = ours.command(way, Place(f"{server.url}/{ACCOUNT}", box, "base/tree", local, single=False))
                for name in (way, f"{way}, nothing changed"):
                    argv = [*command.argv, "--processes", "1"]
                    user, system, _ = _run(command, argv, server, PYTHONPATH=str(checkouts[number]))
                    taken[name][number].append((user + system) * 1000 / options.files)
    print(f"{options.files:,} files of {options.size:,} bytes: ms of CPU a file")
    for name, (here, there) in taken.items():
        ratio = median(one / other for one, other in zip(here, there, strict=True))
        print(f"  {name:22}{median(here):.4f}, the other {median(there):.4f}, ratio {ratio:.2f}", flush=True)


def _run(command: Command, argv: list[str], server: Emulator, **more: str) -> tuple[float, float, int]:
    """Seconds in the program and in the kernel, and context switches."""
    os.sync()
    # As installed: modules are compiled once.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        argv,
        cwd=command.cwd,
        env={**environ, **server.environ, **more},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    switches = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime, switches


def _print(
    way: str, options: argparse.Namespace, cpu: tuple[float, float, int], taken: dict[str, tuple[float, int, int]]
) -> None:
    user, system, switches = cpu
    stages: dict[str, tuple[float, int, int]] = {}
    for function, measured in taken.items():
        stages[_stage(function)] = _sum(stages.get(_stage(function), (0.0, 0, 0)), measured)
    whole = reduce(_sum, stages.values())
    each = (user + system) * 1000 / options.files
    share = each / whole[0]

    def line(name: str, measured: tuple[float, int, int]) -> str:
        seconds, python, native = measured
        return f"  {seconds * share:.4f} {python / options.files:7.1f} {native / options.files:7.1f}  {name}"

    tls = ", TLS" if options.tls else ""
    print(f"\n{options.files:,} files of {options.size:,} bytes, {way}{tls}: a file's ms of CPU, its calls, those of C")
    for stage, measured in _most(stages):
        print(line(stage, measured))
    print(line(f"in all: {user:.2f} s user, {system:.2f} s system,", whole), end=" ")
    print(f"{switches / options.files:.1f} context switches a file", flush=True)
    for function, measured in _most(taken)[: options.lines]:
        print(f"  {line(function, measured)}")


def _sum(one: tuple[float, int, int], other: tuple[float, int, int]) -> tuple[float, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _most(found: dict[str, tuple[float, int, int]]) -> list[tuple[str, tuple[float, int, int]]]:
    return sorted(found.items(), key=lambda one: one[1], reverse=True)


def _stage(function: str) -> str:
    return next((stage for stage, signs in _STAGES if any(sign in function for sign in signs)), _REST)


if __name__ == "__main__":
    main()
