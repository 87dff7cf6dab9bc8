"""``outputs`` and ``output: per_job`` from the command line, while a job runs and after its end."""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.world import Container, Project
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

PATIENCE = 120.0
# Writes to its own folder and to the shared one, and waits for a file.
WRITE = """\
import os, sys, time
own = os.environ["BLOBSYNC_OUTPUT"]
os.makedirs(own + "/deep")
open(own + "/deep/model.bin", "w").write("a model")
open("output/shared.txt", "w").write("for all")
# Uploads wait until a file has been left alone for a while.
for path in (own + "/deep/model.bin", "output/shared.txt"):
    os.utime(path, (1000, 1000))
while len(sys.argv) > 1 and os.path.exists(sys.argv[1]):
    time.sleep(0.1)
"""


def configure(project: Project, container: Container, **more: Any) -> None:
    here = {"azure_blob_config_file": "aux_data/configs/box.yaml"}
    entries = {
        "code_path": {**here, "path": "mine/code.zip"},
        "output_folder": {**here, "path": "mine/output", "mode": "upload"},
    }
    runtime = {"python": sys.executable, "scratch": f"{project.root.parent}/scratch", "sync_seconds": 1}
    cluster = {"platform": "local", "local": {"gpus": 0}, "config_param": entries, "runtime": runtime, **more}
    for name, value in (("aux_data/configs/box.yaml", container.account_file), ("aux_data/aml/aml.yaml", cluster)):
        path = project.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(value))
        path.chmod(0o600)
    (project.root / "write.py").write_text(WRITE)


def test_a_job_has_outputs_of_its_own_while_it_runs(project: Project, container: Container, tmp_path: Path) -> None:
    configure(project, container, output="per_job")
    assert project.run("init").code == 0
    assert project.run("--json", "status", "--fresh").code == 0
    (tmp_path / "busy").touch()
    job_id = project.run("--json", "submit", "python3", "write.py", str(tmp_path / "busy")).data["job_id"]

    def listed() -> list[dict[str, Any]]:
        files: list[dict[str, Any]] = project.run("--json", "outputs", job_id).data["files"]
        return files

    assert wait_until(lambda: bool(listed()), seconds=PATIENCE, pause=1.0)
    running = project.run("--json", "outputs", job_id, "deep", "--url", "--expiry", "1h")
    [file] = running.data["files"]
    known = {"output": "output", "name": "deep/model.bin", "path": f"output/{job_id}/deep/model.bin", "size": 7}
    assert running.data["status"] == "Running" and file.items() >= known.items()
    with urllib.request.urlopen(file["url"]) as answer:
        assert answer.read() == b"a model"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(file["url"].replace("model.bin", "other.bin"))
    assert "sig=" not in project.run("outputs", job_id).out
    (tmp_path / "busy").unlink()
    assert project.run("logs", job_id, "-F").code == 0
    assert container.get("mine/output/shared.txt") == b"for all"
    old, new = (project.run("--json", "status", *words) for words in ((), ("--fresh",)))
    [[before], [after]] = old.data["entries"], new.data["entries"]
    assert (old.code, [job["job_id"] for job in before["jobs"]]) == (3, [job_id]), str(old)
    assert (new.code, after["missing_here"], after["jobs"]) == (3, 2, []), str(new)

    done = project.run("--json", "outputs", job_id, "--download")
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)
    here = project.root / "output" / job_id
    assert [path.read_text() for path in here.rglob("*") if path.is_file()] == ["a model"]
    (here / "deep/model.bin").write_text("mine")
    container.put(f"mine/output/{job_id}/deep/model.bin", b"theirs")
    both = project.run("--json", "outputs", job_id, "--download")
    [conflict] = both.errors
    # Options that this command does not have.
    assert both.code == 3 and conflict["hint"].endswith(f"options of 'blobsync -c aml d output/{job_id}'"), str(both)
    none = project.run("outputs", job_id, "nothing")
    assert none.code == 4 and "has written no nothing" in none.err


def test_an_output_with_a_backslash_in_its_name_is_left_out_with_the_reason(
    project: Project, container: Container
) -> None:
    """It would replace the file of another name."""
    configure(project, container, output="per_job")
    assert project.run("init").code == 0
    write = "import os; p = os.environ['BLOBSYNC_OUTPUT']; [open(p + n, 'w').write(n) for n in ('/a', '/b\\\\c')]"
    done = project.run("--json", "submit", "--wait", "--", "python3", "-c", write)
    job_id = done.data["job_id"]
    assert done.code == 73, str(done)
    for word in ("q", "parse"):
        said = " ".join(project.run(word, job_id).out.split())
        assert "outputs of the job are not in its container" in said, said
        assert f"not uploaded: 1 output file; the first: output/{job_id}/b\\c: left out" in said, said
        assert "its name contains a backslash, which the service takes for '/'" in said, said
    assert container.names("mine/output/") == [f"mine/output/{job_id}/a"]


def test_outputs_of_a_linked_folder_have_links_once_they_are_uploaded(project: Project, container: Container) -> None:
    configure(project, container, output="per_job")
    file = project.root / "aux_data/aml/aml.yaml"
    file.write_text(file.read_text().replace("mode: upload", "mode: link"))
    assert project.run("init").code == 0
    job_id = project.run("--json", "submit", "--wait", "python3", "write.py").data["job_id"]
    path = f"output/{job_id}/deep/model.bin"
    none = project.run("--json", "outputs", job_id, "--url")
    assert none.code == 2 and [(each["path"], each["hint"]) for each in none.errors] == [(path, f"blobsync u {path}")]
    assert project.run("u", path).code == 0
    linked = project.run("--json", "outputs", job_id, "--url")
    with urllib.request.urlopen(linked.data["files"][0]["url"]) as answer:
        assert answer.read() == b"a model"
    (project.root / path).with_name("more.bin").write_bytes(b"more")
    some = project.run("--json", "outputs", job_id, "--url")
    assert some.code == 3 and [bool(each["url"]) for each in some.data["files"]] == [True, False]
    (project.root / path).write_bytes(b"another")
    changed = project.run("outputs", job_id, "deep/model.bin", "--url")
    assert changed.code == 2 and "is not known to be what" in changed.err and "sig=" not in changed.out
