"""Whether a filled form can be submitted, as far as can be told without asking anybody: every mistake at its field."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, ConfigError, UsageError
from blobsync.config.loader import ClusterFile, find_cluster_file, load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.form.filled import AskedJob, FieldMistake, JobForm, field_of_key, read_form
from blobsync.jobs.preflight import refusals
from blobsync.jobspec.describe import demand_command, elastic_bounds, read_seconds, shape_of


@dataclass(frozen=True, slots=True)
class CheckedForm:
    """A form, its mistakes, and what ``config check`` warns of.

    ``known`` is the cluster without the form's changes, None where its file cannot be used; ``asked`` is None
    where there is a mistake. ``changes`` are those of the cluster file, as far as they could be read.
    """

    form: JobForm
    known: Cluster | None
    asked: AskedJob | None = field(default=None, repr=False)
    mistakes: tuple[FieldMistake, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict, repr=False)


def check_form(root: Path, form: JobForm, environ: Mapping[str, str]) -> CheckedForm:
    """Read a form and find all its mistakes; never raises for them. Starts nothing and asks nobody."""
    try:
        known = load_cluster(root, form.cluster, environ=environ)
    except BlobsyncError as error:
        return CheckedForm(form, None, None, (FieldMistake.of("cluster", error),))
    asked, mistakes = read_form(form, known)
    found = list(mistakes)
    try:
        loaded = ClusterFile(root, find_cluster_file(root, form.cluster, environ), asked.overrides, environ)
    except BlobsyncError as error:
        return CheckedForm(form, known, None, (*found, FieldMistake.of("other", error)), changes=asked.overrides)
    found += [_placed(problem) for problem in loaded.problems]
    if loaded.cluster is not None:
        found += _refused(loaded.cluster, asked, environ)
    distinct = tuple({(one.field, one.message): one for one in found}.values())
    warnings = (*loaded.warnings, *loaded.job_notes)
    return CheckedForm(form, known, None if distinct else asked, distinct, warnings, asked.overrides)


def _refused(cluster: Cluster, asked: AskedJob, environ: Mapping[str, str]) -> Iterator[FieldMistake]:
    request = asked.request
    told: set[str] = set()
    for name, error in _each(cluster, asked):
        told.add(error.message)
        yield FieldMistake.of(name, error)
    # A missing command must not hide the rest.
    for error in refusals(cluster, environ, replace(request, argv=request.argv or ("true",))):
        if error.message not in told:
            yield _placed(error)


def _each(cluster: Cluster, asked: AskedJob) -> Iterator[tuple[str, BlobsyncError]]:
    """What the parts of the request say by themselves: one mistake must not hide another."""
    request = asked.request
    size = "nodes" if request.nodes and asked.num_gpu is None else "num_gpu"
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("command", lambda: demand_command(request)),
        ("elastic" if request.elastic else "", lambda: elastic_bounds(cluster, request)),
        (size, lambda: shape_of(cluster, request)),
        ("timeout", lambda: read_seconds(cluster, "timeout")),
    )
    told: set[str] = set()
    for name, look in parts:
        try:
            look()
        except BlobsyncError as error:
            # The size of an elastic job depends on its bounds.
            if error.message not in told:
                yield name if isinstance(error, UsageError) and name else _field(error), error
            told.add(error.message)


def _placed(error: BlobsyncError) -> FieldMistake:
    return FieldMistake.of(_field(error), error)


def _field(error: BlobsyncError) -> str:
    """The field of an error: that of its key; those of the file itself belong to the cluster."""
    key = error.key if isinstance(error, ConfigError) else None
    return (field_of_key(key) if key else "") or "cluster"
