"""What azcopy can carry, and what another engine has to; pure.

azcopy moves a whole folder at speed. Part of a remote folder it looks up one blob after the other, so only few,
large files are worth that.
"""

from __future__ import annotations

import os

from blobsync.engines import LocalEnd, MoveTask
from blobsync.plan import FileAction, Route

# azcopy's temporary name is ".azDownload-<36 characters>-" and the name itself: together 255 bytes at most.
_MAX_DOWNLOAD_NAME = 255 - len(".azDownload-") - 36 - 1

# Two HEAD requests a file, one file after the other, cost 80 ms at a distance of 40 ms: as long as 8 MiB at 100 MB/s.
_WORTH_LISTING = 8 * 1024 * 1024

_COPIES = (Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT)


def cannot_carry(name: str, route: Route, *, listed: bool = False) -> str | None:
    """Why azcopy would lose or change the file called ``name``; None where it would not.

    ``listed``: the name would stand in a list of files.
    """
    parts = name.split("/")
    if "\\" in name:
        return "azcopy may take a backslash for a separator"
    if name and not all(parts):
        return "azcopy drops the empty part of a name"
    if ".." in parts or "." in parts or "\x00" in name:
        return "azcopy would write outside of the folder"
    if any("\ud800" <= char <= "\udfff" for char in name):
        return "the name is not valid UTF-8"
    if route is Route.DOWNLOAD and len(parts[-1].encode()) > _MAX_DOWNLOAD_NAME:
        return f"azcopy's temporary name leaves room for {_MAX_DOWNLOAD_NAME} bytes"
    if listed and ("\n" in name or name.endswith("\r") or name.startswith("\ufeff")):
        return "azcopy's list of files cannot hold such a name"
    return None


def refusal(task: MoveTask) -> str | None:
    """Why the whole task is not for azcopy; None where it is. Single names are :func:`cannot_carry`'s matter."""
    if not task.actions or task.route is Route.UPLOAD:
        return None
    if isinstance(task.destination, LocalEnd) and "*" in os.path.abspath(task.destination.root):
        return "azcopy takes a '*' in a local path for a pattern"
    if is_single_file(task) or task.whole_folder:
        return None
    mean = sum(action.size for action in task.actions) / len(task.actions)
    if mean < _WORTH_LISTING:
        return "azcopy looks up single blobs of a folder one after the other, which takes longer than moving small ones"
    return None


def is_single_file(task: MoveTask) -> bool:
    """Whether the task is one of shape file."""
    return len(task.actions) == 1 and not task.actions[0].path


def action_refusal(task: MoveTask, action: FileAction) -> str | None:
    """Why this file of the task is not for azcopy."""
    if task.route in _COPIES and action.target is not None:
        return "azcopy copies to the same name only"
    listed = task.route is not Route.UPLOAD and not task.whole_folder and not is_single_file(task)
    return cannot_carry(action.target or action.path, task.route, listed=listed) or cannot_carry(
        action.path, task.route, listed=listed
    )
