"""From a project's files to one checked ``Cluster``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base import redaction
from blobsync.base.environment import environment
from blobsync.base.errors import ConfigNotFoundError, UnknownClusterError
from blobsync.config.accounts import AccountFile, WorkspaceFile, first_of, warn_if_others_can_read
from blobsync.config.entries import EntryReader
from blobsync.config.job_keys import job_keys
from blobsync.config.known_keys import CLUSTER, PLATFORMS
from blobsync.config.model import (
    AML_PLATFORMS,
    DEFAULT_CLUSTER,
    Cluster,
    Docker,
    StorageAccount,
    WorkspaceConfig,
    Written,
)
from blobsync.config.nearest import did_you_mean
from blobsync.config.overrides import apply_overrides
from blobsync.config.philly import philly_road
from blobsync.config.project_root import CLUSTER_FOLDER, CLUSTER_VARIABLE
from blobsync.config.typed import Checker
from blobsync.config.user_config import load_user_config
from blobsync.config.yaml_lines import Document, read_document

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
    loaded = ClusterFile(root, find_cluster_file(root, name, environ), overrides or {}, environ)
    if loaded.cluster is None:
        raise first_of(loaded.problems)
    return loaded.cluster


def reload_cluster(root: Path, written: Written, *, environ: Mapping[str, str], anew: bool) -> Cluster:
    """A cluster as it was read before: from today's file, or (not ``anew``) from what the file held then.

    The account files are always read again. Raises the first ``ConfigError``.
    """
    document = None if anew else Document(shown_path(root, written.path), written.values, {})
    loaded = ClusterFile(root, written.path, written.overrides, environ, document)
    if loaded.cluster is None:
        raise first_of(loaded.problems)
    return loaded.cluster


def load_workspace(cluster: Cluster, *, environ: Mapping[str, str] | None = None) -> WorkspaceConfig:
    """The Azure ML workspace of ``aml_config`` (default ``aux_data/aml/config.json``). Raises ``ConfigError``."""
    environ = environment(environ)
    found = read_workspace(cluster, environ)
    if found.workspace is None:
        raise first_of(found.problems)
    return found.workspace


def read_workspace(cluster: Cluster, environ: Mapping[str, str]) -> WorkspaceFile:
    """The same with all problems. Raises ``ConfigError`` when the file cannot be read at all."""
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
        return _file_of_variable(root, from_environ)
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
    road = philly_road(root, name)
    why = f"no cluster '{name}': there is no {CLUSTER_FOLDER}/{name}.yaml"
    raise UnknownClusterError(
        f"{why}, only a file of Philly, which is gone" if road else why,
        hint=f"{road} writes it; or kubernetes, aml, local" if road else did_you_mean(name, known) or there,
    )


def project_path(root: Path, given: str, environ: Mapping[str, str]) -> Path:
    """A file that the configuration names: relative to the project, absolute, or below ``~``."""
    if given.startswith("~/") and environ.get("HOME"):
        return Path(environ["HOME"], given[2:])
    return root / given


def inside_project(root: Path, given: str) -> str:
    """``given``, with the project's own root in place of another way (a symlink, a second mount) to the same folder."""
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
    """Relative to the project where it lies inside."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _file_of_variable(root: Path, given: str) -> Path:
    for path in (Path(given).absolute(), root / given):
        if path.is_file():
            return path
    if any(path.is_dir() for path in (Path(given), root / given)):
        raise ConfigNotFoundError(
            f"{CLUSTER_VARIABLE} names the folder {given}, not a cluster file",
            hint=f"name the file: export {CLUSTER_VARIABLE}={shlex.quote(f'{given}/{DEFAULT_CLUSTER}.yaml')}",
        )
    raise ConfigNotFoundError(
        f"{CLUSTER_VARIABLE} names {given}, which does not exist", hint=f"correct it, or: unset {CLUSTER_VARIABLE}"
    )


def _cluster_files(root: Path) -> Iterator[Path]:
    folder = root / CLUSTER_FOLDER
    if folder.is_dir():
        yield from (path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES and path.is_file())


class ClusterFile:
    """One cluster file, read and checked with all that it names. ``cluster`` is None where there are problems.

    ``partial`` is the cluster as far as the file could be read, to look for further problems with.
    """

    def __init__(
        self,
        root: Path,
        path: Path,
        overrides: Mapping[str, Any],
        environ: Mapping[str, str],
        document: Document | None = None,
    ) -> None:
        """``document`` stands for the file's content."""
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
        self.cluster = None if self.problems else replace(cluster, warnings=tuple(self.warnings))

    def account(self, given: str) -> StorageAccount | None:
        """The account file ``given``, read once. None where it has problems of its own; raises where it is absent."""
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
        jobs = job_keys(self.document, values, platform, folders)
        return Cluster(
            name=self._name,
            file=self.document.file,
            root=self._root,
            folders=folders,
            code=code,
            platform=platform,
            platform_given=values.get("platform") in PLATFORMS or platform != "local",
            experiment_name=values.get("experiment_name"),
            compute_target=values.get("compute_target"),
            num_gpu=values.get("num_gpu"),
            gpu_per_node=values.get("gpu_per_node"),
            multi_process=values.get("multi_process", True),
            use_custom_docker=values.get("use_custom_docker", False),
            docker=Docker(**values.get("docker", {})),
            env=values.get("env", {}),
            relay=values.get("relay", "ask"),
            zip_options=values.get("zip_options", ()),
            ignore=values.get("ignore", ()),
            max_file_size=values.get("max_file_size"),
            values=values,
            job_notes=jobs.notes,
            job_refusals=jobs.refusals,
            document=self.document,
            written=self._written,
        )

    def _check_numbers(self) -> None:
        # Nodes of Azure ML have GPUs; elsewhere there may be none.
        if self._values.get("gpu_per_node") == 0 and _platform(self._values) in AML_PLATFORMS:
            self._checker.problem(("gpu_per_node",), "must be at least 1")
        for key in ("nodes", "process_count_per_node"):
            if self._values.get(key) == 0:
                self._checker.problem((key,), "must be at least 1")


def _platform(values: Mapping[str, Any]) -> str:
    """ACT's rules: ``aks_compute: true`` is ITP; without ``platform``, a workspace and a target mean Azure ML."""
    if values.get("aks_compute"):
        return "itp"
    if values.get("platform") in PLATFORMS:
        return str(values["platform"])
    return "aml" if "aml_config" in values and "compute_target" in values else "local"
