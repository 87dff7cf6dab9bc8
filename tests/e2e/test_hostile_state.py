"""A project with a stranger's ``.blobsync``: links, records and leftovers."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.terminal import on_terminal
from tests.e2e.web_server import web_server
from tests.e2e.world import Container, Project, hashes, read_tree, write_tree

pytestmark = pytest.mark.e2e


@pytest.fixture
def precious(tmp_path: Path) -> dict[str, bytes]:
    """Files of the user's beside the project, with names that pruning would remove."""
    files = {f"wandb/run-1-{number:08x}/lock": b"" for number in range(3)}
    files |= {f"results/{number}.json": b"{}" for number in range(250)}
    files |= {f"logs/{number}-{number:08x}/a.log": b"log" for number in range(9)}
    write_tree(tmp_path, files)
    for name in files:
        (tmp_path / name).parent.chmod(0o700)
    return files


def test_links_in_the_state_folder_lead_nowhere(
    with_azcopy: Project, container: Container, tmp_path: Path, precious: dict[str, bytes]
) -> None:
    write_tree(with_azcopy.data, {"a": b"a", "b": b"b"})
    with_azcopy.configure(container)
    assert with_azcopy.run("u", "data/a").code == 0
    links = {"receipts": "results", "transfers": "wandb", "code": "."}
    # In the project from the beginning, and after a pull in a state folder that is in use.
    for place in (with_azcopy.root / ".blobsync", with_azcopy.state):
        for name, target in links.items():
            if not (place / name).exists():
                (place / name).symlink_to(tmp_path / target)
    (with_azcopy.state / "transfers").unlink(missing_ok=True)
    (with_azcopy.state / "transfers").symlink_to(tmp_path / "wandb")
    for words in (("u", "data", "--engine", "azcopy"), ("d", "data", "--engine", "azcopy"), ("init",)):
        with_azcopy.run(*words)
    kept = {name: data for name, data in read_tree(tmp_path).items() if not name.startswith(("project", "home"))}
    assert kept == hashes(precious)


def test_a_shipped_state_folder_deletes_and_kills_nothing(
    with_azcopy: Project, container: Container, tmp_path: Path
) -> None:
    staging = tmp_path / ".blobsync-01234567.part"
    write_tree(staging, {"mine": b"mine"})
    run = with_azcopy.root / ".blobsync" / "state-0123456789abcdef" / "transfers" / "azcopy" / "run-1-01234567"
    write_tree(run, {"lock": b"", "owner.json": json.dumps({"staging": str(staging)}).encode()})
    write_tree(with_azcopy.data, {"a": b"a"})
    with_azcopy.configure(container)
    done = with_azcopy.run("u", "data", "--engine", "azcopy")
    assert done.code == 0, str(done)
    assert (staging / "mine").read_bytes() == b"mine"
    assert (run / "owner.json").exists()


def test_a_shipped_index_makes_nothing_look_unchanged(project: Project, container: Container, tmp_path: Path) -> None:
    write_tree(project.data, {"a": b"old"})
    project.configure(container)
    assert project.run("u", "data").code == 0
    index = (project.state / "index.sqlite").read_bytes()
    # A stranger's index of the same files, which came with the project.
    project.environ["HOME"] = str(tmp_path / "another")
    (tmp_path / "another").mkdir()
    for place in (project.root / ".blobsync", project.root / ".blobsync" / "state-0123456789abcdef"):
        place.mkdir(exist_ok=True)
        (place / "index.sqlite").write_bytes(index)
    (project.data / "a").write_bytes(b"new")
    time.sleep(0.05)
    done = project.json("u", "data")
    # Never verified by this user: both sides differ, which is a conflict.
    assert (done.code, done.data["conflicts"]) == (3, 1), str(done)


def earlier_name(project: Project) -> str:
    """The name of a project's state folder in earlier versions."""
    key = Path(project.environ["HOME"], ".config", "blobsync", "state.key").read_bytes()
    return f"state-{hmac.new(key, b'blobsync state 1', hashlib.sha256).hexdigest()[:16]}"


@pytest.fixture
def clone(project: Project, container: Container) -> Project:
    """A project whose files were never compared with the container: uploading them is a conflict."""
    write_tree(project.data, {"a": b"old"})
    project.configure(container)
    assert project.run("u", "data").code == 0
    (project.data / "a").write_bytes(b"new")
    return project


