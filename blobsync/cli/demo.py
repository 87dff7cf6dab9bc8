"""``demo``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from blobsync.base.errors import UsageError
from blobsync.cli.options import NO_CLUSTER, command
from blobsync.cli.output import Result
from blobsync.cli.session import Session


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(app, "demo", takes=NO_CLUSTER)(demo)


def demo(
    session: Session,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="A new folder for the demo. Default: a temporary one.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder and the blob server afterwards.")] = False,
) -> Result:
    """Carry a real data set through the whole main job on this machine, showing each command as it goes.

    Needs no account: the blob server is Azurite, installed on first use.

    \b
      blobsync demo
      blobsync demo try-it --keep
    """
    if session.json:
        raise UsageError("demo shows its commands as they run, so it has no --json")
    from blobsync.cli.demonstration import run_demo

    report = run_demo(folder, keep=keep, environ=session.environ, say=typer.echo)
    seconds = sum(each for _, each in report.seconds)
    moved = f"{report.files:,} files, {report.size / 1e6:.1f} MB, {len(report.seconds)} commands in {seconds:.1f} s"
    lines = ["", f"All {len(report.checks)} checks passed: {moved}."]
    if report.kept:
        lines.append(f"Kept: {report.folder}/here and {report.folder}/there.")
    if keep:
        lines.append("The blob server is still running; stop it with: blobsync emulator stop")
    return Result({**asdict(report), "folder": str(report.folder)}, lines)
