"""Which files of a project ``init`` packs, and why each is in or out; ``local.ignore_patterns`` matches the patterns.

Excluded folders are never entered. No pattern can include these again: version control,
virtual environments, caches, the local sides of folder entries, the folders of logs (``config.project_root``),
blobsync's own files, and files above ``max_file_size``. Files that hold secrets by their name (``.env``, ``id_rsa``,
``.aws/``) are excluded unless a pattern of ``.blobsyncignore`` or of the cluster file names them. Files below
``aux_data/`` that hold a key are left out later, by ``code.snapshot``, which reads them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from blobsync.base.errors import ArchiveError, NothingMatchedError
from blobsync.base.file_states import LocalState, regular_only
from blobsync.base.formatting import count_text, size_text
from blobsync.base.records import dataclass
from blobsync.base.user_folders import environment
from blobsync.code.secrets import LOOKED_AT, names_it, why_secret
from blobsync.code.unpack import MANIFEST_NAME
from blobsync.config.model import Cluster
from blobsync.config.project_root import PROJECT_MARK, log_folders_inside
from blobsync.local.globs import ZipExclude, zip_excludes
from blobsync.local.ignore_patterns import IGNORE_FILES, IgnoreRules, project_rules
from blobsync.local.names import is_temporary
from blobsync.local.os_errors import local_error
from blobsync.local.state_dir import NAME as STATE_DIR_NAME

# Bytes; what is larger is data, not code.
DEFAULT_MAX_FILE_SIZE = 50 * 1000 * 1000

_NEVER = {
    ".git": "version control",
    ".hg": "version control",
    ".svn": "version control",
    STATE_DIR_NAME: "blobsync's own files",
    MANIFEST_NAME: "blobsync's own files",
    **dict.fromkeys((".DS_Store", "__pycache__", ".cache", ".eggs", ".hypothesis", ".ipynb_checkpoints"), "a cache"),
    **dict.fromkeys((".mypy_cache", ".nox", ".pytest_cache", ".ruff_cache", ".tox"), "a cache"),
}

# Of the folders that .gitignore leaves out, at most so many are named.
_NAMED_FOLDERS = 3

# The Cache Directory Tagging Specification, https://bford.info/cachedir/
_CACHE_TAG = "CACHEDIR.TAG"
_CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
# What tells a folder of another kind.
_MARKERS = ("pyvenv.cfg", "conda-meta", _CACHE_TAG)


@dataclass(frozen=True, slots=True)
class CodeFile:
    """One file of the code. ``mode`` is ``644``, ``755`` or ``link``; ``target`` is where a link points."""

    path: str
    mode: str
    state: LocalState
    target: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """Why ``path`` is in the archive or not, with pattern, file and line if a pattern decides.

    ``secret``: it is excluded because its name marks it as secret.
    """

    path: str
    included: bool
    reason: str
    pattern: str | None = None
    file: str | None = None
    line: int | None = None
    size: int | None = None
    secret: bool = False


@dataclass(frozen=True, slots=True)
class CodeRules:
    """All rules, read once from the cluster and from the ignore files above the project.

    ``ignore_files`` False skips the ignore files inside the project; ``chosen``: every file was chosen already, also
    those whose names mark them as secret.
    """

    root: Path
    ignore: IgnoreRules
    excludes: tuple[ZipExclude, ...]
    config_file: str
    folders: frozenset[str]
    logs: frozenset[str]
    max_file_size: int
    notes: tuple[str, ...] = ()
    ignore_files: bool = True
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The files in the order of their names, and notes for the user on missing ones."""

    files: tuple[CodeFile, ...]
    left_out: tuple[Decision, ...]
    notes: tuple[str, ...]


def code_rules(
    cluster: Cluster, *, max_file_size: int | None = None, environ: Mapping[str, str] | None = None
) -> CodeRules:
    """The rules of a cluster; ``max_file_size`` (bytes) wins over the cluster file's.

    Raises ``IgnorePatternError`` for a pattern of the configuration or of a file above the project.
    """
    excludes, unused = zip_excludes(cluster.zip_options, cluster.written_in("zip_options"))
    notes = (f"{cluster.file}: zip_options: only -x is supported, not {' '.join(unused)}",) if unused else ()
    return CodeRules(
        root=cluster.root,
        ignore=project_rules(cluster.root, cluster.ignore, cluster.written_in("ignore")),
        excludes=excludes,
        config_file=cluster.file,
        folders=frozenset(prefix for prefix in cluster.prefixes if prefix),
        logs=log_folders_inside(cluster.root, environment(environ)),
        max_file_size=max_file_size or cluster.max_file_size or DEFAULT_MAX_FILE_SIZE,
        notes=notes,
    )


