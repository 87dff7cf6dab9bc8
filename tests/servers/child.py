"""Runs a server in a child process, and sends it commands.

The child prints one JSON line with its port, then answers each JSON line of standard input. It ends with its standard
input, also when the parent is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tests.servers.forked import start_module
from tests.servers.wire import MAX_HEAD_BYTES

_ROOT = Path(__file__).resolve().parents[2]


class Served(Protocol):
    """The server in the child: handles connections, and commands of the parent."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...

    def command(self, name: str, values: dict[str, Any]) -> Any: ...


_Server = TypeVar("_Server", bound="ServerProcess")


class ServerProcess:
    """A started server; a context manager that stops it."""

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        # In a session of its own: Ctrl-C in the terminal must reach only the test run, which then stops its servers.
        self._process = start_module(
            f"tests.servers.{module}", arguments, folder=_ROOT, environ=os.environ, stdin=subprocess.PIPE, stderr=2
        )
        self.pid = self._process.pid
        self._lock = threading.Lock()
        started = self._read()
        self.port = int(started["port"])
        self.url = f"http://{started['host']}:{self.port}"

    def ask(self, command: str, **values: Any) -> Any:
        """Send a command; returns the answer. Thread-safe."""
        assert self._process.stdin
        with self._lock:
            self._process.stdin.write(json.dumps({"command": command, **values}) + "\n")
            self._process.stdin.flush()
            answer = self._read()
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["answer"]

    def go_away(self) -> None:
        """Begin an outage: reset all connections and refuse new ones."""
        self.ask("go away")

    def come_back(self) -> None:
        """End the outage: accept connections at the same port."""
        self.ask("come back")

    def close(self) -> None:
        """End the server; safe to repeat."""
        process = self._process
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
            try:
                process.wait(2.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout:
            process.stdout.close()

    def __enter__(self: _Server) -> _Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def parser(about: str) -> ArgumentParser:
    """The options of every server."""
    options = ArgumentParser(description=about)
    options.add_argument("--upstream", required=True, help="http://host:port of the blob service")
    options.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    options.add_argument("--port", type=int, default=0, help="0 takes a free one, which is printed")
    options.add_argument("--stay", action="store_true", help="go on after the end of standard input")
    return options


def run(served: Served, options: Namespace) -> None:
    """Serve until the parent has ended."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_run(served, options.host, options.port, stay=options.stay or sys.stdin.isatty()))


async def _run(served: Served, host: str, port: int, *, stay: bool) -> None:
    tasks: set[asyncio.Task[None]] = set()

    async def listen(port: int) -> asyncio.Server:
        return await asyncio.start_server(
            _tracked(served.serve, tasks), host, port, limit=MAX_HEAD_BYTES * 8, backlog=1024
        )

    server = await listen(port)
    host, port = server.sockets[0].getsockname()
    away: socket.socket | None = None
    _print({"host": host, "port": port})
    if stay:
        await server.serve_forever()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        values = json.loads(line)
        command = values.pop("command")
        if command in ("go away", "come back"):
            if command == "come back":
                if away is not None:
                    away.close()
                server = await listen(port)
            else:
                server.close()
                away = _kept(host, port)
                for task in tuple(tasks):
                    task.cancel()
            _print({"answer": None})
            continue
        try:
            _print({"answer": served.command(command, values)})
        except (ValueError, TypeError, KeyError) as error:
            _print({"error": f"{type(error).__name__}: {error}"})
    server.close()
    for task in tasks:
        task.cancel()


def _kept(host: str, port: int) -> socket.socket:
    """A socket that has the port and refuses connections: nobody else gets it meanwhile, nor a client that tries it
    again and again as the port of its own end."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind((host, port))
    return kept


def _tracked(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], tasks: set[asyncio.Task[None]]
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    """Start a task for each connection, to be cancelled at the end."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(connection(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return accept


def _print(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
