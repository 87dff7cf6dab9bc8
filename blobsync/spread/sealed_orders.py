"""The seal of what a transfer's workers are ordered to do: it stands in a job's specification, whose file others may be
able to write to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blobsync.base.seals import SealKey


def orders_seal(run: SealKey, orders: Mapping[str, Any]) -> str:
    """Over all orders but the seal itself, which is among them."""
    plain = {name: value for name, value in orders.items() if name != "seal"}
    body = json.dumps(plain, sort_keys=True).encode()
    return run.derive("orders").seal("orders", str(orders.get("run")), "orders", body).split()[2].decode()
