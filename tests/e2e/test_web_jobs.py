"""Jobs, New job and Clusters of the local page, in Chromium, on this machine as the cluster."""

from __future__ import annotations

import re
import shlex
import sqlite3
import urllib.request
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, Page, expect

from tests.e2e.web_server import PATIENCE_MS, PHONE, faults, overflow, web_server, window
from tests.e2e.world import Container, Project, write_tree

pytestmark = pytest.mark.e2e

expect.set_options(timeout=PATIENCE_MS)

# Waits for a file, so that a test sees it run.
PROGRAM = """\
import os, sys, time
print("\\x1b[31mepoch 0\\x1b[0m <img src=x onerror=alert(1)>", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
print("epoch 1 of", os.environ["EPOCHS"], flush=True)
if len(sys.argv) > 2:
    raise RuntimeError("CUDA out of memory")
"""


@pytest.fixture
def desk(project: Project) -> Project:
    """A project with two clusters: this machine, and one that does not respond."""
    files = {
        "aux_data/aml/aml.yaml": "platform: local\nenv: {EPOCHS: '3', MY_TOKEN: abcdefgh}\n",
        "aux_data/aml/uni.yaml": (
            "platform: slurm\nssh: nobody@127.0.0.1\ngpu_per_node: 4\nslrum: {}\nslurm: {shared_root: /x}\n"
            "config_param:\n  code_path: {azure_blob_config_file: aux_data/configs/acct.yaml, path: me/code.zip}\n"
        ),
        "aux_data/aml/half.yaml": "platform: slurm\nslurm: {shared_root: /x}\nconfig_param: {}\n",
        "aux_data/aml/broken.yaml": "platform: lcoal\nnodes: many\n",
        "aux_data/configs/acct.yaml": (
            "account_name: acct\ncontainer_name: cont\naccount_key: U0VOVElORUw=\nblob_endpoint: http://127.0.0.1:9/acct\n"
        ),
        "job.py": PROGRAM,
    }
    for name, text in files.items():
        (project.root / name).parent.mkdir(parents=True, exist_ok=True)
        (project.root / name).write_text(text)
    (project.root / "aux_data/configs/acct.yaml").chmod(0o600)
    return project


def submitted(desk: Project, *words: str, before: tuple[str, ...] = ()) -> str:
    """The id of a job that was submitted on the command line, when it has ended."""
    found: str = desk.run("--json", *before, "submit", "--wait", *words).data["job_id"]
    return found


def request_of(page: Page) -> str:
    return re.sub(r"[a-z0-9-]+_[0-9]{9,11}_[0-9a-f]{8}", "ID", page.locator("#request").text_content() or "")


def _fill_the_form(page: Page, desk: Project) -> list[str]:
    """Fill in the form; the command line beside it must equal the form."""
    command = f"python3 job.py {desk.root / 'go'}"
    page.get_by_label("Command", exact=True).fill(command)
    page.get_by_label("Name", exact=True).fill("first <b>run</b>")
    page.get_by_label("Environment variables").fill("EPOCHS=20")
    # The exact request is beside the form while one types, and is that of the exported command line.
    expect(page.locator("#request")).to_contain_text('"EPOCHS": "20"')
    # First the summary for people.
    expect(page.locator("#summary")).to_contain_text(command)
    expect(page.locator("#summary")).to_contain_text("EPOCHS")
    expect(page.locator("#request")).to_be_hidden()
    page.get_by_text("The exact request").click()
    page.get_by_label("Name", exact=True).press("End")
    expect(page.locator("#request")).to_be_visible()
    line = shlex.split(page.locator("#command-line").inner_text())
    place = line.index("submit") + 1
    printed = desk.run(*line[1:place], "--dry-run", *line[place:]).out
    assert re.sub(r"[a-z0-9-]+_[0-9]{9,11}_[0-9a-f]{8}", "ID", printed).strip() == request_of(page).strip()
    return line


