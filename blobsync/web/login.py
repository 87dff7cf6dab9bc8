"""Logins: one-time tokens, the cookies that they are exchanged for, and the file that holds the next token."""

from __future__ import annotations

import hmac
import html
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from blobsync.base.errors import LocalFileError
from blobsync.base.user_folders import replace_file

_BYTES = 32


def _fresh() -> str:
    return secrets.token_urlsafe(_BYTES)


@dataclass(frozen=True, slots=True)
class Visit:
    """One browser that has logged in. ``cookie`` identifies it, ``form_token`` proves that a form is from our page."""

    cookie: str = field(default_factory=_fresh, repr=False)
    form_token: str = field(default_factory=_fresh, repr=False)

    def wrote(self, form_token: str) -> bool:
        """Whether this is the form token of this login."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode())


class Logins:
    """The browsers that have logged in to this server, and the one-time token for the next one.

    ``file`` is what a browser opens to log in: readable by its owner only, it leads to the page with the present token.
    The token is behind the ``#``: it is in no command line, and browsers do not send it to a server.
    """

    def __init__(self, file: Path, address: str) -> None:
        """``address`` is ``http://127.0.0.1:PORT``. Raises ``LocalFileError`` if the file cannot be written."""
        self.file = file
        self._address = address
        self._visits: dict[str, Visit] = {}
        self.token = ""
        self._renew()

    @property
    def link(self) -> str:
        """The address that logs the next browser in."""
        return f"{self._address}/login#{self.token}"

    def exchange(self, token: str) -> Visit | None:
        """Exchange the present token for a login, which invalidates the token; None for any other text."""
        if not hmac.compare_digest(self.token.encode(), token.encode()):
            return None
        self._renew()
        visit = Visit()
        self._visits[visit.cookie] = visit
        return visit

    def find(self, cookie: str) -> Visit | None:
        """The login that has this cookie."""
        return self._visits.get(cookie)

    def forget(self, visit: Visit) -> None:
        """Log out."""
        self._visits.pop(visit.cookie, None)

    def close(self) -> None:
        """End all logins."""
        self._visits.clear()
        with suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _renew(self) -> None:
        self.token = _fresh()
        link = html.escape(self.link)
        text = (
            '<!doctype html>\n<meta charset="utf-8">\n<meta name="referrer" content="no-referrer">\n'
            f'<meta http-equiv="refresh" content="0; url={link}">\n<title>blobsync</title>\n'
            f'<p><a href="{link}">Open blobsync</a></p>\n'
        )
        try:
            replace_file(self.file, text.encode())
        except OSError as error:
            raise LocalFileError(f"{self.file}: {error.strerror}", path=str(self.file)) from error
