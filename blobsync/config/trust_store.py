"""What the user agreed to for each project, in a file of its own kind: ``$XDG_CONFIG_HOME/blobsync/trusted-WHAT.json``.

A project may come from a stranger. So it cannot agree to anything itself: the record is kept outside of it. Of such a
project a symlink out of it would let blobsync read or write anywhere: the user must trust each such link once, with its
current target.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from blobsync.base.records import NamedTuple
from blobsync.base.user_folders import config_home, locked_own, naming_damage, read_own, write_own

_T = TypeVar("_T", bound="tuple[str, ...]")


class TrustStore(Generic[_T]):
    """``what`` is agreed to, ``form`` makes one agreement of its texts, and ``again`` says how to agree once more."""

    def __init__(self, what: str, form: Callable[[Iterable[str]], _T], again: str) -> None:
        self._what = what
        self._form = form
        self._again = again

    def file(self, environ: Mapping[str, str]) -> Path:
        """Where it is kept."""
        return config_home(environ) / f"trusted-{self._what}.json"

    def load(self, project: Path, environ: Mapping[str, str]) -> frozenset[_T]:
        """What the user agreed to for the project at ``project``. Raises ``ConfigError``."""
        return frozenset(self._read(environ).get(os.path.realpath(project), ()))

    def change(
        self, project: Path, environ: Mapping[str, str], edit: Callable[[frozenset[_T]], Collection[_T]]
    ) -> frozenset[_T]:
        """Agree to what ``edit`` makes of it, from now on, and return that. Raises ``ConfigError``, and what ``edit``
        raises; then nothing is changed."""
        file, name = self.file(environ), os.path.realpath(project)
        # Two commands at once must not undo each other.
        with locked_own(file):
            known = self._read(environ)
            known[name] = sorted(edit(frozenset(known.get(name, ()))))
            projects = {name: [list(one) for one in each] for name, each in known.items() if each}
            write_own(file, json.dumps({f"blobsync_trusted_{self._what}": 1, "projects": projects}, indent=1))
        return frozenset(known[name])

    def _read(self, environ: Mapping[str, str]) -> dict[str, list[_T]]:
        file = self.file(environ)
        text = read_own(file)
        if text is None:
            return {}
        with naming_damage(file, f"remove {file}, then agree again: {self._again}"):
            projects = json.loads(text)["projects"]
            return {str(name): [self._form(map(str, one)) for one in each] for name, each in projects.items()}


class OutsideLink(NamedTuple):
    """``link`` is its path from the project's root; ``target`` is the target's path without links."""

    link: str
    target: str


TRUSTED_LINKS = TrustStore("links", OutsideLink._make, "blobsync config trust-link PATH")


def trust_command(link: str) -> str:
    """The command that trusts a link."""
    return f"blobsync config trust-link {shlex.quote(link)}"
