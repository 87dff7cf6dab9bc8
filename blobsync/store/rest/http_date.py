"""HTTP dates: ``Fri, 20 Nov 2026 06:13:00 GMT`` (RFC 9110, 5.6.7).

Written by hand: a listing has a million of them, and ``email.utils`` and ``calendar`` take longer to import than all
dates of a short command.
"""

from __future__ import annotations

import time
from datetime import date
from functools import lru_cache

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_EPOCH = date(1970, 1, 1).toordinal()
_NUMBER = {name: number for number, name in enumerate(_MONTHS, start=1)}


@lru_cache(maxsize=16)
def http_date(second: int) -> str:
    """Format a time (seconds since 1970)."""
    at = time.gmtime(second)
    # Not by strftime, which uses the locale's names.
    day, month = _DAYS[at.tm_wday], _MONTHS[at.tm_mon - 1]
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


@lru_cache(maxsize=4096)
def parse_http_date(text: str) -> float:
    """Parse a date to seconds since 1970; 0.0 for anything else."""
    try:
        days = date(int(text[12:16]), _NUMBER[text[8:11]], 1).toordinal() - _EPOCH + int(text[5:7]) - 1
        return float(((days * 24 + int(text[17:19])) * 60 + int(text[20:22])) * 60 + int(text[23:25]))
    except (ValueError, KeyError):
        return 0.0
