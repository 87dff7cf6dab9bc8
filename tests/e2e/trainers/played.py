"""Plays how a framework writes its checkpoints, slowly, so that kills meet half ones.

    python played.py LAYOUT OUTPUT LEDGER STEPS EVERY

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

layout, output, ledger, steps, every = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6])
chance = random.Random()
run = os.urandom(4).hex()


def told(**what):
    with ledger.open("a") as lines:
        lines.write(json.dumps(what) + "\n")


def sums(path):
    if path.is_file():
        return {"": hashlib.sha256(path.read_bytes()).hexdigest()}
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    return {str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


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


def huggingface(step):
    folder = output / f"checkpoint-{step}"
    for name in ("model.safetensors.bin", "optimizer.bin", "rng_state.bin"):
        slowly(folder / name, bytes_of(step, name))
    state = {"global_step": step, "log_history": [{"eval_loss": 1 / step}]}
    slowly(folder / "trainer_state.json", json.dumps(state).encode())
    return folder


def dcp(step):
    folder = output / f"step-{step}"
    for rank in range(3):
        slowly(folder / f"__{rank}_0.distcp", bytes_of(step, str(rank)))
    slowly(folder / ".metadata.tmp", bytes_of(step, "metadata"))
    (folder / ".metadata.tmp").rename(folder / ".metadata")
    return folder


def lightning(step):
    # It writes elsewhere and moves; between two file systems that is a copy.
    path = output / f"epoch=0-step={step}.ckpt"
    slowly(path, zipped(step))
    return path


def last(step):
    path = output / "last.ckpt"
    slowly(path, zipped(step))
    return path


def deepspeed(step):
    folder = output / f"global_step{step}"
    for rank in range(2):
        slowly(folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.bin", bytes_of(step, str(rank)))
    (output / "latest").write_text(folder.name)
    return folder


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


save = {"huggingface": huggingface, "dcp": dcp, "lightning": lightning, "last": last, "deepspeed": deepspeed}[layout]
start = 0
restored = os.environ.get("BLOBSYNC_RESTORED")
if restored:
    start = step_in(Path(restored))
    if layout == "deepspeed":
        assert (output / "latest").read_text() == Path(restored).name
told(started=start, restored=restored and Path(restored).name, files=sums(Path(restored)) if restored else {})
for step in range(start + 1, steps + 1):
    time.sleep(0.01)
    if step % every == 0:
        path = save(step)
        told(saved=step, set=path.name, files=sums(path))
        for old in sorted(output.glob("checkpoint-*"), key=lambda each: int(each.name.rpartition("-")[2]))[:-3]:
            # As save_total_limit does.
            shutil.rmtree(old)
told(ended=steps)
