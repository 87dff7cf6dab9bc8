"""What users get wrong, each with its exit code, one sentence, what to do next, and nothing touched."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, blobsync_command, read_tree, write_tree

pytestmark = pytest.mark.e2e

_FILES = {"a.txt": b"alpha", "sub/b.txt": b"beta"}


@pytest.fixture
def ready(project: Project, container: Container) -> Project:
    """Two local files, a sound configuration, one blob."""
    write_tree(project.data, _FILES)
    project.configure(container)
    container.put("data/there.txt", b"there")
    return project


def test_words_that_do_not_fit(ready: Project, container: Container) -> None:
    for words, code, says in (
        (("u", "data", "--force"), "usage", "--force is about the free space of this machine"),
        (("apply", "data/a.txt"), "plan_file_invalid", "data/a.txt is not a plan"),
        (("rm", "data/there.txt"), "usage", "not a terminal, cannot ask: delete 1 blob, 5 B?"),
    ):
        done = ready.json(*words)
        assert (done.code, done.codes) == (2, {code}) and says in done.errors[0]["message"], str(done)
    assert set(container.names()) == {"data/there.txt"} and set(read_tree(ready.data)) == set(_FILES)


def test_nothing_of_that_name(ready: Project, container: Container) -> None:
    for command in ("u", "d", "ls", "verify", "stat"):
        done = ready.json(command, "data/nowhere")
        assert (done.code, done.codes) == (4, {"nothing_matched"}), str(done)
        hint = done.errors[0]["hint"]
        # 'blobsync ls' lists blobs: that is no help for what is missing here.
        assert hint == f"'ls {ready.data}' shows what is there" if command == "u" else "blobsync ls" in hint


# What each kind of mistake is told as: tests/unit/test_config_errors.py.
BROKEN_FILES = {
    "u": ("aux_data/aml/aml.yaml", "config_param:\n\tdata_folder: x\n", ":2: is not valid YAML"),
    "d": ("aux_data/aml/aml.yaml", "multi_process: 3\n", ":1: multi_process: must be"),
    "ls": (
        "aux_data/configs/aml.yaml",
        "account_name: acct\n",
        ": container_name: is missing",
    ),
}


def test_broken_files_are_refused(ready: Project, container: Container) -> None:
    for command, (file, text, says) in BROKEN_FILES.items():
        ready.configure(container)
        (ready.root / file).write_text(text)
        done = ready.json(command, "data")
        assert (done.code, done.codes) == (2, {"config_invalid"}), str(done)
        assert done.errors[0]["message"].startswith(f"{file}{says}"), str(done)
        checked = ready.run("config", "check")
        assert checked.code == 2 and says in checked.err, str(checked)
    assert set(container.names()) == {"data/there.txt"}
    assert set(read_tree(ready.data)) == set(_FILES)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else gets meanwhile."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield int(kept.getsockname()[1])


def test_a_service_that_is_down_a_wrong_key_no_container_and_an_old_sas(
    ready: Project, container: Container, closed_port: int
) -> None:
    nowhere, old = f"http://127.0.0.1:{closed_port}", container.sas("rwdl", hours=-1)
    wrong = replace(container, key="d3Jvbmc=")
    gone = replace(container, name="no-such-container")
    for there, url, sas, code, exit_code, says in (
        (container, nowhere, None, "storage_unreachable", 1, ""),
        (wrong, None, None, "access_denied", 2, ""),
        (gone, None, None, "container_not_found", 2, "no-such-container"),
        # No server is asked: the one that is named does not exist.
        (container, nowhere, old, "sas_expired", 2, ""),
    ):
        ready.configure(there, url=url, sas=sas)
        for words in (("u", "data"), ("d", "data"), ("ls", "data"), ("rm", "data", "-y")):
            done = ready.json(*words)
            assert (done.code, done.codes) == (exit_code, {code}), str(done)
            assert says in done.errors[0]["message"] and done.errors[0]["hint"], str(done)
            assert "sig=" not in done.out + done.err
    assert set(read_tree(ready.data)) == set(_FILES) and set(container.names()) == {"data/there.txt"}


OLD_AZCOPY = '#!/bin/sh\necho "azcopy version 10.3.0"\n'
AZCOPIES: Mapping[str, tuple[Callable[[Path], str], str]] = {
    "absent": (lambda folder: str(folder / "azcopy"), "azcopy_not_found"),
    "too old": (lambda folder: _script(folder, OLD_AZCOPY), "azcopy_version"),
}


def _script(folder: Path, text: str) -> str:
    path = folder / "azcopy"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(("make", "code"), AZCOPIES.values(), ids=AZCOPIES.keys())
def test_azcopy_absent_or_too_old(
    ready: Project, container: Container, tmp_path: Path, make: Callable[[Path], str], code: str
) -> None:
    ready.environ["BLOBSYNC_AZCOPY"] = make(tmp_path)
    done = ready.json("u", "data", "--engine", "azcopy")
    assert (done.code, done.codes) == (2, {code}), str(done)
    assert "blobsync azcopy install" in done.errors[0]["hint"]
    assert set(container.names()) == {"data/there.txt"}
    assert ready.json("u", "data").code == 0, "small work needs no azcopy"


def test_a_closed_pipe_is_not_an_error(ready: Project, container: Container) -> None:
    for number in range(300):
        container.put(f"data/many/{number:03}-{'x' * 300}", b"")
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [blobsync_command(), "ls", "-r", "data"],
        cwd=ready.root,
        env={**os.environ, **ready.environ},
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_engine_that_the_environment_invents_is_one_sentence_and_touches_nothing(ready: Project) -> None:
    ready.environ["BLOBSYNC_ENGINE"] = "warp"
    (ready.root / "data").mkdir(exist_ok=True)
    (ready.root / "data/a").write_bytes(b"1")
    done = ready.run("u", "data/a")
    assert done.code == 2
    assert "BLOBSYNC_ENGINE=warp: not one of auto, azcopy, direct, relay" in done.err
    ready.environ["BLOBSYNC_ENGINE"] = "direct"
    planned = ready.json("plan", "u", "data/a")
    assert planned.data["engine_why"].startswith("BLOBSYNC_ENGINE=direct is set; about ")
    assert set(planned.data["estimated_seconds"]) == {"direct", "azcopy"}
