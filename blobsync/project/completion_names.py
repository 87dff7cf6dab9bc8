"""Names in a folder of a container for shell completion, cached for seconds and waited for briefly.

A separate process lists the container and writes the names to the user's state folder. The completion waits for it
until a deadline; later names are there the next time.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from blobsync.base.errors import BlobsyncError
from blobsync.base.process import run_detached
from blobsync.base.user_folders import environment, read_own, remove_own, state_home, write_own
from blobsync.config.mapping import Resolution, resolve
from blobsync.config.model import Cluster
from blobsync.store.protocol import BlobStore

# Seconds: for the whole command, for printing, for the validity of cached names, for the process that lists.
ANSWER_WITHIN = 0.3
LEAST_WAIT = 0.05
USED_AGAIN = 10.0
ASKS_FOR = 5
_POLL = 0.01
# One answer of the service: https://learn.microsoft.com/rest/api/storageservices/list-blobs
_NAMES = 5000

Ask = Callable[[Resolution], BlobStore]


def names_below(
    cluster: Cluster,
    folder: str,
    start: str,
    *,
    cwd: Path,
    remote: bool,
    environ: Mapping[str, str] | None = None,
    connect: Ask | None = None,
) -> Iterator[str]:
    """Names in ``folder`` that may begin with ``start``, folders with a slash: nested folder entries, and, with
    ``remote``, blobs if they are known in time. Raises ``ConfigError``."""
    environ = environment(environ)
    here = Path(cwd, folder).resolve() if folder != "/" else cwd
    for prefix in cluster.prefixes:
        entry = Path(cluster.root.resolve(), prefix)
        if entry.is_relative_to(here) and entry != here:
            yield f"{entry.relative_to(here).parts[0]}/"
    if not remote:
        return
    try:
        place = resolve(folder, cwd=cwd, root=cluster.root, cluster=cluster)
    except BlobsyncError:
        return
    deadline = time.monotonic() + max(ANSWER_WITHIN - time.process_time(), LEAST_WAIT)
    use_cli = cluster.flag("use_cli_auth")
    ask = connect or (lambda place: _connect(place, environ, use_cli))
    names = _known_names(place, "", environ, ask, deadline)
    if len(names) >= _NAMES and start:
        # More names than a page has: list those with this beginning.
        names = _known_names(place, start, environ, ask, deadline)
    yield from names


def _connect(place: Resolution, environ: Mapping[str, str], use_cli_auth: bool) -> BlobStore:
    from blobsync.store.connect import impatient

    return impatient(place.entry.account, environ=environ, use_cli_auth=use_cli_auth)


def _known_names(
    place: Resolution, start: str, environ: Mapping[str, str], ask: Ask, deadline: float
) -> tuple[str, ...]:
    prefix = (f"{place.remote.name}/" if place.remote.name else "") + start
    mark = hashlib.sha256(f"{place.remote.container}\n{prefix}".encode()).hexdigest()
    file = state_home(environ) / "completion" / f"{mark[:32]}.json"
    known = _read_names(file)
    if known is not None:
        return known
    run_detached(lambda: _note_names(ask(place), prefix, len(prefix) - len(start), file), ASKS_FOR)
    while time.monotonic() < deadline:
        time.sleep(_POLL)
        known = _read_names(file)
        if known is not None:
            return known
    return ()


def _read_names(file: Path) -> tuple[str, ...] | None:
    """The cached names; None if they are too old or missing."""
    try:
        text = read_own(file)
        found = json.loads(text) if text else {}
        fresh = abs(time.time() - float(found["at"])) < USED_AGAIN
        return tuple(map(str, found["names"])) if fresh else None
    except (BlobsyncError, KeyError, TypeError, ValueError):
        return None


def _note_names(store: BlobStore, prefix: str, cut: int, file: Path) -> None:
    names = [
        item[cut:] if isinstance(item, str) else item.name[cut:] for item in islice(store.list_folder(prefix), _NAMES)
    ]
    remove_own(file.parent, ".json", before=time.time() - USED_AGAIN)
    write_own(file, json.dumps({"at": time.time(), "names": [name for name in names if name]}))
