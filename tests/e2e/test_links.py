"""Symlinks in a mapped folder: the table of docs/concepts.md row by row, and attacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.e2e.terminal import on_terminal, see
from tests.e2e.world import Container, Done, Project, blobsync_command, hashes, read_tree, write_tree

pytestmark = pytest.mark.e2e

_LIMIT = ("--mirror", "-y", "--max-delete", "100%")


@pytest.fixture
def filled(project: Project, container: Container) -> Project:
    """A project whose ``data`` holds two files."""
    project.configure(container)
    write_tree(project.data, {"w/d0/g.bin": b"g" * 3000, "w/d0/h.bin": b"h"})
    return project


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside the project."""
    folder = tmp_path / "disk" / "coco"
    write_tree(folder, {"a.txt": b"outside", "deep/b.txt": b"b" * 2000})
    return folder


def reasons(done: Done) -> dict[str, tuple[str, str]]:
    return {each["path"]: (each["action"], each["reason"]) for each in done.data["actions"]}


# -- links inside the project -------------------------------------------------------------------------------------


def test_a_mirror_does_not_delete_through_a_folder_link(filled: Project, container: Container) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    assert filled.json("u", "data/w").data["transferred"] == 4
    assert filled.json("rm", "-y", "data/w/dl1/g.bin").code == 0
    planned = filled.json("plan", "d", "data/w", *_LIMIT[:1], *_LIMIT[2:])
    assert reasons(planned)["data/w/dl1/g.bin"][0] == "skip", str(planned)
    done = filled.json("d", "data/w", *_LIMIT)
    assert (done.code, done.data["deleted"], done.data["skipped"]) == (0, 0, 1), str(done)
    assert read_tree(filled.data / "w/d0") == hashes({"g.bin": b"g" * 3000, "h.bin": b"h"})
    assert (filled.data / "w/dl1").is_symlink()


def test_a_mirror_does_not_delete_what_another_name_stands_for(filled: Project, container: Container) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    assert filled.json("u", "data/w").code == 0
    assert filled.json("rm", "-y", "data/w/d0/g.bin").code == 0
    done = filled.json("d", "data/w", *_LIMIT)
    assert (done.code, done.data["deleted"]) == (0, 0), str(done)
    assert read_tree(filled.data / "w/d0") == hashes({"g.bin": b"g" * 3000, "h.bin": b"h"})
    assert filled.json("rm", "-y", "data/w/dl1/g.bin").code == 0
    done = filled.json("d", "data/w", *_LIMIT)
    assert (done.code, done.data["deleted"]) == (0, 1), str(done)
    assert read_tree(filled.data / "w/d0") == hashes({"h.bin": b"h"})


def test_a_mirror_removes_no_file_link(filled: Project, container: Container) -> None:
    (filled.data / "w/fl").symlink_to("d0/g.bin")
    assert filled.json("u", "data/w").data["transferred"] == 3
    container.blob("data/w/fl").delete_blob()
    done = filled.json("d", "data/w", *_LIMIT)
    assert (done.code, done.data["deleted"], done.data["skipped"]) == (0, 0, 1), str(done)
    assert (filled.data / "w/fl").is_symlink()
    assert read_tree(filled.data / "w/d0") == hashes({"g.bin": b"g" * 3000, "h.bin": b"h"})


def test_two_blobs_for_one_file_here_are_a_conflict_and_equal_ones_are_written_once(
    filled: Project, container: Container
) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    assert filled.json("u", "data/w").code == 0
    for name in ("d0/g.bin", "dl1/g.bin"):
        container.put(f"data/w/{name}", b"new for both")
    done = filled.json("d", "data/w")
    assert (done.code, done.data["transferred"], done.data["skipped"]) == (0, 1, 1), str(done)
    assert (filled.data / "w/d0/g.bin").read_bytes() == b"new for both"
    again = filled.json("d", "data/w")
    assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 0, 4), str(again)
    container.put("data/w/dl1/g.bin", b"for the link's name alone")
    conflict = filled.json("d", "data/w", "--overwrite")
    assert (conflict.code, conflict.data["conflicts"]) == (3, 1), str(conflict)
    assert conflict.named() == {"data/w/dl1/g.bin"}
    assert (filled.data / "w/d0/g.bin").read_bytes() == b"new for both"


