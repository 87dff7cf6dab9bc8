"""Requests to the local page and its forms, without a browser."""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import pytest
import yaml

from blobsync.web.open_project import Source
from tests.conftest import Azurite
from tests.e2e.world import Container, Project, hashes, kill_tree, write_tree
from tests.fakes.web_pages import WebAnswer, WebPages, words_of
from tests.servers.fault_proxy import fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

# Each rank prints its number, and ends once the file of its argument exists.
PROGRAM = """\
import os, sys, time
rank = os.environ["RANK"]
print(f"rank {rank} of {os.environ['WORLD_SIZE']}: begins <b>", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print(f"rank {rank}: ends in {os.environ['PLACE']}", flush=True)
"""

LOGS = [f"user_logs/std_log_process_{rank}.txt" for rank in (0, 1)]


def _two_clusters(project: Project, container: Container) -> Project:
    """Gives the project code and two clusters on this machine: ``here``, of two GPUs, and ``there``."""
    project.configure(container, cluster="acct")
    entry = {"azure_blob_config_file": "aux_data/configs/acct.yaml", "path": "mine/code.zip"}
    runtime = {"python": sys.executable, "scratch": f"{project.root.parent}/scratch"}
    for name in ("here", "there"):
        values = {"platform": "local", "config_param": {"code_path": entry}, "runtime": runtime, "gpu_per_node": 2}
        values |= {"local": {"gpus": 2}, "env": {"PLACE": name}}
        (project.root / f"aux_data/aml/{name}.yaml").write_text(yaml.safe_dump(values))
    (project.root / "aux_data/aml/acct.yaml").unlink()
    (project.root / "job.py").write_text(PROGRAM)
    (project.root / "old.py").write_text("1\n")
    return project


@contextmanager
def _open_pages(project: Project, folder: Path, cluster: str | None = None, **variables: str) -> Iterator[WebPages]:
    """The local page of a project."""
    environ = {**os.environ, **project.environ, **variables}
    opened = WebPages(Source(project.root, project.root, cluster, cluster or "aml", {}, environ), folder)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture
def desk(project: Project, container: Container) -> Project:
    return _two_clusters(project, container)


@pytest.fixture
def pages(desk: Project, tmp_path: Path) -> Iterator[WebPages]:
    with _open_pages(desk, tmp_path, "here") as opened:
        yield opened


def _planned(pages: WebPages) -> str:
    """The address of a plan for the upload of ``data``, which is ready."""
    address = pages.post("/plans", act="u:data").headers["location"]
    assert wait_until(lambda: "Carry out exactly this plan" in pages.get(address).text)
    return address


def _carried_out(pages: WebPages, plan: str) -> str:
    """The page of the plan's transfer, which is over."""
    address = pages.post(f"{plan}/carry-out").headers["location"]
    assert wait_until(lambda: "/history/" in pages.get(address).text)
    return pages.get(address).text


def _two_ranks(desk: Project) -> dict[str, str]:
    """The form of a job whose two ranks run until ``_go`` exists."""
    return {"cluster": "here", "command": f"python3 job.py {_go(desk)}", "num_gpu": "2", "name": "two ranks"}


def _go(desk: Project) -> Path:
    return desk.root.parent / "go"


class FinishedJob(NamedTuple):
    """A job of two ranks that has ended on ``here``; the project's code has changed since."""

    pages: WebPages
    form: dict[str, str]
    id: str


@pytest.fixture(scope="module")
def finished(azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FinishedJob]:
    folder = tmp_path_factory.mktemp("finished")
    (folder / "project").mkdir()
    (folder / "home").mkdir()
    container = Container(azurite.url, "one", azurite.keys["one"], "finished-job")
    container.create()
    desk = _two_clusters(Project(folder / "project", {"HOME": str(folder / "home")}), container)
    form = _two_ranks(desk)
    _go(desk).touch()
    with _open_pages(desk, folder, "here") as opened:
        opened.post("/new-job", **form, do="init")
        job = _job_of(opened.post("/new-job", **form, do="submit"))
        assert wait_until(partial(_is_completed, opened, job))
        (desk.root / "job.py").write_text(PROGRAM + "# more\n")
        (desk.root / "old.py").unlink()
        (desk.root / "new.py").write_text("2\n")
        assert "Uploaded the code:" in opened.post("/new-job", **form, do="init").text
        yield FinishedJob(opened, form, job)


