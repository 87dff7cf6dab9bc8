"""Which symlinks out of a project the user has agreed to: ``$XDG_CONFIG_HOME/blobsync/trusted-links.json``.

A link may come with a project from a stranger, and would let blobsync read or write anywhere. So the user must trust
each such link once, with its current target. The record is kept outside the project, which cannot grant it itself.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from blobsync.base.errors import ConfigError
from blobsync.base.user_folders import config_home, read_own, write_own


class OutsideLink(NamedTuple):
    """``link`` is its path from the project's root; ``target`` is the target's path without links."""

    link: str
    target: str


def trust_command(link: str) -> str:
    """The command that trusts a link."""
    return f"blobsync config trust-link {shlex.quote(link)}"


def trusted_links_file(environ: Mapping[str, str]) -> Path:
    """The file of the trusted links."""
    return config_home(environ) / "trusted-links.json"


def load_trusted_links(project: Path, environ: Mapping[str, str]) -> frozenset[OutsideLink]:
    """What the user agreed to for the project at ``project``. Raises ``ConfigError``."""
    return frozenset(_read(environ).get(_name(project), ()))


def save_trusted_links(project: Path, links: Iterable[OutsideLink], environ: Mapping[str, str]) -> None:
    """Trust exactly these links for the project from now on. Raises ``ConfigError``."""
    file = trusted_links_file(environ)
    known = {name: list(each) for name, each in _read(environ).items()} | {_name(project): sorted(links)}
    projects = {name: [list(link) for link in each] for name, each in known.items() if each}
    write_own(file, json.dumps({"blobsync_trusted_links": 1, "projects": projects}, indent=1))


def _name(project: Path) -> str:
    return os.path.realpath(project)


def _read(environ: Mapping[str, str]) -> dict[str, tuple[OutsideLink, ...]]:
    file = trusted_links_file(environ)
    text = read_own(file)
    if text is None:
        return {}
    try:
        projects = json.loads(text)["projects"]
        return {
            str(name): tuple(OutsideLink(str(link), str(target)) for link, target in links)
            for name, links in projects.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "is damaged, or was not written by blobsync",
            file=str(file),
            hint=f"remove {file}, then trust your links again: blobsync config trust-link PATH",
        ) from error
