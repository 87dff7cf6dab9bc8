"""obstore's synchronous calls with threads, as a script: ``up|down|list ENDPOINT KEY CONTAINER PREFIX [PATH]``."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import AzureStore


def main(action: str, endpoint: str, key: str, container: str, prefix: str, path: str = "") -> None:
    store = AzureStore(
        container_name=container,
        account_name=endpoint.rpartition("/")[2],
        account_key=key,
        endpoint=endpoint,
        client_options={"allow_http": True},
    )
    root = Path(path)
    if action == "up":
        single = root.is_file()
        files = [root] if single else [Path(at, name) for at, _, names in os.walk(root) for name in names]

        def put(file: Path) -> None:
            obstore.put(store, prefix if single else f"{prefix}/{file.relative_to(root).as_posix()}", file)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(put, files))
    elif action == "down":
        names = [item["path"] for page in obstore.list(store, prefix=prefix, chunk_size=5000) for item in page]

        def get(name: str) -> None:
            target = root if name == prefix else root / name[len(prefix) + 1 :]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as sink:
                for chunk in obstore.get(store, name):
                    sink.write(chunk)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(get, names or [prefix]))
    else:
        for page in obstore.list(store, prefix=prefix, chunk_size=5000):
            for item in page:
                print(item["path"], item["size"])


if __name__ == "__main__":
    main(*sys.argv[1:])
