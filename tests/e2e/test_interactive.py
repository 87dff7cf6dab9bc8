"""Interactive jobs: entered from a terminal, left, and ended when no shell is open."""

from __future__ import annotations

import pytest

from tests.e2e.terminal import CTRL_C, Terminal, on_terminal
from tests.e2e.test_jobs import ON_SLURM, Lab, lab
from tests.servers.slurm_fixture import slurm_cluster
from tests.waiting import wait_until

__all__ = ["lab", "slurm_cluster"]

pytestmark = pytest.mark.e2e


def log_of(lab: Lab, job_id: str) -> str:
    folder = lab.project.state / "jobs" / job_id / "user_logs"
    return "".join(path.read_text() for path in sorted(folder.glob("*")))


def waits(lab: Lab, job_id: str) -> bool:
    return wait_until(lambda: "waiting for you" in log_of(lab, job_id))


def shows(terminal: Terminal, text: str) -> None:
    terminal.wait_for(lambda seen: text in seen.answer())


@pytest.mark.parametrize("cluster", [ON_SLURM, pytest.param("here", marks=pytest.mark.soak)])
def test_a_job_that_waits_is_entered_left_and_over_when_nobody_is_inside(lab: Lab, cluster: str) -> None:
    # A shell without line editing, so that the screen has plain text.
    lab.project.environ.update(TERM="dumb", PS1="$ ")
    # On Slurm the job has two nodes, and the second one is entered.
    node, nodes = ("0", 1) if cluster == "here" else ("1", 2)
    job_id = lab.submit(cluster, "--hold", "1h", "ssh")
    last = job_id.rpartition("_")[2]
    assert waits(lab, job_id), lab.run("q", job_id)
    detail = lab.detail(last)
    assert (detail["status"], detail["command"], detail["hold_seconds"]) == ("Running", ["ssh"], 3600)
    assert detail["ssh"] == f"blobsync ssh {last}" and f"enter it:      blobsync ssh {last}" in lab.run("q", last).out
    assert "waits:         1h from its start, then until the last shell is closed" in lab.run("q", last).out
    with on_terminal(lab.project, "ssh", last, "--node", node) as inside:
        shows(inside, f"blobsync: inside {job_id}; exit leaves it")
        inside.type('echo "$BLOBSYNC_RUN_ID $RANK of $WORLD_SIZE"; echo "$LIST"; cat show.py | head -n1\n')
        shows(inside, f"{job_id} {node} of {nodes}")
        # The job's environment and its folder, with the code.
        shows(inside, "a,b; c")
        shows(inside, "import json, os, sys")
        # What says so is in the foreground by then; a shell that has not yet started its child gets Ctrl-C alone.
        inside.type("sh -c 'echo be\"\"gun; exec sleep 600'; echo over\n")
        shows(inside, "begun")
        inside.type(CTRL_C)
        inside.type('echo inter""rupted\n')
        shows(inside, "interrupted")
        # The time may be changed from inside; after its end the job goes on while a shell is open.
        inside.type('echo 0 > "$BLOBSYNC_HOLD"; echo sho""rt > output/note\n')
        assert wait_until(lambda: "when the last shell is closed (1 shell open)" in log_of(lab, job_id), seconds=60)
        assert lab.job(job_id)["status"] == "Running"
        inside.type("exit\n")
        assert inside.finish().code in (0, 130)
    job = lab.until(job_id)
    assert (job["status"], job["exit_code"], job["ssh"]) == ("Completed", 0, None)
    assert lab.container.get("mine/output/note") == b"short\n"
    assert lab.scratch_is_empty
    over = lab.run("ssh", last, code=1).err
    assert f"{job_id} is Completed" in over, over
