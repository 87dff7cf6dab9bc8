"""From an empty folder to the first upload, and to a colleague's clone: on a real terminal, against real Azurite."""

from __future__ import annotations

import os
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.terminal import CTRL_C, Terminal, on_terminal
from tests.e2e.world import Container, Project, blobsync_command, command_lines, every_text_below, hashes, write_tree

pytestmark = pytest.mark.e2e


def _wait(terminal: Terminal, question: str) -> None:
    """Until it is asked: the cursor stands behind the question."""
    terminal.wait_for(lambda seen: any(line.startswith(question) and line.endswith(":") for line in seen.answer()[-1:]))


def _answer(terminal: Terminal, question: str, keys: str) -> None:
    _wait(terminal, question)
    before = len(terminal.answer())
    terminal.type(keys + "\n")
    terminal.wait_for(lambda seen: len(seen.answer()) > before)


def _next(terminal: Terminal, keys: str) -> None:
    """Answer, until something is asked again."""
    before = len(terminal.answer())
    terminal.type(keys + "\n")
    terminal.wait_for(lambda seen: len(seen.answer()) > before and seen.answer()[-1].endswith(":"))


def _with_input(project: Project, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [blobsync_command(), *words],
        cwd=project.root,
        env={**os.environ, **project.environ},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
    )


def _logins(project: Project) -> Path:
    return Path(project.environ["HOME"], ".config/blobsync/logins.json")


def _nobody_else_can_see(project: Project, secret: str) -> None:
    """Nothing in the project holds it; the user's own file does, for its owner alone."""
    part = secret.partition("sig=")[2][:20].encode() or secret.encode()
    assert [file for file, text in every_text_below(project.root) if part in text] == []
    assert _logins(project).stat().st_mode & 0o777 == 0o600 and part in _logins(project).read_bytes()


def test_a_dialogue_leads_to_the_first_upload(project: Project, container: Container) -> None:
    sas = container.sas("rwdl")
    part = sas.partition("sig=")[2][:20]
    with on_terminal(project, "config", "new") as terminal:
        _answer(terminal, "storage account", "https://acct.blob.core.windows.net/?sv=1&sig=x")
        _answer(terminal, "storage account", f"{container.service}/{container.account}/{container.name}")
        _answer(terminal, f"container [{container.name}]", "")
        _answer(terminal, "log in with", "token")
        _answer(terminal, "log in with", "sas")
        _answer(terminal, "folders of this project", "data")
        _answer(terminal, "their place in the container [project]", "me/first")
        _answer(terminal, "SAS for", "nonsense")
        _wait(terminal, "SAS for")
        assert not [line for line in command_lines(terminal.process.pid) if "sig=" in line]
        terminal.type(sas + "\n")
        terminal.finish()
    shown = "\n".join(terminal.answer())
    assert terminal.code == 0, str(terminal)
    # The terminal breaks only what was typed, and a path that is longer than a line; what blobsync breaks goes on in a
    # later column.
    screen = terminal.lines()
    broken = [line for line, after in pairwise(screen) if len(line) == 80 and after[:1].islower()]
    assert [line for line in broken if "endpoint):" not in line and " in /" not in line] == [], str(terminal)
    assert "nonsense" not in shown and part not in shown, shown
    assert "wrote aux_data/configs/storage.yaml:" in shown and "  auth: sas" in shown
    assert "writing: works: a blob was written, read and removed" in shown
    assert "next: blobsync plan u data" in shown
    _nobody_else_can_see(project, sas)
    files = {"a": b"one", "b/c": b"two"}
    write_tree(project.data, files)
    assert project.run("u", "data").code == 0
    assert container.contents("me/first/data/") == hashes(files)


def test_a_clone_in_the_hands_of_somebody_else_needs_one_step(
    project: Project, container: Container, tmp_path: Path
) -> None:
    where = ("--account", f"{container.service}/{container.account}", "--container", container.name, "--auth", "sas")
    place = ("--folders", "data", "--base", "me/first")
    made = _with_input(project, container.sas("rwdl"), "config", "new", *where, *place, "--stdin")
    assert made.returncode == 0, made
    container.put("me/first/data/b/c", b"two")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=project.root, check=True, capture_output=True)
    clone = Project(tmp_path / "clone", {"HOME": str(tmp_path / "other")})
    Path(clone.environ["HOME"]).mkdir()
    subprocess.run(["git", "clone", "-q", str(project.root), str(clone.root)], check=True, capture_output=True)
    done = clone.json("d", "data")
    assert (done.code, done.codes) == (2, {"config_invalid"}), done
    assert done.errors[0]["hint"] == "store your own: blobsync login aux_data/configs/storage.yaml"
    assert not clone.data.exists()
    assert _with_input(clone, f"{container.sas('rl')}\n", "login", "aux_data/configs/storage.yaml").returncode == 0
    assert clone.run("d", "data").code == 0
    assert (clone.data / "b/c").read_bytes() == b"two"


