"""``lock``, and what ``diff`` shows of two locks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, size_text
from blobsync.cli.output import Result, fields_of
from blobsync.cli.session import Commands, PathsArgument, Session, option, with_consent

if TYPE_CHECKING:
    from blobsync.project.api import Project
    from blobsync.project.locks import LockChange, LockComparison, LockReport

_SIDES = ("path", "digest", "files", "bytes")


app = Commands()


@app.command("lock")
def lock(
    session: Session,
    paths: PathsArgument,
    compare_content: Annotated[
        bool, option("--compare-content", help="Read blobs that have no MD5, instead of refusing them.")
    ] = False,
) -> Result:
    """Write down which files the container holds at each path: aux_data/locks/PATH.lock and its list, to be committed.

    The same files have the same lock. 'diff' and 'ls --at' show locks of other commits. Says if the local files differ.

    \b
      blobsync lock data/voc20
      blobsync lock data/voc20 data/coco
    """
    project = session.project()
    look = partial(project.lock, compare_content=compare_content)
    reports = [with_consent(session, project, partial(look, path)) for path in paths]
    data = {"locks": [asdict(each) for each in reports]}
    return Result(data, [line for each in reports for line in _lock_lines(each)], wraps=True)


def _lock_lines(report: LockReport) -> Iterator[str]:
    held = f"{count_text(report.files, 'file')}, {size_text(report.bytes)}"
    # -f: a line "data/" of a .gitignore means folders of that name here, too.
    if not report.changed:
        yield f"{report.path}: as locked before, {held}"
    else:
        yield f"locked {report.path}: {held}; to commit: git add -f {shlex.join(report.files_written)}"
    differ = {kind: count for kind, count in report.here.items() if kind not in ("equal", "left_out")}
    if differ:
        words = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in differ.items())
        yield f"the lock is what the container holds, and the files here differ: {words}"


def compared(project: Project, path: str, before: str, after: str | None = None) -> Result:
    """The answer of ``diff REV [REV] PATH``."""
    found = project.compare_locks(path, before, after)
    counts = {status: found.count(status) for status in ("added", "changed", "removed")}
    data = {
        "path": found.path,
        "before": fields_of(found.before, *_SIDES),
        "after": fields_of(found.after, *_SIDES),
        **counts,
        "files": [each._asdict() for each in found.changes],
    }
    code = ExitCode.PARTIAL if found.changes else ExitCode.DONE
    return Result(data, _difference_lines(found, counts), exit_code=code, wraps=True)


def _difference_lines(found: LockComparison, counts: dict[str, int]) -> Iterator[str]:
    yield from map(_change_line, found.changes)
    words = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count) or "no file differs"
    before, after = found.before, found.after
    sizes = f"{size_text(before.bytes)} in {count_text(before.files, 'file')}"
    yield f"{words}; {sizes} before, {size_text(after.bytes)} in {count_text(after.files, 'file')} after"


def _change_line(change: LockChange) -> str:
    sizes = [size_text(size) for size in (change.before, change.after) if size is not None]
    return f"{change.status:<8} {' -> '.join(dict.fromkeys(sizes)):>18}  {change.path}"
