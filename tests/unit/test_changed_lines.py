"""The lines of a unified diff: put on the old text, they make the new one."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.project.content import MOST_LINES, changed_lines, text_of

_TEXTS = st.lists(st.sampled_from(["a", "b", "", "c\r", "- d", "\u2028x"]), max_size=30).flatmap(
    lambda lines: st.sampled_from(["\n".join(lines), "\n".join([*lines, ""])])
)
_HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def patched(old: str, diff: list[str]) -> str:
    """What ``patch`` makes of a text; each hunk has to lie where it says, with as many lines as it says."""
    lines = [f"{line}\n" for line in old.split("\n")]
    lines[-1] = lines[-1][:-1]
    lines = [line for line in lines if line]
    made: list[str] = []
    at = 0
    hunks = [number for number, line in enumerate(diff) if line.startswith("@@")]
    for first, last in zip(hunks, [*hunks, len(diff)][1:], strict=True):
        head = _HEAD.fullmatch(diff[first])
        assert head
        counts = [1 if head[group] is None else int(head[group]) for group in (2, 4)]
        begins = int(head[1]) - (1 if counts[0] else 0)
        made += lines[at:begins]
        at = begins
        assert len(made) == int(head[3]) - (1 if counts[1] else 0)
        seen = [0, 0]
        body = diff[first + 1 : last]
        for line, after in zip(body, [*body, ""][1:], strict=True):
            if line.startswith("\\"):
                continue
            text = line[1:] + ("" if after.startswith("\\") else "\n")
            if line[0] in " -":
                assert lines[at] == text
                at, seen[0] = at + 1, seen[0] + 1
            if line[0] in " +":
                made.append(text)
                seen[1] += 1
        assert seen == counts
    return "".join([*made, *lines[at:]])


@given(old=_TEXTS, new=_TEXTS, context=st.sampled_from([0, 2, 3]))
def test_the_old_text_and_the_difference_make_the_new_one(old: str, new: str, context: int) -> None:
    diff = changed_lines(old, new, context=context)
    assert diff is not None
    assert patched(old, diff) == new
    assert (diff == []) == (old == new)


def test_it_looks_as_diff_does() -> None:
    assert changed_lines("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9") == [
        *("@@ -2,8 +2,8 @@", " 2", " 3", " 4", "-5", "+five", " 6", " 7", " 8", "-9", "+9"),
        "\\ No newline at end of file",
    ]
    assert changed_lines("", "a\n") == ["@@ -0,0 +1 @@", "+a"]
    assert changed_lines("a\n", "") == ["@@ -1 +0,0 @@", "-a"]


def test_one_line_of_a_long_text_is_found_at_once_and_too_many_are_said_so() -> None:
    lines = [f"line {number}" for number in range(200_000)]
    old = "\n".join(lines)
    lines[100_000] = "another"
    began = time.process_time()
    diff = changed_lines(old, "\n".join(lines))
    assert diff is not None and diff[0] == "@@ -99998,7 +99998,7 @@" and len(diff) == 9
    assert time.process_time() - began < 10
    assert changed_lines("x\n" * (MOST_LINES + 1), "") is None
    assert changed_lines("x\n" * MOST_LINES, "") is not None


@pytest.mark.parametrize(
    ("data", "cut", "text"),
    [
        (b"", False, ""),
        (b"a\r\n\xc3\xbc", False, "a\r\n\u00fc"),
        (b"a\0b", False, None),
        (b"\xff\xfe", False, None),
        (b"abcdef\xc3", True, "abcdef"),
        (b"abcdef\xc3", False, None),
        (b"\xc3abcdef", True, None),
    ],
)
def test_text_is_utf_8_without_nul(data: bytes, cut: bool, text: str | None) -> None:
    assert text_of(data, cut=cut) == text
