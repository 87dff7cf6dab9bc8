"""``u``, ``d``, ``plan``, ``apply`` and ``verify``, and their common options."""

from __future__ import annotations

import os
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import FailureCode, NothingMatchedError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text
from blobsync.base.options import Option
from blobsync.base.records import NamedTuple
from blobsync.cli.commands import NO_CLUSTER, TWO_CLUSTERS, Commands, OptionalPaths, argument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session, can_ask, confirm, looking, with_consent
from blobsync.plan.transfer_options import TransferOptions, chosen_options, deletion_limits

if TYPE_CHECKING:
    # Help and completion show no plan.
    from collections.abc import Sequence

    from blobsync.plan.transfer_plan import Direction, TransferPlan
    from blobsync.project.api import Project
    from blobsync.project.verify import VerifyReport

# Bytes from which on a transfer's buffers are worth a setting of the C library.
_LARGE = 64 << 20


def of_words(max_delete_files: Sequence[str] = (), **words: Any) -> TransferOptions:
    """The options of a command line, whose PATHs may be patterns. Raises ``UsageError``."""
    files, percent = deletion_limits(max_delete_files)
    limits = {"max_delete_files": files, "max_delete_percent": percent}
    return chosen_options(None, {**words, **limits, "wildcards": True})


TransferWords = Annotated[TransferOptions, of_words]
DryRun = Annotated[bool, option("--dry-run", help="Show what would happen, and change nothing.")]
Full = Annotated[bool, option("--full", help="Show every line, not only the first ten of each kind.")]
Yes = Annotated[bool, option("-y", "--yes", help="Ask nothing: delete, go on beside others, leave conflicts.")]


class Far(NamedTuple):
    """The source that a command names itself, if it names one."""

    source: Annotated[str | None, Option("Copy from s3://BUCKET/PREFIX, https://HOST/FILE or LIST.tsv.", "SOURCE")] = (
        None
    )
    endpoint_url: Annotated[str | None, Option("With --source: the service, if it is not Amazon.", "URL")] = None
    no_sign_request: Annotated[bool, Option("With --source: without credentials.")] = False

    def of(self, project: Project, paths: list[str], *, looks: bool = False) -> Project:
        """The project with this source; ``looks``: in place of its own containers. Raises ``UsageError``."""
        if self.source is None:
            if self.endpoint_url is not None or self.no_sign_request:
                raise UsageError("--endpoint-url and --no-sign-request are about --source")
            return project
        if project.from_cluster is not None:
            raise UsageError("-f and --source both name the source", hint="leave one out")
        if len(paths) != 1:
            raise UsageError("--source requires exactly one PATH: where the files are in the project")
        from blobsync.plan.wildcards import is_pattern  # late: help reads no PATH

        if is_pattern(paths[0]):
            raise UsageError(
                f"--source needs the name of a folder or file, and {paths[0]} is a pattern",
                hint="name the folder; --include chooses among its files",
            )
        url, plain = self.endpoint_url, self.no_sign_request
        return project.with_source(self.source, paths[0], endpoint_url=url, anonymous=plain, looks=looks)


app = Commands()


@app.command("u", takes=TWO_CLUSTERS)
def upload(
    session: Session,
    options: TransferWords,
    far: Far,
    paths: OptionalPaths = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    full: Full = False,
) -> Result:
    """Upload files or folders to where the cluster file maps them.

    Transfers only what differs. Deletes nothing at the destination, and replaces nothing there that changed since it
    was last verified. With -f the source is the other cluster's storage, and the bytes go from
    server to server.

    \b
      blobsync u data/voc20                   a folder, or a file
      blobsync u data/a.zip output/run7       several at once
      blobsync u 'data/x/*.py'                by pattern, in quotes
      blobsync -c eu -f we3v32 u data/voc20   from we3v32's storage to eu's
      blobsync u data/x --source s3://b/x     from a bucket, or from the web
      blobsync u --all                        every folder entry of the cluster
    """
    return _transfer(session, "u", options, far, paths or [], dry_run=dry_run, yes=yes, full=full)


@app.command("d", takes=TWO_CLUSTERS)
def download(
    session: Session,
    options: TransferWords,
    far: Far,
    paths: OptionalPaths = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    full: Full = False,
) -> Result:
    """Download files or folders to their place in the project.

    Transfers only what differs. A file appears complete or not at all, and a local edit is never replaced unless
    you request it. A large file that an earlier run did not finish is not fetched again from its beginning.

    \b
      blobsync d data/voc20                     into data/voc20, never deeper
      blobsync d output/run7 --include '*.pt'   only some files
      blobsync -f we3v32 d data/voc20           from cluster we3v32's storage
      blobsync d --all                          every folder entry of the cluster
    """
    return _transfer(session, "d", options, far, paths or [], dry_run=dry_run, yes=yes, full=full)


