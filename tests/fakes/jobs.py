"""Job specifications, code archives and node runs for tests."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blobsync.jobspec.spec import CodeRef, FolderLink, JobSpec, LogMirror
from tests.fakes.blob_service import SAS, BlobService
from tests.fakes.lineages import sent
from tests.servers.forked import start_module

CODE = "code/project.zip"
# Of a run that hangs (seconds): on a busy machine each of its processes may take many to start.
_PATIENCE = 150.0
_MODULE = ("-m", "blobsync.node")


def make_spec(*argv: str, **changes: Any) -> JobSpec:
    """A small job; ``changes`` are fields of the specification."""
    spec = JobSpec(run_id="me_1_0badcafe", argv=argv or ("true",), cluster="here", platform="local")
    return replace(spec, **changes)


def zip_of(files: Mapping[str, str | tuple[str, int]]) -> tuple[bytes, str]:
    """An archive as made by init, and its digest; a value may have the entry's Unix mode."""
    buffer, lines = io.BytesIO(), []
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in sorted(files.items()):
            text, mode = value if isinstance(value, tuple) else (value, 0o100644)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, text)
            word = "link" if mode & 0o170000 == 0o120000 else "755" if mode & 0o100 else "644"
            lines.append(f"{word} {hashlib.sha256(text.encode()).hexdigest()} {name}\0")
    return buffer.getvalue(), hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass
class Node:
    """One compute node: a run directory, a root, and a container."""

    folder: Path
    service: BlobService
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)
    sas: str = SAS
    program: tuple[str, ...] = _MODULE

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def code(self, files: Mapping[str, str | tuple[str, int]]) -> CodeRef:
        body, digest = zip_of(files)
        self.service.put(CODE, body)
        return CodeRef(self.service.url, CODE, digest)

    def folder_link(self, name: str, mode: str, **more: Any) -> FolderLink:
        return FolderLink(name, self.service.url, f"mine/{name}", mode, **more)

    @property
    def mirror(self) -> LogMirror:
        return LogMirror(self.service.url, "mine/output.logs/me")

    def command(self, verb: str, spec: JobSpec, *more: str, secret_env: Mapping[str, str] | None = None) -> list[str]:
        self.run.mkdir(parents=True, exist_ok=True)
        # At once: another process of the node may be reading it.
        (self.run / "new.json").write_text(spec.to_json())
        (self.run / "new.json").replace(self.run / "job.json")
        secrets = {"sas": {self.service.url: self.sas}, "env": {**sent(spec), **(secret_env or {})}}
        (self.run / "new.json").write_text(json.dumps(secrets))
        (self.run / "new.json").replace(self.run / "secrets.json")
        return [
            *(self.python, *self.program, verb, "--job", str(self.run / "job.json")),
            *("--secrets", str(self.run / "secrets.json"), "--run-dir", str(self.run), "--root", str(self.root), *more),
        ]

    def environ(self) -> dict[str, str]:
        return {**os.environ, **self.env}

    def start(
        self, verb: str, spec: JobSpec, *more: str, stdout: int = 1, stderr: int = 2, **settings: Any
    ) -> subprocess.Popen[str]:
        """Start it, with this process's own output unless others are given; the caller waits for it."""
        command, environ = self.command(verb, spec, *more, **settings), self.environ()
        if self.python == sys.executable and self.program == _MODULE:
            words = command[1 + len(_MODULE) :]
            return start_module(_MODULE[1], words, folder=Path.cwd(), environ=environ, stdout=stdout, stderr=stderr)
        return subprocess.Popen(command, env=environ, stdout=stdout, stderr=stderr, text=True)

    def do(self, verb: str, spec: JobSpec, *more: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        pipe = subprocess.PIPE
        with self.start(verb, spec, *more, stdout=pipe, stderr=pipe, **settings) as process:
            try:
                out, err = process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.wait(), out, err)

    def log(self, rank: int | None = None) -> str:
        name = "std_log.txt" if rank is None else f"std_log_process_{rank}.txt"
        return (self.run / "user_logs" / name).read_text()

    @property
    def node_log(self) -> str:
        return (self.run / "system_logs" / "node_0.txt").read_text()
