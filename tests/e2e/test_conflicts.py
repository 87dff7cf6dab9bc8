"""What moves, what does not, and what is left alone: content and records decide, clocks never."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.storage.blob import ContentSettings

from tests.e2e.terminal import CTRL_C, CTRL_D, Terminal, on_terminal
from tests.e2e.world import Container, Done, Project, hashes, read_tree, sha256, write_tree

pytestmark = pytest.mark.e2e

_FILES = {"a.txt": b"alpha", "sub/b.txt": b"beta", "sub/deep/c.txt": b"gamma", "empty": b""}


@pytest.fixture
def synced(project: Project, container: Container) -> Project:
    """A project whose four files are on both sides and on record."""
    write_tree(project.data, _FILES)
    project.configure(container)
    done = project.json("u", "data")
    assert (done.code, done.data["transferred"]) == (0, 4), str(done)
    return project


def _counts(done: Done) -> tuple[int, int, int, int]:
    return tuple(done.data[key] for key in ("transferred", "unchanged", "newer_at_destination", "conflicts"))


def _set_time(file: Path, seconds_ago: float) -> None:
    moment = time.time() - seconds_ago
    os.utime(file, (moment, moment))


def test_what_differs_moves_whatever_the_clocks_say(project: Project, container: Container) -> None:
    for name, data in _FILES.items():
        container.put(f"data/{name}", data)
    project.configure(container)
    assert _counts(project.json("d", "data")) == (4, 0, 0, 0)
    file = project.data / "a.txt"

    def moved(direction: str = "u") -> int:
        done = project.json(direction, "data")
        files, *rest = _counts(done)
        assert (done.code, rest) == (0, [4 - files, 0, 0]), str(done)
        assert container.get("data/a.txt") == file.read_bytes()
        return files

    assert moved("u") == moved("d") == 0
    for age in (-3600.0, 86_400.0):
        _set_time(file, age)
        assert moved() == 0
    for hours in (0, 24 * 365, -24 * 365 * 50):
        file.write_bytes(f"edit {hours}".encode())
        _set_time(file, hours * 3600.0)
        assert moved() == 1
    # Nor its size and time.
    before = file.stat()
    file.write_bytes(file.read_bytes().upper())
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert moved() == 1


def test_a_newer_side_is_kept_and_listed(synced: Project, container: Container) -> None:
    container.put("data/a.txt", b"from elsewhere")
    up = synced.json("u", "data")
    assert (up.code, _counts(up)) == (0, (0, 3, 1, 0)), str(up)
    assert container.get("data/a.txt") == b"from elsewhere"
    down = synced.json("d", "data")
    assert (down.code, _counts(down)) == (0, (1, 3, 0, 0)), str(down)
    assert (synced.data / "a.txt").read_bytes() == b"from elsewhere"
    (synced.data / "a.txt").write_bytes(b"edited here")
    kept = synced.json("d", "data")
    assert (kept.code, _counts(kept)) == (0, (0, 3, 1, 0)), str(kept)
    assert (synced.data / "a.txt").read_bytes() == b"edited here"


def test_the_same_edit_on_both_sides_is_not_a_conflict(synced: Project, container: Container) -> None:
    (synced.data / "a.txt").write_bytes(b"the same edit")
    container.put("data/a.txt", b"the same edit")
    done = synced.json("u", "data")
    assert (done.code, _counts(done)) == (0, (0, 4, 0, 0)), str(done)


@pytest.mark.parametrize("direction", ["u", "d"])
def test_a_conflict_is_left_alone_listed_and_exit_3_until_it_is_told_to_overwrite(
    direction: str, synced: Project, container: Container
) -> None:
    (synced.data / "a.txt").write_bytes(b"here")
    container.put("data/a.txt", b"there")
    done = synced.json(direction, "data")
    assert (done.code, _counts(done)) == (3, (0, 3, 0, 1)), str(done)
    assert "data/a.txt" in done.out
    assert done.document["status"] == "partial"
    assert ((synced.data / "a.txt").read_bytes(), container.get("data/a.txt")) == (b"here", b"there")
    assert synced.json(direction, "data", "--overwrite").code == 0
    wins = b"here" if direction == "u" else b"there"
    assert ((synced.data / "a.txt").read_bytes(), container.get("data/a.txt")) == (wins, wins)


@pytest.mark.parametrize(
    ("keep", "direction", "path"),
    [
        ("local", "u", "data"),
        ("remote", "d", "data"),
        ("both", "u", "data"),
        pytest.param("local", "d", "data/sub/b.txt", marks=pytest.mark.soak),
        pytest.param("remote", "u", "data/sub/b.txt", marks=pytest.mark.soak),
        pytest.param("both", "d", "data/sub/b.txt", marks=pytest.mark.soak),
    ],
)
def test_after_keep_both_ends_are_equal_and_both_commands_are_quiet(
    keep: str, direction: str, path: str, synced: Project, container: Container
) -> None:
    (synced.data / "sub/b.txt").write_bytes(b"here")
    container.put("data/sub/b.txt", b"there")
    planned = synced.json("plan", direction, path, "--keep", keep)
    assert planned.code == 0, str(planned)
    done = synced.json(direction, path, "--keep", keep)
    assert (done.code, done.data["transferred"]) == (0, planned.data["planned"]), str(done)
    assert read_tree(synced.data) == container.contents("data/")
    versions = {each for name, each in read_tree(synced.data).items() if name.startswith("sub/b.")}
    wins = {"local": {b"here"}, "remote": {b"there"}, "both": {b"here", b"there"}}[keep]
    assert versions == {sha256(each) for each in wins}
    for command in ("u", "d"):
        for where in ("data", path):
            again = synced.json(command, where)
            assert again.code == 0, str(again)
            assert _counts(again)[0::2] == (0, 0), str(again)
            assert again.data["conflicts"] == 0, str(again)
    assert synced.json("verify", "data").code == 0


@pytest.mark.parametrize("keep", ["local", "remote", "both"])
def test_after_keep_a_copy_is_quiet_and_its_source_untouched(
    keep: str, project: Project, new_container: Callable[[str], Container]
) -> None:
    source, target = new_container("one"), new_container("two")
    project.configure(source, cluster="src")
    project.configure(target, cluster="dst")
    source.put("data/a.txt", b"from one")
    target.put("data/a.txt", b"in two")
    assert project.json("-c", "dst", "-f", "src", "u", "data").code == 3
    done = project.json("-c", "dst", "-f", "src", "u", "data", "--keep", keep)
    assert done.code == 0, str(done)
    found = set(target.contents("data/").values())
    assert found == {
        sha256(each) for each in {"local": [b"from one"], "remote": [b"in two"]}.get(keep, [b"from one", b"in two"])
    }
    again = project.json("-c", "dst", "-f", "src", "u", "data")
    assert (again.code, again.data["transferred"], again.data["conflicts"]) == (0, 0, 0), str(again)
    assert source.contents("data/") == {"a.txt": sha256(b"from one")}


def test_keep_both_settles_what_azcopy_carries(synced: Project, container: Container, with_azcopy: Project) -> None:
    (synced.data / "a.txt").write_bytes(b"here")
    (synced.data / "new.txt").write_bytes(b"new")
    container.put("data/a.txt", b"there")
    done = synced.json("u", "data", "--engine", "azcopy", "--keep", "both")
    assert done.code == 0, str(done)
    assert read_tree(synced.data) == container.contents("data/")
    assert {sha256(b"here"), sha256(b"there"), sha256(b"new")} <= set(container.contents("data/").values())


def test_two_sides_that_were_never_verified(project: Project, container: Container) -> None:
    """Equal size and MD5 is equal; anything else that is on both sides is a conflict, whatever is newer."""
    write_tree(project.data, {"same": b"same", "other": b"mine", "larger": b"mine", "unknown": b"1234"})
    container.put("data/same", b"same")
    container.put("data/other", b"them")
    container.put("data/larger", b"theirs")
    container.put("data/unknown", b"1234", md5=False)
    container.blob("data/unknown").set_http_headers()
    project.configure(container)
    done = project.json("u", "data")
    assert done.code == 3, str(done)
    assert (done.data["unchanged"], done.data["conflicts"]) == (1, 3), str(done)
    hints = {each["path"]: each["hint"] for each in done.errors}
    assert [name for name, hint in hints.items() if "--compare-content" in hint] == ["data/unknown"]
    settled = project.json("u", "data", "--compare-content")
    assert (settled.data["unchanged"], settled.data["conflicts"]) == (2, 2), str(settled)
    assert container.get("data/other") == b"them"


@pytest.mark.parametrize(
    "damage", ["deleted", "garbage", *(pytest.param(how, marks=pytest.mark.soak) for how in ("emptied", "half"))]
)
def test_a_lost_or_broken_index_costs_time_only(damage: str, synced: Project, container: Container) -> None:
    index = synced.state / "index.sqlite"
    whole = index.read_bytes()
    if damage == "deleted":
        index.unlink()
    else:
        index.write_bytes({"garbage": os.urandom(len(whole)), "emptied": b"", "half": whole[: len(whole) // 2]}[damage])
    done = synced.json("u", "data")
    assert (done.code, _counts(done)) == (0, (0, 4, 0, 0)), str(done)
    (synced.data / "a.txt").write_bytes(b"edited")
    container.put("data/sub/b.txt", b"edited there")
    again = synced.json("u", "data")
    assert (again.code, _counts(again)) == (0, (1, 2, 1, 0)), str(again)
    assert container.contents("data/") == {
        **hashes(_FILES),
        "a.txt": sha256(b"edited"),
        "sub/b.txt": sha256(b"edited there"),
    }


def test_an_index_without_the_edit_leaves_a_conflict_not_a_loss(synced: Project, container: Container) -> None:
    (synced.state / "index.sqlite").unlink()
    (synced.data / "a.txt").write_bytes(b"edited here")
    done = synced.json("u", "data")
    assert (done.code, done.data["conflicts"]) == (3, 1), str(done)
    assert container.get("data/a.txt") == b"alpha"


def test_verify_says_what_differs_and_exits_on_it(synced: Project, container: Container) -> None:
    assert synced.json("verify", "data").code == 0
    assert synced.json("verify", "data", "--deep").code == 0
    container.put("data/a.txt", b"ALPHA")
    differs = synced.json("verify", "data")
    assert differs.code == 3, str(differs)
    assert "data/a.txt" in differs.out
    # A blob whose bytes are not those its MD5 says: only a deep look sees it.
    container.put("data/a.txt", b"alpha")
    assert synced.json("verify", "data").code == 0

    container.put("data/a.txt", b"ALPHA")
    md5 = bytearray(hashlib.md5(b"alpha").digest())
    container.blob("data/a.txt").set_http_headers(ContentSettings(content_md5=md5))
    assert synced.json("verify", "data").code == 0
    deep = synced.json("verify", "data", "--deep")
    assert deep.code == 3, str(deep)
    assert "data/a.txt" in deep.out


def test_conflicts_are_settled_on_a_terminal_file_by_file(synced: Project, container: Container) -> None:
    names = ("a.txt", "empty", "sub/b.txt", "sub/deep/c.txt")
    for name in names:
        (synced.data / name).write_bytes(b"mine of " + name.encode())
        container.put(f"data/{name}", b"theirs of " + name.encode())
    with on_terminal(synced, "u", "data", columns=100) as terminal:
        for number, answer in enumerate(("diff", "local", "what", "r", "both", ""), 1):
            _asked(terminal, number)
            terminal.type(f"{answer}\n")
        terminal.finish()
    shown = "\n".join(terminal.answer())
    assert "1 of 4 conflicts: data/a.txt: both sides changed" in shown, shown
    assert "\n-theirs of a.txt" in shown and "\n+mine of a.txt" in shown
    assert re.search(r"  local: +13 B, 20\S+Z, of \w+\n  remote: +15 B, 20\S+Z; the service does not say who", shown)
    assert "last transfer from here: upload by " in shown and "blobsync: answer local, remote" in shown
    assert terminal.code == 3 and container.get("data/a.txt") == b"mine of a.txt"
    assert (synced.data / "empty").read_bytes() == container.get("data/empty") == b"theirs of empty"
    assert container.get("data/sub/b.txt") == b"mine of sub/b.txt"
    (aside,) = (synced.data / "sub").glob("b.remote-*.txt")
    assert aside.read_bytes() == b"theirs of sub/b.txt"
    # What was skipped, and what no one is asked about, stays in conflict.
    assert container.get("data/sub/deep/c.txt") == b"theirs of sub/deep/c.txt"
    assert _counts(synced.json("u", "data"))[3] == 1
    for key in (CTRL_C, CTRL_D):
        with on_terminal(synced, "d", "data", columns=40) as terminal:
            _asked(terminal, 1)
            terminal.type(key)
            assert terminal.finish().code == 130 and "nothing was changed" in "\n".join(terminal.answer())
    with on_terminal(synced, "d", "data", columns=100) as terminal:
        _asked(terminal, 1)
        terminal.type("remote all\n")
        terminal.finish()
    assert terminal.code == 0 and (synced.data / "sub/deep/c.txt").read_bytes() == b"theirs of sub/deep/c.txt"


def _asked(terminal: Terminal, times: int) -> None:
    terminal.wait_for(lambda seen: "\n".join(seen.lines()).count("[skip]") == times)
