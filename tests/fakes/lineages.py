"""Keys of lineages for tests, and marks as a test reads them, past blobsync."""

from __future__ import annotations

import json
from typing import Any

from blobsync.base.seals import KEY_BYTES, SealKey
from blobsync.jobspec.spec import LINEAGE_KEYS, JobSpec, lineage_of_job

MINE, THEIRS = SealKey(bytes(KEY_BYTES)), SealKey(b"t" * KEY_BYTES)


def keys(lineage: str) -> SealKey:
    """As a user has them: one of each lineage."""
    return MINE.derive(lineage_of_job(lineage))


def their_keys(lineage: str) -> SealKey:
    """Those of a colleague, or of anybody else."""
    return THEIRS.derive(lineage_of_job(lineage))


def sent(spec: JobSpec, *more: str) -> dict[str, str]:
    """The secret variable that such a job comes with; ``more`` lineages that it may start from."""
    if not spec.has_checkpoints:
        return {}
    return {LINEAGE_KEYS: json.dumps({name: keys(name).secret.hex() for name in (spec.lineage, *more)})}


def content(document: bytes) -> Any:
    """What a sealed document says."""
    return json.loads(document.split(b"\n", 2)[2])
