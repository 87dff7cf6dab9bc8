"""Paths as callers have them: texts or path objects, one or many."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from blobsync.base.errors import UsageError
from blobsync.plan.transfer_options import TransferOptions

PathName = str | os.PathLike[str]
Paths = PathName | Iterable[PathName]


def one_or_many(paths: Paths, *, or_none: bool = False) -> list[str]:
    """The paths as texts. Raises ``UsageError`` where there is none, ``TypeError`` for what is no path."""
    if isinstance(paths, (str, os.PathLike)):
        return [path_text(paths)]
    found = [path_text(path) for path in paths]
    if not found and not or_none:
        raise UsageError(
            "no path given",
            hint="a path inside the project, such as data/voc20; --all (in Python: all_entries) means every entry",
        )
    return found


def path_text(path: PathName) -> str:
    """One path as a text. Raises ``TypeError`` for what is no path; bytes are none."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    return text


def from_root(root: Path, paths: Sequence[str], options: TransferOptions) -> tuple[list[str], TransferOptions]:
    """The words of a command from a plan's, whose paths are from the project's root."""
    if options.from_path is not None:
        options = replace(options, from_path=f"{root}/{options.from_path}")
    return [] if options.all_entries else [f"{root}/{path}" for path in paths], options
