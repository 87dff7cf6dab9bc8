"""Header lines as they came are read as if each had been taken apart, and their dates as by the standard library."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blobsync.store.rest.transport import Headers, http_date, parse_http_date

TEXT = (
    "Content-Length: 12\r\nETag: 0x8D\r\nx-ms-request-id:7\r\nx-ms-meta-a: one\r\nX-Ms-Meta-A:\ttwo \r\nEmpty:\r\n\r\n"
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-length", "12"),
        ("ETAG", "0x8D"),
        ("x-ms-request-id", "7"),
        ("x-ms-meta-a", "one, two"),
        ("empty", ""),
        ("length", None),
        ("x-ms", None),
        ("12", None),
    ],
)
def test_a_header_is_found_by_its_whole_name_whatever_its_case(name: str, value: str | None) -> None:
    headers = Headers(text=TEXT)
    assert (headers.get(name), name in headers) == (value, value is not None)
    assert headers.get("none") is None and headers.get("none", "other") == "other"


def test_all_headers_are_in_the_mapping_once() -> None:
    headers = Headers(text=TEXT)
    assert dict(headers) == {
        "Content-Length": "12",
        "ETag": "0x8D",
        "x-ms-request-id": "7",
        "x-ms-meta-a": "one, two",
        "Empty": "",
    }
    assert len(headers) == 5 and len(Headers(text="\r\n")) == 0
    with pytest.raises(KeyError):
        headers["none"]


NAMES = st.text("aAbE- ", max_size=3)


@given(
    st.lists(
        st.tuples(NAMES, st.sampled_from([":", ": ", ":\t", " :", "", ":\r\n"]), st.text("aB:, \t\xc0", max_size=4))
    ),
    st.sampled_from(["\r\n", "\n"]),
    NAMES,
)
@example([("a", ": ", "1"), (" a", ":", "2")], "\r\n", "a")
@example([("a ", ":", "1")], "\r\n", "a")
def test_any_lines_are_read_as_if_each_were_taken_apart(
    lines: list[tuple[str, str, str]], end: str, asked: str
) -> None:
    text = "".join(f"{name}{colon}{value}{end}" for name, colon, value in lines)
    parts = [line.partition(":") for line in text.split("\n")]
    apart = Headers([(name.strip(), value.strip()) for name, colon, value in parts if colon])
    assert Headers(text=text).get(asked.strip()) == apart.get(asked.strip())
    assert dict(Headers(text=text)) == dict(apart)


@given(st.integers(0, 253402300799))
def test_dates_agree_with_the_standard_library_and_round_trip(second: int) -> None:
    assert http_date(second) == formatdate(second, usegmt=True)
    assert parse_http_date(http_date(second)) == second


@pytest.mark.parametrize("text", ["", "Friday", "Fri, 20 Foo 2026 06:13:00 GMT"])
def test_invalid_dates(text: str) -> None:
    assert parse_http_date(text) == 0.0
