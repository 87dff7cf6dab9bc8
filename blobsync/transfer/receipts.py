"""Receipts: for each transfer and removal a JSON file that names what was verified and deleted, with sizes and MD5s."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from blobsync.base.errors import FileFailure, LocalFileError
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import redact_each, redact_tree
from blobsync.local.sorted_runs import Spill, Spool
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Action, FileAction, TransferResult
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobProperties
from blobsync.transfer.engines import Moved
from blobsync.transfer.ledger import Ledger

VERSION = 1
_KEEP = 1000
_OUR_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Deletions(Generic[_T]):
    """Deleted files, and those of which an interrupt left it unknown: requested, but not looked at since."""

    gone: Sequence[_T]
    unsure: Sequence[_T]


class CollectedReceipts:
    """A transfer's receipt before it is written: the last batch is in memory, earlier ones on disk."""

    def __init__(self, spill: Spill) -> None:
        self._files = _Entries(spill, _file)
        self._gone = _Entries(spill, _deletion)
        self._unsure = _Entries(spill, _deletion)

    @property
    def unsure(self) -> int:
        """The number of deletions whose outcome is unknown."""
        return len(self._unsure)

    def add(self, ledgers: Sequence[Ledger], deletions: Deletions[tuple[LivePart, FileAction]]) -> None:
        """Add a batch that has ended."""
        self._files.add([(ledger.part, moved) for ledger in ledgers for moved in ledger.verified.values()])
        self._gone.add(deletions.gone)
        self._unsure.add(deletions.unsure)

    def write(self, folder: Path, result: TransferResult, *, interrupted: bool = False) -> Path:
        """Write the receipt of ``result`` into ``folder``, and remove all but the newest 1,000 receipts.

        Streamed: a million files need no second copy in memory. Raises ``OSError``.
        """
        lists = {
            "files": iter(self._files),
            "deleted_files": iter(self._gone),
            "deletions_not_known": iter(self._unsure),
        }
        return _write(folder, {**_head(result), "interrupted": interrupted}, lists)


class _Entries(Generic[_T]):
    """One list of the receipt; ``form`` converts each added item to an entry."""

    def __init__(self, spill: Spill, form: Callable[[_T], dict[str, object]]) -> None:
        self._earlier = Spool(spill, on_disk=True)
        self._latest: Sequence[_T] = ()
        self._form = form

    def __len__(self) -> int:
        return len(self._earlier) + len(self._latest)

    def add(self, things: Sequence[_T]) -> None:
        if things:
            for each in self._latest:
                self._earlier.append(self._form(each))
            self._latest = things

    def __iter__(self) -> Iterator[dict[str, object]]:
        yield from self._earlier
        yield from map(self._form, self._latest)


def write_removal(
    folder: Path,
    cluster: str,
    places: Sequence[str],
    deletions: Deletions[tuple[str, BlobInfo]],
    failures: Sequence[FileFailure],
    *,
    interrupted: bool = False,
) -> Path:
    """Write the receipt of an ``rm``; ``places`` are the URLs it was given. Raises ``OSError``."""
    head: dict[str, object] = {
        **_stamp(),
        "route": "rm",
        "cluster": cluster,
        "places": list(places),
        "deleted": len(deletions.gone),
        "failed": len(failures),
        "failures": _failed(failures),
        "interrupted": interrupted,
    }

    def entries(found: Iterable[tuple[str, BlobInfo]]) -> Iterator[dict[str, object]]:
        return (_deleted(shown, blob) for shown, blob in found)

    lists = {"deleted_files": entries(deletions.gone), "deletions_not_known": entries(deletions.unsure)}
    return _write(folder, head, lists)


