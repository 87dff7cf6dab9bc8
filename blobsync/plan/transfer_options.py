"""The options of a transfer: what each means, the keywords of the API, and which contradict each other.

Patterns on paths are written as in .gitignore: ``--include`` and ``--exclude`` below a PATH, ``ignore`` below a folder
entry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from blobsync.base.errors import UsageError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.options import Option
from blobsync.base.records import NamedTuple

EngineName = Literal["auto", "azcopy", "direct", "relay"]
Keep = Literal["local", "remote", "both"]
Links = Literal["follow", "skip", "error"]

# Files; more than any container has: the limit if only a percentage is given.
NO_LIMIT = 10**12
# The largest numbers that a user may ask for.
_MOST_PROCESSES = 64
# More were never tried; Slurm allows 65,536 (https://slurm.schedmd.com/faq.html).
_MOST_NODES = 1024
# The commands that have an option.
_UP, _DOWN = ("u", "plan"), ("d", "plan")


class TransferOptions(NamedTuple):
    """The options of a transfer; the defaults are the commands' defaults.

    ``engine``: None is what ``BLOBSYNC_ENGINE`` says, or else the cluster file's ``engine:``, or else ``auto``. With
    ``keep`` both ends get this version; in a copy between blobs ``local`` means the source, which is only read.
    ``max_delete_*`` guard ``mirror``; if both have their defaults, the share counts only if the destination has 20
    files or more. With ``all_entries`` an entry that is not at the source is skipped. ``nodes``: None is this machine.
    ``wildcards``: a PATH that is not at the source may be a pattern with ``*``, ``?`` and ``[ab]``.
    """

    engine: Annotated[EngineName | None, Option("How the bytes move. [BLOBSYNC_ENGINE, cluster file, auto]")] = None
    mirror: Annotated[bool, Option("Also delete what the source does not have, after asking.")] = False
    max_delete_files: Annotated[
        int, Option("Limit for --mirror: files, or a percentage. [1000 and 10%]", "N|P%", "--max-delete", repeated=True)
    ] = 1000
    max_delete_percent: float = 10.0
    overwrite: Annotated[bool, Option("Replace all files that differ at the destination.")] = False
    keep: Annotated[Keep | None, Option("Which version to keep of files that changed on both sides.")] = None
    links: Annotated[Links, Option("What to do with symlinks.")] = "follow"
    include: Annotated[
        tuple[str, ...], Option("Move only files that match, as in .gitignore; repeatable.", "PATTERN", repeated=True)
    ] = ()
    exclude: Annotated[
        tuple[str, ...], Option("Leave out files that match, as in .gitignore; repeatable.", "PATTERN", repeated=True)
    ] = ()
    compare_content: Annotated[bool, Option("Compare the content of blobs that have no MD5.")] = False
    cap_mbps: Annotated[float | None, Option("Use at most N megabits (10^6) per second.", "N")] = None
    relay: Annotated[bool, Option("Copy through this machine if the service refuses to copy.", commands=_UP)] = False
    from_path: Annotated[str | None, Option("The source, where its path differs.", "PATH")] = None
    receipt: Annotated[bool, Option("Also save the receipt, as PATH.receipts/TIME.json.", commands=_UP)] = False
    all_entries: Annotated[bool, Option("All folder entries, in place of PATHs.", name="--all")] = False
    processes: Annotated[int | None, Option("Processes of the direct engine. [as many as are worth it]", "N")] = None
    nodes: Annotated[int | None, Option("Let N nodes of the cluster move the files, as a job.", "N")] = None
    detach: Annotated[bool, Option("With --nodes: print the job's id, and do not wait for it.")] = False
    force: Annotated[
        bool, Option("Write here what fits, even if the disk has too little free space; for u with --keep.")
    ] = False
    no_trash: Annotated[
        bool, Option("Replace and delete local files for good, without the trash; for u with --keep.")
    ] = False
    incomplete: Annotated[bool, Option("Download a checkpoint that is not complete, too.", commands=_DOWN)] = False
    locked: Annotated[bool, Option("Bring exactly the files of each PATH's lock.", commands=_DOWN)] = False
    wildcards: bool = False

    def __repr__(self) -> str:
        """Only what is not the default."""
        changed = (f"{name}={value!r}" for name, value in self._asdict().items() if value != self._field_defaults[name])
        return f"TransferOptions({', '.join(changed)})"

    def settles_both_ends(self, from_cluster: object) -> bool:
        """Whether ``--keep`` may write at the source's end, too: not if ``-f``, ``--from-path`` or a lock names it."""
        return from_cluster is None and self.from_path is None and not self.locked


