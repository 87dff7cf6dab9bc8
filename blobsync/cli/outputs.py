"""``outputs``: what a job has written, on whatever platform it is."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blobsync.base.amounts import size_text
from blobsync.base.errors import UsageError
from blobsync.cli.job_views import IdArgument, find_jobs, note_all
from blobsync.cli.look import duration
from blobsync.cli.options import command
from blobsync.cli.output import Result
from blobsync.cli.session import Session
from blobsync.store.grants import LINK_LIFETIME

if TYPE_CHECKING:
    from blobsync.jobs.outputs import JobOutputs, OutputFile


def register(app: typer.Typer) -> None:
    """Add this command."""
    command(app, "outputs")(outputs)


def outputs(
    session: Session,
    id: IdArgument,
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A folder or file of the outputs, or an output's id. Default: all.")
    ] = "",
    url: Annotated[bool, typer.Option("--url", help="Show a link for each file; it is a password.")] = False,
    expiry: Annotated[
        str, typer.Option(metavar="7d", help="With --url: how long the links are valid: 30m, 12h, 7d, 2w.")
    ] = f"{LINK_LIFETIME.days}d",
    download: Annotated[bool, typer.Option("--download", help="Bring the files here, as d does.")] = False,
) -> Result:
    """List what a job has written, with sizes; while it runs, what is there so far.

    With 'output: per_job' in the cluster file, that is the job's own folder ($BLOBSYNC_OUTPUT); without it, what
    changed in the shared output folder while the job ran. Batch AI's output directories are listed by their ids.

    \b
      blobsync outputs 3f2a
      blobsync outputs 3f2a output/checkpoints --download
      blobsync outputs 3f2a MODEL --url --expiry 12h
    """
    if url and download:
        raise UsageError("--url and --download cannot be combined")
    valid = duration(expiry)
    found = find_jobs(session).outputs(id, path)
    note_all(session, found.notes)
    if download:
        return _downloaded(session, found)
    links = [found.link(one, valid) if url else None for one in found.files]
    data = {**_heading(found), "files": [_file_data(one, link) for one, link in zip(found.files, links, strict=True)]}
    if not found.files:
        session.listener.note(f"{found.record.run_id} ({found.record.state}) has written nothing so far")
    lines = [
        f"{size_text(one.size):>10}  {one.shown}" + (f"  {link}" if link else "")
        for one, link in zip(found.files, links, strict=True)
    ]
    return Result({**data, "bytes": sum(one.size for one in found.files)}, lines, reveals=url)


def _heading(found: JobOutputs) -> dict[str, Any]:
    record = found.record
    return {"job_id": record.run_id, "status": record.state.value, "count": len(found.files)}


def _file_data(one: OutputFile, link: str | None) -> dict[str, Any]:
    modified = datetime.fromtimestamp(one.last_modified, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    known = {"output": one.output, "name": one.name, "path": one.path, "size": one.size, "last_modified": modified}
    return {**known, "url": link}


def _downloaded(session: Session, found: JobOutputs) -> Result:
    """As ``d`` of these paths, through the job's cluster."""
    from blobsync.cli.reports import result_data, result_lines
    from blobsync.jobs.outputs import demand_mapped

    here = [one.path for one in found.files if one.blob is None]
    if here or not found.files:
        text = f"on this machine already: {here[0]} and the rest" if here else "nothing is there to download"
        session.listener.note(text)
        return Result({**_heading(found), "files": [_file_data(one, None) for one in found.files]})
    project = session.project(cluster=found.record.cluster)
    demand_mapped(found, project.cluster)
    result = project.download([f"{project.root}/{path}" for path in found.paths])
    data = {**_heading(found), **result_data(result, session.seconds)}
    failures = (*result.failures, *result.plan.conflicts)
    return Result(data, result_lines(result, session.seconds), failures, result.exit_code, wraps=True)
