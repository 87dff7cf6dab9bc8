"""How many processes a plan gets, and the sentence that says why."""

from __future__ import annotations

import pytest

from blobsync.plan.engine_model import (
    LEAST_SECONDS,
    EngineRules,
    Work,
    choose_engine,
    choose_processes,
    seconds_in_turn,
    usable_cores,
)
from blobsync.plan.transfer_plan import Route


def work(files: int, size: int = 0, cores: int = 8, *, tls: bool = False) -> Work:
    return Work(Route.UPLOAD, files, size, largest=size // max(files, 1), cores=cores, tls=tls)


_A_FILE = seconds_in_turn(work(1))
# So many that two processes have just enough to do.
_ENOUGH = int(2 * LEAST_SECONDS / _A_FILE) + 1
_MANY = 1_000_000


@pytest.mark.parametrize(
    ("requested", "given", "cap", "count"),
    [
        (None, work(_MANY, cores=2), None, 2),
        (None, work(_MANY, cores=64), None, 8),
        (None, work(_MANY, cores=1), None, 1),
        (None, work(0), None, 1),
        (None, work(_ENOUGH), None, 2),
        (None, work(_ENOUGH - 2), None, 1),
        # A file costs more over TLS.
        (None, work(_ENOUGH - 2, tls=True), None, 2),
        # 40 GB in few files keep several cores busy in one process.
        (None, work(40, 40_000_000_000), None, 1),
        (None, work(_MANY, _MANY * 16_384), 50, 1),
        (3, work(5, 5, cores=1), None, 3),
        (1, work(_MANY), None, 1),
    ],
)
def test_more_processes_are_for_many_files(requested: int | None, given: Work, cap: float | None, count: int) -> None:
    assert choose_processes(requested, given, cap).count == count


def test_the_sentence_says_what_decided() -> None:
    few = choose_processes(None, work(100)).why
    assert (
        few == f"one would need about {100 * _A_FILE:.1f} s of CPU for the files; a second one is worth it from 2 s on"
    )
    many = choose_processes(None, work(_MANY, cores=2)).why
    assert round(_MANY * _A_FILE / 60) == 7
    assert many == "one would need about 7 min of CPU for the files, and this machine has 2 cores"
    assert choose_processes(4, work(1)).why == "--processes 4 was given"


def test_with_more_processes_azcopy_has_to_be_faster_than_all_of_them() -> None:
    rules = EngineRules(lambda *_: None)
    one, four = work(_MANY, cores=4), work(_MANY, cores=4)._replace(processes=4)
    found = choose_engine(rules, one), choose_engine(rules, four)
    assert found[1].direct_seconds is not None and found[0].direct_seconds is not None
    assert found[1].direct_seconds < 0.5 * found[0].direct_seconds


def test_this_process_may_use_a_core() -> None:
    assert usable_cores() >= 1
