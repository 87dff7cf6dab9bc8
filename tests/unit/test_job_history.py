from __future__ import annotations

import json
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import AmbiguousJobError, JobError, JobNotFoundError
from blobsync.jobs.history import History
from blobsync.jobs.record import JobRecord
from blobsync.jobs.timeline import moments_of, seconds_of, spans_of
from blobsync.jobspec.spec import (
    CodeRef,
    FolderLink,
    JobRef,
    JobSpec,
    LogMirror,
    NodeChange,
    RunInfo,
    Secrets,
    State,
    StateChange,
)
from blobsync.project.job_writes import writing_jobs
from tests.fakes.jobs import make_spec

FULL = JobSpec(
    run_id="me_7_11223344",
    argv=("python", "a b", "$x;"),
    cluster="eu",
    platform="slurm",
    name="big",
    nodes=2,
    procs_per_node=4,
    gpus_per_node=4,
    min_nodes=1,
    max_nodes=3,
    image="x:1",
    env={"A": "1,2"},
    secret_env=("TOKEN",),
    code=CodeRef("https://a/c", "code.zip", "ab" * 32, "c0ffee", True),
    folders=(FolderLink("data", "https://a/c", "d", "download", include=("voc",), cache_seconds=5),),
    logs=LogMirror("https://a/c", "output.logs/x"),
    setup=("true",),
    timeout_s=60,
    preemptible=True,
    retries=2,
    retry_exit_codes=(5,),
    tags={"t": "v"},
    options={"array": "0-3"},
)


def add(history: History, run_id: str, native_id: str = "1", **changes: Any) -> JobRecord:
    spec = make_spec("echo", run_id=run_id, **changes)
    return history.add(spec, JobRef(run_id, native_id, "/x"), "local")


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / ".blobsync").mkdir()
    return History(tmp_path / ".blobsync" / "jobs.sqlite")


def test_a_specification_survives_json() -> None:
    assert JobSpec.from_json(FULL.to_json()) == FULL
    with pytest.raises(ValueError, match="not a job specification"):
        JobSpec.from_json('{"version": 99}')


def test_options_of_another_version_stay_in_a_recorded_specification() -> None:
    options = {"array": 7, "of_a_newer_version": ["x"]}
    recorded = json.dumps({**json.loads(FULL.to_json()), "options": options})
    assert json.loads(JobSpec.from_json(recorded).to_json()) == json.loads(recorded)
    with pytest.raises(ValueError, match="options has the wrong type"):
        JobSpec.from_json(json.dumps({**json.loads(FULL.to_json()), "options": ["array"]}))


def test_a_job_comes_back_whole(history: History) -> None:
    ref = JobRef(FULL.run_id, "42", "/runs/x")
    record = history.add(FULL, ref, "slurm", successor_of="old")
    info = RunInfo(FULL.run_id, State.FAILED, 7, 1, "why", 10.0, 20.0, ("n1", "n2"))
    history.update(record, info)
    found = history.find(FULL.run_id)
    assert (found.spec, found.ref, found.info) == (FULL, ref, info)
    assert (found.backend, found.cluster, found.successor_of) == ("slurm", "eu", "old")


def test_only_its_owner_can_read_it(history: History, tmp_path: Path) -> None:
    add(history, "me_1_aa")
    assert stat.S_IMODE((tmp_path / ".blobsync" / "jobs.sqlite").stat().st_mode) == 0o600


def test_any_unique_end_finds_a_job(history: History) -> None:
    add(history, "me_1_aaaa1234")
    add(history, "me_2_bbbb1234", "77")
    assert history.find("a1234").run_id == "me_1_aaaa1234"
    assert history.find("77").run_id == "me_2_bbbb1234"
    with pytest.raises(AmbiguousJobError, match="2 jobs could be"):
        history.find("1234")
    for nothing in ("zzz", "", "%", "_"):
        with pytest.raises(JobNotFoundError):
            history.find(nothing)


def test_any_unique_beginning_finds_a_job(history: History) -> None:
    add(history, "me_1_aaaa1234")
    add(history, "me_1_aabb5678")
    assert history.find("aaa").run_id == history.find("me_1_aaa").run_id == "me_1_aaaa1234"
    with pytest.raises(AmbiguousJobError):
        history.find("aa")
    add(history, "me_20_cccc9999")
    assert history.find("me_20").run_id == history.find("me_20_").run_id == "me_20_cccc9999"
    with pytest.raises(AmbiguousJobError):
        history.find("me_1")
    # The prefix of all ids of a user selects no job, even if there is only one.
    for nothing in ("me", "me_", "me_2", "1_aaaa"):
        with pytest.raises(JobNotFoundError):
            history.find(nothing)


def test_a_name_is_that_of_its_newest_job(history: History) -> None:
    add(history, "me_1_aaaa1234", name="train")
    add(history, "me_2_bbbb1234", name="train")
    assert history.find("train").run_id == history.newest().run_id == "me_2_bbbb1234"
    with pytest.raises(JobNotFoundError):
        history.find("trai")


