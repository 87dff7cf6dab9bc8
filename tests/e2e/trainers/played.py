"""Plays how a framework writes its checkpoints, slowly, so that kills meet half ones.

    python played.py LAYOUT OUTPUT STEPS EVERY

It goes on from ``BLOBSYNC_RESTORED``, after it has checked that every file there has the content of that step.
"""

import hashlib
import io
import json
import os
import random
import shutil
import sys
import time
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from ledger import completing, restored, started

layout, output, steps, every = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5])
chance = random.Random()
run = os.urandom(4).hex()


def slowly(path, body):
    """Write a file in pieces."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for at in range(0, len(body), 20_000):
            file.write(body[at : at + 20_000])
            file.flush()
            time.sleep(chance.uniform(0, 0.02))


def bytes_of(step, name):
    # The run is in it: each start writes another version of a step.
    head = json.dumps({"step": step, "name": name, "run": run}).encode().ljust(200)
    return head + random.Random(f"{step}/{name}").randbytes(70_000)


def zipped(step):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", bytes_of(step, "zip"))
    return buffer.getvalue()


def write(step, name, files, last):
    """Write a set: these files, and what completes it at the end, of which ``{"": body}`` alone is a file itself."""
    path = output / name
    for file, body in files.items():
        slowly(path / file, body)
    digests = {file: hashlib.sha256(body).hexdigest() for file, body in {**files, **last}.items()}
    completing(step, name, digests)
    for file, body in last.items():
        if file == ".metadata":
            slowly(path / ".metadata.tmp", body)
            (path / ".metadata.tmp").rename(path / file)
        else:
            slowly(path / file if file else path, body)


def huggingface(step):
    names = ("model.safetensors.bin", "optimizer.bin", "rng_state.bin")
    state = {"global_step": step, "log_history": [{"eval_loss": 1 / step}]}
    files = {name: bytes_of(step, name) for name in names}
    write(step, f"checkpoint-{step}", files, {"trainer_state.json": json.dumps(state).encode()})


def dcp(step):
    files = {f"__{rank}_0.distcp": bytes_of(step, str(rank)) for rank in range(3)}
    write(step, f"step-{step}", files, {".metadata": bytes_of(step, "metadata")})


def lightning(step):
    # It writes elsewhere and moves; between two file systems that is a copy.
    write(step, f"epoch=0-step={step}.ckpt", {}, {"": zipped(step)})


def last(step):
    write(step, "last.ckpt", {}, {"": zipped(step)})


def deepspeed(step):
    ranks = {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.bin": bytes_of(step, str(rank)) for rank in range(2)}
    write(step, f"global_step{step}", ranks, {})
    (output / "latest").write_text(f"global_step{step}")


def megatron(step):
    ranks = {f"mp_rank_{rank:02}/model_optim_rng.bin": bytes_of(step, str(rank)) for rank in range(2)}
    write(step, f"iter_{step:07}", ranks, {})
    (output / "latest_checkpointed_iteration.txt").write_text(str(step))


def step_in(path):
    """The step of what was restored, of every file alike."""
    found = set()
    for file in [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]:
        body = file.read_bytes()
        if file.suffix == ".json":
            found.add(json.loads(body)["global_step"])
        elif zipfile.is_zipfile(file):
            inner = zipfile.ZipFile(file).read("data.pkl")
            found.add(json.loads(inner[:200])["step"])
        else:
            found.add(json.loads(body[:200])["step"])
    (only,) = found
    return only


layouts = (huggingface, dcp, lightning, last, deepspeed, megatron)
save = {each.__name__: each for each in layouts}[layout]
start, found = 0, restored()
if found:
    start = step_in(found)
    if layout == "deepspeed":
        assert (output / "latest").read_text() == found.name
    if layout == "megatron":
        assert (output / "latest_checkpointed_iteration.txt").read_text() == str(start)
started(start, found)
for step in range(start + 1, steps + 1):
    time.sleep(0.01)
    if step % every == 0:
        save(step)
        for old in sorted(output.glob("checkpoint-*"), key=lambda each: int(each.name.rpartition("-")[2]))[:-3]:
            # As save_total_limit does.
            shutil.rmtree(old)