def test_what_keep_remote_brings_down_in_an_upload_is_written_to_one_file_once(
    filled: Project, container: Container
) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    assert filled.json("u", "data/w").code == 0
    (filled.data / "w/d0/g.bin").write_bytes(b"mine")
    container.put("data/w/d0/g.bin", b"theirs")
    container.put("data/w/dl1/g.bin", b"theirs, by the other name")
    two = filled.json("u", "data/w", "--keep", "remote")
    assert (two.code, two.data["conflicts"]) == (3, 2), str(two)
    assert two.named() == {"data/w/d0/g.bin", "data/w/dl1/g.bin"}
    assert (filled.data / "w/d0/g.bin").read_bytes() == b"mine"
    container.put("data/w/dl1/g.bin", b"theirs")
    one = filled.json("u", "data/w", "--keep", "remote")
    assert (one.code, one.data["conflicts"], one.data["skipped"]) == (0, 0, 1), str(one)
    assert (filled.data / "w/d0/g.bin").read_bytes() == b"theirs"


def test_an_upload_says_where_keep_remote_writes_through_a_link(filled: Project, container: Container) -> None:
    write_tree(filled.data, {"v/g.bin": b"first"})
    (filled.data / "w/dl2").symlink_to("../v")
    assert filled.json("u", "data/w").data["transferred"] == 3
    (filled.data / "v/g.bin").write_bytes(b"mine")
    container.put("data/w/dl2/g.bin", b"theirs")
    done = filled.json("u", "data/w", "--keep", "remote")
    assert done.code == 0, str(done)
    assert (filled.data / "v/g.bin").read_bytes() == b"theirs"
    assert any("data/w/dl2 is a symlink" in text and "/v" in text for text in done.data["warnings"]), str(done)


def test_a_new_file_below_a_folder_link_is_written_where_the_plan_says(filled: Project, container: Container) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    container.put("data/w/dl1/new.bin", b"new")
    done = filled.json("d", "data/w")
    assert done.code == 0, str(done)
    assert (filled.data / "w/d0/new.bin").read_bytes() == b"new"
    assert any("data/w/dl1 is a symlink" in text and "w/d0" in text for text in done.data["warnings"]), str(done)


def test_a_file_link_that_was_not_named_gives_way_to_the_file(filled: Project, container: Container) -> None:
    write_tree(filled.data, {"other.bin": b"kept"})
    (filled.data / "w/fl").symlink_to("../other.bin")
    assert filled.json("u", "data/w").data["transferred"] == 3
    container.put("data/w/fl", b"changed there")
    done = filled.json("d", "data/w")
    assert (done.code, done.data["transferred"]) == (0, 1), str(done)
    assert (filled.data / "w/fl").read_bytes() == b"changed there"
    assert (filled.data / "other.bin").read_bytes() == b"kept"


