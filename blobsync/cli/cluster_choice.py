"""``-c a,b,c`` of ``submit``: the first of these clusters with enough free GPUs, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import UsageError
from blobsync.cli.output import Result
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.jobs.first_free import Candidate
    from blobsync.jobs.project_jobs import SubmitKeywords


def choose(session: Session, asked: SubmitKeywords) -> Sequence[Candidate]:
    """Make the chosen cluster the session's, and say why; empty where ``-c`` names one cluster or none."""
    if session.cluster is None or "," not in session.cluster:
        return ()
    from blobsync.jobs.describe import SubmitRequest
    from blobsync.project.jobs import first_free

    names = [name.strip() for name in session.cluster.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"-c {session.cluster}: an empty name, or one that is given twice")
    request = SubmitRequest(
        ("true",),
        session.num_gpu,
        asked.get("nodes"),
        multi_process=asked.get("multi_process"),
        elastic=asked.get("elastic") or "",
    )
    found = first_free(names, request, environ=session.environ, overrides=session.overrides())
    for one in found:
        session.listener.note(one.sentence)
    session.cluster = next(one.cluster for one in found if one.chosen)
    return found


def with_choice(result: Result, choice: Sequence[Candidate]) -> Result:
    """The answer of ``submit``, with the clusters that were asked."""
    if choice:
        result.data = {**result.data, "choice": [_data(one) for one in choice]}
    return result


def _data(one: Candidate) -> Mapping[str, Any]:
    return {name: getattr(one, name) for name in ("cluster", "chosen", "needed", "free", "why")}
