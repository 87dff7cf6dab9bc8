"""``cat`` and ``diff``: the bytes of one path, to a pipe and to a terminal."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess

import pytest
from azure.storage.blob import ContentSettings

from tests.e2e.terminal import see
from tests.e2e.world import Container, Project, blobsync_command, sha256, write_tree
from tests.servers.fault_proxy import Fault, fault_proxy

pytestmark = pytest.mark.e2e

_LARGE = random.Random(1).randbytes(20_000_000)
_ODD = bytes(range(256)) * 40
WIDTHS = pytest.mark.parametrize("columns", [40, *(pytest.param(each, marks=pytest.mark.soak) for each in (80, 120))])


def printed(project: Project, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Its bytes, which need not be text."""
    environ = {**os.environ, **project.environ}
    return subprocess.run([blobsync_command(), *words], cwd=project.root, env=environ, capture_output=True, timeout=300)


def test_the_bytes_of_blobs_come_as_they_are(project: Project, container: Container) -> None:
    container.put("data/odd", _ODD)
    container.put("data/sub/large", _LARGE, md5=False)
    container.put("data/empty", b"")
    project.configure(container)
    done = printed(project, "cat", "data/odd", "data/sub/large", "data/empty", "data/odd")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sha256(done.stdout) == sha256(_ODD + _LARGE + _ODD)
    nothing = printed(project, "cat", "data/odd", "data/od")
    assert (nothing.returncode, nothing.stdout) == (4, b""), "all are looked for before the first byte"
    assert b"did you mean data/odd?" in nothing.stderr
    folder = printed(project, "cat", "data/sub")
    assert folder.returncode == 2 and b"hint: 'blobsync ls data/sub' lists what is in it" in folder.stderr


def test_a_reader_that_has_enough_ends_it(project: Project, container: Container) -> None:
    container.put("data/large", _LARGE)
    project.configure(container)
    line = f"{blobsync_command()} cat data/large | head -c 5 | wc -c; echo ${{PIPESTATUS[0]}}"
    environ = {**os.environ, **project.environ}
    done = subprocess.run(
        ["/bin/bash", "-c", line], cwd=project.root, env=environ, capture_output=True, text=True, timeout=300
    )
    assert (done.stdout.split(), done.stderr) == (["5", "0"], "")


def test_a_line_that_breaks_is_taken_up_where_it_broke(project: Project, container: Container, service: str) -> None:
    container.put("data/large", _LARGE)
    with fault_proxy(service, Fault("reset_download", at=(1, 2), operations=("get blob",))) as line:
        project.configure(container, url=line.url)
        done = printed(project, "cat", "data/large")
        assert line.stats().injected["reset_download"] == 2
    assert (done.returncode, sha256(done.stdout)) == (0, sha256(_LARGE)), done.stderr


def test_bytes_that_the_md5_does_not_fit_are_said_so(project: Project, container: Container) -> None:
    wrong = ContentSettings(content_md5=bytearray(hashlib.md5(b"other").digest()))
    container.put("data/bad", b"these")
    # At the upload the service would refuse it.
    container.blob("data/bad").set_http_headers(wrong)
    container.put("data/good", b" and those")
    project.configure(container)
    done = printed(project, "cat", "data/bad", "data/good")
    assert (done.returncode, done.stdout) == (3, b"these and those")
    assert b"data/bad: its bytes have the MD5 " in done.stderr and b"data/good" not in done.stderr


def test_a_bit_changed_in_transit_is_noticed(project: Project, container: Container, service: str) -> None:
    container.put("data/large", _LARGE)
    with fault_proxy(service, Fault("flip_down", at=(1,), operations=("get blob",))) as line:
        project.configure(container, url=line.url)
        done = printed(project, "cat", "data/large")
    assert (done.returncode, len(done.stdout)) == (3, len(_LARGE)), done.stderr
    assert b"data/large: its bytes have the MD5 " in done.stderr


@WIDTHS
def test_a_terminal_gets_text_and_nothing_that_changes_it(project: Project, container: Container, columns: int) -> None:
    container.put("data/text", "one\ttab\x1b[31m\nFAIL: \u00fcber\r\nlast".encode())
    container.put("data/binary", _ODD)
    project.configure(container)
    shown = see(project, "cat", "data/text", columns=columns)
    assert (shown.code, shown.lines()) == (0, ["one     tab\\x1b[31m", "FAIL: über\\r", "last"])
    refused = see(project, "cat", "data/binary", columns=columns)
    assert (refused.code, refused.answer()[0]) == (
        2,
        "blobsync: data/binary is binary, and would confuse the terminal",
    )
    assert "blobsync cat data/binary > FILE" in refused.answer()[1]


