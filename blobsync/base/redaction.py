"""SAS tokens, account keys and passwords, and how they stay out of everything that is written: output, logs,
tracebacks, receipts.

Two searches. The first is exact: every key, token and signature of this process is registered when it is loaded or
created (``Secret`` and ``SasToken`` do so themselves), and its value is found wherever it appears, verbatim or as
encoded in URLs, JSON, HTML and base64. The second matches patterns, for secrets that only a server or another program
sent. Both search the text as it came, and what they find is hidden together: if one secret were replaced before the
next is searched for, the rest of another that overlaps it would stay. All matching takes time linear in the length of
the text.

A SAS is kept apart from its URL, and revealed in one place only, where a request or an azcopy command line is built.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import cache, lru_cache
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, unquote

from blobsync.base.lazy_regexes import pattern

HIDDEN = "***"

# Values of variables with such names are never recorded.
_SECRET_NAME = pattern(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING|SAS", re.IGNORECASE)

# Shorter strings are ordinary words; strings below the second number match as a whole word only.
_SHORTEST = 5
_SHORTEST_ANYWHERE = 8
# Longer secrets are matched in parts: one expression for all of it takes a hundred times its size.
_LONGEST = 1024

# How URLs, JSON and HTML encode one character. Go's JSON escapes <, > and & as well.
_NAMES_OF_HTML = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos", "+": "plus", "/": "sol", "=": "equals"}

# The part of a presigned URL of S3 that belongs to a session.
_OF_SESSION = "X-Amz-Security-Token="

# Plain text of a secret -> substrings, one of which occurs in every encoding of it.
_held: dict[str, tuple[str, ...]] = {}

# Text in a URL in a URL, or JSON in JSON, is escaped more than once.
_EQUALS = r"(?:=|%(?:25){0,3}3D|\\{1,4}(?:u00|x)3d|&\#(?:61|x3d);|&equals;)"
_SIGN = r"(?:[A-Za-z0-9+/%=_~.-]|\\{1,4}(?:/|(?:u00|x)(?:2b|2f|3d))|&\#(?:43|47|61|x2b|x2f|x3d);)"
_QUOTE = r"(?:[\"']|&quot;|\\{1,4}\")?"
_ALWAYS = rf"""
    (?P<key>(?:account|storage|shared|access)_?-?key{_EQUALS}){_SIGN}{{6,}}
  | (?P<setting>(?:account|storage|shared|access)_?-?key{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}){_SIGN}{{12,}}
  | (?P<whole>(?<![A-Za-z])sig(?:nature)?{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE})[A-Za-z0-9+/]{{43}}=
  | (?P<bearer>\bBearer(?:\s|%20|\+)){_SIGN}{{16,}}
  | (?P<shared>\bSharedKey(?:Lite)?\s[^:\s]{{1,80}}:){_SIGN}{{8,}}
  | (?<![A-Za-z0-9+/])[A-Za-z0-9+/]{{86}}(?:==|%3D%3D)
  | (?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{{10,}}\.eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]+
"""
_BY_FORM = rf"(?P<sig>(?<![A-Za-z])sig(?:nature)?{_EQUALS}){_SIGN}{{32,}} | {_ALWAYS}"
# In messages a short value is hidden as well: they are for people and lose nothing by it.
_IN_SENTENCES = rf"""
    (?P<sig>(?<![A-Za-z])sig(?:nature)?{_EQUALS}){_SIGN}+
      | (?P<colon>(?<![A-Za-z])sig(?:nature)?{_QUOTE}\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}){_SIGN}{{16,}} | {_ALWAYS}
