"""Locks beside DVC: ``python -m benchmarks.locks [--files N] [--dvc PROGRAM] [--fast]``.

A checkout uploads N files of 1,000 bytes and locks them, and another one gets them. Then 3 files change, and the other
one gets exactly these. DVC with dvc-azure does the same. Both use Azurite, in memory, or with --fast
the fast server; each step is a command.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.emulator import ACCOUNT, KEY, Emulator, emulator
from benchmarks.fast_server import fast_server
from benchmarks.measure import run
from benchmarks.tools import Blobsync, Place

_BYTES, _CHANGED = 1000, 3
_WHO = ("-c", "user.name=n", "-c", "user.email=n@example.org")


class Trial:
    """Two checkouts of one repository, and a container."""

    def __init__(self, scratch: Path, server: Emulator, program: list[str], env: Mapping[str, str]) -> None:
        self.server, self.program, self.env, self.box = server, program, env, server.new_container()
        self.here, self.other, self._log = (scratch / each for each in ("here", "other", "log"))
        self.here.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, where: Path | None = None) -> None:
        subprocess.run(["git", *_WHO, *words], cwd=where or self.here, check=True, capture_output=True)

    def step(self, *words: str, where: Path | None = None, code: int = 0) -> None:
        sample = run([*self.program, *words], env=self.env, cwd=where or self.here, log=self._log, server=self.server)
        if sample.exit_code != code:
            sys.exit(self._log.read_text(errors="replace")[-3000:])
        print(f"  {' '.join(words)}: {sample.wall:.1f} s, CPU {sample.cpu:.1f} s", flush=True)

    def play(self, files: int, send: Sequence[Sequence[str]], get: Sequence[str], diff: Callable[[], None]) -> None:
        for seed, count in enumerate((files, _CHANGED)):
            chance = random.Random(seed)
            for number in range(count):
                file = self.here / f"data/f{number // 1000:03}/{number:06}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(chance.randbytes(_BYTES))
            for words in send:
                self.step(*words)
            names = (each for each in ("aux_data", "data.dvc", ".dvc/config") if (self.here / each).exists())
            self.git("add", "-f", *names)
            self.git("commit", "-qm", "data")
            if seed:
                diff()
                self.git("pull", "-q", where=self.other)
            else:
                self.git("clone", "-q", str(self.here), str(self.other))
            self.step(*get, where=self.other)
            subprocess.run(["diff", "-r", self.here / "data", self.other / "data"], check=True)
            blobs, size = self.server.count(self.box)
            du = subprocess.run(["du", "-sB1", self.other], check=True, capture_output=True).stdout
            print(f"  {blobs:,} blobs, {size:,} bytes; a checkout takes {int(du.split()[0]) / 1e6:.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.locks", description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--dvc", help="the program, with dvc-azure; without it, blobsync alone")
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-locks-"))
    try:
        with fast_server() if options.fast else emulator() as server:
            ours = Blobsync(scratch)
            one = Trial(scratch / "blobsync", server, ours.program, {})
            ours.project(Place(f"{server.url}/{ACCOUNT}", one.box, "base", one.here / "data/f000", single=False))
            send = (("u", "data"), ("lock", "data"))
            print("blobsync")
            one.play(options.files, send, ("d", "--locked", "data"), lambda: one.step("diff", "HEAD~1", "data", code=3))
            if options.dvc:
                login = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={server.url}/{ACCOUNT}"
                two = Trial(scratch / "dvc", server, [options.dvc], {"AZURE_STORAGE_CONNECTION_STRING": login})
                print("dvc")
                two.step("init", "-q")
                two.step("remote", "add", "-d", "az", f"azure://{two.box}/dvc")
                two.play(options.files, (("add", "data"), ("push",)), ("pull",), lambda: two.step("diff", "HEAD~1"))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
