"""Keeps one folder uploaded: rounds, each of which uploads what has been still for a while.

A file is still if nothing that ``stat`` shows has changed for the settle time, by the monotonic clock: a suspended
machine and a clock that is set prove nothing. Only a file that is seen for the first time is believed its own times.

Nothing is deleted anywhere. What a round cannot upload is tried again, after pauses that grow: a single file by itself,
everything together where the cause is not in the files (no network, no right to write, a folder that was moved away).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

from blobsync.base.errors import BlobsyncError, FailureCode, FileFailure
from blobsync.base.events import Emit, Note, ignore
from blobsync.base.file_states import LocalState
from blobsync.base.formatting import duration_text
from blobsync.base.records import NamedTuple
from blobsync.local.tree import TreeEntry
from blobsync.plan.left_out_files import left_out_message

# Paths below the folder, and their states.
Files: TypeAlias = Mapping[str, LocalState]
# Carries out one round: uploads those of the files that the container does not have. Returns the failures of single
# files; raises ``BlobsyncError`` if nothing can work.
Upload: TypeAlias = Callable[[Files], Sequence[FileFailure]]


class Sets(Protocol):
    """The sets of files that are uploaded, marked and rotated as one."""

    def owns(self, path: str) -> bool:
        """Whether this file belongs to a set: the keeper does not upload it by itself."""
        ...

    def round(self, files: Files, *, last: bool) -> Sequence[FileFailure]:
        """Upload and mark the sets that are complete, and rotate; ``files`` are those that it owns, settled or not."""
        ...

    def behind(self, now: float) -> float | None:
        """Seconds between the newest complete set here and the newest one there; None if nothing is missing."""
        ...


class Found(NamedTuple):
    """What a watcher sees: every file, the paths that may have changed since it looked last, and what is left out.

    ``problem`` says why the folder itself cannot be seen, as when it was moved away; nothing is concluded from that.
    """

    files: Files
    changed: frozenset[str] = frozenset()
    left_out: Mapping[str, TreeEntry] = {}
    problem: str = ""


class Watcher(Protocol):
    """Knows the files of a folder."""

    def look(self, *, anew: bool = False) -> Found:
        """What there is now; ``anew``: by looking at every file."""
        ...

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait until something may have changed, ``stop`` is set, or the time is over."""
        ...


class Round(NamedTuple):
    """One round. ``given``: files that were given to the upload; ``waiting``: files that wait for stillness or for
    another try; ``failures``: what fails now, of which ``fresh`` was not reported before.

    ``problem`` says why nothing works, since ``since`` (seconds since 1970). ``idle``: nothing has changed for the
    settle time, and nothing waits but what has failed.
    """

    given: int = 0
    waiting: int = 0
    failures: Sequence[FileFailure] = ()
    fresh: Sequence[FileFailure] = ()
    problem: str = ""
    since: float = 0.0
    idle: bool = False


# Seconds between two rounds while files wait, and without an event.
_SHORTEST, _LONGEST = 1.0, 5.0
# Pauses after failures, in seconds: of a file, and of everything.
_FILE_PAUSE, _LONGEST_FILE_PAUSE = 5.0, 300.0
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
# A file has surely failed after so many tries; one that changes while it is read may only be unlucky.
_TRIES = 3
# Causes that are not in a file. Where each file of a round fails so, the round itself has.
EVERYWHERE = frozenset(
    {
        *(FailureCode.CREDENTIAL_INVALID, FailureCode.SAS_EXPIRED, FailureCode.SAS_PERMISSION),
        *(FailureCode.LOGIN_REQUIRED, FailureCode.ACCESS_DENIED, FailureCode.CONTAINER_NOT_FOUND),
        *(FailureCode.STORAGE_UNREACHABLE, FailureCode.SERVICE_BUSY),
    }
)
# These stay until the file, or its blob, changes.
_LASTING = frozenset({FailureCode.CONFLICT, FailureCode.NAMES_UNSAFE, FailureCode.SHAPE_CONFLICT})


