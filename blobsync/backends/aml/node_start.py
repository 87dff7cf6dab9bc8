"""The first program on an Azure ML node. Standard library of Python 3.8 only; it is part of the job's command.

``bundle`` holds the job's specification and the files of the bootstrap. The arguments say where Azure ML put the job's
inputs and outputs: ``code=PATH``, ``node=PATH`` (the node archive), ``secrets=PATH``, ``folder.0=PATH`` and so on, in
the specification's order; of a sweep, also which task this is: ``task=7``. They are put into the specification; the
bootstrap does the rest, as on any other node. The secrets came through a container that others may use:
``bundle["secrets"]`` is the SHA-256 of the file that the job was submitted with, and ``bundle["pad"]`` (base64) is what
makes it readable.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import shutil
import sys
import tempfile
from typing import Any

MOUNTED = "mounted:"
READ_ONLY_MODES = ("download", "ro_mount")
SETUP_FAILED = 72


def main(bundle: dict[str, Any], argv: list[str]) -> None:
    """Become one process of the job."""
    places = dict(word.partition("=")[::2] for word in argv)
    private = tempfile.mkdtemp(prefix="blobsync-")
    remove_at_the_end(private)
    files = {**bundle["files"], "job.json": json.dumps(placed(bundle["job"], places))}
    for name, text in files.items():
        with open(os.path.join(private, name), "w", encoding="utf-8") as target:
            target.write(text)
    # Azure ML saves ./logs with the run.
    run_dir = os.path.join(os.getcwd(), "logs", "blobsync")
    if places.get("task"):
        os.environ["BLOBSYNC_TASK"] = places["task"]
    words = ["exec", "--job", os.path.join(private, "job.json"), "--run-dir", run_dir, *bundle["options"]]
    if places.get("secrets"):
        opened = os.path.join(private, "secrets.json")
        with open(opened, "wb") as file:
            file.write(open_secrets(places["secrets"], bundle["secrets"], bundle["pad"]))
        words += ["--secrets", opened]
    python, start = sys.executable, os.path.join(private, "bootstrap.py")
    os.execv(python, [python, "-I", start, *words])  # noqa: S606 - the program becomes another one


def remove_at_the_end(folder: str) -> None:
    """Remove ``folder`` when this process, or the program that it becomes, has ended, also if it is killed.

    Only that program has the other end of a pipe, which closes with it: what it starts does not inherit it.
    """
    end, held = os.pipe()
    os.set_inheritable(held, True)
    if os.fork():
        os.close(end)
        return
    os.close(held)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.read(end, 1)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def open_secrets(secrets: str, digest: str, pad: str) -> bytes:
    """The secrets as JSON. Exits unless the file is the one that the job was submitted with."""
    with open(secrets, "rb") as source:
        closed = source.read()
    if not hmac.compare_digest(hashlib.sha256(closed).hexdigest(), digest):
        reason = "its secrets are not those that the job was submitted with: their SHA-256 differs"
        sys.stderr.write(f"blobsync: this node could not be made ready: {reason}\n")
        sys.exit(SETUP_FAILED)
    other = base64.b64decode(pad)
    return bytes(one ^ other[number] for number, one in enumerate(closed))


def placed(job: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The specification with this node's paths."""
    for name, key in (("code", "code"), ("node", "node_archive")):
        if job.get(key) and places.get(name):
            job[key]["container"] = MOUNTED + places[name]
    for number, folder in enumerate(job["folders"]):
        path = places.get(f"folder.{number}")
        if path is None:
            # It is uploaded by the node itself, with a SAS.
            continue
        if folder["include"]:
            folder.update(mode="download", container=MOUNTED + path, path="")
        else:
            folder.update(mode="link", source=path, read_only=folder["mode"] in READ_ONLY_MODES)
    return job
