"""``cat`` and ``diff``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING

from blobsync.base.errors import ChecksumError, UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import printable, size_text
from blobsync.cli.lock import compared
from blobsync.cli.output import Result
from blobsync.cli.session import Commands, PathsArgument, Session, with_consent

if TYPE_CHECKING:
    from blobsync.base.errors import BlobsyncError
    from blobsync.project.content import FileDifference

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
