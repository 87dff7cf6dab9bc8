"""Which files azcopy can transfer, and which another engine must; pure.

azcopy moves a whole folder at speed. Part of a remote folder it looks up one blob after the other, so only few,
large files are worth that.
"""

from __future__ import annotations

import os

from blobsync.base.locations import LocalLocation
from blobsync.local.names import AZCOPYS_PREFIX_BYTES, MAX_PART_BYTES
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.transfer.engines import MoveTask

# azcopy's temporary name has the file's own at its end.
_MAX_DOWNLOAD_NAME = MAX_PART_BYTES - AZCOPYS_PREFIX_BYTES

# Two HEAD requests a file, one file after the other, cost 80 ms at a distance of 40 ms: as long as 8 MiB at 100 MB/s.
_WORTH_LISTING = 8 * 1024 * 1024

_COPIES = (Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT)


def cannot_carry(name: str, route: Route, *, listed: bool = False) -> str | None:
    """Why azcopy would lose or change the file called ``name``; None if it would not.

    ``listed``: the name would stand in a list of files.
    """
    parts = name.split("/")
    if "\\" in name:
        return "azcopy may treat a backslash as a separator"
    if name and not all(parts):
        return "azcopy drops the empty part of a name"
    if ".." in parts or "." in parts or "\x00" in name:
        return "azcopy would write outside of the folder"
    if any("\ud800" <= char <= "\udfff" for char in name):
        return "the name is not valid UTF-8"
    if route is Route.DOWNLOAD and len(parts[-1].encode()) > _MAX_DOWNLOAD_NAME:
        return f"azcopy's temporary name leaves room for {_MAX_DOWNLOAD_NAME:,} bytes"
    if listed and ("\n" in name or name.endswith("\r") or name.startswith("\ufeff")):
        return "azcopy's list of files cannot contain such a name"
    return None


def needs_list_of_files(task: MoveTask, *, confined: bool) -> bool:
    """Whether azcopy needs a list of names instead of listing the folder itself.

    Part of a folder always. A whole folder that is downloaded, too, where azcopy cannot be ``confined``: it would write
    whatever names the service lists, ``..`` included, and not only those that were looked at before.
    """
    if task.part.route is Route.UPLOAD or is_single_file(task):
        return False
    return not task.whole_folder or (task.part.route is Route.DOWNLOAD and not confined)


def is_worth_listing(files: int, size: int) -> bool:
    """Whether azcopy may get a list of ``files`` files of ``size`` bytes, which it looks up one by one."""
    return files > 0 and size / files >= _WORTH_LISTING


def unconfined_problem(route: Route, files: int, size: int, *, confined: bool) -> str | None:
    """Why a bulk download cannot use azcopy on this machine; None if it can."""
    if route is not Route.DOWNLOAD or confined or is_worth_listing(files, size):
        return None
    return (
        "this kernel cannot confine it to the destination (requires Linux 5.13 with Landlock), so it would have to be"
        " given each name, which takes longer than moving small files"
    )


def refusal(task: MoveTask, *, listed: bool) -> str | None:
    """Why azcopy cannot do the whole task; None if it can. For single names see :func:`cannot_carry`.

    ``listed`` is :func:`needs_list_of_files`'s answer, here and below.
    """
    if not task.actions or task.part.route is Route.UPLOAD:
        return None
    if isinstance(task.part.destination, LocalLocation) and "*" in os.path.abspath(task.part.destination.path):
        return "azcopy treats a '*' in a local path as a pattern"
    if listed and not is_worth_listing(len(task.actions), sum(action.size for action in task.actions)):
        return "azcopy looks up single blobs of a folder one after the other, which takes longer than moving small ones"
    return None


def is_single_file(task: MoveTask) -> bool:
    """Whether the task is one of shape file."""
    return len(task.actions) == 1 and not task.actions[0].path


def action_refusal(task: MoveTask, action: FileAction, *, listed: bool) -> str | None:
    """Why azcopy cannot transfer this file of the task."""
    if task.part.route in _COPIES and action.target is not None:
        return "azcopy copies to the same name only"
    return cannot_carry(action.target or action.path, task.part.route, listed=listed) or cannot_carry(
        action.path, task.part.route, listed=listed
    )
