from __future__ import annotations

import time
from dataclasses import replace

import pytest

from blobsync.cli.jobs import job_data, job_details, job_rows, job_table
from blobsync.cli.keep import checkpoint_lines
from blobsync.cli.tables import table
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.spec import JobRef, NodeChange, RunInfo, State, StateChange
from blobsync.project.checkpoints import Checkpoint
from tests.documents import check_data
from tests.fakes.jobs import make_spec

SPEC = make_spec("sleep", "9")


def record(state: State, *, waited: float = 0.0, ran: float | None = None, ended: float | None = None) -> JobRecord:
    """Submitted, started and ended so many seconds ago."""
    now = time.time()
    started = None if ran is None else now - ran
    info = RunInfo(SPEC.run_id, state, started=started, ended=None if ended is None else now - ended)
    return JobRecord(SPEC, JobRef(SPEC.run_id, "1", ""), "local", info, now - waited)


@pytest.mark.parametrize(
    ("state", "times", "line", "column", "seconds"),
    [
        (State.RUNNING, {"waited": 90_000, "ran": 7501}, "running for:   2h 5m", "2h 5m", 7501),
        (State.CANCELING, {"waited": 90_000, "ran": 7501}, "running for:   2h 5m", "2h 5m", 7501),
        (State.QUEUED, {"waited": 3661}, "waiting for:   1h 1m", "1h 1m", None),
        (State.COMPLETED, {"waited": 9000, "ran": 7502, "ended": 1}, " after 2h 5m", "2h 5m", 7501),
        (State.CANCELED, {"waited": 900}, None, "", None),
        (State.UNKNOWN, {"waited": 3661}, None, "1h 1m", None),
    ],
)
def test_how_long_a_job_runs_is_reported_while_it_runs(
    state: State, times: dict[str, float], line: str | None, column: str, seconds: int | None
) -> None:
    job = record(state, **times)
    details = list(job_details(job))
    if line:
        assert any(line in text for text in details), details
    else:
        assert not [text for text in details if text.startswith(("ended", "running", "waiting"))]
    heading, row = job_table([job])
    assert row[heading.index("TIME") : heading.index("CLUSTER")].strip() == column
    check_data("a", {"jobs": [job_data(job)]})
    elapsed = job_data(job)["elapsed_seconds"]
    assert elapsed is None if seconds is None else abs(elapsed - seconds) <= 1


def test_a_narrow_table_has_what_a_job_is_known_by_first() -> None:
    job = record(State.RUNNING, waited=900, ran=600)
    named = replace(job, spec=replace(job.spec, name="big-run"))
    for columns in (40, 80, 120):
        lines = list(table(job_rows([job, named]), columns))
        assert max(map(len, lines)) <= columns
        heading = lines[0].split()
        assert (heading[:3], "NAME" in heading) == (["ID", "STATUS", "AGE"], True) or columns == 40
        id, state, *_ = lines[1].split()
        assert (job.run_id.endswith(id), state) == (True, "Running")
        assert "big-run" in lines[2]


def test_a_narrow_table_of_tasks_has_their_states_and_parameters() -> None:
    rows = [("TASK", "STATUS", "lr", "seed", "MINUTES", "LAST LINE")]
    rows += [(str(number), "Failed (137)", "0.01", "4", "12.5", "step 2 loss 0.433") for number in range(2)]
    assert list(table(rows, 40))[1] == "0     Failed (137)  0.01  4     step ..."
    assert list(table(rows, 80))[1] == "0     Failed (137)  0.01  4     12.5     step 2 loss 0.433"


def test_facts_of_a_job_break_between_words_and_its_command_stays_whole() -> None:
    job = record(State.COMPLETED, waited=9000, ran=7502, ended=1)
    job = replace(job, spec=replace(job.spec, argv=("python", "train.py", "--data", "data/voc20", "--epochs", "20")))
    lines = list(job_details(job, 40))
    assert "command:       python train.py --data data/voc20 --epochs 20" in lines
    ended = next(number for number, line in enumerate(lines) if line.startswith("ended:"))
    assert lines[ended].endswith("Z") and lines[ended + 1] == "    after 2h 5m"
    assert not [line for line in lines if len(line) > 40 and " " in line[15:] and not line.startswith("command:")], (
        lines
    )


def test_a_job_that_was_taken_off_its_machine_waits_again() -> None:
    job = record(State.QUEUED, waited=900, ran=600)
    details = list(job_details(replace(job, info=replace(job.info, restarts=1))))
    assert any(text.startswith("waiting for:") for text in details)


def test_the_states_of_a_job_and_its_sizes_stand_in_their_order_with_how_long_each_lasted() -> None:
    began = float(round(time.time()) - 1000)
    told = (
        StateChange(began + 60, State.PREPARING),
        StateChange(began + 65, State.RUNNING),
        StateChange(began + 400, State.QUEUED, seen=True),
        StateChange(began + 900, State.RUNNING, restarts=1),
    )
    info = RunInfo(SPEC.run_id, State.RUNNING, restarts=1, changes=(NodeChange(began + 70, 2, 3, seen=True),))
    spec = replace(SPEC, min_nodes=1, max_nodes=4)
    job = JobRecord(spec, JobRef(SPEC.run_id, "1", ""), "local", info, began, states=told)
    lines = list(job_details(job))
    first = next(number for number, line in enumerate(lines) if line.startswith("over time:"))
    assert [line[14:].split("Z  ")[1] for line in lines[first:-1]] == [
        "Queued, 1m 0s",
        "Preparing, 5s",
        "Running, 5m 35s",
        "2 nodes, 3 wanted (seen then)",
        "Queued again, 8m 20s (seen then)",
    ]
    assert lines[-1].partition("Z  ")[2].startswith("Running again, 1m ")
    data = job_data(job)
    check_data("a", {"jobs": [data]})
    assert [(one["state"], one["seen"]) for one in data["states"]] == [
        ("Queued", False), ("Preparing", False), ("Running", False), ("Queued", True), ("Running", False),
    ]  # fmt: skip
    assert data["states"][0]["until"] == data["states"][1]["time"] and data["states"][-1]["until"] is None
    assert data["elastic"]["changes"][0]["seen"]


def test_what_is_said_of_a_checkpoint_has_a_line_of_its_own_where_its_row_has_no_room() -> None:
    half = Checkpoint("output/step-3", 3, None, 1, 7, "none", "half", missing="it has no trainer_state.json yet")
    found = [half, Checkpoint("output/step-2", 2, 1_795_811_570.0, 2, 12, "none", "complete", is_next=True)]
    head, first, missing, second, taken = checkpoint_lines(found, 80)
    assert max(map(len, (head, first, missing, second, taken))) <= 80
    assert (missing, taken) == ("    it has no trainer_state.json yet", "    a restart takes it")
    assert [line.split("  ")[0] for line in (head, first, second)] == ["CHECKPOINT", "output/step-3", "output/step-2"]
    in_a_pipe = list(checkpoint_lines(found, 0))
    assert [line.rpartition("  ")[2] for line in in_a_pipe[1:]] == [missing.strip(), taken.strip()]
    assert in_a_pipe[1].index(missing.strip()) == in_a_pipe[2].index(taken.strip())
