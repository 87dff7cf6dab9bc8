"""CPU and memory of a plan over a million entries, and of ``verify``: ``python -m benchmarks.million [--entries N]``.

The local side is a real tree of empty files, on a memory file system where there is one. The remote side is a server
that makes up List Blobs pages of 5,000 blobs, and ListObjectsV2 pages of 1,000 objects, as fast as it can, so that what
is measured is blobsync: walking, parsing, pairing, deciding, and holding the plan.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import run
from benchmarks.tools import Blobsync, Place
from tests.servers.listing_server import PER_FOLDER, listing_server, name_of

# As many names as a file may have on ext4: https://www.kernel.org/doc/html/latest/filesystems/ext4/ (65,000).
_NAMES_PER_FILE = 60_000


def make_tree(root: Path, entries: int) -> None:
    """Names of empty files: hard links, which take no inode each."""
    base = root.parent / "names"
    for start in range(0, entries, PER_FOLDER):
        folder = root / name_of(start).partition("/")[0]
        folder.mkdir(parents=True)
        if start % _NAMES_PER_FILE == 0:
            base.unlink(missing_ok=True)
            base.touch()
        handle = os.open(folder, os.O_RDONLY)
        for number in range(start, min(start + PER_FOLDER, entries)):
            os.link(base, name_of(number).partition("/")[2], dst_dir_fd=handle)
        os.close(handle)
    base.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--limit-mb", type=float, default=1024 * 1.048576, help="fail above this peak (1 GiB)")
    parser.add_argument("--scratch", type=Path, help="where the files go (default: memory, if there is such a folder)")
    parser.add_argument("--case", type=int, action="append", choices=range(1, 7), help="only this one")
    options = parser.parse_args(argv)
    memory = Path("/dev/shm")
    folder = options.scratch or (memory if os.access(memory, os.W_OK) else None)
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-million-", dir=folder))
    ours = Blobsync(scratch)
    worst = 0.0
    try:
        (scratch / "full" / "data").mkdir(parents=True)
        if options.case is None or set(options.case) - {2, 5, 6}:
            make_tree(scratch / "full" / "data" / "tree", options.entries)
        (scratch / "bare" / "data").mkdir(parents=True)
        cases = (
            (("plan", "u"), "full", 0, "upload, nothing is there yet"),
            (("plan", "d"), "bare", options.entries, "download, nothing is here yet"),
            (("plan", "u"), "full", options.entries, "upload, all of it is there, never verified before"),
            (("verify",), "full", 0, "verify, nothing is there"),
            (("verify",), "bare", options.entries, "verify, nothing is here"),
            (("plan", "u", "--source"), "bare", 0, "copy from a bucket, nothing is there yet"),
        )
        for number in options.case or range(1, 7):
            command, project, remote, title = cases[number - 1]
            with listing_server(remote) as url, listing_server(options.entries) as bucket:
                place = Place(
                    f"{url}/benchmark", "container", "base/tree", scratch / project / "data" / "tree", single=False
                )
                given = ("s3://bucket/base/tree", "--endpoint-url", bucket, "--no-sign-request")
                words = ours.bare(*command, *(given if "--source" in command else ()), "-q", "data/tree").argv
                sample = run(words, env={}, cwd=ours.project(place), log=scratch / "output.log", server=None)
            # Of verify: nothing is equal.
            if sample.exit_code != (1 if command == ("verify",) else 0):
                sys.exit((scratch / "output.log").read_text(errors="replace")[-2000:])
            worst = max(worst, sample.peak_mb)
            print(
                f"{options.entries:,} entries, {title}: {sample.wall:.1f} s, CPU {sample.cpu:.1f} s, "
                f"peak {sample.peak_mb:.0f} MB, {sample.peak_mb * 1e6 / options.entries:.0f} bytes an entry",
                flush=True,
            )
            (scratch / "output.log").unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if worst <= options.limit_mb else 1


if __name__ == "__main__":
    sys.exit(main())