@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_a_link_that_is_named_is_followed_both_ways(
    engine: str, filled: Project, container: Container, request: pytest.FixtureRequest
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    (filled.data / "w/dl1").symlink_to("d0")
    (filled.data / "w/chain").symlink_to("dl1")
    (filled.data / "w/fl").symlink_to("d0/g.bin")
    files = {"g.bin": b"g" * 3000, "h.bin": b"h"}
    for path in ("data/w/chain", "data/w/fl"):
        assert (done := filled.json("u", path, "--engine", engine)).code == 0, str(done)
    assert container.contents("data/w/chain/") == hashes(files)
    shutil.rmtree(filled.data / "w/d0")
    (filled.data / "w/d0").mkdir()
    for path in ("data/w/chain", "data/w/fl"):
        assert (done := filled.json("d", path, "--engine", engine)).code == 0, str(done)
    assert read_tree(filled.data / "w/d0") == hashes(files)
    container.put("data/w/fl", b"newer")
    assert (done := filled.json("d", "data/w/fl", "--engine", engine)).code == 0, str(done)
    assert (filled.data / "w/d0/g.bin").read_bytes() == b"newer"
    assert (filled.data / "w/fl").is_symlink()


@pytest.mark.parametrize("mode", ["skip", "error"])
def test_links_that_are_not_followed_are_counted_and_their_blobs_stay(
    mode: str, filled: Project, container: Container
) -> None:
    (filled.data / "w/dl1").symlink_to("d0")
    assert filled.json("u", "data/w").code == 0
    before = container.contents()
    up = filled.json("u", "data/w", "--links", mode, *_LIMIT)
    down = filled.json("d", "data/w", "--links", mode, *_LIMIT)
    if mode == "skip":
        assert (up.code, up.data["skipped"], up.data["deleted"]) == (0, 1 + 2, 0), str(up)
        assert (down.code, down.data["skipped"], down.data["deleted"]) == (0, 2, 0), str(down)
    else:
        assert (up.code, down.code) in ((2, 3), (3, 3)), f"{up}{down}"
        assert "leave out --links error to follow it, or --exclude it" in up.out
        assert down.named() == {"data/w/dl1"}
    assert container.contents() == before
    assert read_tree(filled.data / "w/d0") == hashes({"g.bin": b"g" * 3000, "h.bin": b"h"})


def test_a_loop_and_a_link_to_nothing_are_failures_with_a_name(filled: Project, container: Container) -> None:
    wrong = {"loop": ".", "up": "..", "dangling": "nowhere"}
    for name, target in wrong.items():
        (filled.data / "w" / name).symlink_to(target)
    done = filled.json("u", "data/w")
    assert (done.code, done.named(), done.data["transferred"]) == (3, {f"data/w/{name}" for name in wrong}, 2), done


@pytest.mark.parametrize("target", ["../../.git", "../../aux_data/configs", "../../.blobsync"])
def test_no_link_opens_the_repository_or_the_configuration(target: str, filled: Project, container: Container) -> None:
    write_tree(filled.root, {".git/config": b"[core]\n", ".blobsync/x": b"x"})
    (filled.data / "w/tricky").symlink_to(target)
    up = filled.json("u", "data/w")
    assert (up.code, up.data["skipped"]) == (0, 1), str(up)
    assert not container.names("data/w/tricky")
    before = read_tree(filled.root / Path(os.path.normpath(f"data/w/{target}")))
    container.put("data/w/tricky/config", b"[core]\nfsmonitor = evil\n")
    container.put("data/w/tricky/aml.yaml", b"evil")
    down = filled.json("d", "data/w")
    assert (down.code, down.named(), down.data["skipped"]) == (3, {"data/w/tricky"}, 2), str(down)
    after = read_tree(filled.root / Path(os.path.normpath(f"data/w/{target}")))
    # blobsync's own records change with every command.
    assert {name: after.get(name) for name in before if ".sqlite" not in name} == {
        name: value for name, value in before.items() if ".sqlite" not in name
    }
    assert filled.json("d", "data/w/tricky").code != 0


# -- links that leave the project -----------------------------------------------------------------------------------


def test_nothing_goes_through_a_link_out_of_the_project_without_the_users_word(
    filled: Project, container: Container, outside: Path
) -> None:
    (filled.data / "coco").symlink_to(outside)
    for words in (
        ("u", "data/coco"),
        ("u", "data/coco/a.txt"),
        ("d", "data/coco"),
        ("plan", "u", "data/coco"),
        ("verify", "data/coco"),
        ("stat", "data/coco/a.txt"),
        ("diff", "data/coco/a.txt"),
    ):
        refused = filled.json(*words)
        assert (refused.code, refused.codes) == (2, {"link_untrusted"}), str(refused)
        assert "blobsync config trust-link data/coco" in str(refused.errors[0]["hint"])
        assert str(outside) in refused.errors[0]["message"]
    assert container.names() == []


def test_a_trusted_link_is_followed_both_ways(filled: Project, container: Container, outside: Path) -> None:
    files = {"a.txt": b"outside", "deep/b.txt": b"b" * 2000}
    (filled.data / "coco").symlink_to(outside)
    agreed = filled.json("config", "trust-link", "data/coco")
    assert (agreed.code, agreed.data["links"]) == (0, [{"path": "data/coco", "target": str(outside)}]), str(agreed)
    assert not [name for name in read_tree(filled.root) if "trusted" in name]
    assert filled.json("u", "data/coco").data["transferred"] == 2
    assert container.contents("data/coco/") == hashes(files)
    shutil.rmtree(outside)
    assert (done := filled.json("d", "data/coco")).code == 0, str(done)
    assert read_tree(outside) == hashes(files)
    # Also by the folder above it.
    (outside / "a.txt").unlink()
    assert (done := filled.json("d", "data")).data["transferred"] == 1, str(done)
    assert read_tree(outside) == hashes(files)
    assert filled.json("u", "data").data["skipped"] == 0
    # A mirror of the named link deletes there; one of the folder above does not.
    write_tree(outside, {"extra.txt": b"e"})
    assert filled.json("d", "data", *_LIMIT).data["deleted"] == 0
    assert (outside / "extra.txt").is_file()
    assert filled.json("d", "data/coco", *_LIMIT).data["deleted"] == 1
    assert read_tree(outside) == hashes(files)


@pytest.mark.parametrize("what", ["another target", "another link", "forgotten", "another project"])
def test_trust_is_for_one_link_one_target_and_one_project(
    what: str, filled: Project, container: Container, outside: Path, tmp_path: Path
) -> None:
    link = filled.data / "coco"
    link.symlink_to(outside)
    assert filled.json("config", "trust-link", "data/coco").code == 0
    assert filled.json("plan", "u", "data/coco").code == 0
    name, project = "data/coco", filled
    if what == "another target":
        write_tree(tmp_path / "secrets", {"id_rsa": b"private"})
        link.unlink()
        link.symlink_to(tmp_path / "secrets")
    elif what == "another link":
        name = "data/second"
        (filled.data / "second").symlink_to(outside)
    elif what == "forgotten":
        assert filled.json("config", "trust-link", "--forget", "data/coco").code == 0
        assert filled.json("config", "trust-link").data["links"] == []
    else:
        shutil.copytree(filled.root, tmp_path / "clone", symlinks=True, ignore=shutil.ignore_patterns(".blobsync"))
        project = Project(tmp_path / "clone", filled.environ)
    for words in (("u", name), ("d", name)):
        refused = project.json(*words)
        assert (refused.code, refused.codes) == (2, {"link_untrusted"}), str(refused)
    assert container.names() == []


def test_a_link_out_of_the_project_that_nobody_named_is_counted_and_reported(
    filled: Project, container: Container, outside: Path
) -> None:
    (filled.data / "coco").symlink_to(outside)
    planned = filled.json("plan", "u", "data")
    assert reasons(planned)["data/coco"] == ("skip", "a symlink that points outside the project"), str(planned)
    done = filled.run("u", "data")
    assert done.code == 0, str(done)
    assert "1 skipped" in done.out
    assert "data/coco" in done.err
    assert "blobsync config trust-link data/coco" in done.err
    assert sorted(container.names()) == ["data/w/d0/g.bin", "data/w/d0/h.bin"]
    # Blobs below it are not extra, and are not downloaded: both are reported.
    container.put("data/coco/a.txt", b"theirs")
    assert filled.json("u", "data", *_LIMIT).data["deleted"] == 0
    down = filled.json("d", "data")
    assert (down.code, down.data["skipped"], down.named()) == (3, 1, {"data/coco"}), str(down)
    assert down.codes == {"link_untrusted"}
    assert (outside / "a.txt").read_bytes() == b"outside"


def test_a_committed_data_link_writes_nowhere(project: Project, container: Container, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    write_tree(victim, {".bashrc": b"mine\n"})
    project.configure(container)
    project.data.symlink_to("../victim")
    container.put("data/.bashrc", b"evil\n")
    container.put("data/.ssh/authorized_keys", b"evil\n")
    for words in (("d", "data"), ("d", "data", "--overwrite", "-v"), ("d", "data/.ssh"), ("d", "data/.bashrc")):
        refused = project.run(*words)
        assert refused.code == 2, str(refused)
        assert "blobsync config trust-link data" in refused.err
    assert read_tree(victim) == hashes({".bashrc": b"mine\n"})


def test_a_saved_plan_needs_the_trust_of_the_user_who_applies_it(
    filled: Project, container: Container, outside: Path
) -> None:
    (filled.data / "coco").symlink_to(outside)
    assert filled.json("config", "trust-link", "data/coco").code == 0
    assert filled.json("plan", "u", "data/coco", "--save", "coco.plan").code == 0
    assert filled.json("config", "trust-link", "--forget", "data/coco").code == 0
    assert filled.json("apply", "coco.plan").codes == {"link_untrusted"}
    assert container.names() == []


def test_a_project_cannot_trust_its_own_links(filled: Project, outside: Path) -> None:
    (filled.data / "coco").symlink_to(outside)
    assert filled.json("config", "trust-link", "data/coco").code == 0
    kept = Path(filled.environ["HOME"], ".config/blobsync/trusted-links.json")
    assert kept.stat().st_mode & 0o077 == 0
    kept.chmod(0o666)
    refused = filled.json("u", "data/coco")
    assert (refused.code, refused.codes) == (2, {"config_invalid"}), str(refused)
    kept.write_text("[" * 100_000)
    kept.chmod(0o600)
    assert (broken := filled.json("u", "data/coco")).code == 2, str(broken)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 2)])
