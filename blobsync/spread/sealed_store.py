"""Seals the documents of a shared store that others can write to: what they put there counts as absent.

Each document has the seal of its transfer, over its kind, the run, its name and its content. Every worker has the
key for that. What only one worker or only the parent may say has a seal of its writer's own key inside: the parent
can make each worker's key, and no worker another's. Within a run, each parent has a session of its own, which workers
learn from the parent's sign of life: what belongs to an earlier session counts as absent, too.

    alive             sealed; its number grows, so that an older one is no sign of life
    shards, plan      sealed by the parent
    records, refused  sealed, and sealed inside by their worker
    result            sealed, and sealed inside by the parent
    done              no content: the seal is a part of the name
    claims, owner     not sealed: they only make somebody wait
    node              the archive, whose SHA-256 is in the job's specification

The orders for the workers of a transfer are sealed, too: they are in a job's specification, whose file others may be
able to write to.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blobsync.base.plain_json import parse_object
from blobsync.base.seals import SealKey, within
from blobsync.spread.shared_store import SharedStore

# What the parent writes for itself has this in the place of a worker's name.
PARENT = "parent"

_PLAIN = frozenset({"claims", "owner", "node"})
_OF_THE_RUN = frozenset({"alive", "slow", "plan", "result"})
_MARK_CHARS = 32
# So many strangers' documents are named one by one.
_MOST_TOLD = 10


class Keys(NamedTuple):
    """``shared`` seals every document of a run, ``own`` gives the key of one writer, where this process may have it."""

    shared: SealKey
    own: Callable[[str], SealKey | None]


def parent_keys(run: SealKey) -> Keys:
    """All keys of a run."""
    return Keys(run.derive("shared"), lambda writer: run.derive("writer", writer))


def worker_keys(run: SealKey, worker: str) -> Keys:
    """Those of one worker. The run's key can be forgotten then."""
    mine = run.derive("writer", worker)
    return Keys(run.derive("shared"), lambda writer: mine if writer == worker else None)


def new_session() -> str:
    """Told from all others."""
    return secrets.token_hex(8)


class SealedStore:
    """Seals what it writes to ``place``, and shows nothing of it that has no valid seal. See ``SharedStore``."""

    def __init__(
        self, place: SharedStore, keys: Keys, run: str, told: Callable[[str], None], *, session: str = ""
    ) -> None:
        """``run`` names the transfer that the keys are of. ``told`` hears of each document that is not of it.
        ``session`` is the parent's own; empty: the one that the last sign of life names."""
        self._place = place
        self._keys = keys
        self._run = run
        self._told = told
        self._follows = not session
        self._session = session
        self._doubtful: set[str] = set()
        self._strange: set[str] = set()
        # The number and the body of the last sign of life.
        self._alive: tuple[int, bytes] = (0, b"")

    @property
    def shown(self) -> str:
        return self._place.shown

    @property
    def session(self) -> str:
        """Whose documents count at this moment."""
        return self._session

    def write(self, name: str, body: bytes) -> None:
        word = _word(name)
        if word in _PLAIN:
            self._place.write(name, body)
        elif word == "done":
            self._place.write(self._marked(name), b"")
        else:
            self._place.write(name, self._sealed(name, self._dated(body) if name == "alive" else body))

    def read(self, name: str) -> bytes | None:
        word = _word(name)
        if word in _PLAIN:
            return self._place.read(name)
        if word == "done":
            return self._place.read(self._marked(name))
        if name == "alive":
            return self._life()
        return self._opened(name)

    def names(self, folder: str) -> list[str]:
        """Those of the place; of what has no content, those that are sealed."""
        found = self._place.names(folder)
        if folder != "done":
            return found
        plain = ((name, name.partition("~")[0]) for name in found)
        return [name for marked, name in plain if self._marked(f"done/{name}") == f"done/{marked}"]

    def remove(self, name: str) -> None:
        self._place.remove(self._marked(name) if _word(name) == "done" else name)

    def remove_all(self) -> None:
        self._place.remove_all()

    def claim(self, name: str, holder: str) -> bool:
        return self._place.claim(name, holder)

    def release(self, name: str, holder: str) -> None:
        self._place.release(name, holder)

    def hurry(self) -> None:
        self._place.hurry()

    def _where(self, name: str) -> str:
        return self._run if _word(name) in _OF_THE_RUN else f"{self._run}/{self._session}"

    def _sealed(self, name: str, body: bytes) -> bytes:
        writer, where = _writer(name), self._where(name)
        if writer:
            own = self._keys.own(writer)
            if own is None:
                raise ValueError(f"{name} is not this worker's to write")
            body = own.seal("own", where, name, body)
        return self._keys.shared.seal("spread", where, name, body)

    def _opened(self, name: str, *, quietly: bool = False) -> bytes | None:
        document = self._place.read(name)
        if document is None:
            return None
        writer, where = _writer(name), self._where(name)
        body = self._keys.shared.opened("spread", where, name, document)
        if body is not None and writer:
            own = self._keys.own(writer)
            # What only the parent can tell apart, the parent will.
            body = own.opened("own", where, name, body) if own is not None else within(body)
        if body is None and not quietly:
            self._name(name)
        return body

    def _name(self, name: str) -> None:
        if self._follows and name not in self._doubtful:
            # A session may have begun since the last sign of life was read.
            self._doubtful.add(name)
            return
        if name in self._strange or len(self._strange) >= _MOST_TOLD:
            return
        self._strange.add(name)
        more = "; others are not named any more" if len(self._strange) == _MOST_TOLD else ""
        self._told(f"{self.shown}{name} has no seal of this transfer: it counts as absent{more}")

    def _marked(self, name: str) -> str:
        mark = self._keys.shared.seal("spread", self._where(name), name, b"").split()[2].decode()
        return f"{name}~{mark[:_MARK_CHARS]}"

    def _dated(self, body: bytes) -> bytes:
        if not self._alive[0]:
            # Clocks differ: who carries on with what another machine began goes on from its number.
            self._life(quietly=True)
        self._alive = max(time.time_ns(), self._alive[0] + 1), body
        said = {"session": self._session, "number": self._alive[0], "body": body.decode("latin-1")}
        return json.dumps(said).encode()

    def _life(self, *, quietly: bool = False) -> bytes | None:
        """An older sign of life is none: then the last one still stands."""
        document = self._opened("alive", quietly=quietly)
        if document is None:
            return None
        try:
            said = parse_object(document.decode())
            number, session, body = int(said["number"]), str(said["session"]), str(said["body"]).encode("latin-1")
        except (ValueError, KeyError, TypeError):
            return None
        if number > self._alive[0]:
            self._alive = number, body
            if self._follows:
                self._session = session
        return self._alive[1]


def _word(name: str) -> str:
    return name.partition("/")[0]


def _writer(name: str) -> str:
    """Whose own word a document is; empty where any worker may say so."""
    word, _, rest = name.partition("/")
    if word == "result":
        return PARENT
    if word == "refused":
        return rest
    if word == "records":
        attempt = rest.split("~")[1] if rest.count("~") == 2 else ""
        return attempt.rpartition("-")[0] or PARENT
    return ""


def orders_seal(run: SealKey, orders: Mapping[str, Any]) -> str:
    """Over all orders but the seal itself, which is among them."""
    plain = {name: value for name, value in orders.items() if name != "seal"}
    body = json.dumps(plain, sort_keys=True).encode()
    return run.derive("orders").seal("orders", str(orders.get("run")), "orders", body).split()[2].decode()
