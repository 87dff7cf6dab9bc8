"""Seals the documents of a run of tasks, which others can write to as well: those of strangers count as missing.

Each run, which is one job, has a key. A seal is over the run, the document's name and its content, so that no
document of another run, nor one under another name, counts. The orders for the tasks are sealed, too: they are in the
job's specification, whose file others may be able to write to.

    shards/NUMBER     what a task is to move (``shard``)
    records/NUMBER    what became of it (``record``)
    ended             the transfer is over: tasks that have not begun end at once
    closing           which task closes a detached transfer; created once
    result            how a detached transfer ended
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from blobsync.base.seals import SealKey
from blobsync.spread.shared_store import SharedStore

# Maximum number of strangers' documents that are named one by one.
_MOST_TOLD = 10


def new_run() -> str:
    """A unique name of a run."""
    return secrets.token_hex(8)


class SealedStore:
    """Seals what it writes to ``place``, and hides documents without a valid seal. See ``ContainerStore``."""

    def __init__(self, place: SharedStore, key: SealKey, run: str, warn: Callable[[str], None]) -> None:
        """``key`` is that of ``run``. ``warn`` is called for each document that is not part of it."""
        self._place = place
        self._key = key
        self._warn = warn
        self._strange: set[str] = set()
        self.run = run

    @property
    def shown(self) -> str:
        return self._place.shown

    def write(self, name: str, body: bytes) -> None:
        self._place.write(name, self._key.seal("spread", self.run, name, body))

    def create(self, name: str, body: bytes) -> bool:
        return self._place.create(name, self._key.seal("spread", self.run, name, body))

    def read(self, name: str) -> bytes | None:
        document = self._place.read(name)
        body = self._key.opened("spread", self.run, name, document) if document is not None else None
        if document is not None and body is None:
            self._name(name)
        return body

    def names(self, folder: str) -> list[str]:
        return self._place.names(folder)

    def fail_soon(self) -> None:
        self._place.fail_soon()

    def _name(self, name: str) -> None:
        if name in self._strange or len(self._strange) >= _MOST_TOLD:
            return
        self._strange.add(name)
        more = "; others are not named any more" if len(self._strange) == _MOST_TOLD else ""
        self._warn(f"{self.shown}{name} has no seal of this transfer: it counts as absent{more}")


def orders_seal(run: SealKey, orders: Mapping[str, Any]) -> str:
    """The seal over all orders except itself, which is one of them."""
    plain = {name: value for name, value in orders.items() if name != "seal"}
    body = json.dumps(plain, sort_keys=True).encode()
    return run.derive("orders").seal("orders", str(orders.get("run")), "orders", body).split()[2].decode()