"""
_BUNDLE = 64
_ROUGHLY = ("sig", "key", "bearer", "eyj", "==", "%3d%3d")


def is_secret_name(name: str) -> bool:
    """Whether a value of this name is treated as a secret."""
    return _SECRET_NAME.search(name) is not None


def register_secret(secret: str) -> None:
    """Replace ``secret`` wherever it appears from now on; of a SAS only its signature is a secret."""
    if "sig=" in secret and "&" in secret:
        register_query(secret.lstrip("?&"))
    elif len(secret) > _LONGEST:
        for start in range(0, len(secret), _LONGEST):
            # The last part is as long as the others.
            register_secret(secret[min(start, len(secret) - _LONGEST) :][:_LONGEST])
    elif len(secret) >= _SHORTEST and secret not in _held:
        _held[secret] = _pieces(secret)


def register_query(query: str) -> None:
    """Register the signature in the query of a URL, in plain form."""
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name.lower() == "sig":
            register_secret(unquote(value))


def register_url(url: str) -> None:
    """Register what may open the file of ``url``: all behind its ``?``, and a password before its host."""
    address, _, query = url.partition("?")
    register_secret(query)
    login, at, _ = address.partition("://")[2].partition("/")[0].rpartition("@")
    if at:
        register_secret(unquote(login.partition(":")[2]))


def redact(text: str) -> str:
    """Hide this process's secrets, and what looks like one, in a sentence, a log line or a traceback."""
    return _hide(text, _IN_SENTENCES)


def redact_answer(text: str) -> str:
    """The same for data, such as a file name, which must not change without need: only unmistakable patterns match."""
    return _hide(text, _BY_FORM)


