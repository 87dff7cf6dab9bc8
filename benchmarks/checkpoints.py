"""What a set of checkpoint files costs that goes up beside a training: ``python -m benchmarks.checkpoints``.

A job on this machine writes one set and goes on computing, while blobsync's process on the node uploads the set to
Azurite, which keeps it on the disk. CPU time is that of this process alone, in cores, from the moment when the set is
complete until its mark is there; the program and the server are other processes.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.emulator import Emulator, account_sas, emulator
from benchmarks.keep import cpu_seconds
from blobsync.base.seals import KEY_BYTES
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import LINEAGE_KEYS, CodeRef, FolderLink, JobSpec
from tests.fakes.jobs import zip_of

# Computes, writes the set, and computes again until it is told to stop.
_PROGRAM = """\
import os, pathlib, sys, time
files, size, stop = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])

def compute(goes_on):
    done, began = 0, time.thread_time()
    while goes_on():
        sum(range(100_000))
        done += 1
    return f"{done / (time.thread_time() - began):.0f} steps a second of CPU"

until = time.monotonic() + 5
print("alone:", compute(lambda: time.monotonic() < until), flush=True)
folder = pathlib.Path("output/checkpoint-1")
folder.mkdir(parents=True)
for number in range(files):
    with open(folder / f"{number}.bin", "wb") as body:
        for begin in range(0, size, 1 << 22):
            body.write(os.urandom(min(1 << 22, size - begin)))
(folder / "done").touch()
print("beside the upload:", compute(lambda: not stop.exists()), flush=True)
"""
_PATIENCE = 1800.0


class Node:
    """One node with one job, which writes ``files`` files of ``size`` bytes."""

    def __init__(self, folder: Path, server: Emulator, rule: CheckpointRule, files: int, size: int) -> None:
        self._run, self._root, self._stop = folder / "run", folder / "root", folder / "stop"
        self._run.mkdir(parents=True)
        self._container = server.container(server.new_container())
        body, digest = zip_of({"here.txt": ""})
        self._container.upload_blob("code/project.zip", body)
        url = self._container.url
        entry = FolderLink("output", url, "mine/output", "upload", checkpoints=rule)
        words = (sys.executable, "-c", _PROGRAM, str(files), str(size), str(self._stop))
        code = CodeRef(url, "code/project.zip", digest)
        spec = JobSpec("me_1_0badcafe", words, "here", "slurm", code=code, folders=(entry,))
        (self._run / "job.json").write_text(spec.to_json())
        keys = {LINEAGE_KEYS: json.dumps({spec.lineage: bytes(KEY_BYTES).hex()})}
        (self._run / "secrets.json").write_text(json.dumps({"sas": {url: account_sas()}, "env": keys}))

    def measure(self) -> None:
        """Run the job until its set is marked, and print what that took."""
        words = [sys.executable, "-m", "blobsync.node", "node", "--job", str(self._run / "job.json")]
        words += ["--secrets", str(self._run / "secrets.json"), "--run-dir", str(self._run), "--root", str(self._root)]
        with (self._run / "out.txt").open("wb") as sink:
            process = subprocess.Popen([*words, "--sync-seconds", "2"], stdout=sink, stderr=sink)
            try:
                done = self._root / "output/checkpoint-1/done"
                self._until(done.exists, process)
                before, began = cpu_seconds(process.pid), time.monotonic()
                self._until(self._is_marked, process)
                cores = (cpu_seconds(process.pid) - before) / (time.monotonic() - began)
                memory = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
                self._stop.touch()
                process.wait(120)
            finally:
                process.kill()
                process.wait()
        self._tell(cores, int(memory[1]) >> 10 if memory else 0)

    def _tell(self, cores: float, memory: int) -> None:
        marked = re.search(r"checkpoint-1 is complete in the container: .*, ([\d,]+) bytes in ([\d.]+) s", self._log())
        assert marked, self._log()
        size, seconds = int(marked[1].replace(",", "")), float(marked[2])
        print(f"  {size:,} bytes in {seconds:.1f} s: {8 * size / seconds / 1e6:,.0f} megabits a second")
        print(f"  {cores:.2f} cores, at most {memory} MiB of memory")
        for words in re.findall(r"(?:alone|beside the upload): .*", self._log()):
            print(f"  the program {words}", flush=True)

    def _is_marked(self) -> bool:
        there = self._container.list_blob_names(name_starts_with=".blobsync/checkpoints/")
        return any(name.endswith("/checkpoint-1.json") for name in there)

    def _log(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._run.rglob("*.txt")))

    def _until(self, true: object, process: subprocess.Popen[bytes]) -> None:
        assert callable(true)
        until = time.monotonic() + _PATIENCE
        while not true():
            if time.monotonic() > until or process.poll() is not None:
                sys.exit(self._log()[-3000:])
            time.sleep(0.5)


def main() -> int:
    """Print the figures of one set."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--mib", type=int, default=2048, help="of each file")
    parser.add_argument("--upload-cores", type=int, default=1)
    parser.add_argument("--cap-mbps", type=int)
    chosen = parser.parse_args()
    rule = CheckpointRule(
        "checkpoint-*",
        ("done",),
        settle_seconds=0,
        upload_cores=chosen.upload_cores,
        cap_mbps=chosen.cap_mbps,
    )
    with tempfile.TemporaryDirectory() as folder, emulator(location=Path(folder, "server")) as server:
        Node(Path(folder, "node"), server, rule, chosen.files, chosen.mib << 20).measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
