"""The command line of a node."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

VERBS = ("prepare", "exec", "node", "finish", "here", "spread")


@dataclass(frozen=True, slots=True)
class NodeArguments:
    """What to do and where. ``root`` None: the code goes to a folder of this node; ``node_rank`` None: the launcher
    tells; ``code`` is what the command ended with (``finish``), ``log`` whether ``exec`` opens the rank's log, ``echo``
    whether all logs are copied to our own output, ``worker`` which worker of a transfer this is (None: what starts
    them)."""

    verb: str
    job: Path
    run_dir: Path
    secrets: Path | None = None
    root: Path | None = None
    node_rank: int | None = None
    log: bool = False
    code: int = 0
    keep_root: str = "never"
    sync_seconds: float = 60.0
    echo: bool = False
    worker: int | None = None


def parse_arguments(argv: Sequence[str]) -> NodeArguments:
    """Raises ``SystemExit`` with code 2 for other words."""
    parser = argparse.ArgumentParser(prog="blobsync-node")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--job", required=True, type=Path, help="the job's specification")
    parser.add_argument("--secrets", type=Path, help="a file that only the owner can read")
    parser.add_argument("--run-dir", required=True, type=Path, help="where the job's logs are")
    parser.add_argument("--root", type=Path, help="where the code goes; without it, a folder of this node")
    parser.add_argument("--node-rank", type=int, help="which of the job's nodes this is")
    parser.add_argument("--log", action="store_true", help="exec: write the rank's log ourselves")
    parser.add_argument("--code", type=int, default=0, help="finish: what the command ended with")
    parser.add_argument("--keep-root", choices=("never", "failed", "always"), default="never")
    parser.add_argument("--sync-seconds", type=float, default=60.0)
    parser.add_argument("--echo", action="store_true", help="copy the logs to our own output, marked with their names")
    parser.add_argument("--worker", type=int, help="spread: which of the node's workers this is; -1: the parent")
    return NodeArguments(**vars(parser.parse_args(argv)))
