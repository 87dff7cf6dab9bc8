"""A job is seen, followed and submitted again from another clone, by another Unix user, through the container alone."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blobsync.web.open_project import Source
from tests.e2e.terminal import on_terminal
from tests.e2e.world import Container, Project
from tests.fakes.web_pages import WebPages
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
    pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (util-linux)"),
]

_ANN, _BOB = 0, 54_321
_PATIENCE = 90.0
_TRAIN = """\
import os, sys, time
print("begins", *sys.argv[1:], os.environ["LEVEL"], flush=True)
open(os.path.join(os.environ["BLOBSYNC_OUTPUT"], "model.txt"), "w").write(sys.argv[1])
while os.path.exists(sys.argv[2]):
    time.sleep(0.1)
print("ends", flush=True)
"""


def _clone(folder: Path, user: int, name: str, container: Container) -> Project:
    """A clone of the project, of a user with a home of their own."""
    project = Project(folder / name / "project", {"HOME": str(folder / name / "home"), "USER": name})
    project.environ["TMPDIR"] = str(folder / name / "tmp")
    for each in (project.root, *map(Path, (project.environ["HOME"], project.environ["TMPDIR"]))):
        each.mkdir(parents=True)
    if user:
        # Where root keeps this checkout's Python, others may not look.
        looks = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
        project.before = ("setpriv", f"--reuid={user}", "--clear-groups", *looks)
    (project.root / "train.py").write_text(_TRAIN)
    account = "aux_data/configs/box.yaml"
    here = {"azure_blob_config_file": account}
    project._write(
        account,
        {
            "account_name": container.account,
            "container_name": container.name,
            "blob_endpoint": f"{container.service}/{container.account}",
            "account_key": container.key,
        },
    )
    cluster: dict[str, Any] = {
        "platform": "local",
        "output": "per_job",
        "env": {"LEVEL": f"of-{name}"},
        "runtime": {"python": sys.executable, "scratch": str(folder / name / "scratch"), "sync_seconds": 1},
        "config_param": {
            "code_path": {**here, "path": "mine/code.zip"},
            "output_folder": {**here, "path": "mine/output", "mode": "upload"},
        },
    }
    project._write("aux_data/aml/aml.yaml", cluster)
    for path in ((folder / name), *(folder / name).rglob("*")):
        os.chown(path, user, user)
    return project


@pytest.fixture
def users(container: Container) -> Iterator[tuple[Project, Project]]:
    """Clones of two users where each can go to their own; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="blobsync-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        ann, bob = _clone(folder, _ANN, "ann", container), _clone(folder, _BOB, "bob", container)
        version = bob.run("--version")
        if version.code:
            pytest.skip(f"another user cannot run this checkout: {version.err}")
        yield ann, bob


def test_another_user_reads_follows_and_submits_a_job_again(users: tuple[Project, Project]) -> None:
    ann, bob = users
    hold = ann.root.parent / "hold"
    hold.touch()
    digest = ann.json("init").data["code_digest"]
    job_id = ann.run("--json", "submit", "python", "train.py", "a model", str(hold)).data["job_id"]
    last = job_id.rpartition("_")[2]
    assert bob.json("q").data["jobs"] == []
    (listed,) = bob.json("q", "--all-users").data["jobs"]
    assert (listed["job_id"], listed["by"], listed["native_id"]) == (job_id, "ann", "")
    assert "ann, from the container" in bob.run("q", "--all-users").out

    # Following what the node copies, until the record says that it has ended, which the next look of its user writes.
    assert wait_until(lambda: "begins" in "".join(bob.json("logs", last).data["lines"]), seconds=_PATIENCE)
    following = bob.start("logs", last, "-F")
    hold.unlink()

    def is_over() -> bool:
        return bool(ann.json("q", last, "--no-logs").data["jobs"][0]["status"] == "Completed")

    assert wait_until(is_over, seconds=_PATIENCE)
    followed = bob.finish(following)
    assert followed.code == 0 and "begins a model" in followed.out and "ends" in followed.out, str(followed)
    (seen,) = bob.json("q", last).data["jobs"]
    assert (seen["status"], seen["exit_code"], seen["status_confirmed"]) == ("Completed", 0, False)
    (output,) = bob.json("outputs", last).data["files"]
    assert output["path"] == f"output/{job_id}/model.txt"
    assert bob.run("outputs", last, "--download").code == 0
    assert (bob.root / "output" / job_id / "model.txt").read_text() == "a model"

    for words in (("abort", last), ("ssh", last), ("watch", last)):
        done = bob.run(*words)
        assert done.code and f"this project has no record of {job_id}: it is by ann, from the container" in done.err

    refused = bob.run("resubmit", last, "-y")
    assert (refused.code, f"trust-code {digest}" in refused.err) == (2, True), str(refused)
    assert bob.run("config", "trust-code", digest).code == 0
    refused = bob.run("resubmit", last, "-y")
    assert (refused.code, "not a terminal, cannot ask: submit it?" in refused.err) == (2, True), str(refused)
    with on_terminal(bob, "resubmit", last, "-y", columns=200) as terminal:
        terminal.wait_for(lambda one: any("submit it? [y/N]" in line for line in one.lines()))
        shown = "\n".join(terminal.lines())
        for each in ("by ann, from the container", "python train.py 'a model'", "mine/output", f"code: {digest}"):
            assert each in shown, shown
        assert not bob.json("q").data["jobs"]
        terminal.type("y\n")
        assert terminal.finish().code == 0, str(terminal)
    (again,) = bob.json("q").data["jobs"]
    assert (again["by"], again["resubmission_of"]) == (None, job_id)
    assert wait_until(lambda: bob.json("q").data["jobs"][0]["status"] == "Completed", seconds=_PATIENCE)
    assert "begins a model" in (log := bob.run("logs", again["job_id"]).out) and "of-bob" in log
    # Each of the two sees the other's.
    ids = {job["job_id"]: job["by"] for job in ann.json("q", "--all-users").data["jobs"]}
    assert ids == {job_id: None, again["job_id"]: "bob"}
    source = Source(ann.root, ann.root, None, "aml", {}, {**os.environ, **ann.environ})
    pages = WebPages(source, ann.root.parent)
    try:
        listed_page = pages.get("/jobs?state=all-users").text
        assert "by bob, from the container" in listed_page and f'id="pick-{again["job_id"]}"' not in listed_page
        page = pages.get(f"/jobs/{again['job_id']}").text
        assert "from the container" in page and "/abort" not in page and "/resubmit" not in page
        assert f"/jobs/{job_id}/resubmit" in pages.get(f"/jobs/{job_id}").text
        refused_there = pages.post(f"/jobs/{again['job_id']}/resubmit")
        assert refused_there.status >= 400, refused_there
    finally:
        pages.close()
