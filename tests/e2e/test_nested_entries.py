"""A folder with an entry of its own inside another one: nothing is left out, whichever cluster knows of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Done, Project, hashes, read_tree

pytestmark = pytest.mark.e2e

_FILES = {"a.txt": b"a", "coco/b.txt": b"b" * 3000, "coco/deep/c.txt": b"c", "coco20/d.txt": b"d"}
_COPY = ("-c", "dst", "-f", "src")


def _nest(project: Project, cluster: str, path: str) -> None:
    """Give ``data/coco`` of a cluster a place of its own."""
    file = project.root / f"aux_data/aml/{cluster}.yaml"
    settings = yaml.safe_load(file.read_text())
    account = settings["config_param"]["data_folder"]["azure_blob_config_file"]
    settings["config_param"]["data/coco_folder"] = {"azure_blob_config_file": account, "path": path}
    file.write_text(yaml.safe_dump(settings))


def _blob(name: str, cluster: str, *, nested: bool) -> str:
    """Where a file of ``data`` lives in a cluster."""
    if nested and name.startswith("coco/"):
        return f"{cluster}/apart/{name.removeprefix('coco/')}"
    return f"{cluster}/data/{name}"


@pytest.fixture(params=["src", "dst"])
def nested(request: pytest.FixtureRequest) -> str:
    """The cluster that has an entry for ``data/coco``."""
    return str(request.param)


@pytest.fixture
def ends(
    project: Project, nested: str, new_container: Callable[[str], Container]
) -> tuple[Project, Container, dict[str, str]]:
    """Two clusters, the source filled; with it what the destination's container has to hold in the end."""
    containers = {"src": new_container("one"), "dst": new_container("two")}
    for cluster, container in containers.items():
        project.configure(container, cluster=cluster, path=f"{cluster}/data")
    _nest(project, nested, f"{nested}/apart")
    for name, data in _FILES.items():
        containers["src"].put(_blob(name, "src", nested=nested == "src"), data)
    expected = {_blob(name, "dst", nested=nested == "dst"): data for name, data in _FILES.items()}
    return project, containers["dst"], hashes(expected)


def _moved(done: Done) -> tuple[int, int]:
    return done.code, done.data["transferred"]


def test_a_copy_takes_every_file_to_its_own_place(ends: tuple[Project, Container, dict[str, str]]) -> None:
    project, there, expected = ends
    planned = project.json("plan", "u", "data", *_COPY)
    assert {each["path"] for each in planned.data["actions"]} == {f"data/{name}" for name in _FILES}
    assert _moved(done := project.json("u", "data", *_COPY, "--engine", "relay")) == (0, 4), str(done)
    assert there.contents() == expected
    again = project.json("u", "data", *_COPY)
    assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 0, 4), str(again)


def test_a_saved_plan_of_a_copy_takes_every_file(ends: tuple[Project, Container, dict[str, str]]) -> None:
    project, there, expected = ends
    words = ("--engine", "relay", "--save", "copy.plan")
    assert project.json("plan", "u", "data", *_COPY, *words).code == 0
    assert _moved(done := project.json("apply", "copy.plan")) == (0, 4), str(done)
    assert there.contents() == expected


def test_a_copy_from_another_path_takes_every_file(ends: tuple[Project, Container, dict[str, str]]) -> None:
    project, there, _ = ends
    done = project.json("u", "data/new", "--from-path", "data", *_COPY, "--engine", "relay")
    assert _moved(done) == (0, 4), str(done)
    assert there.contents() == hashes({f"dst/data/new/{name}": data for name, data in _FILES.items()})


def test_a_mirrored_copy_deletes_in_both_places_what_the_source_has_not(
    ends: tuple[Project, Container, dict[str, str]], nested: str
) -> None:
    project, there, expected = ends
    there.put("dst/data/extra.txt", b"e")
    there.put(_blob("coco/extra.txt", "dst", nested=nested == "dst"), b"e")
    limit = ("--mirror", "-y", "--max-delete", "100%")
    done = project.json("u", "data", *_COPY, "--engine", "relay", *limit)
    assert (*_moved(done), done.data["deleted"]) == (0, 4, 2), str(done)
    assert there.contents() == expected


def test_a_download_from_another_cluster_takes_every_file(
    ends: tuple[Project, Container, dict[str, str]], tmp_path: Path
) -> None:
    project, _, _ = ends
    assert _moved(done := project.json("d", "data", *_COPY)) == (0, 4), str(done)
    assert read_tree(project.data) == hashes(_FILES)
    assert _moved(project.json("d", "data", *_COPY)) == (0, 0)
    elsewhere = project.json("d", "data/new", "--from-path", "data", *_COPY)
    assert _moved(elsewhere) == (0, 4), str(elsewhere)
    assert read_tree(project.data / "new") == hashes(_FILES)
