"""Failures after which no other file is tried: those that affect all files, and long rows of some others."""

from __future__ import annotations

import pytest

from blobsync.base.errors import FailureCode
from blobsync.direct.circuit_breaker import CircuitBreaker, not_tried, was_tried

# Codes that count in a row.
ROW = 16
IN_A_ROW = [
    FailureCode.ACCESS_DENIED,
    FailureCode.COPY_SOURCE_REFUSED,
    FailureCode.STORAGE_UNREACHABLE,
    FailureCode.SERVICE_BUSY,
]
AT_ONCE = [
    FailureCode.CREDENTIAL_INVALID,
    FailureCode.SAS_EXPIRED,
    FailureCode.SAS_PERMISSION,
    FailureCode.LOGIN_REQUIRED,
    FailureCode.CONTAINER_NOT_FOUND,
    FailureCode.DISK_FULL,
]


@pytest.mark.parametrize("code", FailureCode)
def test_each_failure_ends_it_at_once_or_in_a_row_or_never(code: FailureCode) -> None:
    giving_up = CircuitBreaker()
    said = [giving_up.failed(code) for _ in range(100)]
    before = 0 if code in AT_ONCE else ROW - 1 if code in IN_A_ROW else 100
    assert said == [False] * before + [True] * (100 - before)


@pytest.mark.parametrize("between", ["a file that moved", "a failure of its own"])
def test_a_row_is_one_without_anything_between(between: str) -> None:
    giving_up = CircuitBreaker()
    for _ in range(ROW - 1):
        assert not giving_up.failed(FailureCode.SERVICE_BUSY)
    if between == "a file that moved":
        giving_up.moved()
    else:
        assert not giving_up.failed(FailureCode.CHECKSUM_MISMATCH)
    said = [giving_up.failed(FailureCode.SERVICE_BUSY) for _ in range(ROW)]
    assert said == [False] * (ROW - 1) + [True]


def test_different_failures_make_one_row() -> None:
    giving_up = CircuitBreaker()
    said = [giving_up.failed(code) for _ in range(ROW // len(IN_A_ROW)) for code in IN_A_ROW]
    assert said == [False] * (ROW - 1) + [True]


def test_what_is_said_of_the_others_makes_up_no_tries() -> None:
    assert not_tried("it broke (1,035 tries in 5 min)") == "not tried, since others failed: it broke"
    assert not_tried("it broke (for good)") == "not tried, since others failed: it broke (for good)"
    assert not was_tried(not_tried("it broke")) and was_tried("it broke")
