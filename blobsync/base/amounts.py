"""Formats sizes, counts and durations for people."""

from __future__ import annotations


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
    """Format a count and its noun: ``1 file``, ``1,234 files``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def took_text(seconds: float) -> str:
    """Format seconds: ``0.07 s``, and from ten seconds on as :func:`duration_text`."""
    return f"{seconds:.2f} s" if seconds < 10 else duration_text(seconds)


def duration_text(seconds: float) -> str:
    """Format seconds as ``25 s``, ``3 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
