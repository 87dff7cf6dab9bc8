"""A reverse proxy that injects faults: randomly from a seed, or by a script.

A fault is chosen per request. Each :class:`Fault` has its own random stream, so that with one seed the n-th request
that it considers has the same outcome in every run. Injected faults are counted by kind.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers import child
from tests.servers.copy_source_proxy import error_response
from tests.servers.proxy import Entry, Link, Proxy, Stats, operation
from tests.servers.wire import (
    Framing,
    Request,
    Response,
    encode_request,
    encode_response,
    pieces,
    pump,
    read_body,
    read_response,
)

_CODES = {403: "AuthorizationFailure", 429: "TooManyRequests", 500: "InternalError", 503: "ServerBusy"}
_UP = ("put blob", "put block")
_DOWN = ("get blob",)
_DRIP_STEPS = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault, and when to inject it.

    ``kind`` is one of

        reset_before      a TCP reset instead of passing the request on
        reset_after       the request takes effect, then a reset instead of the answer
        reset_upload      a reset after half of the request's body
        reset_download    a reset after half of the answer's body
        stall             nothing for ``seconds``, then a reset; the request never arrives
        hold              nothing until ``release``, then as ever: what happens meanwhile is between two requests; or
                          until ``drop``, then a reset
        drip              the answer's body spread over ``seconds``
        status            ``status`` with Retry-After ``retry_after`` instead of passing the request on
        truncate          the answer ends orderly after half of its body
        truncate_lying    the same, with a Content-Length that agrees with the cut
        truncate_upload   the service gets half of the body, with a Content-Length that agrees
        flip_down         one bit of a downloaded body is another
        flip_up           one bit of an uploaded body is another
        skew              403 as from a service whose clock is ``seconds`` ahead of this machine's
        expire            from this request on, every SAS seen so far is refused as expired

    A request is considered if its operation (see ``proxy.operation``) is in ``operations`` (empty: all that the
    kind can damage) and ``pattern`` is found in its raw target. It is hit with probability ``rate``, or if its
    number among those considered (from 1) is in ``at``; at most ``limit`` times. With ``pid``, only requests of that
    process of this machine are considered; with ``from_byte``, only those for a range that begins there or later.
    """

    kind: str
    rate: float = 0.0
    at: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    pattern: str = ""
    limit: int | None = None
    seconds: float = 1.0
    status: int = 503
    retry_after: int | None = 1
    pid: int | None = None
    from_byte: int = 0


def weather(*, resets: float = 0.02, busy: float = 0.03, cut: float = 0.03, flipped: float = 0.03) -> tuple[Fault, ...]:
    """Faults of several kinds at once; each figure is the share of requests that are hit."""
    return (
        Fault("reset_before", rate=resets / 4),
        Fault("reset_after", rate=resets / 4),
        Fault("reset_upload", rate=resets / 2, operations=_UP),
        Fault("reset_download", rate=resets / 2, operations=_DOWN),
        Fault("status", rate=busy, status=503, retry_after=1),
        Fault("truncate", rate=cut / 2, operations=_DOWN),
        Fault("truncate_lying", rate=cut / 2, operations=_DOWN),
        Fault("truncate_upload", rate=cut, operations=_UP),
        Fault("flip_down", rate=flipped, operations=_DOWN),
        Fault("flip_up", rate=flipped, operations=_UP),
    )


@dataclass(slots=True)
class _Gate:
    """What held requests wait for, and whether they are cut off then."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)
    drops: bool = False


@dataclass(slots=True)
class _Rule:
    fault: Fault
    chance: random.Random
    seen: int = 0
    hits: int = 0
    ports: dict[int, bool] = field(default_factory=dict)

    def is_from(self, pid: int, port: int) -> bool:
        """Whether the process has the connection's other end; ports are not reused soon."""
        if port not in self.ports:
            self.ports[port] = _has_port(pid, port)
        return self.ports[port]

    def hit(self, request: Request, name: str, port: int) -> bool:
        """Whether a request from this port of this machine is hit."""
        fault = self.fault
        if name not in (fault.operations or _DAMAGES.get(fault.kind) or (name,)):
            return False
        if not re.search(fault.pattern, request.target):
            return False
        if fault.pid is not None and not self.is_from(fault.pid, port):
            return False
        if _first_byte(request) < fault.from_byte:
            return False
        self.seen += 1
        drawn = self.chance.random() < fault.rate
        if not (drawn or self.seen in fault.at) or (fault.limit is not None and self.hits >= fault.limit):
            return False
        self.hits += 1
        return True


