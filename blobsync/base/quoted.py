"""Quotes the output of other programs in our messages."""

from __future__ import annotations

# About four lines of a terminal.
MOST_CHARS = 300


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
