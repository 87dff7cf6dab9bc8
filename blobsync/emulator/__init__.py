"""An embedded storage service for trying things out and for tests: Azurite, installed and run on loopback."""

from __future__ import annotations

from blobsync.emulator.account import new_key
from blobsync.emulator.containers import make_container
from blobsync.emulator.server import Emulator, EmulatorState

__all__ = ["Emulator", "EmulatorState", "make_container", "new_key"]
