"""The sets of files of a project's folders, and the refusal to download half a one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.config.mapping import Resolution, is_below
from blobsync.config.model import Cluster, FolderEntry
from blobsync.jobspec.make_spec import own_output
from blobsync.jobspec.node_secrets import own_lineage_keys
from blobsync.jobspec.spec import OWN_OUTPUT, JobSpec
from blobsync.keep.checkpoint_sets import set_of
from blobsync.keep.listing import Checkpoint, Restarted, SetsPlace, half_problem, list_sets, rule_of_jobs
from blobsync.store.open_locations import Connections


def list_checkpoints(
    cluster: Cluster,
    connections: Connections,
    root: Path,
    place: Resolution | None,
    warn: Callable[[str], None],
    environ: Mapping[str, str],
    *,
    job: JobSpec | None = None,
) -> tuple[Checkpoint, ...]:
    """The sets of all folder entries, or of what is at ``place``; ``job``: only those that it can go on from.

    Raises ``UsageError`` if there is no entry with ``checkpoints``, ``NothingMatchedError`` if nothing is there.
    """
    entries = [entry for entry in cluster.folders if entry.checkpoints and (place is None or entry is place.entry)]
    if not entries:
        where = f"{place.entry.key} in {cluster.file}" if place else f"no folder entry of {cluster.file}"
        raise UsageError(
            f"{where} has {'no ' if place else ''}checkpoints",
            hint="add checkpoints: PATTERN to an entry with mode: upload, such as run-*/checkpoint-*",
        )
    found = []
    restarted = _restarted(job) if job is not None else None
    for entry in entries:
        if sets := sets_place(cluster, connections, root, entry, environ):
            found += list_sets(sets, warn, job=restarted)
    if place is not None:
        found = [each for each in found if is_below(each.path, place.path)]
    if not found:
        shown = place.path if place else ", ".join(entry.prefix for entry in entries)
        of_job = f" that {job.run_id} could go on from" if job else ""
        raise NothingMatchedError(
            f"{shown}: there is no checkpoint{of_job}, neither here nor in the container",
            hint="the pattern of checkpoints names them below the folder entry: blobsync config check",
        )
    return tuple(found)


def _restarted(job: JobSpec) -> Restarted:
    rules = {link.name: link.checkpoints for link in job.folders if link.checkpoints}
    return Restarted(job.run_id, job.lineage, rules, job.has_earlier_marks)


def sets_place(
    cluster: Cluster, connections: Connections, root: Path, entry: FolderEntry, environ: Mapping[str, str]
) -> SetsPlace | None:
    """The sets of a folder entry; None if it has none."""
    if entry.checkpoints is None:
        return None
    is_per_job = _is_per_job(cluster, entry)
    there = connections.open(entry.remote)
    keys = own_lineage_keys(environ)
    return SetsPlace(entry.checkpoints, root / entry.prefix, there, entry.prefix, keys, is_per_job)


def _is_per_job(cluster: Cluster, entry: FolderEntry) -> bool:
    return own_output(cluster).get(OWN_OUTPUT) == entry.prefix


def demand_set(cluster: Cluster, place: Resolution) -> None:
    """Raise ``UsageError`` if ``place`` is no set of its folder entry."""
    entry, rule = place.entry, place.entry.checkpoints
    if rule is None:
        raise UsageError(
            f"{place.path} is no checkpoint: {entry.key} in {cluster.file} has no checkpoints",
            hint="add checkpoints: PATTERN to it, or name its cluster with -c",
            path=place.path,
        )
    pattern = rule_of_jobs(rule) if _is_per_job(cluster, entry) else rule
    if set_of(pattern, place.relative) != place.relative:
        raise UsageError(
            f"{place.path} is no checkpoint: {entry.key}.checkpoints in {cluster.file} names"
            f" {entry.prefix}/{pattern.sets}",
            hint="name a folder or file that the pattern names, or its cluster with -c",
            path=place.path,
        )


def demand_complete(
    cluster: Cluster,
    connections: Connections,
    root: Path,
    place: Resolution,
    warn: Callable[[str], None],
    environ: Mapping[str, str],
) -> None:
    """Raise ``UsageError`` if ``place`` is a set, or in one, that is not complete in the container."""
    sets = sets_place(cluster, connections, root, place.entry, environ)
    why = half_problem(sets, place.relative, warn) if sets else ""
    if why:
        again = f"blobsync d {shlex.quote(place.given)} --incomplete"
        shown = f"blobsync checkpoints {shlex.quote(place.entry.prefix)} shows the whole ones"
        raise UsageError(
            f"{place.path} is half a checkpoint: {why}",
            hint=f"{shown}; {again} takes it anyway",
            path=place.path,
        )