def find_code(rules: CodeRules) -> CodeTree:
    """Walk the project once.

    Raises ``IgnorePatternError``, ``LocalFileError`` for a folder that cannot be read, ``ArchiveError`` for a
    name that is not UTF-8.
    """
    walk = _Walk(rules)
    files = sorted(walk.folder("", rules.ignore), key=lambda file: file.path)
    said = walk.unshared.note()
    return CodeTree(tuple(files), tuple(walk.left_out), (*rules.notes, *([said] if said else [])))


def why(rules: CodeRules, path: str) -> Decision:
    """Which rule decides ``path`` (from the project's root; ``/`` at the end means a folder).

    Raises ``NothingMatchedError`` where there is no such file.
    """
    local = rules.root / path
    if not os.path.lexists(local):
        raise NothingMatchedError(f"there is no {path} in the project", path=path)
    walk = _Walk(rules)
    ignore, whole = rules.ignore, path.strip("/")
    parts = whole.split("/")
    for depth, name in enumerate(parts):
        here = "/".join(parts[:depth])
        above = f"{here}/" if here else ""
        names = {entry.name for entry in walk.entries(above)}
        if here and (marked := _marked(rules.root / here, names)):
            return Decision(path, included=False, reason=f"{here}/ is {marked}")
        ignore = ignore.entering(rules.root / here, above, names)
        one = above + name
        status = os.lstat(rules.root / one)
        folder = stat.S_ISDIR(status.st_mode)
        if found := _left_out(rules, ignore, one, name, folder=folder):
            inherited = "" if one == whole else f"its folder {one}/ is left out: "
            return replace(found, path=path, reason=inherited + found.reason)
    if folder:
        if marked := _marked(local, set(os.listdir(local))):
            return Decision(whole, included=False, reason=marked)
    elif refused := _refused(rules, whole, status, os.readlink(local) if stat.S_ISLNK(status.st_mode) else ""):
        return refused
    rule = ignore.decide(whole, folder=folder)
    size = None if folder else status.st_size
    if rule is None:
        return Decision(whole, True, "no pattern matches it", size=size)
    return Decision(whole, True, "included again by a pattern", rule.pattern, rule.file, rule.line or None, size)


class _Walk:
    def __init__(self, rules: CodeRules) -> None:
        self.rules = rules
        self.left_out: list[Decision] = []
        self.unshared = _Unshared(rules)

    def entries(self, path: str) -> list[os.DirEntry[str]]:
        folder = self.rules.root / path
        try:
            with os.scandir(folder) as found:
                return list(found)
        except OSError as error:
            raise local_error(error, folder) from error

    def folder(self, path: str, ignore: IgnoreRules) -> Iterator[CodeFile]:
        """The files below ``path`` (with its ``/``), to which the rules of its parents apply."""
        entries = self.entries(path)
        names = {entry.name for entry in entries}
        if path and _marked(self.rules.root / path, names):
            return
        if self.rules.ignore_files:
            ignore = ignore.entering(self.rules.root / path, path, names)
        for entry in entries:
            one = path + entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if found := _left_out(self.rules, ignore, one, entry.name, folder=is_folder):
                if found.secret:
                    self.left_out.append(found)
                elif (found.file or "").endswith(IGNORE_FILES[0]):
                    self.unshared.add(one, entry, is_folder=is_folder)
                continue
            if is_folder:
                yield from self.folder(f"{one}/", ignore)
            elif (file := self._file(one, entry)) is not None:
                yield file

    def _file(self, path: str, entry: os.DirEntry[str]) -> CodeFile | None:
        try:
            status = entry.stat(follow_symlinks=False)
            target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
        except OSError as error:
            raise local_error(error, entry.path) from error
        _check_utf8(path, target)
        if refused := _refused(self.rules, path, status, target):
            self.left_out.append(refused)
            return None
        if target:
            return CodeFile(path, "link", LocalState.of(status), target)
        # Only the owner's run bit: the others depend on the umask.
        mode = "755" if status.st_mode & stat.S_IXUSR else "644"
        return CodeFile(path, mode, LocalState.of(status))