def ship(clone: Project, kind: str) -> Path:
    """A state folder that came with the clone, with a record that the blob was verified."""
    own = clone.state
    if kind == "without a seal":
        folder = own.with_name(earlier_name(clone))
        index = (own / "index.sqlite").read_bytes()
        shutil.rmtree(own.parent)
        write_tree(folder, {"index.sqlite": index})
        return folder
    # One that the user's own blobsync has sealed for a project at another path.
    there = clone.root.with_name("clone")
    clone.root.rename(there)
    clone.root = there
    return clone.state


@pytest.mark.parametrize("kind", ["without a seal", "of another path"])
def test_a_shipped_folder_under_the_right_name_counts_only_after_the_users_word(
    clone: Project, container: Container, kind: str
) -> None:
    folder = ship(clone, kind)
    before = container.contents()
    assert before == hashes({"data/a": b"old"})
    for words in (("u", "data"), ("d", "data"), ("plan", "u", "data"), ("q",), ("history",), ("rm", "data/a", "-y")):
        refused = clone.json(*words)
        assert (refused.code, refused.codes) == (2, {"state_untrusted"}), str(refused)
        hint = str(refused.errors[0]["hint"])
        assert "blobsync config trust-state" in hint and f"rm -r {folder}" in hint
    assert container.contents() == before, "nothing was replaced"
    assert [path.name for path in (clone.root / ".blobsync").glob("state-*")] == [folder.name], "nor made anew"
    # Commands that need no state work.
    assert clone.json("config", "check").code == 0
    assert clone.json("resolve", "data").code == 0
    # The user's two ways out of it: without the folder, the files have never been compared.
    kept = folder.with_name("kept")
    folder.rename(kept)
    conflict = clone.json("u", "data")
    assert (conflict.code, conflict.data["conflicts"]) == (3, 1), str(conflict)
    assert container.contents() == before
    shutil.rmtree(clone.state)
    kept.rename(folder)
    accepted = clone.json("config", "trust-state")
    assert accepted.code == 0, str(accepted)
    assert accepted.data["accepted"] is True
    assert (accepted.data["folder"], accepted.data["projects"]) == (str(folder), [str(clone.root)])
    assert clone.json("config", "trust-state").data == {**accepted.data, "accepted": False}
    done = clone.json("u", "data")
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)


@pytest.mark.parametrize("kind", ["without a seal", "of another path"])
@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_terminal_is_asked_once_about_a_state_folder(
    clone: Project, container: Container, kind: str, answer: str
) -> None:
    folder = ship(clone, kind)
    with on_terminal(clone, "u", "data", columns=60) as terminal:
        terminal.wait_for(lambda seen: any("[y/N]" in line for line in seen.lines()))
        asked = " ".join(terminal.answer())
        assert str(folder) in asked
        terminal.type(f"{answer}\r")
        terminal.finish()
    if answer == "n":
        assert terminal.code == 2, str(terminal)
        assert f"rm -r {folder}" in " ".join(terminal.answer())
        assert container.contents() == hashes({"data/a": b"old"})
        return
    assert terminal.code == 0, str(terminal)
    assert container.contents() == hashes({"data/a": b"new"})
    assert clone.json("u", "data").code == 0, "accepted for good"


def test_commands_that_are_first_at_once_end_with_one_state_folder(project: Project, container: Container) -> None:
    project.configure(container)
    started = [project.start("history", "--json") for _ in range(6)]
    ended = [project.finish(each) for each in started]
    assert all(done.code == 0 for done in ended), "\n".join(map(str, ended))
    assert sorted(path.name for path in project.state.glob("seal*")) == ["seal"]


def test_no_name_of_one_projects_state_opens_another(project: Project, tmp_path: Path) -> None:
    """Other users can read it in the list of processes."""
    other = Project(tmp_path / "other", project.environ)
    names = []
    for each in (project, other):
        (each.root / "aux_data" / "aml").mkdir(parents=True)
        (each.root / "aux_data" / "aml" / "aml.yaml").write_text("platform: local\n")
        shown = each.run("submit", "--dry-run", "sleep", "60")
        assert shown.code == 0, str(shown)
        # The command lines of the job's processes: they name their folder.
        assert f"{each.state}/jobs/" in shown.out
        assert earlier_name(each) not in shown.out
        names.append(each.state.name)
    assert len(set(names)) == 2


def test_a_page_before_the_login_does_not_tell_where_the_state_is(project: Project, container: Container) -> None:
    project.configure(container)
    with web_server(project) as server:
        for answer in (server.ask("/login"), server.ask("/login", form={"login_token": "guessed"})):
            assert f"login-{server.port}.html" in answer.body
            assert str(project.root) not in answer.body
            assert "state-" not in answer.body
