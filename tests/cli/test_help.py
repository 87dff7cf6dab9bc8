"""The help: complete, in step with the commands, and quick."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer

from blobsync.cli.app import SECTIONS, Word
from blobsync.cli.options import SETTINGS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

WORDS = [word for _, words in SECTIONS for word in words]


def test_the_front_page_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    shown = cli("--help").out
    assert shown == cli().out == cli("-h").out
    for title, words in SECTIONS:
        assert f"\n{title}:\n" in shown
        for word in words:
            assert f"\n  {', '.join(word.names)} " in shown
    assert "Exit codes: 0 done and verified" in shown


# Lists that need no more than their own name.
_PLAIN = {"qq", "qr", "qf", "summary", "blame", "history"}


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.names[0])
def test_each_command_explains_itself_with_an_example(cli: Cli, word: Word) -> None:
    name = word.names[0]
    ended = cli(name, "--help")
    assert ended.code == 0
    assert ended.out.startswith(f"Usage: blobsync {name} ")
    if "Commands:" not in ended.out and name not in _PLAIN:
        examples = [line for line in ended.out.splitlines() if line.startswith("    blobsync ")]
        assert any(f" {each}" in line for line in examples for each in word.names), ended.out


def test_other_names_are_the_same_command(cli: Cli) -> None:
    for word in WORDS:
        for other in word.names[1:]:
            assert cli(other, "--help").out.split("\n", 1)[1] == cli(word.names[0], "--help").out.split("\n", 1)[1]


def test_every_registered_command_is_in_the_table() -> None:
    for module in {word.module for word in WORDS}:
        app = typer.Typer(**SETTINGS)
        import_module(f"blobsync.cli.{module}").register(app)
        registered = {info.name for info in app.registered_commands} | {info.name for info in app.registered_groups}
        assert registered == {word.names[0] for word in WORDS if word.module == module}


def test_the_help_of_u_in_full(cli: Cli) -> None:
    assert (
        cli("u", "--help").out.split("Options:")[0]
        == """\
Usage: blobsync u [OPTIONS] [PATH]

  Upload files or folders to where the cluster file maps them.

  Transfers only what differs. Deletes nothing at the destination, and
  replaces nothing there that changed since it was last verified. With -f the
  source is the other cluster's storage, and the bytes go from server to
  server.

    blobsync u data/voc20                     a folder or a file: blobsync detects which
    blobsync u data/a.zip output/run7         several at once
    blobsync -c eu -f we3v32 u data/voc20     from cluster we3v32's storage to cluster eu's
    blobsync u --all                          every folder entry of the cluster

Arguments:
  PATH  Paths inside the project.

"""
    )


def test_the_reference_shows_every_command() -> None:
    text = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    missing = sorted(name for word in WORDS for name in word.names if f"`{name}" not in text)
    assert not missing


@pytest.mark.parametrize("name", ["u", "ls", "rm", "url", "verify", "plan"])
def test_the_reference_shows_every_option(cli: Cli, name: str) -> None:
    text = (Path(__file__).parents[2] / "docs/commands.md").read_text()
    shown = cli(name, "--help").out.split("Options:")[1]
    options = {word.rstrip(",") for line in shown.splitlines() for word in line.split()[:2] if word.startswith("--")}
    assert options
    assert not sorted(option for option in options - {"--help"} if f"{option}" not in text)
