"""What is done on the local page alone: requests of its forms, without a browser."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import socket
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from blobsync.web.source import Source
from tests.e2e.world import Container, Project, kill_tree, wait_until, write_tree
from tests.fakes.web_pages import WebAnswer, WebPages, words_of

pytestmark = pytest.mark.e2e

# Each rank says who it is, and goes on when it is told to.
PROGRAM = """\
import os, sys, time
rank = os.environ["RANK"]
print(f"rank {rank} of {os.environ['WORLD_SIZE']}: begins <b>", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print(f"rank {rank}: ends in {os.environ['PLACE']}", flush=True)
"""


@pytest.fixture
def desk(project: Project, container: Container) -> Project:
    """A project with code and two clusters on this machine: ``here``, of two GPUs, and ``there``."""
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


@pytest.fixture
def pages(desk: Project, tmp_path: Path) -> Iterator[WebPages]:
    environ = {**os.environ, **desk.environ}
    made = WebPages(Source(desk.root, desk.root, "here", "here", {}, environ), tmp_path)
    yield made
    made.close()


def _archive(container: Container) -> dict[str, str]:
    """The files of the code that the container has as the current one."""
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
    told = pages.post("/new-job", **form, do="submit")
    assert (
        told.status == 400 and f"was not published from here, and you do not trust it yet: digest {digest}" in told.text
    )
    button = f'value="trust-code {digest}"'
    assert button in told.text and f"blobsync config trust-code {digest}" in told.text
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
        told = words_of(pages.post("/new-job", **form, **typed, do="init").text)
        assert "Uploaded the code:" in told and _archive(container).keys() == {"job.py"}
        pages.post("/new-job", **form, do="init")
        _job_of(pages.post("/new-job", **form, **typed, init="yes", do="submit"))
        assert _archive(container).keys() == {"job.py"}
    refused = pages.post("/new-job", **form, other="{ignore: {a: b}}", do="init")
    assert refused.status == 400 and "ignore: must be a list of texts" in words_of(refused.text)


def test_code_is_uploaded_ranks_are_followed_and_jobs_compared_and_submitted_again_elsewhere(
    pages: WebPages, desk: Project, container: Container
) -> None:
    go = desk.root.parent / "go"
    form = {"cluster": "here", "command": f"python3 job.py {go}", "num_gpu": "2", "name": "two ranks"}
    # Synchronize code is init: the container has the files, and nothing is submitted.
    told = words_of(pages.post("/new-job", **form, do="init").text)
    assert re.search(r"Uploaded the code: [0-9a-f]{12}, \d files", told), told
    assert _archive(container) == {"job.py": PROGRAM, "old.py": "1\n"}
    again = pages.post("/new-job", **form, do="init").text
    assert "The code is unchanged:" in words_of(again) and "two ranks" in again, "what was typed stays"
    assert "No jobs yet." in pages.get("/jobs").text
    first = _job_of(pages.post("/new-job", **form, do="submit"))
    # The log of each rank is followed while both run.
    logs = [f"user_logs/std_log_process_{rank}.txt" for rank in (0, 1)]
    assert wait_until(lambda: all(name in _tabs(pages, first) for name in logs), seconds=180)
    stream = f"/jobs/{first}/log?name={logs[1]}&start=0"
    begun = pages.get(stream, lambda said: "rank 1" in said).text
    assert _lines(begun) == ["rank 1 of 2: begins <b>"]
    # Who holds the GPUs stands on the page of the clusters.
    held = words_of(pages.get("/clusters/here/holders").text)
    assert f"2 1 Running {first}" in held, held
    assert "0 of 2 GPUs free" in words_of(pages.get("/clusters/here/free").text)
    go.touch()
    # Where the browser was cut off it goes on from there.
    end = int(re.findall(r"^id: ([0-9]+)$", begun, re.MULTILINE)[-1])
    rest = pages.get(f"/jobs/{first}/log?name={logs[1]}&start={end}", lambda said: "event: over" in said).text
    assert _lines(rest) == ["rank 1: ends in here"]
    assert "Nobody uses it" in words_of(pages.get("/clusters/here/holders").text)
    chosen = pages.get(f"/jobs/{first}?log={logs[0]}&find=ENDS").text
    assert "rank 0: ends in here" in words_of(chosen) and "rank 0 of 2: begins &lt;b&gt;" in chosen
    assert 'aria-current="true">rank 0<' in chosen and "2 lines with" in words_of(chosen)
    assert f'<a href="/jobs/{first}?log={logs[1]}&amp;find=ENDS#log">{logs[1]}:2</a>' in chosen, "its line leads to it"
    # Other code, and one line that differs: the files stand beside the facts.
    (desk.root / "job.py").write_text(PROGRAM + "# more\n")
    (desk.root / "old.py").unlink()
    (desk.root / "new.py").write_text("2\n")
    assert "Uploaded the code:" in pages.post("/new-job", **form, do="init").text
    second = _job_of(pages.post("/new-job", **{**form, "num_gpu": "1"}, do="submit"))
    compared = pages.get(f"/jobs/compare?job={first}&job={second}").text
    assert "1 added, 1 removed, 1 changed" in words_of(compared)
    assert re.findall(r'<li class="(\w+)">.*?</span>([^<]*)</li>', compared) == [
        ("added", "new.py"), ("removed", "old.py"), ("changed", "job.py"),
    ]  # fmt: skip
    # The first one once more, on the other cluster: with its own code, or with that of the last init.
    for latest, files in (("", "the same"), ("yes", "1 added, 1 removed, 1 changed")):
        moved = _job_of(pages.post(f"/jobs/{first}/resubmit", cluster="there", latest_code=latest))
        assert wait_until(partial(_is_completed, pages, moved), seconds=60)
        assert "rank 1: ends in" in words_of(pages.get(f"/jobs/{moved}?log={logs[1]}").text)
        found = words_of(pages.get(f"/jobs/compare?job={first}&job={moved}").text)
        assert f"Code files {files}" in found, found
        about = words_of(pages.get(f"/jobs/{moved}").text)
        assert "Cluster there (local)" in about and f"Resubmits {first}" in about
    # One that runs is stopped for it, and the page of the new one says so.
    go.unlink()
    running = _job_of(pages.post("/new-job", **form, do="submit"))
    moved = _job_of(pages.post(f"/jobs/{running}/resubmit", cluster="there"))
    assert f"the old job {running} was stopped: Cancel" in words_of(pages.get(f"/jobs/{moved}").text)
    assert pages.post(f"/jobs/{moved}/abort").status == 303


def test_a_command_of_a_terminal_is_on_the_page_while_it_still_plans_and_can_be_ended_there(
    project: Project, tmp_path: Path
) -> None:
    write_tree(project.data, {"a.txt": b"one\n"})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        # It takes every request, and answers none.
        project.configure(Container(f"http://127.0.0.1:{silent.getsockname()[1]}", "one", "a2V5", "box"))
        environ = {**os.environ, **project.environ}
        pages = WebPages(Source(project.root, project.root, None, "aml", {}, environ), tmp_path)
        process = project.start("u", "data")
        try:
            assert wait_until(lambda: process.poll() or "planning" in pages.get("/transfers").text, seconds=60)
            page = pages.get("/transfers").text
            assert "upload data" in words_of(page) and "blobsync u data" in page
            found = re.search(r"/transfers/running/[0-9a-f]{8}/cancel", page)
            assert found and pages.post(found[0]).status == 303
            done = project.finish(process)
        finally:
            kill_tree(process.pid)
            pages.close()
    assert done.code == 130, str(done)
    assert project.json("history").data["transfers"] == []


def _is_completed(pages: WebPages, run_id: str) -> bool:
    return "Completed" in pages.get(f"/jobs/{run_id}?fresh=1").text


def _tabs(pages: WebPages, run_id: str) -> str:
    return pages.get(f"/jobs/{run_id}/live", lambda said: "job-logs" in said).text


def _lines(stream: str) -> list[str]:
    """What a stream of a log has brought."""
    return [line for data in re.findall(r"^data: (\[.*)$", stream, re.MULTILINE) for line in json.loads(data)]
