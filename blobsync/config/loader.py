"""Reads a project's files into one checked ``Cluster``.

A folder entry may have any of these forms:

    data_folder: {azure_blob_config_file: FILE, path: P}    the entry's own account file
    data_folder: {path: P}                                  the account file at the top of the cluster file
    data_folder: P                                          the same, as a string
    data_folder: /blob/P                                    below a blob_mount_point: that mount's account file

YAML from ``-p`` on the command line is merged into the cluster file: mappings key by key, anything else replaces what
the file says. As in ACT, a key may be a path with ``$`` between its words: ``-p '{docker$image: other}'``.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from blobsync.base import redaction
from blobsync.base.errors import ConfigError, ConfigNotFoundError, UnknownClusterError
from blobsync.base.locations import MAX_NAME_CHARS, reaches_another
from blobsync.base.user_folders import environment
from blobsync.config.accounts import AccountFile, WorkspaceFile, first_of, warn_if_others_can_read
from blobsync.config.job_keys import gpus_of_node, job_keys
from blobsync.config.known_keys import (
    CHECKPOINT_KEYS,
    CLUSTER,
    CODE_KEY,
    FOLDER_SUFFIX,
    PHILLY_MARKS,
    PLATFORMS,
    did_you_mean,
)
from blobsync.config.model import (
    AML_PLATFORMS,
    DEFAULT_CLUSTER,
    Cluster,
    CodeEntry,
    Docker,
    FolderEntry,
    JobRefusal,
    StorageAccount,
    WorkspaceConfig,
    Written,
)
from blobsync.config.project_root import CLUSTER_FOLDER, CLUSTER_VARIABLE, PROJECT_MARK, STATE_FOLDER, file_of_variable
from blobsync.config.typed_values import Checker, is_placeholder
from blobsync.config.user_config import load_user_config
from blobsync.config.yaml_document import Document, KeyPath, Origin, parse_document, read_document

if TYPE_CHECKING:
    from blobsync.config.checkpoint_rule import CheckpointRule

_ROOT_KEY = "azure_blob_config_file"
_HDFS = "/hdfs/"
# The fields of ``Cluster`` that are keys of its file.
_AS_WRITTEN = (
    *("experiment_name", "compute_target", "num_gpu", "multi_process", "use_custom_docker"),
    *("env", "relay", "zip_options", "ignore", "max_file_size"),
)
_Location = tuple[StorageAccount, str]


class EntryReader:
    """Creates ``FolderEntry`` and ``CodeEntry`` values; reports problems to the checker."""

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
            options, location = self._read(where, given)
            if location and prefix:
                found.append(self._folder(prefix, location, options))
        return tuple(found)

    def code(self) -> CodeEntry | None:
        """The ``code_path`` entry, None if the file has none."""
        given = self._entries.get(CODE_KEY)
        where = ("config_param", CODE_KEY)
        if given is None:
            return None
        options, location = self._read(where, given)
        if location is None:
            return None
        if not location[1]:
            self._checker.problem(where, "needs a path below the container, such as code/project.zip")
        if location[0].bucket is not None:
            self._checker.problem(where, f"is in {location[0].container}, a source, which is only read")
        return CodeEntry(*location, datastore_name=options.get("datastore_name"))

    def _folder(self, prefix: str, location: _Location, options: Mapping[str, Any]) -> FolderEntry:
        where = ("config_param", f"{prefix}{FOLDER_SUFFIX}")
        if options.get("storage_type") == "file" and "file_share" not in options:
            self._checker.problem(where, "storage_type file needs a file_share")
        known = {"blob_fuse_options": self._fuse_options(options), **options}
        known["checkpoints"] = self._checkpoints(where, location[1], options)
        fields = FolderEntry._fields[3:]
        return FolderEntry(prefix, *location, **{name: known[name] for name in fields if name in known})

    def _checkpoints(self, where: KeyPath, path: str, options: Mapping[str, Any]) -> CheckpointRule | None:
        """The sets of files of an entry, None if it has none or they are wrong."""
        given = {key: options[key] for key in CHECKPOINT_KEYS if key in options}
        if "checkpoints" not in options:
            for key in given:
                self._checker.problem((*where, key), "counts only with checkpoints: PATTERN beside it")
            return None
        from blobsync.config.checkpoint_rule import CheckpointRule, wrong_in  # late: few projects have one

        rule = CheckpointRule(options["checkpoints"], **given)
        wrong = list(wrong_in(rule, path))
        for key, sentence in wrong:
            self._checker.problem((*where, key), sentence)
        return None if wrong else rule

    def _fuse_options(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The options of the mount point that the entry lies below."""
        point = None if _ROOT_KEY in options else self._mount_over(options["path"])
        found: tuple[str, ...] = self._mounts[point].get("blob_fuse_options", ()) if point else ()
        return found

    def _mount_over(self, path: str) -> str | None:
        covering = [point for point in self._mounts if path == point or path.startswith(f"{point}/")]
        return max(covering, key=len, default=None)

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

    def _read(self, where: KeyPath, given: Any) -> tuple[Mapping[str, Any], _Location | None]:
        """The options of an entry, and the account and the path in its container that it names."""
        if isinstance(given, Mapping):
            return given, self._location(where, (*where, "path"), given)
        # In ACT the datastore at the top belongs to the entries that use the account file at the top.
        name = self._values.get("datastore_name")
        options = {"path": given, **({"datastore_name": str(name)} if name else {})}
        return options, self._location(where, where, options)

    def _location(self, where: KeyPath, at_path: KeyPath, options: Mapping[str, Any]) -> _Location | None:
        path = options.get("path")
        if path is None:
            if not any(problem.key == ".".join(at_path) for problem in self._checker.problems):
                self._checker.problem(where, "has no path")
            return None
        file, named = options.get(_ROOT_KEY), (*where, _ROOT_KEY)
        if file is None:
            file, path = self._file_and_path(at_path, path)
            named = (_ROOT_KEY,) if _ROOT_KEY in self._values and not self._mounts else where
        account = None if file is None else self._open(named, file)
        path = self._blob_path(at_path, path)
        return None if account is None or path is None else (account, path)

    def _file_and_path(self, where: KeyPath, path: str) -> tuple[str | None, str]:
        """The account file of the longest mount point over ``path``, or the one at the top of the file."""
        point = self._mount_over(path)
        if point:
            return self._mounts[point][_ROOT_KEY], path[len(point) :]
        if path.startswith(_HDFS) and (self._mounts or PHILLY_MARKS & self._values.keys()):
            below = next(iter(self._mounts), "") + path.removeprefix("/hdfs")
            self._checker.problem(
                where,
                f"{path} was on an HDFS, which is gone",
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
        """The account; a missing file is this key's problem, other problems are the file's own."""
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

    def _read_mounts(self) -> dict[str, Mapping[str, Any]]:
        mounts: dict[str, Mapping[str, Any]] = {}
        given: list[tuple[KeyPath, Mapping[str, Any]]]
        given = [(("blob_mount_point",), self._values)] if "blob_mount_point" in self._values else []
        listed = enumerate(self._values.get("blob_mount_info", ()))
        for where, mount in (*given, *((("blob_mount_info", str(number)), mount) for number, mount in listed)):
            missing = [key for key in ("blob_mount_point", _ROOT_KEY) if key not in mount]
            if missing:
                self._checker.problem(where, f"needs {missing[0]} beside it")
                continue
            point = "/" + mount["blob_mount_point"].strip("/")
            if point in mounts:
                self._checker.problem(where, f"the mount point {point} is given twice")
            mounts[point] = mount
        return mounts


def _how_to_get(file: str) -> str:
    """Where an account file may be found: in the place that this project was cloned from."""
    path = PurePosixPath(file)
    if path.is_absolute() or file.startswith("~") or len(path.parts) < 2:
        return "paths in the configuration are relative to the project; blobsync config new creates an example"
    copy = f"scp -r HOST:PROJECT/{path.parent} {path.parent.parent}/"
    return f"git ignores such files because they may contain a key: copy it from a working checkout: {copy}"


SHOWN = "-p"


def parse_overrides(text: str) -> Mapping[str, Any]:
    """Parse the mapping of ``-p``. Raises ``ConfigError``."""
    try:
        return parse_document(text, SHOWN).values
    except ConfigError as error:
        raise ConfigError(
            error.detail, file=SHOWN, key=error.key, hint="-p takes YAML, for example: -p '{gpu_per_node: 8}'"
        ) from error


def apply_overrides(document: Document, overrides: Mapping[str, Any]) -> Document:
    """``document`` with ``overrides`` merged in; errors about their keys name ``-p``."""
    origins = dict(document.origins)
    values = deepcopy(dict(document.values))
    for path, value in _leaves(overrides, ()):
        _put(values, path, value)
        origins = {known: origin for known, origin in origins.items() if known[: len(path)] != path}
        origins[path] = Origin(SHOWN, None)
    return Document(document.file, values, origins)


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values`` as overrides of a cluster file: one key per value, with ``$`` between its words."""
    return {"$".join(path): value for path, value in _leaves(values, ())}


def _leaves(overrides: Mapping[str, Any], around: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in overrides.items():
        path = (*around, *str(key).split("$"))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _put(values: dict[str, Any], path: KeyPath, value: Any) -> None:
    for part in path[:-1]:
        if not isinstance(values.get(part), dict):
            values[part] = {}
        values = values[part]
    values[path[-1]] = value


WORKSPACE_FILE = f"{CLUSTER_FOLDER}/config.json"
_SUFFIXES = (".yaml", ".yml")


def cluster_names(root: Path) -> tuple[str, ...]:
    """The clusters that ``-c`` and ``-f`` can name, sorted."""
    return tuple(sorted({path.stem for path in _cluster_files(root)}))


def load_cluster(
    root: Path,
    name: str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Cluster:
    """Read one cluster file with the account files that it names.

    ``name`` None means the file of ``AML_CONFIG_PATH``, else ``aml``. ``overrides`` is what ``-p`` holds.
    Raises the first ``ConfigError`` of the file; no network, no Azure ML workspace file.
    """
    environ = environment(environ)
    return ClusterFile(root, find_cluster_file(root, name, environ), overrides or {}, environ).demanded()


def reload_cluster(root: Path, written: Written, *, environ: Mapping[str, str], anew: bool) -> Cluster:
    """Load a cluster again: from today's file, or (not ``anew``) from the values that the file had then.

    The account files are always read again. Raises the first ``ConfigError``.
    """
    document = None if anew else Document(shown_path(root, written.path), written.values, {})
    return ClusterFile(root, written.path, written.overrides, environ, document).demanded()


def load_workspace(cluster: Cluster, *, environ: Mapping[str, str] | None = None) -> WorkspaceConfig:
    """The Azure ML workspace of ``aml_config`` (default ``aux_data/aml/config.json``). Raises ``ConfigError``."""
    environ = environment(environ)
    found = read_workspace(cluster, environ)
    if found.workspace is None:
        raise first_of(found.problems)
    return found.workspace


def read_workspace(cluster: Cluster, environ: Mapping[str, str]) -> WorkspaceFile:
    """The workspace file with all problems. Raises ``ConfigError`` if the file cannot be read at all."""
    given = cluster.value("aml_config") or WORKSPACE_FILE
    if isinstance(given, Mapping):
        return WorkspaceFile(Document(cluster.file, given, {}), environ)
    shown = str(given)
    try:
        return WorkspaceFile(read_document(project_path(cluster.root, shown, environ), shown), environ)
    except ConfigNotFoundError as error:
        raise ConfigNotFoundError(
            f"names {shown}, which does not exist",
            file=cluster.file,
            key="aml_config",
            hint="it has subscription_id, resource_group and workspace_name; download config.json from the portal",
        ) from error


def find_cluster_file(root: Path, name: str | None, environ: Mapping[str, str]) -> Path:
    """The file of a cluster. Raises ``ConfigNotFoundError`` and ``UnknownClusterError``."""
    from_environ = environ.get(CLUSTER_VARIABLE)
    if name is None and from_environ:
        return file_of_variable(from_environ, root)
    for path in _cluster_files(root):
        if path.stem == (DEFAULT_CLUSTER if name is None else name):
            return path
    known = cluster_names(root)
    there = (
        f"available: {', '.join(known)}"
        if known
        else f"{CLUSTER_FOLDER}/ contains none; create one: blobsync config new"
    )
    if name is None:
        hint = f"choose one with -c; {there}" if known else there
        raise ConfigNotFoundError("no such file", file=f"{CLUSTER_FOLDER}/{DEFAULT_CLUSTER}.yaml", hint=hint)
    raise UnknownClusterError(
        f"no cluster '{name}': there is no {CLUSTER_FOLDER}/{name}.yaml",
        root=root,
        name=name,
        hint=did_you_mean(name, known) or there,
    )


def project_path(root: Path, given: str, environ: Mapping[str, str]) -> Path:
    """A file that the configuration names: relative to the project, absolute, or below ``~``."""
    if given.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], given[2:])
    return root / given


def inside_project(root: Path, given: str) -> str:
    """``given``, with the project's root in place of another path (a symlink, a second mount) to the same folder."""
    if not given.startswith("/") or Path(os.path.normpath(given)).is_relative_to(root):
        return given
    path = Path(os.path.normpath(given))
    for folder in (path, *path.parents):
        try:
            if folder.samefile(root):
                return str(root / path.relative_to(folder)) + ("/" if given.endswith("/") else "")
        except OSError:
            continue
    return given


def shown_path(root: Path, path: Path) -> str:
    """The path for messages: relative to the project if it is inside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _cluster_files(root: Path) -> Iterator[Path]:
    folder = root / CLUSTER_FOLDER
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES and path.is_file())


class ClusterFile:
    """A cluster file, read and checked with all files that it names. ``cluster`` is None if there are problems.

    ``partial`` is the cluster as far as the file could be read, for further checks.
    """

    def __init__(
        self,
        root: Path,
        path: Path,
        overrides: Mapping[str, Any],
        environ: Mapping[str, str],
        document: Document | None = None,
    ) -> None:
        """``document`` replaces the file's content."""
        self._root = root
        self._environ = environ
        self._accounts: dict[str, AccountFile] = {}
        # As in ACT: the file's name counts, not a link's.
        self._name = path.resolve().stem
        written = document or read_document(path, shown_path(root, path))
        self.document = apply_overrides(written, overrides)
        self._written = Written(Path(os.path.abspath(path)), overrides, self.document.values)
        self._checker = Checker(self.document, environ, lambda: load_user_config(environ).allowed_variables)
        self._values = self._checker.check(CLUSTER)
        self.problems = self._checker.problems
        self.warnings = self._checker.warnings
        if document is None:
            self.warnings.extend(warn_if_others_can_read(path, written, (("docker", "password"), ("password",))))
        self.partial = cluster = self._read()
        for account in self._accounts.values():
            self.problems.extend(account.problems)
            self.warnings.extend(account.warnings)
        self.job_notes = cluster.job_notes
        self.cluster = None if self.problems else cluster._replace(warnings=tuple(self.warnings))

    def demanded(self) -> Cluster:
        """The cluster. Raises the first problem."""
        if self.cluster is None:
            raise first_of(self.problems)
        return self.cluster

    def account(self, given: str) -> StorageAccount | None:
        """Read the account file ``given`` once. None if it has problems of its own; raises if it is missing."""
        if given not in self._accounts:
            path = project_path(self._root, given, self._environ)
            self._accounts[given] = AccountFile(path, shown_path(self._root, path), self._environ)
        return self._accounts[given].account

    def _read(self) -> Cluster:
        values = self._values
        for name in values.get("secret_env", ()):
            redaction.register_secret(values.get("env", {}).get(name, ""))
        reader = EntryReader(values, self._checker, self.account)
        folders, code = reader.folders(), reader.code()
        self._check_numbers()
        platform = _platform(values)
        refusals, notes = job_keys(self.document, values, platform, folders)
        return Cluster(
            name=self._name,
            file=self.document.file,
            root=self._root,
            folders=folders,
            code=code,
            platform=platform,
            platform_given=values.get("platform") in PLATFORMS or platform != "local",
            gpu_per_node=gpus_of_node(values, platform),
            docker=Docker(**values.get("docker", {})),
            values=values,
            **{key: values[key] for key in _AS_WRITTEN if key in values},
            job_notes=notes,
            job_refusals=(*refusals, *self._of_buckets(folders)),
            document=self.document,
            written=self._written,
        )

    def _of_buckets(self, folders: Sequence[FolderEntry]) -> Iterator[JobRefusal]:
        """The entries that jobs cannot have: their nodes get rights to containers only."""
        for entry in folders:
            if entry.account.bucket is not None:
                where = ("config_param", entry.key)
                said = f"is in {entry.account.container}, a source, which jobs do not get"
                hint = "copy it into a container first: blobsync -f SOURCE u PATH"
                yield JobRefusal(where, self.document.error(where, said, hint=hint))

    def _check_numbers(self) -> None:
        # Nodes of Azure ML have GPUs; elsewhere there may be none.
        if self._values.get("gpu_per_node") == 0 and _platform(self._values) in AML_PLATFORMS:
            self._checker.problem(("gpu_per_node",), "must be at least 1")
        for key in ("nodes", "process_count_per_node"):
            if self._values.get(key) == 0:
                self._checker.problem((key,), "must be at least 1")


def _platform(values: Mapping[str, Any]) -> str:
    """The platform by ACT's rules: ``aks_compute: true`` is ITP; without ``platform``, a workspace and a target mean
    Azure ML."""
    if values.get("aks_compute"):
        return "itp"
    if values.get("platform") in PLATFORMS:
        return str(values["platform"])
    return "aml" if "aml_config" in values and "compute_target" in values else "local"
