"""What users get wrong, each with its exit code, one sentence, what to do next, and nothing touched."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from tests.e2e.world import Container, Done, Project, blobsync_command, read_tree, write_tree

pytestmark = pytest.mark.e2e

_FILES = {"a.txt": b"alpha", "sub/b.txt": b"beta"}


@pytest.fixture
def ready(project: Project, container: Container) -> Project:
    """Two local files, a sound configuration, one blob."""
    write_tree(project.data, _FILES)
    project.configure(container)
    container.put("data/there.txt", b"there")
    return project


def _check(
    project: Project, container: Container | None, words: tuple[str, ...], *, exit_code: int, code: str, says: str
) -> Done:
    """One run in words and one with ``--json``; both must say the same and touch nothing."""
    before = read_tree(project.data), set(container.names()) if container else set()
    done = project.run(*words)
    assert done.code == exit_code, str(done)
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0] == f"blobsync: {says}" or lines[0].startswith(f"blobsync: {says}"), str(done)
    assert len(lines) == 2 and lines[1].startswith("  hint: "), str(done)
    assert "Traceback" not in done.err
    told = project.json(*words)
    assert (told.code, told.document["status"]) == (exit_code, "error"), str(told)
    [error] = told.errors
    assert error["code"] == code, str(told)
    assert f"blobsync: {error['message']}" == lines[0]
    assert f"  hint: {error['hint']}" == lines[1]
    assert (read_tree(project.data), set(container.names()) if container else set()) == before
    if container:
        assert container.key not in done.out + done.err + told.out + told.err
    return done


def test_outside_of_any_project(project: Project, tmp_path: Path) -> None:
    empty = Project(tmp_path / "empty", project.environ)
    empty.root.mkdir()
    says = f"{empty.root} is in no project: neither it nor a folder above it holds aux_data/"
    _check(empty, None, ("ls",), exit_code=2, code="config_not_found", says=says)


def test_no_default_cluster(ready: Project, container: Container) -> None:
    (ready.root / "aux_data/aml/aml.yaml").rename(ready.root / "aux_data/aml/eu.yaml")
    says = "aux_data/aml/aml.yaml: no such file"
    done = _check(ready, container, ("u", "data"), exit_code=2, code="config_not_found", says=says)
    assert "available: eu" in done.err


BAD_WORDS = {
    "unknown cluster": (
        ("-c", "amll", "u", "data"),
        "cluster_unknown",
        "no cluster 'amll': there is no aux_data/aml/amll.yaml",
    ),
    "unknown other cluster": (
        ("u", "data", "-f", "we3v32"),
        "cluster_unknown",
        "no cluster 'we3v32': there is no aux_data/aml/we3v32.yaml",
    ),
    "unmapped path": (
        ("u", "dta/a.txt"),
        "path_unmapped",
        "dta/a.txt is not covered by any folder entry of aux_data/aml/aml.yaml; entries: data",
    ),
    "path outside": (("d", "../data"), "path_outside_project", "../data is outside the project"),
    "an option that is none": (("u", "data", "--recursive"), "usage", "no such option: --recursive"),
    "options that cannot be combined": (
        ("u", "data", "--overwrite", "--keep", "both"),
        "usage",
        "--overwrite and --keep cannot be combined",
    ),
    "an option for what is written here": (
        ("u", "data", "--force"),
        "usage",
        "--force is about the free space of this machine",
    ),
    "an engine that is none": (("u", "data", "--engine", "ftp"), "usage", "--engine ftp: not one of"),
    "an override of the wrong type": (
        ("u", "data", "-p", "{gpu_per_node: four}"),
        "config_invalid",
        "-p: gpu_per_node: must be a whole number, not a text",
    ),
    "a plan that is none": (("apply", "data/a.txt"), "plan_file_invalid", "data/a.txt is not a plan"),
    "rm with nobody to ask": (("rm", "data/there.txt"), "usage", "not a terminal, cannot ask: delete 1 blob, 5 B?"),
}


def test_words_that_do_not_fit(ready: Project, container: Container) -> None:
    for words, code, says in BAD_WORDS.values():
        done = ready.run(*words)
        assert done.code == 2 and says in done.err, str(done)
        told = ready.json(*words)
        assert (told.code, told.codes) == (2, {code}), str(told)
        assert "Traceback" not in done.err + told.err
    assert set(container.names()) == {"data/there.txt"} and set(read_tree(ready.data)) == set(_FILES)


def test_nothing_of_that_name(ready: Project, container: Container) -> None:
    for command in ("u", "d", "ls", "verify", "stat"):
        done = ready.json(command, "data/nowhere")
        assert (done.code, done.codes) == (4, {"nothing_matched"}), str(done)
        hint = done.errors[0]["hint"]
        # 'blobsync ls' lists blobs: that is no help for what is missing here.
        assert hint == f"'ls {ready.data}' shows what is there" if command == "u" else "blobsync ls" in hint


TEN_BROKEN_FILES: dict[str, tuple[str, str, str]] = {
    "not YAML": ("aux_data/aml/aml.yaml", "config_param: {\n", "aux_data/aml/aml.yaml:2: is not valid YAML: "),
    "a tab": ("aux_data/aml/aml.yaml", "config_param:\n\tdata_folder: x\n", "aux_data/aml/aml.yaml:2: is not valid"),
    "a key twice": ("aux_data/aml/aml.yaml", "env: {}\nenv: {}\n", "aux_data/aml/aml.yaml:2: env: is set twice"),
    "a wrong type": ("aux_data/aml/aml.yaml", "multi_process: 3\n", "aux_data/aml/aml.yaml:1: multi_process: must be"),
    "a wrong word": ("aux_data/aml/aml.yaml", "platform: slrum\n", "aux_data/aml/aml.yaml:1: platform: 'slrum' is not"),
    "an account file that is not there": (
        "aux_data/aml/aml.yaml",
        "config_param:\n  data_folder: {azure_blob_config_file: aux_data/configs/no.yaml, path: p}\n",
        "aux_data/aml/aml.yaml:2: config_param.data_folder.azure_blob_config_file: names aux_data/configs/no.yaml",
    ),
    "an entry without account": (
        "aux_data/aml/aml.yaml",
        "config_param:\n  data_folder: p\n",
        "aux_data/aml/aml.yaml:2: config_param.data_folder: needs an azure_blob_config_file",
    ),
    "an account without container": (
        "aux_data/configs/aml.yaml",
        "account_name: acct\n",
        "aux_data/configs/aml.yaml: container_name: is missing",
    ),
    "a key cut short": (
        "aux_data/configs/aml.yaml",
        "account_name: acct\ncontainer_name: cont\naccount_key: abcde\n",
        "aux_data/configs/aml.yaml:3: account_key: is not base64",
    ),
    "a variable that is not set": (
        "aux_data/configs/aml.yaml",
        "account_name: acct\ncontainer_name: cont\naccount_key: ${BLOBSYNC_NO_SUCH_VARIABLE}\n",
        "aux_data/configs/aml.yaml:3: account_key: the environment variable BLOBSYNC_NO_SUCH_VARIABLE is not set",
    ),
    "a placeholder left in place": (
        "aux_data/configs/aml.yaml",
        "account_name: <your storage account>\ncontainer_name: cont\n",
        "aux_data/configs/aml.yaml:1: account_name: still has the example's placeholder",
    ),
}


def test_broken_files_are_refused(ready: Project, container: Container) -> None:
    for command, (file, text, says) in zip(cycle(("u", "d", "ls")), TEN_BROKEN_FILES.values(), strict=False):
        ready.configure(container)
        (ready.root / file).write_text(text)
        done = ready.json(command, "data")
        assert (done.code, done.codes) == (2, {"config_invalid"}), str(done)
        assert done.errors[0]["message"].startswith(says), str(done)
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
