"""The state folder: its place, and the rejection of state that came with a project."""

from __future__ import annotations

import grp
import hashlib
import hmac
import os
import re
import shutil
import stat
import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blobsync.backends.local.run_files import RunFiles
from blobsync.base.check_results import CheckStatus
from blobsync.base.daily_warnings import shown_today
from blobsync.base.errors import LocalFileError, OpenStateError, UntrustedStateError
from blobsync.base.user_folders import state_home
from blobsync.local.state_dir import (
    KEY_FILE,
    SEAL_FILE,
    StateDir,
    TrustedState,
    open_state_dir,
    own_folder,
    trust_state,
)
from blobsync.project.doctor import examine_downloads


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home)}


def key_file(environ: dict[str, str]) -> Path:
    return Path(environ["HOME"]) / ".config" / "blobsync" / KEY_FILE


def test_state_is_in_the_project_for_its_owner_only(project: Path, environ: dict[str, str]) -> None:
    state = open_state_dir(project, environ)
    assert state.root.parent == project / ".blobsync"
    assert (project / ".blobsync" / ".gitignore").read_text() == "*\n"
    for path in (project / ".blobsync", state.root, state.folder("receipts")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(key_file(environ).stat().st_mode) == 0o600
    assert open_state_dir(project, environ) == state


def test_another_users_state_is_another_folder(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    other = {"HOME": str(tmp_path / "other")}
    assert open_state_dir(project, environ).root != open_state_dir(project, other).root
    assert open_state_dir(project, environ).root.parent == open_state_dir(project, other).root.parent


def test_what_a_stranger_shipped_is_neither_used_nor_touched(project: Path, environ: dict[str, str]) -> None:
    shipped = {"index.sqlite": b"theirs", "jobs.sqlite": b"theirs", "state-0123456789abcdef/jobs.sqlite": b"theirs"}
    for name, data in shipped.items():
        file = project / ".blobsync" / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_bytes(data)
    state = open_state_dir(project, environ)
    assert not state.index_file.exists()
    assert not state.jobs_file.exists()
    assert {name: (project / ".blobsync" / name).read_bytes() for name in shipped} == shipped


def test_a_link_in_place_of_the_state_folder_is_not_followed(
    project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / ".blobsync").symlink_to(outside)
    state = open_state_dir(project, environ)
    assert state.root.is_relative_to(environ["HOME"])
    assert not list(outside.iterdir())


@pytest.mark.parametrize("kind", ["link", "file", "writable"])
def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").mkdir()
    place = tmp_path / "receipts"
    if kind == "link":
        place.symlink_to(tmp_path / "outside")
    elif kind == "file":
        place.write_text("")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(PermissionError):
        own_folder(place)
    with pytest.raises(LocalFileError):
        StateDir(tmp_path).folder("receipts")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path, project: Path, environ: dict[str, str]) -> None:
    (project / ".blobsync").mkdir(mode=0o700)
    os.chown(project / ".blobsync", 12345, 12345)
    said: list[str] = []
    state = open_state_dir(project, environ, said.append)
    assert state.root.is_relative_to(environ["HOME"])
    (sentence,) = said
    assert f"{state.root}, not in the project" in sentence and "belongs to another user, 12345" in sentence
    assert (project / ".blobsync").stat().st_uid == 12345
    # Once in a command, which opens it several times.
    open_state_dir(project, environ, said.append)
    assert len(said) == 1


def test_a_key_that_others_may_know_is_not_used(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    root, key = open_state_dir(project, environ).root, key_file(environ)
    key.chmod(0o644)
    assert f"every user of this machine could read {key} (mode 644)" in opened_to_others(project, environ)
    assert trust_state(project, environ).closed == (key,)
    assert open_state_dir(project, environ).root == root
    kept = key.read_bytes()
    key.write_bytes(b"short")
    with pytest.raises(LocalFileError, match="not a valid key: remove it"):
        open_state_dir(project, environ)
    (tmp_path / "key").write_bytes(kept)
    key.unlink()
    key.symlink_to(tmp_path / "key")
    told: list[str] = []
    assert open_state_dir(project, environ, told.append).root.is_relative_to(Path(environ["HOME"]) / ".local")
    assert len(told) == 1 and str(key) in told[0]


def test_without_any_folder_of_the_users_nothing_lasts(project: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    state = open_state_dir(project, {"HOME": str(tmp_path / "home")})
    assert not state.lasting
    assert state.folder("receipts").is_dir()
    with pytest.raises(LocalFileError, match="cannot record jobs") as refused:
        _ = state.jobs_file
    assert "XDG_STATE_HOME" in (refused.value.hint or "")


def opened_to_others(project: Path, environ: dict[str, str]) -> str:
    with pytest.raises(OpenStateError) as caught:
        open_state_dir(project, environ)
    assert caught.value.exit_code == 2 and "blobsync config trust-state" in (caught.value.hint or "")
    return caught.value.message


@pytest.mark.parametrize("place", [".blobsync", "state", "receipts", "outside", "above the outside"])
def test_what_others_can_write_to_is_an_error_until_it_is_closed_to_them(
    project: Path, environ: dict[str, str], tmp_path: Path, place: str
) -> None:
    if "outside" in place:
        (project / ".blobsync").symlink_to(tmp_path)
    state = open_state_dir(project, environ)
    state.index_file.write_bytes(b"records")
    above = state.root.parent
    folder = {"state": state.root, "outside": state.root, "receipts": state.folder("receipts")}.get(place, above)
    folder.chmod(0o770)
    group = grp.getgrgid(folder.stat().st_gid).gr_name
    assert re.match(
        rf"the group {group}( \(\w.*\))? could change {folder} \(mode 770\)", opened_to_others(project, environ)
    )
    assert stat.S_IMODE(folder.stat().st_mode) == 0o770, "nothing was changed before the user's word"
    assert trust_state(project, environ).closed[0] in (folder, *folder.parents)
    assert open_state_dir(project, environ).index_file.read_bytes() == b"records"


def test_what_blobsync_makes_itself_is_closed_whatever_the_umask(
    project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    before = os.umask(0o002)
    try:
        assert not shown_today("a warning", project, environ)
        state = open_state_dir(project, environ)
        run = RunFiles(state.root / "jobs" / "me_1_0badcafe")
        run.make({run.job: "{}"})
        assert open_state_dir(project, environ) == state
        (tmp_path / "closed").mkdir()
        (tmp_path / "closed" / ".blobsync").touch()
        assert open_state_dir(tmp_path / "closed", environ).root.parent == state_home(environ)
    finally:
        os.umask(before)


def test_to_begin_anew_the_folder_that_is_used_is_removed(project: Path, environ: dict[str, str]) -> None:
    (project / ".blobsync").touch()
    state = open_state_dir(project, environ)
    state.folder("jobs").chmod(0o775)
    with pytest.raises(OpenStateError) as caught:
        open_state_dir(project, environ)
    assert str(caught.value.hint).endswith(f"; to begin anew: rm -r {state.root}")


def test_everything_that_a_group_was_given_is_taken_from_it_again(
    project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    state = open_state_dir(project, environ)
    (tmp_path / "outside").mkdir(mode=0o770)
    (tmp_path / "outside").chmod(0o770)
    (state.folder("jobs") / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(state.root / "jobs" / "pipe")
    (state.root / "jobs" / "secrets.json").write_text("{}")
    subprocess.run(["chmod", "-R", "g+rwX", project], check=True)
    assert f" could change {project}/.blobsync (mode 770) and 2 folders more" in opened_to_others(project, environ)
    assert trust_state(project, environ).closed == (project / ".blobsync",)
    open_state_dir(project, environ)
    for path in (project / ".blobsync").rglob("*"):
        assert path.is_symlink() or not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o770
    assert trust_state(project, environ).closed == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_files_of_other_users_in_it_are_named_and_left(project: Path, environ: dict[str, str]) -> None:
    state = open_state_dir(project, environ)
    state.index_file.write_bytes(b"records")
    state.root.chmod(0o777)
    assert "in which is" not in opened_to_others(project, environ), "nobody else has written there"
    for number in range(9):
        state.root.joinpath(f"planted{number}").mkdir(mode=0o755)
        os.chown(state.root / f"planted{number}", 12345, 12345)
    said = opened_to_others(project, environ)
    assert (
        "every user of this machine could change" in said
        and f"{state.root}/planted" in said
        and " of 12345, ..." in said
    )
    trust_state(project, environ)
    left = (state.root / "planted0").stat()
    assert (left.st_uid, stat.S_IMODE(left.st_mode)) == (12345, 0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_folder_of_another_user_beside_ones_own_is_passed_over(project: Path, environ: dict[str, str]) -> None:
    theirs = project / ".blobsync" / "state-0123456789abcdef"
    theirs.mkdir(parents=True, mode=0o700)
    (project / ".blobsync").chmod(0o700)
    os.chown(theirs, 12345, 12345)
    state = open_state_dir(project, environ)
    assert state.root.parent == project / ".blobsync" and state.root != theirs
    # One in the very place of one's own is left alone, and that is said.
    os.chown(state.root, 12345, 12345)
    said: list[str] = []
    assert open_state_dir(project, environ, said.append).root.is_relative_to(environ["HOME"])
    assert "belongs to another user, 12345" in said[0]


def test_an_access_list_is_named_too(project: Path, environ: dict[str, str]) -> None:
    folder = open_state_dir(project, environ).root
    # Version 2; user rwx, user 12345 rwx, group ---, mask rwx, others ---: see acl(5).
    entries = ((1, 7, -1), (2, 7, 12345), (4, 0, -1), (16, 7, -1), (32, 0, -1))
    body = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(folder, "system.posix_acl_access", body)
    except OSError:
        pytest.skip("this file system has no access lists")
    assert f"its access list (getfacl {folder}) could change {folder}" in opened_to_others(project, environ)
    trust_state(project, environ)
    assert open_state_dir(project, environ).root == folder


def test_an_empty_folder_that_others_can_write_to_is_closed_without_a_question(
    project: Path, environ: dict[str, str]
) -> None:
    (project / ".blobsync").mkdir()
    (project / ".blobsync").chmod(0o777)
    assert open_state_dir(project, environ).root.parent == project / ".blobsync"
    assert stat.S_IMODE((project / ".blobsync").stat().st_mode) == 0o700


def test_a_disk_that_does_not_answer_is_no_empty_answer(project: Path, environ: dict[str, str]) -> None:
    state = open_state_dir(project, environ)
    # ENAMETOOLONG: stands for what a network file system says when it is away.
    with_names = project / ("x" * 200)
    for _ in range(25):
        with_names = with_names / ("x" * 200)
    with pytest.raises(LocalFileError):
        open_state_dir(with_names, environ)
    assert open_state_dir(project, environ) == state


def earlier_folder(project: Path, environ: dict[str, str]) -> Path:
    """A state folder of an earlier version, with the same name in all projects, which others may know."""
    key = key_file(environ).read_bytes()
    mark = hmac.new(key, b"blobsync state 1", hashlib.sha256).hexdigest()[:16]
    folder = project / ".blobsync" / f"state-{mark}"
    folder.mkdir(mode=0o700, parents=True)
    (folder / "index.sqlite").write_bytes(b"records")
    return folder


def refused(project: Path, environ: dict[str, str]) -> UntrustedStateError:
    with pytest.raises(UntrustedStateError) as caught:
        open_state_dir(project, environ)
    assert "blobsync config trust-state" in (caught.value.hint or "")
    assert f"rm -r {caught.value.folder}" in (caught.value.hint or "")
    return caught.value


@pytest.fixture
def other(tmp_path: Path, environ: dict[str, str]) -> Path:
    """Another project, where the key was made."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    open_state_dir(folder, environ)
    return folder


def test_two_projects_have_two_names_and_ids(project: Path, environ: dict[str, str], other: Path) -> None:
    assert open_state_dir(project, environ).root.name != open_state_dir(other, environ).root.name
    found = [trust_state(each, environ) for each in (project, other)]
    assert [each.is_new for each in found] == [False, False]
    assert found[0].seal.id != found[1].seal.id


def test_a_folder_without_a_seal_counts_only_after_the_users_word(
    project: Path, environ: dict[str, str], other: Path
) -> None:
    folder = earlier_folder(project, environ)
    assert refused(project, environ).project is None
    assert refused(project, environ).folder == str(folder)
    assert [path.name for path in (project / ".blobsync").glob("state-*")] == [folder.name], "nothing was made instead"
    accepted = trust_state(project, environ)
    assert (accepted.folder, accepted.is_new) == (folder, True)
    assert open_state_dir(project, environ).index_file.read_bytes() == b"records"
    assert trust_state(project, environ) == TrustedState(folder, accepted.seal, is_new=False)
    shutil.rmtree(folder)
    assert not open_state_dir(project, environ).index_file.exists(), "without it the project begins anew"


def test_doctor_names_a_folder_that_waits_for_the_users_word(
    project: Path, environ: dict[str, str], other: Path
) -> None:
    folder = earlier_folder(project, environ)
    (told,) = examine_downloads(project, environ)
    assert told.status is CheckStatus.FAIL
    assert str(folder) in told.detail
    assert "blobsync config trust-state" in (told.hint or "")


@pytest.mark.parametrize(
    "forged", ["nothing", "garbage", "another key", "another folder", "a link", "a folder", "half"]
)
def test_no_seal_but_the_users_own_for_this_folder_counts(
    forged: str, project: Path, environ: dict[str, str], other: Path, tmp_path: Path
) -> None:
    real = open_state_dir(other, environ).root / SEAL_FILE
    folder = earlier_folder(project, environ)
    seal = folder / SEAL_FILE
    if forged == "garbage":
        seal.write_bytes(b"\xff" * 300)
    elif forged == "another key":
        stranger = {"HOME": str(tmp_path / "stranger")}
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        seal.write_bytes((open_state_dir(theirs, stranger).root / SEAL_FILE).read_bytes())
    elif forged == "another folder":
        seal.write_bytes(real.read_bytes())
    elif forged == "a link":
        seal.symlink_to(real)
    elif forged == "a folder":
        seal.mkdir()
    elif forged == "half":
        seal.write_bytes(real.read_bytes()[:-9])
    assert refused(project, environ).project is None


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_a_project_at_another_path_is_asked_about(
    how: str, project: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    state = open_state_dir(project, environ)
    state.index_file.write_bytes(b"records")
    before = trust_state(project, environ).seal
    there = tmp_path / "there"
    if how == "moved":
        project.rename(there)
    else:
        shutil.copytree(project, there, symlinks=True)
    assert refused(there, environ).project == str(project)
    accepted = trust_state(there, environ)
    assert accepted.is_new
    assert accepted.seal.paths == (str(there),)
    assert accepted.seal.id != before.id
    assert open_state_dir(there, environ).index_file.read_bytes() == b"records"
    if how == "copied":
        assert trust_state(project, environ) == TrustedState(state.root, before, is_new=False)


def test_one_project_may_be_seen_under_two_paths(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    before = trust_state(project, environ)
    there = tmp_path / "there"
    project.rename(there)
    refused(there, environ)
    both = trust_state(there, environ, both=True)
    assert both.seal.paths == (str(project), str(there))
    assert both.seal.id == before.seal.id
    assert open_state_dir(there, environ).root == both.folder
    there.rename(project)
    assert open_state_dir(project, environ).root == before.folder


def test_a_link_to_the_project_is_the_project(project: Path, environ: dict[str, str], tmp_path: Path) -> None:
    state = open_state_dir(project, environ)
    link = tmp_path / "link"
    link.symlink_to(project)
    assert open_state_dir(link, environ).root.samefile(state.root)
    # Like a project that is mounted at two places: the sealed path leads to the same folder.
    there = tmp_path / "there"
    project.rename(there)
    project.symlink_to(there)
    assert open_state_dir(there, environ).root.samefile(state.root)


def test_a_folder_of_the_users_that_came_along_is_asked_about_too(
    project: Path, environ: dict[str, str], other: Path, tmp_path: Path
) -> None:
    """The state of one project of the user's in the clone of another, which has none of its own."""
    theirs = open_state_dir(other, environ)
    theirs.index_file.write_bytes(b"records")
    shutil.copytree(theirs.root, project / ".blobsync" / theirs.root.name)
    assert refused(project, environ).project == str(other)
    # Beside the project's own it is ignored.
    shutil.rmtree(project / ".blobsync")
    state = open_state_dir(project, environ)
    shutil.copytree(theirs.root, project / ".blobsync" / theirs.root.name)
    assert open_state_dir(project, environ) == state


def test_what_a_killed_command_left_of_a_seal_is_in_nobodys_way(project: Path, environ: dict[str, str]) -> None:
    state = open_state_dir(project, environ)
    seal = state.root / SEAL_FILE
    seal.rename(state.root / f"{SEAL_FILE}.0123abcd")
    assert open_state_dir(project, environ) == state
    seal.write_bytes(b"")
    assert open_state_dir(project, environ) == state
    assert trust_state(project, environ).seal.paths == (str(project),)


def test_commands_that_start_at_once_make_one_key_and_one_seal(project: Path, environ: dict[str, str]) -> None:
    def use(number: int) -> str:
        state = open_state_dir(project, environ)
        (state.root / f"{number}").write_bytes(b"")
        return trust_state(project, environ).seal.id

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(use, range(32)))
    assert len(found) == 1
    (state,) = (project / ".blobsync").glob("state-*")
    assert [path.name for path in state.glob(f"{SEAL_FILE}*")] == [SEAL_FILE]
    assert [path.name for path in key_file(environ).parent.iterdir()] == [KEY_FILE]
