"""Everything that is read back has a row that says why it is believed."""

from __future__ import annotations

from pathlib import Path

from tests.source import ROOT
from tools import read_back
from tools.docs_site.reference import read_back_page

ROWS = read_back.ROWS


def test_every_function_that_reads_something_has_a_row() -> None:
    found = set(read_back.readers_of(ROOT / "blobsync"))
    covered = {reader for row in ROWS for reader in row.readers}
    assert found - covered == set(), "say in tools/read_back.py who could have changed what it reads, and why it counts"
    assert covered - found == set(), "they read nothing any more: remove them from tools/read_back.py"


def test_the_site_has_a_page_with_each_row() -> None:
    text = read_back_page()
    assert [row.what for row in ROWS if f"\n| {row.what} | {row.where} | {row.because} |\n" not in text] == []


def test_readers_are_found_by_their_calls(tmp_path: Path) -> None:
    calls = {
        "path.read_bytes()": True,
        "path.read_text(encoding='utf-8')": True,
        "open(path)": True,
        "open(path, 'rb')": True,
        "path.open('rb')": True,
        "self._store.open(name)": True,
        "place.store.properties(name).metadata": True,
        "sqlite3.connect(file)": True,
        "json.loads(text)": True,
        "open(path, 'wb')": False,
        "path.open('a')": False,
        "os.open(path, os.O_RDONLY)": False,
        "job.open()": False,
        "path.write_bytes(b'')": False,
    }
    lines = ["class Some:", *(f"    def f{number}(self): {call}" for number, call in enumerate(calls))]
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "some.py").write_text("\n".join(lines))
    expected = [f"room.some:Some.f{number}" for number, reads in enumerate(calls.values()) if reads]
    assert list(read_back.readers_of(tmp_path)) == expected
