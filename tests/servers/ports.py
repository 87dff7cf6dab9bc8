"""Free ports of this machine."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """``count`` different free ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