@pytest.fixture
def running(pages: WebPages, desk: Project) -> Iterator[str]:
    """A job whose two ranks have begun and wait for ``_go``."""
    form = _two_ranks(desk)
    pages.post("/new-job", **form, do="init")
    job = _job_of(pages.post("/new-job", **form, do="submit"))
    assert wait_until(lambda: all(name in _tabs(pages, job) for name in LOGS))
    yield job
    _go(desk).touch()
    assert wait_until(partial(_is_completed, pages, job))


def _archive(container: Container) -> dict[str, str]:
    """The Python files of the code archive in the container."""
    with zipfile.ZipFile(io.BytesIO(container.get("mine/code.zip"))) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if name.endswith(".py")}


def _job_of(answer: WebAnswer) -> str:
    assert answer.status == 303, words_of(answer.text)
    return answer.headers["location"].rpartition("/")[2]


def test_code_that_was_not_published_from_here_is_refused_and_can_be_trusted(
    pages: WebPages, desk: Project, container: Container, tmp_path: Path
) -> None:
    form = {"cluster": "here", "command": "cat job.py"}
    pages.post("/new-job", **form, do="init")
    stranger = Project(tmp_path / "stranger", {"HOME": str(tmp_path / "stranger-home")})
    (tmp_path / "stranger-home").mkdir()
    shutil.copytree(desk.root, stranger.root, ignore=shutil.ignore_patterns(".blobsync"))
    (stranger.root / "job.py").write_text("evil\n")
    digest = stranger.run("--json", "-c", "here", "init").data["code_digest"]
    refused = pages.post("/new-job", **form, do="submit")
    reason = f"was not published from here, and you do not trust it yet: digest {digest}"
    assert refused.status == 400 and reason in refused.text
    button = f'value="trust-code {digest}"'
    assert button in refused.text and f"blobsync config trust-code {digest}" in refused.text
    # While one types, the request says the same, and offers the same.
    assert button in json.loads(pages.post("/new-job/check", **form).text)["aside"]
    assert pages.post("/new-job", **form, do="trust-code ../x").status == 400
    # For one job it is a field; then the command line has it as well.
    named = pages.post("/new-job", **form, code=digest, do="check")
    assert f"submit --code {digest} cat job.py" in words_of(named.text) and button not in named.text
    assert f"may now run the code {digest}" in pages.post("/new-job", **form, do=f"trust-code {digest}").text
    job = _job_of(pages.post("/new-job", **form, do="submit"))
    assert desk.run("--json", "q", job, "--no-logs").data["jobs"][0]["code_digest"] == digest


def test_synchronize_leaves_out_what_the_form_says_as_a_submission_would(
    pages: WebPages, desk: Project, container: Container
) -> None:
    file = desk.root / "aux_data/aml/here.yaml"
    file.write_text(file.read_text() + "ignore: ['*.ckpt', 'big']\n")
    # The empty field shows what counts without it.
    assert re.search(r'<textarea [^>]*name="ignore"[^>]*placeholder="\*\.ckpt\nbig"', pages.get("/new-job").text)
    form = {"cluster": "here", "command": "true"}
    for typed in ({"ignore": "old.py"}, {"other": "{ignore: [old.py]}"}):
        assert "Uploaded the code:" in pages.post("/new-job", **form, do="init").text
        assert _archive(container).keys() == {"job.py", "old.py"}
        shown = words_of(pages.post("/new-job", **form, **typed, do="init").text)
        assert "Uploaded the code:" in shown and _archive(container).keys() == {"job.py"}
        pages.post("/new-job", **form, do="init")
        _job_of(pages.post("/new-job", **form, **typed, init="yes", do="submit"))
        assert _archive(container).keys() == {"job.py"}
    refused = pages.post("/new-job", **form, other="{ignore: {a: b}}", do="init")
    assert refused.status == 400 and "ignore: must be a list of texts" in words_of(refused.text)


