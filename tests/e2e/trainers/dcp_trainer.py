"""Two ranks that save a sharded state with torch.distributed.checkpoint, and go on from the one that was restored."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ledger import completing, restored, started, sums
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

RANKS = 2


class Told(FileSystem):
    """Tells what a set has before it gets its last name."""

    def rename(self, path, new_path):
        files = sums(Path(path).parent)
        files[Path(new_path).name] = files.pop(Path(path).name)
        completing(int(Path(path).parent.name.rpartition("-")[2]), Path(path).parent.name, files)
        super().rename(path, new_path)


class Writer(FileSystemWriter):
    def __init__(self, path):
        super().__init__(path)
        self.fs = Told()


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
            dcp.save(state, storage_writer=Writer(Path(output, f"step-{step}")))
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    torch.set_num_threads(1)
    torch.multiprocessing.spawn(train, (sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), port), nprocs=RANKS)
