"""How many processes a plan gets, and the sentence that says why."""

from __future__ import annotations

import pytest

from blobsync.base.background_calls import usable_cores
from blobsync.plan.engine_model import (
    LEAST_SECONDS,
    CpuUse,
    EngineRules,
    Work,
    choose_engine,
    choose_processes,
    processes_after_trial,
    seconds_in_turn,
    trial_files,
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
    minutes = round(_MANY * _A_FILE / 60)
    assert many == (
        f"one would need about {minutes} min of CPU for the files, and this machine has 2 cores; "
        "the first files show how many help"
    )
    assert choose_processes(4, work(1)).why == "--processes 4 was given"


def test_with_more_processes_azcopy_has_to_be_faster_than_all_of_them() -> None:
    rules = EngineRules(lambda *_: None)
    one, four = work(_MANY, cores=4), work(_MANY, cores=4)._replace(processes=4)
    found = choose_engine(rules, one), choose_engine(rules, four)
    assert found[1].direct_seconds is not None and found[0].direct_seconds is not None
    assert found[1].direct_seconds < 0.5 * found[0].direct_seconds


@pytest.mark.parametrize(
    ("most", "use", "count"),
    [
        # Limited by the CPU, and the other cores were idle.
        (2, CpuUse(1.0, 1.0, 1.0), 2),
        (8, CpuUse(2.0, 1.9, 14.0), 8),
        (8, CpuUse(1.0, 1.0, 2.4), 3),
        # The server or others use the other cores.
        (2, CpuUse(1.0, 1.0, 0.4), 1),
        (8, CpuUse(1.0, 1.0, 0.0), 1),
        # It waited.
        (8, CpuUse(1.0, 0.74, 7.0), 1),
        (8, CpuUse(1.0, 0.76, 7.0), 8),
        # Too short to tell.
        (8, CpuUse(0.19, 0.0, 0.0), 8),
        (8, CpuUse(0.2, 0.0, 0.0), 1),
    ],
)
def test_the_first_files_show_how_many_processes_help(most: int, use: CpuUse, count: int) -> None:
    assert processes_after_trial(most, use) == count


def test_the_first_files_take_about_a_second_of_cpu() -> None:
    assert seconds_in_turn(work(trial_files(work(_MANY)))) == pytest.approx(1.0, rel=0.01)


def test_this_process_may_use_a_core() -> None:
    assert usable_cores() >= 1
