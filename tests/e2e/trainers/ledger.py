"""What a program that trains tells the test: which set it found, and which sets it writes.

A set is in the ledger, which is no file of the job's, before what completes it is on the disk: no set that is whole is
missing there, and no half one is in it, wherever a kill comes.
"""

import hashlib
import json
import os
from pathlib import Path


def told(**what: object) -> None:
    # A line that a kill has cut off spoils no other one.
    line = f"\n{json.dumps(what)}\n".encode()
    ledger = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(ledger, line)
        os.fsync(ledger)
    finally:
        os.close(ledger)


def sums(path: Path) -> dict[str, str]:
    """The SHA-256 of each file of a set."""
    if path.is_file():
        return {"": hashlib.sha256(path.read_bytes()).hexdigest()}
    files = [each for each in sorted(path.rglob("*")) if each.is_file()]
    return {str(each.relative_to(path)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def restored() -> Path | None:
    found = os.environ.get("BLOBSYNC_RESTORED")
    return Path(found) if found else None


def started(step: int, path: Path | None) -> None:
    told(started=step, restored=path.name if path else None, files=sums(path) if path else {})


def completing(step: int, name: str, files: dict[str, str]) -> None:
    """What the set ``name`` has when its last file is there."""
    told(saved=step, set=name, files=files)
