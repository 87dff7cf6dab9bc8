"""Two jobs side by side: what was different. Pure; the lists of files are handed in.

Of variables only the names are shown, and which differ: their values are nobody else's business. Secrets are blank on
both sides, since a record has only their names.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from blobsync.ancestors.batchai_job import RECORDED
from blobsync.base.records import dataclass
from blobsync.base.redaction import HIDDEN, is_secret_name, redact
from blobsync.jobs.record import JobRecord, is_secret
from blobsync.jobspec.spec import CodeRef, JobSpec

# Options of a job, and keys of a cluster file, in which values of variables are.
_WITH_VARIABLES = frozenset({RECORDED, "variables"})
# Those and what blobsync notes for itself.
_NOT_SHOWN = _WITH_VARIABLES | {"lineage", "on_cpu", "sealed_marks", "earlier_marks", "own_env"}
_KEYS_WITH_VARIABLES = frozenset({"env", *(f"batchai.{name}" for name in _WITH_VARIABLES)})


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """One fact of both jobs; an empty text where a job has none."""

    name: str
    left: str
    right: str

    @property
    def differs(self) -> bool:
        """Whether the two jobs differ in it."""
        return self.left != self.right


@dataclass(frozen=True, slots=True, repr=False)
class ComparedCode:
    """How the files of two jobs' code differ: paths. ``problem`` is why there is no list."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    problem: str = ""

    def __repr__(self) -> str:
        return (
            f"<ComparedCode: {len(self.added):,} added, {len(self.removed):,} removed, {len(self.changed):,} changed>"
        )


@dataclass(frozen=True, slots=True, repr=False)
class ComparedJobs:
    """Two jobs: groups of facts, by their names, and how the files of their code differ."""

    left: JobRecord
    right: JobRecord
    groups: Mapping[str, tuple[ComparedFact, ...]]
    files: ComparedCode

    def __repr__(self) -> str:
        count = sum(fact.differs for facts in self.groups.values() for fact in facts)
        return f"<ComparedJobs {self.left.run_id} and {self.right.run_id}: {count} differences>"


def compare_records(left: JobRecord, right: JobRecord, files: ComparedCode) -> ComparedJobs:
    """Compare two records."""
    groups = {
        "Job": _compared(_facts(left), _facts(right)),
        "Code": _compared(_code(left.spec.code), _code(right.spec.code)),
        "Environment": _compared(_variables(left.spec, right.spec), _variables(right.spec, left.spec)),
        "Folders": _compared(_folders(left.spec), _folders(right.spec)),
        "Cluster file": _compared(_configuration(left), _configuration(right)),
    }
    return ComparedJobs(left, right, {name: facts for name, facts in groups.items() if facts}, files)


def compare_files(left: Mapping[str, str], right: Mapping[str, str]) -> ComparedCode:
    """Compare two lists of files: paths, each with a text that identifies its content."""
    both = left.keys() & right.keys()
    return ComparedCode(
        added=tuple(sorted(right.keys() - both)),
        removed=tuple(sorted(left.keys() - both)),
        changed=tuple(sorted(path for path in both if left[path] != right[path])),
    )


def _compared(left: Mapping[str, str], right: Mapping[str, str]) -> tuple[ComparedFact, ...]:
    names = [*left, *(name for name in right if name not in left)]
    facts = (ComparedFact(name, redact(left.get(name, "")), redact(right.get(name, ""))) for name in names)
    return tuple(fact for fact in facts if fact.left or fact.right)


def _facts(record: JobRecord) -> dict[str, str]:
    spec, info = record.spec, record.info
    return {
        "state": info.state.value + (f" ({info.exit_code})" if info.exit_code else ""),
        "command": shlex.join(spec.argv) if len(spec.argv) > 1 else "".join(spec.argv),
        "name": spec.name,
        "cluster": f"{spec.cluster} ({spec.platform})",
        "nodes": str(spec.nodes),
        "processes": str(spec.world_size),
        "GPUs": str(spec.gpus),
        "elastic": f"{spec.min_nodes} to {spec.max_nodes:,} nodes" if spec.min_nodes and spec.max_nodes else "",
        "image": spec.image or "",
        "time limit": f"{spec.timeout_s} s" if spec.timeout_s else "",
        "retries": str(spec.retries or ""),
        "setup": "\n".join(spec.setup),
        **{f"option {name}": str(value) for name, value in spec.options.items() if name not in _NOT_SHOWN},
    }


def _code(code: CodeRef | None) -> dict[str, str]:
    if code is None:
        return {"code": "the project's folder itself"}
    changes = " and uncommitted changes" if code.git_dirty else ""
    return {"digest": code.digest or code.blob, "commit": code.git_commit + changes, "archive": code.container}


def _variables(spec: JobSpec, other: JobSpec) -> dict[str, str]:
    shown = {name: _set_text(name, spec, other) for name in spec.env}
    return {**shown, **dict.fromkeys(spec.secret_env, HIDDEN)}


def _set_text(name: str, spec: JobSpec, other: JobSpec) -> str:
    if is_secret_name(name) or is_secret("", spec.env[name]):
        return HIDDEN
    # One of the two sides says it.
    is_another = name in other.env and other.env[name] != spec.env[name] and spec.run_id > other.run_id
    return "set, to another value" if is_another else "set"


def _folders(spec: JobSpec) -> dict[str, str]:
    return {
        entry.name: f"{entry.mode} {entry.container}/{entry.path}"
        + (f" ({', '.join(entry.include)})" if entry.include else "")
        for entry in spec.folders
    }


def _configuration(record: JobRecord) -> dict[str, str]:
    return dict(_leaves(record.home.values, "")) if record.home else {}


def _leaves(values: Mapping[str, Any], around: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{around}{key}"
        if name in _KEYS_WITH_VARIABLES:
            continue
        if isinstance(value, Mapping):
            found += _leaves(value, f"{name}.")
        else:
            found.append((name, HIDDEN if is_secret(key, value) else str(value)))
    return found
