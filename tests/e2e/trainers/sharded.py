"""Trains on one or several nodes: each writes its shard, node 0 the metadata at the end; checks what was restored.

python sharded.py STEPS
"""

import json
import os
import sys
import time
from pathlib import Path

node, steps = int(os.environ["NODE_RANK"]), int(sys.argv[1])
nodes = int(os.environ.get("WORLD_SIZE", "1"))
start, restored = 0, os.environ.get("BLOBSYNC_RESTORED")
if restored:
    shards = [json.loads(path.read_text()[:200]) for path in sorted(Path(restored).glob("*.distcp"))]
    start = int(os.environ["BLOBSYNC_RESTORED_STEP"])
    assert [each["node"] for each in shards] == list(range(nodes)), shards
    assert {each["step"] for each in shards} == {start} == {json.loads(Path(restored, ".metadata").read_text())["step"]}
print("started at", start, flush=True)
for step in range(start + 1, steps + 1):
    time.sleep(0.3)
    folder = Path("output", f"step-{step}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"__{node}_0.distcp").open("w") as shard:
        shard.write(json.dumps({"node": node, "step": step}).ljust(200))
        shard.flush()
        time.sleep(0.05)
        shard.write("w" * 50_000)
    if node == 0:
        # As if a barrier had told it that the others have written.
        time.sleep(0.1)
        (folder / ".metadata.tmp").write_text(json.dumps({"step": step}))
        (folder / ".metadata.tmp").rename(folder / ".metadata")
print("ended at", steps, flush=True)
