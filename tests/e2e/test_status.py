"""``status`` in a real project: after each kind of change on either side, and beside what ``u`` and ``d`` then do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Project, hashes, write_tree

pytestmark = pytest.mark.e2e

_FILES = {f"d{number // 10}/f{number}.txt": f"{number}".encode() for number in range(30)}


@pytest.fixture
def synced(project: Project, container: Container) -> Project:
    write_tree(project.data, _FILES)
    project.configure(container)
    assert project.json("u", "data").code == 0
    return project


def entry(project: Project, *words: str) -> dict[str, int]:
    """What is not zero of the one entry, and the exit code."""
    done = project.json("status", *words)
    (found,) = done.data["entries"]
    numbers = {
        name: (found[name] or {}).get("files", 0)
        for name in ("here", "there", "to_upload", "to_download", "conflicts", "never_verified")
    }
    numbers |= {name: found[name] for name in ("newer_at_destination", "missing_here", "ignored")}
    return {name: count for name, count in numbers.items() if count} | {"exit": done.code}


def change(file: Path, data: bytes) -> None:
    file.write_bytes(data)
    os.utime(file, ns=(1, 1))


def test_changes_here_show_at_once_and_those_there_with_a_listing(synced: Project, container: Container) -> None:
    assert entry(synced) == {"here": 30, "there": 30, "exit": 0}
    assert entry(synced, "--fresh") == {"here": 30, "there": 30, "exit": 0}
    (synced.data / "new.txt").write_bytes(b"new")
    change(synced.data / "d0/f1.txt", b"another")
    (synced.data / "d0/f2.txt").unlink()
    os.utime(synced.data / "d0/f3.txt")
    expected = {"here": 30, "there": 30, "to_upload": 2, "to_download": 1, "missing_here": 1, "exit": 3}
    assert entry(synced) == expected

    container.put("data/theirs.txt", b"theirs")
    container.put("data/d1/f11.txt", b"their version")
    change(synced.data / "d1/f12.txt", b"mine")
    container.put("data/d1/f12.txt", b"theirs")
    container.blob("data/d1/f13.txt").delete_blob()
    expected |= {"to_upload": 3}
    assert entry(synced) == expected
    expected |= {"to_download": 3, "missing_here": 2, "newer_at_destination": 1, "conflicts": 1}
    assert entry(synced, "--fresh") == expected
    assert entry(synced) == expected

    planned = synced.json("plan", "u", "data").data
    assert (planned["planned"], planned["conflicts"], planned["newer_at_destination"]) == (3, 1, 1)
    assert synced.json("d", "data", "--keep", "local").code == 0
    assert synced.json("u", "data").code == 0
    settled = entry(synced)
    assert settled["exit"] == 0 and settled["here"] == settled["there"] == 32
    assert entry(synced, "--fresh") == settled


def test_ignored_files_stay_where_they_are(project: Project, container: Container) -> None:
    write_tree(project.data, {"a.txt": b"a", "b.tmp": b"b", "cache/c": b"c"})
    container.put("data/theirs.tmp", b"t")
    project.configure(container)
    file = project.root / "aux_data/aml/aml.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["config_param"]["data_folder"]["ignore"] = ["*.tmp", "cache/"]
    file.write_text(yaml.safe_dump(settings))
    done = project.json("u", "--all", "--mirror", "-y", "--max-delete", "100%")
    assert (done.code, done.data["transferred"], done.data["ignored"]) == (0, 1, 2), str(done)
    assert container.contents("data/") == hashes({"a.txt": b"a", "theirs.tmp": b"t"})
    assert entry(project) == {"here": 1, "there": 1, "ignored": 2, "exit": 0}
    down = project.json("d", "--all", "--mirror", "-y", "--max-delete", "100%")
    assert (down.code, down.data["deleted"]) == (0, 0)
    assert sorted(path.name for path in project.data.rglob("*") if path.is_file()) == ["a.txt", "b.tmp", "c"]


@pytest.mark.parametrize(
    "look", [("ls", "data", "-r"), ("du", "data"), ("verify", "data"), ("u", "data")], ids=" ".join
)
def test_what_another_command_listed_needs_no_second_listing(
    project: Project, container: Container, look: tuple[str, ...]
) -> None:
    write_tree(project.data, {"mine/a": b"a"})
    container.put("data/theirs/b", b"bb")
    project.configure(container)
    assert entry(project) == {"here": 1, "never_verified": 1, "exit": 0}
    project.json(*look)
    found = project.json("status").data["entries"][0]
    assert found["as_of"] is not None and (found["there"]["files"], found["to_download"]["files"]) == (
        2 if look[0] == "u" else 1,
        1,
    )
    assert (found["never_verified"]["files"], found["to_upload"]["files"]) == (0, 0 if look[0] == "u" else 1)


def test_what_was_listed_in_part_is_said_so(project: Project, container: Container) -> None:
    write_tree(project.data, {"mine/a": b"a", "other/b": b"b"})
    container.put("data/mine/theirs", b"bb")
    project.configure(container)
    assert project.run("ls", "data/mine").code == 0
    first, *_ = project.run("status").out.splitlines()
    said = "data: 2 files (2 B) here, at least 1 file (2 B) in the container, not listed as a whole yet"
    assert first == said
    found = {"here": 2, "there": 1, "to_upload": 1, "to_download": 1, "missing_here": 1, "never_verified": 1, "exit": 3}
    assert entry(project) == found


def test_a_pipe_and_a_conflict_are_one_thing_each(project: Project, container: Container) -> None:
    write_tree(project.data, {"mine": b"mine", "f": b"f"})
    container.put("data/mine", b"another")
    project.configure(container)
    os.mkfifo(project.data / "pipe")
    (project.data / "link").symlink_to(project.root / "aux_data")
    assert entry(project, "--fresh") == {
        "here": 2,
        "there": 1,
        "to_upload": 1,
        "conflicts": 1,
        "exit": 3,
    }
    assert "  1 left out (symlinks), 1 left out (neither file nor folder)" in project.run("status").out.splitlines()
