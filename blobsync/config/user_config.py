"""The user's own configuration outside all projects: ``$XDG_CONFIG_HOME/blobsync/config.yaml``.

It contains what a project, which may come from a stranger, must not grant itself. It is used only if no other user can
write to it. This module only reads it.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from blobsync.base.records import NamedTuple
from blobsync.base.trusted_hosts import TRUSTED_HOSTS_VARIABLE
from blobsync.base.user_folders import config_home, listed_in, read_own
from blobsync.config.known_keys import USER
from blobsync.config.typed_values import ALLOWED_VARIABLES_VARIABLE, Checker
from blobsync.config.yaml_document import parse_document

SAFE_PROJECTS_VARIABLE = "BLOBSYNC_SAFE_PROJECTS"
TRUSTED_BUCKETS_VARIABLE = "BLOBSYNC_TRUSTED_BUCKETS"


class UserConfig(NamedTuple):
    """The file's values, with those of the environment added. ``docs/configuration.md`` says what each means.

    ``warnings`` are about the file: unknown keys.
    """

    trusted_hosts: tuple[str, ...] = ()
    allowed_variables: tuple[str, ...] = ()
    safe_projects: tuple[str, ...] = ()
    trusted_buckets: tuple[str, ...] = ()
    trusted_profiles: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def user_config_file(environ: Mapping[str, str]) -> Path:
    """The path of the file, which may not exist."""
    return config_home(environ) / "config.yaml"


def load_user_config(environ: Mapping[str, str]) -> UserConfig:
    """Read the file; without one, only the environment counts.

    Raises ``ConfigError`` for a file that others can write, or that is invalid: ignoring it silently would
    not do what the user configured.
    """
    file = user_config_file(environ)
    checker = Checker(parse_document(read_own(file) or "", str(file)), {})
    values = checker.check(USER)
    if checker.problems:
        raise checker.problems[0]
    given: dict[str, tuple[str, ...]] = {
        "trusted_hosts": listed_in(environ, TRUSTED_HOSTS_VARIABLE),
        "allowed_variables": listed_in(environ, ALLOWED_VARIABLES_VARIABLE),
        # Paths may hold commas and blanks.
        "safe_projects": tuple(filter(None, environ.get(SAFE_PROJECTS_VARIABLE, "").split(os.pathsep))),
        "trusted_buckets": listed_in(environ, TRUSTED_BUCKETS_VARIABLE),
        "trusted_profiles": (),
    }
    lists = {name: (*known, *values.get(name, ())) for name, known in given.items()}
    return UserConfig(**lists, notify=values.get("notify", {}).get("command", ()), warnings=tuple(checker.warnings))