def _write(folder: Path, head: Mapping[str, object], lists: Mapping[str, Iterator[dict[str, object]]]) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = folder / f"{stamp}-{os.urandom(4).hex()}.json"
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(json.dumps(redact_tree(head), indent=1)[:-2])
        for name, entries in lists.items():
            out.write(f',\n "{name}": [')
            for count, entry in enumerate(redact_each(entries)):
                out.write(("," if count else "") + "\n  " + json.dumps(entry))
            out.write("\n ]")
        out.write("\n}\n")
    os.replace(part, file)
    ours = sorted(path for path in folder.glob("*.json") if _OUR_NAME.fullmatch(path.name))
    for old in ours[:-_KEEP]:
        old.unlink(missing_ok=True)
    return file


def read_receipt(folder: Path, name: str) -> dict[str, Any] | None:
    """Read a receipt; None if the file does not exist any more. Raises ``LocalFileError``."""
    if not _OUR_NAME.fullmatch(name):
        return None
    file = folder / name
    try:
        found = parse_object(file.read_text(encoding="utf-8", errors="surrogateescape"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LocalFileError(f"the receipt {file} cannot be read: {error}", path=str(file)) from error
    return found


def upload_receipt(file: Path, end: OpenBlob) -> str:
    """Upload a receipt beside the data that it describes, as ``<folder or file>.receipts/<name>``.

    Returns the blob's URL. Raises what the store raises.
    """
    body = file.read_bytes()
    name = f"{end.name}.receipts/{file.name}"
    properties = BlobProperties(content_type="application/json")
    end.store.put(name, body, md5=hashlib.md5(body).digest(), properties=properties)
    return str(end.store.container.child(name))


def _stamp() -> dict[str, object]:
    return {"blobsync_receipt": VERSION, "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def _head(result: TransferResult) -> dict[str, object]:
    plan = result.plan
    return {
        **_stamp(),
        "route": plan.route.value,
        "cluster": plan.cluster,
        "from_cluster": plan.from_cluster,
        "engine": plan.engine.name,
        "parts": [
            {"path": part.path, "source": str(part.source), "destination": str(part.destination)} for part in plan.parts
        ],
        "transferred": result.transferred,
        "verified": result.verified,
        "unchanged": plan.count(Action.UNCHANGED),
        "deleted": result.deleted,
        "conflicts": plan.count(Action.CONFLICT),
        "failed": len(result.failures),
        "bytes_transferred": result.bytes_transferred,
        "bytes_reused": result.bytes_reused,
        "seconds": round(result.seconds, 3),
        "failures": _failed(result.failures),
    }


def _failed(failures: Iterable[FileFailure]) -> list[dict[str, object]]:
    return [{"path": failure.path, "code": failure.code, "message": failure.message} for failure in failures]


def _file(verified: tuple[LivePart, Moved]) -> dict[str, object]:
    part, moved = verified
    return {
        "path": part.shown(moved.action),
        "size": moved.action.size if moved.source is None else moved.source.size,
        "md5": _md5(moved.source, moved.destination),
        "etag": moved.destination.etag if isinstance(moved.destination, RemoteState) else None,
        "replaced": _replaced(moved.action.destination),
        "route": part.route.value,
    }


def _deletion(deleted: tuple[LivePart, FileAction]) -> dict[str, object]:
    part, action = deleted
    return _deleted(part.shown(action), action.destination or action)


def _replaced(was: FileState | None) -> dict[str, object] | None:
    """The previous version at the destination; the MD5 only if it was known."""
    if was is None:
        return None
    etag = was.etag if isinstance(was, RemoteState) else None
    return {"size": was.size, "md5": was.md5.hex() if was.md5 else None, "etag": etag}


def _deleted(shown: str, was: FileState | BlobInfo | FileAction) -> dict[str, object]:
    """A file as it was before it was deleted."""
    md5 = None if isinstance(was, FileAction) else was.md5
    etag = was.etag if isinstance(was, (RemoteState, BlobInfo)) else None
    return {"path": shown, "size": was.size, "md5": md5.hex() if md5 else None, "etag": etag}


def _md5(*states: FileState | None) -> str | None:
    return next((state.md5.hex() for state in states if state is not None and state.md5 is not None), None)