class _Waiting:
    """A file that is to be uploaded: unchanged since ``since``, tried ``tries`` times, not again before ``at``."""

    __slots__ = ("at", "failure", "since", "state", "tries")

    def __init__(self, state: LocalState, since: float) -> None:
        self.state, self.since = state, since
        self.at = 0.0
        self.tries = 0
        self.failure: FileFailure | None = None


class Keeper:
    """Keeps ``folder`` uploaded. ``settle``: a file that has not changed for so many seconds is still.

    ``shown`` is the folder in messages. ``ignored`` is whether a path below it takes no part.
    """

    def __init__(
        self,
        folder: Path,
        watcher: Watcher,
        upload: Upload,
        *,
        settle: float,
        ignored: Callable[[str], bool] | None = None,
        sets: Sets | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        emit: Emit = ignore,
        shown: str = "",
    ) -> None:
        self.folder = folder
        self._watcher, self._upload, self._sets = watcher, upload, sets
        self._settle, self._ignored = settle, ignored
        self._clock, self._wall, self._emit = clock, wall, emit
        self._shown = shown or folder.name
        self._pending: dict[str, _Waiting] = {}
        self._owned: dict[str, LocalState] = {}
        self._reported: dict[str, FileFailure | str] = {}
        self._looked_at: float | None = None
        self._changed_at = clock()
        # The error behind the last problem, if it was one.
        self.cause: BlobsyncError | None = None
        self._problem = ""
        self._since = self._since_clock = 0.0
        self._pause, self._again_at = _PAUSE, 0.0

    def round(self, *, last: bool = False) -> Round:
        """One round now; ``last``: everything, without waiting for stillness or a pause."""
        now = self._clock()
        found = self._watcher.look(anew=last)
        if found.problem:
            return self._stuck(found.problem, now)
        self._note_changes(found, now)
        self._looked_at = now
        if now < self._again_at and not last:
            return self._result(0, found, ())
        return self._carry_out(found, now, last=last)

    def wait(self, stop: threading.Event) -> None:
        """Wait until the next round may have something to do."""
        now = self._clock()
        if self._problem:
            stop.wait(max(0.1, min(self._again_at - now, _LONGEST)))
        elif self._pending or self._owned:
            # Further changes wait together with these, no longer than the settle time.
            shortest = min(_SHORTEST, self._settle or _SHORTEST)
            due = min((self._due_at(each) for each in self._pending.values()), default=now + _LONGEST)
            stop.wait(min(max(due - now, shortest), _LONGEST))
        else:
            until_idle = self._changed_at + self._settle - now
            self._watcher.wait(min(until_idle, _LONGEST) if until_idle > 0 else _LONGEST, stop)

    def behind(self) -> float | None:
        """Seconds that the newest complete set there is behind the one here; None if nothing is missing."""
        return self._sets.behind(self._wall()) if self._sets else None

    def _note_changes(self, found: Found, now: float) -> None:
        for path in found.changed:
            state = found.files.get(path)
            if state is None:
                self._pending.pop(path, None)
                self._owned.pop(path, None)
                self._changed_at = now
            elif self._ignored is None or not self._ignored(path):
                self._note_change(path, state, now)

    def _note_change(self, path: str, state: LocalState, now: float) -> None:
        if self._sets and self._sets.owns(path):
            self._owned[path] = state
            return
        known = self._pending.get(path)
        if known is not None and known.state.same_file(state):
            return
        self._pending[path] = waiting = _Waiting(state, now - self._age(state, now))
        self._changed_at = max(self._changed_at, waiting.since)

    def _age(self, state: LocalState, now: float) -> float:
        """How long the file has been as it is: by its own times, but not longer than since the last look."""
        most = self._settle if self._looked_at is None else min(self._settle, now - self._looked_at)
        changed = max(state.mtime_ns, state.ctime_ns) / 1e9
        return min(max(0.0, self._wall() - changed), most)

    def _due_at(self, waiting: _Waiting) -> float:
        return max(waiting.since + self._settle, waiting.at)

    def _carry_out(self, found: Found, now: float, *, last: bool) -> Round:
        given = self._due(now, last=last)
        try:
            failures = list(self._upload(given)) if given else []
            self._raise_if_everywhere(given, failures)
            # Also without any file: this node may have to say that it has none of a set.
            failures += self._sets.round(dict(self._owned), last=last) if self._sets else ()
        except BlobsyncError as error:
            self.cause = error
            return self._stuck(error.message, self._clock())
        self._works_again()
        self._settle_accounts(given, failures)
        others = [each for each in failures if self._below(each.path) not in self._pending]
        return self._result(len(given), found, others)

    def _due(self, now: float, *, last: bool) -> dict[str, LocalState]:
        given: dict[str, LocalState] = {}
        for path, waiting in list(self._pending.items()):
            if not last and self._due_at(waiting) > now:
                continue
            # The watcher may have looked a while ago.
            try:
                state = LocalState.of(os.stat(self.folder / path))
            except FileNotFoundError:
                continue
            except OSError:
                state = waiting.state
            if last or state.same_file(waiting.state):
                given[path] = waiting.state = state
            else:
                self._pending[path] = _Waiting(state, now)
                self._changed_at = now
        return given

    def _raise_if_everywhere(self, given: Files, failures: Sequence[FileFailure]) -> None:
        if given and len(failures) >= len(given) and all(each.code in EVERYWHERE for each in failures):
            first = failures[0]
            raise BlobsyncError(first.message, hint=first.hint, code=first.code)

    def _settle_accounts(self, given: Files, failures: Sequence[FileFailure]) -> None:
        """What was given has arrived, unless it failed; that is tried again later."""
        failed = {self._below(each.path): each for each in failures}
        now = self._clock()
        for path in given:
            failure = failed.get(path)
            if failure is None:
                del self._pending[path]
                continue
            waiting = self._pending[path]
            lasting = failure.code in _LASTING
            pause = _LONGEST_FILE_PAUSE if lasting else min(_FILE_PAUSE * 2**waiting.tries, _LONGEST_FILE_PAUSE)
            waiting.tries = _TRIES if lasting else waiting.tries + 1
            waiting.failure, waiting.at = failure, now + pause

    def _below(self, shown: str) -> str:
        """The path below the folder of a file as messages name it."""
        return shown.removeprefix(f"{self._shown}/")

    def _stuck(self, problem: str, now: float) -> Round:
        if not self._problem:
            self._since, self._since_clock = self._wall(), now
        if problem != self._problem:
            self._emit(Note(f"{self._shown}: {problem}; it goes on when that is over"))
        self._problem = problem
        self._again_at = now + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return Round(0, len(self._pending), self._failing(), (), problem, self._since)

    def _works_again(self) -> None:
        if self._problem:
            lasted = duration_text(self._clock() - self._since_clock)
            self._emit(Note(f"{self._shown}: it goes on, after {lasted}"))
        self._problem, self._pause, self._again_at = "", _PAUSE, 0.0

    def _failing(self) -> list[FileFailure]:
        return [each.failure for each in self._pending.values() if each.failure is not None]

    def _result(self, given: int, found: Found, others: Sequence[FileFailure]) -> Round:
        failures = [*self._failing(), *others, *self._left_out(found)]
        fresh = [each for each in failures if self._reported.get(each.path) != each]
        self._reported.update({each.path: each for each in fresh})
        gone = self._reported.keys() - {each.path for each in failures} - found.left_out.keys()
        for path in gone:
            if isinstance(self._reported[path], FileFailure):
                del self._reported[path]
        waiting = len(self._pending)
        still = self._clock() - self._changed_at >= self._settle and not self._problem
        idle = still and all(each.tries >= _TRIES for each in self._pending.values())
        return Round(given, waiting, failures, fresh, self._problem, self._since if self._problem else 0.0, idle)

    def _left_out(self, found: Found) -> list[FileFailure]:
        """The entries that cannot be uploaded as they are; what only is no file is reported once."""
        failures: list[FileFailure] = []
        for path, entry in found.left_out.items():
            if entry.reason is None or (self._ignored is not None and self._ignored(path)):
                continue
            shown = f"{self._shown}/{path}" if path else self._shown
            said = left_out_message(shown, entry.reason, entry.detail)
            if isinstance(said, FileFailure):
                failures.append(said)
            elif self._reported.get(path) != said:
                self._reported[path] = said
                self._emit(Note(said))
        return failures
