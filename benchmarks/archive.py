"""The code archive beside ``zip -r``: ``python -m benchmarks.archive [--rounds N]``.

One tree of 5,000 files and 100 MB, a third of it incompressible. Packed: by ``zip -r`` (its default level, and its
fastest), and by blobsync's library in a fresh process, hashes and all. Then ``blobsync init`` to Azurite, the first
one and one with nothing changed, which has to take a quarter of that at most.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import yaml

from benchmarks.emulator import ACCOUNT, KEY, Emulator, emulator
from benchmarks.measure import Sample, Series, paired_ratio, run

FILES = 5000
SIZE = 20_000
# A no-change init may take this part of the first one.
LIMIT = 0.25

_PACK = """
import sys
from pathlib import Path
from blobsync.code.publish import write_archive
from blobsync.code.packed_files import code_rules
from blobsync.code.snapshot import take_snapshot
from blobsync.config.model import Cluster
root, out = map(Path, sys.argv[1:])
found = take_snapshot(code_rules(Cluster("aml", "aml.yaml", root)), Path("/nowhere/files.json"))
assert len(found.files) == int(%d)
with out.open("w+b") as stream:
    write_archive(found, None, stream)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="blobsync-archive-") as folder:
        scratch = Path(folder)
        tree = scratch / "tree"
        make_tree(tree)
        packing = pack(scratch, tree, rounds)
        with emulator() as server:
            first, unchanged = init(scratch, tree, server, rounds)
    for series in (*packing, first, unchanged):
        walls = series.walls
        spread = f"{statistics.median(walls):6.2f} s ({min(walls):.2f}-{max(walls):.2f})"
        print(f"{series.tool:28} {spread}  CPU {series.median('cpu'):.2f} s  {series.note}")
    ours = packing[-1]
    for other in packing[:-1]:
        print(f"pack / {other.tool}: {paired_ratio(ours, other):.2f}")
    part = paired_ratio(unchanged, first)
    print(f"no-change init / first init: {part:.2f} (limit {LIMIT})")
    return 0 if paired_ratio(ours, packing[0]) < 1 and part <= LIMIT else 1


def make_tree(root: Path) -> None:
    """Two thirds of the files are pieces of Python's own library, the rest random bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("**/*.py"))
    text = b"".join(source.read_bytes() for source in sources if "site-packages" not in source.parts)
    chance = random.Random(1)
    for number in range(FILES):
        file = root / f"d{number // 50:03}" / f"m{number:04}.{'bin' if number % 3 == 0 else 'py'}"
        file.parent.mkdir(parents=True, exist_ok=True)
        start = chance.randrange(len(text) - SIZE)
        file.write_bytes(chance.randbytes(SIZE) if number % 3 == 0 else text[start : start + SIZE])


def pack(scratch: Path, tree: Path, rounds: int) -> list[Series]:
    out = scratch / "out.zip"
    commands = {
        "zip -r": ["zip", "-qr", str(out), "."],
        "zip -r -1": ["zip", "-qr1", str(out), "."],
        "blobsync (pack)": [sys.executable, "-c", _PACK % FILES, str(tree), str(out)],
    }
    found = [Series(name) for name in commands]
    for _ in range(rounds + 1):
        for series, argv in zip(found, commands.values(), strict=True):
            out.unlink(missing_ok=True)
            series.samples.append(_timed(argv, scratch, tree))
            series.note = f"{out.stat().st_size / 1e6:.1f} MB"
            subprocess.run(["unzip", "-tqq", str(out)], check=True)
    for series in found:
        # The first round fills the page cache and compiles.
        del series.samples[0]
    return found


def init(scratch: Path, tree: Path, server: Emulator, rounds: int) -> tuple[Series, Series]:
    first, unchanged = Series("blobsync init, first"), Series("blobsync init, no change")
    command = [str(Path(sys.executable).with_name("blobsync")), "init"]
    for _ in range(rounds + 1):
        _configure(tree, server)
        first.samples.append(_timed(command, scratch, tree, server))
        unchanged.samples.append(_timed(command, scratch, tree, server))
        shutil.rmtree(tree / ".blobsync")
    del first.samples[0], unchanged.samples[0]
    return first, unchanged


def _timed(argv: list[str], scratch: Path, tree: Path, server: Emulator | None = None) -> Sample:
    sample = run(argv, env={"PYTHONPATH": os.getcwd()}, cwd=tree, log=scratch / "output.log", server=server)
    if sample.exit_code != 0:
        raise SystemExit(f"{argv[0]} failed:\n{(scratch / 'output.log').read_text()}")
    return sample


def _configure(tree: Path, server: Emulator) -> None:
    """A project whose code goes to a container of its own."""
    account = {
        "account_name": ACCOUNT,
        "account_key": KEY,
        "container_name": server.new_container(),
        "blob_endpoint": f"{server.url}/{ACCOUNT}",
    }
    place = {"azure_blob_config_file": "aux_data/configs/a.yaml", "path": "code.zip"}
    for name, value in (("configs/a.yaml", account), ("aml/aml.yaml", {"config_param": {"code_path": place}})):
        file = tree / "aux_data" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(value))
        file.chmod(0o600)


if __name__ == "__main__":
    raise SystemExit(main())
