"""The help: complete, in step with the commands, and quick."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from blobsync.cli.command_words import SECTIONS
from blobsync.cli.suggestions import IN_OTHER_WORDS, OTHER_TOOLS
from tools.docs_site.command_tree import commands

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


@cache
def typed() -> list[tuple[str, ...]]:
    """Each command and each word of a group, as a user types it."""
    return [each.names for each in commands()]


def test_each_command_explains_itself_with_an_example_and_shows_the_options_that_have_a_meaning(cli: Cli) -> None:
    for names in typed():
        ended = cli(*names[0].split(), "--help")
        assert ended.code == 0
        assert ended.out.startswith(f"Usage: blobsync {names[0]} ")
        if "Commands:" in ended.out:
            listed = ended.out.split("\nCommands:\n")[1]
            assert "..." not in listed and listed.rstrip().endswith("."), "a sentence was cut"
        else:
            examples = [line for line in ended.out.splitlines() if line.startswith("    blobsync ")]
            assert any(f" {each}" in line for line in examples for each in names), ended.out
            # What an example is for stands beside it, on a terminal of the usual width.
            assert not [line for line in examples if len(line) > 80 and re.search(r"\S {2,}\S", line)], ended.out
            if "--cluster NAME" not in ended.out and names[0] not in ("submit", "local"):
                assert "--param" not in ended.out, ended.out
        two = names[0] in ("u", "d", "plan", "config check")
        assert ("--from-cluster" in ended.out) == two, ended.out
        assert not two or ("--param" in ended.out and "--cluster NAME" in ended.out), ended.out


def test_help_fits_a_narrow_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for names in typed():
        for line in cli(*names[0].split(), "--help").out.splitlines():
            # Commands to copy stay whole.
            assert len(line) <= 40 or re.fullmatch(r" +blobsync \S+(?: \S+)*", line), (names, line)


def test_what_an_example_is_for_stands_below_it_where_there_is_no_room(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    shown = cli("u", "--help").out
    assert "    blobsync u data/voc20\n        a folder, or a file\n    blobsync u data/a.zip" in shown
    assert "\n  --engine auto|azcopy|direct|relay\n                How the bytes move.\n" in shown
    assert "\n  --overwrite   Replace all files that\n" in shown


@pytest.mark.parametrize("name", ["ls", "du", "stat", "resolve", "url", "rm", "status", "verify", "u", "d", "summary"])
def test_an_option_that_is_shown_is_used_and_one_that_is_not_is_taken_all_the_same(cli: Cli, name: str) -> None:
    paths = () if name in ("status", "summary") else ("data/x",)
    assert cli(name, *paths, "-c", "nowhere", "--json").document["errors"][0]["code"] == "cluster_unknown"
    assert cli("emulator", "status", "-c", "nowhere").code == 0


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *(("push", "u"), ("pull", "d"), ("sync", "u' or 'blobsync d"), ("cp", "u' or 'blobsync d"), ("rsync", "u' or")),
        *(
            ("uplod", "upload"),
            ("dowload", "download"),
            ("mv", "u' or 'blobsync rm"),
            ("cancel", "a"),
            ("sbatch", "submit' or"),
        ),
        *(("statsu", "status"), ("pul", "d"), ("delet", "rm")),
    ],
)
def test_a_command_of_another_tool_suggests_ours(cli: Cli, word: str, meant: str) -> None:
    ended = cli(word, "data", "--json")
    [error] = ended.document["errors"]
    assert (ended.code, error["message"]) == (2, f"no such command '{word}'")
    assert f"did you mean 'blobsync {meant}" in error["hint"]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (
            ("tunnel", "list"),
            "did you mean 'blobsync tunnel ls' or 'blobsync tunnel job list'? 'blobsync tunnel --help'",
        ),
        (("tunnel", "Delete", "box"), "did you mean 'blobsync tunnel rm' or "),
        (("keep", "tree"), "did you mean 'blobsync keep ls' or 'blobsync keep start tree'? "),
        (("config", "list"), "'blobsync config --help' shows what it takes"),
    ],
)
def test_another_tools_word_for_a_command_of_a_group_is_none_of_the_groups_names(
    cli: Cli, words: tuple[str, ...], meant: str
) -> None:
    ended = cli(*words, "--json")
    [error] = ended.document["errors"]
    assert (ended.code, error["message"]) == (2, f"no such command '{words[1]}'")
    assert error["hint"].startswith(meant)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ("u", "x", "--permission", "r"),
            "--permission belongs to 'blobsync url'; 'blobsync u --help' shows what it takes",
        ),
        (("u", "x", "--init"), "--init belongs to 'blobsync submit'; 'blobsync u --help' shows what it takes"),
        (("ls", "--engine", "direct"), "--engine belongs to 'blobsync u', 'blobsync d', 'blobsync plan'; "),
        (
            ("u", "--storage-account-name", "one", "x"),
            "the storage account is in a file of aux_data/configs, which ",
        ),
        (("scale", "--rg", "mine", "--new_node_count", "3"), "'blobsync scale ID N' changes the nodes of a job, "),
        (("scale", "x", "--new_node_count", "3"), "'blobsync scale ID N' changes the nodes of a job, "),
        (("u", "x", "--incomplete"), "--incomplete belongs to 'blobsync d', 'blobsync plan'; "),
        (("d", "x", "--receipt"), "--receipt belongs to 'blobsync u', 'blobsync plan'; "),
        (("u", "x", "--bwlimit", "10M"), "did you mean --cap-mbps (Use at most N megabits (10^6) per second)? "),
        (("plan", "u", "x", "--delete-destination=true"), "did you mean --mirror (Also delete what the source "),
        (("history", "--limit", "5"), "did you mean --max (Show the newest N jobs)? "),
        (("rm", "x", "--force"), "did you mean --yes (Do not ask)? "),
        (("ls", "--delete"), "'blobsync ls --help' shows what it takes"),
        (("u", "x", "--recursive"), "omit it: a folder is taken with all that is below it; "),
        (("u", "x", "--overwrit"), "did you mean --overwrite? 'blobsync u --help' shows what it takes"),
        (("config", "check", "--nonsense"), "'blobsync config check --help' shows what it takes"),
    ],
)
def test_an_option_of_another_command_and_a_misspelt_one_are_distinguished(
    cli: Cli, words: tuple[str, ...], hint: str
) -> None:
    [error] = cli(*words, "--json").document["errors"]
    option = next(word.partition("=")[0] for word in words if word.startswith("--"))
    assert error["message"] == f"no such option: {option}" and error["hint"].startswith(hint), error


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("u", "data", "--keep"), "--keep needs local|remote|both after it", "blobsync u --help"),
        (("data", "ls", "-c"), "no such command 'data'", "blobsync --help"),
        (("-c", "eu", "ls", "-p"), "-p needs YAML after it", "blobsync ls --help"),
        (("config", "new", "--account"), "--account needs NAME|URL after it", "blobsync config new --help"),
        (("submit", "--name"), "--name needs a value after it", "blobsync submit --help"),
        (
            ("u", "data", "--cap-mbps", "fast"),
            "invalid value for '--cap-mbps': 'fast' is not a number",
            "blobsync u --",
        ),
        (("web", "--port", "abc"), "invalid value for '--port': 'abc' is not a whole number", "blobsync web --help"),
        (("submit", "--nodes", "0", "x"), "invalid value for '--nodes': 0 is less than 1", "blobsync submit --help"),
        (("-n", "x", "q"), "invalid value for '-n' / '--num-gpu': 'x' is not a whole number", "--help"),
        (("web", "--port", "70000"), "invalid value for '--port': 70000 is not a number from 0 to 65535", "--help"),
        (
            ("tunnel", "add", "a", "b", "--port", "0"),
            "invalid value for '--port': 0 is not a number from 1 to 65535",
            "",
        ),
        (("q", "--max", "-1"), "invalid value for '--max': -1 is less than 1", "blobsync q --help"),
        (("version",), "no such command 'version'", "'blobsync --version' shows it"),
        (("completion", "bash"), "no such command 'completion'", "'blobsync --install-completion' makes your shell"),
        (("help",), "no such command 'help'", "'blobsync COMMAND --help' explains one"),
        (("help", "u"), "no such command 'help'", "'blobsync u --help' explains one"),
    ],
)
def test_a_mistake_of_the_command_line_is_one_sentence_and_names_the_help(
    cli: Cli, words: tuple[str, ...], message: str, hint: str
) -> None:
    ended = cli(*words)
    assert ended.code == 2
    assert ended.err.startswith(f"blobsync: {message}\n"), ended.err
    assert hint in ended.err


def test_every_suggestion_for_another_tools_command_exists() -> None:
    words = {name for names in typed() for name in names}
    assert {each.partition(" -")[0] for meant in OTHER_TOOLS.values() for each in meant} <= words
    said = "; ".join(IN_OTHER_WORDS.values())
    assert {each.partition(" -")[0] for each in re.findall("'blobsync ([^']+)'", said)} <= words
    assert not {*OTHER_TOOLS, *IN_OTHER_WORDS} & {name.split()[0] for name in words}, "a command of ours needs no line"


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("job create -f job.json", "submit --file JOB"),
        ("az batchai job create -n train", "submit"),
        ("batchai cluster create -n gpu", "compute create"),
        ("job file list -j train -d MODEL", "outputs"),
        ("job file stream -j train -f stdout.txt", "logs -F"),
        ("job stream train", "logs -F"),
        ("monitor train", "q --watch"),
        ("track train", "q --watch"),
        ("job check_status", "q"),
        ("job delete train", "a"),
        ("job download", "outputs"),
        ("storage share create --name data", "config new"),
        ("experiment create", "submit"),
        ("cluster create", "compute create"),
        ("petctl upload_storage --source_path data", "u"),
        ("storage_secret --account_name one", "login"),
        ("docker_secret --server reg.io", ""),
        ("setup --rg mine", "config new"),
        ("delete_resources", "abort --all"),
        ("run_job", "submit"),
        ("get_logs", "logs -F"),
        ("scale_up", "scale"),
        ("storage blob upload", "u"),
    ],
)
def test_the_words_of_batch_ai_lead_to_ours_and_never_from_a_job_to_data(cli: Cli, typed: str, ours: str) -> None:
    ended = cli(*typed.split())
    assert ended.code == 2 and (f"'blobsync {ours}'" if ours else "docker: {address, username, password}") in ended.err
    assert "(Stop jobs)" not in ended.err or "delete" in typed
    assert not typed.startswith("job") or not any(f"'blobsync {word}'" in ended.err for word in ("u", "d", "rm"))


def test_a_job_file_after_f_is_answered_with_file(cli: Cli) -> None:
    ended = cli("submit", "-f", "job.json")
    assert ended.code == 2 and "blobsync submit --file job.json" in ended.err, ended


def test_a_path_without_a_command_is_understood(cli: Cli) -> None:
    assert "'blobsync u data/voc20' uploads it" in cli("data/voc20").err
    assert cli("zzzzz").err.endswith("hint: 'blobsync --help' lists all commands\n")


def test_other_names_are_the_same_command(cli: Cli) -> None:
    for word in WORDS:
        for other in word.names[1:]:
            assert cli(other, "--help").out.split("\n", 1)[1] == cli(word.names[0], "--help").out.split("\n", 1)[1]


def test_every_registered_command_is_in_the_table() -> None:
    for module in {word.module for word in WORDS}:
        app = import_module(f"blobsync.cli.{module}").app
        registered = {*app.commands, *app.groups}
        assert registered == {word.names[0] for word in WORDS if word.module == module}


def test_the_help_of_u_in_full(cli: Cli) -> None:
    assert (
        cli("u", "--help").out.split("Options:")[0]
        == """\
Usage: blobsync u [OPTIONS] [PATH...]

  Upload files or folders to where the cluster file maps them.

  Transfers only what differs. Deletes nothing at the destination, and
  replaces nothing there that changed since it was last verified. With -f the
  source is the other cluster's storage, and the bytes go from server to
  server.

    blobsync u data/voc20                   a folder, or a file
    blobsync u data/a.zip output/run7       several at once
    blobsync u 'data/x/*.py'                by pattern, in quotes
    blobsync -c eu -f we3v32 u data/voc20   from we3v32's storage to eu's
    blobsync u data/x --source s3://b/x     from a bucket, or from the web
    blobsync u --all                        every folder entry of the cluster

Arguments:
  PATH...  Paths inside the project.

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


@pytest.mark.parametrize("typed", ["0", "-2.5"])
def test_a_limit_is_named_as_it_was_typed(cli: Cli, typed: str) -> None:
    assert cli("u", "data", "--cap-mbps", typed).err.startswith(f"blobsync: --cap-mbps {typed}: not a number of")
