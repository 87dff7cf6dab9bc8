"""How a detached transfer ended: a sealed document that its last task leaves."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from blobsync.base.errors import FileFailure
from blobsync.base.exit_codes import ExitCode
from blobsync.base.plain_json import made_of, parse_object
from blobsync.spread.sealed_store import SealedStore


@dataclass(frozen=True, slots=True)
class Result:
    """The result; ``job`` is the job's run id, ``exit_code`` what the command would have ended with."""

    job: str
    exit_code: ExitCode
    transferred: int
    verified: int
    failures: tuple[FileFailure, ...]

    def body(self) -> bytes:
        """The document."""
        return json.dumps({**asdict(self), "failures": [each._asdict() for each in self.failures]}).encode()


def earlier_result(run_id: str, place: SealedStore) -> Result | None:
    """The result that a task of this job saved at the sealed ``place``; None if there is none, or it is invalid."""
    try:
        result = made_of(Result, parse_object(place.read("result") or b""))
    except ValueError:
        return None
    return result if result.job == run_id else None
