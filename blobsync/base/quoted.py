"""What other programs say, as a part of our sentences."""

from __future__ import annotations

# About four lines of a terminal.
MOST_CHARS = 300


def quoted(text: str, most: int = MOST_CHARS) -> str:
    """On one line, and cut between two words where it is longer than ``most`` characters.

    A command or a name that is to be used again never stands in it: add it behind, so that it is never cut.
    """
    plain = " ".join(text.split())
    if len(plain) <= most:
        return plain
    begun = plain[: most - len(" ...") + 1]
    # One word may be longer than all of it.
    whole = begun.rpartition(" ")[0] or begun[:-1]
    return f"{whole.rstrip(',;:')} ..."
