"""``cat``, ``diff`` and ``lock``: what blobs hold, and how it differs from local files and from locks.

Conflicts are settled on a terminal, file by file: both versions are shown, and the user says which one to keep.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

from blobsync.base.errors import BlobsyncError, ChecksumError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, printable, size_text, zulu_text
from blobsync.base.plan_reasons import Reason
from blobsync.base.user_folders import user_name
from blobsync.cli.commands import Commands, PathsArgument, option
from blobsync.cli.output import Result, fields_of
from blobsync.cli.session import Session, ask_text, ask_until, can_ask, show_lines, with_consent
from blobsync.plan.transfer_options import Keep
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, TransferPlan

if TYPE_CHECKING:
    from blobsync.project.api import Project
    from blobsync.project.content import FileDifference
    from blobsync.project.locks import LockChange, LockComparison, LockReport


# REV REV PATH.
_MOST_WORDS = 3
# Maximum bytes of a line that are shown at a time.
_LINE_BYTES = 1 << 20


app = Commands()


@app.command("cat", looks=True)
def cat(session: Session, paths: PathsArgument) -> Result:
    """Print the bytes of blobs on standard output, one after the other.

    Each blob is one version from its first byte to its last, and its MD5 is checked. A terminal gets text only.

    Exits with 3 if the bytes that came are not those that the blob's MD5 says.

    \b
      blobsync cat data/voc20/labels.txt
      blobsync cat output/run7/log.jsonl | tail -n 5
      blobsync cat data/voc20.tar | tar -tf -
    """
    if session.json:
        hint = "'blobsync stat PATH --json' tells the size, the MD5 and the ETag"
        raise UsageError("cat prints the bytes of a blob, so it has no --json", hint=hint)
    project = session.project()
    # Look for all blobs before printing the first byte.
    blobs = [(path, project.read(path)) for path in paths]
    damaged: list[BlobsyncError] = []
    pieces = chain.from_iterable(_until_damaged(blob, damaged) for _, blob in blobs)
    if sys.stdout.isatty():
        pieces = chain.from_iterable(_as_text(path, _until_damaged(blob, damaged)) for path, blob in blobs)

    def exit_code() -> int:
        return ExitCode.PARTIAL if damaged else ExitCode.DONE

    return Result(body=pieces, failures=damaged, then=exit_code)


def _until_damaged(blob: Iterator[bytes], damaged: list[BlobsyncError]) -> Iterator[bytes]:
    try:
        yield from blob
    except ChecksumError as error:
        damaged.append(error)


def _as_text(path: str, blob: Iterator[bytes]) -> Iterator[bytes]:
    """Show a blob on a terminal: control characters are escaped."""
    from blobsync.project.content import text_of

    first = next(blob, b"")
    if text_of(first, cut=True) is None:
        word = shlex.quote(path)
        raise UsageError(
            f"{path} is binary, and would confuse the terminal",
            hint=f"blobsync cat {word} > FILE, or blobsync cat {word} | xxd | less",
        )
    rest = b""
    for piece in chain([first], blob):
        *lines, rest = (rest + piece).split(b"\n")
        yield from (_line(line) + b"\n" for line in lines)
        if len(rest) > _LINE_BYTES:
            yield _line(rest)
            rest = b""
    if rest:
        # Let the shell's prompt begin on a new line.
        yield _line(rest) + b"\n"


def _line(line: bytes) -> bytes:
    return printable(line.decode("utf-8", "backslashreplace"), kept="\t").encode()


@app.command("diff", looks=True)
def diff(session: Session, paths: PathsArgument) -> Result:
    """Show how a local file differs from its blob: lines with - are in the container, those with + are here.

    With git revisions or lock files (*.lock) before the PATH: which files of a locked folder differ between the two,
    or from the lock of the working tree. Exits with 0 if both are equal, with 3 if they differ.

    \b
      blobsync diff data/voc20/labels.txt
      blobsync diff config/train.yaml > changes.patch
      blobsync diff HEAD~3 data/voc20        what has changed since that lock
      blobsync diff v1 v2 data/voc20         between two
    """
    if len(paths) > _MOST_WORDS:
        raise UsageError("diff takes a PATH, with up to two revisions before it", hint="blobsync verify PATH...")
    project = session.project()
    if len(paths) > 1:
        return compared(project, paths[-1], *paths[:-1])
    found = with_consent(session, project, lambda: project.diff(paths[0]))
    equal = found.status == "equal"
    if equal:
        session.note(f"{found.path}: here and in the container are the same")
    lines = difference_lines(found)
    shown = (printable(line, kept="\t") for line in lines) if sys.stdout.isatty() else lines
    body = (f"{line}\n".encode() for line in shown)
    data = {**asdict(found), "no_lines": found.no_lines or None}
    return Result(data, body=body, reveals=True, exit_code=ExitCode.DONE if equal else ExitCode.PARTIAL)


def difference_lines(found: FileDifference) -> Iterator[str]:
    """A unified diff, or one sentence."""
    if found.lines:
        # A tab ends the name for patch(1).
        yield f"--- {found.path}\tin the container"
        yield f"+++ {found.path}\there"
        yield from found.lines
    elif found.status != "equal":
        yield f"{found.path}: {_said(found)}"


def _said(found: FileDifference) -> str:
    here, there = (size_text(size or 0) for size in (found.here, found.there))
    if found.status == "local_only":
        return f"only here, {here}"
    if found.status == "remote_only":
        return f"only in the container, {there}"
    if found.no_lines == "binary":
        return f"binary, and differs: {_sizes(found)}"
    word = shlex.quote(found.path)
    how = f"to compare all lines: blobsync cat {word} | diff - {word}"
    return f"differs: {_sizes(found)}; {how}"


def _sizes(found: FileDifference) -> str:
    """The sizes of both, so that they differ where the files' do."""
    here, there = found.here or 0, found.there or 0
    if here == there:
        return f"{size_text(here)} on both sides"
    if size_text(here) == size_text(there):
        return f"{here:,} bytes here, {there:,} in the container"
    return f"{size_text(here)} here, {size_text(there)} in the container"


