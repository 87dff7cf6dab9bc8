"""Which account files of a project need a login, and which of their blob folders is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blobsync.base.errors import ConfigError
from blobsync.config.accounts import AccountFile
from blobsync.config.loader import cluster_names
from blobsync.config.project_root import CLUSTER_FOLDER
from blobsync.config.yaml_document import read_document

ACCOUNT_FOLDER = "aux_data/configs"
# Other files have an endpoint or a region, too.
_MARKS = frozenset({"account_name", "container_name", "account_key", "sas_token", "blob_endpoint", "auth", "bucket"})


def account_file_names(root: Path) -> Iterator[str]:
    """The files of the project that look like account files, in order; Philly's other files are there too."""
    folder = root / ACCOUNT_FOLDER
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        shown = f"{ACCOUNT_FOLDER}/{path.name}"
        if path.suffix in (".yaml", ".yml") and _is_account(path, shown):
            yield shown


def _is_account(path: Path, shown: str) -> bool:
    try:
        return bool(_MARKS & read_document(path, shown).values.keys())
    except ConfigError:
        # The error is reported when the file is read.
        return True


def files_for_login(root: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The account files that contain no credential; invalid ones are left out."""
    found = []
    for name in account_file_names(root):
        try:
            file = AccountFile(root / name, name, environ)
        except ConfigError:
            continue
        if file.takes_login and file.without_login is not None:
            found.append(name)
    return tuple(found)


def folder_in_use(root: Path, file: str) -> str:
    """A blob folder that a cluster file maps with this account file; the container itself if none does."""
    for name in cluster_names(root):
        try:
            values = read_document(root / CLUSTER_FOLDER / f"{name}.yaml", name).values
        except ConfigError:
            continue
        entries = values.get("config_param")
        for entry in entries.values() if isinstance(entries, Mapping) else ():
            path = _path_in(entry, values.get("azure_blob_config_file"), file)
            if path is not None:
                return path
    return ""


def _path_in(entry: Any, default: Any, file: str) -> str | None:
    own = entry.get("azure_blob_config_file", default) if isinstance(entry, Mapping) else default
    path = entry.get("path") if isinstance(entry, Mapping) else entry
    if not isinstance(own, str) or not isinstance(path, str) or own.removeprefix("./") != file:
        return None
    return (path.rpartition("/")[0] if path.endswith(".zip") else path).strip("/")
