"""What git says about the code: the commit, and which files differ from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from blobsync.environment import environment
from blobsync.errors import ProcessError
from blobsync.process import ProcessRunner

# Seconds; a repository that takes longer is not worth waiting for.
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class GitState:
    """``commit`` is the full hash, None before the first one. ``uncommitted`` are files of the code, and deleted
    ones, as they are named in the project, that differ from the commit or are not in it."""

    commit: str | None
    uncommitted: tuple[str, ...] = ()

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
        """The part that concerns the files ``code``: others, such as data, do not make it dirty."""
        names = set(code)
        folders = tuple(path for kind, path in self.changes if kind == "??" and path.endswith("/"))
        changed = {path for kind, path in self.changes if path in names or "D" in kind}
        if folders:
            # git names a new folder alone, and not what is in it.
            changed |= {name for name in names if name.startswith(folders)}
        return GitState(self.commit, tuple(sorted(changed)))


def ask_git(root: Path, runner: ProcessRunner, environ: Mapping[str, str] | None = None) -> GitReport | None:
    """None where there is no git or no repository. Takes no lock and changes nothing."""
    environ = environment(environ)
    env = {**environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}

    def git(*words: str) -> str | None:
        done = runner.run(["git", *words], env=env, cwd=root, timeout=_PATIENCE)
        return done.stdout if done.returncode == 0 else None

    try:
        prefix = git("rev-parse", "--show-prefix")
        if prefix is None:
            return None
        commit = git("rev-parse", "--verify", "--quiet", "HEAD")
        status = git("status", "--porcelain=v1", "-z", "--no-renames", "--", ".")
    except ProcessError:
        return None
    below = prefix.rstrip("\n")
    changes = tuple(
        (entry[:2], entry[3:].removeprefix(below))
        for entry in (status or "").split("\0")
        if entry and entry[3:].startswith(below)
    )
    return GitReport(commit.strip() if commit else None, changes)
