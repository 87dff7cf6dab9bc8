"""Finds the project's folder and those in it, and checks that it is the user's own.

A project's files say which programs run and where data goes, so anyone who can create ``aux_data/`` above the current
folder (in ``/tmp``, on a shared disk) would decide that for every user below. The rule is git's for repositories:
https://git-scm.com/docs/git-config#Documentation/git-config.txt-safedirectory
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from blobsync.base.errors import ConfigNotFoundError, ForeignProjectError
from blobsync.base.user_folders import environment, is_own, user_name
from blobsync.config.model import DEFAULT_CLUSTER

PROJECT_MARK = "aux_data"
CLUSTER_FOLDER = f"{PROJECT_MARK}/aml"
LOCK_FOLDER = f"{PROJECT_MARK}/locks"
# The cluster file that is used without -c.
CLUSTER_VARIABLE = "AML_CONFIG_PATH"
# The folder for blobsync's records of a project.
STATE_FOLDER = ".blobsync"
# Where ACT put the logs of jobs, unless its variable names another folder.
ASSETS = "assets"
LOG_FOLDER_VARIABLE = "AML_LOG_FOLDER"


def find_project(start: Path, environ: Mapping[str, str] | None = None) -> Path:
    """The project that contains ``start``: the nearest folder, upwards, that holds ``aux_data/``. Outside all
    projects it is the one whose cluster file ``AML_CONFIG_PATH`` names.

    Raises ``ConfigNotFoundError``, and ``ForeignProjectError`` for one that belongs to another user and that the
    user's own configuration does not list under ``safe_projects``.
    """
    start, environ = Path(os.path.abspath(start)), environment(environ)
    folder = _marked(start) or _of_variable(environ)
    if folder is not None:
        demand_own(folder, environ)
        return folder
    if given := environ.get(CLUSTER_VARIABLE):
        elsewhere = f"{CLUSTER_VARIABLE} names {file_of_variable(given)}, which is in no project's {CLUSTER_FOLDER}/"
        raise ConfigNotFoundError(f"{start} is in no project, and {elsewhere}", hint="cd into your project")
    raise ConfigNotFoundError(
        f"{start} is in no project: neither it nor a folder above it holds {PROJECT_MARK}/",
        hint="cd into your project, or create one here: blobsync config new",
    )


def current_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The current folder; the shell's name for it, ``$PWD``, if only that is inside a project.

    After ``cd data``, a symlink to another disk, the kernel reports only the disk's path. The shell's path is used only
    if both are the same folder.
    """
    real = Path.cwd()
    given = environment(environ).get("PWD", "")
    if not os.path.isabs(given) or os.path.normpath(given) != given or _marked(real) is not None:
        return real
    try:
        same = os.path.samefile(given, real)
    except (OSError, ValueError):
        return real
    return Path(given) if same and _marked(Path(given)) is not None else real


def _marked(start: Path) -> Path | None:
    return next((folder for folder in (start, *start.parents) if (folder / PROJECT_MARK).is_dir()), None)


def file_of_variable(given: str, root: Path | None = None) -> Path:
    """The cluster file that the variable names: an absolute path, or one from here or from the project's ``root``.

    Raises ``ConfigNotFoundError``.
    """
    paths = (Path(given).absolute(), *([root / given] if root else []))
    for path in paths:
        if path.is_file():
            return path
    if any(path.is_dir() for path in paths):
        raise ConfigNotFoundError(
            f"{CLUSTER_VARIABLE} names the folder {given}, not a cluster file",
            hint=f"name the file: export {CLUSTER_VARIABLE}={shlex.quote(f'{given}/{DEFAULT_CLUSTER}.yaml')}",
        )
    raise ConfigNotFoundError(
        f"{CLUSTER_VARIABLE} names {given}, which does not exist", hint=f"correct it, or: unset {CLUSTER_VARIABLE}"
    )


def _of_variable(environ: Mapping[str, str]) -> Path | None:
    """``PROJECT`` if the variable is the absolute path ``PROJECT/aux_data/aml/NAME.yaml``."""
    given = Path(environ.get(CLUSTER_VARIABLE, ""))
    if not given.is_absolute() or not given.is_file():
        return None
    folder = Path(os.path.abspath(given)).parent
    return folder.parent.parent if folder.parts[-2:] == (PROJECT_MARK, "aml") else None


def is_safe_project(folder: Path, safe: tuple[str, ...]) -> bool:
    """Whether ``safe`` names the folder: by its path, by ``/a/folder/above/*``, or by ``*`` for any."""
    for entry in safe:
        above = entry.removesuffix("*").rstrip("/") if entry.endswith("/*") else None
        if entry == "*" or entry.rstrip("/") == str(folder):
            return True
        if above is not None and Path(above or "/") in folder.parents:
            return True
    return False


def demand_own(folder: Path, environ: Mapping[str, str]) -> None:
    """Raise ``ForeignProjectError`` if the project ``folder`` must not be used.

    ``aux_data`` itself counts as well: in a folder that several users can write to, anyone could create it.
    """
    for path, status in ((folder, folder.stat()), (folder / PROJECT_MARK, (folder / PROJECT_MARK).lstat())):
        if not is_own(status.st_uid, os.geteuid(), environ):
            _demand_listed(folder, path, status.st_uid, environ)
            return


def _demand_listed(folder: Path, path: Path, owner: int, environ: Mapping[str, str]) -> None:
    # Imported here because it is rarely needed, and every command finds its project.
    from blobsync.config.user_config import SAFE_PROJECTS_VARIABLE, load_user_config, user_config_file

    if is_safe_project(folder, load_user_config(environ).safe_projects):
        return
    whose = f"user {user_name(owner)}, not to you (user {user_name(os.geteuid())})"
    raise ForeignProjectError(
        f"{path} belongs to {whose}, so the project {folder} is not used",
        hint=f"if you trust its files, add to {user_config_file(environ)}: safe_projects: ['{folder}']; "
        f"or for one command: {SAFE_PROJECTS_VARIABLE}={shlex.quote(str(folder))}",
    )


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
