"""A job's state with the reason for it, in one sentence; and telling it while somebody waits for the job.

What ``q`` shows as the reason, everything that waits for a job says in these words, when it appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command line's start needs none of it.
    from blobsync.jobs.record import JobRecord
    from blobsync.jobspec.spec import RunInfo


def standing_of(info: RunInfo) -> str:
    """``Failed (7): node 1 ended with exit code 7``; ``Running``."""
    code = f" ({info.exit_code})" if info.exit_code else ""
    return f"{info.state}{code}" + (f": {info.reason}" if info.reason else "")


def standing_line(record: JobRecord) -> str:
    """The same with the job's id before it."""
    return f"{record.run_id}: {standing_of(record.info)}"


class News:
    """Tells what keeps a job from running, and why its cluster cannot be asked.

    Each sentence once, and again only after the job was put back into the queue.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._told: set[tuple[int, str]] = set()
        self._reason = ""

    def tell(self, record: JobRecord, problems: Iterable[str] = ()) -> None:
        """What is new since the last look. How the job ended is for whoever waits for it to say."""
        for problem in problems:
            self._say(record, problem)
        if record.info.state.is_final:
            return
        # A reason that is gone is news, too.
        if record.info.reason or self._reason:
            self._say(record, standing_line(record))
        self._reason = record.info.reason

    def _say(self, record: JobRecord, sentence: str) -> None:
        key = (record.info.restarts, sentence)
        if key not in self._told:
            self._told.add(key)
            self._note(sentence)
