"""``history``: what moved, what was removed, how it ended, and each file with what it was before."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from functools import partial

import pytest

from tests.e2e.terminal import see
from tests.e2e.world import Container, Project, write_tree
from tests.servers.delay_proxy import delay_proxy
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e


def _grows(container: Container, before: int) -> bool:
    # Several: the answers to the last ones are still on their way.
    return len(container.names("data/")) > before + 8


def newest(project: Project) -> str:
    """How the last transfer ended; empty where there is none."""
    rows = project.json("history").data["transfers"]
    return str(rows[0]["result"]) if rows else ""


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_transfers_copies_removals_and_mirrors_are_reported(project: Project, container: Container) -> None:
    write_tree(project.data, {"a.txt": b"one", "b.txt": b"b"})
    project.configure(container)
    assert project.json("history").data == {"transfers": [], "jobs": [], "older": False}
    assert project.json("u", "data").code == 0
    first = container.blob("data/a.txt").get_blob_properties().etag
    (project.data / "a.txt").write_bytes(b"two!")
    os.utime(project.data / "a.txt", ns=(1, 1))
    assert project.json("u", "data", "--mirror", "-y").code == 0
    assert project.json("u", "data").code == 0
    assert project.json("rm", "data/b.txt", "-y").code == 0
    assert project.json("d", "data", "--mirror", "-y", "--max-delete", "100%").code == 0

    rows = project.json("history").data["transfers"]
    assert [(row["kind"], row["mirror"], row["transferred"], row["deleted"], row["result"]) for row in rows] == [
        ("download", True, 0, 1, "done"),
        ("rm", False, 0, 1, "done"),
        ("upload", True, 1, 0, "done"),
        ("upload", False, 2, 0, "done"),
    ]
    assert rows[0]["command"] == "blobsync d data --mirror -y --max-delete 100% --json"
    assert {row["cluster"] for row in rows} == {"aml"} and all(row["user"] and row["host"] for row in rows)

    one = project.json("history", rows[2]["id"]).data
    (file,) = one["files"]
    second = container.blob("data/a.txt").get_blob_properties().etag
    assert (file["path"], file["md5"], file["etag"]) == ("data/a.txt", md5(b"two!"), second.strip('"'))
    assert file["was"] == {"size": 3, "md5": md5(b"one"), "etag": first.strip('"')}
    removed = project.json("history", rows[1]["id"]).data["files"]
    assert [(each["action"], each["path"], each["was"]["md5"]) for each in removed] == [
        ("deleted", "data/b.txt", md5(b"b"))
    ]

    shown = project.run("history", "--transfers", "--path", "data/a.txt", "--since", "1h")
    assert shown.code == 0 and [line.split()[3] for line in shown.out.splitlines()[1:]] == [
        "download",
        "upload",
        "upload",
    ]
    text = project.run("history", rows[2]["id"][-6:]).out
    assert f"  was: 3 B, MD5 {md5(b'one')}, ETag {first.strip(chr(34))}" in text
    assert project.json("history", "nothing-like-it").code == 4


def test_what_failed_is_named_with_its_code(project: Project, container: Container) -> None:
    write_tree(project.data, {"a.txt": b"here", "b.txt": b"b"})
    container.put("data/c.txt", b"replaced under way")
    project.configure(container)
    (project.data / "c").mkdir()
    (project.data / "bad\nname").write_bytes(b"not in any container")
    done = project.json("u", "data")
    assert (done.code, done.data["transferred"], done.data["failed"]) == (3, 2, 1), str(done)
    (row,) = project.json("history").data["transfers"]
    (failure,) = project.json("history", row["id"]).data["failures"]
    assert (failure["path"], failure["code"]) == ("data/bad\nname", "names_unsafe")
    text = project.run("history", row["id"]).out
    assert "left out: its name" in text and "(names_unsafe)" in text, text


@pytest.mark.soak
def test_how_a_transfer_ended_is_reported_also_after_a_kill(project: Project, container: Container) -> None:
    write_tree(project.data, {f"f{number}.bin": bytes([number]) * 100_000 for number in range(80)})
    for stop, result in ((signal.SIGINT, "cancelled"), (signal.SIGKILL, "killed")):
        # A line for each: what was on its way when the first ended would be before the second.
        with delay_proxy(container.service, round_trip_ms=40, mbps=2) as slow:
            project.configure(container, url=slow.url)
            process = project.start("u", "data", "--engine", "direct")
            assert wait_until(lambda: newest(project) == "running", pause=0.2)
            assert wait_until(partial(_grows, container, len(container.names("data/"))))
            process.send_signal(stop)
            process.communicate(timeout=30)
            assert newest(project) == result
    (cancelled,) = [row for row in project.json("history").data["transfers"] if row["result"] == "cancelled"]
    assert cancelled["transferred"] > 0 and cancelled["receipt"]


def test_what_runs_has_one_row_of_any_terminal(project: Project, container: Container, service: str) -> None:
    write_tree(project.data / "a/long/folder/name", {f"{number}.bin": b"x" * 20_000 for number in range(60)})
    project.configure(container, extra={"platform": "local"})
    job = project.run("--json", "submit", "sleep", "600")
    assert job.code == 0, str(job)
    # It does not end before it is killed.
    with fault_proxy(service, Fault("hold", at=tuple(range(10, 1000)), operations=("put blob",))) as line:
        project.configure(container, url=line.url, extra={"platform": "local"})
        moving = project.start("u", "data/a/long/folder/name", "--mirror", "-y", "--json")
        try:
            assert wait_until(lambda: re.search(r"running, \d+ %", project.run("history").out), seconds=120)
            for columns in (40, 80, 120):
                terminal = see(project, "history", columns=columns)
                # A row that did not fit would take two.
                heading, *rows = terminal.lines()
                assert heading.startswith("ID" if columns == 40 else "TIME"), str(terminal)
                assert len(rows) == 2, str(terminal)
                assert ["mirror" in row or "upload" in row for row in rows] == [True, False], str(terminal)
                said = r"running, \d+ %", r"(Queued|Preparing|Running) as of"
                found = [re.search(words, row) for words, row in zip(said, rows, strict=True)]
                assert all(found) or columns == 40, str(terminal)
                assert job.data["job_id"].rpartition("_")[2] in rows[1], str(terminal)
        finally:
            moving.kill()
            project.finish(moving)
            assert project.run("abort", job.data["job_id"]).code == 0
