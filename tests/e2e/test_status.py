"""``status`` in a real project: after each kind of change on either side, and beside what ``u`` and ``d`` then do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, write_tree

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


def test_what_was_listed_in_part_and_what_is_no_file_is_said_so(project: Project, container: Container) -> None:
    write_tree(project.data, {"mine/a": b"a", "other/b": b"b"})
    container.put("data/mine/theirs", b"bb")
    project.configure(container)
    os.mkfifo(project.data / "pipe")
    (project.data / "link").symlink_to(project.root / "aux_data")
    assert project.run("ls", "data/mine").code == 0
    first, *rest = project.run("status").out.splitlines()
    said = "data: 2 files (2 B) here, at least 1 file (2 B) in the container, not listed as a whole yet"
    assert first == said and "  1 left out (symlinks), 1 left out (neither file nor folder)" in rest
    found = {"here": 2, "there": 1, "to_upload": 1, "to_download": 1, "missing_here": 1, "never_verified": 1, "exit": 3}
    assert entry(project) == found
