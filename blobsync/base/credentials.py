"""SAS tokens, account keys and passwords.

Secrets are registered with ``redaction`` as soon as they are loaded. A SAS is kept apart from its URL, and revealed
in one place only, where a request or an azcopy command line is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import parse_qsl

from blobsync.base import redaction

# Real tokens have a few hundred characters; no service accepts a longer URL.
_LONGEST_SAS = 8192


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature; only :meth:`reveal` shows it.

    Field meanings: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
    .../create-account-sas (``se`` expiry, ``st`` start, ``sp`` permissions, ``sr`` resource of a service
    SAS, ``srt`` resource types of an account SAS).
    """

    _query: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> SasToken:
        """Parse a token as users paste it, with or without the leading ``?``.

        Raises ``ValueError`` (without quoting the text) if it has no signature, or cannot be part of a URL.
        """
        query = text.strip().lstrip("?&")
        if not query.isascii() or len(query) > _LONGEST_SAS:
            raise ValueError("not a SAS token: too long, or with characters that a URL cannot contain")
        if " " in query or not query.isprintable():
            # The rest of the request's first line would be lost, or read as another header.
            raise ValueError("not a SAS token: it has a blank or a control character in it")
        if "sig" not in dict(parse_qsl(query)):
            raise ValueError("not a SAS token: no sig= parameter")
        return cls(query)

    def __post_init__(self) -> None:
        redaction.register_query(self._query)

    def reveal(self) -> str:
        """The query string itself, without ``?``. Pass it only to a request or to a child process's arguments."""
        return self._query

    def field(self, name: str) -> str | None:
        """The value of one query parameter; must not be called for the signature."""
        if name == "sig":
            raise ValueError("the signature of a SAS token cannot be read")
        return dict(parse_qsl(self._query)).get(name)

    @property
    def permissions(self) -> str:
        """The letters of ``sp``; empty when a stored access policy holds them."""
        return self.field("sp") or ""

    @property
    def expires_at(self) -> datetime | None:
        """``se`` in UTC, or None when a stored access policy holds it."""
        return _utc(self.field("se"))

    @property
    def starts_at(self) -> datetime | None:
        """``st`` in UTC, or None."""
        return _utc(self.field("st"))

    def __repr__(self) -> str:
        return f"SasToken(sp={self.permissions!r}, se={self.field('se')!r}, sig={redaction.HIDDEN})"

    def __str__(self) -> str:
        return repr(self)


def _utc(text: str | None) -> datetime | None:
    """Parse ISO 8601 as Azure writes it: ``2026-11-20``, ``2026-11-20T10:00Z`` or with seconds and fractions."""
    if not text:
        return None
    # Azure writes seven digits of fractions; Python 3.10 reads three or six.
    text = re.sub(r"\.(\d+)", lambda digits: f".{digits[1][:6]:0<6}", text.strip())
    try:
        moment = datetime.fromisoformat(text.upper().replace("Z", "+00:00"))
        # In the first and the last year, some times cannot be converted to UTC.
        return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class Secret:
    """A string that ``repr`` and ``str`` never show: an account key or a password."""

    _text: str = field(repr=False)

    def __post_init__(self) -> None:
        redaction.register_secret(self._text)

    def reveal(self) -> str:
        """The string itself; for signing only."""
        return self._text

    def __repr__(self) -> str:
        return f"Secret({redaction.HIDDEN})"

    def __str__(self) -> str:
        return redaction.HIDDEN
