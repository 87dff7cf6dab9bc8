"""How the plan of a project is spread over its cluster."""

from __future__ import annotations

from dataclasses import replace

from blobsync.config.model import Cluster
from blobsync.plan.spreading import choose_spread
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, ProcessChoice, TransferPlan


def demand_spreadable(options: TransferOptions, cluster: Cluster, *, copies: bool) -> None:
    """Raise ``UsageError`` where the cluster's nodes cannot do it: before anything is looked at."""
    if options.nodes is not None:
        choose_spread(options, cluster.platform, cluster.name, copies=copies)


def with_spread(plan: TransferPlan, cluster: Cluster, *, copies: bool) -> TransferPlan:
    """The plan, with how it is spread where ``--nodes`` asks for that."""
    if plan.options.nodes is None:
        return plan
    from blobsync.spread.shard import weight

    files, work = 0, 0
    for _, action in plan.each():
        if action.action is Action.TRANSFER:
            files += 1
            work += weight(action)
    spread = choose_spread(plan.options, cluster.platform, cluster.name, copies=copies, files=files, weight=work)
    return replace(plan, spread=spread, processes=ProcessChoice(1, "each node has workers of its own"))
