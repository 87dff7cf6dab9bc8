"""Every blobsync command that README and docs show: the word and its options exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import pytest
import typer
from typer.main import get_command

from blobsync.cli.commands import build_app
from tests.source import ROOT

# What these run belongs to another program from its first word on.
_RUNNING = {"submit", "local"}
# Shown with the answer that they get.
_MISTAKES = {"blobsync push data/voc20"}
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class _Word(NamedTuple):
    """One command: each option with whether a value follows, and the words below it."""

    options: Mapping[str, bool]
    below: Mapping[str, Any]


@cache
def _tree() -> Any:
    return get_command(build_app())


@cache
def _word(*names: str) -> _Word | None:
    found: Any = _tree()
    context = typer.Context(found, info_name="blobsync")
    for name in names:
        found = found.get_command(context, name) if hasattr(found, "get_command") else None
        if found is None:
            return None
    parameters = [each for each in found.get_params(context) if each.param_type_name == "option"]
    options = {
        name: not getattr(each, "is_flag", False) for each in parameters for name in (*each.opts, *each.secondary_opts)
    }
    below = getattr(found, "commands", {})
    # A group that is called with an id in place of a word below it passes its options on: tunnel ID --port 8888.
    inner = {name: takes for word in below if names for name, takes in _options(*names, word).items()}
    return _Word({**inner, **options}, below)


def _options(*names: str) -> Mapping[str, bool]:
    found = _word(*names)
    return found.options if found else {}


def _shown(text: str) -> Iterator[str]:
    """Commands in blocks and in code within lines, without comments and without what stands in a second column."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    .*$", text, re.MULTILINE)
    in_blocks = re.findall(r"^ *(?:\$ |- run: )?(blobsync .*)$", "\n".join((*blocks, *indented)), re.MULTILINE)
    for found in (*in_blocks, *re.findall(r"`(blobsync [^`\n]*)`", text)):
        line = re.split(r"\s{2,}|\s#\s| (?:&&|\|\||\||>|2>|;) |;$", found)[0]
        if re.match(r"blobsync (-|[a-z])", line) and line not in _MISTAKES:
            yield line


def wrong(line: str) -> str | None:
    """What of a command does not exist; None where all does."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:
        # Half of a quoted line: what follows it is the program's.
        words = line.split()[1:]
    root = _word()
    names: tuple[str, ...] = ()
    assert root is not None
    known = root
    while words:
        word = words.pop(0)
        if word == "--":
            return None
        if word.startswith("-") and len(word) > 1 and not word[1:].replace("-", "").isdigit():
            name = word.partition("=")[0]
            options = {**root.options, **known.options}
            if name not in options:
                return f"{line}: there is no {name}"
            if options[name] and "=" not in word and words:
                words.pop(0)
        elif not names or word in known.below:
            found = _word(*names, word)
            if found is None:
                return f"{line}: there is no command {word}"
            known, names = found, (*names, word)
        if names and names[0] in _RUNNING and not word.startswith("-") and word not in names:
            return None
    return None


def test_every_command_of_the_pages_exists_with_its_options() -> None:
    lines = {(page.name, line) for page in _PAGES for line in _shown(page.read_text(encoding="utf-8"))}
    assert len(lines) > 200
    mistakes = [f"{page}: {told}" for page, line in sorted(lines) if (told := wrong(line))]
    assert mistakes == []


def test_every_file_of_the_repository_that_a_page_names_is_there() -> None:
    named = {
        (page.name, name)
        for page in _PAGES
        for name in re.findall(
            r"`((?:tests|blobsync|benchmarks|tools|docs)/[\w./-]+\.\w+)`", page.read_text(encoding="utf-8")
        )
    }
    assert len(named) > 10
    assert [f"{page}: {name}" for page, name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("blobsync uplod data", "there is no command uplod"),
        ("blobsync u data --mirrored", "there is no --mirrored"),
        ("blobsync -c eu u data --cap-mbps 50 --nowhere", "there is no --nowhere"),
        ("blobsync config new --emulatr", "there is no --emulatr"),
        ("blobsync submit --bogus ls", "there is no --bogus"),
    ],
)
def test_a_stale_command_is_found(line: str, told: str) -> None:
    assert told in (wrong(line) or "")
    assert wrong("blobsync -c eu -n 8 submit --name big python train.py --epochs 3") is None
