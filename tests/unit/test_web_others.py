"""Pages about other processes' transfers, and about other clusters."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.base.process_identity import ProcessMark
from blobsync.base.redaction import register_secret
from blobsync.jobs.history import History
from blobsync.jobspec.spec import JobRef, JobSpec, RunInfo, State, TaskInfo
from blobsync.jobspec.sweep import sweep
from blobsync.local.running_records import RunningRecords
from blobsync.local.state_dir import StateDir, open_state_dir
from blobsync.plan.progress import Progress, WorkerProgress
from blobsync.plan.transfer_options import NO_LIMIT
from blobsync.plan.transfer_plan import Direction
from blobsync.project.keeper_records import keeper_state
from blobsync.project.transfer_history import TransferEntry, TransferLog
from blobsync.web.open_project import Source
from tests.fakes.jobs import make_spec
from tests.fakes.web_pages import WebPages, words_of
from tests.unit.project_files import ProjectFiles

_ACCOUNT = {"account_name": "a", "account_key": "U0VOVElORUw=", "blob_endpoint": "http://127.0.0.1:9/a"}
_FAR = Progress(
    "moving", 9.0, files=3, files_expected=8, bytes=43_000, bytes_expected=100_000, rate=2e6, seconds_left=120.0,
    workers=(WorkerProgress("process 17", 2, 30_000, 1_500_000.0), WorkerProgress("process 18", 1, 13_000, 500_000.0)),
)  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Source:
    for name in ("aml", "eu"):
        entry = {"azure_blob_config_file": f"aux_data/configs/{name}.yaml", "path": "d"}
        folders = {"data_folder": entry} | ({"models_folder": entry} if name == "eu" else {})
        for file, value in (
            (f"configs/{name}.yaml", {**_ACCOUNT, "container_name": f"box-{name}"}),
            (f"aml/{name}.yaml", {"config_param": folders}),
        ):
            path = tmp_path / "aux_data" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(value))
            path.chmod(0o600)
    return Source(tmp_path, tmp_path, None, "aml", {}, {"HOME": str(tmp_path)})


@pytest.fixture
def state(source: Source) -> StateDir:
    return open_state_dir(source.root, source.environ)


@pytest.fixture
def pages(source: Source, tmp_path: Path) -> Iterator[WebPages]:
    made = WebPages(source, tmp_path)
    yield made
    made.close()


@pytest.fixture
def command() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def _begin(state: StateDir, pid: int, command: str = "blobsync u data/x") -> TransferEntry:
    entry = TransferEntry("upload", ("data/x",), command=command, planned=8, pid=pid, id="0123abcd")
    TransferLog(state.root / "jobs.sqlite").write(entry)
    return entry


def _tell(state: StateDir, entry: TransferEntry, *, stoppable: bool = True, ago: float = 0.0, **more: Any) -> None:
    known = {"id": entry.id, "pid": entry.pid, "born": ProcessMark.of(entry.pid).born, "host": entry.host}
    told = {"stoppable": stoppable, "told": time.time() - ago, "progress": _FAR.values()}
    RunningRecords(state).write(entry.id, {**known, **told, **more})


def test_a_transfer_started_in_a_terminal_is_shown_live_with_its_workers_and_can_be_cancelled(
    pages: WebPages, state: StateDir, command: subprocess.Popen[bytes]
) -> None:
    entry = _begin(state, command.pid)
    assert "starting" in words_of(pages.get("/transfers").text), "it has not reported any progress yet"
    _tell(state, entry)
    page = pages.get("/transfers").text
    said = words_of(page)
    for words in (
        "43 %",
        "of 100 KB",
        "3 of 8",
        "2 MB/s",
        "2 min",
        "process 17 2 30",
        "process 18 1 13",
        entry.command,
    ):
        assert words in said, words
    assert 'data-live="/transfers/live?active=0123abcd"' in page
    _tell(state, replace(entry, planned=8))
    assert "43 %" in words_of(pages.parts("/transfers/live?active=0123abcd")["task-0123abcd"])
    assert pages.parts("/transfers/live?active=")["load"] == "/transfers", "a new transfer began"
    assert pages.post("/transfers/running/0123abcd/cancel").status == 303
    assert RunningRecords(state).is_stop_requested("0123abcd") and command.poll() is None
    command.kill()
    command.wait()
    assert pages.parts("/transfers/live?active=0123abcd")["load"] == "/transfers", "the transfer has ended"
    assert "killed" in words_of(pages.get("/transfers").text)
    assert pages.post("/transfers/running/0123abcd/cancel").status == 404


def test_a_transfer_started_in_a_terminal_is_shown_while_planned_and_then_with_its_rate_curve(
    pages: WebPages, state: StateDir, command: subprocess.Popen[bytes]
) -> None:
    entry = TransferEntry("copy", ("data/<x>",), pid=command.pid, id="89abcdef")
    known: dict[str, Any] = {
        "kind": entry.kind,
        "paths": entry.paths,
        "command": "blobsync -f eu u data",
        "began": entry.began,
    }
    _tell(state, entry, **known, user="amber", planning=True, progress=Progress("surveying", 2.0, looked=1234).values())
    page = pages.get("/transfers").text
    said = words_of(page)
    for words in (
        "copy data/&lt;x&gt;",
        "planning, nothing moves yet: 1,234 names",
        "by amber on",
        "blobsync -f eu u data",
    ):
        assert words in said, words
    assert "/history/89abcdef" not in page and "/transfers/running/89abcdef/cancel" in page
    # The same process now moves files, under the id of its history entry.
    RunningRecords(state).remove(entry.id)
    _tell(state, _begin(state, command.pid), points=[(0.5, 0, 0.0), (1.0, 500_000, 1e6), (1.5, 1_500_000, 2e6)])
    assert pages.parts("/transfers/live?active=89abcdef")["load"] == "/transfers"
    drawn = pages.parts("/transfers/live?active=0123abcd")["task-0123abcd"]
    assert 'aria-label="Rate over time, at most 2 MB a second"' in drawn and "<polygon" in drawn
    assert pages.post("/transfers/running/0123abcd/cancel").status == 303
    assert RunningRecords(state).is_stop_requested("0123abcd")


def test_a_transfer_of_the_history_names_what_failed(pages: WebPages, state: StateDir) -> None:
    name = "20261120T101112Z-0123abcd.json"
    entry = TransferEntry("upload", ("data",), id="0123abcd", receipt=name, planned=502, failed=501, conflicts=1)
    TransferLog(state.root / "jobs.sqlite").write(entry.ended("partial"))
    failures = [{"path": f"data/<{number}>", "code": "io", "message": "is a pipe"} for number in range(500)]
    failures.append({"path": "data/old", "code": "io"})
    (state.folder("receipts") / name).write_text(json.dumps({"failures": failures}))
    said = words_of(pages.get("/history/0123abcd").text)
    assert "data/&lt;0&gt;: is a pipe (io)" in said and "1 more failed" in said and "In conflict 1 file" in said


def test_a_transfer_that_cannot_be_cancelled_has_no_button_and_a_silent_one_says_so(
    pages: WebPages, state: StateDir, command: subprocess.Popen[bytes]
) -> None:
    entry = _begin(state, command.pid, "")
    _tell(state, entry, stoppable=False, ago=200.0)
    page = pages.get("/transfers").text
    assert "/cancel" not in page
    assert "No news of this transfer for 3 min" in words_of(page)
    answer = pages.post("/transfers/running/0123abcd/cancel")
    assert answer.status == 400 and "a program that uses blobsync" in answer.text
    assert command.poll() is None and not RunningRecords(state).is_stop_requested("0123abcd")


def test_a_transfer_that_waits_says_why_and_has_neither_a_rate_nor_a_time(
    pages: WebPages, state: StateDir, command: subprocess.Popen[bytes]
) -> None:
    entry = _begin(state, command.pid)
    waits = _FAR._replace(waiting="no connection", waiting_seconds=8.0, retrying=True, rate=0.0, seconds_left=None)
    _tell(state, entry, progress=waits.values())
    said = words_of(pages.get("/transfers").text)
    assert "no connection for 8 s, trying again" in said and "Rate – Time left –" in said, said


def test_a_page_that_there_is_not_says_what_to_do_and_leads_back(pages: WebPages) -> None:
    link = pages.get("/links")
    assert link.status == 405 and "only a button makes this page" in words_of(link.text)
    assert "this page does not exist" in words_of(pages.get("/nowhere").text)
    chosen = pages.get("/jobs/compare?job=one").text
    assert "1 jobs are selected" not in words_of(chosen) and '<a href="/jobs">Back to Jobs</a>' in chosen


def test_two_jobs_that_are_the_same_are_named(pages: WebPages, source: Source) -> None:
    history = History(open_state_dir(source.root, source.environ).root / "jobs.sqlite")
    for run_id, name in (("me_1_0badcafe", ""), ("me_2_0badcafe", "<second>")):
        spec = JobSpec(run_id, ("true",), "aml", "local", name=name)
        history.add(spec, JobRef(run_id, "n", ""), "local")
    found = pages.get("/jobs/compare?job=me_1_0badcafe&job=me_2_0badcafe").text
    begin = found.partition("<section")[0]
    assert '<a href="/jobs/me_1_0badcafe">me_1_0badcafe</a>' in begin
    assert '<a href="/jobs/me_2_0badcafe">&lt;second&gt;</a>' in begin


def test_the_project_page_of_another_cluster_keeps_it_in_forms_and_links(pages: WebPages) -> None:
    own, other = pages.get("/").text, pages.get("/?cluster=eu").text
    hidden = '<input type="hidden" name="cluster" value="eu">'
    assert hidden not in own and "<option selected>aml" in own and "models" not in own
    assert "<option selected>eu" in other and 'value="models"' in other
    assert other.count(hidden) == other.count('name="form_token"')
    assert 'data-live="/project/live?cluster=eu"' in other
    entries = pages.parts("/project/live?cluster=eu")["entries"]
    for _ in range(600):
        if "/browse?" in entries:
            break
        time.sleep(0.1)
        entries = pages.parts("/project/live?cluster=eu")["entries"]
    assert "/browse?path=models&amp;cluster=eu" in entries and "box-eu" in entries
    assert pages.get("/?cluster=../../x").status == 400
    assert "there is no cluster" in pages.get("/browse?path=data&cluster=nowhere").text


def test_the_project_page_says_who_keeps_a_folder_uploaded(
    pages: WebPages, state: StateDir, command: subprocess.Popen[bytes]
) -> None:
    born, now = ProcessMark.of(command.pid).born, time.time()
    known = replace(
        keeper_state(["data/<b>"], ["/x/data/<b>"]), pid=command.pid, born=born, uploaded=12, waiting=2,
        problem="the service does not answer", problem_since=now - 600, last_round=now - 700,
    )  # fmt: skip
    assert "kept" not in words_of(pages.parts("/project/live")["entries"])
    RunningRecords(state, "keepers").write(known.id, asdict(known))
    said = words_of(pages.parts("/project/live")["entries"])
    for words in (
        f"kept data/&lt;b&gt; by process {command.pid} of ",
        "12 files uploaded",
        "2 files waiting",
        "nothing works for 10 min: the service does not answer",
    ):
        assert words in said, said
    command.kill()
    command.wait()
    assert "kept" not in words_of(pages.parts("/project/live")["entries"])


def test_a_password_that_is_an_html_word_is_hidden_in_values_and_breaks_no_page(pages: WebPages) -> None:
    register_secret("charset")
    register_secret("form_token")
    page = pages.get("/").text
    assert "<meta charset=" in page and 'name="form_token"' in page
    answer = pages.get("/browse?path=data&cluster=charset").text
    assert "&#39;***&#39;" in words_of(answer) and "charset" not in words_of(answer)


def test_nothing_is_counted_of_a_cluster_without_a_platform(pages: WebPages, source: Source) -> None:
    file = source.root / "aux_data/aml/eu.yaml"
    offered = ("/clusters/eu/free", "/new-job?cluster=eu")
    assert not [each for each in offered if each in pages.get("/clusters").text]
    file.write_text(file.read_text() + "\nplatform: local\n")
    assert not [each for each in offered if each not in pages.get("/clusters").text]


def test_a_new_job_has_fields_for_the_checkpoints_of_its_folders(pages: WebPages, source: Source) -> None:
    entry = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": "d"}
    kept = {"mode": "upload", "checkpoints": "step-*", "complete": ["a.json", "../latest"], "keep_last": 3}
    folders = {"data_folder": entry, "output_folder": {**entry, "path": "o", **kept}}
    (source.root / "aux_data/aml/aml.yaml").write_text(yaml.safe_dump({"platform": "local", "config_param": folders}))

    shown = pages.get("/new-job?cluster=aml").text
    assert "<details><summary>Checkpoints of data</summary>" in shown
    assert "<details open><summary>Checkpoints of output</summary>" in shown
    # What the cluster file says is in the empty fields.
    for name, hint in (("checkpoints", "step-*"), ("complete", "a.json; ../latest"), ("keep_last", "3")):
        field = re.search(rf'<input id="folder_{name}-2" name="folder_{name}:output"[^>]*>', shown)
        assert field and f'placeholder="{hint}"' in field[0] and 'value=""' in field[0], shown
    assert '<label for="folder_keep_last-2">Keep the last</label>' in shown

    typed = {"cluster": "aml", "command": "true", "folder_keep_last:data": "2", "folder_restore:output": "first"}
    mistakes = {
        one["field"]: one["message"] for one in json.loads(pages.post("/new-job/check", **typed).text)["mistakes"]
    }
    assert mistakes == {
        "folder_keep_last:data": "counts only with checkpoints: PATTERN beside it",
        "folder_restore:output": "'first' is none of latest, best, own, none, and no step",
    }
    checked = pages.post("/new-job", **typed, do="check").text
    assert "<details open><summary>Checkpoints of data</summary>" in checked
    assert "Restore (output) : &#39;first&#39; is none of latest, best" in words_of(checked)
    typed = {"cluster": "aml", "command": "true", "folder_keep_last:output": "2", "folder_restore:output": "none"}
    line = html.unescape(words_of(json.loads(pages.post("/new-job/check", **typed).text)["aside"]))
    assert '-p \'{"config_param": {"output_folder": {"restore": "none", "keep_last": 2}}}\' submit true' in line


def test_check_finds_a_quote_that_is_not_closed(pages: WebPages, source: Source) -> None:
    (source.root / "aux_data/aml/aml.yaml").write_text("platform: local\n")
    typed = {"cluster": "aml", "command": "python 'train.py"}
    checked = pages.post("/new-job", **typed, do="check").text
    assert "Please correct Command : a quote is opened and not closed" in words_of(checked), words_of(checked)
    assert re.search(r'id="mistake-command"[^>]*>a quote is opened and not closed', checked)
    (mistake,) = json.loads(pages.post("/new-job/check", **typed).text)["mistakes"]
    assert mistake["field"] == "command" and "a quote is opened and not closed" in mistake["message"]
    typed["command"] += "'"
    assert "a quote is" not in pages.post("/new-job", **typed, do="check").text


@pytest.mark.parametrize("prefix", ["singularity_", ""])
def test_the_fields_of_a_machine_and_its_tier_show_what_the_file_has(
    pages: WebPages, source: Source, prefix: str
) -> None:
    given = {"platform": "singularity", f"{prefix}instance_type": "ND40", f"{prefix}sla_tier": "Premium"}
    (source.root / "aux_data/aml/sing.yaml").write_text(yaml.safe_dump(given))
    shown = pages.get("/new-job?cluster=sing").text
    for name, hint in (("instance_type", "ND40"), ("sla_tier", "Premium")):
        field = re.search(rf'<input id="{name}" name="{name}"[^>]*>', shown)
        assert field and f'placeholder="{hint}"' in field[0] and 'value=""' in field[0], shown


def test_warnings_and_what_submit_refuses_are_shown_in_the_order_of_the_lines(pages: WebPages, source: Source) -> None:
    file = source.root / "aux_data/aml/eu.yaml"
    file.write_text(f"platform: slurm\nslrum: {{}}\n{file.read_text()}\nnoodes: 2\n")
    shown = words_of(pages.get("/clusters").text)
    places = [shown.index(words) for words in ("line 2: slrum", "line 3: config_param.code_path", "noodes: unknown")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("given", "limits"), [("", (1000, 10.0)), ("50%", (NO_LIMIT, 50.0)), ("20", (20, 100.0)), ("20 50%", (20, 50.0))]
)
def test_a_mirror_of_the_form_has_the_limits_of_max_delete(
    pages: WebPages, given: str, limits: tuple[int, float]
) -> None:
    assert 'name="max_delete"' in pages.get("/").text
    answer = pages.post("/plans", cluster="eu", act="u:data/x", mirror="on", max_delete=given)
    options = pages.tasks.find(answer.headers["location"].rpartition("/")[2]).request.options
    assert options.mirror and (options.max_delete_files, options.max_delete_percent) == limits


@pytest.mark.parametrize(("given", "cap"), [("", None), ("200", 200.0), ("0.5", 0.5)])
def test_a_plan_of_the_form_keeps_to_a_bandwidth(pages: WebPages, given: str, cap: float | None) -> None:
    assert 'name="cap_mbps"' in pages.get("/").text
    answer = pages.post("/plans", cluster="eu", act="u:data/x", cap_mbps=given)
    assert pages.tasks.find(answer.headers["location"].rpartition("/")[2]).request.options.cap_mbps == cap


def test_a_bandwidth_that_is_no_number_is_one_sentence(pages: WebPages) -> None:
    answer = pages.post("/plans", cluster="eu", act="u:data/x", cap_mbps="fast")
    assert answer.status == 400 and "the bandwidth is a number of megabits a second" in words_of(answer.text)


def test_a_removal_has_no_rate(pages: WebPages, state: StateDir) -> None:
    log = TransferLog(state.root / "jobs.sqlite")
    removal = TransferEntry("rm", ("data/x",), planned=3, deleted=2, bytes=4_000_000, id="0123abcd")
    log.write(replace(removal, result="partial", seconds=2.0))
    shown = pages.get("/transfers").text
    assert "/s" not in words_of(shown) and "Bytes by" not in shown and "4 MB" in shown
    one = words_of(pages.get("/history/0123abcd").text)
    assert "Deleted 2 of 3 files, 4 MB" in one and "Moved" not in one
    log.write(replace(removal, kind="upload", transferred=2, id="4567abcd", result="done", seconds=2.0))
    assert "fastest transfer: 2 MB/s" in words_of(pages.get("/transfers").text)


def test_a_plan_is_made_for_the_clusters_chosen_in_its_form(pages: WebPages) -> None:
    answer = pages.post("/plans", cluster="eu", from_cluster="aml", from_path="data/y/", act="u:data/x")
    task = pages.tasks.find(answer.headers["location"].rpartition("/")[2])
    request = task.request
    assert (request.direction, request.paths, request.cluster, request.from_cluster) == (
        Direction.UP,
        ("data/x",),
        "eu",
        "aml",
    )
    assert (request.options.from_path, task.cluster) == ("data/y", "eu")
    page = pages.get(answer.headers["location"]).text
    assert "Plan: copy data/x from aml to eu" in words_of(page)
    # Again with the conflicts resolved; everything else stays the same.
    again = pages.post("/plans", again=task.id, keep="both")
    settled = pages.tasks.find(again.headers["location"].rpartition("/")[2]).request
    assert settled == replace(request, options=request.options._replace(keep="both"))
    fits = pages.post("/plans", again=task.id, force="1")
    forced = pages.tasks.find(fits.headers["location"].rpartition("/")[2]).request
    assert forced == replace(request, options=request.options._replace(force=True))
    for form in ({"from_cluster": "nowhere"}, {"cluster": "nowhere"}, {"max_delete": "many"}):
        assert pages.post("/plans", act="u:data/x", **form).status == 400


def test_transfers_and_keepers_that_cannot_be_read_are_not_taken_for_none(pages: WebPages, state: StateDir) -> None:
    state.unfinished_file.mkdir()
    said = pages.get("/").text
    assert said.count("unfinished.sqlite cannot be used") == 1


def test_a_sweep_is_a_table_of_its_tasks_with_the_log_of_one(pages: WebPages, source: Source, state: StateDir) -> None:
    history = History(state.root / "jobs.sqlite")
    spec = make_spec("train", tasks=sweep(["lr=1,<b>"]), cluster="aml")
    record = history.add(spec, JobRef(spec.run_id, spec.run_id), "local")
    tasks = (TaskInfo(0, State.COMPLETED, 0, 0, 10.0, 70.0), TaskInfo(1, State.FAILED, 3, 0, 10.0, 130.0))
    history.update(record, RunInfo(spec.run_id, State.FAILED, 3, tasks=tasks))
    shown = pages.get(f"/jobs/{spec.run_id}?log=task_1/user_logs/std_log.txt").text
    said = words_of(shown)
    assert "1 of 2 done, 1 failed" in said and "0 Completed 1 1.0" in said and "1 Failed (3) &lt;b&gt; 2.0" in said, (
        said
    )
    # On a narrow screen, where there is no head, each cell says what it is.
    assert shown.count('<table class="outputs labelled">') == 1 and shown.count("<td data-label=") >= 2 * 3
    assert shown.count("<circle") == 2 and 'href="?log=task_1/user_logs/std_log.txt#log"' in shown
    assert "Size 2 tasks, each 1 node, 1 process, no GPU" in said
    for log in ("user_logs/std_log.txt", "system_logs/node_0.txt"):
        ProjectFiles(source.root).write(f"assets/{spec.run_id}/task_0/{log}", "x\n")
    assert "task 0, rank 0 task 0, node 0" in words_of(pages.get(f"/jobs/{spec.run_id}").text)
    refused = words_of(pages.get(f"/jobs/{spec.run_id}?metric=x").text)
    assert "--metric" in refused and "is not FILE:FIELD" in refused
