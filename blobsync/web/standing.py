"""How the folder entries stand, looked at beside the pages: the first page does not wait for a walk of all files."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from blobsync.base.errors import BlobsyncError
from blobsync.base.redaction import redact
from blobsync.plan.progress import Progress
from blobsync.project.overview import ProjectStatus
from blobsync.web.source import Source

# Seconds after which a page looks again by itself.
_STALE = 3.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known: ``status`` of ``at`` (seconds since 1970), whether somebody looks right now, or why nobody can."""

    status: ProjectStatus | None = None
    at: float = 0.0
    looking: bool = False
    seen: int = 0
    problem: str = ""
    hint: str = ""


class StatusBoard:
    """Looks in a thread of its own, once at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._known = Standing()
        self._again = False

    def look(self) -> Standing:
        """What is known now."""
        return self._known

    def renew(self, *, fresh: bool = False, patience: float = 0.0) -> Standing:
        """Look again, unless it was just done, and wait up to ``patience`` seconds; ``fresh`` lists the containers."""
        with self._lock:
            if not self._known.looking and (fresh or time.time() - self._known.at > _STALE):
                self._known = replace(self._known, looking=True, seen=0)
                threading.Thread(target=self._look, args=(fresh,), daemon=True).start()
            self._ended.wait_for(lambda: not self._known.looking, patience)
            return self._known

    def outdate(self) -> None:
        """Something was moved: the next look counts."""
        with self._lock:
            self._known = replace(self._known, at=0.0)

    def _look(self, fresh: bool) -> None:
        found = replace(self._known, problem="", hint="")
        try:
            with self._source.open() as project:
                found = replace(found, status=project.status(fresh=fresh, on_progress=self._hear))
        except BlobsyncError as error:
            found = replace(found, status=None, problem=redact(error.message), hint=redact(error.hint or ""))
        except Exception as error:  # noqa: BLE001 - a thread has nobody else to tell
            found = replace(found, status=None, problem=f"a bug in blobsync: {redact(repr(error))}")
        with self._lock:
            self._known = replace(found, at=time.time(), looking=False, seen=0)
            self._ended.notify_all()

    def _hear(self, progress: Progress) -> None:
        with self._lock:
            self._known = replace(self._known, seen=progress.looked)


class StatusBoards:
    """One for each cluster that somebody looks through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: dict[str, StatusBoard] = {}

    def of(self, source: Source) -> StatusBoard:
        """That of the cluster of ``source``."""
        with self._lock:
            return self._boards.setdefault(source.cluster_name, StatusBoard(source))

    def outdate(self) -> None:
        """Something was moved: the next look at each counts."""
        with self._lock:
            boards = list(self._boards.values())
        for board in boards:
            board.outdate()
