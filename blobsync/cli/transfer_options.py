"""The options that ``u``, ``d`` and ``plan`` share, and the ``TransferOptions`` that they mean."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from blobsync.base.errors import UsageError
from blobsync.cli.options import Bundle, OptionRow
from blobsync.plan.transfer_options import NO_LIMIT, TransferOptions

_DEFAULTS = TransferOptions()
_LIMIT = re.compile(r"(\d{1,300})(%?)", re.ASCII)


def _flag(text: str, *names: str) -> Any:
    return Annotated[bool, typer.Option(*names, help=text)]


def _word(text: str, metavar: str, *names: str) -> Any:
    return Annotated[str | None, typer.Option(*names, metavar=metavar, help=text)]


def _words(text: str, metavar: str, *names: str) -> Any:
    return Annotated[list[str] | None, typer.Option(*names, metavar=metavar, help=text)]


_ROWS: tuple[OptionRow, ...] = (
    (
        "engine",
        _word(
            "How the bytes move. [BLOBSYNC_ENGINE, engine: in the cluster file, or auto]",
            "auto|azcopy|direct|relay",
            "--engine",
        ),
        None,
    ),
    ("overwrite", _flag("Replace all files that differ at the destination.", "--overwrite"), False),
    (
        "keep",
        _word("Which version to keep of files that changed on both sides.", "local|remote|both", "--keep"),
        None,
    ),
    ("include", _words("Move only files that match, as in .gitignore; repeatable.", "PATTERN", "--include"), None),
    ("exclude", _words("Leave out files that match, as in .gitignore; repeatable.", "PATTERN", "--exclude"), None),
    ("mirror", _flag("Also delete what the source does not have, after asking.", "--mirror"), False),
    (
        "max_delete",
        _words("Limit for --mirror: a number of files, or a percentage. [1000 and 10%]", "N|P%", "--max-delete"),
        None,
    ),
    ("links", Annotated[str, typer.Option(metavar="follow|skip|error", help="What to do with symlinks.")], "follow"),
    ("compare_content", _flag("Compare the content of blobs that have no MD5.", "--compare-content"), False),
    (
        "cap_mbps",
        Annotated[float | None, typer.Option(metavar="N", help="Use at most N megabits per second.")],
        None,
    ),
    (
        "from_path",
        Annotated[
            str | None,
            typer.Option(metavar="PATH", help="The source, where its path differs."),
        ],
        None,
    ),
    (
        "processes",
        Annotated[
            int | None,
            typer.Option(metavar="N", help="Use N processes with the direct engine. [as many as are worth it]"),
        ],
        None,
    ),
    (
        "nodes",
        Annotated[int | None, typer.Option(metavar="N", help="Let N nodes of the cluster move the files, as a job.")],
        None,
    ),
    ("detach", _flag("With --nodes: print the job's id, and do not wait for it.", "--detach"), False),
    ("force", _flag("Download what fits, even if the disk has too little free space for all.", "--force"), False),
    ("relay", _flag("Copy through this machine if the service refuses to copy.", "--relay"), False),
    ("all_entries", _flag("All folder entries, in place of PATHs.", "--all"), False),
    ("receipt", _flag("Also save the receipt beside the data, as PATH.receipts/TIME.json.", "--receipt"), False),
)


def _build(**values: Any) -> TransferOptions:
    files, percent = _limits(values.pop("max_delete") or [])
    values["include"] = tuple(values["include"] or ())
    values["exclude"] = tuple(values["exclude"] or ())
    return TransferOptions(**values, max_delete_files=files, max_delete_percent=percent)


def _limits(given: list[str]) -> tuple[int, float]:
    """A limit that is given lifts the other one: ``--max-delete 50%`` means half, however many files that is."""
    if not given:
        return _DEFAULTS.max_delete_files, _DEFAULTS.max_delete_percent
    files, percent = NO_LIMIT, 100.0
    for text in given:
        match = _LIMIT.fullmatch(text)
        if not match:
            raise UsageError(f"--max-delete {text}: neither a number of files nor a percentage such as 25%")
        if match[2]:
            percent = min(float(match[1]), 100.0)
        else:
            files = min(int(match[1]), NO_LIMIT)
    return files, percent


TRANSFER_OPTIONS = Bundle("options", _ROWS, _build)
