"""``${NAME}`` in configuration values: which environment variables a project's file may use, and their replacement."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from blobsync.base.lazy_regexes import pattern
from blobsync.config.yaml_document import KeyPath

# $${NAME} stands for a literal ${NAME}.
_VARIABLE = pattern(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")

# Variables that a project file may always use: those meant for its credentials.
_OPEN_VARIABLES = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN")
_OPEN_PREFIX = "BLOBSYNC_"
# The user's own addition to these, as ``user_config`` reads it.
ALLOWED_VARIABLES_VARIABLE = "BLOBSYNC_ALLOWED_VARIABLES"


class Problem(Protocol):
    """Is told what is wrong with the value of a key."""

    def __call__(self, path: KeyPath, message: str, *, hint: str | None = None) -> None: ...


class Variables:
    """The variables of one file. ``used`` are the keys whose values contain some, with their names. ``allowed`` is
    called for those that the user allows, once another one is named."""

    def __init__(self, environ: Mapping[str, str], allowed: Callable[[], Collection[str]], problem: Problem) -> None:
        self.used: dict[KeyPath, list[str]] = {}
        self._environ = environ
        self._allowed = allowed
        self.problem = problem

    def expand(self, path: KeyPath, text: str, *, may_have_any: bool) -> str | None:
        """``text`` with its variables replaced, if its key ``may_have_any`` and the project may use these; else None,
        and the problems are told."""
        refused = False

        def replace(match: re.Match[str]) -> str:
            nonlocal refused
            escaped, name = match.groups()
            if escaped:
                return f"${{{name}}}"
            refused |= not self._check(path, name, may_have_any=may_have_any)
            self.used.setdefault(path, []).append(name)
            return self._environ.get(name, "")

        expanded = _VARIABLE.sub(replace, text)
        return None if refused else expanded

    def _check(self, path: KeyPath, name: str, *, may_have_any: bool) -> bool:
        if not may_have_any:
            self.problem(
                path,
                f"must not contain ${{{name}}}: variables are expanded in credentials and in env only",
                hint=f"write the value itself, or $${{{name}}} for the literal text",
            )
        elif not (name in _OPEN_VARIABLES or name.startswith(_OPEN_PREFIX) or name in self._allowed()):
            self.problem(
                path,
                f"must not use the environment variable {name}: a project file may use allowed variables only",
                hint=f"if you trust this project with it: export {ALLOWED_VARIABLES_VARIABLE}={name}, "
                "or list it under allowed_variables in your own configuration file",
            )
        elif name not in self._environ:
            self.problem(
                path,
                f"the environment variable {name} is not set",
                hint=f"set it first, for example: export {name}=...",
            )
        else:
            return True
        return False
