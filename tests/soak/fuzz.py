"""Feeds one reader of foreign input for a while: ``python -m tests.soak.fuzz TARGET --seconds 30 --seed 1``.

An input is a fault when its reader raises what is neither one of our errors nor documented, takes more than two seconds
of processor time, or makes the process grow by more than 256 MB. It is made as small as Hypothesis can and written to
``--keep``, from where every later run, and every run of the tests, tries it first.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning

from blobsync.base.errors import BlobsyncError
from tests.soak import answer_targets, file_targets, job_targets, name_targets, spread_targets, storage_targets
from tests.soak.mutation import inputs
from tests.soak.target import Target

KEPT = Path(__file__).resolve().parent / "kept"
TARGETS = {
    target.name: target
    for module in (storage_targets, answer_targets, file_targets, name_targets, job_targets, spread_targets)
    for target in module.TARGETS
}

_SECONDS = 2.0
_MEGABYTES = 256
_ROUND = 400
_MIB = 1 << 20


class TooSlowError(Exception):
    """One input took too much processor time."""


class TooLargeError(Exception):
    """One input took too much memory."""


class Fuzzer:
    """One target, watched. ``bad`` is the input that was a fault last, ``fault`` what came of it."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self._target = target
        self._run = target.make(scratch)
        self._limit = 0.0
        self.bad = b""
        self.fault = ""
        self.count = 0

    def limit_memory(self) -> None:
        """From now on; what is loaded already does not count."""
        self._limit = _peak() + _MEGABYTES
        grown = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        # What takes far more must not bring the machine down before it is noticed.
        resource.setrlimit(resource.RLIMIT_AS, (grown + 4 * _MEGABYTES * _MIB, resource.RLIM_INFINITY))

    def feed(self, data: bytes) -> None:
        """Raises what the reader must not raise, ``TooSlowError`` or ``TooLargeError``."""
        self.count += 1
        try:
            self._watch(data)
        except Exception as error:
            self.bad = data
            self.fault = "".join(traceback.format_exception(error, limit=-12))
            raise

    def make_small(self) -> None:
        """Leave out of ``bad`` what is not needed for a fault; Hypothesis leaves the sample as it was."""
        end, size = time.monotonic() + 30, len(self.bad) // 2
        while size and time.monotonic() < end:
            start = 0
            while start < len(self.bad) and time.monotonic() < end:
                try:
                    self.feed(self.bad[:start] + self.bad[start + size :])
                    start += size
                except Exception:  # noqa: BLE001 - a fault; what is left out is gone for good
                    continue
            size //= 2

    def _watch(self, data: bytes) -> None:
        started = time.process_time()
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, 3 * _SECONDS)
        try:
            self._run(data)
        except BlobsyncError:
            pass
        except Exception as error:
            if not isinstance(error, self._target.documented):
                raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - started
        if seconds > _SECONDS:
            raise TooSlowError(f"{seconds:.1f} s of processor time")
        if self._limit and _peak() > self._limit:
            raise TooLargeError(f"more than {_MEGABYTES} MB")


def _peak() -> float:
    """Megabytes. getrusage would begin with what the process that started this one had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _stop(signum: int, frame: object) -> None:
    raise TooSlowError("stopped after six seconds of processor time")


def kept(name: str, folder: Path = KEPT) -> list[Path]:
    """The inputs that once were faults of this target."""
    return sorted((folder / name).glob("*")) if (folder / name).is_dir() else []


def fuzz(target: Target, seconds: float, number: int, keep: Path) -> tuple[int, str]:
    """How many inputs were tried, and the fault with its traceback; empty where there is none."""
    with tempfile.TemporaryDirectory(prefix="blobsync-fuzz-") as scratch:
        fuzzer = Fuzzer(target, Path(scratch))
        before = resource.getrlimit(resource.RLIMIT_AS)
        try:
            for sample in target.samples:
                fuzzer.feed(sample)
            fuzzer.limit_memory()
            for file in kept(target.name):
                fuzzer.feed(file.read_bytes())
            _rounds(fuzzer.feed, target, time.monotonic() + seconds, number)
        except Exception:
            if not fuzzer.fault:
                raise
            fuzzer.make_small()
            file = keep / target.name / hashlib.sha256(fuzzer.bad).hexdigest()[:12]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(fuzzer.bad)
            return fuzzer.count, f"{fuzzer.fault}\n{len(fuzzer.bad)} bytes: {fuzzer.bad[:300]!r}\nkept as {file}\n"
        finally:
            # Other tests may run in this process.
            resource.setrlimit(resource.RLIMIT_AS, before)
        return fuzzer.count, ""


def _rounds(feed: Callable[[bytes], None], target: Target, end: float, number: int) -> None:
    # Rounds keep Hypothesis's own memory small.
    while time.monotonic() < end:

        @seed(number)
        @settings(
            max_examples=_ROUND,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(inputs(target))
        def one(data: bytes) -> None:
            if time.monotonic() < end + 60:
                feed(data)

        one()
        number += 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.fuzz")
    parser.add_argument("target", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=KEPT, help="where an input that is a fault is written")
    options = parser.parse_args(argv)
    count, fault = fuzz(TARGETS[options.target], options.seconds, options.seed, options.keep)
    print(f"{options.target}: {count} inputs, seed {options.seed}", flush=True)
    if fault:
        print(fault, flush=True)
    return 1 if fault else 0


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore", HypothesisWarning)
    sys.exit(main())
