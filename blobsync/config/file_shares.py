"""Azure file shares: jobs of Azure ML mount them, no transfer of ours reaches one. A refusal says what does. Pure."""

from __future__ import annotations

import posixpath
import shlex
from pathlib import Path
from urllib.parse import quote, urlsplit

from blobsync.base.errors import MappingError
from blobsync.config.model import FolderEntry

_BLOB, _FILE = ".blob.", ".file."


def share_url(entry: FolderEntry, relative: str = "") -> str:
    """The URL of what lies at ``relative`` in the share of ``entry``, at the file endpoint beside the blob endpoint."""
    account = entry.account
    host = urlsplit(account.blob_endpoint).netloc
    host = host.replace(_BLOB, _FILE, 1) if _BLOB in host else f"{account.account_name}.file.core.windows.net"
    return f"https://{host}/{quote(posixpath.join(entry.file_share or '', entry.path, relative).rstrip('/'))}"


def entry_url(entry: FolderEntry) -> str:
    """Where a folder entry lives: a share, or a folder of a container."""
    return share_url(entry) if entry.storage_type == "file" else str(entry.remote)


def share_error(entry: FolderEntry, path: str, local: Path, given: str, *, uploads: bool) -> MappingError:
    """What is said to a transfer or a listing of ``path``; ``uploads`` turns the line for azcopy round.

    azcopy takes a login or a SAS for a share, no account key:
    https://learn.microsoft.com/azure/storage/common/storage-use-azcopy-authorize-azure-active-directory
    """
    relative = path[len(entry.prefix) + 1 :]
    there, here = shlex.quote(share_url(entry, relative)), shlex.quote(str(local))
    ends = f"{here} {there} --from-to LocalFile" if uploads else f"{there} {here} --from-to FileLocal"
    copy = f'AZCOPY_AUTO_LOGIN_TYPE=AZCLI "$(blobsync azcopy path)" copy {ends} --recursive --as-subdir=false'
    return MappingError(
        f"{path} belongs to {entry.key}, an Azure file share (storage_type: file), which only jobs can use",
        path=given,
        hint=f"after az login: {copy}; or mount the share, make {entry.prefix} a link to it, and use mode: link",
    )
