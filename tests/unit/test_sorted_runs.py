"""Rows come back in the order of their keys, from memory or from the disk."""

from __future__ import annotations

import random

import pytest

from blobsync.base.file_states import LocalState
from blobsync.local.sorted_runs import STATE, SortedRuns, Spill

_ROUNDS = 200


@pytest.mark.parametrize("seed", range(4))
def test_rows_with_equal_keys_stay_in_the_order_in_which_they_came(seed: int) -> None:
    chance = random.Random(seed)
    on_disk = 0
    for _ in range(_ROUNDS):
        runs = SortedRuns(Spill(most=chance.randint(1, 8)), most=chance.choice([None, 1, 3, 20]))
        # Values that cannot be compared with each other.
        rows = [(f"k{chance.randint(0, 9)}", chance.choice([None, number, b"x"])) for number in range(30)]
        if chance.random() < 0.3:
            rows.sort(key=lambda row: row[0])
        rows = rows[: chance.randint(0, 30)]
        for row in rows:
            runs.add(*row)
        expected = sorted(rows, key=lambda row: row[0])
        assert list(runs) == list(runs) == expected
        assert len(runs) == len(rows)
        on_disk += runs.is_on_disk
    assert 0 < on_disk < _ROUNDS


def test_packed_values_come_back_as_they_were() -> None:
    runs = SortedRuns(Spill(most=2), STATE)
    states = [LocalState(number, 2, 3, 4, None) for number in range(7)]
    for number, state in enumerate(states):
        runs.add("same" if number % 2 else f"f{number}", state)
    assert runs.is_on_disk
    assert list(runs) == [
        *((f"f{number}", states[number]) for number in range(0, 7, 2)),
        *(("same", states[number]) for number in range(1, 7, 2)),
    ]
