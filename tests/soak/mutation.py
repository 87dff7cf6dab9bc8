"""Valid inputs, changed: pieces replaced, repeated, left out, taken from another sample; values of JSON exchanged."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import strategies as st

from tests.soak.target import Target

# Bytes. Larger input costs time in proportion, which is no fault.
LONGEST = 16 * 1024

_PIECE = re.compile(rb"[A-Za-z0-9_]+|\s+|.", re.DOTALL)

# What readers trip over, whatever they read.
_WORDS = (
    *(b"", b"0", b"-1", b"1", b"9" * 20, b"9" * 400, b"9" * 5000, b"1e999", b"-1e999", b"NaN", b"Infinity", b"0x10"),
    *(
        b"18446744073709551616",
        b"-9223372036854775809",
        b"4294967296",
        b"+5",
        b"1_0",
        "٣".encode(),
        "²".encode(),
        b"00",
    ),
    *(b"null", b"true", b"[]", b"{}", b'""', b"''", b'"', b"'", b"\\", b"/", b"//", b"..", b"../", b".", b"./", b"~"),
    *(b"\0", b"\n", b"\r", b"\t", b" ", b"\x1b[2J", b"\x7f", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *("\u2028".encode(), "\u202e".encode(), "\U0010ffff".encode(), "\u0000".encode("utf-16-le"), "ß".encode()),
    *(b"%00", b"%2e%2e%2f", b"%ff", b"%", b"&amp;", b"&#0;", b"&#x110000;", b"&x;", b"<![CDATA[", b"<!--", b"<?"),
    *(
        b"[",
        b"]",
        b"{",
        b"}",
        b"(",
        b")",
        b"<",
        b">",
        b"*",
        b"**",
        b"?",
        b"!",
        b"&",
        b"=",
        b":",
        b",",
        b";",
        b"|",
        b"#",
    ),
    *(b"[" * 3000, b"{" * 3000, b'{"a":' * 2000, b"<a>" * 3000, b"- " * 2000, b"&a [*a,*a]", b"<<: *a", b"!!python/x "),
    *(b"a" * 300, b"a" * 5000, b"a/" * 2100, b"*a" * 200, b"http://[", b"https://[::1", b"http://a:b@c:99999/", b"://"),
    *(b"0001-01-01T00:00:00+23:59", b"9999-12-31T23:59:59-23:59", b"2026-02-30", b"99999-01-01", b"24:60:61"),
)
_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        10**19,
        -(10**40),
        1.5,
        1e308,
        "",
        "x",
        "0",
        "-1",
        "9" * 400,
        "9" * 5000,
        "..",
        "/x",
    ),
    *("a\nb", "a\0b", "\ud800", "\x1b[2J", [], [None], [[]], [0], ["x"], {}, {"": None}, {"x": {}}, ["a"] * 300),
)
_REPEATS = (1, 1, 1, 2, 3, 17, 300, 4000)


@st.composite
def inputs(draw: st.DrawFn, target: Target) -> bytes:
    """An input for ``target``: one of its samples after a few changes, now and then anything."""
    kind = draw(st.integers(0, 19))
    if kind == 0:
        return draw(st.binary(max_size=400))
    data = draw(st.sampled_from(target.samples))
    if target.tree and kind < 12:
        data = _another_value(draw, data)
    for _ in range(draw(st.integers(0 if target.tree else 1, 5))):
        data = _change(draw, target, data)[:LONGEST]
    return data


def _change(draw: st.DrawFn, target: Target, data: bytes) -> bytes:
    pieces = _PIECE.findall(data)
    start = draw(st.integers(0, len(pieces)))
    length = draw(st.sampled_from((0, 1, 1, 1, 2, 5, 40)))
    before, within, after = pieces[:start], pieces[start : start + length], pieces[start + length :]
    word = st.sampled_from(_WORDS + target.words) if target.words else st.sampled_from(_WORDS)
    match draw(st.integers(0, 6)):
        case 0:
            fresh = draw(word)
        case 1:
            fresh = (draw(word) * draw(st.sampled_from(_REPEATS)))[:LONGEST]
        case 2:
            fresh = (b"".join(within) * draw(st.sampled_from(_REPEATS)))[:LONGEST]
        case 3:
            fresh = draw(st.binary(max_size=8))
        case 4:
            fresh = draw(st.text(max_size=8)).encode()
        case 5:
            other = _PIECE.findall(draw(st.sampled_from(target.samples)))
            place = draw(st.integers(0, len(other)))
            fresh = b"".join(other[place : place + draw(st.sampled_from((1, 3, 20, 1000)))])
        case _:
            fresh = b""
    return b"".join(before) + fresh + b"".join(after)


def _another_value(draw: st.DrawFn, data: bytes) -> bytes:
    """The JSON document with one value, or one more key, that is not what stands there."""
    document = json.loads(data)
    holders = [(None, None), *_places(document)]
    holder, key = draw(st.sampled_from(holders))
    value = draw(st.sampled_from(_VALUES))
    if holder is None:
        return json.dumps(value).encode()
    match draw(st.integers(0, 3)):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw(st.text(max_size=5))] = value
        case _:
            holder[key] = value
    return json.dumps(document).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        found += [(value, key), *_places(value[key])]
    return found
