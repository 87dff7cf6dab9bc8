"""Free ports of this machine."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from pathlib import Path

_FIRST = 15_000
# https://docs.kernel.org/networking/ip-sysctl.html
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """``count`` different free ports; none that the system gives to a connection before the test listens there."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_never_given(), 1000):
        with suppress(OSError), socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("this machine has no free ports")


def _never_given() -> range:
    """Ports that the system gives to nobody who asks for any."""
    first = int(_GIVEN.read_text().split()[0]) if _GIVEN.exists() else 32_768
    return range(_FIRST, first) if first >= _FIRST + 2000 else range(_FIRST, 65_536)
