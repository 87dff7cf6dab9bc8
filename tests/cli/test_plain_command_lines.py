"""What is read without Typer is what Typer reads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.cli.command_tree import read_by_typer
from blobsync.cli.command_words import SECTIONS
from blobsync.cli.main import read_plain
from blobsync.cli.output import Result
from blobsync.cli.session import GLOBALS, Command, OptionRow, Session, registered

WORDS = [word for _, words in SECTIONS for word in words]
ROWS = {
    name: command.rows
    for word in WORDS
    for name, command in registered(word).commands.items()
    if not command.ends_with_a_command
}
OPTIONS = sorted({name for rows in (*ROWS.values(), GLOBALS) for row in rows for name in row[1].__metadata__[0].names})
VALUES = ("", "a", "data/x", "7", "0", "-1", "2.5", "1e3", "x y", "--", "-", "ä", "٣", "99999999999999999999")
OTHERS = ("--nonsense", "-x", "-vq", "-cname", "--help", "--cluster=eu", "--cap-mbps=3", "--json=1", "--cluster=")


class ReadByTyper:
    """Reads a command line as Typer does, for the parameters ``rows``."""

    def __init__(self, rows: tuple[OptionRow, ...]) -> None:
        self._read = read_by_typer("it", _Recorded(rows))

    def __call__(self, words: list[str]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._read(words, standalone_mode=False, obj=Session())
        return found


class _Recorded(Command):
    def __init__(self, rows: tuple[OptionRow, ...]) -> None:
        super().__init__(lambda session: Result(), None, rows, looks=False, ends_with_a_command=False)

    def run(self, session: Session, values: dict[str, Any]) -> Any:
        return values


READERS = {name: ReadByTyper(rows) for name, rows in ROWS.items()}


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ROWS)), st.lists(st.sampled_from((*OPTIONS, *VALUES, *OTHERS)), max_size=6))
def test_a_plain_command_line_means_the_same_to_typer(name: str, words: list[str]) -> None:
    found = read_plain(words, ROWS[name])
    if found is not None:
        values, left = found
        assert not left
        assert values == READERS[name](words), words


@pytest.mark.parametrize("name", sorted(ROWS))
def test_each_option_of_a_command_means_the_same_to_typer(name: str) -> None:
    arguments = [row for row in ROWS[name] if not row[1].__metadata__[0].is_option and row[2] is ...]
    for _, annotation, _ in ROWS[name]:
        for option in annotation.__metadata__[0].names:
            for value in ([], ["7"], ["a"], ["7", option, "8"]):
                words = [*("u" for _ in arguments), option, *value]
                found = read_plain(words, ROWS[name])
                if found is not None:
                    assert found[0] == READERS[name](words), words


def test_what_is_typed_each_day_is_plain() -> None:
    for name, words in {
        "u": ["data/voc20", "--overwrite", "--include", "*.jpg", "--include", "*.png", "-c", "eu", "--json"],
        "d": ["data/voc20", "output/run7", "--keep=both", "--processes", "4", "--cap-mbps", "2.5"],
        "ls": ["data", "-r", "--jsonl"],
        "status": ["--fresh"],
        "q": ["3f2a", "--no-logs", "--max", "5", "-q", "-v"],
        "rm": ["data/old", "-y"],
    }.items():
        assert read_plain(words, ROWS[name]) is not None, words


def test_before_the_command_global_options_are_read() -> None:
    values, left = read_plain(["-c", "eu", "--json", "u", "-v", "data"], GLOBALS, before_a_command=True) or ({}, ())
    assert (values["cluster"], values["json"], list(left)) == ("eu", True, ["u", "-v", "data"])
    assert read_plain(["--help"], GLOBALS, before_a_command=True) is None


@pytest.mark.parametrize("words", [("resolve", "data/x"), ("ls", "nowhere"), ("q",), ("u", "--json", "nowhere")])
def test_a_plain_command_line_loads_no_typer(tmp_path: Path, words: tuple[str, ...]) -> None:
    code = "import sys; from blobsync.cli.main import main; main(sys.argv[1:]); sys.exit('typer' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
