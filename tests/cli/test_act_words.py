"""Every word of ACT's command line: taken as it was, or answered in one sentence with what is used today."""

from __future__ import annotations

import json
import re
import shlex

import pytest

from blobsync.cli.main import GONE, MOVED, RENAMED, in_our_words
from tests.cli.conftest import CLUSTER, Cli
from tests.source import ROOT

# parse_args of act/aml_client.py in github.com/microsoft/act.
ACTS_COMMANDS = (
    *("ssh", "q", "query", "f", "failed", "a", "abort", "submit", "local", "qf", "qq", "qr", "d", "download", "u"),
    *("upload", "parse", "init", "initc", "initi", "initic", "blame", "resubmit", "ls", "rm", "url", "s", "summary"),
)
ACTS_OPTIONS = (
    *("-no-wl", "-no-dt", "-no-lf", "-single", "-c", "--cluster", "-rt", "--resubmit_to", "-f", "--from_cluster"),
    *("-ca", "--compile_args", "-p", "--param", "-n", "--num_gpu", "--max", "-no-wg", "--with_gpu", "-no-m"),
    *("--with_meta", "-no-s", "--real_submit", "-ic", "--inject_collection"),
)

HERE = "{config_param: null, platform: local, local: {gpus: 2}}"
# What is typed, the exit code, and what is said: 4 is a job that is not there, so that the words were understood.
TABLE: tuple[tuple[tuple[str, ...], int, str], ...] = (
    # Accepted: nothing has that name here, so commands that ask for it end with 4.
    (("ssh", "ffff"), 4, "no job"),
    (("q",), 0, "there are no jobs"),
    (("query", "ffff"), 4, "no job"),
    (("q", "assets/ffff"), 4, "no job of this project has an id that begins or ends with 'ffff', or that name"),
    (("q", "assets/ffff/"), 4, "no job of this project has an id that begins or ends with 'ffff', or that name"),
    (("-no-wl", "q", "ffff"), 4, "no job"),
    (("--max", "5", "q"), 0, "there are no jobs"),
    (("--max=5", "qf"), 0, "there are no failed jobs"),
    (("q", "--max", "5"), 0, "there are no jobs"),
    *(((word,), 0, "there are no failed jobs") for word in ("f", "failed", "qf")),
    (("qq",), 0, "there are no queued or preparing jobs"),
    (("qr",), 0, "there are no running or canceling jobs"),
    *(((word, "ffff/"), 4, "no job") for word in ("a", "abort")),
    (("parse", "ffff"), 4, "no job"),
    (("resubmit", "ffff"), 4, "no job"),
    (("-rt", "eu", "resubmit", "ffff"), 4, "no job"),
    (("--resubmit_to", "eu", "resubmit", "ffff"), 4, "no job"),
    (("--resubmit_to=eu", "resubmit", "ffff"), 4, "no job"),
    (("resubmit", "ffff", "-rt", "eu"), 4, "no job"),
    (("-p", HERE, "-no-s", "submit", "ls", "-no-s"), 0, '"argv": ["ls", "-no-s"]'),
    (("-p", HERE, "--real_submit", "submit", "ls"), 0, '"argv": ["ls"]'),
    (("-p", HERE, "-n", "2", "-no-s", "submit", "ls"), 0, '"procs_per_node": 2'),
    (("-p", HERE, "-single", "--num_gpu", "2", "-no-s", "submit", "ls"), 0, '"procs_per_node": 1'),
    (("-p", HERE, "--num_gpu=2", "-no-s", "submit", "ls"), 0, '"gpus_per_node": 2'),
    (("-p", HERE, "-n", "0", "local", "true"), 0, ""),
    (("--param", HERE, "s"), 0, "0 queued"),
    (("-p", HERE, "summary"), 0, "0 queued"),
    (("-p", HERE, "blame"), 0, "no jobs on cluster aml"),
    (("--cluster", "eu", "ls"), 2, "no cluster 'eu'"),
    (("-c", "eu", "init"), 2, "no cluster 'eu'"),
    (("init",), 2, "code_path"),
    (("initi",), 2, "code_path"),
    (("initc",), 2, "code_path"),
    (("initic",), 2, "code_path"),
    (("ls",), 0, "data/"),
    (("-f", "eu", "u", "data/x"), 2, "no cluster 'eu'"),
    (("--from_cluster", "eu", "u", "data/x"), 2, "no cluster 'eu'"),
    (("--from_cluster=eu", "upload", "data/x"), 2, "no cluster 'eu'"),
    (("u", "data/x", "--from_cluster", "eu"), 2, "no cluster 'eu'"),
    *(((word, "dat/x"), 2, "dat/x") for word in ("u", "d", "download", "rm", "url")),
    # Answered.
    (("-no-dt", "q", "ffff"), 2, "-no-dt is gone: use blobsync q without an ID"),
    (("-no-lf", "q", "ffff"), 2, "-no-lf is gone: q fetches only what is new of each log"),
    (("-ca", "x", "submit", "ls"), 2, "-ca is gone: what compile.aml.sh gets is a key of the cluster file"),
    (("--compile_args", "x", "submit", "ls"), 2, "--compile_args is gone: what compile.aml.sh gets is a key"),
    (("-ic", "x", "q"), 2, "-ic is gone: there is no database of collections any more"),
    (("--inject_collection", "x", "q"), 2, "--inject_collection is gone: there is no database"),
    *(((word, "q"), 2, f"{word} is gone: ACT did not use it") for word in ("-no-wg", "--with_gpu")),
    *(((word, "q"), 2, f"{word} is gone: ACT did not use it") for word in ("-no-m", "--with_meta")),
    (("-rt", "eu", "q"), 2, "-rt means nothing for q"),
    (("-single", "ls"), 2, "-single means nothing for ls"),
    (("-no-s", "resubmit", "ffff"), 2, "-no-s means nothing for resubmit"),
)


