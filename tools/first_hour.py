"""``python -m tools.first_hour``: from a package to the first upload, without the checkout, with the time of each step.

It installs the wheel (or ``--sdist``) of this checkout into an empty virtual environment with pip, and runs what the
first page of the documentation says: an emulator, a project, an upload. ``--tutorial`` runs the whole tutorial there
and compares what it prints. Azurite is that of ``./dev`` where it is there; else the first start installs it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.tutorial_page import choose_free_port, differences, newcomer, run_page

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / ".tools" / "blobsync"
_BUILD = "import sys; from hatchling.build import build_{kind} as build; print(build(sys.argv[1]))"
_FIRST = (
    ("the version", ("--version",)),
    ("a project", ("config", "new", "--emulator")),
    ("the emulator", ("emulator", "start")),
    ("the first upload", ("u", "data/notes")),
    ("the same once more", ("u", "data/notes")),
)


def main(words: Sequence[str]) -> int:
    """Print one line for each step; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.first_hour", description="Install a package and use it.")
    parser.add_argument("package", nargs="?", type=Path, help="a wheel or an sdist (default: build one)")
    parser.add_argument("--sdist", action="store_true", help="build and install the sdist, not the wheel")
    parser.add_argument("--tutorial", action="store_true", help="run the whole tutorial as well")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        return _play(folder, given.package, "sdist" if given.sdist else "wheel", tutorial=given.tutorial)


def _play(folder: Path, package: Path | None, kind: str, *, tutorial: bool) -> int:
    if package is None:
        building = [sys.executable, "-c", _BUILD.format(kind=kind), str(folder)]
        package = folder / _timed(f"build the {kind}", building, ROOT, os.environ).split()[-1]
    venv = folder / "venv"
    _timed("an empty virtual environment", [sys.executable, "-m", "venv", str(venv)], folder, os.environ)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _timed(f"pip install {package.name}", [*pip, str(package)], folder, os.environ)
    environ = newcomer(folder / "home", venv / "bin", TOOLS)
    where = _timed(
        "", [str(venv / "bin" / "python"), "-c", "import blobsync; print(blobsync.__file__)"], folder, environ
    )
    if not where.startswith(str(venv)):
        raise SystemExit(f"first_hour: not the installed blobsync: {where}")
    choose_free_port(environ)
    project = folder / "home" / "project"
    notes = project / "data" / "notes"
    notes.mkdir(parents=True)
    (notes / "a.txt").write_text("one\n")
    try:
        for what, command in _FIRST:
            _timed(f"{what}: blobsync {' '.join(command)}", ["blobsync", *command], project, environ)
    finally:
        _stop(environ)
    return _tutorial(folder / "reader", venv / "bin") if tutorial else 0


def _tutorial(home: Path, programs: Path) -> int:
    environ = newcomer(home, programs, TOOLS)
    choose_free_port(environ)
    try:
        ran = run_page(home, environ)
    finally:
        _stop(environ)
    wrong = differences(ran, home)
    print(f"{sum(each.seconds for each in ran):8.2f} s  the tutorial, {len(ran)} commands")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


def _stop(environ: Mapping[str, str]) -> None:
    subprocess.run(["blobsync", "emulator", "stop"], env=dict(environ), capture_output=True)


def _timed(what: str, argv: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Standard output of a program that must succeed; its time is printed if ``what`` names it."""
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, env=dict(environ), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"first_hour: {' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    if what:
        print(f"{time.monotonic() - began:8.2f} s  {what}", flush=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
