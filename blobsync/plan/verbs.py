"""What an action of a plan is called."""

from __future__ import annotations

from blobsync.plan.transfer_plan import Action, FileAction, Route, TransferPlan

# What `plan` calls a transfer, by route.
VERBS = {
    Route.UPLOAD: "upload",
    Route.DOWNLOAD: "download",
    Route.SAME_ACCOUNT: "copy",
    Route.CROSS_ACCOUNT: "copy",
}


def verb(plan: TransferPlan, action: FileAction) -> str:
    """The action as users read it: ``upload``, ``download``, ``copy``, ``delete``, ``unchanged``, ..."""
    if action.action is Action.ADOPT:
        return "download" if plan.route is Route.UPLOAD else "upload"
    return VERBS[plan.route] if action.action is Action.TRANSFER else action.action.value
