"""What a process notes before it writes: read back when it is gone, line by line, whatever a kill or a disk left."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.local.resume_records import INTENTS_FOLDER, Ends, WriteIntent, WriteIntents, has_intents, left_intents
from blobsync.local.state_dir import StateDir

_MD5 = bytes(range(16))
_UP, _DOWN = Ends("/p/data", "https://a/box/x"), Ends("https://a/box/x", "/p/data")


def left(state: StateDir) -> list[WriteIntent]:
    return [intent for each in left_intents(state) for intent in each.intents()]


def killed(state: StateDir, *added: tuple[Ends, str, str | None]) -> Path:
    """The file of a process that was killed after these lines."""
    intents = WriteIntents(state)
    for each in added:
        intents.add(each[0], (*each[1:], 3, _MD5))
    (own,) = (state.root / INTENTS_FOLDER).iterdir()
    file = own.with_name(f"0{own.name}")
    shutil.copy(own, file)
    intents.forget()
    return file


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    return StateDir(tmp_path)


def test_what_a_process_that_is_gone_was_about_to_write_is_read_as_it_was(state: StateDir) -> None:
    odd = "[e]f/\udcff \u00e4"
    killed(state, (_UP, odd, None), (_UP, "", None), (_DOWN, "b", "c"), (_UP, "d", None))
    assert left(state) == [
        WriteIntent(_UP, odd, odd, 3, _MD5),
        WriteIntent(_UP, "", "", 3, _MD5),
        WriteIntent(_DOWN, "b", "c", 3, _MD5),
        WriteIntent(_UP, "d", "d", 3, _MD5),
    ]


def test_the_file_of_a_running_process_is_left_alone_and_goes_when_it_forgets(state: StateDir) -> None:
    intents = WriteIntents(state)
    assert not (state.root / INTENTS_FOLDER).exists()
    intents.add(_UP, ("a", None, 3, _MD5))
    (file,) = (state.root / INTENTS_FOLDER).iterdir()
    assert left(state) == [] and file.stat().st_mode & 0o777 == 0o600
    intents.forget()
    assert not file.exists()
    # The next plan of the same process has a file of its own.
    intents.add(_UP, ("b", None, 3, _MD5))
    (file,) = (state.root / INTENTS_FOLDER).iterdir()
    intents.forget()
    intents.forget()
    assert not file.exists()


def test_a_name_of_two_lines_has_no_line(state: StateDir) -> None:
    killed(state, (_UP, "a", None), (_UP, "b\nfc", None), (_UP, "c", "d\ne"), (_UP, "d", None))
    assert [intent.path for intent in left(state)] == ["a", "d"]


@pytest.mark.parametrize(
    "spoilt",
    [
        pytest.param(b"f" + _MD5.hex().encode() + b"\0003\0z", id="cut off"),
        pytest.param(b"f" + _MD5.hex().encode() + b"\0three\0z\n", id="no size"),
        pytest.param(b"fabcd\0003\0z\n", id="no MD5"),
        pytest.param(b"f" + _MD5.hex().encode() + b"\0003\0z\0y\0x\n", id="three names"),
        pytest.param(b"fz\n", id="no fields"),
        pytest.param(b"e[1]\n", id="one end"),
        pytest.param(b"e{\n", id="no ends"),
        pytest.param(b"\n\xff\xfe\n", id="other bytes"),
    ],
)
def test_a_line_that_is_cut_off_or_invalid_is_passed_over(state: StateDir, spoilt: bytes) -> None:
    file = killed(state, (_UP, "a", None))
    with file.open("ab") as stream:
        stream.write(spoilt)
    assert [intent.path for intent in left(state)] == ["a"]
    file.write_bytes(spoilt + file.read_bytes() if spoilt.endswith(b"\n") else spoilt)
    assert [intent.path for intent in left(state)] == (["a"] if spoilt.endswith(b"\n") else [])


def test_a_line_counts_only_after_its_ends(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None))
    file.write_bytes(file.read_bytes().partition(b"\n")[2])
    assert left(state) == []


def test_files_of_a_week_ago_go_and_others_stay(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None))
    week = 7 * 86_400
    (kept,) = left_intents(state, now=file.stat().st_mtime + week - 60)
    assert kept.file == file
    assert list(left_intents(state, now=file.stat().st_mtime + week + 60)) == []
    assert not file.exists()


def test_a_file_is_removed_once_and_other_files_are_none_of_ours(state: StateDir) -> None:
    killed(state, (_UP, "a", None))
    (state.root / INTENTS_FOLDER / "note.txt").write_text("mine")
    os.symlink("/dev/null", state.root / INTENTS_FOLDER / "x.intents")
    for each in left_intents(state):
        each.remove()
        each.remove()
    assert sorted(os.listdir(state.root / INTENTS_FOLDER)) == ["note.txt", "x.intents"]


def test_where_nothing_can_be_written_a_transfer_goes_on(tmp_path: Path) -> None:
    (tmp_path / INTENTS_FOLDER).write_text("a file in the folder's place")
    for state in (StateDir(tmp_path), StateDir(tmp_path / "fresh", lasting=False)):
        intents = WriteIntents(state)
        intents.add(_UP, ("a", None, 3, _MD5))
        intents.forget()
        assert left(state) == []
    assert not (tmp_path / "fresh").exists()


def test_a_folder_has_intents_while_a_file_is_in_it(state: StateDir) -> None:
    assert not has_intents(state) and list(left_intents(state, now=time.time())) == []
    killed(state, (_UP, "a", None))
    assert has_intents(state)
    for each in left_intents(state):
        each.remove()
    assert not has_intents(state)


def test_a_folder_that_cannot_be_read_is_named(state: StateDir) -> None:
    folder = state.root / INTENTS_FOLDER
    folder.symlink_to(folder)
    for look in (has_intents, lambda state: list(left_intents(state))):
        with pytest.raises(LocalFileError, match=f"{INTENTS_FOLDER}: Too many levels") as said:
            look(state)
        assert said.value.hint


def test_only_the_last_two_files_of_a_long_run_stay(state: StateDir) -> None:
    intents = WriteIntents(state, most=300)
    for number in range(50):
        intents.add(_UP, (f"f{number:02}", None, 3, _MD5))
    files = sorted((state.root / INTENTS_FOLDER).iterdir())
    assert len(files) == 2
    for file in files:
        assert 0 < file.stat().st_size < 400
        shutil.copy(file, file.with_name(f"0{file.name}"))
    intents.forget()
    found = sorted(intent.path for intent in left(state))
    assert found == [f"f{number:02}" for number in range(50 - len(found), 50)]
    # Each file names its ends.
    assert [each.ends() for each in left_intents(state)] == [{_UP}, {_UP}]


def test_the_ends_of_a_file_are_read_without_its_other_lines(state: StateDir) -> None:
    file = killed(state, (_UP, "a", None), (_DOWN, "b", None), (_UP, "c", None))
    file.write_bytes(file.read_bytes() + b"e[1]\ne{\ne\xff\nf\n")
    assert [each.ends() for each in left_intents(state)] == [{_UP, _DOWN}]