def test_a_terminal_is_asked_once(answer: str, code: int, filled: Project, container: Container, outside: Path) -> None:
    (filled.data / "coco").symlink_to(outside)
    with on_terminal(filled, "u", "data/coco") as terminal:
        terminal.wait_for(lambda seen: any("[y/N]" in line for line in seen.answer()))
        terminal.type(f"{answer}\n")
        assert terminal.finish().code == code, str(terminal)
    assert f" to {outside}:" in "\n".join(terminal.answer()), str(terminal)
    assert bool(container.names()) is (answer == "y")
    if answer == "y":
        again = see(filled, "u", "data/coco")
        assert (again.code, "[y/N]" in str(again)) == (0, False), str(again)


def test_a_command_in_a_linked_folder_finds_its_project(filled: Project, container: Container, outside: Path) -> None:
    (filled.data / "coco").symlink_to(outside)
    assert filled.json("config", "trust-link", "data/coco").code == 0
    environ = {**os.environ, **filled.environ}

    def run(*words: str, pwd: str) -> subprocess.CompletedProcess[str]:
        command = [blobsync_command(), *words]
        return subprocess.run(command, cwd=outside, env={**environ, "PWD": pwd}, text=True, capture_output=True)

    inside = run("u", "deep", pwd=str(filled.data / "coco"))
    assert inside.returncode == 0, inside.stderr
    assert container.names() == ["data/coco/deep/b.txt"]
    # A stale or false name is ignored.
    for false in (str(filled.data), "data/coco", str(filled.data / "w/../coco"), ""):
        assert run("ls", pwd=false).returncode == 2