def redact_tree(value: Any) -> Any:
    """``redact_answer`` for every string of a JSON value, keys included."""
    if isinstance(value, str):
        return redact_answer(value)
    if isinstance(value, Mapping):
        return {redact_tree(name): redact_tree(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_tree(inner) for inner in value]
    return value


def redact_each(values: Iterable[Any]) -> Iterator[list[Any]]:
    """``redact_tree`` of each value, in lists. Each is scanned at once, because secrets are rare: JSON keeps the pieces
    and signs."""
    import json  # late: most commands have no such list

    left = iter(values)
    while bundle := list(islice(left, _BUNDLE)):
        whole = json.dumps(bundle, ensure_ascii=False)
        small = whole.lower()
        held = any(piece in whole for pieces in tuple(_held.values()) for piece in pieces)
        looks = held or any(rough in small for rough in _ROUGHLY)
        yield list(map(redact_tree, bundle)) if looks else bundle


def redact_word(word: str) -> str:
    """Redact a word of a command line: hides everything after the ``?`` of a URL."""
    address, question, _ = word.partition("?")
    return f"{address}?{HIDDEN}" if question and address.startswith(("https://", "http://")) else word


def _hide(text: str, form: str) -> str:
    shown: list[str] = []
    # Where the last secret ends; one that starts there or before belongs to it.
    hidden = -1
    for start, end in sorted([*_held_in(text), *_by_form(text, form)]):
        if start > hidden:
            shown.append(text[max(hidden, 0) : start])
        hidden = max(hidden, end)
    return HIDDEN.join([*shown, text[hidden:]]) if shown else text


def _held_in(text: str) -> Iterator[tuple[int, int]]:
    """Where registered secrets start and end; of those that overlap, each."""
    # A copy: other threads may register secrets at the same time.
    for secret, pieces in tuple(_held.items()):
        if any(piece in text for piece in pieces):
            form = _every_form(secret)
            match = form.search(text)
            while match:
                yield match.span()
                # A secret that repeats itself overlaps itself.
                match = form.search(text, match.start() + 1)


def _by_form(text: str, form: str) -> Iterator[tuple[int, int]]:
    """Where values that look like a secret start and end; the name before such a value stays."""
    small = text.lower()
    if any(rough in small for rough in _ROUGHLY):
        for match in _compiled(form).finditer(text):
            yield match.end(match.lastgroup) if match.lastgroup else match.start(), match.end()


@cache
def _compiled(form: str) -> re.Pattern[str]:
    # Compiled on first use: the two cost as much as all other modules of a short command.
    return re.compile(form, re.IGNORECASE | re.VERBOSE)


def _pieces(secret: str) -> tuple[str, ...]:
    """Substrings that are fast to search for: letters and digits are unchanged in every encoding but base64."""
    longest = max(re.findall(r"[A-Za-z0-9]*", secret), key=len)
    # If the secret is little more than punctuation, every text is searched.
    return (longest if len(longest) > 3 else "", *_in_base64(secret))


@lru_cache(maxsize=256)
def _every_form(secret: str) -> re.Pattern[str]:
    whole = "".join(_sign(char) for char in secret)
    if len(secret) < _SHORTEST_ANYWHERE:
        whole = rf"(?<![A-Za-z0-9]){whole}(?![A-Za-z0-9])"
    return re.compile("|".join([whole, *map(re.escape, _in_base64(secret))]))


def _sign(char: str) -> str:
    if char.isascii() and char.isalnum():
        return char
    code = ord(char)
    in_url = "".join(f"%(?:25){{0,3}}{_hex(f'{byte:02x}')}" for byte in char.encode("utf-8", "surrogatepass"))
    in_json = "".join(rf"\\{{1,4}}u{_hex(f'{unit:04x}')}" for unit in _utf16(char))
    in_html = f"&#(?:0*{code}|[xX]0*{_hex(f'{code:x}')});"
    forms = [rf"\\{{0,4}}{re.escape(char)}", in_url, in_json, in_html]
    if char in _NAMES_OF_HTML:
        forms.insert(0, f"&{_NAMES_OF_HTML[char]};")
    return f"(?:{'|'.join(forms)})"


def _hex(digits: str) -> str:
    return "".join(f"[{digit}{digit.upper()}]" if digit.isalpha() else digit for digit in digits)


def _utf16(char: str) -> list[int]:
    data = char.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


def _in_base64(secret: str) -> tuple[str, ...]:
    """What the base64 of any text around it surely contains, for each of the three alignments."""
    data = secret.encode("utf-8", "surrogatepass")
    if len(data) < _SHORTEST_ANYWHERE:
        return ()
    found: list[str] = []
    encoders: tuple[Callable[[bytes], bytes], ...] = (base64.b64encode, base64.urlsafe_b64encode)
    for shift in range(3):
        for encode in encoders:
            coded = encode(bytes(shift) + data).decode().rstrip("=")
            # The first and last characters also encode bits of the neighbours.
            start = (shift * 8 + 5) // 6
            end = (shift + len(data)) * 8 // 6
            if coded[start:end] not in found:
                found.append(coded[start:end])
    return tuple(found)


# Real tokens have a few hundred characters; no service accepts a longer URL.
_LONGEST_SAS = 8192


class _Revealed:
    """A text that only :meth:`reveal` shows. Plain classes: every command loads them, and makes none."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __str__(self) -> str:
        return repr(self)

    def reveal(self) -> str:
        """The text itself. Pass it only to a request, or to a child process's arguments."""
        return self._text


class SasToken(_Revealed):
    """A shared access signature; only :meth:`reveal` shows it.

    Field meanings: https://learn.microsoft.com/rest/api/storageservices/create-service-sas and
    .../create-account-sas (``se`` expiry, ``st`` start, ``sp`` permissions, ``sr`` resource of a service
    SAS, ``srt`` resource types of an account SAS).
    """

    __slots__ = ()

    def __init__(self, query: str) -> None:
        """``query`` is without ``?``."""
        super().__init__(query)
        register_query(query)

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

    def field(self, name: str) -> str | None:
        """The value of one query parameter; must not be called for the signature."""
        if name == "sig":
            raise ValueError("the signature of a SAS token cannot be read")
        return dict(parse_qsl(self._text)).get(name)

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
        return f"SasToken(sp={self.permissions!r}, se={self.field('se')!r}, sig={HIDDEN})"


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


class SignedUrl(_Revealed):
    """A URL that opens one object of a source to whoever has it; only :meth:`reveal` shows it.

    There is one for each request: what they have in common, the token of a session, is registered, and each signature
    is found by its form.
    """

    __slots__ = ()

    def __init__(self, url: str) -> None:
        super().__init__(url)
        at = url.find(_OF_SESSION)
        if at >= 0:
            register_secret(unquote(url[at + len(_OF_SESSION) :].partition("&")[0]))

    @property
    def length(self) -> int:
        """Characters; services take only so many."""
        return len(self._text)

    def __repr__(self) -> str:
        return f"SignedUrl({self._text.partition('?')[0]}?{HIDDEN})"


class Secret(_Revealed):
    """A string that ``repr`` and ``str`` never show: an account key or a password."""

    __slots__ = ()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        register_secret(text)

    def __repr__(self) -> str:
        return f"Secret({HIDDEN})"

    def __str__(self) -> str:
        return HIDDEN
