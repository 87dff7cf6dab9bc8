"""An embedded blob server for trying things out and for tests: Azurite, installed and run on loopback.

Decides where it is installed (with the Node.js that runs it), which port and key it has, and whether a running server
is ours. In: the user's data folder. Out: an endpoint with accounts. Calls ``base`` and ``config``.
"""

from __future__ import annotations

from blobsync.emulator.server import Emulator, EmulatorState, make_container, new_key

__all__ = ["Emulator", "EmulatorState", "make_container", "new_key"]