@pytest.mark.parametrize("engine", ["direct", "azcopy"])
def test_a_mapped_folder_on_another_disk_goes_there_and_back(
    engine: str,
    project: Project,
    container: Container,
    outside: Path,
    request: pytest.FixtureRequest,
) -> None:
    if engine == "azcopy":
        request.getfixturevalue("with_azcopy")
    files = {"a.txt": b"outside", "deep/b.txt": b"b" * 2000, "again.txt": b"outside"}
    project.configure(container)
    project.data.symlink_to(outside)
    (outside / "again.txt").symlink_to("a.txt")
    assert project.json("config", "trust-link", "data").code == 0
    assert (done := project.json("u", "data", "--engine", engine)).data["transferred"] == 3, str(done)
    shutil.rmtree(outside)
    assert (done := project.json("d", "data", "--engine", engine)).code == 0, str(done)
    assert read_tree(outside) == hashes(files)


def test_two_paths_that_are_one_folder_write_each_file_once(filled: Project, container: Container) -> None:
    (filled.data / "v").symlink_to("w")
    for path in ("v", "w"):
        container.put(f"data/{path}/new.bin", b"new")
    done = filled.json("d", "data/w", "data/v")
    assert (done.code, done.data["transferred"], done.data["skipped"]) == (0, 1, 1), str(done)
    assert (filled.data / "w/new.bin").read_bytes() == b"new"


def test_verify_counts_what_takes_no_part_and_keeps_to_the_entries(
    filled: Project, new_container: Callable[[str], Container], outside: Path
) -> None:
    file = filled.root / "aux_data/aml/aml.yaml"
    settings = yaml.safe_load(file.read_text())
    account = settings["config_param"]["data_folder"]["azure_blob_config_file"]
    settings["config_param"]["data/voc_folder"] = {"azure_blob_config_file": account, "path": "apart"}
    file.write_text(yaml.safe_dump(settings))
    write_tree(filled.data, {"voc/x.txt": b"x"})
    (filled.data / "coco").symlink_to(outside)
    assert filled.json("u", "data").data["transferred"] == 3
    done = filled.json("verify", "data")
    assert (done.code, done.data["counts"]) == (0, {"equal": 3, "left_out": 1}), str(done)
