"""Where the CPU time of a small file goes: ``python -m benchmarks.where [--files N] [--size BYTES] [--tls]``.

Moves the files up and down with the whole command, on the fast server, and prints what each stage takes per file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.emulator import ACCOUNT, Emulator
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Place
from benchmarks.trees import Tree

_SAMPLED = Path(__file__).with_name("sampled.py")
# A stage, and how a frame looks that belongs to it: the innermost frame with a stage counts.
_STAGES = (
    ("start-up: imports", ("importlib._bootstrap",)),
    ("libcurl: sockets, TLS", ("curl_exchanges.py:_step", "curl_exchanges.py:sleep", "curl_transport.py")),
    ("a request into libcurl, an answer out", ("rest/curl_",)),
    ("requests, answers, retries", ("/rest/", "rest/", "store/")),
    ("files: open, read, write, name", ("local/files.py", "local/part_files.py", "local/errors.py")),
    ("the walk", ("local/tree.py",)),
    ("the index", ("local/index.py",)),
    ("engine, MD5", ("direct/",)),
    ("ledger, receipt, fresh look", ("transfer/",)),
    ("planning", ("plan/", "local/", "project/", "base/")),
    ("command line, configuration", ("cli/", "config/")),
)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.where", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=16 * 1024)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--lines", type=int, default=0, help="add so many functions that were seen most")
    options = parser.parse_args(argv)
    tree = Tree(options.files, options.size)
    # What was there last time is kept: ext4 is slow to make files where it has just removed as many.
    kept = Path(tempfile.gettempdir()) / "blobsync-where"
    scratch = Path(tempfile.mkdtemp(dir=kept)) if kept.mkdir(exist_ok=True) is None else kept
    ours = Blobsync(scratch)
    with fast_server(tls=options.tls) as server:
        box = server.new_container()
        for way in ("up", "down"):
            local = scratch / way / "data" / "tree"
            local.parent.mkdir(parents=True)
            if way == "up":
                tree.link(kept / "trees", local)
            command = ours.command(way, Place(f"{server.url}/{ACCOUNT}", box, "base/tree", local, single=False))
            words = command.argv[len(ours.program) :]
            _print(way, options, _run(words, command.cwd, server, scratch / f"{way}.json"))


def _run(words: list[str], cwd: Path | None, server: Emulator, output: Path) -> dict[str, Any]:
    # Pages of what was written before are not to be written now.
    os.sync()
    subprocess.run(
        [sys.executable, str(_SAMPLED), str(output), *words],
        cwd=cwd,
        env={**os.environ, **server.environ},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def _print(way: str, options: argparse.Namespace, found: dict[str, Any]) -> None:
    stages: dict[str, float] = defaultdict(float)
    lines: dict[str, float] = defaultdict(float)
    for stack, seconds in found["seen"]:
        stages[_stage(stack)] += seconds
        lines[stack.partition(" ")[0]] += seconds
    user, system, files = found["user"], found["system"], options.files
    each = 1000 / files
    # What was not seen: the sampler itself, and the ends of threads.
    stages["the rest, the sampler included"] += user + system - sum(stages.values())
    print(f"\n{files:,} files of {options.size:,} bytes, {way}{', TLS' if options.tls else ''}: ms of CPU a file")
    for stage, seconds in _most(stages):
        print(f"  {seconds * each:.4f}  {stage}")
    print(f"  {(user + system) * 1000 / files:.4f}  in all: {user:.2f} s user, {system:.2f} s system,", end=" ")
    print(f"{found['switches'] / files:.1f} context switches a file")
    for line, seconds in _most(lines)[: options.lines]:
        print(f"    {seconds * each:.4f}  {line}")


def _most(found: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(found.items(), key=lambda one: one[1], reverse=True)


def _stage(stack: str) -> str:
    for frame in stack.split(" "):
        for stage, signs in _STAGES:
            if any(sign in frame for sign in signs):
                return stage
    return "the rest, the sampler included"


if __name__ == "__main__":
    main()
