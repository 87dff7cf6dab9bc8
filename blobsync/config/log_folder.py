"""The folder of a project's job logs: ACT's, or the one that ACT's variable names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# Where ACT put logs.
ASSETS = "assets"
LOG_FOLDER_VARIABLE = "AML_LOG_FOLDER"


def log_folder(root: Path, environ: Mapping[str, str]) -> Path:
    """The folder that contains those of the jobs; the variable may name one outside the project."""
    return root / (environ.get(LOG_FOLDER_VARIABLE) or ASSETS)


def log_folders_inside(root: Path, environ: Mapping[str, str]) -> frozenset[str]:
    """The log folders inside the project, from its root, with ``/``: ``assets``, and the variable's."""
    named = log_folder(root, environ)
    inside = os.path.relpath(os.path.normpath(named), root)
    # Its name may lead through a link; the project itself is never a log folder.
    real = os.path.relpath(named.resolve(), root.resolve())
    return frozenset({ASSETS, *(path for path in (inside, real) if path.partition("/")[0] not in (".", ".."))})
