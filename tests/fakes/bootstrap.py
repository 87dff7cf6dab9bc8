"""A compute node whose bootstrap starts a small program instead of blobsync."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from blobsync.jobspec.node_archive import ENTRY, pack
from blobsync.jobspec.spec import JobSpec, NodeArchiveRef
from blobsync.node.standalone import bootstrap
from tests.fakes.blob_service import SAS, BlobService

ARCHIVE = "code.zip.d/node/archive.zip"
# Prints its arguments and its folder.
TELL = """\
import json, os, sys
from pathlib import Path

def main(argv):
    place = Path(sys.modules["__main__"].__file__).parent
    print(json.dumps({"argv": argv, "place": str(place), "isolated": sys.flags.isolated, "code": sys.argv}))
    return 5
"""
SOURCES = {
    "blobsync/__init__.py": b"",
    "blobsync/node/__init__.py": b"",
    f"{ENTRY.replace('.', '/')}.py": TELL.encode(),
}


def python_of(version: str) -> str | None:
    """A Python of this version ("3.8"). A version manager's shim is on PATH whether or not it has that version."""
    if version == f"3.{sys.version_info.minor}":
        return sys.executable
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    found = [*sorted(map(str, home.glob(f".pyenv/versions/{version}.*/bin/python"))), shutil.which(f"python{version}")]
    works = (path for path in found if path and not subprocess.run([path, "-c", ""], check=False).returncode)
    return next(works, None)


@dataclass
class BootedNode:
    """One node: its scratch folder, its run folder, and the container that has the archive."""

    folder: Path
    service: BlobService
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)
    secret_env: dict[str, str] = field(default_factory=dict)
    sas: str = SAS

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def place(self, spec: JobSpec) -> Path:
        """The bootstrap's own folder on this node."""
        return self.scratch / spec.run_id / "node.boot"

    def archive(self, sources: Mapping[str, bytes] = SOURCES) -> NodeArchiveRef:
        body = pack(sources)
        self.service.put(ARCHIVE, body)
        return NodeArchiveRef(self.service.url, ARCHIVE, hashlib.sha256(body).hexdigest(), len(body))

    def command(self, verb: str, spec: JobSpec, *more: str) -> list[str]:
        if spec.node_archive is None:
            spec = replace(spec, node_archive=self.archive())
        self.run.mkdir(parents=True, exist_ok=True)
        (self.run / "job.json").write_text(spec.to_json())
        secrets = {"sas": {self.service.url: self.sas}, "env": self.secret_env}
        (self.run / "secrets.json").write_text(json.dumps(secrets))
        words = ("--job", str(self.run / "job.json"), "--secrets", str(self.run / "secrets.json"))
        return [self.python, "-I", bootstrap.__file__, verb, *words, "--run-dir", str(self.run), *more]

    def environ(self) -> dict[str, str]:
        return {**os.environ, "BLOBSYNC_SCRATCH": str(self.scratch), **self.env}

    def do(self, verb: str, spec: JobSpec, *more: str) -> subprocess.CompletedProcess[str]:
        command = self.command(verb, spec, *more)
        return subprocess.run(command, env=self.environ(), capture_output=True, text=True, timeout=120)
