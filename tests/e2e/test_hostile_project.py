"""A project that came from a stranger: its files name no place where the user's own things are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Project, read_tree

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
