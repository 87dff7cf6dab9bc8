"""How the plan of a project is spread over its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blobsync.base.errors import UsageError
from blobsync.config.model import Cluster
from blobsync.plan.spreading import LEAST_RANGE, Load, choose_spread
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, ProcessChoice, Route, TransferPlan

RANGE_VARIABLE = "BLOBSYNC_SPREAD_RANGE"


def demand_spreadable(options: TransferOptions, cluster: Cluster, *, copies: bool) -> None:
    """Raise ``UsageError`` where the cluster's nodes cannot do it: before anything is looked at."""
    if options.nodes is not None:
        choose_spread(options, cluster.platform, cluster.name, copies=copies)


def with_spread(plan: TransferPlan, cluster: Cluster, environ: Mapping[str, str], *, copies: bool) -> TransferPlan:
    """The plan, with how it is spread where ``--nodes`` asks for that. Raises ``UsageError``."""
    if plan.options.nodes is None:
        return plan
    from blobsync.spread.shard import weight

    # What lands on a disk is written by one worker.
    least = 0 if plan.route is Route.DOWNLOAD else _least_range(environ)
    files, work, large = 0, 0, []
    for _, action in plan.each():
        if action.action is Action.TRANSFER:
            files += 1
            work += weight(action)
            if 0 < 2 * least <= action.size:
                large.append(action.size)
    load = Load(files, work, large)
    spread = choose_spread(plan.options, cluster.platform, cluster.name, load, copies=copies, least=least)
    return replace(plan, spread=spread, processes=ProcessChoice(1, "each node has workers of its own"))


def _least_range(environ: Mapping[str, str]) -> int:
    said = environ.get(RANGE_VARIABLE) or str(LEAST_RANGE)
    if not (said.isascii() and said.isdigit() and 0 < int(said) <= 1 << 50):
        raise UsageError(f"{RANGE_VARIABLE}={said[:40]!a} is not a number of bytes", hint=f"unset {RANGE_VARIABLE}")
    return int(said)
