"""The folder entries of a cluster file, in all the forms that ACT and Philly wrote them.

data_folder: {azure_blob_config_file: FILE, path: P}    the entry's own account file
data_folder: {path: P}                                  the account file at the top of the cluster file
data_folder: P                                          the same, as a string
data_folder: /blob/P                                    below a blob_mount_point: that mount's account file
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from blobsync.base.azure_urls import MAX_NAME_CHARS, reaches_another
from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.config.known_keys import PHILLY_MARKS
from blobsync.config.model import CodeEntry, FolderEntry, StorageAccount
from blobsync.config.nearest import did_you_mean
from blobsync.config.project_root import PROJECT_MARK, STATE_FOLDER
from blobsync.config.typed import CODE_KEY, FOLDER_SUFFIX, Checker, is_placeholder
from blobsync.config.yaml_lines import KeyPath

_ROOT_KEY = "azure_blob_config_file"
_HDFS = "/hdfs/"
_Location = tuple[StorageAccount, str]


class EntryReader:
    """Makes ``FolderEntry`` and ``CodeEntry`` values; mistakes go to the checker."""

    def __init__(
        self, values: Mapping[str, Any], checker: Checker, account: Callable[[str], StorageAccount | None]
    ) -> None:
        self._values = values
        self._checker = checker
        self._account = account
        self._entries: Mapping[str, Any] = values.get("config_param", {})
        self._mounts = self._read_mounts()
        self._absent: set[str] = set()

    def folders(self) -> tuple[FolderEntry, ...]:
        """Every ``*_folder`` key."""
        found: list[FolderEntry] = []
        for key, given in self._entries.items():
            if key == CODE_KEY:
                continue
            where = ("config_param", key)
            prefix = self._prefix(where, key.removesuffix(FOLDER_SUFFIX))
            if any(entry.prefix == prefix for entry in found):
                self._checker.problem(where, f"duplicate entry for the folder {prefix}")
            location = self._location(where, given)
            if location and prefix:
                found.append(self._folder(prefix, location, given))
        return tuple(found)

    def code(self) -> CodeEntry | None:
        """``code_path``, None where the file has none."""
        given = self._entries.get(CODE_KEY)
        where = ("config_param", CODE_KEY)
        location = None if given is None else self._location(where, given)
        if location is None:
            return None
        if not location[1]:
            self._checker.problem(where, "needs a path below the container, such as code/project.zip")
        options = given if isinstance(given, Mapping) else {}
        return CodeEntry(
            *location,
            datastore_name=options.get("datastore_name", self._default_datastore(given)),
        )

    def _folder(self, prefix: str, location: _Location, given: Any) -> FolderEntry:
        options = given if isinstance(given, Mapping) else {}
        storage_type = options.get("storage_type", "blob")
        if storage_type == "file" and "file_share" not in options:
            self._checker.problem(("config_param", f"{prefix}{FOLDER_SUFFIX}"), "storage_type file needs a file_share")
        return FolderEntry(
            prefix,
            *location,
            mode=options.get("mode"),
            include=options.get("include", ()),
            datastore_name=options.get("datastore_name", self._default_datastore(given)),
            storage_type=storage_type,
            file_share=options.get("file_share"),
            blob_cache_timeout=options.get("blob_cache_timeout"),
            ignore=options.get("ignore", ()),
            blob_fuse_options=options.get("blob_fuse_options", self._fuse_options(given)),
        )

    def _fuse_options(self, given: Any) -> tuple[str, ...]:
        """Those of the mount point that the entry lies below."""
        path = given.get("path") if isinstance(given, Mapping) else given
        own_file = isinstance(given, Mapping) and _ROOT_KEY in given
        point = None if own_file or not isinstance(path, str) else self._mount_over(path)
        for mount in self._values.get("blob_mount_info", ()):
            if point and "/" + mount.get("blob_mount_point", "").strip("/") == point:
                found: tuple[str, ...] = mount.get("blob_fuse_options", ())
                return found
        return ()

    def _mount_over(self, path: str) -> str | None:
        covering = [point for point in self._mounts if path == point or path.startswith(f"{point}/")]
        return max(covering, key=len, default=None)

    def _default_datastore(self, given: Any) -> str | None:
        # In ACT the name at the top belongs to the entries that use the account file at the top.
        name = self._values.get("datastore_name") if isinstance(given, str) else None
        return str(name) if name else None

    def _prefix(self, where: KeyPath, raw: str) -> str:
        prefix = posixpath.normpath(raw.replace("\\", "/")) if raw else ""
        if prefix in ("", "."):
            self._checker.problem(where, "needs a folder name before _folder, such as data_folder")
            return ""
        if prefix.startswith(("/", "../")) or prefix == "..":
            self._checker.problem(where, "names a folder outside the project")
            return ""
        parts = prefix.casefold().split("/")
        if ".git" in parts or STATE_FOLDER in parts or parts[0] == PROJECT_MARK:
            self._checker.problem(
                where, f"names {prefix}, which is reserved: it decides which programs run, or where data goes"
            )
            return ""
        return prefix

    def _location(self, where: KeyPath, given: Any) -> _Location | None:
        """The account and the path in its container that an entry means."""
        options = given if isinstance(given, Mapping) else {"path": given}
        at_path = (*where, "path") if isinstance(given, Mapping) else where
        path = options.get("path")
        if path is None:
            if not any(problem.key == ".".join(at_path) for problem in self._checker.problems):
                self._checker.problem(where, "has no path")
            return None
        file = options.get(_ROOT_KEY)
        if file is None:
            file, path = self._file_and_path(at_path, path)
        account = None if file is None else self._open(self._where_named(where, given), file)
        path = self._blob_path(at_path, path)
        return None if account is None or path is None else (account, path)

    def _where_named(self, where: KeyPath, given: Any) -> KeyPath:
        if isinstance(given, Mapping) and _ROOT_KEY in given:
            return (*where, _ROOT_KEY)
        if _ROOT_KEY in self._values and not self._mounts:
            return (_ROOT_KEY,)
        return where

    def _file_and_path(self, where: KeyPath, path: str) -> tuple[str | None, str]:
        """The account file of the longest mount point over ``path``, or the one at the top of the file."""
        point = self._mount_over(path)
        if point:
            return self._mounts[point], path[len(point) :]
        if path.startswith(_HDFS) and (self._mounts or PHILLY_MARKS & self._values.keys()):
            below = next(iter(self._mounts), "") + path.removeprefix("/hdfs")
            self._checker.problem(
                where,
                f"{path} was on Philly's HDFS, which is gone",
                hint=f"write where your copy is in the container, such as {below}; blobsync u uploads one from here",
            )
            return None, path
        if self._mounts and path.startswith("/"):
            self._checker.problem(
                where,
                f"{path} is not below any blob_mount_point ({', '.join(sorted(self._mounts))})",
                hint=did_you_mean(f"/{path.split('/')[1]}", self._mounts),
            )
            return None, path
        file = self._values.get(_ROOT_KEY)
        if file is None:
            self._checker.problem(where, f"needs an {_ROOT_KEY}, here or at the top of the file")
        return file, path

    def _open(self, where: KeyPath, file: str) -> StorageAccount | None:
        """The account; a file that is not there is a mistake of this key, other mistakes are the file's own."""
        try:
            return self._account(file)
        except ConfigNotFoundError:
            # Report a file once, even if several entries name it.
            if file not in self._absent:
                self._absent.add(file)
                self._checker.problem(where, f"names {file}, which does not exist", hint=_how_to_get(file))
        except ConfigError as error:
            if error.message not in [problem.message for problem in self._checker.problems]:
                self._checker.problems.append(error)
        return None

    def _blob_path(self, where: KeyPath, path: str) -> str | None:
        if "<" in path and is_placeholder(path.partition("/")[0]):
            self._checker.problem(where, "still has the example's placeholder: fill in your own")
            return None
        stripped = path.strip("/")
        parts = stripped.split("/") if stripped else []
        if any(part in ("", ".", "..") for part in parts):
            self._checker.problem(where, f"'{path}' contains an empty part, '.' or '..': write the plain path")
            return None
        if why := reaches_another(stripped):
            self._checker.problem(where, f"'{path}' {why}: write {stripped.replace(chr(92), '/')}")
            return None
        if len(stripped) > 900:
            self._checker.problem(where, f"is too long: a blob's whole name has at most {MAX_NAME_CHARS} characters")
        return stripped

    def _read_mounts(self) -> dict[str, str]:
        mounts: dict[str, str] = {}
        if "blob_mount_point" in self._values:
            self._add_mount(mounts, (), self._values)
        for number, mount in enumerate(self._values.get("blob_mount_info", ())):
            self._add_mount(mounts, ("blob_mount_info", str(number)), mount)
        return mounts

    def _add_mount(self, mounts: dict[str, str], where: KeyPath, mount: Mapping[str, Any]) -> None:
        for key in ("blob_mount_point", _ROOT_KEY):
            if key not in mount:
                self._checker.problem(where or ("blob_mount_point",), f"needs {key} beside it")
                return
        point = "/" + mount["blob_mount_point"].strip("/")
        if point in mounts:
            self._checker.problem(where, f"the mount point {point} is given twice")
        mounts[point] = mount[_ROOT_KEY]


def _how_to_get(file: str) -> str:
    """Where an account file may be: in the place that this project was cloned from."""
    path = PurePosixPath(file)
    if path.is_absolute() or file.startswith("~") or len(path.parts) < 2:
        return "paths in the configuration are relative to the project; blobsync config new creates an example"
    copy = f"scp -r HOST:PROJECT/{path.parent} {path.parent.parent}/"
    return f"git ignores such files because they may contain a key: copy it from a working checkout: {copy}"