def _follow_the_job(page: Page, desk: Project) -> None:
    """The page of a running job: its state, and its log lines, escaped, as they arrive."""
    expect(page.locator("#job-state")).to_have_text("Running")
    log = page.locator("#log")
    expect(log).to_contain_text("epoch 0 <img src=x onerror=alert(1)>")
    assert "\x1b" not in log.inner_text() and log.locator("img").count() == 0
    assert page.get_by_role("heading", level=1).inner_text() == "first <b>run</b>"
    (desk.root / "go").touch()
    expect(log).to_contain_text("epoch 1 of 20")
    expect(page.locator("#job-state")).to_have_text("Completed")
    # Each state with its time; q shows the same.
    words = [("Queued", False), ("Preparing", False), ("Running", False), ("Completed", False)]
    expect(page.locator("#job-time b")).to_have_text([word for word, _ in words])
    told = desk.run("--json", "q", page.url.rpartition("/")[2]).data["jobs"][0]["states"]
    assert [(state["state"], state["seen"]) for state in told] == words
    assert "abcdefgh" not in page.content()


def _find_in_its_logs(page: Page) -> None:
    page.get_by_label("Find in all logs").fill("EPOCH 1")
    page.get_by_role("button", name="Find").click()
    expect(page.locator("#found")).to_contain_text("user_logs/std_log.txt:2 epoch 1 of 20")


def _load_it_from_the_history(page: Page, desk: Project, line: list[str]) -> None:
    """The form is unchanged, and makes the same request."""
    page.get_by_label("Load from history").select_option(index=1)
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_label("Command", exact=True)).to_have_value(f"python3 job.py {desk.root / 'go'}")
    expect(page.get_by_label("Environment variables")).to_have_value("EPOCHS=20")
    assert shlex.split(page.locator("#command-line").inner_text()) == line


def _save_and_load_a_template(page: Page) -> None:
    """A template is a file of the project, without credentials."""
    page.get_by_text("Save as a template").click()
    page.get_by_label("Name of the template").fill("night")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#message")).to_contain_text("Saved as aux_data/jobs/night.yaml")
    page.get_by_label("or a template").select_option("night")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.get_by_label("Name", exact=True)).to_have_value("first <b>run</b>")


def test_a_job_is_submitted_from_the_form_followed_to_its_end_and_loaded_again(desk: Project, browser: Browser) -> None:
    with web_server(desk) as server, window(browser, server) as seen:
        page = seen.page
        page.goto(f"{server.address}/new-job")
        line = _fill_the_form(page, desk)
        # Who answers a question with no can still press every button.
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.get_by_role("button", name="Synchronize code").click()
        page.get_by_role("button", name="Submit", exact=True).click()
        _follow_the_job(page, desk)
        _find_in_its_logs(page)
        page.goto(f"{server.address}/new-job")
        _load_it_from_the_history(page, desk, line)
        _save_and_load_a_template(page)
        assert seen.errors == []
        assert seen.hosts - {""} == {f"127.0.0.1:{server.port}"}, "the login is a file"


def test_the_outputs_of_an_open_page_follow_the_end_of_the_job_and_a_link_to_one_works(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container, extra={"platform": "local", "output": "per_job"})
    cluster = project.root / "aux_data/aml/aml.yaml"
    values = yaml.safe_load(cluster.read_text())
    account = "aux_data/configs/aml.yaml"
    values["config_param"] = {
        "output_folder": {"azure_blob_config_file": account, "path": "out", "mode": "upload"},
        "code_path": {"azure_blob_config_file": account, "path": "code.zip"},
    }
    cluster.write_text(yaml.safe_dump(values))
    go = project.root / "go"
    line = f"while [ ! -e {go} ]; do sleep 0.05; done; echo 'a model' > $BLOBSYNC_OUTPUT/'<b>.bin'"
    write_tree(project.root, {"train.py": b""})
    run_id = project.run("--json", "submit", "--init", line).data["job_id"]
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        page.goto(f"{server.address}/jobs/{run_id}")
        expect(page.locator("#job-state")).to_have_text("Running")
        # Folded, below the log; the container is asked only for those who want to see it.
        assert page.locator("main h2").all_inner_texts()[-2:] == ["Log", "Outputs"]
        expect(page.locator("#outputs")).to_be_empty()
        page.locator("summary", has_text="Outputs").click()
        expect(page.locator("#outputs")).to_contain_text("has written no files yet")
        go.touch()
        expect(page.locator("#job-state")).to_have_text("Completed")
        page.get_by_role("button", name="Link to output/<b>.bin").click()
        with urllib.request.urlopen(page.get_by_label("Link", exact=True).input_value()) as answer:
            assert answer.read() == b"a model\n"
        page.goto(f"{server.address}/jobs/{run_id}")
        page.locator("summary", has_text="Outputs").click()
        expect(page.locator("#outputs")).to_contain_text("output/<b>.bin")
        assert "sig=" not in page.content()
        assert seen.errors == []


