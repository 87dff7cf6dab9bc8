"""Trains on one or several nodes: each writes its shard, node 0 the metadata when all have; tells what was restored.

    python sharded.py STEPS [HOST]

HOST is node 0's, where its name in MASTER_ADDR cannot be resolved.
What a step writes is known beforehand, to this program and to the test, which compares whole files with that.
"""

import hashlib
import json
import os
import random
import socket
import sys
import time
from pathlib import Path


def content(step: int, name: str) -> bytes:
    head = json.dumps({"step": step, "name": name}).encode()
    return head + random.Random(f"{step}/{name}").randbytes(50_000)


def names(nodes: int) -> list[str]:
    return [".metadata", *(f"__{node}_0.distcp" for node in range(nodes))]


def digest_of(files: dict[str, bytes]) -> str:
    """One digest of a set: of the names of its files and their bytes."""
    sums = {name: hashlib.sha256(body).hexdigest() for name, body in files.items()}
    return hashlib.sha256(json.dumps(sums, sort_keys=True).encode()).hexdigest()


def digest_of_step(step: int, nodes: int) -> str:
    """Of what the program writes at this step on so many nodes."""
    return digest_of({name: content(step, name) for name in names(nodes)})


class Barrier:
    """All nodes wait here for each other, as the ranks of a real job do in every step."""

    def __init__(self, node, nodes, host):
        place = host, int(os.environ.get("MASTER_PORT", "0"))
        self.others = []
        if node == 0 and nodes > 1:
            with socket.create_server(("", place[1])) as server:
                self.others = [server.accept()[0] for _ in range(nodes - 1)]
        until = time.monotonic() + 120
        while node and not self.others:
            try:
                self.others = [socket.create_connection(place)]
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        self.is_first = node == 0

    def wait(self):
        for first in (True, False):
            for other in self.others:
                if first != self.is_first:
                    other.sendall(b".")
                elif not other.recv(1):
                    sys.exit("another node has gone")


def main():
    node, steps = int(os.environ["NODE_RANK"]), int(sys.argv[1])
    nodes = int(os.environ.get("WORLD_SIZE", "1"))
    restored = os.environ.get("BLOBSYNC_RESTORED")
    start, digest = int(os.environ.get("BLOBSYNC_RESTORED_STEP", "0")), "nothing"
    if restored:
        digest = digest_of({path.name: path.read_bytes() for path in Path(restored).iterdir()})
    print("started at", start, "from", digest, flush=True)
    barrier = Barrier(node, nodes, sys.argv[2] if len(sys.argv) > 2 else os.environ.get("MASTER_ADDR"))
    for step in range(start + 1, steps + 1):
        time.sleep(0.3)
        folder = Path("output", f"step-{step}")
        folder.mkdir(parents=True, exist_ok=True)
        body = content(step, f"__{node}_0.distcp")
        with (folder / f"__{node}_0.distcp").open("wb") as shard:
            shard.write(body[:20_000])
            shard.flush()
            time.sleep(0.05)
            shard.write(body[20_000:])
        barrier.wait()
        if node == 0:
            (folder / ".metadata.tmp").write_bytes(content(step, ".metadata"))
            (folder / ".metadata.tmp").rename(folder / ".metadata")
    print("ended at", steps, flush=True)


if __name__ == "__main__":
    main()