def test_synchronize_uploads_the_code_once_and_submits_nothing(
    pages: WebPages, desk: Project, container: Container
) -> None:
    form = _two_ranks(desk)
    first = words_of(pages.post("/new-job", **form, do="init").text)
    assert re.search(r"Uploaded the code: [0-9a-f]{12}, \d files", first), first
    assert _archive(container) == {"job.py": PROGRAM, "old.py": "1\n"}
    again = pages.post("/new-job", **form, do="init").text
    assert "The code is unchanged:" in words_of(again) and "two ranks" in again, "what was typed stays"
    assert "No jobs yet." in pages.get("/jobs").text


def test_the_log_of_a_rank_is_followed_and_goes_on_where_the_browser_was_cut_off(
    pages: WebPages, desk: Project, running: str
) -> None:
    stream = f"/jobs/{running}/log?name={LOGS[1]}&start="
    begun = pages.get(f"{stream}0", lambda said: "rank 1" in said).text
    assert _lines(begun) == ["rank 1 of 2: begins <b>"]
    _go(desk).touch()
    end = int(re.findall(r"^id: ([0-9]+)$", begun, re.MULTILINE)[-1])
    rest = pages.get(f"{stream}{end}", lambda said: "event: over" in said).text
    assert _lines(rest) == ["rank 1: ends in here"]


def test_the_page_of_a_cluster_says_who_holds_its_gpus(pages: WebPages, desk: Project, running: str) -> None:
    held = words_of(pages.get("/clusters/here/holders").text)
    assert f"2 1 Running {running}" in held, held
    assert "0 of 2 GPUs free" in words_of(pages.get("/clusters/here/free").text)
    _go(desk).touch()
    assert wait_until(partial(_is_completed, pages, running))
    # A job gives its GPUs back when its end is recorded.
    assert wait_until(lambda: "Nobody uses it" in words_of(pages.get("/clusters/here/holders").text))


def test_a_text_is_found_in_the_logs_of_all_ranks(finished: FinishedJob) -> None:
    page = finished.pages.get(f"/jobs/{finished.id}?log={LOGS[0]}&find=ENDS").text
    assert "rank 0: ends in here" in words_of(page) and "rank 0 of 2: begins &lt;b&gt;" in page
    assert 'aria-current="true">rank 0<' in page and "2 lines with" in words_of(page)
    assert f'<a href="/jobs/{finished.id}?log={LOGS[1]}&amp;find=ENDS#log">{LOGS[1]}:2</a>' in page, "links to its line"


