"""Parses and formats Kubernetes quantities: ``500m``, ``1.5``, ``16Gi``."""

from __future__ import annotations

import re
from fractions import Fraction

_SUFFIXES = {
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{each: Fraction(1000) ** i for i, each in enumerate("kMGTPE", 1)},
}
_SUFFIXES |= {f"{each}i": Fraction(1024) ** i for i, each in enumerate("KMGTPE", 1)}


def parse(amount: str | float) -> Fraction:
    match = re.fullmatch(r"([+-]?[0-9.]+)(m|[KMGTPE]i|[kMGTPE]|)", str(amount))
    if not match:
        raise ValueError(f"{amount!r} is no quantity")
    return Fraction(match[1]) * _SUFFIXES[match[2]]


def canonical(amount: str | float) -> str:
    """Format with the largest suffix that gives a whole number: ``1.5`` is ``1500m``."""
    value = parse(amount)
    return str(amount) if value % 1 == 0 else f"{int(value * 1000)}m"
