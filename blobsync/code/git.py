"""Asks git about the code: the commit, and which files differ from it; and reads files of a commit.

A repository may come from a stranger as a folder, with a configuration that names programs for git to run. Querying
files would run three kinds of them: a file system monitor, the filters of single files, and what fetches an object
that a partial clone lacks (``core.sshCommand``, ``remote.NAME.uploadpack``). All are switched off here. A folder that
has the files of a bare repository is not taken for one: it would choose what is configured for the project around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from blobsync.base.errors import NothingMatchedError, ProcessError, UsageError
from blobsync.base.process import Completed, ProcessRunner
from blobsync.base.records import dataclass
from blobsync.base.user_folders import environment

# Submodules have their own configurations, and are not read.
_STATUS = ("status", "--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=all", "--", ".")
_NO_PROGRAMS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "log.showSignature=false"),
    # Since git 2.38: https://git-scm.com/docs/git-config#Documentation/git-config.txt-safebareRepository
    *("-c", "safe.bareRepository=explicit"),
)
# Each stops a fetch. The first needs git 2.45, or 2.39.4 and later of the older lines; every git knows the second.
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
_FILTERS = re.compile(r"^(filter\..+)\.(?:clean|smudge|process|required)$", re.DOTALL)

# In seconds. Do not wait longer for a repository.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, repr=False)
class GitState:
    """``commit`` is the full hash, None before the first one. ``uncommitted`` are files of the code, and deleted
    ones, by their names in the project, that differ from the commit or are not in it."""

    commit: str | None
    uncommitted: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<GitState {self.commit}: {len(self.uncommitted):,} files uncommitted>"

    @property
    def dirty(self) -> bool:
        """Whether the code is not exactly what the commit holds."""
        return bool(self.uncommitted)


@dataclass(frozen=True, slots=True)
class GitReport:
    """What git printed, before it is known which files are code."""

    commit: str | None
    changes: tuple[tuple[str, str], ...] = ()

    def state(self, code: Iterable[str]) -> GitState:
        """The part about the files ``code``: others, such as data, do not make it dirty."""
        names = set(code)
        folders = tuple(path for kind, path in self.changes if kind == "??" and path.endswith("/"))
        changed = {path for kind, path in self.changes if path in names or "D" in kind}
        if folders:
            # git names only a new folder, not the files in it.
            changed |= {name for name in names if name.startswith(folders)}
        return GitState(self.commit, tuple(sorted(changed)))


def ask_git(root: Path, runner: ProcessRunner, environ: Mapping[str, str] | None = None) -> GitReport | None:
    """Ask git; None without git, without a repository, or if git cannot read it. Takes no lock and changes nothing."""

    def git(*words: str) -> str | None:
        done = _run(root, runner, environ, *words)
        return done.stdout if done.returncode == 0 else None

    try:
        prefix = git("rev-parse", "--show-prefix")
        if prefix is None:
            return None
        commit = git("rev-parse", "--verify", "--quiet", "HEAD")
        settings = (git("config", "--null", "--name-only", "--list") or "").split("\0")
        filters = dict.fromkeys(found[1] for name in settings if (found := _FILTERS.match(name)))
        if any("=" in name for name in filters):
            # No git option can name it, so it cannot be disabled.
            return None
        # A file that equals the commit only through its filter then counts as changed, which is the safe result.
        off = (f"{name}.{key}" for name in filters for key in ("clean=", "smudge=", "process=", "required=false"))
        status = git(*(word for setting in off for word in ("-c", setting)), *_STATUS)
    except ProcessError:
        return None
    if status is None:
        # An object is missing. The differences are unknown, so do not report none.
        return None
    below = prefix.rstrip("\n")
    changes = tuple(
        (entry[:2], entry[3:].removeprefix(below))
        for entry in status.split("\0")
        if entry and entry[3:].startswith(below)
    )
    return GitReport(commit.strip() if commit else None, changes)


def _run(root: Path, runner: ProcessRunner, environ: Mapping[str, str] | None, *words: str) -> Completed:
    env = {**environment(environ), **_NO_FETCH, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    return runner.run(["git", *_NO_PROGRAMS, *words], env=env, cwd=root, timeout=_PATIENCE)


# What gitrevisions(7) gives a meaning, but for ``:``, which would name a file.
_REVISION = re.compile(r"[A-Za-z0-9@_./~^{}+=,][-A-Za-z0-9@_./~^{}+=,]{0,250}")


class Commit:
    """One commit of the repository in which the project is. Files are read as they were committed: no filter, textconv
    or hook runs, and nothing is fetched."""

    def __init__(
        self, root: Path, revision: str, runner: ProcessRunner, environ: Mapping[str, str] | None = None
    ) -> None:
        """Raises ``UsageError`` if git knows no such revision, ``ProcessError`` without git."""
        self._root, self._runner, self._environ = root, runner, environ
        is_named = _REVISION.fullmatch(revision)
        known = self._git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}") if is_named else None
        if known is None or known.returncode:
            hint = "a revision is a commit, a tag or a branch: git log --oneline shows some"
            raise UsageError(f"{revision!a}: git knows no such revision here", hint=hint)
        self.revision, self._commit = revision, known.stdout.strip()

    def read(self, name: str, most: int) -> bytes:
        """The file ``name`` of the project. Raises ``NothingMatchedError`` if the commit has none, or a larger one than
        ``most`` bytes, or if it was not fetched."""
        place = f"{self._commit}:./{name}"
        size = self._git("cat-file", "-s", place)
        if size.returncode or int(size.stdout) > most:
            what = "is too large" if not size.returncode else "is not in that commit"
            raise NothingMatchedError(f"{self.revision}: {name} {what}", hint=f"git log -- {name}", path=name)
        return self._git("cat-file", "blob", place).output

    def _git(self, *words: str) -> Completed:
        return _run(self._root, self._runner, self._environ, *words)
