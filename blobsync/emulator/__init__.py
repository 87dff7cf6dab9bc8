"""An embedded storage service for trying things out and for tests: Azurite, installed and run on loopback."""

from __future__ import annotations

from blobsync.emulator.server import WELL_KNOWN_ACCOUNT, WELL_KNOWN_KEY, Emulator, EmulatorState, new_key

__all__ = ["WELL_KNOWN_ACCOUNT", "WELL_KNOWN_KEY", "Emulator", "EmulatorState", "new_key"]