def test_the_difference_of_a_text_is_a_patch(project: Project, container: Container) -> None:
    theirs = "".join(f"line {number}\n" for number in range(300)) + "end"
    mine = theirs.replace("line 7\n", "line seven\r\n").replace("line 200\n", "").replace("end", "end\n")
    container.put("data/a.txt", theirs.encode())
    write_tree(project.data, {"a.txt": mine.encode()})
    project.configure(container)
    done = printed(project, "diff", "data/a.txt")
    assert (done.returncode, done.stderr) == (3, b"")
    assert done.stdout.startswith(b"--- data/a.txt\tin the container\n+++ data/a.txt\there\n@@ ")
    if shutil.which("patch"):
        copy = project.root / "copy"
        copy.write_bytes(theirs.encode())
        subprocess.run(["patch", "--binary", str(copy)], input=done.stdout, check=True, capture_output=True)
        assert copy.read_bytes() == mine.encode()
    document = project.json("diff", "data/a.txt")
    assert document.code == 3
    assert (document.data["status"], document.data["here"], document.data["no_lines"]) == ("differs", len(mine), None)
    assert "+line seven\r" in document.data["lines"] and "-line 200" in document.data["lines"]
    assert project.json("u", "data", "--overwrite").code == 0
    same = printed(project, "diff", "data/a.txt")
    assert (same.returncode, same.stdout) == (0, b"")
    assert b"data/a.txt: here and in the container are the same" in same.stderr


def test_what_has_no_lines_is_told_in_one(project: Project, container: Container) -> None:
    container.put("data/odd", _ODD)
    container.put("data/theirs", b"t" * 3000)
    container.put("data/large", b"a\n" * 10_000_000, md5=False)
    write_tree(project.data, {"odd": _ODD[1:], "mine": b"m", "large": b"b\n" * 10_000_000, "sub/a": b"a"})
    project.configure(container)
    by_hand = "blobsync cat data/large | diff - data/large"
    for path, line in (
        ("data/odd", "data/odd: binary, and differs: 10,239 bytes here, 10,240 in the container"),
        ("data/theirs", "data/theirs: only in the container, 3 KB"),
        ("data/mine", "data/mine: only here, 1 B"),
        ("data/large", f"data/large: differs: 20 MB on both sides; to compare all lines: {by_hand}"),
    ):
        done = project.run("diff", path)
        assert (done.code, done.out) == (3, f"{line}\n"), str(done)
    folder = project.run("diff", "data/sub")
    assert folder.code == 2 and "'blobsync verify data/sub' names the files that differ" in folder.err
    assert project.run("diff", "data/nothing").code == 4


@WIDTHS
def test_a_difference_on_a_terminal_changes_nothing_of_it(project: Project, container: Container, columns: int) -> None:
    container.put("data/a", b"one\n\x1b[2Jtwo\n")
    write_tree(project.data, {"a": b"one\n2\n"})
    project.configure(container)
    shown = see(project, "diff", "data/a", columns=columns)
    assert shown.code == 3
    assert shown.lines()[2:] == ["@@ -1,2 +1,2 @@", " one", "-\\x1b[2Jtwo", "+2"], str(shown)


def test_what_is_locked_is_listed_compared_and_brought_back(project: Project, container: Container) -> None:
    write_tree(project.data, {"a": b"one", "sub/b": b"two", "c": b"three"})
    project.configure(container)
    (project.root / ".gitignore").write_text("data/\n")

    def commit(tag: str) -> None:
        add = project.run("lock", "data").out.partition("to commit: ")[2].split()
        name = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        for words in (("init", "-q"), add[1:], ("commit", "-qm", tag), ("tag", tag)):
            subprocess.run(["git", *name, *words], cwd=project.root, check=True)

    assert project.json("u", "data").code == 0
    commit("v1")
    write_tree(project.data, {"a": b"uno", "sub/d": b"more"})
    assert project.json("u", "data").code == 0
    assert project.json("status").data["entries"][0]["drifted"] == ["data"]
    commit("v2")
    done = project.run("diff", "v1", "v2", "data")
    assert (done.code, done.out.splitlines()[-1]) == (
        3,
        "1 added, 1 changed; 11 B in 3 files before, 15 B in 4 files after",
    )
    document = project.json("diff", "v1", "data")
    assert [(each["path"], each["status"]) for each in document.data["files"]] == [
        ("data/a", "changed"),
        ("data/sub/d", "added"),
    ]
    assert project.run("ls", "data", "-r", "--at", "v1").out.split() == ["data/a", "data/c", "data/sub/b"]
    assert "1970" not in project.run("ls", "data", "-l", "--at", "v1").out, "a lock has no times"
    shutil.rmtree(project.data)
    assert project.json("d", "data", "--locked").data["transferred"] == 4
    assert project.json("verify", "data", "--locked").data["counts"] == {"equal": 4}
    # The first lock again: what it had of one file is nowhere any more, since this server keeps no versions.
    subprocess.run(["git", "checkout", "-q", "v1"], cwd=project.root, check=True)
    done = project.run("d", "data", "--locked")
    assert (done.code, "the locked content of data/a is nowhere any more" in done.err) == (1, True), str(done)
    assert project.json("d", "data", "--locked", "--exclude", "a").data["unchanged"] == 2