class _Unshared:
    """What .gitignore leaves out: what is not shared by git may be what the program was built to.

    Folders are named, and not entered.
    """

    def __init__(self, rules: CodeRules) -> None:
        self._rules = rules
        self._files = 0
        self._folders: list[str] = []
        # Bytes, and the file.
        self._largest: tuple[int, str] | None = None

    def add(self, path: str, entry: os.DirEntry[str], *, is_folder: bool) -> None:
        """Count a file or a folder. Of accounts and clusters none is code."""
        if path.partition("/")[0] == PROJECT_MARK:
            return
        local = self._rules.root / path
        if is_folder:
            if not _marked(local, {name for name in _MARKERS if os.path.lexists(local / name)}):
                self._folders.append(f"{path}/")
            return
        self._files += 1
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            is_secret = why_secret(entry.name, folder=False, read=lambda: _beginning(local)) is not None
            if not is_secret and not _refused(self._rules, path, status):
                self._largest = max(self._largest or (-1, ""), (status.st_size, path))

    def note(self) -> str:
        """A sentence for the user; empty if .gitignore leaves out nothing."""
        folders = sorted(self._folders)
        named = ", ".join([*folders[:_NAMED_FOLDERS], *(["..."] if len(folders) > _NAMED_FOLDERS else [])])
        parts = [count_text(self._files, "file")] if self._files else []
        parts += [f"{count_text(len(folders), 'folder')} ({named})"] if folders else []
        if not parts:
            return ""
        size, path = self._largest or (0, "")
        largest = f"; the largest file is {path} ({size_text(size)})" if path else ""
        example = path or next(iter(folders), "")
        included = f"; '!/{example}' in .blobsyncignore includes it" if example else ""
        return f"left out by .gitignore: {' and '.join(parts)}{largest}{included}"


def _left_out(rules: CodeRules, ignore: IgnoreRules, path: str, name: str, *, folder: bool) -> Decision | None:
    """Why an entry is excluded although its parents are included; None if it is included."""
    if reason := _never(rules, path, name):
        return Decision(path, included=False, reason=reason)
    for exclude in rules.excludes:
        if exclude.leaves_out(path, folder=folder):
            file = f"{rules.config_file}: zip_options"
            return Decision(path, False, "a pattern matches it", exclude.pattern, file)
    rule = ignore.decide(path, folder=folder)
    if rule is not None and not rule.takes_in:
        return Decision(path, False, "a pattern matches it", rule.pattern, rule.file, rule.line or None)
    if rules.chosen or (rule is not None and rule.is_ours and names_it(rule.pattern)):
        return None
    what = why_secret(name, folder=folder, read=lambda: _beginning(rules.root / path))
    if what is None:
        return None
    pattern = f"!/{path}/" if folder else f"!/{path}"
    return Decision(path, False, f"{what}; '{pattern}' in .blobsyncignore includes it", secret=True)


def _beginning(file: Path) -> bytes:
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            return stream.read(LOOKED_AT)
    except OSError:
        # Packing reports it.
        return b""


def _never(rules: CodeRules, path: str, name: str) -> str | None:
    if path in rules.folders:
        return f"the folder entry {path}_folder: its files are stored in blobs, not in the code"
    if path in rules.logs:
        return "the logs of jobs"
    if name in _NEVER:
        return _NEVER[name]
    if name.endswith((".pyc", ".pyo")):
        return "a cache"
    return "an unfinished download" if is_temporary(name) else None


def _marked(folder: Path, names: set[str]) -> str | None:
    """What kind of folder it is, by a marker file in it."""
    if "pyvenv.cfg" in names or ("conda-meta" in names and (folder / "conda-meta" / "history").exists()):
        return "a virtual environment"
    if _CACHE_TAG in names:
        try:
            with open(folder / _CACHE_TAG, "rb", opener=regular_only) as tag:
                return "a cache" if tag.read(len(_CACHE_SIGNATURE)) == _CACHE_SIGNATURE else None
        except OSError:
            return None
    return None


def _refused(rules: CodeRules, path: str, status: os.stat_result, target: str = "") -> Decision | None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return Decision(path, included=False, reason="neither a file, a folder nor a link")
    if status.st_size > rules.max_file_size:
        reason = f"larger than max_file_size ({rules.max_file_size / 1e6:g} MB)"
        return Decision(path, included=False, reason=reason, size=status.st_size)
    if target and _leads_out(path, target):
        # A node would refuse such an archive: the link has another target there.
        return Decision(path, included=False, reason=f"a link that points outside the project, to {target}")
    return None


def _check_utf8(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = os.fsencode(text).decode("utf-8", "backslashreplace")
            raise ArchiveError(
                f"{shown}: the name is not valid UTF-8, and a code archive holds UTF-8 names only",
                hint="rename it, or leave it out with a pattern in .blobsyncignore",
                path=shown,
            ) from error


def _leads_out(path: str, target: str) -> bool:
    end = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return os.path.isabs(target) or end == ".." or end.startswith("../")