def test_two_jobs_are_compared_with_the_files_of_their_code(finished: FinishedJob) -> None:
    pages = finished.pages
    second = _job_of(pages.post("/new-job", **{**finished.form, "num_gpu": "1"}, do="submit"))
    compared = pages.get(f"/jobs/compare?job={finished.id}&job={second}").text
    assert "1 added, 1 removed, 1 changed" in words_of(compared)
    assert re.findall(r'<li class="(\w+)">.*?</span>([^<]*)</li>', compared) == [
        ("added", "new.py"), ("removed", "old.py"), ("changed", "job.py"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("latest", "files"),
    [("", "the same"), ("yes", "1 added, 1 removed, 1 changed")],
    ids=["with its own code", "with the latest code"],
)
def test_a_job_is_submitted_again_on_another_cluster(finished: FinishedJob, latest: str, files: str) -> None:
    pages = finished.pages
    moved = _job_of(pages.post(f"/jobs/{finished.id}/resubmit", cluster="there", latest_code=latest))
    assert wait_until(partial(_is_completed, pages, moved))
    assert "rank 1: ends in" in words_of(pages.get(f"/jobs/{moved}?log={LOGS[1]}").text)
    found = words_of(pages.get(f"/jobs/compare?job={finished.id}&job={moved}").text)
    assert f"Code files {files}" in found, found
    about = words_of(pages.get(f"/jobs/{moved}").text)
    assert "Cluster there (local)" in about and f"Resubmits {finished.id}" in about


def test_a_running_job_is_stopped_when_it_is_submitted_again(pages: WebPages, desk: Project) -> None:
    form = _two_ranks(desk)
    pages.post("/new-job", **form, do="init")
    old = _job_of(pages.post("/new-job", **form, do="submit"))
    new = _job_of(pages.post(f"/jobs/{old}/resubmit", cluster="there"))
    assert f"the old job {old} was stopped: Cancel" in words_of(pages.get(f"/jobs/{new}").text)
    assert pages.post(f"/jobs/{new}/abort").status == 303


def test_an_output_on_the_disk_has_a_link_once_it_is_uploaded(
    pages: WebPages, desk: Project, container: Container
) -> None:
    entry = {"azure_blob_config_file": "aux_data/configs/acct.yaml"}
    entries = {"code_path": {**entry, "path": "mine/code.zip"}, "output_folder": {**entry, "path": "mine/output"}}
    values = {"platform": "local", "config_param": entries, "output": "per_job"}
    (desk.root / "aux_data/aml/box.yaml").write_text(yaml.safe_dump(values))
    words = ("submit", "--init", "--wait", "echo 'a model' > $BLOBSYNC_OUTPUT/model.bin")
    run_id = desk.run("--json", "-c", "box", *words).data["job_id"]
    listed = pages.get(f"/jobs/{run_id}/outputs").text
    assert "They are in the project's folder." in listed and "on this machine" in words_of(listed)
    assert 'aria-label="Link to output/model.bin"' in listed

    def link() -> str:
        return pages.post(f"/jobs/{run_id}/outputs/link", name="output/model.bin").text

    upload = f"-c box u output/{run_id}/model.bin"
    assert f"blobsync {upload}" in words_of(link())
    assert desk.run(*upload.split()).code == 0
    made = re.search(r'<textarea id="url" [^>]*>(http[^<]+)<', link())
    assert made
    with urlopen(html.unescape(made[1])) as answer:
        assert answer.read() == b"a model\n"


def test_a_command_of_a_terminal_is_on_the_page_while_it_still_plans_and_can_be_ended_there(
    project: Project, tmp_path: Path
) -> None:
    write_tree(project.data, {"a.txt": b"one\n"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # A server that accepts connections and never answers.
        project.configure(Container(f"http://127.0.0.1:{silent.getsockname()[1]}", "one", "a2V5", "box"))
        process = project.start("u", "data")
        try:
            with _open_pages(project, tmp_path) as pages:
                assert wait_until(lambda: process.poll() or "planning" in pages.get("/transfers").text)
                page = pages.get("/transfers").text
                assert "upload data" in words_of(page) and "blobsync u data" in page
                found = re.search(r"/transfers/running/[0-9a-f]{8}/cancel", page)
                assert found and pages.post(found[0]).status == 303
                done = project.finish(process)
        finally:
            kill_tree(process.pid)
    assert done.code == 130, str(done)
    assert project.json("history").data["transfers"] == []


@pytest.mark.parametrize("large", [False, True])
def test_a_transfer_carries_out_the_plan_that_was_shown_without_a_second_survey(
    project: Project, container: Container, tmp_path: Path, large: bool
) -> None:
    files = {f"file{number:03}.bin": b"%d" % number for number in range(70)}
    write_tree(project.data, files)
    with fault_proxy(container.service) as counting:
        project.configure(container, url=counting.url)
        with _open_pages(project, tmp_path, **({"BLOBSYNC_LARGE_PLAN": "20"} if large else {})) as pages:
            plan = _planned(pages)
            listings = counting.stats().operations["list"]
            _carried_out(pages, plan)
        operations = counting.stats().operations
    assert container.contents("data/") == hashes(files)
    assert operations["put blob"] == len(files)
    assert operations["list"] == listings, "the plan's listing is the only one"


def test_a_plan_names_each_file_that_it_leaves_out_and_counts_those_that_it_does_not_show(
    project: Project, container: Container, tmp_path: Path
) -> None:
    project.configure(container)
    write_tree(project.data, {"good.txt": b"1\n", **{f"{n:02}\x07.txt": b"2\n" for n in range(22)}})
    with _open_pages(project, tmp_path) as pages:
        shown = pages.get(_planned(pages)).text
    for n in range(20):
        assert f"data/{n:02}\\x07.txt: left out: its name contains the control character" in words_of(shown)
    assert "2 more files cannot be moved" in words_of(shown)
    assert shown.count("rename it") == 1, "one list, since all have the same remedy"


@pytest.mark.parametrize(("seconds", "age"), [(300, "as of 5 min ago"), (7_500, "as of 2 h 5 min ago")])
def test_the_age_of_a_listing_is_that_of_the_command_line(
    project: Project, container: Container, tmp_path: Path, seconds: int, age: str
) -> None:
    project.configure(container)
    write_tree(project.data, {"a.txt": b"1"})
    assert project.run("u", "data").code == 0

    def made_so_long_ago() -> None:
        # Not so long before the upload, which may have been a minute ago.
        with sqlite3.connect(project.state / "index.sqlite") as index:
            assert index.execute("update listings set at = ?", (time.time() - seconds,)).rowcount
        index.close()

    made_so_long_ago()
    told = project.run("status").out
    assert f"1 file (1 B) in the container, {age}" in told, told
    made_so_long_ago()
    with _open_pages(project, tmp_path) as pages:
        assert wait_until(lambda: "1 blob" in words_of(pages.get("/").text))
        assert f"1 blob {age}" in words_of(pages.get("/").text)


def test_the_headline_of_a_plan_has_conflicts_before_files_to_upload(
    project: Project, container: Container, tmp_path: Path
) -> None:
    project.configure(container)
    write_tree(project.data, {"a.txt": b"1", "notes.txt": b"one\n"})
    assert project.run("u", "data").code == 0
    write_tree(project.data, {"a.txt": b"1234567", "b.txt": b"22", "notes.txt": b"here\n"})
    container.put("data/notes.txt", b"there\n")
    with _open_pages(project, tmp_path) as pages:
        shown = pages.get(_planned(pages)).text
    assert "1 conflict , 2 files to upload, 9 B" in words_of(shown)
    # The conflict of the headline is a link to the first table.
    first = shown.partition('aria-labelledby="group-1"')[2].partition('aria-labelledby="group-2"')[0]
    assert 'href="#group-1">1 conflict</a>' in shown and "data/notes.txt" in first and "data/a.txt" not in first


def test_files_that_failed_for_one_reason_are_one_list_and_a_receipt_without_files_is_a_sentence(
    project: Project, container: Container, tmp_path: Path
) -> None:
    project.configure(container)
    write_tree(project.data, {f"{n}.txt": b"x" for n in range(3)})
    with _open_pages(project, tmp_path) as pages:
        plan = _planned(pages)
        for n in range(3):
            (project.data / f"{n}.txt").unlink()
        page = _carried_out(pages, plan)
        [receipt] = set(re.findall(r"/history/\w+", page))
        shown = pages.get(receipt).text
    before, notice, *others = re.split(r'<div class="notice bad', page)
    assert [words_of(each).strip() for each in re.findall(r"<li>.*?</li>", notice, re.DOTALL)] == [
        f"data/{n}.txt: No such file or directory" for n in range(3)
    ]
    assert others == [] and "it disappeared while blobsync was running" in words_of(notice)
    assert "Plan the rest" in before, "however long the list is, what to do next stands before it"
    assert "0 of 3 files, 0 B" in words_of(shown) and "No file was changed." in words_of(shown)
    assert "<table" not in shown


def test_what_changed_while_somebody_looked_at_the_plan_is_never_replaced(
    project: Project, container: Container, tmp_path: Path
) -> None:
    project.configure(container)
    write_tree(project.data, {"a.txt": b"one\n", "b.txt": b"two\n"})
    with _open_pages(project, tmp_path) as pages:
        plan = _planned(pages)
        assert "2 files" in words_of(pages.get(plan).text)
        # Somebody else uploads one of them, and a file appears here.
        container.put("data/a.txt", b"theirs\n")
        write_tree(project.data, {"c.txt": b"three\n"})
        page = _carried_out(pages, plan)
        assert "badge partial" in page and "data/a.txt" in page.partition('class="notice bad')[2]
        assert container.contents("data/") == hashes({"a.txt": b"theirs\n", "b.txt": b"two\n"})
        again = re.search(r'name="again" value="(\w+)"', page)
        assert again
        rest = pages.post("/plans", again=again[1]).headers["location"]
        assert wait_until(lambda: "1 conflict" in words_of(pages.get(rest).text))


def _is_completed(pages: WebPages, run_id: str) -> bool:
    return "Completed" in pages.get(f"/jobs/{run_id}?fresh=1").text


def _tabs(pages: WebPages, run_id: str) -> str:
    return pages.get(f"/jobs/{run_id}/live", lambda said: "job-logs" in said).text


def _lines(stream: str) -> list[str]:
    """The lines of the log in the answer of its stream."""
    return [line for data in re.findall(r"^data: (\[.*)$", stream, re.MULTILINE) for line in json.loads(data)]
