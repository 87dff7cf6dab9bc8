"""JSON from a file or another program: plain values, or ``ValueError``, whatever it holds."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """As ``json.loads``; raises ``ValueError`` for what is no JSON, too deep, or holds a number without end.

    ``json`` itself ends with ``RecursionError`` where values are nested some thousand deep.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")
