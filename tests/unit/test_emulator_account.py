"""The key and port that the emulator keeps."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from blobsync.emulator.server import DEFAULT_PORT, kept_account


def test_a_port_that_somebody_else_has_is_not_the_projects(tmp_path: Path) -> None:
    with socket.socket() as taken:
        # Another program of this machine may have it already.
        with suppress(OSError):
            taken.bind(("127.0.0.1", DEFAULT_PORT))
            taken.listen()
        made = kept_account(tmp_path)
    assert made.port != DEFAULT_PORT and made.port > 0
    assert kept_account(tmp_path) == made