def test_a_wrong_answer_is_asked_again_and_a_missing_container_can_be_made(
    project: Project, container: Container
) -> None:
    """Nothing that was typed is lost."""
    with on_terminal(project, "config", "new") as terminal:
        _answer(terminal, "storage account", "My_Account")
        _answer(terminal, "storage account", f"{container.service}/{container.account}")
        _answer(terminal, "container", "No Good")
        _answer(terminal, "container", "not-there-yet")
        _answer(terminal, "log in with", "key")
        _answer(terminal, "folders of this project", "data, ../up")
        _answer(terminal, "folders of this project", "data,runs")
        _answer(terminal, "their place in the container", "a/../b")
        _answer(terminal, "their place in the container", "mine")
        _answer(terminal, "account key for", "d3Jvbmc=")
        for keys in ("YWdhaW4=", ""):
            _wait(terminal, "account key for")
            assert "Enter alone: change something else" in terminal.answer()[-1]
            _next(terminal, keys)
        _answer(terminal, "that does not work yet", "hm")
        _answer(terminal, "that does not work yet", "")
        for question in (
            "storage account",
            "container [not-there-yet]",
            "log in with",
            "folders of this project to map",
        ):
            _answer(terminal, question, "")
        _answer(terminal, "their place in the container [mine]", "")
        _answer(terminal, "account key for", container.key)
        _answer(terminal, "the container", "yes")
        terminal.finish()
    shown = "\n".join(terminal.answer())
    assert terminal.code == 0, str(terminal)
    assert "'No...' (7 characters) is not a valid container name" in shown
    assert "'my...' (10 characters) is not a valid storage account name" in shown
    before_writing = shown.partition("wrote aux_data")[0]
    assert "aux_data/configs" not in before_writing, before_writing
    assert "created the container" in shown and "writing: works" in shown
    assert "YWdhaW4" not in terminal.drawn_over.decode()
    assert "path: mine/runs" in (project.root / "aux_data/aml/aml.yaml").read_text()


def test_a_key_that_is_pasted_where_it_is_shown_is_taken_off_the_screen(project: Project, container: Container) -> None:
    with on_terminal(project, "config", "new", columns=60) as terminal:
        _wait(terminal, "storage account")
        terminal.type(f"{container.key}\n")
        terminal.wait_for(lambda seen: any("looks like a credential" in line for line in seen.lines()))
        _wait(terminal, "storage account")
        assert container.key[:20] not in "".join(terminal.lines())
        terminal.type(CTRL_C)
        terminal.finish()


def test_without_a_terminal_a_container_is_made_when_asked_and_a_stored_key_serves_the_next_project(
    project: Project, container: Container
) -> None:
    where = ("--account", f"{container.service}/{container.account}", "--container", "nor-this", "--auth", "key")
    words = ("config", "new", *where, "--json")
    refused = _with_input(project, container.key, *words, "--stdin")
    assert refused.returncode == 2 and "container_not_found" in refused.stdout and "--create" in refused.stdout, refused
    assert not (project.root / "aux_data").exists()
    assert _with_input(project, container.key, *words, "--stdin", "--create").returncode == 0
    assert project.json("ls", "data").codes == {"nothing_matched"}
    second = Project(project.root.parent / "second", project.environ)
    second.root.mkdir()
    made = second.json("config", "new", *where)
    assert made.code == 0 and made.data["login_stored"] and made.data["checks"], made


def test_the_dialogue_proposes_and_uses_a_key_that_is_stored(project: Project, container: Container) -> None:
    where = ("--account", f"{container.service}/{container.account}", "--container", container.name, "--auth", "key")
    assert _with_input(project, container.key, "config", "new", *where, "--stdin").returncode == 0
    second = Project(project.root.parent / "second", project.environ)
    second.root.mkdir()
    with on_terminal(second, "config", "new") as terminal:
        _answer(terminal, "storage account", f"{container.service}/{container.account}")
        _answer(terminal, "container", container.name)
        _answer(terminal, "log in with sas, key, identity [key]", "")
        _answer(terminal, "folders of this project", "data")
        _answer(terminal, "their place in the container [second]", "")
        terminal.finish()
    shown = " ".join(terminal.answer())
    assert terminal.code == 0, str(terminal)
    assert "your stored key for " in shown and "account key for" not in shown and "writing: works" in shown, shown
    write_tree(second.data, {"a": b"one"})
    assert second.run("u", "data").code == 0 and container.contents("second/data/") == hashes({"a": b"one"})