@app.command("plan", looks=True, takes=TWO_CLUSTERS)
def plan(
    session: Session,
    direction: Annotated[str, argument(metavar="u|d", help="u to upload, d to download.")],
    options: TransferWords,
    far: Far,
    paths: OptionalPaths = None,
    save: Annotated[Path | None, option(metavar="FILE", help="Save the plan for 'blobsync apply FILE'.")] = None,
    full: Full = False,
) -> Result:
    """Show what u or d would do with each file, and why; touches nothing.

    Exits as the command itself would, as far as that is known: 3 if files conflict or cannot be read, 2
    if --mirror would be refused (the plan is shown anyway).

    The first ten files of each kind are listed; --full lists all of them, -q none.

    \b
      blobsync plan u data/voc20
      blobsync plan u data/voc20 --full
      blobsync plan d data/voc20 --save voc20.plan
    """
    project = far.of(session.project(copies=True), paths or [])
    made = _plan(session, project, _direction(direction), paths or [], options)
    if save and far.source:
        raise UsageError("--save and --source cannot be combined", hint="give the source a cluster file, and use -f")
    if save:
        project.save_plan(made, save)
    return shown_plan(session, project, made, full=full)


@app.command("apply", takes=NO_CLUSTER)
def apply(
    session: Session,
    file: Annotated[Path, argument(metavar="PLAN", help="A file saved with 'blobsync plan --save'.")],
    yes: Yes = False,
    full: Full = False,
) -> Result:
    """Carry out a saved plan, if it would still do the same.

    \b
      blobsync apply voc20.plan
    """
    from blobsync.plan.saved_plan import load

    with looking():
        saved = load(file)
        session.cluster = session.cluster or saved.cluster
        session.from_cluster = session.from_cluster or saved.from_cluster
        project = session.project(copies=True)
        paths = [f"{project.root}/{path}" for path in saved.paths]
        _tell_of_others(session, project, paths, asks=not yes)
        with project.planning(saved.direction, paths):
            made = with_consent(session, project, lambda: project.load_plan(saved))
    return carried_out(session, project, made, yes=yes, full=full)


@app.command("verify", looks=True)
def verify(
    session: Session,
    paths: OptionalPaths = None,
    every: Annotated[bool, option("--all", help="All folder entries, in place of PATHs.")] = False,
    deep: Annotated[bool, option("--deep", help="Read every byte on both sides.")] = False,
    locked: Annotated[bool, option("--locked", help="Compare with each path's lock, not the container.")] = False,
    full: Full = False,
) -> Result:
    """Compare the local files, the blobs, and the record of when they were last equal.

    Exits with 0 if everything is equal, 3 if some files are not, 1 if none is. The first ten files of each kind
    that is not equal are listed; --full lists all of them, -q none.

    \b
      blobsync verify data/voc20
      blobsync verify data/voc20 --deep
      blobsync verify data/voc20 --locked     with what was locked
      blobsync verify --all
    """
    from blobsync.cli.reports import files_shown, verify_code, verify_data, verify_lines

    project = session.project()
    chosen = project.chosen_paths(paths or (), all_entries=every)
    reports = with_consent(session, project, lambda: _verified(project, chosen, every=every, deep=deep, locked=locked))
    shown = files_shown(quiet=session.quiet, full=full)
    unreadable = [failure for report in reports for failure in report.unreadable]
    if session.json:
        return Result(verify_data(reports), (), unreadable, verify_code(reports))
    return Result({}, verify_lines(reports, shown), unreadable, verify_code(reports), wraps=True)


def _verified(project: Project, paths: Sequence[str], *, every: bool, deep: bool, locked: bool) -> list[VerifyReport]:
    """A report for each path. With ``every``, a folder entry that has nothing on either side is skipped, as by u and d.

    Raises ``NothingMatchedError`` for any other path without files, and if no entry has any.
    """
    reports: list[VerifyReport] = []
    nothing: NothingMatchedError | None = None
    for path in paths:
        try:
            reports.append(project.verify(path, deep=deep, wildcards=True, locked=locked))
        except NothingMatchedError as error:
            if not every:
                raise
            nothing = nothing or error
    if nothing is not None and not reports:
        raise nothing
    return reports


