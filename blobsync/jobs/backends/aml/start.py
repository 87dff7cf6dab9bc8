"""What an Azure ML node runs first. Standard library only, Python 3.8 or newer; it travels inside the job's command.

``BUNDLE`` holds the runner's source and the job's specification. The arguments say where Azure ML put the job's
inputs and outputs: ``code=PATH``, ``secrets=PATH``, ``folder.0=PATH`` and so on, in the specification's order.
The runner then works as on any other node, except that folders are links to those places, and that the code
archive and parts of folders are copied out of them instead of being fetched with a SAS.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import types
from typing import Any

MOUNTED = "mounted:"
READ_ONLY_MODES = ("download", "ro_mount")


def main(bundle: dict[str, Any], argv: list[str]) -> int:
    """Become one process of the job; returns its exit code."""
    places = dict(word.partition("=")[::2] for word in argv)
    runner = types.ModuleType("runner")
    # So that tracebacks and dataclass-like helpers find the module that they are in.
    sys.modules["runner"] = runner
    exec(compile(bundle["runner"], "runner.py", "exec"), runner.__dict__)  # noqa: S102 - our own text
    read_from_mounts(runner)
    job = placed(bundle["job"], places)
    private = tempfile.mkdtemp(prefix="blobsync-")
    job_file = os.path.join(private, "job.json")
    with open(job_file, "w", encoding="utf-8") as target:
        json.dump(job, target)
    # Azure ML keeps what is below ./logs with the run.
    words = ["exec", "--job", job_file, "--run-dir", os.path.join(os.getcwd(), "logs", "blobsync"), *bundle["options"]]
    if places.get("secrets"):
        words += ["--secrets", places["secrets"]]
    code: int = runner.main(words)
    return code


def placed(job: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """The specification with this node's paths."""
    if job.get("code") and places.get("code"):
        job["code"]["container"] = MOUNTED + places["code"]
    for number, folder in enumerate(job["folders"]):
        path = places[f"folder.{number}"]
        if folder["include"]:
            folder.update(mode="download", container=MOUNTED + path, path="")
        else:
            folder.update(mode="link", source=path, read_only=folder["mode"] in READ_ONLY_MODES)
    return job


def read_from_mounts(runner: Any) -> None:
    """Let the runner take ``mounted:PATH`` where it expects a container's URL."""

    class Mounted(runner.Container):  # type: ignore[misc]
        def __init__(self, place: str) -> None:
            self._place = place

        def list(self, prefix: str) -> Any:
            for folder, _, names in os.walk(self._place):
                for name in names:
                    path = os.path.join(folder, name)
                    relative = os.path.relpath(path, self._place).replace(os.sep, "/")
                    if relative.startswith(prefix):
                        yield runner.RemoteFile(relative, os.path.getsize(path))

        def get(self, name: str, target: str, halt: Any = None) -> None:
            path = self._place if os.path.isfile(self._place) else os.path.join(self._place, name)
            shutil.copyfile(path, target)

    by_sas = runner.Job.container

    def container(job: Any, url: str) -> Any:
        return Mounted(url[len(MOUNTED) :]) if url.startswith(MOUNTED) else by_sas(job, url)

    runner.Job.container = container
