"""Receipts: for each transfer a JSON file that says what was verified, with sizes and MD5s."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from blobsync.engines import RemoteEnd
from blobsync.ledger import Ledger
from blobsync.plan import Action, FileState, TransferResult
from blobsync.redaction import redact_tree
from blobsync.storage import BlobProperties

VERSION = 1
_KEEP = 200
_OUR_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.json")


def write(folder: Path, result: TransferResult, ledgers: Sequence[Ledger]) -> Path:
    """Write the receipt of ``result`` into ``folder`` and forget the oldest beyond the newest 200.

    Streamed: a million files need no second copy in memory. Raises ``OSError``.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    file = folder / f"{stamp}-{os.urandom(4).hex()}.json"
    part = file.with_suffix(".part")
    with part.open("w", encoding="utf-8", errors="surrogateescape") as out:
        out.write(json.dumps(redact_tree(_head(result)), indent=1)[:-2])
        out.write(',\n "files": [')
        for count, entry in enumerate(_files(ledgers)):
            out.write(("," if count else "") + "\n  " + json.dumps(redact_tree(entry)))
        out.write("\n ]\n}\n")
    os.replace(part, file)
    ours = sorted(path for path in folder.glob("*.json") if _OUR_NAME.fullmatch(path.name))
    for old in ours[:-_KEEP]:
        old.unlink(missing_ok=True)
    return file


def publish(file: Path, end: RemoteEnd) -> str:
    """Upload a receipt beside the data that it is about, as ``<folder or file>.receipts/<name>``.

    Returns the blob's URL. Raises what the store raises.
    """
    body = file.read_bytes()
    name = f"{end.name}.receipts/{file.name}" if end.name else f".receipts/{file.name}"
    properties = BlobProperties(content_type="application/json")
    end.store.put(name, body, md5=hashlib.md5(body).digest(), properties=properties)
    return str(end.store.container.blob(name))


def _head(result: TransferResult) -> dict[str, object]:
    plan = result.plan
    return {
        "blobsync_receipt": VERSION,
        "written_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
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
        "seconds": round(result.seconds, 3),
        "failures": [{"path": failure.path, "code": failure.code} for failure in result.failures],
    }


def _files(ledgers: Sequence[Ledger]) -> Iterator[dict[str, object]]:
    for ledger in ledgers:
        part = ledger.live.part
        for moved in ledger.verified.values():
            yield {
                "path": part.shown(moved.action),
                "size": moved.action.size if moved.source is None else moved.source.size,
                "md5": _md5(moved.source, moved.destination),
                "route": ledger.route.value,
            }


def _md5(*states: FileState | None) -> str | None:
    return next((state.md5.hex() for state in states if state is not None and state.md5 is not None), None)
