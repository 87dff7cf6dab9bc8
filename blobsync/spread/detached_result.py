"""How a detached transfer ended: a sealed document that its last task leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blobsync.base.exit_codes import ExitCode
from blobsync.base.plain_json import parse_object
from blobsync.spread.sealed_store import SealedStore


class Result(NamedTuple):
    """The result; ``job`` is the job's run id, ``exit_code`` what the command would have ended with."""

    job: str
    exit_code: int
    transferred: int
    verified: int
    failures: Sequence[Mapping[str, str]]

    def body(self) -> bytes:
        """The document."""
        return json.dumps(self._asdict()).encode()


def earlier_result(run_id: str, place: SealedStore) -> Result | None:
    """The result that a task of this job saved at the sealed ``place``; None if there is none, or it is invalid."""
    try:
        values = parse_object((place.read("result") or b"").decode())
        result = Result(
            str(values["job"]),
            ExitCode(values["exit_code"]),
            int(values["transferred"]),
            int(values["verified"]),
            [{key: str(each[key]) for key in ("path", "code", "message")} for each in values["failures"]],
        )
    except (ValueError, KeyError, TypeError):
        return None
    return result if result.job == run_id else None
