"""The emulator's own storage account: a secret key, and the port that projects name.

The key of Azurite's well-known account is public: anyone who can reach the loopback interface could read its data.
"""

from __future__ import annotations

import json
import secrets
import socket
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.errors import EmulatorError
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.redaction import Secret
from blobsync.base.user_folders import replace_file

DEFAULT_PORT = 10000
_LAST_PORT = 65535
_FILE = "account.json"


@dataclass(frozen=True, slots=True)
class KeptAccount:
    """The key and port, which stay the same from one start to the next."""

    key: Secret
    port: int = DEFAULT_PORT


def new_key() -> Secret:
    """A random account key."""
    return Secret(b64encode(secrets.token_bytes(64)).decode())


def kept_account(folder: Path) -> KeptAccount:
    """The account stored in ``folder``, created at first use. Raises ``EmulatorError``."""
    file = folder / _FILE
    try:
        if not file.exists():
            _keep(folder, KeptAccount(new_key(), _first_port()), if_missing=True)
        kept = made_of(KeptAccount, parse_object(file.read_text(encoding="utf-8")))
        if not 0 < kept.port <= _LAST_PORT:
            raise ValueError("not what was kept")
        return kept
    except OSError as error:
        raise EmulatorError(f"{file} cannot be used: {error.strerror}", hint="set XDG_DATA_HOME") from error
    except ValueError as error:
        raise EmulatorError(f"{file} is damaged", hint=f"rm {file}, then create the account files again") from error


def _first_port() -> int:
    """The default port, or a free one if another program, such as another user's emulator, has it."""
    for port in (DEFAULT_PORT, 0):
        with socket.socket() as tried, suppress(OSError):
            # A socket that only waits for its last packets (TIME_WAIT) does not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            found: int = tried.getsockname()[1]
            return found
    return DEFAULT_PORT


def keep_port(folder: Path, port: int) -> None:
    """Store ``port``: the emulator starts there from now on."""
    known = kept_account(folder)
    if known.port != port:
        _keep(folder, KeptAccount(known.key, port))


def _keep(folder: Path, account: KeptAccount, *, if_missing: bool = False) -> None:
    content = json.dumps({"key": account.key.reveal(), "port": account.port}).encode()
    replace_file(folder / _FILE, content, if_missing=if_missing)
