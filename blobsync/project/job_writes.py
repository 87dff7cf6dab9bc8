"""The project's own jobs that write into its containers: a listing that is older does not show what they wrote."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import BlobLocation
from blobsync.base.records import NamedTuple
from blobsync.jobs.history import History
from blobsync.jobs.outputs import OutputPlace, output_places
from blobsync.jobspec.spec import JobSpec, State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobsync.jobs.record import JobRecord


class WritingJob(NamedTuple):
    """A job that uploads to ``places``: URLs of containers, and the folders in them.

    ``ended`` is None while it is not known to have ended. ``ran``: it is known to have begun. Seconds since 1970.
    """

    id: str
    state: State
    ran: bool
    ended: float | None
    places: tuple[tuple[str, str], ...]

    def wrote_to(self, end: BlobLocation, since: float) -> bool:
        """Whether it may have written at or below ``end``, or above it, after that time."""
        if self.ended is not None and self.ended <= since:
            return False
        container, name = str(end.container), f"{end.name}/"
        return any(
            container == place and (name.startswith(folder) or folder.startswith(name)) for place, folder in self.places
        )


def writing_jobs(root: Path, environ: Mapping[str, str], file: Path, since: float) -> Sequence[WritingJob]:
    """The jobs of the history in ``file`` that may have written after that time; of those on this machine as they are
    now, of others as they were last seen. Raises ``JobError`` if the file cannot be used."""
    records = [record for record in History(file).alive_after(since) if _places(record.spec)]
    local = [record for record in records if record.backend == "local" and not record.state.is_final]
    known = {record.run_id: record for record in _as_of_now(root, environ, local)}
    return [_writing(known.get(record.run_id, record)) for record in records]


def _as_of_now(root: Path, environ: Mapping[str, str], records: Sequence[JobRecord]) -> list[JobRecord]:
    """Their states as the files of this machine show them; without those that cannot be looked up."""
    if not records:
        return []
    from blobsync.jobs.context import JobContext  # late: a status has seldom a job to ask for

    context = JobContext(root, environ)
    found: list[JobRecord] = []
    for record in records:
        with suppress(BlobsyncError):
            (info,) = context.backend_of(record).get([record.ref])
            found.append(context.history.update(record, info))
    return found


def _writing(record: JobRecord) -> WritingJob:
    state, info = record.state, record.info
    ran = info.started is not None or info.restarts > 0 or state in (State.RUNNING, State.COMPLETED, State.FAILED)
    # Jobs whose end nobody saw ended when they were last asked for.
    ended = (info.ended or record.confirmed) if state.is_final else None
    places = ((place.folder.container, _folder(place)) for place in _places(record.spec))
    return WritingJob(record.run_id, state, ran, ended, tuple(places))


def _places(spec: JobSpec) -> tuple[OutputPlace, ...]:
    """Where the job writes into containers: all of what is uploaded, and its outputs in what is mounted."""
    uploaded = (OutputPlace(folder.name, folder) for folder in spec.folders if folder.mode == "upload")
    mounted = (place for place in output_places(spec) if place.folder.mode not in ("upload", "link"))
    return (*uploaded, *mounted)


def _folder(place: OutputPlace) -> str:
    """The folder in the container, with a slash at its end; empty for all of it."""
    name = place.in_container
    return f"{name}/" if name else ""
