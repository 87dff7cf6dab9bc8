"""The least and most nodes of an elastic job. Pure.

From ``--elastic MIN:MAX``, or ``min_nodes`` and ``max_nodes`` of the cluster file, on every platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.lazy_regexes import pattern
from blobsync.jobspec.spec import JobSpec, State

# The most nodes of a cluster in Slurm.
MOST_NODES = 65_536

# Platforms where jobs cannot change their number of nodes.
FIXED_SIZE = frozenset({"aml"})
_PAIR = pattern(r"([0-9]{1,9}):([0-9]{1,9})")
_EXAMPLE = "blobsync submit --elastic 1:4 -- torchrun train.py"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and the largest number of nodes of an elastic job, both included."""

    least: int
    most: int

    def __contains__(self, nodes: int) -> bool:
        return self.least <= nodes <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most:,} nodes"


class GivenBounds(NamedTuple):
    """The user's values: ``asked`` is that of ``--elastic``, ``least`` and ``most`` are those of ``file``."""

    platform: str
    asked: str = ""
    least: int | None = None
    most: int | None = None
    file: str = ""


def find_bounds(given: GivenBounds) -> Bounds | None:
    """The bounds of a submission; None: a fixed size. ``--elastic`` overrides the cluster file.

    Raises ``UsageError`` for ``--elastic``, ``ConfigError`` for the file.
    """
    if given.asked:
        return _asked(given)
    if given.least is None and given.most is None:
        return None
    if given.least is None or given.most is None:
        key, missing = ("min_nodes", "max_nodes") if given.most is None else ("max_nodes", "min_nodes")
        raise ConfigError(f"needs {missing} beside it", file=given.file, key=key)
    if given.platform in FIXED_SIZE:
        raise ConfigError(_fixed(given.platform), file=given.file, key="min_nodes", hint="remove min_nodes, max_nodes")
    if problem := _problem(given.least, given.most):
        raise ConfigError(problem, file=given.file, key="min_nodes", hint="min_nodes: 1, max_nodes: 4")
    return Bounds(given.least, given.most)


def _asked(given: GivenBounds) -> Bounds:
    match = _PAIR.fullmatch(given.asked)
    if not match:
        raise UsageError(f"--elastic {given.asked!a} is not MIN:MAX", hint=_EXAMPLE)
    if given.platform in FIXED_SIZE:
        hint = "use --nodes N, or another cluster: -c NAME"
        raise UsageError(f"--elastic {given.asked}: {_fixed(given.platform)}", hint=hint)
    least, most = int(match[1]), int(match[2])
    if problem := _problem(least, most):
        raise UsageError(f"--elastic {given.asked}: {problem}", hint=_EXAMPLE)
    return Bounds(least, most)


def _fixed(platform: str) -> str:
    return f"a job on {platform} has a fixed number of nodes"


def _problem(least: int, most: int) -> str:
    if least < 1:
        return "an elastic job has at least one node"
    if least > most:
        return f"the smallest number of nodes, {least}, is larger than the largest, {most}"
    return f"at most {MOST_NODES:,} nodes" if most > MOST_NODES else ""


def bounds_of(spec: JobSpec) -> Bounds | None:
    """The bounds within which blobsync changes the job's size; None if it does not."""
    return Bounds(spec.min_nodes, spec.max_nodes) if spec.is_elastic and spec.min_nodes and spec.max_nodes else None


def demand_scalable(spec: JobSpec, state: State, nodes: int) -> None:
    """Raise ``UsageError`` unless a job in this state may get this number of nodes."""
    bounds = bounds_of(spec)
    if bounds is None:
        reason = "its platform chooses its size" if spec.min_nodes else "it was not submitted with --elastic"
        raise UsageError(f"{spec.run_id} cannot be scaled: {reason}", hint=_EXAMPLE)
    if nodes not in bounds:
        wider = f"--elastic {max(1, min(bounds.least, nodes))}:{max(bounds.most, nodes)}"
        raise UsageError(f"{spec.run_id} may have {bounds}, not {nodes}", hint=f"submit it with {wider}")
    if state.is_final:
        raise UsageError(f"{spec.run_id} has ended: {state}", hint=f"blobsync resubmit {spec.run_id}")
