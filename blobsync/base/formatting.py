"""Formats for people: sizes, counts, durations, names from outside, and the output of other programs. Reads times."""

from __future__ import annotations

import re
import time

# About four lines of a terminal.
MOST_CHARS = 300


def size_text(size: int) -> str:
    """Format bytes as ``1.5 MB``: powers of ten, as disks and Azure count."""
    value = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        # Three digits: 999.6 would be rounded to 1000.
        if value < 999.5:
            return f"{int(value)} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def count_text(count: int, noun: str) -> str:
    """Format a count and its noun: ``1 file``, ``1,234 files``, ``2 processes``."""
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def took_text(seconds: float) -> str:
    """Format seconds: ``0.07 s``, and from ten seconds on as :func:`duration_text`."""
    return f"{seconds:.2f} s" if seconds < 10 else duration_text(seconds)


def utc_seconds(text: str) -> float | None:
    """Parse ISO 8601 of a service or a log, in UTC where it names no zone, to the second; None for anything else."""
    from datetime import datetime  # late: most commands read no times

    if not text:
        return None
    plain = re.sub(r"\.\d+", "", text).replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(plain if re.search(r"[+-]\d\d:\d\d$", plain) else f"{plain}+00:00")
        return moment.timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def duration_text(seconds: float) -> str:
    """Format seconds as ``25 s``, ``3 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def zulu_text(seconds: float) -> str:
    """Format a time (seconds since 1970) as ``2026-11-20T10:30:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def seconds_of(text: str) -> int | None:
    """Parse ``90s``, ``30m``, ``12h``, ``7d`` or ``2w``; None if it is no such time."""
    number, unit = text[:-1], _UNITS.get(text[-1:])
    return int(number) * unit if unit and number.isdecimal() and number.isascii() and len(number) < 7 else None


# https://www.w3.org/TR/xmlschema-2/#duration, also with weeks; to seconds.
_ISO = r"P(?:(\d{1,6})W)?(?:(\d{1,6})D)?(?:T(?:(\d{1,6})H)?(?:(\d{1,6})M)?(?:(\d{1,9})(?:\.\d+)?S)?)?"


def iso_seconds(text: str) -> int | None:
    """Parse a service's ``P7D`` or ``PT1H30M``; None if it is no such time."""
    match = re.fullmatch(_ISO, text)
    if not match or not any(match.groups()):
        return None
    return sum(int(number or 0) * unit for number, unit in zip(match.groups(), reversed(_UNITS.values()), strict=True))


def printable(text: str, *, kept: str = "") -> str:
    r"""Escape the characters of a hostile name that nobody sees, or that reorder the text around them.

    These are control, format and space characters but the space (``\x1b``, ``\u202e``), unless they are in ``kept``.
    Names that are not UTF-8 stay readable.
    """
    if text.isprintable():
        return text
    shown = "".join(char if char.isprintable() or char in kept else ascii(char)[1:-1] for char in text)
    return shown if shown.isascii() else shown.encode("utf-8", "backslashreplace").decode()


def quoted(text: str, most: int = MOST_CHARS) -> str:
    """Put ``text`` on one line, cut between two words if it is longer than ``most`` characters.

    Never include a command or a name that the user must use again: append it afterwards, so that it is never cut.
    """
    plain = " ".join(text.split())
    if len(plain) <= most:
        return plain
    begun = plain[: most - len(" ...") + 1]
    # A single word may be longer than the limit.
    whole = begun.rpartition(" ")[0] or begun[:-1]
    return f"{whole.rstrip(',;:')} ..."