@pytest.mark.parametrize(("words", "code", "said"), TABLE, ids=[" ".join(words) for words, _, _ in TABLE])
def test_a_command_of_act_works_or_names_the_new_one(cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    ended = cli(*words)
    assert ended.code == code, ended
    assert said in ended.out + ended.err, ended
    assert "no such option" not in ended.err and "no such command" not in ended.err


def test_the_table_has_every_word_of_act() -> None:
    typed = {word.partition("=")[0] for words, _, _ in TABLE for word in words}
    assert set(ACTS_COMMANDS) - typed == set()
    assert set(ACTS_OPTIONS) - typed == set()
    assert {*RENAMED, *MOVED, *GONE} <= set(ACTS_OPTIONS)


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("--max 5 -c eu q", "-c eu q --max 5"),
        ("-c eu --max 5 qr -v", "-c eu qr --max 5 -v"),
        ("-n 8 submit --max 5", "-n 8 submit --max 5"),
        ("local -rt --num_gpu", "local -rt --num_gpu"),
        ("-n -rt q", "-n -rt q"),
        ("ls -- --num_gpu", "ls -- --num_gpu"),
        ("-no-wl -v", "-v -no-wl"),
        ("", ""),
    ],
)
def test_only_what_is_acts_is_changed(given: str, ours: str) -> None:
    assert in_our_words(given.split()) == ours.split()


PAGE = (ROOT / "docs" / "migrating-from-act.md").read_text(encoding="utf-8")
TYPED = [re.split(r"  +", line[2:])[0] for line in PAGE.splitlines() if line.startswith("a ")]


@pytest.mark.parametrize("line", TYPED)
def test_each_line_of_the_first_days_page_is_understood(cli: Cli, line: str) -> None:
    cli.write("aux_data/aml/eu.yaml", CLUSTER)
    cli.write("aux_data/aml/we3v32.yaml", CLUSTER)
    cli.write("aux_data/aml/aml.yaml", CLUSTER + "platform: local\nlocal: {gpus: 8}\n")
    words = shlex.split(line)
    # Nothing is submitted here, nor packed: only the words are tried.
    words = [*words, "--dry-run"] if words == ["init"] else words
    at = words.index("submit") if "submit" in words else -1
    words = words if at < 0 or "-no-s" in words else [*words[:at], "submit", "--dry-run", *words[at + 1 :]]
    ended = cli(*words)
    # The rest needs a code_path, a blob server, or a job: none is there, which is said after the words are read.
    told = "code_path" in ended.err or "127.0.0.1" in ended.err or "no job of this project" in ended.err
    assert ended.code == 0 or told or "no such file or folder" in ended.err, ended


def test_the_page_has_the_words_that_are_taken() -> None:
    words = {word.partition("=")[0] for line in TYPED for word in line.split()}
    assert len(TYPED) > 20 and {"--from_cluster", "--num_gpu", "-rt", "-single", "-no-s", "-no-wl", "initic"} <= words
    assert all(f"`{option}`" in PAGE for option in GONE if not option.startswith("--"))


def test_what_is_gone_is_one_error_in_json_too(cli: Cli) -> None:
    ended = cli("--json", "-ic", "x", "q")
    assert ended.code == 2 and json.loads(ended.out)["errors"][0]["hint"] == "leave out -ic"
