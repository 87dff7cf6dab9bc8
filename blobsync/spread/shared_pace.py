"""What the storage account asks of one worker of a spread transfer, all of them keep to: a note at the place says it.

    slow    {"seconds": 5, "by": "node3.1", "mark": "..."}      who was asked to wait last, and for how long

No clock is compared: who finds a note that is new waits so long from then on.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable

from blobsync.spread.file_json import FormatError, object_of, size_of, text_of
from blobsync.spread.place import SharedPlace
from blobsync.store.rest.http import Pace

_NOTE = "slow"
# Seconds. A request waits no longer, whatever it is asked for; and whoever may write to the place may write a note.
_LONGEST = 90
_WORKER = re.compile(r"[A-Za-z0-9.-]{1,60}")


class SharedPace:
    """One worker's part. ``name`` is the worker's, ``told`` hears a sentence for its log. Used by one thread at a
    time."""

    def __init__(self, place: SharedPlace, name: str, pace: Pace, told: Callable[[str], None]) -> None:
        self._place = place
        self._name = name
        self._pace = pace
        self._told = told
        self._known: bytes | None = None

    def begin(self) -> None:
        """A note that is there already is of any age, and does not count. Raises what the place raises."""
        self._known = self._place.read(_NOTE)

    def look(self) -> None:
        """Tell all others what the service has asked of this worker, or keep to what it has asked of another.

        Raises what the place raises; a note that cannot be ours says nothing.
        """
        if asked := math.ceil(min(self._pace.take(), _LONGEST)):
            note = {"seconds": asked, "by": self._name, "mark": secrets.token_hex(8)}
            self._known = json.dumps(note).encode()
            self._told(f"the storage account asks for fewer requests: all workers wait {asked} s")
            self._place.write(_NOTE, self._known)
            return
        body = self._place.read(_NOTE)
        if body is None or body == self._known:
            return
        self._known = body
        try:
            note = object_of(body.decode("utf-8", "replace"))
            seconds, other = size_of(note, "seconds", _LONGEST), text_of(note, "by")
        except FormatError:
            return
        if _WORKER.fullmatch(other):
            self._pace.hold(seconds)
            self._told(f"{other} was asked by the storage account for fewer requests: waiting {seconds} s")