@pytest.mark.soak
def test_a_failed_job_shows_its_cause_and_two_jobs_are_compared(desk: Project, browser: Browser) -> None:
    (desk.root / "go").touch()
    first = submitted(desk, "python3", "job.py", "go", "fail")
    second = submitted(desk, "python3", "job.py", "go", before=("-p", "{env: {EPOCHS: '9'}}"))
    with web_server(desk) as server, window(browser, server, size=PHONE, dark=True) as seen:
        page = seen.page
        page.goto(f"{server.address}/jobs?state=failed")
        expect(page.locator("#job-list tbody tr")).to_have_count(1)
        page.locator("#job-list a").first.click()
        cause = page.get_by_label("Why it failed")
        expect(cause).to_contain_text("OOM: a GPU has too little memory")
        assert faults(page) == []
        assert overflow(page) <= 0
        page.goto(f"{server.address}/jobs")
        for run_id in (second, first):
            page.get_by_label(f"Compare {run_id}").check()
        # The list is updated meanwhile; the selection is kept.
        page.get_by_role("button", name="Compare two").click()
        expect(page.locator(".differs")).to_have_count(3)
        text = page.locator("main").inner_text()
        assert "job.py go fail" in text and "EPOCHS" in text and "abcdefgh" not in text
        assert faults(page) == []
        # Resubmitted, it fails again, as a new job.
        page.goto(f"{server.address}/jobs/{first}")
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Submit again").click()
        expect(page.get_by_role("link", name=first)).to_be_visible()
        expect(page.locator("#job-state")).to_have_text("Failed (1)")
        # A running job is stopped from its page.
        running = desk.run("--json", "submit", "sleep", "600").data["job_id"]
        page.goto(f"{server.address}/jobs/{running}")
        assert faults(page) == [], "a log without a line"
        page.once("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Stop").click()
        expect(page.locator("#job-state")).to_contain_text("Canceled (143)")
        # On a phone the longest state stays in its column.
        page.goto(f"{server.address}/jobs")
        state = page.locator(".jobs td.state", has_text="Canceled (143)").first
        assert state.evaluate("(each) => each.scrollWidth <= each.clientWidth")
        assert seen.errors == []


