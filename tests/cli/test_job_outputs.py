"""What ``outputs`` says of files on the disk of a linked folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.spec import FolderLink, JobRef, RunInfo, State
from tests.fakes.jobs import make_spec

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

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
