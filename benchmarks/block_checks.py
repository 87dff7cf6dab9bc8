"""What checking the blocks of an upload costs: ``python -m benchmarks.block_checks [--mib N] [--rounds N]``.

Uploads one file with the whole command to the fast server, by turns with a CRC64 of each block and with an MD5, as
without anycrc. Prints the speed of each hash, what importing anycrc costs, and the CPU time of the commands.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.emulator import ACCOUNT
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Place
from blobsync.store.checksums import installed_crc64

_MIB = 1 << 20
_BLOCK = 4 * _MIB
# "None" stands for a package that is not installed.
_MAIN = "import sys; {}; from blobsync.__main__ import main; sys.exit(main())"
_TURNS = {"MD5": "sys.modules['anycrc'] = None", "CRC64": "pass"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.block_checks", description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    began = time.process_time()
    crc64 = installed_crc64()
    assert crc64 is not None, "pip install anycrc"
    print(f"import of anycrc: {(time.process_time() - began) * 1e3:.1f} ms")
    hashes: dict[str, Callable[[bytes], object]] = {"CRC64": crc64, "MD5": hashlib.md5, "SHA-256": hashlib.sha256}
    for name, function in hashes.items():
        print(f"{name}: {_BLOCK / (1 << 30) / _seconds(function):.2f} GiB/s")
    cpu: dict[str, list[float]] = {name: [] for name in _TURNS}
    with tempfile.TemporaryDirectory() as folder, fast_server() as server:
        for number in range(options.rounds):
            for name in sorted(_TURNS, reverse=bool(number % 2)):
                project = Path(folder, "project")
                local = project / "data" / "large"
                local.parent.mkdir(parents=True)
                _write(local, options.mib)
                ours = Blobsync(Path(folder), [sys.executable, "-c", _MAIN.format(_TURNS[name])])
                box = server.new_container()
                command = ours.command("up", Place(f"{server.url}/{ACCOUNT}", box, "base/large", local, single=True))
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(command.argv, cwd=command.cwd, check=True, capture_output=True, env={**os.environ})
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
                assert server.count(box) == (1, options.mib * _MIB)
                server.container(box).delete_container()
                shutil.rmtree(project)
    for name, seconds in cpu.items():
        spread = f"{min(seconds):.2f}-{max(seconds):.2f}"
        print(f"{options.mib} MiB up with {name}: {statistics.median(seconds):.2f} s of CPU ({spread})")
    ratios = [one / other for one, other in zip(cpu["CRC64"], cpu["MD5"], strict=True)]
    print(f"CRC64/MD5, paired: {statistics.median(ratios):.2f}")


def _write(file: Path, mib: int) -> None:
    with file.open("wb") as out:
        for _ in range(mib):
            out.write(os.urandom(_MIB))


def _seconds(function: Callable[[bytes], object]) -> float:
    """CPU seconds for one block, the median of many."""
    body = os.urandom(_BLOCK)
    taken = []
    for _ in range(25):
        began = time.process_time()
        function(body)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