def replaces_unverified(options: TransferOptions) -> bool:
    """Whether files may go that were never verified to be in a container."""
    return options.overwrite or options.mirror or options.keep is not None


def from_root(root: Path, paths: Sequence[str], options: TransferOptions) -> tuple[list[str], TransferOptions]:
    """The words of a command from a plan's, whose paths are from the project's root."""
    if options.from_path is not None:
        options = options._replace(from_path=f"{root}/{options.from_path}")
    return [] if options.all_entries else [f"{root}/{path}" for path in paths], options


_DEFAULTS = TransferOptions()
_LIMIT = pattern(r"(\d{1,300})(%?)", re.ASCII)
_PATTERNS = ("include", "exclude")


def deletion_limits(given: Sequence[str]) -> tuple[int, float]:
    """The limits of deletions: giving one removes the other, so that ``--max-delete 50%`` has no limit in files."""
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


def has_default_limits(options: TransferOptions) -> bool:
    """Whether no limit of deletions was given."""
    return (options.max_delete_files, options.max_delete_percent) == deletion_limits(())


def chosen_options(options: TransferOptions | None, keywords: Mapping[str, Any]) -> TransferOptions:
    """``options`` (default: those of the commands) with the changes of the keywords.

    Raises ``TypeError`` for an unknown keyword.
    """
    for name in keywords:
        if name not in TransferOptions._fields:
            from difflib import get_close_matches  # late: only a mistake needs it

            near = get_close_matches(name, TransferOptions._fields, 1)
            raise TypeError(f"there is no transfer option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    base = options if options is not None else _DEFAULTS
    if not isinstance(base, TransferOptions):
        raise TypeError(f"options takes TransferOptions, not {type(base).__name__}")
    values = {name: keywords.get(name, getattr(base, name)) for name in (*_PATTERNS, "from_path")}
    changes: dict[str, Any] = {name: _patterns(values[name]) for name in _PATTERNS}
    if values["from_path"] is not None:
        changes["from_path"] = os.fspath(values["from_path"])
    return base._replace(**{**keywords, **changes})


def _patterns(value: str | Iterable[str]) -> tuple[str, ...]:
    """The patterns; a text is one pattern, not an iterable of letters."""
    return (value,) if isinstance(value, str) else tuple(value)


def check_options(options: TransferOptions, from_cluster: object, *, uploads: bool) -> None:
    """Raise ``UsageError`` for options that contradict each other, or the command."""
    choices = (
        ("--engine", options.engine, (None, *get_args(EngineName))),
        ("--keep", options.keep, (None, *get_args(Keep))),
        ("--links", options.links, get_args(Links)),
    )
    for name, value, known in choices:
        if value not in known:
            words = sorted(word for word in known if word)
            raise UsageError(
                f"{name} {value}: not one of {', '.join(words)}", hint=_choice_hint(name, str(value), words)
            )
    if options.processes is not None:
        _check_processes(options.processes, options.engine)
    if options.cap_mbps is not None and not (options.cap_mbps > 0 and isfinite(options.cap_mbps)):
        raise UsageError(f"--cap-mbps {options.cap_mbps:g}: not a number of megabits a second above 0")
    if options.nodes is not None or options.detach:
        check_spread(options)
    if not (options.mirror or has_default_limits(options)):
        raise UsageError(
            "--max-delete is for --mirror: nothing is deleted without it",
            hint="omit it, or add --mirror, which deletes what the source does not have",
        )
    if options.overwrite and options.keep:
        raise UsageError("--overwrite and --keep cannot be combined", hint="--keep both loses nothing")
    _check_direction(options, uploads=uploads)
    if options.engine == "relay" and from_cluster is None:
        raise UsageError("--engine relay is for copies between clusters", hint="pass -f CLUSTER")


def _check_direction(options: TransferOptions, *, uploads: bool) -> None:
    if options.force and uploads and options.keep is None:
        raise UsageError(
            "--force is about the free space of this machine, to which an upload without --keep writes nothing",
            hint="omit it; --overwrite replaces what has changed at the destination",
        )
    if options.no_trash and uploads and options.keep is None:
        raise UsageError(
            "--no-trash is about local files, which an upload without --keep never replaces", hint="omit it"
        )
    if options.incomplete and uploads:
        raise UsageError("--incomplete is about downloads of checkpoints", hint="omit it: an upload takes what is here")
    if options.locked and uploads:
        raise UsageError("--locked is about downloads", hint="blobsync lock PATH locks what the container holds")
    if options.receipt and not uploads:
        raise UsageError("--receipt saves a receipt in the container, where a download writes nothing", hint="omit it")


def _choice_hint(option: str, value: str, words: Sequence[str]) -> str | None:
    if option == "--keep":
        # As other tools have it: newer, older, larger, ours, theirs.
        return "no clock or size decides: 'blobsync diff PATH' shows how the two differ, and --keep both loses nothing"
    from blobsync.config.known_keys import did_you_mean  # late: only a mistake needs it

    return did_you_mean(value, words)


def _check_processes(count: int, engine: str | None) -> None:
    if not 1 <= count <= _MOST_PROCESSES:
        raise UsageError(f"--processes {count}: not a number from 1 to {_MOST_PROCESSES}")
    if count > 1 and engine not in (None, "auto", "direct"):
        raise UsageError(
            f"--processes and --engine {engine} cannot be combined",
            hint="only the direct engine starts worker processes; azcopy uses every core by itself",
        )


def check_spread(options: TransferOptions) -> None:
    """Raise ``UsageError`` for ``nodes`` and ``detach`` with what contradicts them."""
    if options.nodes is None:
        if options.detach:
            raise UsageError("--detach is for transfers on nodes", hint="add --nodes N")
        return
    if not 1 <= options.nodes <= _MOST_NODES:
        raise UsageError(f"--nodes {options.nodes}: not a number from 1 to {_MOST_NODES}")
    if options.processes is not None:
        raise UsageError("--nodes and --processes cannot be combined", hint="--processes is for this machine")
    if options.engine not in (None, "auto", "direct"):
        raise UsageError(
            f"--nodes and --engine {options.engine} cannot be combined", hint="nodes use the direct engine"
        )
    if options.locked:
        raise UsageError("--nodes and --locked cannot be combined", hint="leave out --nodes")
    for name in ("mirror", "keep", "receipt"):
        if options.detach and getattr(options, name):
            raise UsageError(
                f"--detach and --{name} cannot be combined",
                hint=f"run it without --detach, or with --{name} once the job has ended",
            )


def selector(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool] | None:
    """A function that tells whether a relative path takes part; None if all do.

    A path takes part when an ``include`` pattern matches it or a folder above it (or there are none), and no
    ``exclude`` pattern does. Raises ``IgnorePatternError`` for an invalid pattern.
    """
    if not include and not exclude:
        return None
    wanted, unwanted = _matcher("--include", include), _matcher("--exclude", exclude)
    return lambda path: (not include or wanted(path)) and not unwanted(path)


# Only ``config check`` reads where a pattern was written.
_ENTRY = "ignore of a folder entry ('blobsync config check' names the line)"


def ignored_by(patterns: Sequence[tuple[str, Sequence[str]]]) -> Callable[[str], bool] | None:
    """A function that tells whether ``ignore`` of a folder entry leaves out a relative path; None without patterns.

    Each item is where the paths begin below an entry, and that entry's patterns. Raises ``IgnorePatternError``.
    """
    rules = [(f"{base}/" if base else "", base, _matcher(_ENTRY, each)) for base, each in patterns if each]
    if not rules:
        return None
    return lambda path: any(matches(f"{lead}{path}" if path else base) for lead, base, matches in rules)


def below_any(folders: Sequence[str]) -> Callable[[str], bool] | None:
    """A function that tells whether a relative path is at or below one of ``folders``; None without folders."""
    if not folders:
        return None
    # An entry may be a single file's.
    names, leads = frozenset(folders), tuple(f"{folder}/" for folder in folders)
    return lambda path: path in names or path.startswith(leads)


def _matcher(option: str, patterns: Sequence[str]) -> Callable[[str], bool]:
    from blobsync.local.ignore_patterns import IgnoreRules, parse_list  # imported late: most commands have no patterns

    rules = IgnoreRules(((parse_list(patterns, option),),))
    folders: dict[str, bool] = {"": False}

    def matches(path: str, *, folder: bool) -> bool:
        rule = rules.decide(path, folder=folder)
        return rule is not None and not rule.takes_in

    def in_folder(folder: str) -> bool:
        unknown = []
        while folder not in folders:
            unknown.append(folder)
            folder = folder.rpartition("/")[0]
        # No recursion: a name may have more parts than Python's stack.
        for below in reversed(unknown):
            folders[below] = folders[folder] or matches(below, folder=True)
            folder = below
        return folders[folder]

    return lambda path: in_folder(path.rpartition("/")[0]) or matches(path, folder=False)