def test_a_whole_id_wins_over_longer_ids_that_end_with_it(history: History) -> None:
    add(history, "job_1")
    add(history, "my_job_1")
    assert history.find("job_1").run_id == "job_1"


def test_what_a_backend_has_forgotten_is_not_forgotten_here(history: History) -> None:
    record = add(history, "me_1_a")
    ended = history.update(record, RunInfo("me_1_a", State.COMPLETED, 0, started=1.0, ended=2.0, nodes=("n1",)))
    assert history.update(ended, RunInfo("me_1_a", State.UNKNOWN)).info == ended.info
    running = history.update(add(history, "me_2_b"), RunInfo("me_2_b", State.RUNNING, started=5.0, nodes=("n2",)))
    later = history.update(running, RunInfo("me_2_b", State.FAILED, 1))
    assert (later.info.started, later.info.nodes) == (5.0, ("n2",))


def test_a_job_that_vanished_after_we_cancelled_it_is_canceled(history: History) -> None:
    record = history.ask_cancel(add(history, "me_1_a"))
    assert history.update(record, RunInfo("me_1_a", State.UNKNOWN)).info.state is State.CANCELED
    assert history.find("me_1_a").info.state is State.CANCELED


def test_commands_that_are_first_at_once_make_one_history(tmp_path: Path) -> None:
    """Repeated a hundred times, because races are rare."""
    for number in range(100):
        place = tmp_path / f"{number}.sqlite"
        begin = threading.Barrier(4)

        def look(place: Path = place, begin: threading.Barrier = begin) -> int:
            begin.wait()
            return len(History(place).with_secrets(["local"], 0.0))

        with ThreadPoolExecutor(4) as threads:
            assert [each.result() for each in [threads.submit(look) for _ in range(4)]] == [0] * 4


def test_a_file_that_is_no_history_is_reported_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "jobs.sqlite"
    file.write_bytes(b"something else, and long enough to be looked at" * 10)
    with pytest.raises(JobError, match=r"jobs\.sqlite cannot be used"):
        History(file).page()


def test_secrets_are_not_shown() -> None:
    secrets = Secrets({"u": "sig=SENTINEL"}, {"K": "hush"})
    assert "SENTINEL" not in repr(secrets) and "hush" not in repr(secrets)
    assert replace(secrets, env={}).sas == {"u": "sig=SENTINEL"}


def test_each_change_of_an_elastic_jobs_nodes_is_kept_with_its_time(history: History) -> None:
    record = add(history, "me_1_aa", min_nodes=1, max_nodes=4)
    changes = (NodeChange(10.0, 0, 1), NodeChange(11.0, 1, 1))
    info = RunInfo("me_1_aa", State.RUNNING, changes=changes)
    assert history.update(record, info).info.changes == changes
    # A backend that knows only the current state reports the same repeatedly.
    again = history.update(record, replace(info, changes=(NodeChange(12.0, 1, 1),)))
    assert again.info.changes == changes
    asked = history.ask_scale(again, 3, 13.0)
    assert asked.info.changes == (*changes, NodeChange(13.0, 1, 3))
    later = NodeChange(15.0, 3, 3)
    grown = history.update(asked, replace(info, changes=(*changes, later)))
    assert grown.info.changes == (*asked.info.changes, later)
    assert history.find("aa").info.changes == grown.info.changes
    # An earlier change is sorted before known ones.
    between = NodeChange(14.0, 2, 3)
    grown = history.update(grown, replace(info, changes=(*changes, between, later)))
    assert grown.info.changes == (*asked.info.changes, between, later)
    # Changes that a backend has forgotten are kept.
    assert history.update(grown, RunInfo("me_1_aa", State.UNKNOWN)).info.changes == grown.info.changes
    assert add(history, "me_1_bb").info.changes == () == history.find("bb").info.changes


def states(record: JobRecord) -> list[tuple[str, float, bool]]:
    """The states of a job since its submission: when each began, and whether only the observation is known."""
    return [(span.state.value, round(span.start - record.submitted), span.seen) for span in spans_of(record)]


def submitted_before(history: History, seconds: float) -> JobRecord:
    spec = make_spec("echo", run_id="me_1_aa")
    ref = JobRef(spec.run_id, "1", "/x")
    return history.add(spec, ref, "slurm", submitted=time.time() - seconds)


def test_a_state_that_nobody_told_the_time_of_was_seen_when_it_was_asked_for(history: History) -> None:
    record = submitted_before(history, 100)
    for state in (State.QUEUED, State.PREPARING, State.PREPARING, State.RUNNING, State.RUNNING):
        record = history.update(record, RunInfo("me_1_aa", state))
    known = [("Queued", 0, False), ("Preparing", 100, True), ("Running", 100, True)]
    assert [state for state in states(record) if state[0] != "Preparing"] == [known[0], known[2]]
    assert [change.state.value for change in record.states] == ["Preparing", "Running"], "asked twice, told once"
    assert history.find("aa").states == record.states
    failed = history.update(record, RunInfo("me_1_aa", State.FAILED, 1))
    assert states(failed)[-1] == ("Failed", 100, True)


