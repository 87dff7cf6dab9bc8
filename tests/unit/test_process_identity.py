"""A process is recognized by its ID and start time."""

from __future__ import annotations

import os

import pytest

from blobsync.base.process_identity import ProcessMark


def test_this_process_is_alive_and_an_earlier_one_with_its_id_is_not() -> None:
    mark = ProcessMark.of(os.getpid())
    assert mark.is_alive
    assert not mark._replace(born="1").is_alive


@pytest.mark.parametrize("pid", [10**10, 10**20])
def test_a_damaged_record_is_of_no_process(pid: int) -> None:
    # The kernel has no such ID, and Python makes no C integer of it.
    assert not ProcessMark(pid, "").is_alive
