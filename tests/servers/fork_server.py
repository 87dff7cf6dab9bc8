"""Starts blobsync by forks of a process that has imported it: a real process each time, for a fraction of the cost.

``tests/servers/forked.py`` starts it, and speaks with it on the socket whose descriptor is the argument. It has no
threads. A child gets its environment, folder, arguments and descriptors before blobsync's first instruction.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import runpy
import socket
import struct
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

LENGTH = struct.Struct("!I")
# What starts a thread when it is imported, and what is sent to nodes as text.
_LEFT_OUT = ("blobsync.project.transfer", "blobsync.node.standalone")
# What commands import late, and what the proxies of ``tests/servers`` need.
_MORE = (
    *("azure.core.pipeline.policies", "azure.identity", "boto3", "botocore.config", "botocore.session"),
    *("anycrc", "tests.servers.child", "tests.servers.proxy"),
)


def send(channel: socket.socket, message: object, descriptors: list[int] | None = None) -> None:
    body = json.dumps(message).encode()
    # On the first byte of a message, since the other end takes them with its length.
    socket.send_fds(channel, [LENGTH.pack(len(body))], descriptors or [])
    channel.sendall(body)


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """The next message and its descriptors; ``None`` at the end."""
    lead, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 3)
    if not lead:
        return None, []
    with channel.makefile("rb") as stream:
        lead += stream.read(LENGTH.size - len(lead))
        return json.loads(stream.read(LENGTH.unpack(lead)[0])), descriptors


def _load() -> None:
    import blobsync

    for module in pkgutil.walk_packages(blobsync.__path__, "blobsync."):
        if not module.name.startswith(_LEFT_OUT) and not module.name.endswith(".__main__"):
            importlib.import_module(module.name)
    for name in _MORE:
        importlib.import_module(name)
    others = threading.enumerate()[1:]
    if others:
        raise SystemExit(f"what is imported started {others}; a fork would not have them")
    gc.collect()
    gc.freeze()


def _next_start(channel: socket.socket) -> Any:
    """Serve, and return in each child with its order; ``None`` in the server, at its end."""
    while True:
        order, descriptors = receive(channel)
        if order is None:
            return None
        if "ended" in order:
            # The caller has seen that it ended; until then its number is kept, as a parent keeps it.
            send(channel, os.waitstatus_to_exitcode(os.waitpid(order["ended"], 0)[1]))
            continue
        pid = os.fork()
        if not pid:
            try:
                _become(order, descriptors)
            finally:
                # Not before it is what was asked for, as after an exec.
                send(channel, os.getpid())
                channel.close()
            return order
        for each in descriptors:
            os.close(each)


def _become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Be the process that was asked for: what a fresh start gets from its parent."""
    os.setsid()
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    sys.argv = list(order["argv"])
    sys.path[0] = order["folder"] if order["module"] else os.path.dirname(sys.argv[0])
    # What ps and the tests call it.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(os.path.basename(sys.argv[0]))


def main() -> None:
    # A child has another.
    sys.path[0] = str(Path(__file__).parents[2])
    _load()
    order = _next_start(socket.socket(fileno=int(sys.argv[1])))
    if order is None:
        return
    try:
        if order["module"]:
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
        else:
            from blobsync.__main__ import main as blobsync

            sys.exit(blobsync())
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _leave(end.code or 0)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End as Python does, but for taking all modules apart, which takes longer than most commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120
    os._exit(code)


if __name__ == "__main__":
    main()