@pytest.mark.soak
def test_mistakes_stand_at_their_fields_while_typing_and_fields_are_those_of_the_platform(
    desk: Project, browser: Browser
) -> None:
    with web_server(desk) as server, window(browser, server) as seen:
        page = seen.page
        page.goto(f"{server.address}/new-job")
        page.get_by_label("Retries").fill("a few")
        place = page.locator("#mistake-retries")
        expect(place).to_have_text("must be a whole number, not a text")
        expect(page.get_by_label("Retries")).to_have_attribute("aria-invalid", "true")
        assert page.locator("#mistake-command").inner_text() == "", "not touched yet"
        page.get_by_label("Retries").fill("2")
        expect(place).to_be_empty()
        assert page.get_by_label("Partition").count() == 0
        page.get_by_label("Cluster", exact=True).select_option("uni")
        expect(page.get_by_label("Partition")).to_be_visible()
        page.get_by_label("GPUs").fill("6")
        expect(page.locator("#mistake-num_gpu")).to_contain_text("6 GPUs do not fill whole nodes of 4")
        page.get_by_role("button", name="Submit", exact=True).click()
        # Nothing was submitted, and the input is kept.
        expect(page.locator("#mistake-command")).to_contain_text("no command given")
        expect(page.get_by_label("GPUs")).to_have_value("6")
        assert faults(page) == []
        page.get_by_label("Cluster", exact=True).select_option("broken")
        expect(page.locator("#mistake-cluster")).to_contain_text("'lcoal' is not one of local, slurm")
        expect(page.locator("#free")).to_be_empty()
        page.goto(f"{server.address}/clusters")
        expect(page.locator("main")).to_contain_text("line 1 platform: 'lcoal' is not one of local, slurm")
        expect(page.locator("main")).to_contain_text("slrum: unknown key, ignored; did you mean 'slurm'?")
        expect(page.locator("li", has_text="code_path: does not say").last).to_contain_text(
            re.compile("^line 3: config_param")
        )
        expect(page.locator("main")).to_contain_text("1 of 1 node free")
        expect(page.locator("main")).to_contain_text("cannot connect to nobody@127.0.0.1")
        page.get_by_role("region", name="uni").get_by_role("button", name="Doctor").click()
        expect(page.locator("#doctor")).to_contain_text("Remedy:")
        assert "U0VOVElORUw" not in page.content()
        # Chromium reports each response 400 as failed; there is no other error.
        assert [error for error in seen.errors if "400" not in error] == []
        assert desk.json("q").data["jobs"] == []


@pytest.mark.soak
def test_without_scripts_and_with_ten_thousand_jobs_the_list_comes_in_pages(desk: Project) -> None:
    (desk.root / "go").touch()
    first = submitted(desk, "--name", "run-0", "python3", "job.py", "go")
    _multiply(desk.state / "jobs.sqlite", 10_000)
    with web_server(desk) as server:
        server.log_in()
        body = server.ask("/jobs?page=100").body
        assert "4,951 to 5,000 of 10,000 jobs" in body and len(body) < 100_000
        assert "1 to 50 of 111 jobs" in server.ask("/jobs?text=run-77").body
        assert "9,951 to 10,000 of 10,000 jobs" in server.ask("/jobs?page=9999").body, "beyond the end is the last page"
        assert server.ask("/jobs/nothing").status == 404
        assert server.ask(f"/jobs/{first}?log=../../../aux_data/configs/acct.yaml").status == 200
        stream = server.ask(f"/jobs/{first}/log?name=../../../aux_data/configs/acct.yaml&start=0").body
        assert "epoch 1 of 3" in stream and "account_key" not in stream and stream.endswith("event: over\ndata: \n\n")
        form = {"form_token": server.form_token("/new-job"), "cluster": "aml", "command": "echo hi", "retries": "x"}
        answer = server.ask("/new-job", form={**form, "do": "submit"})
        assert answer.status == 400 and "must be a whole number" in answer.body
        secret = server.ask("/new-job", form={**form, "env": "A_TOKEN=abcdefgh1", "do": "save", "template_name": "x"})
        assert "looks like a credential: A_TOKEN" in secret.body
        assert server.ask("/new-job", form={**form, "do": "save", "template_name": "../x"}).status == 400
        assert not (desk.root / "aux_data/jobs").exists()


def _multiply(file: Path, count: int) -> None:
    """Copy the existing row so many times."""
    with sqlite3.connect(file) as database:
        columns = [row[1] for row in database.execute("pragma table_info(jobs)")]
        row = dict(zip(columns, database.execute("select * from jobs").fetchone(), strict=True))
        rows = []
        for number in range(1, count):
            run_id = f"me_{1_000_000_000 + number}_{number:08x}"
            spec = row["spec"].replace(row["run_id"], run_id).replace('"run-0"', f'"run-{number}"')
            rows.append(
                tuple({**row, "run_id": run_id, "spec": spec, "submitted": 1e9 + number}[name] for name in columns)
            )
        database.executemany(f"insert into jobs values ({', '.join('?' * len(columns))})", rows)
