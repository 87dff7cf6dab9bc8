"""Files of records: brought up to date in one transaction, never by a version that does not know them, and locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.local.database import Database, ExpendableDatabase, Layout
from blobsync.local.index import Index, Record
from blobsync.local.resume_records import BlockJournal

ONE = Layout(1, "CREATE TABLE IF NOT EXISTS a (x)")
THREE = Layout(3, f"{ONE.tables}; CREATE TABLE IF NOT EXISTS b (y); CREATE TABLE IF NOT EXISTS c (z)")


def kept(file: Path, layout: Layout = ONE) -> Database:
    return Database(file, layout, "the list", "nothing else is lost")


@contextmanager
def raw(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        yield db


def tables(file: Path) -> tuple[int, set[str]]:
    with raw(file) as db:
        names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        return int(db.execute("PRAGMA user_version").fetchone()[0]), names


def test_an_earlier_file_gets_what_it_lacks_and_keeps_its_rows(tmp_path: Path) -> None:
    file = tmp_path / "list.sqlite"
    with kept(file).writing() as db:
        db.execute("INSERT INTO a VALUES (7)")
    with kept(file, THREE._replace(extends=(1, 2))).reading() as db:
        assert [row["x"] for row in db.execute("SELECT x FROM a")] == [7]
    assert tables(file) == (3, {"a", "b", "c"})
    assert file.stat().st_mode & 0o077 == 0


def test_a_change_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "list.sqlite"
    with kept(file).writing() as db:
        db.execute("INSERT INTO a VALUES (7)")
    newer = kept(file, THREE._replace(tables=f"{THREE.tables}; CREATE TABLE a (x)", extends=(1,)))
    with pytest.raises(LocalFileError, match="already exists"), newer.reading():
        pass
    assert tables(file) == (1, {"a"})


@pytest.mark.parametrize(
    ("version", "why", "hint"),
    [
        (99, "a newer blobsync", "use that version, or a newer one"),
        (2, "a much older blobsync", "move list.sqlite away"),
    ],
)
def test_a_kept_file_of_an_unknown_version_is_an_error_and_not_touched(
    tmp_path: Path, version: int, why: str, hint: str
) -> None:
    file = tmp_path / "list.sqlite"
    with kept(file).writing() as db:
        db.execute(f"PRAGMA user_version = {version}")
    before = file.read_bytes()
    said = rf"list\.sqlite cannot be used: it was written by {why}"
    with pytest.raises(LocalFileError, match=said) as raised, kept(file, THREE).writing():
        pass
    assert (raised.value.hint or "").startswith(hint)
    assert file.read_bytes() == before


def test_a_kept_file_that_is_damaged_stays_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "list.sqlite"
    file.write_bytes(b"no database, but long enough to be looked at" * 50)
    with (
        pytest.raises(LocalFileError, match=r"^the list .*list\.sqlite cannot be used: ") as raised,
        kept(file).reading(),
    ):
        pass
    assert raised.value.hint == "move list.sqlite away, and blobsync starts a new one; nothing else is lost"
    assert [each.name for each in tmp_path.iterdir()] == ["list.sqlite"]


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError) as raised, kept(tmp_path / "missing" / "list.sqlite").reading():
        pass
    assert (raised.value.hint or "").startswith("run the command again; ")


@pytest.mark.parametrize("expendable", [False, True])
def test_what_fails_half_way_is_not_written(tmp_path: Path, expendable: bool) -> None:
    file = tmp_path / "list.sqlite"

    def work(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO a VALUES (7)")
        raise KeyError("stop")

    def write_kept() -> None:
        with kept(file).writing() as db:
            work(db)

    with pytest.raises(KeyError):
        ExpendableDatabase(file, ONE, pytest.fail).write(work) if expendable else write_kept()
    with raw(file) as db:
        assert db.execute("SELECT * FROM a").fetchall() == []


def test_the_journal_is_emptied_and_there_is_no_wal(tmp_path: Path) -> None:
    with kept(tmp_path / "kept").writing() as db:
        db.execute("INSERT INTO a VALUES (7)")
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "truncate"
    assert (tmp_path / "kept-journal").stat().st_size == 0
    expendable = ExpendableDatabase(tmp_path / "expendable", ONE, pytest.fail)
    assert expendable.read(lambda db: db) is None
    expendable.write(lambda db: None)
    assert expendable.read(lambda db: db.execute("PRAGMA journal_mode").fetchone()) == ("truncate",)


def index_works(file: Path, say: Callable[[str], None]) -> bool:
    pair = Index(file, say).pair("data", "http://x/1")
    pair.put({"a": Record(LocalState(1, 1, 1, 1), RemoteState(1, "e"))})
    return set(pair.get(["a"])) == {"a"}


def journal_works(file: Path, say: Callable[[str], None]) -> bool:
    journal = BlockJournal(file, say)
    journal.begin("blob", LocalState(1, 1, 1, 1))
    journal.put("blob", bytes(32), 1)
    journal.finish("another", "0x1")
    return journal.staged("blob") == {bytes(32): 1} and journal.committed(["another"]) == {"another": "0x1"}


Works = Callable[[Path, Callable[[str], None]], bool]
EXPENDABLE = pytest.mark.parametrize(
    ("works", "instead"),
    [(index_works, "comparing by content instead"), (journal_works, "whole files are sent instead")],
)


@EXPENDABLE
@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at" * 50, b""])
def test_what_may_be_lost_begins_anew_where_it_is_damaged_and_says_so(
    tmp_path: Path, works: Works, instead: str, content: bytes
) -> None:
    file, said = tmp_path / "some.sqlite", list[str]()
    file.write_bytes(content)
    assert works(file, said.append)
    assert ["was damaged" in each and instead in each for each in said] == [True] * bool(content)
    assert [each.read_bytes() for each in tmp_path.glob("some.sqlite.broken-*")] == [content] * bool(content)


@EXPENDABLE
def test_what_may_be_lost_begins_anew_where_it_is_of_an_unknown_version(
    tmp_path: Path, works: Works, instead: str
) -> None:
    with raw(tmp_path / "some.sqlite") as db:
        db.executescript("CREATE TABLE pairs (x); CREATE TABLE pieces (x); PRAGMA user_version = 99")
    assert works(tmp_path / "some.sqlite", pytest.fail)


@EXPENDABLE
def test_without_a_place_for_it_only_what_it_saves_is_lost(tmp_path: Path, works: Works, instead: str) -> None:
    said: list[str] = []
    (tmp_path / "file").touch()
    assert not works(tmp_path / "file" / "some.sqlite", said.append)
    assert len(said) == 1 and "cannot be used" in said[0] and instead in said[0]
