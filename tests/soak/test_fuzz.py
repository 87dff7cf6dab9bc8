"""Readers of foreign input, fed for a while; ``fuzz.py`` says what counts as a fault."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError
from tests.conftest import ROOT
from tests.soak.fuzz import KEPT, TARGETS, Fuzzer, TooLargeError, TooSlowError, fuzz, kept
from tests.soak.target import Target, ignoring

# For all targets together.
SECONDS = float(os.environ.get("SOAK_SECONDS") or 660)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_input_is_a_fault(name: str, tmp_path: Path) -> None:
    # The output names each fault found; its input goes into tests/soak/kept when it is fixed.
    each = SECONDS / len(TARGETS)
    number = int(os.environ.get("SOAK_SEED") or time.time())
    words = ["--seconds", f"{each:.1f}", "--seed", str(number), "--keep", str(tmp_path / "kept")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak.fuzz", name, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 800,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_what_once_was_a_fault_is_none(name: str, tmp_path: Path) -> None:
    fuzzer = Fuzzer(TARGETS[name], tmp_path)
    for data in (*TARGETS[name].samples, *(file.read_bytes() for file in kept(name))):
        fuzzer.feed(data)


def test_every_kept_input_belongs_to_a_target() -> None:
    assert {folder.name for folder in KEPT.iterdir()} <= set(TARGETS)


def _target(fault: object) -> Target:
    def read(data: bytes) -> None:
        if b"7" in data and b"8" in data:
            if isinstance(fault, Exception):
                raise fault
            end = time.process_time() + 2.1
            while fault == "slow" and time.process_time() < end:
                pass

    return Target("example", ignoring(read), (b"1 2 3" * 20, b"4 8 6" * 20), (b"7",))


def test_a_fault_is_found_made_small_and_kept(tmp_path: Path) -> None:
    count, shown = fuzz(_target(KeyError("here")), 60, 1, tmp_path)
    (file,) = (tmp_path / "example").iterdir()
    assert "KeyError: 'here'" in shown and str(file) in shown and count > 1
    assert len(file.read_bytes()) < 6


def test_one_of_our_errors_is_no_fault(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    assert fuzz(_target(BlobsyncError("no")), 0.2, 1, tmp_path)[1] == ""
    # It lasted for all later tests of the process.
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_time_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(TooSlowError):
        Fuzzer(_target("slow"), tmp_path).feed(b"7 8")


def test_memory_is_a_fault() -> None:
    program = (
        "from pathlib import Path; from tests.soak.fuzz import Fuzzer, TooLargeError; from tests.soak.target import *\n"
        "fuzzer = Fuzzer(Target('x', ignoring(lambda data: len(b'x' * (300 << 20))), (b'',)), Path('.'))\n"
        "fuzzer.limit_memory()\n"
        "try: fuzzer.feed(b'')\nexcept TooLargeError: print('seen')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "seen\n", done.stderr
    assert issubclass(TooLargeError, Exception)
