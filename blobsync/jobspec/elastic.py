"""The least and most nodes of an elastic job. Pure.

From ``--elastic MIN:MAX``, or ``min_nodes`` and ``max_nodes`` of the cluster file, on every platform.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def find_bounds(
    platform: str, asked: str = "", least: int | None = None, most: int | None = None, file: str = ""
) -> Bounds | None:
    """The bounds of a submission; None: a fixed size. ``asked`` is the user's ``--elastic``, and overrides ``least``
    and ``most`` of the cluster file ``file``.

    Raises ``UsageError`` for ``--elastic``, ``ConfigError`` for the file.
    """
    fixed = f"a job on {platform} has a fixed number of nodes" if platform in FIXED_SIZE else ""
    if asked:
        match = _PAIR.fullmatch(asked)
        if not match:
            raise UsageError(f"--elastic {asked!a} is not MIN:MAX", hint=_EXAMPLE)
        if fixed:
            raise UsageError(f"--elastic {asked}: {fixed}", hint="use --nodes N, or another cluster: -c NAME")
        least, most = int(match[1]), int(match[2])
        if problem := _problem(least, most):
            raise UsageError(f"--elastic {asked}: {problem}", hint=_EXAMPLE)
        return Bounds(least, most)
    if least is None and most is None:
        return None
    if least is None or most is None:
        key, missing = ("min_nodes", "max_nodes") if most is None else ("max_nodes", "min_nodes")
        raise ConfigError(f"needs {missing} beside it", file=file, key=key)
    if fixed:
        raise ConfigError(fixed, file=file, key="min_nodes", hint="remove min_nodes, max_nodes")
    if problem := _problem(least, most):
        raise ConfigError(problem, file=file, key="min_nodes", hint="min_nodes: 1, max_nodes: 4")
    return Bounds(least, most)


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