_SIDES = ("path", "digest", "files", "bytes")


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
    return Result(data, _comparison_lines(found, counts), exit_code=code, wraps=True)


def _comparison_lines(found: LockComparison, counts: dict[str, int]) -> Iterator[str]:
    yield from map(_change_line, found.changes)
    words = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count) or "no file differs"
    before, after = found.before, found.after
    sizes = f"{size_text(before.bytes)} in {count_text(before.files, 'file')}"
    yield f"{words}; {sizes} before, {size_text(after.bytes)} in {count_text(after.files, 'file')} after"


def _change_line(change: LockChange) -> str:
    sizes = [size_text(size) for size in (change.before, change.after) if size is not None]
    return f"{change.status:<8} {' -> '.join(dict.fromkeys(sizes)):>18}  {change.path}"


_WORDS = ("local", "remote", "both", "diff", "skip", "quit")
_KEEPS: Mapping[str, Keep] = {"local": "local", "remote": "remote", "both": "both"}
_QUESTION = "keep local, remote or both; or diff, skip, quit ('local all': for the rest, too)"
# Lines of a difference that are shown.
_LINES = 40


def settled(session: Session, project: Project, made: TransferPlan) -> TransferPlan:
    """A plan with conflicts, resolved as the user says; unchanged if nobody can be asked, or nothing is chosen.

    Of copies it asks nothing: their source is only read. Raises ``CommandInterruptedError`` on Ctrl-C.
    """
    if not made.settles_both_ends or not can_ask(session):
        return made
    keep = _answers(session, project, made)
    return project.settle(made, keep) if keep else made


def _answers(session: Session, project: Project, made: TransferPlan) -> Mapping[str, Keep]:
    """What the user says of each conflict; those that are skipped are left out."""
    each = [
        (part, action)
        for part, action in made.each()
        if action.action is Action.CONFLICT and action.reason is not Reason.ONE_FILE_HERE
    ]
    keep: dict[str, Keep] = {}
    for number, (part, action) in enumerate(each, 1):
        path = part.shown(action)
        why, *sides = _versions(project, part, action)
        show_lines(session, [f"{number:,} of {count_text(len(each), 'conflict')}: {printable(path)}: {why}", *sides])
        word, is_for_all = _asked(session, project, path)
        rest = [part.shown(action) for part, action in each[number - 1 :]] if is_for_all else [path]
        if word in _KEEPS:
            keep.update(dict.fromkeys(rest, _KEEPS[word]))
        if is_for_all or word == "quit":
            break
    return keep


def _versions(project: Project, part: PlanPart, action: FileAction) -> Iterator[str]:
    """Why it is a conflict; then the size, the time and the writer of each side, as far as they are known."""
    yield action.reason.value
    local = project.resolve(f"{project.root}/{part.shown(action)}").local
    try:
        status = local.stat()
        yield f"  local:  {size_text(status.st_size):>8}, {zulu_text(status.st_mtime)}, of {user_name(status.st_uid)}"
    except OSError as error:
        yield f"  local:  {error.strerror}"
    try:
        blob = next(project.list(f"{project.root}/{part.shown(action)}"))
        written = zulu_text(blob.last_modified or 0)
        yield f"  remote: {size_text(blob.size or 0):>8}, {written}; the service does not say who wrote it"
    except BlobsyncError as error:
        yield f"  remote: {printable(error.message)}"
    for entry in project.history(path=f"{project.root}/{part.shown(action)}", limit=1):
        yield f"  last transfer from here: {entry.kind} by {entry.user}, {zulu_text(entry.began)}"


def _asked(session: Session, project: Project, path: str) -> tuple[str, bool]:
    """A word, and whether it is for all that follow; ``diff`` is answered here, and the question asked again."""
    while True:
        word, is_for_all = ask_until(session, lambda: ask_text(session, _QUESTION, "skip"), _read)
        if word != "diff":
            return word, is_for_all
        show_lines(session, [printable(line, kept="\t") for line in _difference(project, path)], wraps=False)


def _read(answer: str) -> tuple[str, bool]:
    """A word of the question, or its beginning. Raises ``UsageError``."""
    typed, _, more = answer.lower().partition(" ")
    meant = [word for word in _WORDS if typed and word.startswith(typed)]
    if len(meant) != 1 or more.strip() not in ("", "all"):
        raise UsageError(f"answer {', '.join(_WORDS[:-1])} or {_WORDS[-1]}")
    return meant[0], bool(more)


def _difference(project: Project, path: str) -> Iterator[str]:
    try:
        lines = list(difference_lines(project.diff(f"{project.root}/{path}")))
    except BlobsyncError as error:
        yield error.message
        return
    yield from lines[:_LINES]
    if len(lines) > _LINES:
        yield f"... and {count_text(len(lines) - _LINES, 'more line')}: blobsync diff {shlex.quote(path)}"
