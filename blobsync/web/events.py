"""Live parts of a page: the server renders them and sends them to ``live.js``, which replaces their elements.

The stream is server-sent events; each is a JSON object: the id of an element -> its new content.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import StreamingResponse

from blobsync.web.app_state import app_state_of

# Seconds between two checks, and after which a line is sent although nothing changed.
_EVERY = 0.4
_AT_LEAST = 10.0
_TICK = 0.1


async def pause(seconds: float, over: Callable[[], bool]) -> None:
    """Wait, at most until ``over``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not over():
        await asyncio.sleep(_TICK)


def live_parts(request: Request, look: Callable[[], Mapping[str, str]], every: float = _EVERY) -> StreamingResponse:
    """A stream of what ``look`` returns (parts by :func:`blobsync.web.render.fragment`); each is sent when it changes.

    ``look`` runs in a thread of its own. A part named ``load`` is no content but a local address to load.
    """

    async def stream() -> AsyncIterator[str]:
        sent: dict[str, str] = {}
        silent = _AT_LEAST
        stopping = app_state_of(request).is_stopping
        while not stopping():
            parts = await run_in_threadpool(look)
            new = {name: text for name, text in parts.items() if sent.get(name) != text}
            sent.update(parts)
            if new or silent >= _AT_LEAST:
                yield f"data: {json.dumps(new)}\n\n"
                silent = 0.0
            await pause(every, stopping)
            silent += every

    return StreamingResponse(stream(), media_type="text/event-stream")