class FaultProxy(Proxy):
    """See the module's docstring; the command ``inject`` sets the rules."""

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self._rules: list[_Rule] = []
        self._chance = random.Random(0)
        self._signatures: set[str] = set()
        self._expired: set[str] = set()
        self._gate = _Gate()

    async def handle(self, link: Link, request: Request) -> bool:
        name = operation(request)
        # Every rule considers every request, so that the rules are independent.
        port = link.writer.get_extra_info("peername")[1]
        hits = [rule.fault for rule in self._rules if rule.hit(request, name, port)]
        signature = _signature(request)
        for fault in hits:
            if fault.kind == "expire":
                self._expired |= self._signatures
                hits = [each for each in hits if each is not fault]
        if signature in self._expired:
            self.injected("expire")
            return await self.reply(link, request, _expired_answer())
        if signature:
            self._signatures.add(signature)
        if not hits:
            return await self.forward(link, request)
        return await _ACTIONS[hits[0].kind](self, link, request, hits[0])

    async def _status(self, link: Link, request: Request, fault: Fault) -> bool:
        self.injected(f"status_{fault.status}")
        wait = [] if fault.retry_after is None else [("Retry-After", str(fault.retry_after))]
        code = _CODES.get(fault.status, "InternalError")
        return await self.reply(link, request, error_response(fault.status, code, "Injected.", wait))

    async def _skew(self, link: Link, request: Request, fault: Fault) -> bool:
        self.injected(fault.kind)
        date = formatdate(time.time() + fault.seconds, usegmt=True)
        message = "Server failed to authenticate the request. Request date header too old."
        return await self.reply(link, request, error_response(403, "AuthenticationFailed", message, [("Date", date)]))

    async def _reset_before(self, link: Link, request: Request, fault: Fault) -> bool:
        self.injected(fault.kind)
        return self._cut_off(link, request)

    async def _stall(self, link: Link, request: Request, fault: Fault) -> bool:
        self.injected(fault.kind)
        await pump(link.reader, None, request.framing())
        await asyncio.sleep(fault.seconds)
        return self._cut_off(link, request)

    async def _hold(self, link: Link, request: Request, fault: Fault) -> bool:
        gate = self._gate
        self.injected(fault.kind)
        await gate.opened.wait()
        return self._cut_off(link, request) if gate.drops else await self.forward(link, request)

    async def _reset_after(self, link: Link, request: Request, fault: Fault) -> bool:
        _, reader, response = await self.send(link, request)
        await pump(reader, None, response.framing(request.method))
        self.injected(fault.kind)
        return self._cut_off(link, request)

    async def _reset_upload(self, link: Link, request: Request, fault: Fault) -> bool:
        length = request.framing().length
        if not length:
            return await self.forward(link, request)
        _, writer = await link.upstream()
        writer.write(request.raw)
        await pump(link.reader, writer, Framing(length=length // 2))
        self.injected(fault.kind)
        return self._cut_off(link, request)

    async def _reset_download(self, link: Link, request: Request, fault: Fault) -> bool:
        if not await self._half_answer(link, request, fault):
            return True
        return self._cut_off(link, request)

    async def _truncate(self, link: Link, request: Request, fault: Fault) -> bool:
        # False closes the connection without a reset.
        return not await self._half_answer(link, request, fault)

    async def _half_answer(self, link: Link, request: Request, fault: Fault) -> bool:
        """Send the head and half of the body; False if there is no body to cut, so that all was sent."""
        sent, reader, response = await self.send(link, request)
        framing = response.framing(request.method)
        if response.status >= 400 or not (framing.length or framing.chunked):
            await self._answer(link, request, sent, reader, response)
            return False
        link.writer.write(response.raw)
        if framing.chunked:
            body = await read_body(reader, framing)
            received = len(body) // 2
            link.writer.write(b"%x\r\n" % received + body[:received] + b"\r\n")
        else:
            received = await pump(reader, link.writer, Framing(length=(framing.length or 0) // 2))
        await link.writer.drain()
        link.drop_upstream()
        self.injected(fault.kind)
        self.count(request, response.status, sent, received)
        return True

    async def _truncate_lying(self, link: Link, request: Request, fault: Fault) -> bool:
        sent, reader, response = await self.send(link, request)
        length = response.framing(request.method).length
        if not length or response.status >= 400:
            return await self._answer(link, request, sent, reader, response)
        headers = [*response.without(lambda name: name == "content-length"), ("Content-Length", str(length // 2))]
        link.writer.write(encode_response(response.status, response.first[2], headers))
        received = await pump(reader, link.writer, Framing(length=length // 2))
        link.drop_upstream()
        self.injected(fault.kind)
        self.count(request, response.status, sent, received)
        return True

    async def _truncate_upload(self, link: Link, request: Request, fault: Fault) -> bool:
        length = request.framing().length
        if not length:
            return await self.forward(link, request)
        headers = [*request.without(lambda name: name == "content-length"), ("Content-Length", str(length // 2))]
        reader, writer = await link.upstream(fresh=True)
        writer.write(encode_request(request.method, request.target, headers))
        sent = await pump(link.reader, writer, Framing(length=length // 2))
        await pump(link.reader, None, Framing(length=length - length // 2))
        self.injected(fault.kind)
        response = await read_response(reader)
        return await self._answer(link, request, sent, reader, response)

    async def _flip_up(self, link: Link, request: Request, fault: Fault) -> bool:
        length = request.framing().length
        if not length:
            return await self.forward(link, request)
        reader, writer = await link.upstream(fresh=True)
        writer.write(request.raw)
        sent = await pump(link.reader, writer, Framing(length=length), self._flip(length))
        self.injected(fault.kind)
        response = await read_response(reader)
        return await self._answer(link, request, sent, reader, response)

    async def _flip_down(self, link: Link, request: Request, fault: Fault) -> bool:
        sent, reader, response = await self.send(link, request)
        length = response.framing(request.method).length
        if not length or response.status >= 400:
            return await self._answer(link, request, sent, reader, response)
        self.injected(fault.kind)
        return await self._answer(link, request, sent, reader, response, self._flip(length))

    async def _drip(self, link: Link, request: Request, fault: Fault) -> bool:
        sent, reader, response = await self.send(link, request)
        framing = response.framing(request.method)
        link.writer.write(response.raw)
        self.injected(fault.kind)
        received = 0
        async for before, payload in pieces(reader, framing):
            link.writer.write(before)
            step = max(1, (framing.length or len(payload)) // _DRIP_STEPS)
            for start in range(0, len(payload), step):
                link.writer.write(payload[start : start + step])
                await link.writer.drain()
                await asyncio.sleep(fault.seconds / _DRIP_STEPS)
            received += len(payload)
        self.count(request, response.status, sent, received)
        return not response.last_on_connection()

    async def _answer(
        self,
        link: Link,
        request: Request,
        sent: int,
        reader: asyncio.StreamReader,
        response: Response,
        change: Callable[[bytes], bytes] | None = None,
    ) -> bool:
        link.writer.write(response.raw)
        received = await pump(reader, link.writer, response.framing(request.method), change)
        await link.writer.drain()
        self.count(request, response.status, sent, received)
        return not (request.last_on_connection() or response.last_on_connection())

    def _cut_off(self, link: Link, request: Request) -> bool:
        self.count(request, 0, 0, 0)
        link.reset()
        return False

    def _flip(self, length: int) -> Callable[[bytes], bytes]:
        """Changes one bit of a body of ``length`` bytes that comes in pieces."""
        left = self._chance.randrange(length)
        bit = 1 << self._chance.randrange(8)

        def change(piece: bytes) -> bytes:
            nonlocal left
            place, left = left, left - len(piece)
            if not 0 <= place < len(piece):
                return piece
            return piece[:place] + bytes([piece[place] ^ bit]) + piece[place + 1 :]

        return change

    def command(self, name: str, values: Mapping[str, Any]) -> Any:
        if name == "inject":
            faults = [Fault(**{**each, **_tuples(each)}) for each in values["faults"]]
            unknown = [each.kind for each in faults if each.kind not in (*_ACTIONS, "expire")]
            if unknown:
                raise ValueError(f"no such fault: {unknown}")
            seed = values["seed"]
            self._chance = random.Random(f"{seed}")
            self._rules = [_Rule(each, random.Random(f"{seed}/{place}")) for place, each in enumerate(faults)]
            self._expired.clear()
            return None
        if name in ("release", "drop"):
            gate, self._gate = self._gate, _Gate()
            gate.drops = name == "drop"
            gate.opened.set()
            return None
        return super().command(name, values)


_DAMAGES: Mapping[str, tuple[str, ...]] = {
    "reset_upload": _UP,
    "truncate_upload": _UP,
    "flip_up": _UP,
    "reset_download": _DOWN,
    "truncate_lying": _DOWN,
    "flip_down": _DOWN,
    "drip": _DOWN,
}

_ACTIONS: Mapping[str, Callable[[FaultProxy, Link, Request, Fault], Awaitable[bool]]] = {
    "skew": FaultProxy._skew,
    "reset_before": FaultProxy._reset_before,
    "reset_after": FaultProxy._reset_after,
    "reset_upload": FaultProxy._reset_upload,
    "reset_download": FaultProxy._reset_download,
    "stall": FaultProxy._stall,
    "hold": FaultProxy._hold,
    "drip": FaultProxy._drip,
    "status": FaultProxy._status,
    "truncate": FaultProxy._truncate,
    "truncate_lying": FaultProxy._truncate_lying,
    "truncate_upload": FaultProxy._truncate_upload,
    "flip_down": FaultProxy._flip_down,
    "flip_up": FaultProxy._flip_up,
}


def _has_port(pid: int, port: int) -> bool:
    """Whether a process has the connection whose own end is this port: https://docs.kernel.org/networking/proc_net_tcp.html
    gives the inode of its socket, and proc(5) the sockets of a process."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}")}
    found = set()
    # It may end or close a file meanwhile.
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return not wanted.isdisjoint(found)


def _first_byte(request: Request) -> int:
    found = re.match(r"bytes=(\d+)-", request.get("x-ms-range") or request.get("range") or "")
    return int(found[1]) if found else 0


def _signature(request: Request) -> str | None:
    return parse_qs(urlsplit(request.target).query).get("sig", [None])[0]


def _expired_answer() -> bytes:
    return error_response(
        403,
        "AuthenticationFailed",
        "Server failed to authenticate the request. Make sure the value of Authorization header is formed correctly "
        "including the signature.",
        detail="Signature not valid in the specified time frame: Start [Thu, 01 Jan 2026 00:00:00 GMT] - "
        "Expiry [Thu, 01 Jan 2026 01:00:00 GMT] - Current [Thu, 01 Jan 2026 01:00:01 GMT]",
    )


def _tuples(fault: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {key: tuple(fault[key]) for key in ("at", "operations") if key in fault}


class FaultHandle(child.ServerProcess):
    """The parent's handle of the proxy; ``url`` replaces the upstream's."""

    def stats(self) -> Stats:
        return Stats(**self.ask("stats"))

    def journal(self) -> list[Entry]:
        return [Entry(**each) for each in self.ask("journal")]

    def reset(self) -> None:
        """Reset the figures and the journal."""
        self.ask("reset")

    def inject(self, *faults: Fault, seed: int = 0) -> None:
        """Inject these faults and no others from now on. Prints the seed."""
        if faults:
            print(f"fault_proxy: seed {seed}, {len(faults)} kinds of fault", file=sys.stderr)
        self.ask("inject", faults=[asdict(each) for each in faults], seed=seed)

    def is_holding(self) -> bool:
        """Whether a request has been held since the last ``reset``."""
        return "hold" in self.stats().injected

    def release(self) -> None:
        """Pass on the requests that are held."""
        self.ask("release")

    def drop(self) -> None:
        """Cut off the requests that are held: whoever sent them is gone, and they are never to arrive."""
        self.ask("drop")


@contextmanager
def fault_proxy(upstream: str, *faults: Fault, seed: int = 0) -> Iterator[FaultHandle]:
    """Run the proxy for ``upstream`` (``http://host:port``) in a child process."""
    with FaultHandle("fault_proxy", ["--upstream", upstream]) as handle:
        handle.inject(*faults, seed=seed)
        yield handle


def main() -> None:
    options = child.parser("Damages what passes to and from a blob service.")
    options.add_argument("--faults", default="", help='JSON, e.g. [{"kind": "status", "rate": 0.03}]; default: weather')
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    chosen = options.parse_args()
    proxy = FaultProxy(chosen.upstream)
    faults = json.loads(chosen.faults) if chosen.faults else [asdict(each) for each in weather()]
    print(f"fault_proxy: seed {chosen.seed}", file=sys.stderr)
    proxy.command("inject", {"faults": faults, "seed": chosen.seed})
    child.run(proxy, chosen)


if __name__ == "__main__":
    main()
