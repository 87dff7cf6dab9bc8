"""A project whose one container is in memory."""

from __future__ import annotations

import os
from pathlib import Path

from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster, StorageAccount
from blobsync.project.api import Project
from tests.fakes.project_context import cluster
from tests.fakes.store import MemoryStore

KEY = Secret("c2VudGluZWw=")
ACCOUNT = StorageAccount("aux_data/configs/eu.yaml", "eu", "data", "http://127.0.0.1:1/eu", account_key=KEY)


class Opened:
    """``project`` has the entry ``data``, or those of ``here``; ``store`` is the container."""

    def __init__(self, root: Path, here: Cluster | None = None) -> None:
        self.root = root
        self.cluster = here or cluster("eu", data=ACCOUNT)
        self.store = MemoryStore()
        self.store.container_url = self.cluster.folders[0].account.container
        self.connected = 0
        (root / "data").mkdir(parents=True, exist_ok=True)
        self.project = self.open()

    def open(self) -> Project:
        environ = {"HOME": str(self.root / "home"), "PATH": os.environ["PATH"]}
        return Project(self.root, self.root, self.cluster, environ=environ, connect=self.connect)

    def connect(self, account: StorageAccount) -> MemoryStore:
        self.connected += 1
        return self.store

    def write(self, name: str, body: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return path

    def blobs(self) -> dict[str, bytes]:
        return {name.removeprefix("store/"): blob.body for name, blob in self.store.blobs.items()}
