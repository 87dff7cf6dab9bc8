"""Which jobs a command takes that the user did not name; outputs on the disk of a linked folder; and the command line
that a form exports, which asks for the same."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pytest

from blobsync.backends.local.run_files import RunFiles
from blobsync.jobs.context import JobContext
from blobsync.jobs.form.filled import JobForm, check_form
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.spec import FolderLink, JobRef, RunInfo, State, TaskArray, TaskInfo
from blobsync.jobspec.sweep import sweep
from blobsync.project.api import Project
from tests.cli.conftest import Cli
from tests.fakes.jobs import make_spec

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
    files.write_status(State.QUEUED)
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
    runs.write_status(State.CANCELED)
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
    runs.write_status(State.FAILED, 1)
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


@pytest.mark.parametrize("word", ["logs", "q", "parse", "outputs", "abort", "resubmit"])
def test_a_task_of_a_transfer_is_taken_with_all_others(cli: Cli, runs: RunFiles, word: str) -> None:
    history = JobContext(cli.root, os.environ).history
    spec = make_spec(cluster="aml", platform="local", tasks=TaskArray(2, 2), options={"spread": {"detach": True}})
    record = history.add(spec, JobRef(spec.run_id, spec.run_id, "/gone"), "local")
    history.update(record, RunInfo(spec.run_id, State.COMPLETED))
    refused = cli(word, f"{spec.run_id}/1")
    assert refused.code == 2 and f"{spec.run_id} is a transfer, which commands take as a whole" in refused.err
    assert f"blobsync logs {spec.run_id} -F shows the lines of all of them" in refused.err


def test_the_list_is_shown_anew_until_all_have_ended(cli: Cli, runs: RunFiles) -> None:
    runs.write_status(State.FAILED, 1)
    shown = cli("q", "--watch")
    assert shown.code == 0 and shown.out.count("STATUS") == 1 and "all of them have ended" in shown.err
    assert cli("q", "--watch", "--json").code == 2


RUN = "me_1700000000_0badcafe"
URL = "http://127.0.0.1:9/acct/cont"


def job_of(cli: Cli, shared_root: str) -> JobRecord:
    """A job that has ended, with an output folder of its own below ``shared_root``."""
    cli.write("aux_data/aml/uni.yaml", (cli.root / "aux_data/aml/aml.yaml").read_text() + "platform: slurm\n")
    folder = FolderLink("output", URL, "p/output", "link", source=f"{shared_root}/output")
    own = {"own_output": "output"}
    spec = make_spec(run_id=RUN, cluster="uni", platform="slurm", folders=(folder,), options=own)
    history = JobContext(cli.root, os.environ).history
    return history.update(history.add(spec, JobRef(RUN, "7"), "slurm"), RunInfo(RUN, State.COMPLETED))


@pytest.mark.parametrize("words", [(), ("output",), ("a.txt",)])
def test_what_a_shared_root_has_comes_into_the_project(cli: Cli, words: tuple[str, ...]) -> None:
    job_of(cli, f"{cli.root}/there")
    cli.write(f"there/output/{RUN}/a.txt", "12345")
    listed = cli("outputs", RUN)
    assert listed.code == 0 and "which is not the project's folder: --download copies from there" in listed.err
    done = cli("--json", "outputs", RUN, *words, "--download")
    assert (done.code, done.document["data"]["copied"]) == (0, 1)
    assert (cli.root / f"output/{RUN}/a.txt").read_text() == "12345"
    assert done.document["data"]["files"][0]["on_disk"] == f"{cli.root}/there/output/{RUN}/a.txt"
    again = cli("outputs", RUN, "--download")
    assert (again.code, again.out) == (0, f"in the project already: output/{RUN}/a.txt\n")
    (cli.root / f"output/{RUN}/a.txt").write_text("other")
    conflict = cli("outputs", RUN, "--download")
    assert conflict.code == 3 and "the project has another version" in conflict.err
    assert (cli.root / f"output/{RUN}/a.txt").read_text() == "other"


def test_files_of_the_projects_own_folder_are_there_already(cli: Cli) -> None:
    job_of(cli, str(cli.root))
    for name in ("a.txt", "b.txt"):
        cli.write(f"output/{RUN}/{name}", "12345")
    done = cli("outputs", RUN, "--download")
    assert (done.code, done.out) == (0, f"in the project already: output/{RUN}/a.txt and 1 more file\n")


def test_missing_outputs_are_a_failure(cli: Cli) -> None:
    job_of(cli, "/not/mounted")
    done = cli("outputs", RUN, "--download")
    assert done.code == 4 and "output of this job is /not/mounted/output, which is not there" in done.err
    assert cli("outputs", RUN).code == 0


FORMS: tuple[Mapping[str, str], ...] = (
    {"command": "python train.py --lr 0.1"},
    {"command": 'for i in 1 2; do echo "$i"; done', "num_gpu": "0"},
    {
        "command": "python 'a b.py'",
        "name": "it's one",
        "num_gpu": "2",
        "single": "yes",
        "env": "A=two words\nB=c=d",
        "setup": "pip install x\nmake",
        "folder_mode:data": "download",
        "folder_parts:data": "coco; voc/2012",
        "other": "{runtime: {keep_root: always}}",
    },
)


@pytest.mark.parametrize("values", FORMS)
def test_the_exported_command_line_with_dry_run_gives_the_same_request(cli: Cli, values: Mapping[str, str]) -> None:
    text = (cli.root / "aux_data/aml/aml.yaml").read_text()
    cli.write("aux_data/aml/here.yaml", f"platform: local\n{text}")
    found = check_form(cli.root, JobForm("here", values), os.environ).asked
    assert found
    words = list(found.command_line[1:])
    place = words.index("submit") + 1
    printed = cli(*words[:place], "--dry-run", *words[place:])
    assert printed.code == 0, printed.err
    with Project.open(cli.root, cluster="here", overrides=found.overrides) as project:
        planned = project.jobs.plan(found.argv, **found.keywords)
    assert _without_id(printed.out) == _without_id(planned.shown + "\n")


def _without_id(text: str) -> str:
    return re.sub(r"[a-z0-9-]+_[0-9]{9,11}_[0-9a-f]{8}", "ID", text)
