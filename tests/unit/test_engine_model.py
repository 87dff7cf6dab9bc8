"""The choice of the engine and of its processes: estimates, and the sentences with the reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.background_calls import usable_cores
from blobsync.base.errors import UsageError
from blobsync.config.model import Cluster
from blobsync.plan.engine_costs import COSTS
from blobsync.plan.engine_model import (
    CHATTY_FILES,
    CLEARLY_FASTER,
    LEAST_GAIN,
    LEAST_SECONDS,
    CpuUse,
    EngineCost,
    EngineRules,
    RequestedEngine,
    Work,
    azcopy_is_worth_it,
    azcopy_seconds,
    choose_engine,
    choose_processes,
    direct_seconds,
    processes_after_trial,
    seconds_in_turn,
    trial_files,
)
from blobsync.plan.transfer_options import EngineName, TransferOptions
from blobsync.plan.transfer_plan import Route
from blobsync.project.engine_set import requested_engine

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NOTHING_AGAINST = EngineRules(lambda *_: None)


def work(
    files: int = 1,
    size: int = KIB,
    *,
    route: Route = Route.UPLOAD,
    cores: int = 2,
    tls: bool = True,
    round_trip: float = 0.0,
    processes: int = 1,
) -> Work:
    return Work(route, files, files * size, size, cores, tls, round_trip, processes)


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("route", list(Route))
@pytest.mark.parametrize("cores", [1, 2, 4, 64])
def test_direct_moves_small_transfers(route: Route, cores: int, *, tls: bool) -> None:
    for files, size in ((1, 1), (1, 8 * MIB), (100, 4 * KIB), (1000, 4 * KIB)):
        assert choose_engine(NOTHING_AGAINST, work(files, size, route=route, cores=cores, tls=tls)).name == "direct"


def test_azcopy_moves_a_million_small_files_only_where_many_connections_help() -> None:
    near = work(1_000_000, 4 * KIB, cores=64)
    # What Python does for each file around azcopy is no less than what it does without.
    assert choose_engine(NOTHING_AGAINST, near).name == "direct"
    assert choose_engine(NOTHING_AGAINST, near._replace(round_trip=0.2)).name == "azcopy"


def at_the_break_even() -> tuple[Work, Work]:
    """The last work of a row that is direct's, and the first that is azcopy's."""
    row = [work(1 << power, 4 * KIB, cores=64, round_trip=0.05) for power in range(10, 26)]
    at = next(index for index, each in enumerate(row) if azcopy_is_worth_it(each))
    return row[at - 1], row[at]


def test_direct_is_kept_where_azcopy_is_only_a_little_faster() -> None:
    last, first = at_the_break_even()
    assert azcopy_seconds(last) < direct_seconds(last)
    for each, worth in ((last, False), (first, True)):
        direct, azcopy = direct_seconds(each), azcopy_seconds(each)
        assert (azcopy < CLEARLY_FASTER * direct and direct - azcopy > LEAST_GAIN) is worth
    assert choose_engine(NOTHING_AGAINST, last).name == "direct"
    assert choose_engine(NOTHING_AGAINST, first).name == "azcopy"


def test_whether_azcopy_can_run_is_checked_only_if_it_would_be_chosen() -> None:
    last, first = at_the_break_even()
    asked: list[tuple[Route, int, int]] = []

    def problem(route: Route, files: int, size: int) -> str | None:
        asked.append((route, files, size))
        return "it is not installed"

    rules = EngineRules(problem)
    assert choose_engine(rules, last).name == "direct" and asked == []
    choice = choose_engine(rules, first)
    assert asked == [(first.route, first.files, first.size)]
    assert choice.name == "direct" and choice.why.endswith("but is not used because it is not installed")
    forced: tuple[EngineName, ...] = ("azcopy", "direct", "relay")
    for name in forced:
        requested = RequestedEngine(name, f"--engine {name} was given")
        assert choose_engine(rules._replace(requested=requested), first).name == name
    assert len(asked) == 1


def test_the_reason_has_both_estimates() -> None:
    choice = choose_engine(NOTHING_AGAINST, work(1, 1))
    assert choice.direct_seconds is not None and choice.azcopy_seconds is not None
    assert choice.why == f"about {choice.direct_seconds:.1f} s; azcopy would take about {choice.azcopy_seconds:.1f} s"
    long = choose_engine(NOTHING_AGAINST, work(2_000_000, 4 * KIB, cores=1))
    assert long.why.startswith("about ") and " min" in long.why
    given = choose_engine(EngineRules(lambda *_: None, RequestedEngine("azcopy", "--engine azcopy was given")), work())
    assert (given.name, given.why[:34]) == ("azcopy", "--engine azcopy was given; about 0")
    relay = choose_engine(EngineRules(lambda *_: None, RequestedEngine("relay", "--engine relay was given")), work())
    assert (relay.name, relay.why, relay.direct_seconds) == ("relay", "--engine relay was given", None)


def test_an_empty_plan_has_no_estimate() -> None:
    assert choose_engine(NOTHING_AGAINST, work(0)).why == "nothing to move"
    assert choose_engine(NOTHING_AGAINST, work(0)).direct_seconds is None


def test_more_work_never_takes_less_time() -> None:
    for seconds in (direct_seconds, azcopy_seconds):
        for route in Route:
            base = work(100, MIB, route=route, round_trip=0.02)
            assert seconds(base._replace(files=200)) >= seconds(base)
            assert seconds(base._replace(size=base.size * 10, largest=base.largest * 10)) >= seconds(base)
            assert seconds(base._replace(cores=4)) <= seconds(base)
    assert direct_seconds(work(5000, KIB, processes=2)) < direct_seconds(work(5000, KIB))


def test_round_trips_count_where_they_dominate() -> None:
    near, far = work(2000, KIB, round_trip=0.001), work(2000, KIB, round_trip=0.2)
    assert direct_seconds(far) - direct_seconds(near) > 2000 * 0.2 / 64 * 0.8
    # From 10 ms on direct takes 64 connections instead of 16.
    assert direct_seconds(work(20_000, 1, round_trip=0.011, processes=2)) < direct_seconds(
        work(20_000, 1, round_trip=0.0099, processes=2)
    )


def test_azcopys_steps_of_two_seconds_count_where_its_end_is_not_seen_earlier() -> None:
    few, many = work(CHATTY_FILES, 1), work(CHATTY_FILES + 1, 1)
    starts = COSTS["azcopy", "up", True][0] + COSTS["around", "up", True][0]
    assert azcopy_seconds(few) - starts < 2.0
    assert (azcopy_seconds(many) - starts) % 2.0 == pytest.approx(0.0, abs=1e-9)
    down = many._replace(route=Route.DOWNLOAD)
    assert (azcopy_seconds(down) - starts) % 2.0 != pytest.approx(0.0, abs=1e-3)


def test_one_large_file_is_hashed_by_one_thread_except_in_server_to_server_copies() -> None:
    one = work(1, 100 * GIB, cores=64)
    spread = one._replace(files=100, largest=GIB)
    assert direct_seconds(one) > direct_seconds(spread)
    copied = one._replace(route=Route.CROSS_ACCOUNT)
    assert not copied.hashing and direct_seconds(copied) < 1.0


def test_every_cost_has_its_unit_and_none_is_missing() -> None:
    engines, ways = ("direct", "azcopy", "around"), ("up", "down")
    assert set(COSTS) == {(engine, way, tls) for engine in engines for way in ways for tls in (False, True)}
    for cost in (EngineCost(*each) for each in COSTS.values()):
        assert 0 <= cost.start < 2 and 0 <= cost.file < 5e-3 and 0 <= cost.byte < 50e-9


# -- which setting decides -------------------------------------------------------------------------------------------


def requested_with(
    asked: EngineName | None, variable: str = "", written: str = "", *, copying: bool = False
) -> RequestedEngine:
    environ = {"BLOBSYNC_ENGINE": variable} if variable else {}
    values = {"engine": written} if written else {}
    chosen = Cluster("eu", "aux_data/aml/eu.yaml", Path("/p"), values=values)
    return requested_engine(TransferOptions(engine=asked), environ, chosen, copying=copying)


def test_the_option_overrides_the_environment_which_overrides_the_cluster_file() -> None:
    assert requested_with("direct", "azcopy", "azcopy") == ("direct", "--engine direct was given")
    assert requested_with("auto", "azcopy", "azcopy").name == "auto"
    assert requested_with(None, "azcopy", "direct") == ("azcopy", "BLOBSYNC_ENGINE=azcopy is set")
    assert requested_with(None, "", "azcopy") == ("azcopy", "engine: azcopy is in aux_data/aml/eu.yaml")
    assert requested_with(None, "auto", "azcopy").name == "auto"
    assert requested_with(None) == RequestedEngine()


def test_relay_in_the_configuration_applies_to_copies_only() -> None:
    for given in (("relay", ""), ("", "relay")):
        assert requested_with(None, *given).name == "auto"
        assert requested_with(None, *given, copying=True).name == "relay"


def test_an_unknown_engine_in_the_environment_is_refused() -> None:
    with pytest.raises(UsageError, match=r"BLOBSYNC_ENGINE=fast: not one of auto, azcopy, direct, relay"):
        requested_with(None, "fast")


def much(files: int, size: int = 0, cores: int = 8, *, tls: bool = False) -> Work:
    return Work(Route.UPLOAD, files, size, largest=size // max(files, 1), cores=cores, tls=tls)


_A_FILE = seconds_in_turn(much(1))
# So many that two processes have just enough to do.
_ENOUGH = int(2 * LEAST_SECONDS / _A_FILE) + 1
_MANY = 1_000_000


@pytest.mark.parametrize(
    ("requested", "given", "cap", "count"),
    [
        (None, much(_MANY, cores=2), None, 2),
        (None, much(_MANY, cores=64), None, 8),
        (None, much(_MANY, cores=1), None, 1),
        (None, much(0), None, 1),
        (None, much(_ENOUGH), None, 2),
        (None, much(_ENOUGH - 2), None, 1),
        # A file costs more over TLS.
        (None, much(_ENOUGH - 2, tls=True), None, 2),
        # 40 GB in few files keep several cores busy in one process.
        (None, much(40, 40_000_000_000), None, 1),
        (None, much(_MANY, _MANY * 16_384), 50, 1),
        (3, much(5, 5, cores=1), None, 3),
        (1, much(_MANY), None, 1),
    ],
)
def test_more_processes_are_for_many_files(requested: int | None, given: Work, cap: float | None, count: int) -> None:
    assert choose_processes(requested, given, cap).count == count


def test_the_sentence_says_what_decided() -> None:
    few = choose_processes(None, much(100)).why
    assert (
        few == f"one would need about {100 * _A_FILE:.1f} s of CPU for the files; a second one is worth it from 2 s on"
    )
    many = choose_processes(None, much(_MANY, cores=2)).why
    minutes = round(_MANY * _A_FILE / 60)
    assert many == (
        f"one would need about {minutes} min of CPU for the files, and this machine has 2 cores; "
        "the first files show how many help"
    )
    assert choose_processes(4, much(1)).why == "--processes 4 was given"


def test_with_more_processes_azcopy_has_to_be_faster_than_all_of_them() -> None:
    rules = EngineRules(lambda *_: None)
    one, four = much(_MANY, cores=4), much(_MANY, cores=4)._replace(processes=4)
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
    assert seconds_in_turn(much(trial_files(much(_MANY)))) == pytest.approx(1.0, rel=0.01)


def test_this_process_may_use_a_core() -> None:
    assert usable_cores() >= 1
