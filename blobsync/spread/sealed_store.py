"""Seals the documents of a shared store that others can write to: documents of strangers count as missing.

Each document has the seal of its transfer, over its kind, the run, its name and its content. Every worker has the
key for that. Documents that only one worker or only the coordinator may write have a second seal inside, with their
writer's own key: the coordinator can derive each worker's key, and no worker another's. Within a run, each coordinator
has a session, which workers learn from its heartbeat: documents of an earlier session count as missing, too.

    alive             sealed; its number grows, so that an older one is no heartbeat
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

# The coordinator's own documents have this instead of a worker's name.
PARENT = "parent"

_PLAIN = frozenset({"claims", "owner", "node"})
_OF_THE_RUN = frozenset({"alive", "slow", "plan", "result"})
_MARK_CHARS = 32
# Maximum number of strangers' documents that are named one by one.
_MOST_TOLD = 10


class Keys(NamedTuple):
    """``shared`` seals every document of a run, ``own`` returns the key of one writer, if this process may have it."""

    shared: SealKey
    own: Callable[[str], SealKey | None]


def parent_keys(run: SealKey) -> Keys:
    """All keys of a run."""
    return Keys(run.derive("shared"), lambda writer: run.derive("writer", writer))


def worker_keys(run: SealKey, worker: str) -> Keys:
    """The keys of one worker. The run's key can be forgotten then."""
    mine = run.derive("writer", worker)
    return Keys(run.derive("shared"), lambda writer: mine if writer == worker else None)


def new_session() -> str:
    """A unique session name."""
    return secrets.token_hex(8)


class SealedStore:
    """Seals what it writes to ``place``, and hides documents without a valid seal. See ``SharedStore``."""

    def __init__(
        self, place: SharedStore, keys: Keys, run: str, warn: Callable[[str], None], *, session: str = ""
    ) -> None:
        """``run`` is the transfer of the keys. ``warn`` is called for each document that is not part of it.
        ``session`` is the coordinator's own; empty: the one named by the last heartbeat."""
        self._place = place
        self._keys = keys
        self._run = run
        self._warn = warn
        self._follows = not session
        self._session = session
        self._doubtful: set[str] = set()
        self._strange: set[str] = set()
        # The number and the body of the last heartbeat.
        self._alive: tuple[int, bytes] = (0, b"")

    @property
    def shown(self) -> str:
        return self._place.shown

    @property
    def session(self) -> str:
        """The session whose documents count now."""
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
        """The names in the store; of documents without content, only those that are sealed."""
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
            # A seal that only the coordinator can check is left to it.
            body = own.opened("own", where, name, body) if own is not None else within(body)
        if body is None and not quietly:
            self._name(name)
        return body

    def _name(self, name: str) -> None:
        if self._follows and name not in self._doubtful:
            # A session may have begun since the last heartbeat was read.
            self._doubtful.add(name)
            return
        if name in self._strange or len(self._strange) >= _MOST_TOLD:
            return
        self._strange.add(name)
        more = "; others are not named any more" if len(self._strange) == _MOST_TOLD else ""
        self._warn(f"{self.shown}{name} has no seal of this transfer: it counts as absent{more}")

    def _marked(self, name: str) -> str:
        mark = self._keys.shared.seal("spread", self._where(name), name, b"").split()[2].decode()
        return f"{name}~{mark[:_MARK_CHARS]}"

    def _dated(self, body: bytes) -> bytes:
        if not self._alive[0]:
            # Clocks differ: a run that continues what another machine began continues its numbers.
            self._life(quietly=True)
        self._alive = max(time.time_ns(), self._alive[0] + 1), body
        said = {"session": self._session, "number": self._alive[0], "body": body.decode("latin-1")}
        return json.dumps(said).encode()

    def _life(self, *, quietly: bool = False) -> bytes | None:
        """The last heartbeat; an older one is ignored."""
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
    """The only writer that a document may have; empty if any worker may write it."""
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
    """The seal over all orders except itself, which is one of them."""
    plain = {name: value for name, value in orders.items() if name != "seal"}
    body = json.dumps(plain, sort_keys=True).encode()
    return run.derive("orders").seal("orders", str(orders.get("run")), "orders", body).split()[2].decode()
