"""What the user says outside every project: ``$XDG_CONFIG_HOME/blobsync/config.yaml``.

A project may come from a stranger, this file does not: here stands what a project may not grant itself. So it counts
only if nobody else can have written it. Reading it is all that happens here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.errors import ConfigError
from blobsync.config.known_keys import USER
from blobsync.config.typed import ALLOWED_VARIABLES_VARIABLE, Checker
from blobsync.config.yaml_lines import parse_document

TRUSTED_HOSTS_VARIABLE = "BLOBSYNC_TRUSTED_HOSTS"
SAFE_PROJECTS_VARIABLE = "BLOBSYNC_SAFE_PROJECTS"

# Bytes; a list of hosts and names is far smaller.
_MAX_SIZE = 1_000_000
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class UserConfig:
    """The file's values, with those of the environment added. ``docs/configuration.md`` says what each means.

    ``warnings`` are about the file: keys that nobody knows.
    """

    trusted_hosts: tuple[str, ...] = ()
    allowed_variables: tuple[str, ...] = ()
    safe_projects: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def config_home(environ: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/blobsync``, by default ``~/.config/blobsync``; not made here.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative value is to be ignored.
    """
    given = environ.get("XDG_CONFIG_HOME", "")
    if given and Path(given).is_absolute():
        return Path(given) / "blobsync"
    home = environ.get("HOME")
    return (Path(home) if home else Path.home()) / ".config" / "blobsync"


def user_config_file(environ: Mapping[str, str]) -> Path:
    """Where the file is, or would be."""
    return config_home(environ) / "config.yaml"


def load_user_config(environ: Mapping[str, str]) -> UserConfig:
    """Read the file; without one, only the environment counts.

    Raises ``ConfigError`` for a file that others can write, or that is wrong: to leave it out in silence would
    be to do something else than the user wrote.
    """
    hosts = _listed(environ, TRUSTED_HOSTS_VARIABLE)
    names = _listed(environ, ALLOWED_VARIABLES_VARIABLE)
    # Paths may hold commas and blanks.
    projects = tuple(filter(None, environ.get(SAFE_PROJECTS_VARIABLE, "").split(os.pathsep)))
    file = user_config_file(environ)
    text = read_own(file)
    if text is None:
        return UserConfig(hosts, names, projects)
    checker = Checker(parse_document(text, str(file)), {})
    values = checker.check(USER)
    if checker.problems:
        raise checker.problems[0]
    return UserConfig(
        trusted_hosts=(*hosts, *values.get("trusted_hosts", ())),
        allowed_variables=(*names, *values.get("allowed_variables", ())),
        safe_projects=(*projects, *values.get("safe_projects", ())),
        warnings=tuple(checker.warnings),
    )


def _listed(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """A variable that holds several words, with commas or blanks between them."""
    return tuple(environ.get(name, "").replace(",", " ").split())


def read_own(file: Path) -> str | None:
    """The text of a file that only the user can have written; None where there is none. Raises ``ConfigError``."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            _refuse_strangers(os.fstat(stream.fileno()), file)
            # A link is followed, as dot files often are links; who may write beside its target could replace it.
            _refuse_strangers(os.stat(file.resolve().parent), file.resolve().parent)
            _refuse_strangers(os.stat(file.parent), file.parent)
            data = stream.read(_MAX_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from error
    if len(data) > _MAX_SIZE:
        raise ConfigError(f"is larger than {_MAX_SIZE} bytes", file=str(file))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=str(file)) from error


def _refuse_strangers(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError("belongs to another user, so it does not count", file=str(path), hint=f"remove or own {path}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"can be written by other users (mode {mode:o}), so it does not count",
            file=str(path),
            hint=f"chmod go-w '{path}'",
        )
