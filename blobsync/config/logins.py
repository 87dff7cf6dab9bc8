"""The user's own SAS tokens and account keys: ``$XDG_CONFIG_HOME/blobsync/logins.json``.

They keep secrets out of account files, which can then be in git: each user stores a login with ``blobsync login``. A
login belongs to one container at one endpoint, whichever project's account file names it.
"""

from __future__ import annotations

import base64
import binascii
import json
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.locations import BlobContainer
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken, Secret
from blobsync.base.trusted_hosts import host_of
from blobsync.base.user_folders import config_home, locked_own, naming_damage, read_own, write_own

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_TEXTS = {"sas": "sas_token", "key": "account_key"}


class StoredLogin(NamedTuple):
    """A SAS (``kind`` is ``sas``) or an account key (``key``)."""

    kind: str
    secret: SasToken | Secret


def logins_file(environ: Mapping[str, str]) -> Path:
    """The file of the logins, readable for its owner alone."""
    return config_home(environ) / "logins.json"


def parse_login(text: str, container: BlobContainer) -> StoredLogin:
    """Parse what a user pasted: a SAS, a SAS URL, or an account key. ``UsageError`` does not quote anything else."""
    text = text.strip()
    if "://" in text:
        _demand_same_place(text, container)
        text = text.partition("?")[2]
    if "sig=" in text:
        try:
            return StoredLogin("sas", SasToken.parse(text))
        except ValueError as error:
            raise UsageError(f"the given text is {error}") from None
    try:
        usable = len(base64.b64decode(text, validate=True)) >= 1
    except (binascii.Error, ValueError):
        usable = False
    if not usable:
        raise UsageError(
            "the given text is neither a SAS (it contains sig=) nor an account key (base64 text)",
            hint="copy the whole text from the portal: Shared access tokens of the container, or Access keys",
        )
    return StoredLogin("key", Secret(text))


def _demand_same_place(url: str, container: BlobContainer) -> None:
    """Check the container in a SAS URL: a SAS for another account would only fail later, without the reason."""
    address = url.partition("?")[0]
    try:
        path = urlsplit(address).path.rstrip("/")
    except ValueError:
        path = ""
    own = urlsplit(str(container)).path
    if host_of(address) != host_of(container.endpoint) or (path and path != own and not own.startswith(f"{path}/")):
        raise UsageError(f"the URL that was given is not one of {container}", hint="take the SAS of that container")


def load_login(container: BlobContainer, environ: Mapping[str, str]) -> StoredLogin | None:
    """The login that the user stored for the container. Raises ``ConfigError``."""
    found = _read_logins(environ).get(_place(container), {})
    for kind, name in _TEXTS.items():
        if name in found:
            with _naming_damage(logins_file(environ)):
                return StoredLogin(kind, SasToken.parse(found[name]) if kind == "sas" else Secret(found[name]))
    return None


def stored_logins(environ: Mapping[str, str]) -> dict[str, str]:
    """The URL of each container with a stored login, and the login's kind. Raises ``ConfigError``."""
    return {
        place: next((kind for kind, name in _TEXTS.items() if name in values), "")
        for place, values in sorted(_read_logins(environ).items())
    }


def save_login(container: BlobContainer, login: StoredLogin, environ: Mapping[str, str]) -> None:
    """Store ``login`` for the container; replaces an earlier one. Raises ``ConfigError``."""
    with locked_own(logins_file(environ)):
        known = _read_logins(environ)
        _write_logins(known | {_place(container): {_TEXTS[login.kind]: login.secret.reveal()}}, environ)


def forget_login(container: BlobContainer, environ: Mapping[str, str]) -> bool:
    """Remove the login for the container; False if there was none. Raises ``ConfigError``."""
    with locked_own(logins_file(environ)):
        known = _read_logins(environ)
        if known.pop(_place(container), None) is None:
            return False
        _write_logins(known, environ)
    return True


def _place(container: BlobContainer) -> str:
    return f"{container.endpoint.lower()}/{container.name}"


def _write_logins(logins: Mapping[str, Mapping[str, str]], environ: Mapping[str, str]) -> None:
    write_own(logins_file(environ), json.dumps({"blobsync_logins": 1, "logins": logins}, indent=1))


def _read_logins(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    file = logins_file(environ)
    text = read_own(file)
    if text is None:
        return {}
    mode = stat.S_IMODE(file.stat().st_mode)
    if mode & _OTHERS:
        raise ConfigError(
            f"is readable by other users (mode {mode:o}), so blobsync does not use it",
            file=str(file),
            hint=f"chmod 600 '{file}'; who could read it may have your keys",
        )
    with _naming_damage(file):
        found = json.loads(text)["logins"]
        return {
            str(place): {name: str(values[name]) for name in _TEXTS.values() if name in values}
            for place, values in found.items()
        }


def _naming_damage(file: Path) -> AbstractContextManager[None]:
    return naming_damage(file, f"remove {file}, then log in again: blobsync login")
