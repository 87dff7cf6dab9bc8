"""Settles conflicts on a terminal, file by file: shows both versions, and asks which one to keep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.formatting import count_text, printable, size_text, zulu_text
from blobsync.base.plan_reasons import Reason
from blobsync.base.user_folders import user_name
from blobsync.cli.cat import difference_lines
from blobsync.cli.confirm import ask_text, ask_until, can_ask, show_lines
from blobsync.plan.transfer_options import Keep
from blobsync.plan.transfer_plan import Action, FileAction, PlanPart, TransferPlan

if TYPE_CHECKING:
    from blobsync.cli.session import Session
    from blobsync.project.api import Project

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
