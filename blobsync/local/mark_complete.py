"""Says that a set of files is complete, from the program that wrote it; and reads what programs said.

:func:`mark_complete` uses the standard library alone, and works with several ranks: each says it, and the set counts as
complete when as many as wanted have. A request is a small file in the folder ``$BLOBSYNC_COMPLETE`` of a job, elsewhere
beside the set, under a name that is never uploaded. Nobody else is asked to believe it: it names a set of the folder,
whose files are looked at anyway.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# The folder for requests of a job's programs.
VARIABLE = "BLOBSYNC_COMPLETE"
_SUFFIX = ".blobsync-complete"
_BESIDE = re.compile(rf"\..+{re.escape(_SUFFIX)}", re.DOTALL)
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
_MAX_BYTES = 65_536
_MAX_REQUESTS = 10_000


class Request(NamedTuple):
    """What one rank said: the set's path, how many ranks must say it, which one this is, and when (since 1970)."""

    path: str
    ranks: int
    rank: str
    at: float


def mark_complete(path: str | os.PathLike[str], ranks: int = 1) -> None:
    """Say that all files of the set at ``path`` are written: it is uploaded as one and marked.

    With several ranks each calls it after its own files, with ``ranks=world_size``, or one of them alone, without
    ``ranks``, after a barrier. One alone that names ``ranks`` is believed only when it says it of the next set, or when
    the program ends well. A set that changes afterwards has to be said to be complete again. Raises
    ``FileNotFoundError`` if there is nothing at ``path``, ``ValueError`` for less than one rank.
    """
    full = os.path.realpath(os.fspath(path))
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: at least 1")
    os.stat(full)
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
    folder = os.environ.get(VARIABLE)
    # A program must not end because nobody listens.
    if folder and os.path.isdir(folder):
        digest = hashlib.sha256(os.fsencode(full)).hexdigest()[:32]
        file = os.path.join(folder, f"{digest}.{_plain(rank)}.json")
    else:
        file = os.path.join(os.path.dirname(full), f".{os.path.basename(full)}.{_plain(rank)}{_SUFFIX}")
    text = json.dumps({"path": full, "ranks": ranks, "rank": rank})
    fresh = f"{file}.{os.getpid()}.{socket.gethostname()}{_SUFFIX}"
    # A change in the same tick of the file system's clock would look as if it came after.
    time.sleep(0.01)
    with open(fresh, "w", encoding="utf-8") as body:
        body.write(text)
        body.flush()
        os.fsync(body.fileno())
    os.replace(fresh, file)


def _plain(rank: str) -> str:
    return re.sub(r"[^0-9A-Za-z]", "_", rank)[:16]


def is_request(name: str) -> bool:
    """Whether the last part of a path is a request beside a set, which is no data."""
    return _BESIDE.fullmatch(name) is not None


def requests_in(folder: Path) -> Iterator[Request]:
    """The requests in a job's folder."""
    yield from _read(folder, lambda name: name.endswith(".json"))


def requests_beside(folder: Path) -> Iterator[Request]:
    """The requests for sets that lie directly in ``folder``."""
    yield from _read(folder, is_request)


def _read(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Request]:
    try:
        names = sorted(os.listdir(folder))[:_MAX_REQUESTS]
    except OSError:
        return
    for name in names:
        if wanted(name) and (found := _request(folder / name)):
            yield found


def _request(file: Path) -> Request | None:
    """What a file says; None if it says nothing, is no regular file, or has gone."""
    try:
        if not file.is_file() or file.is_symlink():
            return None
        with file.open("rb") as body:
            values = json.loads(body.read(_MAX_BYTES))
            at = os.fstat(body.fileno()).st_mtime_ns / 1e9
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    path, ranks, rank = values.get("path"), values.get("ranks"), values.get("rank")
    if not isinstance(path, str) or not isinstance(rank, str) or not isinstance(ranks, int):
        return None
    return Request(path, max(1, ranks), rank, at)
