"""Two ranks that save a sharded state with torch.distributed.checkpoint, and go on from the one that was restored."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ledger import restored, saved, started
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2


def train(rank, output, steps, every, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (RANKS,))
    state = {"weights": distribute_tensor(torch.zeros(512, 64), mesh, [Shard(0)]), "step": 0}
    found = restored()
    if found:
        dcp.load(state, checkpoint_id=str(found))
        assert bool((state["weights"].to_local() == state["step"]).all()), "shards of different steps"
    if rank == 0:
        started(state["step"], found)
    for step in range(state["step"] + 1, steps + 1):
        time.sleep(0.02)
        state = {"weights": state["weights"] * 0 + step, "step": step}
        if step % every == 0:
            path = Path(output, f"step-{step}")
            dcp.save(state, checkpoint_id=str(path))
            dist.barrier()
            if rank == 0:
                saved(step, path)
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.set_num_threads(1)
    torch.multiprocessing.spawn(train, (sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), port), nprocs=RANKS)
