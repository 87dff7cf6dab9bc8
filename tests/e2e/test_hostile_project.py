"""A project from a stranger, whose files cannot name the user's own files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Project, read_tree, write_tree
from tests.servers.stranger import stranger

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("place", [".git/hooks", ".git", "sub/.GIT", "data/../.git", "aux_data/configs", ".blobsync/x"])
def test_no_folder_entry_opens_the_repository_or_the_configuration(
    place: str, project: Project, container: Container
) -> None:
    project.configure(container)
    container.put("x/post-checkout", b"#!/bin/sh\n")
    file = project.root / "aux_data" / "aml" / "aml.yaml"
    values = yaml.safe_load(file.read_text())
    values["config_param"][f"{place}_folder"] = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": "x"}
    file.write_text(yaml.safe_dump(values))
    (project.root / ".git" / "hooks").mkdir(parents=True)
    (project.root / ".blobsync" / "x").mkdir(parents=True)
    before = read_tree(project.root)
    # The keys in aux_data/configs must not go up either.
    for words in (("d", place), ("u", place), ("d", "--dry-run", "data")):
        done = project.run(*words)
        assert (done.code, "which is reserved" in done.err) == (2, True), str(done)
    assert read_tree(project.root) == before
    assert container.names() == ["x/post-checkout"]


@pytest.mark.parametrize(
    "link", [".gitignore", "aux_data", "aux_data/configs", "aux_data/configs/storage.yaml", "aux_data/aml/aml.yaml"]
)
def test_config_new_writes_through_no_link_out_of_the_project(link: str, project: Project) -> None:
    home = project.root.parent / "home"
    (home / "folder").mkdir()
    (home / "file").write_text("mine\n")
    way = project.root / link
    way.parent.mkdir(parents=True, exist_ok=True)
    way.symlink_to(os.path.relpath(home / ("folder" if "." not in Path(link).name else "file"), way.parent))
    done = project.run("config", "new")
    assert (done.code, "a link that points outside the project" in done.err) == (1, True), str(done)
    assert read_tree(home / "folder") == {}
    assert (home / "file").read_text() == "mine\n"
    assert not [name for name in read_tree(project.root) if project.root / name != way]


def test_config_new_makes_no_file_where_a_link_leads_nowhere(project: Project) -> None:
    (project.root / ".gitignore").symlink_to("../home/fresh")
    assert project.run("config", "new").code == 1
    assert not (project.root.parent / "home" / "fresh").exists()


SAS = "sv=2023-11-03&sp=rwdl&sr=c&se=2099-01-01T00:00:00Z&sig=c2lnbmF0dXJlIG1hcmtlZCBmb3IgdGhlIHRlc3Q%3D"


def names_a_port(project: Project, port: int, **more: str) -> None:
    """A project from a stranger who listens at that port of this machine."""
    file = "aux_data/configs/a.yaml"
    account = {"account_name": "acct", "container_name": "box", "blob_endpoint": f"http://127.0.0.1:{port}/acct"}
    entry = {"azure_blob_config_file": file, "path": "p"}
    for name, value in (
        (file, {**account, **more}),
        ("aux_data/aml/aml.yaml", {"config_param": {"data_folder": entry}}),
    ):
        (project.root / name).parent.mkdir(parents=True, exist_ok=True)
        (project.root / name).write_text(yaml.safe_dump(value))
        (project.root / name).chmod(0o600)
    write_tree(project.data, {"a": b"private"})


@pytest.mark.parametrize("transport", ["curl", "urllib3"])
def test_a_sas_of_the_environment_goes_to_no_other_user_of_this_machine(
    project: Project, tmp_path: Path, transport: str
) -> None:
    project.environ |= {"BLOBSYNC_TEST_SAS": SAS, "BLOBSYNC_TRANSPORT": transport}
    with stranger(tmp_path) as other:
        names_a_port(project, other.port, sas_token="${BLOBSYNC_TEST_SAS}")
        for words in (("ls", "data"), ("u", "data"), ("d", "data"), ("url", "data/a"), ("rm", "-y", "data/a")):
            done = project.json(*words)
            assert (done.code, done.codes) == (2, {"credential_invalid"}), str(done)
            assert "a program of another user of this machine listens" in done.errors[0]["message"]
            assert "BLOBSYNC_TRUSTED_HOSTS=127.0.0.1" in done.errors[0]["hint"]
        assert project.run("doctor").code != 0
        assert other.received == b""
        # Only if the user agrees.
        project.environ["BLOBSYNC_TRUSTED_HOSTS"] = "127.0.0.1"
        project.run("ls", "data")
        assert b"sig=c2lnbmF0dXJl" in other.received


@pytest.mark.parametrize("processes", ["1", "2"])
def test_nor_do_data_or_a_sas_of_the_file_itself(with_azcopy: Project, tmp_path: Path, processes: str) -> None:
    """A program of another user has the port of an emulator that has ended."""
    with stranger(tmp_path) as other:
        names_a_port(with_azcopy, other.port, sas_token=SAS)
        for more in (("--engine", "azcopy"), ("--engine", "direct", "--processes", processes)):
            done = with_azcopy.json("u", "data", *more)
            assert (done.code, done.codes) == (2, {"credential_invalid"}), str(done)
        assert other.received == b""


def test_nor_does_a_login_for_azure_ml(project: Project, tmp_path: Path) -> None:
    with stranger(tmp_path) as other:
        names_a_port(project, other.port, sas_token=SAS)
        place = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}
        workspace = project.root / "aux_data" / "aml" / "config.json"
        workspace.write_text(json.dumps({**place, "management_endpoint": other.url}))
        keys = "{platform: aml, compute_target: c, aml_config: aux_data/aml/config.json}"
        done = project.json("-p", keys, "summary")
        assert done.code == 2, str(done)
        assert "another user of this machine" in done.errors[0]["message"]
        assert "your login is not sent there" in done.errors[0]["message"]
        assert other.received == b""
