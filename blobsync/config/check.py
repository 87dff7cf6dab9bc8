"""Checks every configuration file of a project and collects all problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeAlias

from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.base.records import dataclass
from blobsync.base.user_folders import environment
from blobsync.config.account_files import ACCOUNT_FOLDER, account_file_names
from blobsync.config.accounts import AccountFile
from blobsync.config.loader import (
    ClusterFile,
    cluster_names,
    find_cluster_file,
    project_path,
    read_workspace,
    shown_path,
)
from blobsync.config.mapping import entries_within
from blobsync.config.model import AML_PLATFORMS, Cluster, JobRefusal, StorageAccount
from blobsync.config.project_root import CLUSTER_FOLDER, CLUSTER_VARIABLE
from blobsync.config.trust_store import TRUSTED_LINKS

# Finds mistakes of a cluster file, of which it may be a part.
Look: TypeAlias = Callable[[Cluster], Iterable[ConfigError]]


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """A cluster and its overrides, from ``-c`` (None: the default one) and ``-p``."""

    name: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """The result for one file. ``cluster`` is set for a valid cluster file, ``account`` for a valid account file, else
    None. ``job_refusals`` are keys that jobs would be refused for, reported even if the file is invalid. ``partial`` is
    the cluster as far as it could be read.
    """

    file: str
    problems: tuple[ConfigError, ...] = ()
    warnings: tuple[str, ...] = ()
    cluster: Cluster | None = None
    account: StorageAccount | None = None
    job_refusals: tuple[JobRefusal, ...] = ()
    partial: Cluster | None = field(default=None, repr=False, compare=False)


def check_project(
    root: Path,
    *,
    clusters: Sequence[ClusterChoice] = (),
    environ: Mapping[str, str] | None = None,
    further: Look = lambda _: (),
) -> tuple[CheckedFile, ...]:
    """Check the cluster files, the account files and the workspace files of ``root``. Never raises for them.

    ``further`` finds the mistakes of a cluster file that only others can read. Checks ``clusters`` instead of all;
    raises ``ConfigError`` for one that does not exist.
    """
    environ = environment(environ)
    if clusters:
        checked = [
            _check_cluster(root, find_cluster_file(root, each.name, environ), environ, further, each)
            for each in clusters
        ]
    else:
        checked = _check_clusters(root, environ, further)
    partial = [each.partial for each in checked if each.partial]
    checked.extend(_check_accounts(root, environ))
    checked.extend(_check_workspaces(root, partial, environ))
    checked.extend(_check_links(root, environ))
    return _each_once(checked)


def _check_clusters(root: Path, environ: Mapping[str, str], further: Look) -> list[CheckedFile]:
    without_variable = {key: value for key, value in environ.items() if key != CLUSTER_VARIABLE}
    paths = [find_cluster_file(root, name, without_variable) for name in cluster_names(root)]
    checked: list[CheckedFile] = []
    if environ.get(CLUSTER_VARIABLE):
        try:
            chosen = find_cluster_file(root, None, environ)
            paths += [] if any(path.samefile(chosen) for path in paths) else [chosen]
        except ConfigError as error:
            checked.append(CheckedFile(CLUSTER_VARIABLE, (error,)))
    checked += [_check_cluster(root, path, environ, further) for path in paths]
    if not checked:
        none = ConfigNotFoundError(
            f"{CLUSTER_FOLDER}/ contains no cluster file", hint="create one: blobsync config new"
        )
        checked.append(CheckedFile(CLUSTER_FOLDER, (none,)))
    return checked


def _check_cluster(
    root: Path, path: Path, environ: Mapping[str, str], further: Look, choice: ClusterChoice | None = None
) -> CheckedFile:
    try:
        loaded = ClusterFile(root, path, choice.overrides if choice else {}, environ)
    except ConfigError as error:
        return CheckedFile(shown_path(root, path), (error,))
    warnings = (*loaded.warnings, *loaded.job_notes, *_shared_blobs(loaded.partial))
    problems, refused = (*loaded.problems, *further(loaded.partial)), loaded.partial.job_refusals
    cluster = None if problems else loaded.cluster
    # Problems with these keys would be reported as if the default were set.
    unclear = any(problem.key in ("platform", "aml_config") for problem in problems)
    partial = None if unclear else loaded.partial
    return CheckedFile(shown_path(root, path), problems, warnings, cluster, job_refusals=refused, partial=partial)


def _shared_blobs(cluster: Cluster) -> Iterator[str]:
    """Entries whose blobs another entry has under another path, where a mirror finds no file for them."""
    blobs = [entry for entry in cluster.folders if entry.storage_type == "blob" and not entry.account.is_source]
    for outer in blobs:
        for inner, within in entries_within(cluster, outer.prefix, outer.remote):
            does = "refuses to delete them" if within else "deletes them"
            said = f"its blobs are also those of {outer.key}: u {outer.prefix} --mirror {does}"
            yield str(cluster.error(("config_param", inner.key), said))


def _check_accounts(root: Path, environ: Mapping[str, str]) -> Iterator[CheckedFile]:
    """Check account files, also those that no cluster names."""
    for shown in account_file_names(root):
        path = root / shown
        try:
            found = AccountFile(path, shown, environ)
        except ConfigError as error:
            yield CheckedFile(shown, (error,))
        else:
            unsafe = _not_ignored(root, path, shown) if found.holds_secret else []
            yield CheckedFile(shown, tuple(found.problems), tuple(found.warnings + unsafe), account=found.account)


def _check_workspaces(root: Path, clusters: Sequence[Cluster], environ: Mapping[str, str]) -> Iterator[CheckedFile]:
    for cluster in clusters:
        if cluster.platform not in AML_PLATFORMS:
            continue
        given = cluster.value("aml_config")
        file = shown_path(root, project_path(root, given, environ)) if isinstance(given, str) else cluster.file
        try:
            found = read_workspace(cluster, environ)
        except ConfigNotFoundError as error:
            yield CheckedFile(cluster.file, (error,))
        except ConfigError as error:
            yield CheckedFile(file, (error,))
        else:
            yield CheckedFile(file, tuple(found.problems), tuple(found.warnings))


def _check_links(root: Path, environ: Mapping[str, str]) -> Iterator[CheckedFile]:
    """The user's own list of links, which every transfer reads; reported only if it is invalid."""
    try:
        TRUSTED_LINKS.load(root, environ)
    except ConfigError as error:
        yield CheckedFile(str(TRUSTED_LINKS.file(environ)), (error,))


