"""``outputs``: the files that a job has written, on any platform."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import BlobsyncError, DiskTooSmallError, NothingMatchedError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text, zulu_text
from blobsync.cli.commands import Commands, argument, option
from blobsync.cli.jobs import OptionalId, find_jobs, find_task, note_all
from blobsync.cli.ls import duration
from blobsync.cli.output import Result
from blobsync.cli.session import Session
from blobsync.store.sas import LINK_LIFETIME

if TYPE_CHECKING:
    from blobsync.base.errors import FileFailure
    from blobsync.jobs.outputs import JobOutputs, OutputFile
    from blobsync.plan.transfer_plan import TransferPlan


app = Commands()


@app.command("outputs")
def outputs(
    session: Session,
    id: OptionalId = None,
    path: Annotated[
        str, argument(metavar="[PATH]", help="A folder or file of the outputs, or an output's id. Default: all.")
    ] = "",
    url: Annotated[bool, option("--url", help="Show a link for each file; it is a password.")] = False,
    expiry: Annotated[
        str, option(metavar="7d", help="With --url: how long the links are valid: 30m, 12h, 7d, 2w.")
    ] = f"{LINK_LIFETIME.days}d",
    download: Annotated[bool, option("--download", help="Bring the files here, as d does.")] = False,
) -> Result:
    """List what a job has written, with sizes; while it runs, what is there so far. Without an ID: the newest job.

    With 'output: per_job' in the cluster file, that is the job's own folder ($BLOBSYNC_OUTPUT); without it, what
    changed in the shared output folder while the job ran. ID/7 is task 7 of a sweep. Batch AI's output directories are
    listed by their ids.

    \b
      blobsync outputs
      blobsync outputs 3f2a
      blobsync outputs 3f2a output/checkpoints --download
      blobsync outputs 3f2a MODEL --url --expiry 12h
    """
    if url and download:
        raise UsageError("--url and --download cannot be combined")
    valid = duration(expiry)
    jobs = find_jobs(session)
    record, task = find_task(session, jobs, id)
    found = jobs.outputs(record, path, task=task)
    note_all(session, jobs, found.notes)
    if download:
        return _downloaded(session, found)
    if not found.files:
        session.note(f"{found.record.run_id} ({found.record.state}) has written nothing so far")
    links, failures = _links(found, valid) if url else ([None] * len(found.files), [])
    rows = list(zip(found.files, links, strict=True))
    data = {**_heading(found), "files": [_file_data(one, link) for one, link in rows]}
    lines = [f"{size_text(one.size):>10}  {one.shown}" + (f"  {link}" if link else "") for one, link in rows]
    refused = len(failures) == len(rows)
    code = ExitCode.DONE if not failures else ExitCode.USAGE if refused else ExitCode.PARTIAL
    total = {"bytes": sum(one.size for one in found.files)}
    return Result({**data, **total}, [] if refused else lines, failures, code, reveals=url)


def _links(found: JobOutputs, valid: timedelta) -> tuple[list[str | None], list[UsageError]]:
    """A link for each file, and the reasons why some have none."""
    links: list[str | None] = []
    failures: list[UsageError] = []
    for one in found.files:
        try:
            links.append(found.link(one, valid))
        except UsageError as error:
            links.append(None)
            failures.append(error)
    return links, failures


def _heading(found: JobOutputs) -> dict[str, Any]:
    record = found.record
    return {"job_id": record.run_id, "status": record.state.value, "count": len(found.files)}


def _file_data(one: OutputFile, link: str | None) -> dict[str, Any]:
    modified = zulu_text(one.last_modified)
    known = {"output": one.output, "name": one.name, "path": one.path, "size": one.size, "last_modified": modified}
    return {**known, "on_disk": str(one.on_disk) if one.on_disk else None, "url": link}


def _downloaded(session: Session, found: JobOutputs) -> Result:
    """Copy files that are on a disk; the others are downloaded as by ``d``, through the job's cluster."""
    from blobsync.cli.reports import result_data, result_lines
    from blobsync.jobs.outputs import demand_mapped

    if not found.files:
        raise NothingMatchedError(
            f"{found.record.run_id} ({found.record.state}) has written nothing to download so far"
        )
    if not found.paths:
        return _copied(session, found)
    project = session.project(cluster=found.record.cluster)
    demand_mapped(found, project.cluster)
    copied = _copied(session, found) if any(one.on_disk for one in found.files) else None
    plan = project.plan_download([f"{project.root}/{path}" for path in found.paths])
    try:
        result = project.carry_out(plan)
    except DiskTooSmallError as error:
        raise DiskTooSmallError(error.message, hint=_of_d(error.hint, plan), path=error.path) from error
    data = {**_heading(found), **result_data(result, session.seconds)}
    lines, code = [*result_lines(result, session.seconds)], result.exit_code
    remaining = (*result.failures, *result.plan.conflicts)
    failures: Sequence[FileFailure | BlobsyncError] = [each._replace(hint=_of_d(each.hint, plan)) for each in remaining]
    if copied:
        data["copied"] = copied.data["copied"]
        lines, failures = [*copied.lines, *lines], (*copied.failures, *failures)
        code = code if copied.exit_code == code else ExitCode.PARTIAL
    return Result(data, lines, failures, code, wraps=True)


def _of_d(hint: str | None, plan: TransferPlan) -> str | None:
    """Name ``d`` in the hint: this command does not have the options that the hint recommends."""
    return f"{hint}: options of '{plan.command}'" if hint and "--" in hint else hint


def _copied(session: Session, found: JobOutputs) -> Result:
    done = find_jobs(session).copy_outputs(found)
    lines = []
    if done.copied:
        size = size_text(sum(one.size for one in done.copied))
        lines.append(f"copied {count_text(len(done.copied), 'file')} ({size}) from the disk; verified")
    if done.present:
        rest = f" and {count_text(len(done.present) - 1, 'more file')}" if len(done.present) > 1 else ""
        lines.append(f"in the project already: {done.present[0].path}{rest}")
    files = [_file_data(one, None) for one in found.files]
    data = {**_heading(found), "files": files, "copied": len(done.copied)}
    return Result(data, lines, done.failures, done.exit_code, wraps=True)
