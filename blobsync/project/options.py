"""Reads the arguments of the API's transfers: paths as texts or path objects; options as an object, keywords or
both."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, get_args

from blobsync.base.errors import UsageError
from blobsync.plan.transfer_options import EngineName, Keep, Links, TransferOptions

if TYPE_CHECKING:
    from blobsync.config.model import Cluster
    from blobsync.plan.transfer_plan import Direction


PathName = str | os.PathLike[str]
Paths = PathName | Iterable[PathName]


def one_or_many(paths: Paths, *, or_none: bool = False) -> list[str]:
    """The paths as texts. Raises ``UsageError`` if there is none, ``TypeError`` for other objects."""
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
    """A path as a text. Raises ``TypeError`` for other objects, including bytes."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    return text


def from_root(root: Path, paths: Sequence[str], options: TransferOptions) -> tuple[list[str], TransferOptions]:
    """The words of a command from a plan's, whose paths are from the project's root."""
    if options.from_path is not None:
        options = replace(options, from_path=f"{root}/{options.from_path}")
    return [] if options.all_entries else [f"{root}/{path}" for path in paths], options


_DEFAULTS = TransferOptions()
_NAMES = tuple(each.name for each in fields(TransferOptions))
_PATTERNS = ("include", "exclude")


class TransferKeywords(TypedDict, total=False):
    """The fields of ``TransferOptions`` as keywords. One pattern needs no tuple."""

    engine: EngineName | None
    mirror: bool
    max_delete_files: int
    max_delete_percent: float
    overwrite: bool
    keep: Keep | None
    links: Links
    include: str | Iterable[str]
    exclude: str | Iterable[str]
    compare_content: bool
    cap_mbps: float | None
    relay: bool
    from_path: PathName | None
    receipt: bool
    all_entries: bool
    processes: int | None
    nodes: int | None
    detach: bool
    force: bool


def chosen_options(options: TransferOptions | None, keywords: Mapping[str, Any]) -> TransferOptions:
    """``options`` (default: those of the commands) with the changes of the keywords.

    Raises ``TypeError`` for an unknown keyword.
    """
    for name in keywords:
        if name not in _NAMES:
            near = get_close_matches(name, _NAMES, 1)
            raise TypeError(f"there is no transfer option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    base = options if options is not None else _DEFAULTS
    if not isinstance(base, TransferOptions):
        raise TypeError(f"options takes TransferOptions, not {type(base).__name__}")
    values = {name: keywords.get(name, getattr(base, name)) for name in (*_PATTERNS, "from_path")}
    changes: dict[str, Any] = {name: _patterns(values[name]) for name in _PATTERNS}
    if values["from_path"] is not None:
        changes["from_path"] = os.fspath(values["from_path"])
    return replace(base, **{**keywords, **changes})


def _patterns(value: str | Iterable[str]) -> tuple[str, ...]:
    """The patterns; a text is one pattern, not an iterable of letters."""
    return (value,) if isinstance(value, str) else tuple(value)


def check_options(options: TransferOptions, from_cluster: Cluster | None, direction: Direction) -> None:
    """Raise ``UsageError`` for options that contradict each other."""
    # Commands about jobs take paths and move nothing.
    from blobsync.plan.transfer_plan import Direction

    choices = (
        ("--engine", options.engine, (None, *get_args(EngineName))),
        ("--keep", options.keep, (None, *get_args(Keep))),
        ("--links", options.links, get_args(Links)),
    )
    for name, value, known in choices:
        if value not in known:
            words = ", ".join(sorted(word for word in known if word))
            raise UsageError(f"{name} {value}: not one of {words}")
    if options.processes is not None:
        _check_processes(options.processes, options.engine)
    if options.cap_mbps is not None and not (options.cap_mbps > 0 and isfinite(options.cap_mbps)):
        raise UsageError(f"--cap-mbps {options.cap_mbps}: not a number of megabits a second above 0")
    if options.nodes is not None or options.detach:
        from blobsync.plan.spreading import check_spread

        check_spread(options)
    if options.overwrite and options.keep:
        raise UsageError("--overwrite and --keep cannot be combined", hint="--keep both loses nothing")
    if options.force and direction is Direction.UP and options.keep is None:
        raise UsageError(
            "--force is about the free space of this machine, to which an upload without --keep writes nothing",
            hint="omit it; --overwrite replaces what has changed at the destination",
        )
    if options.engine == "relay" and from_cluster is None:
        raise UsageError("--engine relay is for copies between clusters", hint="pass -f CLUSTER")


def _check_processes(count: int, engine: str | None) -> None:
    from blobsync.plan.engine_model import MOST_PROCESSES

    if not 1 <= count <= MOST_PROCESSES:
        raise UsageError(f"--processes {count}: not a number from 1 to {MOST_PROCESSES}")
    if count > 1 and engine not in (None, "auto", "direct"):
        raise UsageError(
            f"--processes and --engine {engine} cannot be combined",
            hint="only the direct engine starts worker processes; azcopy uses every core by itself",
        )
