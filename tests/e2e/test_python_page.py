"""The examples of docs/python.md, run one after another in a project like those that they speak of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.world import Container, Project, write_tree
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.source import ROOT

pytestmark = pytest.mark.e2e

VOC = {f"{number}.jpg": b"x" * (number + 1) for number in range(5)}


def _blocks() -> Iterator[str]:
    for text in (ROOT / "docs/python.md").read_text(encoding="utf-8").split("```python\n")[1:]:
        yield text.split("```")[0]


def _run(project: Project, block: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", block],
        cwd=project.root,
        env={**os.environ, **project.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_example_of_the_page_does_what_it_says(project: Project, container: Container) -> None:
    project.configure(container, extra={"platform": "local"})
    cluster = project.root / "aux_data/aml/aml.yaml"
    values = yaml.safe_load(cluster.read_text())
    values["config_param"]["code_path"] = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": "code/p.zip"}
    cluster.write_text(yaml.safe_dump(values))
    write_tree(project.data / "voc20", VOC)
    write_tree(project.data, {"extra.txt": b"extra"})
    write_tree(project.root, {"train.py": b"print('hello')\n"})
    # Jobs run the code of the last init.
    assert project.run("init").code == 0
    told = []
    for block in _blocks():
        if "on_progress" in block:
            write_tree(project.data, {"more/big.bin": b"m" * 100_000})
        told.append(_run(project, block))

    assert told[0] == "5 moved, 5 verified\n"
    assert "data/voc20/0.jpg unchanged" in told[1]
    assert told[2] == ""
    assert told[3].splitlines()[-1].startswith("moving: 100%, ")
    # Nobody interrupts.
    assert told.pop(4) == ""
    assert told.pop(4).splitlines()[-1] == told.pop(4).strip() == "5 verified"
    assert told.pop(4).splitlines()[-1] == "0 uploaded"
    assert "data/voc20/4.jpg 5 " in told[4]
    assert "100020 bytes" in told[4] and "{'equal': 7} True" in told[4] and "5 bytes will go" in told[4]
    assert told[5].splitlines()[0] == "hello from a job"
    run_id, *rest = told[5].splitlines()[-1].split()
    assert rest == ["Completed", "0"]
    assert told[6] == f"{run_id} Completed ('echo', 'hello from a job')\n"
    # The saved plan is new in the project, and so in its code.
    status, digest = told[7].split()
    assert status == "published" and f"code/p.zip.d/{digest}.zip" in container.names("code/")
    assert {name: container.get(f"data/voc20/{name}") for name in VOC} == VOC
    assert "data/extra.txt" not in container.names("data/") and (project.root / "data.plan").is_file()


_STOPPED = """\
from blobsync import BlobsyncError, Project

with Project.open() as project:
    for path in ("data/voc20", "data/voc20"):
        try:
            project.upload(path, cap_mbps=4, on_progress=lambda p: print(p.phase, p.files, flush=True))
        except BlobsyncError:
            print("swallowed", flush=True)
        except KeyboardInterrupt as stop:
            print("stopped", type(stop).__name__, stop.result.transferred < 8, stop.result.exit_code, flush=True)
            raise
"""
_IN_A_NOTEBOOK = """\
import sys, types

kernel = types.SimpleNamespace(kernel=object(), config={})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: kernel, version_info=(9,))
from blobsync import Project

with Project.open() as project:
    print(project.upload("data/voc20").transferred)
    print(project.upload("data/voc20", on_progress=lambda progress: None).transferred)
"""


def test_ctrl_c_is_no_error_that_a_loop_over_files_swallows(
    project: Project, container: Container, service: str
) -> None:
    # One file never arrives, so that the upload is not over before the signal.
    with fault_proxy(service, Fault("hold", rate=1, pattern="/voc20/7")) as line:
        project.configure(container, url=line.url)
        _is_stopped_after_the_first_file(project)


def _is_stopped_after_the_first_file(project: Project) -> None:
    write_tree(project.data / "voc20", {f"{number}": os.urandom(400_000) for number in range(8)})
    words = [sys.executable, "-c", _STOPPED]
    environ = {**os.environ, **project.environ}
    with subprocess.Popen(
        words, cwd=project.root, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = ""
        while "moving 1" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert "stopped TransferCancelledError True 130" in out and "swallowed" not in out, out + err
    assert process.returncode and " done and verified" in err, err


def test_a_notebook_shows_a_bar_unless_told_otherwise(project: Project, container: Container) -> None:
    project.configure(container)
    write_tree(project.data / "voc20", VOC)
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_NOTEBOOK],
        cwd=project.root,
        env={**os.environ, **project.environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "5\n0\n"), done
    # Each bar begins without a count.
    assert "5 of 5 files" in done.stderr and "100%" in done.stderr and done.stderr.count("?B/s]") == 1, done.stderr
