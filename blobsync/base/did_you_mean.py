"""Suggests the known word that is most like one that is unknown."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The most similar of ``known``, or None if none is similar enough to suggest."""
    # difflib is needed only for errors; importing it here keeps start-up fast.
    from difflib import get_close_matches

    candidates = {item.lower(): item for item in known}
    found = get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the most similar known word, or None."""
    guess = nearest(word, known)
    return f"did you mean '{guess}'?" if guess else None