def _transfer(
    session: Session,
    word: str,
    options: TransferOptions,
    far: Far,
    paths: list[str],
    *,
    dry_run: bool,
    yes: bool,
    full: bool,
) -> Result:
    direction = _direction(word)
    with looking():
        project = far.of(session.project(copies=True), paths)
        _tell_of_others(session, project, paths, asks=not (dry_run or yes))
        with nullcontext() if dry_run else project.planning(direction, paths):
            made = _plan(session, project, direction, paths, options)
            if _is_for_good(session, made, asks=not (dry_run or yes)):
                made = _plan(session, project, direction, paths, options._replace(no_trash=True))
        if made.conflicts and not (dry_run or yes):
            from blobsync.cli.content import settled

            made = settled(session, project, made)
    if dry_run:
        return shown_plan(session, project, made, full=full)
    if session.verbose:
        from blobsync.cli.reports import plan_summary

        session.note(plan_summary(made, verbose=True))
    return carried_out(session, project, made, yes=yes, full=full)


def _is_for_good(session: Session, made: TransferPlan, *, asks: bool) -> bool:
    """Whether a person agrees that what the trash cannot hold is replaced and deleted without it."""
    for refusal in made.refusals if asks else ():
        if refusal.code is FailureCode.TRASH_TOO_SMALL and can_ask(session):
            confirm(session, f"{refusal.message}: replace and delete them for good?")
            return True
    return False


def _tell_of_others(session: Session, project: Project, paths: Sequence[str], *, asks: bool) -> None:
    """Name the transfers of other processes that move the same files; on a terminal ask whether to go on."""
    others = [each for each in project.running(paths).values() if not each.is_here or each.pid != os.getpid()]
    if not others:
        return
    from blobsync.cli.status import who_moves

    for each in others:
        session.note(f"{who_moves(each)} at this moment")
    if asks and can_ask(session):
        confirm(session, "that moves the same files: go on beside it?")


def _detach(project: Project, made: TransferPlan) -> Result:
    from blobsync.cli.reports import detached_data

    record = project.detach(made)
    moving = count_text(made.files_to_transfer, "file")
    line = f"{record.run_id}: {moving}, {size_text(made.bytes_to_transfer)}; blobsync q {record.run_id} shows it"
    return Result(detached_data(made, record), [line], (*made.conflicts, *made.unreadable), ExitCode.DONE, wraps=True)


def _direction(word: str) -> Direction:
    if word not in ("u", "d", "upload", "download"):
        raise UsageError(f"'{word}' is neither u nor d", hint="for example: blobsync plan u data/voc20")
    from blobsync.plan.transfer_plan import Direction

    return Direction(word[0])


def _plan(
    session: Session, project: Project, direction: Direction, paths: list[str], options: TransferOptions
) -> TransferPlan:
    make = project.plan_upload if direction.value == "u" else project.plan_download
    made = with_consent(session, project, lambda: make(paths, options))
    for warning in made.warnings:
        session.note(warning)
    return made


def shown_plan(session: Session, project: Project, made: TransferPlan, *, full: bool) -> Result:
    """The answer with what a plan would do."""
    from blobsync.cli.reports import feature_lines, files_shown, plan_data, plan_lines

    left = (*made.refusals, *made.conflicts, *made.unreadable)
    code = ExitCode.USAGE if made.refusals else ExitCode.PARTIAL if left else ExitCode.DONE
    shown = files_shown(quiet=session.quiet, full=full)
    lines = plan_lines(made, shown, unchanged=full or session.verbose > 0, verbose=session.verbose > 0)
    accounts = project.features_in(made)
    if not session.json:
        return Result({}, chain(lines, () if session.quiet else feature_lines(accounts)), left, code, wraps=True)
    records = project.write_records(made) if made.is_large else None
    return Result(plan_data(made, records, accounts), (), left, code)


def carried_out(session: Session, project: Project, made: TransferPlan, *, yes: bool, full: bool) -> Result:
    """Carry out a plan, after asking whether to delete."""
    if made.options.detach and made.files_to_transfer:
        return _detach(project, made)
    from blobsync.cli.reports import deletion_lines, files_shown, result_data, result_lines
    from blobsync.plan.transfer_plan import Action

    deletions = made.count(Action.DELETE)
    if deletions and (made.refusals or not yes):
        for line in deletion_lines(made, files_shown(quiet=session.quiet, full=full)):
            session.note(line)
    made.demand_allowed()
    if deletions and not yes:
        size = size_text(made.size(Action.DELETE))
        whose = f"that {made.undoes} created" if made.undoes else "that the source does not have"
        confirm(session, f"delete {count_text(deletions, 'file')}, {size}, {whose}?")
    if made.bytes_to_transfer >= _LARGE:
        from blobsync.base.allocator import keep_freed_memory

        keep_freed_memory()
    result = project.carry_out(made)
    # A run that takes over the records of a killed one makes its plan again.
    failures = (*result.failures, *result.plan.conflicts)
    seconds = session.seconds
    data = result_data(result, seconds) if session.json else {}
    return Result(data, result_lines(result, seconds), failures, result.exit_code, wraps=True)
