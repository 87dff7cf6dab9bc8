"""Time of ``ls -r`` of one flat folder, beside rclone's: ``python -m benchmarks.long_listing [--names N] [--arrow]``.

The fast server lists blobs behind a line with a delay. With ``--arrow`` it has Arrow's form as well, and rclone is
told to use it and to list in parallel ranges (https://rclone.org/azureblob/#azureblob-use-arrow-list); blobsync finds
out by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.fast_server import fast_server
from benchmarks.measure import run
from benchmarks.tools import Blobsync, Place, Rclone
from tests.servers.delay_proxy import delay_proxy

_RCLONE_ARROW = {"RCLONE_AZUREBLOB_USE_ARROW_LIST": "true", "RCLONE_AZUREBLOB_LIST_PARALLELISM": "30"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_listing", description=__doc__)
    parser.add_argument("--names", type=int, default=2_000_000)
    parser.add_argument("--round-trip-ms", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arrow", action="store_true")
    parser.add_argument("--only", action="append", help="blobsync or rclone")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder, fast_server(flat=options.names, arrow=options.arrow) as server:
        scratch = Path(folder)
        tools: dict[str, Blobsync | Rclone] = {
            "blobsync": Blobsync(scratch),
            "rclone": Rclone(scratch, Path(sys.executable)),
        }
        with delay_proxy(server.url, round_trip_ms=options.round_trip_ms) as line:
            local = scratch / "project" / "data" / "tree"
            place = Place(f"{line.url}/benchmark", "flat", "base/tree", local, single=False)
            for number in range(options.rounds + 1):
                for name in options.only or ("blobsync", "rclone"):
                    log = scratch / "names.txt"
                    command = tools[name].command("list", place)
                    env = {**command.env, **(_RCLONE_ARROW if options.arrow else {})}
                    sample = run(command.argv, env=env, cwd=command.cwd or scratch, log=log, server=server)
                    with log.open("rb") as found:
                        listed = sum(b"img_" in each for each in found)
                    log.unlink()
                    if sample.exit_code or listed != options.names:
                        sys.exit(f"{name}: exit code {sample.exit_code}, {listed:,} names")
                    if number:
                        print(
                            f"{name}: {sample.wall:.1f} s, CPU {sample.cpu:.1f} s, peak {sample.peak_mb:.0f} MB, "
                            f"server busy {sample.server_busy:.2f}",
                            flush=True,
                        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