def test_a_login_is_asked_for_unseen_tried_stored_and_forgotten(project: Project, container: Container) -> None:
    words = ("config", "new", "--account", f"{container.service}/{container.account}", "--container", container.name)
    made = _with_input(project, "", *words, "--auth", "key", "--folders", "data", "--base", "x", "--json")
    assert made.returncode == 0 and '"login_stored": false' in made.stdout, made
    again = project.json(*words)
    assert (again.code, again.codes) == (2, {"usage"}) and "exists already" in again.errors[0]["message"]

    wrong = _with_input(project, "d3Jvbmc=", "login")
    assert wrong.returncode == 2 and "d3Jvbmc" not in wrong.stdout + wrong.stderr
    assert not _logins(project).exists(), "a key that opens nothing is not stored"
    other_kind = _with_input(project, container.sas(), "login")
    assert other_kind.returncode == 2 and "says auth: key" in other_kind.stderr
    with on_terminal(project, "login") as terminal:
        _wait(terminal, "account key for")
        terminal.type(CTRL_C)
        terminal.finish()
    assert terminal.code == 130 and not _logins(project).exists()
    with on_terminal(project, "login", columns=60) as terminal:
        _answer(terminal, "account key for", container.key)
        terminal.finish()
    shown = "\n".join(terminal.answer())
    assert terminal.code == 0 and container.key not in terminal.drawn_over.decode(), str(terminal)
    assert "stored your key for" in shown and "listing: works" in shown
    _nobody_else_can_see(project, container.key)
    write_tree(project.data, {"a": b"one"})
    assert project.run("u", "data").code == 0 and container.contents("x/data/") == hashes({"a": b"one"})
    assert project.json("login", "--list").data["logins"][0]["auth"] == "key"
    assert project.json("login", "--forget").data["forgotten"] is True
    assert project.json("ls", "data").codes == {"config_invalid"}


def test_without_an_azure_login_each_hint_leads_on(project: Project) -> None:
    """Neither names a command that sends the user back here."""
    project.environ |= {"AZURE_TOKEN_CREDENTIALS": "AzureCliCredential", "PATH": "/nonexistent"}
    words = ("config", "new", "--account", "mystore", "--container", "data")
    refused = project.json(*words)
    assert refused.codes == {"credential_invalid"}, refused
    assert "--auth sas" in refused.errors[0]["hint"] and "blobsync login" not in refused.errors[0]["hint"]
    assert project.run(*words, "--no-check").code == 0
    write_tree(project.data, {"a": b"one"})
    hint = project.json("u", "data").errors[0]["hint"]
    assert "without 'auth: identity' in aux_data/configs/storage.yaml" in hint, hint


def test_the_rights_of_a_narrow_sas_are_reported(project: Project, container: Container) -> None:
    where = ("--account", f"{container.service}/{container.account}", "--container", container.name, "--json")
    made = _with_input(project, container.sas("rl"), "config", "new", *where, "--auth", "sas", "--stdin")
    assert made.returncode == 0 and "needs d (delete), has rl: no rm, and no --mirror" in made.stdout, made
    expired = _with_input(project, container.sas("rl", hours=-1), "login")
    assert expired.returncode == 2 and "expired" in expired.stderr, expired
    assert project.json("login", "--list").data["logins"][0]["auth"] == "sas", "the one that works is kept"


def test_a_mistyped_path_suggests_what_is_there_where_the_command_looks(project: Project, container: Container) -> None:
    project.configure(container)
    write_tree(project.data / "voc20", {"a.jpg": b"one"})
    container.put("data/voc21/train/b.jpg", b"two")
    for words, meant in (
        (("u", "data/vco20"), "data/voc20"),
        (("d", "data/vco21"), "data/voc21"),
        (("ls", "data/voc21/tarin"), "data/voc21/train"),
        (("stat", "data/voc20/a.jgp"), "data/voc20/a.jpg"),
        (("rm", "-y", "data/voc21x/train"), "data/voc21"),
    ):
        done = project.json(*words)
        assert done.code == 4 and done.errors[0]["hint"].startswith(f"did you mean {meant}? "), done
    done = project.json("u", "data/quite-other")
    assert done.code == 4 and "did you mean" not in done.errors[0]["hint"], done
    assert container.names() == ["data/voc21/train/b.jpg"]
