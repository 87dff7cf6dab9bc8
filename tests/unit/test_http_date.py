from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.store.rest.transport import http_date, parse_http_date


@given(st.integers(0, 253402300799))
def test_dates_agree_with_the_standard_library_and_round_trip(second: int) -> None:
    assert http_date(second) == formatdate(second, usegmt=True)
    assert parse_http_date(http_date(second)) == second


@pytest.mark.parametrize("text", ["", "Friday", "Fri, 20 Foo 2026 06:13:00 GMT"])
def test_invalid_dates(text: str) -> None:
    assert parse_http_date(text) == 0.0
