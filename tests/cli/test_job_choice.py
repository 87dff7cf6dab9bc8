"""Which jobs a command takes that the user did not name."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from blobsync.backends.local.run_files import RunFiles, SavedState
from blobsync.jobs.context import JobContext
from blobsync.jobspec.spec import JobRef, RunInfo, State, TaskInfo
from blobsync.jobspec.sweep import sweep
from tests.fakes.jobs import make_spec

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

OLD, NEW = "me_1700000000_0badcafe", "me_1700000001_600dcafe"


@pytest.fixture
def runs(cli: Cli) -> RunFiles:
    """Two jobs on this machine, one that has failed and a newer one that is queued."""
    cli.write("aux_data/aml/aml.yaml", (cli.root / "aux_data/aml/aml.yaml").read_text() + "platform: local\n")
    context = JobContext(cli.root, os.environ)
    for number, run_id in enumerate((OLD, NEW)):
        spec = make_spec("train", run_id=run_id, cluster="aml", platform="local", secret_env=("HUB_TOKEN",))
        record = context.history.add(spec, JobRef(run_id, run_id, "/gone"), "local", submitted=1.7e9 + number)
        if run_id == OLD:
            context.history.update(record, RunInfo(run_id, State.FAILED, exit_code=3))
    files = RunFiles(context.state.root / "jobs" / NEW)
    files.folder.mkdir(parents=True)
    files.write_status(SavedState(State.QUEUED))
    return files


@pytest.mark.parametrize("words", [("abort",), ("a", "--all"), ("abort", "--all", "-c", "aml")])
def test_jobs_that_were_not_named_are_stopped_after_a_yes_alone(
    cli: Cli, runs: RunFiles, words: tuple[str, ...]
) -> None:
    with runs.supervised():
        refused = cli(*words)
        assert refused.code == 2 and "cannot ask: stop 1 job: 600dcafe (Queued: train)?" in refused.err
        assert "add -y to answer yes" in refused.err and not runs.cancel.exists()
        assert cli(*words, "-y").out == f"{NEW}: Canceling\n"
        assert runs.cancel.exists()
    runs.write_status(SavedState(State.CANCELED))
    assert cli("abort").out == f"{NEW}: Canceled\n", "nothing is stopped, so nothing is asked"
    done = cli("abort", "--all")
    assert (done.code, done.out) == (0, "") and "no job is queued or running" in done.err


def test_all_and_a_name_are_two_choices(cli: Cli, runs: RunFiles) -> None:
    said = {"abort --all": f"--all and {OLD} are two choices of jobs", "resubmit --failed": f"{OLD} has no tasks"}
    for words, why in said.items():
        refused = cli(*words.split(), OLD)
        assert refused.code == 2 and why in refused.err
    assert not runs.cancel.exists()
    assert cli("abort", "--all", "-y", "-c", "other").code == 0 and not runs.cancel.exists()


def test_commands_without_an_id_take_the_newest_job_and_say_so(cli: Cli, runs: RunFiles) -> None:
    runs.write_status(SavedState(State.FAILED, 1))
    for word in ("outputs", "parse", "logs"):
        assert f"the newest job: {NEW}" in cli(word).err, word
    said = cli("resubmit", "--failed")
    assert said.code == 2 and "submit again 2 jobs: 0badcafe (Failed: train), 600dcafe (Failed: train)?" in said.err
    done = cli("--json", "resubmit", "--failed", "-y")
    assert done.code == 2 and [("HUB_TOKEN" in each["message"]) for each in done.document["errors"]] == [True, True]


def test_a_task_whose_end_is_not_known_is_not_submitted_again_in_silence(cli: Cli, runs: RunFiles) -> None:
    history = JobContext(cli.root, os.environ).history
    spec = make_spec("train", cluster="aml", platform="local", secret_env=("HUB_TOKEN",), tasks=sweep(["n=0..2"]))
    states = (State.COMPLETED, State.FAILED, State.UNKNOWN)
    tasks = tuple(TaskInfo(number, state) for number, state in enumerate(states))
    record = history.add(spec, JobRef(spec.run_id, spec.run_id, "/gone"), "local", submitted=1.7e9 + 9)
    history.update(record, RunInfo(spec.run_id, State.FAILED, 1, tasks=tasks))
    last = spec.run_id.rpartition("_")[2]
    said = cli("resubmit", spec.run_id, "--failed").err
    assert f"{last}: 1 failed task: 1" in said
    assert f"not submitted again, 1 task whose end is not known: 2; blobsync resubmit {last}/2" in said


def test_the_list_is_shown_anew_until_all_have_ended(cli: Cli, runs: RunFiles) -> None:
    runs.write_status(SavedState(State.FAILED, 1))
    shown = cli("q", "--watch")
    assert shown.code == 0 and shown.out.count("STATUS") == 1 and "all of them have ended" in shown.err
    assert cli("q", "--watch", "--json").code == 2