def test_a_time_that_the_cluster_tells_counts_more_than_when_it_was_asked(history: History) -> None:
    record = submitted_before(history, 100)
    began = record.submitted
    record = history.update(record, RunInfo("me_1_aa", State.RUNNING))
    told = (StateChange(began + 10, State.PREPARING), StateChange(began + 20, State.RUNNING))
    record = history.update(record, RunInfo("me_1_aa", State.RUNNING, started=began + 10, states=told))
    assert states(record) == [("Queued", 0, False), ("Preparing", 10, False), ("Running", 20, False)]
    ended = history.update(record, RunInfo("me_1_aa", State.COMPLETED, 0, started=began + 10, ended=began + 90))
    assert states(ended)[2:] == [("Running", 20, False), ("Completed", 90, False)]
    assert states(history.find("aa")) == states(ended), "what a cluster has forgotten stays"


def test_what_was_told_of_a_moment_is_not_told_otherwise_later(history: History) -> None:
    record = submitted_before(history, 100)
    began = record.submitted
    told = (StateChange(began + 10, State.PREPARING), StateChange(began + 20, State.RUNNING))
    record = history.update(record, RunInfo("me_1_aa", State.RUNNING, states=told))
    before = states(record)
    # A larger job would not have run with those nodes.
    now = (*told[:1], StateChange(began + 20, State.PREPARING), StateChange(began + 40, State.RUNNING))
    record = history.update(record, RunInfo("me_1_aa", State.RUNNING, states=now))
    assert states(record) == before == states(history.find("aa"))


def test_a_job_that_is_preempted_waits_and_runs_again(history: History) -> None:
    record = submitted_before(history, 1000)
    began = record.submitted
    history.update(record, RunInfo("me_1_aa", State.RUNNING, started=began + 10))
    # It was not queried while it waited again: its new start and the number of restarts show it.
    again = history.update(history.find("aa"), RunInfo("me_1_aa", State.RUNNING, restarts=1, started=began + 500))
    told = [moment.text for moment in moments_of(again, began + 600)]
    assert told == ["Queued", "Running", "Running again"]
    assert [moment.seconds for moment in moments_of(again, began + 600)] == [10, 490, 100]
    waits = history.update(again, RunInfo("me_1_aa", State.QUEUED, restarts=2))
    assert states(waits)[-1] == ("Queued", 1000, True)
    # An accounting that does not count restarts does not undo them.
    over = history.update(waits, RunInfo("me_1_aa", State.FAILED, 1, started=began + 1010, ended=began + 1020))
    assert over.info.restarts == 2
    assert [moment.text for moment in moments_of(over, 0.0)][-3:] == ["Queued again", "Running again", "Failed"]


def test_how_long_a_state_lasted_fits_the_seconds_that_are_shown_beside_it(history: History) -> None:
    began = 1_795_000_000.9
    record = history.add(make_spec("echo", run_id="me_1_aa"), JobRef("me_1_aa", "1", "/x"), "slurm", submitted=began)
    told = (StateChange(began + 0.2, State.PREPARING), StateChange(began + 1.0, State.RUNNING))
    record = history.update(
        record, RunInfo("me_1_aa", State.COMPLETED, 0, started=began + 0.2, ended=began + 2.2, states=told)
    )
    moments = moments_of(record, began + 60)
    shown = [int(moment.at) for moment in moments]
    assert [moment.seconds for moment in moments] == [after - at for at, after in pairwise(shown)] + [None]
    assert seconds_of(record) == shown[-1] - shown[1]


def test_a_job_that_was_asked_to_stop_is_one_until_it_has_stopped(history: History) -> None:
    record = submitted_before(history, 100)
    record = history.update(record, RunInfo("me_1_aa", State.RUNNING, started=record.submitted + 10))
    history.ask_cancel(record)
    runs = history.update(history.find("aa"), RunInfo("me_1_aa", State.RUNNING, started=record.submitted + 10))
    assert states(runs)[2:] == [("Canceling", 100, False)]
    ended = history.update(runs, RunInfo("me_1_aa", State.CANCELED, ended=record.submitted + 110))
    assert states(ended)[2:] == [("Canceling", 100, False), ("Canceled", 110, False)]


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_job_that_was_canceled_while_it_waited_never_ran_unless_it_was_restarted(
    history: History, tmp_path: Path, restarts: int
) -> None:
    record = add(history, "me_1_0badcafe", folders=(FolderLink("output", "https://a/c", "o", "upload"),))
    history.update(record, RunInfo(record.run_id, State.CANCELED, restarts=restarts, ended=time.time()))
    (job,) = writing_jobs(tmp_path, {}, tmp_path / ".blobsync" / "jobs.sqlite", 0.0)
    assert job.ran == (restarts > 0)
