"""A TCP proxy that simulates a distant network.

Every byte is delayed by half the round trip in each direction; a new connection's first byte by one round trip more,
for the handshake; a connection starts with 14,600 bytes per round trip and doubles up to 1 MiB, as in TCP's slow start.
All connections share an optional bandwidth, per direction. No loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.servers import child

_FIRST_WINDOW = 14_600
_LAST_WINDOW = 1 << 20
_PIECE = 1 << 16
_IN_FLIGHT_PIECES = 128


class _Line:
    """One direction of one connection: computes when a piece arrives."""

    def __init__(self, round_trip: float, opened: float, road: _Road) -> None:
        self._round_trip = round_trip
        self._road = road
        self._window = _FIRST_WINDOW
        self._left = _FIRST_WINDOW
        self._round_starts = opened

    def arrival(self, size: int, now: float) -> float:
        """The time at which ``size`` bytes sent at ``now`` have arrived."""
        if now > self._round_starts + self._round_trip:
            # The last window was acknowledged long ago; its unused part does not add up.
            self._round_starts, self._left = now, self._window
        rest = size
        while rest > self._left:
            rest -= self._left
            self._round_starts += self._round_trip
            self._window = min(self._window * 2, _LAST_WINDOW)
            self._left = self._window
        self._left -= rest
        return max(now, self._round_starts, self._road.free_at(size, now)) + self._round_trip / 2


class _Road:
    """The bandwidth that all connections of one direction share."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free = 0.0

    def free_at(self, size: int, now: float) -> float:
        if not self._rate:
            return now
        self._free = max(self._free, now) + size / self._rate
        return self._free


class DelayProxy:
    """See the module's docstring. ``round_trip`` in seconds, ``mbps`` in 10^6 bits a second, None: no limit."""

    def __init__(self, upstream: str, round_trip: float, mbps: float | None) -> None:
        parts = urlsplit(upstream)
        if not parts.hostname or not parts.port:
            raise ValueError(f"not an upstream of the form http://host:port: {upstream}")
        self._address = (parts.hostname, parts.port)
        self._round_trip = round_trip
        rate = mbps * 1e6 / 8 if mbps else None
        self._roads = (_Road(rate), _Road(rate))
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._address)
        except OSError:
            writer.transport.abort()
            return
        opened = asyncio.get_running_loop().time() + self._round_trip
        there = self._carry(reader, far_writer, _Line(self._round_trip, opened, self._roads[0]))
        back = self._carry(far_reader, writer, _Line(self._round_trip, opened, self._roads[1]))
        try:
            await asyncio.gather(there, back)
        except OSError:
            pass
        finally:
            for each in (writer, far_writer):
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line) -> None:
        """Read at once, write each piece when it is due."""
        loop = asyncio.get_running_loop()
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_IN_FLIGHT_PIECES)

        async def deliver() -> None:
            while True:
                due, data = await late.get()
                wait = due - loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                if not data:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        async def take() -> None:
            while True:
                data = await reader.read(_PIECE)
                now = loop.time()
                await late.put((line.arrival(len(data), now), data))
                if not data:
                    return

        await asyncio.gather(take(), deliver())

    def command(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "connections":
            return self._connections
        raise ValueError(f"no such command: {name}")


class DelayHandle(child.ServerProcess):
    """The parent's handle of the proxy; ``url`` replaces the upstream's."""

    def connections(self) -> int:
        """The number of connections so far."""
        return int(self.ask("connections"))


@contextmanager
def delay_proxy(upstream: str, *, round_trip_ms: float = 40.0, mbps: float | None = None) -> Iterator[DelayHandle]:
    """Run the proxy for ``upstream`` (``http://host:port``) in a child process."""
    arguments = ["--upstream", upstream, "--round-trip-ms", str(round_trip_ms)]
    if mbps:
        arguments += ["--mbps", str(mbps)]
    with DelayHandle("delay_proxy", arguments) as handle:
        yield handle


def main() -> None:
    options = child.parser("Makes a blob service as far away as another continent.")
    options.add_argument("--round-trip-ms", type=float, default=40.0)
    options.add_argument("--mbps", type=float, default=None)
    chosen = options.parse_args()
    child.run(DelayProxy(chosen.upstream, chosen.round_trip_ms / 1000, chosen.mbps), chosen)


if __name__ == "__main__":
    main()