def _not_ignored(root: Path, path: Path, shown: str) -> list[str]:
    """A warning about a file with keys in a git repository whose ignore file does not list it."""
    if not (root / ".git").exists():
        return []
    ignore = root / ".gitignore"
    lines = ignore.read_text(encoding="utf-8", errors="replace").split("\n") if ignore.is_file() else []
    if any(ACCOUNT_FOLDER in line or path.name in line for line in lines if not line.startswith(("#", "!"))):
        return []
    return [f"{shown}: .gitignore does not name {ACCOUNT_FOLDER}/, so a key in it could be committed"]


def _each_once(checked: list[CheckedFile]) -> tuple[CheckedFile, ...]:
    """One entry per file; a problem that several clusters have in common is reported once, at its own file."""
    files = {item.file: CheckedFile(item.file) for item in checked}
    # With the file that each is of.
    problems: dict[str, tuple[ConfigError, str]] = {}
    warnings: dict[str, str] = {}
    for item in checked:
        known = files[item.file]
        files[item.file] = replace(
            known,
            cluster=known.cluster or item.cluster,
            account=known.account or item.account,
            job_refusals=known.job_refusals or item.job_refusals,
        )
        for problem in item.problems:
            problems.setdefault(str(problem), (problem, problem.file if problem.file in files else item.file))
        for warning in item.warnings:
            warnings.setdefault(warning, next((file for file in files if warning.startswith(f"{file}:")), item.file))
    found = []
    for item in files.values():
        own = sorted((each for each, file in problems.values() if file == item.file), key=lambda each: each.line or 0)
        told = [each for each, file in warnings.items() if file == item.file]
        found.append(replace(item, problems=tuple(own), warnings=by_line(item.file, told)))
    return tuple(found)


def by_line(file: str, warnings: Iterable[str]) -> tuple[str, ...]:
    """In the order of the file's lines; first what is said of the whole file."""
    return tuple(sorted(warnings, key=lambda warning: line_in(file, warning)))


def line_in(file: str, message: str) -> int:
    """The line of the file that a message is about; 0: the whole file, or another one."""
    number = message.removeprefix(f"{file}:").partition(":")[0]
    return int(number) if number.isascii() and number.isdecimal() else 0
