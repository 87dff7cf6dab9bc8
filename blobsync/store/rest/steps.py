"""What one operation does on the line, step by step: a generator of tries and pauses, which does no input or output.

So the same code decides about retries and reads answers, whether one thread waits for one request
(``BlobHttp.run``) or drives many (``side_by_side.SideBySide``).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from blobsync.store.rest.transport import Try

T = TypeVar("T")


class Pause(NamedTuple):
    """Wait before the next try, in seconds; None comes back."""

    seconds: float


# What comes back differs by what was yielded.
Steps = Generator[Try | Pause, Any, T]
