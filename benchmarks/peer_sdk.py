"""azure-storage-blob with threads, as a script: ``up|down|list ENDPOINT KEY CONTAINER PREFIX [PATH]``."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from azure.storage.blob import ContainerClient


def main(action: str, endpoint: str, key: str, container: str, prefix: str, path: str = "") -> None:
    client = ContainerClient(endpoint, container, credential=key)
    root = Path(path)
    if action == "up":
        single = root.is_file()
        files = [root] if single else [Path(at, name) for at, _, names in os.walk(root) for name in names]

        def put(file: Path) -> None:
            name = prefix if single else f"{prefix}/{file.relative_to(root).as_posix()}"
            with file.open("rb") as body:
                client.upload_blob(name, body, overwrite=True, max_concurrency=8)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(put, files))
    elif action == "down":
        names = [blob.name for blob in client.list_blobs(name_starts_with=prefix)]

        def get(name: str) -> None:
            target = root if name == prefix else root / name[len(prefix) + 1 :]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as sink:
                client.download_blob(name, max_concurrency=8).readinto(sink)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(get, names))
    else:
        for blob in client.list_blobs(name_starts_with=prefix):
            print(blob.name, blob.size)


if __name__ == "__main__":
    main(*sys.argv[1:])
