"""A job's state with its reason, in one sentence; and notes about changes of it while a command waits for the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command line's start needs none of it.
    from blobsync.jobs.record import JobRecord
    from blobsync.jobspec.spec import RunInfo


def state_with_reason(info: RunInfo) -> str:
    """``Failed (7): node 1 ended with exit code 7``; ``Running``."""
    code = f" ({info.exit_code})" if info.exit_code else ""
    return f"{info.state}{code}" + (f": {info.reason}" if info.reason else "")


def state_line(record: JobRecord) -> str:
    """The same with the job's id before it."""
    return f"{record.run_id}: {state_with_reason(record.info)}"


class StateNotes:
    """Notes why a job does not run, and why its cluster cannot be asked.

    Each sentence is noted once, and again only after the job was put back into the queue.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[tuple[int, str]] = set()
        self._reason = ""

    def update(self, record: JobRecord, problems: Iterable[str] = ()) -> None:
        """Note what changed since the last call; not how the job ended, which the caller reports."""
        for problem in problems:
            self._say(record, problem)
        if record.info.state.is_final:
            return
        # A reason that has gone is a change, too.
        if record.info.reason or self._reason:
            self._say(record, state_line(record))
        self._reason = record.info.reason

    def _say(self, record: JobRecord, sentence: str) -> None:
        key = (record.info.restarts, sentence)
        if key not in self._noted:
            self._noted.add(key)
            self._note(sentence)
