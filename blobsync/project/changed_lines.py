"""What is text, and which lines of two texts differ. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

# Comparing takes time that grows with the square of the lines: of those between the first and the last that differ.
MOST_LINES = 5000
_NO_NEWLINE = "\\ No newline at end of file"


def text_of(data: bytes, *, cut: bool = False) -> str | None:
    """None for what is no text; of data that was ``cut``, the last character may be cut in two."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        return data[: error.start].decode("utf-8") if cut and error.start >= len(data) - 3 else None


def changed_lines(before: str, after: str, *, context: int = 3) -> list[str] | None:
    """The lines of a unified diff, without the two that name the files; empty for equal texts, None for too many."""
    old, new = _lines(before), _lines(after)
    first = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    least = min(len(old), len(new)) - first
    ends = zip(reversed(old[len(old) - least :]), reversed(new[len(new) - least :]), strict=True)
    last = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], ends))
    if max(len(old), len(new)) - first - last > MOST_LINES:
        return None
    # The lines around them are wanted, and none of the rest.
    start, behind = max(0, first - context), max(0, last - context)
    old, new = old[start : len(old) - behind], new[start : len(new) - behind]
    return [line for group in _groups(old, new, context) for line in _hunk(old, new, group, start)]


def _lines(text: str) -> list[str]:
    """With their ends, so that a last line without one is another line."""
    found = text.split("\n")
    last = found.pop()
    return [*(f"{line}\n" for line in found), *([last] if last else [])]


_Steps = Sequence[tuple[str, int, int, int, int]]


def _groups(old: Sequence[str], new: Sequence[str], context: int) -> Iterator[_Steps]:
    yield from SequenceMatcher(None, old, new).get_grouped_opcodes(context)


def _hunk(old: Sequence[str], new: Sequence[str], group: _Steps, start: int) -> Iterator[str]:
    (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = group[0], group[-1]
    yield f"@@ -{_range(start, old_from, old_to)} +{_range(start, new_from, new_to)} @@"
    for kind, one, other, third, fourth in group:
        if kind == "equal":
            yield from _marked(" ", old[one:other])
            continue
        yield from _marked("-", old[one:other])
        yield from _marked("+", new[third:fourth])


def _range(start: int, first: int, last: int) -> str:
    """As ``diff -u`` counts: of no lines, the line before them."""
    count = last - first
    begins = start + first + (1 if count else 0)
    return f"{begins}" if count == 1 else f"{begins},{count}"


def _marked(mark: str, lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        yield mark + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_NEWLINE
