"""How pages show values: previews, charts, names of a folder, sections of the navigation."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from blobsync.jobspec.spec import State
from blobsync.project.browse import Beginning
from blobsync.project.checkpoints import Checkpoint
from blobsync.project.folders import FolderName, FolderStatus
from blobsync.project.job_writes import WritingJob
from blobsync.project.status import EntryStatus, FileTally
from blobsync.project.transfer_history import TransferEntry
from blobsync.web.charts import HEIGHT, bytes_chart, rate_curve
from blobsync.web.pages.browse import chosen_names, row_of
from blobsync.web.pages.project import badges_of
from blobsync.web.previews import TEXT_BYTES, changed_lines, picture_type, preview_of
from blobsync.web.render import breakable_text, fragment, in_file_text, place_of

_PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b"# notes\n", "text"),
        ("größe\n".encode(), "text"),
        (b"<svg onload=alert(1)>", "text"),
        (b"<html><script>", "text"),
        (_PNG, "picture"),
        (b"GIF89a....", "picture"),
        (b"RIFF....WEBP", "picture"),
        (b"\0\1\2\3", "bytes"),
        (b"\xff\xfe\xfd", "bytes"),
    ],
)
def test_the_kind_of_a_preview_depends_on_the_content(data: bytes, kind: str) -> None:
    assert preview_of(Beginning("a", len(data), data)).kind == kind


def test_a_text_cut_within_a_character_is_still_text() -> None:
    data = b"a" * (TEXT_BYTES - 1) + "ü".encode()
    shown = preview_of(Beginning("a", len(data) + 9, data))
    assert (shown.kind, shown.cut, shown.text) == ("text", True, "a" * (TEXT_BYTES - 1))
    assert preview_of(Beginning("a", len(data), b"\xfc" + data)).kind == "bytes"


def test_a_picture_is_no_larger_than_a_page_can_show() -> None:
    assert preview_of(Beginning("a", 30_000_000, _PNG)).kind == "bytes"
    assert picture_type(b"<svg xmlns='http://www.w3.org/2000/svg'>") is None


def test_the_changed_lines_of_two_texts() -> None:
    one, two = (preview_of(Beginning("a", len(data), data)) for data in (b"x\ny\n", b"x\nz\n"))
    assert [line for kind, line in changed_lines(one, two) if kind in ("gone", "new")] == ["-y", "+z"]
    assert changed_lines(one, preview_of(Beginning("a", 2, b"\0\1"))) == []


@pytest.mark.parametrize(
    ("name", "text", "columns", "first"),
    [
        ("a.csv", 'id,name\n1,"x, y"\n2,z,extra\n', ("id", "name", ""), ("1", "x, y", "")),
        ("a.CSV", "id;größe\n1;2,5\n", ("id", "größe"), ("1", "2,5")),
        ("a.tsv", "\ufeffid\tb\n1\t\n", ("id", "b"), ("1", "")),
        ("a.jsonl", '{"id": 1, "box": [1, 2]}\n{"id": 2, "more": null}\n', ("id", "box", "more"), ("1", "[1, 2]", "")),
    ],
)
def test_tables_are_shown_as_tables(name: str, text: str, columns: tuple[str, ...], first: tuple[str, ...]) -> None:
    data = text.encode()
    shown = preview_of(Beginning(name, len(data), data), name)
    assert (shown.kind, shown.columns, shown.rows[0]) == ("table", columns, first)
    assert preview_of(Beginning(name, len(data), data)).kind == "text", "as text on request"


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "one line only"), ("a.jsonl", "1\n2\n"), ("a.jsonl", "{broken\n{}"), ("a.txt", "a,b\n1,2\n"),
     ("a.jsonl", "[" * 50_000)],
)  # fmt: skip
def test_other_files_are_shown_as_text(name: str, text: str) -> None:
    data = text.encode()
    assert preview_of(Beginning(name, len(data), data), name).kind == "text"


def test_a_cut_table_has_no_partial_row_and_a_large_one_only_its_beginning() -> None:
    data = b"a,b\n" + b"1,2222222222\n" * 20_000
    shown = preview_of(Beginning("t.csv", len(data), data), "t.csv")
    assert (len(shown.rows), shown.cut, set(shown.rows)) == (500, True, {("1", "2222222222")})
    data = b"a,b\n" + b"x" * 30_000 + b",1\n" + b"y" * TEXT_BYTES
    shown = preview_of(Beginning("t.csv", len(data), data), "t.csv")
    assert (shown.kind, shown.cut, len(shown.rows), len(shown.rows[0][0])) == ("table", True, 1, 301)


def _names(**sizes: tuple[str, int, int]) -> FolderStatus:
    names = {}
    for name, (kind, *sides) in sizes.items():
        here, there = (FileTally(1, size) if size else FileTally() for size in sides)
        names[name] = FolderName(name.rstrip("_"), name.endswith("_"), here, there, {kind: 1})
    return FolderStatus("data", names)


def test_the_names_of_a_folder_are_filtered_and_sorted() -> None:
    status = _names(
        b=("equal", 5, 5), A=("local_only", 9, 0), c=("differs", 7, 8), z_=("remote_only", 0, 20), d=("unknown", 1, 1)
    )

    def shown(show: str = "", text: str = "", sort: str = "") -> list[str]:
        return [each.name for each in chosen_names(status, show, text, sort)]

    assert shown() == ["z", "A", "b", "c", "d"], "folders first"
    assert shown(sort="-name") == ["d", "c", "b", "A", "z"]
    assert shown(sort="-here") == ["A", "c", "b", "d", "z"] and shown(sort="there") == ["A", "d", "b", "c", "z"]
    assert shown(sort="state")[:2] == ["c", "d"], "conflicts first"
    assert shown("differs") == ["z", "A", "c", "d"] and shown("same") == ["b"]
    assert shown("upload") == ["A"] and shown("download") == ["z"] and shown("conflict") == ["c", "d"]
    assert shown(text="a") == ["A"] and shown(text="x") == []
    assert (status.here, status.there) == (FileTally(4, 22), FileTally(4, 34)), "of all"
    (row,) = map(row_of, chosen_names(status, "upload", "", ""))
    assert (row.badges, row.uploads, row.downloads) == ((("up", "only here"),), True, False)


@pytest.mark.parametrize(("kind", "said"), [("unreadable", "unreadable"), ("unnamable", "cannot be uploaded")])
def test_a_file_that_cannot_be_read_or_named_is_no_conflict_and_not_offered_for_upload(kind: str, said: str) -> None:
    rows = [row_of(each) for each in chosen_names(_names(a=(kind, 2, 0), sub_=(kind, 3, 0)), "differs", "", "")]
    assert [(row.entry.name, row.badges) for row in rows] == [
        ("sub", (("bad", "1 cannot be uploaded"),)),
        ("a", (("bad", said),)),
    ]
    assert not any(row.in_conflict or row.uploads for row in rows)


def _entry(ago: float, size: int, kind: str = "upload") -> TransferEntry:
    entry = TransferEntry(kind, ("data",), bytes=size, seconds=2.0, transferred=1, result="done")
    return replace(entry, began=time.time() - ago)


def test_the_chart_is_by_hour_or_day_and_scaled_to_its_tallest_column() -> None:
    now = time.time()
    assert bytes_chart([], now) is None
    assert bytes_chart([_entry(60, 0)], now) is None
    hours = bytes_chart([_entry(10, 1000), _entry(7 * 3600, 4000), _entry(7 * 3600, 4000, "download")], now)
    assert hours is not None
    assert (hours.unit, hours.most, hours.fastest) == ("hour", 8000, 2000.0)
    tall = max(sum(part[2] for part in column.parts) for column in hours.columns)
    assert tall == HEIGHT
    assert sum(column.bytes for column in hours.columns) == 9000
    assert sum(column.files for column in hours.columns) == 3
    days = bytes_chart([_entry(10, 1000), _entry(9 * 86400, 500), _entry(90 * 86400, 10**9)], now)
    assert days is not None
    assert (days.unit, days.most) == ("day", 1000)


def test_a_curve_needs_two_points() -> None:
    assert rate_curve([(0.0, 0, 0.0)]) == ("", 0.0)
    assert rate_curve([(0.0, 0, 0.0), (1.0, 0, 0.0)]) == ("", 0.0), "not a curve of at most 1 B/s"
    line, most = rate_curve([(0.0, 0, 0.0), (1.0, 50, 50.0), (2.0, 150, 100.0)])
    assert most == 100.0
    assert line.startswith(f"0,{HEIGHT} 0.0,{HEIGHT:.1f} 500.0,")


@pytest.mark.parametrize(
    ("address", "name"),
    [("/", "Project"), ("/browse", "Project"), ("/plans/1", "Project"), ("/transfers/1", "Transfers"),
     ("/history/1", "Transfers"),      ("/transfersx", "Project"), ("/new-job", "New job"), ("/jobs/x/y", "Jobs")],
)  # fmt: skip
def test_each_url_belongs_to_a_section_of_the_navigation(address: str, name: str) -> None:
    assert place_of(address).name == name


def test_a_path_breaks_after_its_slashes_and_is_escaped() -> None:
    assert breakable_text("a/<b>/ü") == "a/<wbr>&lt;b&gt;/<wbr>ü"


def test_no_page_holds_an_inline_script_or_style() -> None:
    import blobsync.web

    folder = Path(blobsync.web.__file__).parent
    for file in (folder / "templates").rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert " style=" not in text and "<style" not in text and " on" + "click=" not in text, file
        assert "<script>" not in text and "javascript:" not in text, file
        assert not re.search(r"(?<!\"\])\|safe", text), "only parts that templates made"
        assert "http://" not in text and "https://" not in text, file
    for file in (folder / "static").iterdir():
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
        assert "http://" not in text and "https://" not in text and "@import" not in text, file


def test_characters_of_a_name_that_nobody_sees_are_shown_and_forms_send_them_back_as_they_are() -> None:
    name = "rlo\u202egpj.exe"
    trail = [("zero\u200bwidth", "a"), ("a\nb", "a/b"), (name, "a/b/c")]
    crumbs = fragment("crumbs.html", trail=trail, through="", through_first="")
    assert ">a\\nb</a>" in crumbs
    assert "rlo\\u202egpj.exe" in crumbs
    assert "zero\\u200bwidth" in crumbs
    assert "gpj\\u202e" in breakable_text("data/gpj\u202e")
    found = SimpleNamespace(files=[SimpleNamespace(shown=name, size=1, last_modified=0, on_disk="")], are_here=True)
    outputs = fragment(
        "job_outputs.html", problem=None, answer=SimpleNamespace(**vars(found), notes=()), run_id="a_1_b", most=5,
        token_field="t", form_token="f",
    )  # fmt: skip
    assert f'name="name" value="{name}"' in outputs
    assert ">rlo\\u202egpj.exe</td>" in outputs
    sets = [Checkpoint(f"output/{name}", 5, None, 1, 1, "none", "half", f"{name} is missing")]
    assert fragment("job_checkpoints.html", problem=None, answer=sets, most=5).count("rlo\\u202egpj.exe") == 2
    lines = "یک\u200cدو\n\tdrei"
    shown = fragment("preview.html", preview=preview_of(Beginning("a", 30, lines.encode())), path=name, as_text=False)
    assert f">{lines}</pre>" in shown, "the content of a file is what it is"
    assert 'aria-label="Content of rlo\\u202egpj.exe"' in shown


def test_a_page_that_has_named_a_file_names_only_its_lines() -> None:
    assert (
        in_file_text("aux_data/aml/a.yaml:7: nodes: is no number", "aux_data/aml/a.yaml")
        == "line 7: nodes: is no number"
    )
    assert in_file_text("aux_data/aml/a.yaml: platform: is missing", "aux_data/aml/a.yaml") == "platform: is missing"


def test_an_entry_to_which_a_job_uploads_is_not_in_sync() -> None:
    entry = EntryStatus("output", "https://a/c/output", as_of=1.0)
    ran, waiting = (WritingJob("me_1", State.COMPLETED, ran, None, ()) for ran in (True, False))
    assert list(badges_of(entry)) == [("good", "in sync")]
    assert list(badges_of(replace(entry, jobs=(ran,)))) == [("down", "a job uploaded since the listing")]
    assert list(badges_of(replace(entry, jobs=(waiting,)))) == [("", "a job will upload")]
