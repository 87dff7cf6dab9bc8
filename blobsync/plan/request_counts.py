"""What a transfer asks of the storage account, in things that an account is charged by: requests, and bytes that leave.

Of a plan it is an estimate: no retries, and as many blocks as the direct engine makes.
"""

from __future__ import annotations

from blobsync.base.locations import BlobLocation, LocalLocation
from blobsync.base.records import dataclass
from blobsync.plan.blocks import ONE_REQUEST, block_size
from blobsync.plan.transfer_plan import Action, Route, TransferPlan

# https://learn.microsoft.com/rest/api/storageservices/list-blobs#uri-parameters
_PAGE = 5000
# Ranges of large downloads, and pieces of copies from server to server; bytes.
_RANGE, _COPIED = 8 << 20, 256 << 20


@dataclass(slots=True)
class Operations:
    """Numbers of requests, and the bytes that leave an account: by downloads, and by copies to another account."""

    write: int = 0
    list: int = 0
    read: int = 0
    delete: int = 0
    bytes_out: int = 0


def planned_operations(plan: TransferPlan) -> Operations:
    """What the plan will ask; the listings that it was made from are among it."""
    found = Operations()
    for part in plan.parts:
        pages = max(1, -(-len(part.actions) // _PAGE))
        found.list += pages * sum(not isinstance(end, LocalLocation) for end in (part.source, part.destination))
        for action in part.actions:
            if action.action is Action.TRANSFER:
                _add(found, part.route, action.size, action.size - action.on_record)
            elif action.action is Action.ADOPT:
                _add(found, part.route.opposite, action.size, action.size)
            elif action.action is Action.DELETE:
                found.delete += isinstance(part.destination, BlobLocation)
    return found


def leaves_account(plan: TransferPlan) -> bool:
    """Whether the bytes that move leave an account."""
    return plan.route in (Route.DOWNLOAD, Route.CROSS_ACCOUNT)


def _add(found: Operations, route: Route, size: int, moving: int) -> None:
    """Add what it takes to move one file, of which ``moving`` bytes are not there yet."""
    if route is Route.UPLOAD:
        found.write += 1 if moving <= ONE_REQUEST else 1 + -(-moving // block_size(size))
    elif route is Route.DOWNLOAD:
        found.read += max(1, -(-moving // _RANGE))
        found.bytes_out += moving
    else:
        pieces = max(1, -(-moving // _COPIED))
        found.write += pieces + (pieces > 1)
        found.read += pieces
        found.bytes_out += moving if route is Route.CROSS_ACCOUNT else 0
