"""URLs of containers and blobs, SAS tokens and secrets.

Nothing here reads a file or the network. Secrets are registered with ``redaction`` as soon as they are loaded. URLs
never contain a SAS: the token is passed separately and revealed in one place only, where a request or an azcopy command
line is built.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from urllib.parse import parse_qsl, quote

from blobsync.base import redaction

# "Naming and Referencing Containers, Blobs, and Metadata", in the service's documentation.
MAX_NAME_CHARS = 1024

# RFC 3986's unreserved characters, and the separator of virtual folders.
_SAFE_IN_BLOB_NAME = "/-._~"


# Real tokens have a few hundred characters; no service accepts a longer URL.
_LONGEST_SAS = 8192


def reaches_another(name: str) -> str | None:
    """Return why a request for the blob ``name`` would reach another blob; None if it would not.

    Azure's service and Azurite store ``a\\b`` as ``a/b``, however the backslash is written in the URL.
    """
    return "contains a backslash, which the service takes for '/'" if "\\" in name else None


def quote_blob_name(name: str) -> str:
    """Percent-encode the UTF-8 bytes of ``name`` for the path of a URL."""
    return quote(name, safe=_SAFE_IN_BLOB_NAME)


@dataclass(frozen=True, slots=True, order=True)
class ContainerUrl:
    """A container of a storage account.

    ``endpoint`` is the blob endpoint without a trailing slash: ``https://<account>.blob.core.windows.net``
    or, for emulators and other path-style servers, ``http://127.0.0.1:10000/<account>``.
    """

    account: str
    container: str
    endpoint: str

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.container}"

    def blob(self, name: str) -> BlobUrl:
        """The blob or folder ``name`` in this container."""
        return BlobUrl(self, name)

    def same_service(self, other: ContainerUrl) -> bool:
        """Whether both are in one storage account, so that a copy stays inside the service."""
        return (self.endpoint.lower(), self.account) == (other.endpoint.lower(), other.account)


@dataclass(frozen=True, slots=True, order=True)
class BlobUrl:
    """A blob, or a virtual folder when ``name`` is used as a prefix; never carries a SAS."""

    container: ContainerUrl
    name: str

    def __str__(self) -> str:
        return f"{self.container}/{quote_blob_name(self.name)}" if self.name else str(self.container)

    def child(self, relative: str) -> BlobUrl:
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        if not relative:
            return self
        return BlobUrl(self.container, f"{self.name}/{relative}" if self.name else relative)


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
