"""The promise of ``--json``: one document, always the same keys, whatever happens."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import SENTINEL

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

ENVELOPE = ["blobsync", "command", "status", "exit_code", "data", "errors"]
ERROR = ["code", "message", "hint", "path"]
ENTRY = ["path", "size", "last_modified", "md5", "tier", "etag"]


def test_success(cli: Cli) -> None:
    ended = cli("resolve", "data/voc20", "--json")
    document = ended.document
    assert list(document) == ENVELOPE
    assert (document["blobsync"], document["status"], document["exit_code"]) == (1, "success", 0)
    assert document["errors"] == []
    assert document["command"] == ["resolve", "data/voc20", "--json"]
    [place] = document["data"]["paths"]
    assert place["path"] == "data/voc20"
    assert place["url"] == "http://127.0.0.1:9/acct/cont/p/data/voc20"
    assert place["local"] == str(cli.root / "data/voc20")
    assert ended.err == ""


def test_ls_without_path_lists_the_folder_entries(cli: Cli) -> None:
    data = cli("--json", "ls").document["data"]
    assert list(data) == ["entries", "count", "bytes"]
    assert [entry["path"] for entry in data["entries"]] == ["data/", "output/"]
    assert all(list(entry)[:6] == ENTRY for entry in data["entries"])
    assert (data["count"], data["bytes"]) == (2, 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("resolve", "src/x"), "path_unmapped"),
        (("resolve", "../x"), "path_outside_project"),
        (("u",), "usage"),
        (("uplaod", "data"), "usage"),
        (("ls", "--nonsense"), "usage"),
        ((), "usage"),
        (("-n", "many", "ls"), "usage"),
        (("-n", "-1", "ls"), "usage"),
        (("emulator", "start", "--port", "70000"), "usage"),
        (("u", "data", "--max-delete", "lots"), "usage"),
        (("plan", "d", "data", "--max-delete", "5%"), "usage"),
        (("u", "data", "--cap-mbps", "0"), "usage"),
        (("plan", "sideways", "data"), "usage"),
        (("url", "data/x", "--expiry", "soon"), "usage"),
        (("url", "data/x", "--permission", "x"), "usage"),
        (("ls", "-f", "other"), "usage"),
        (("ls", "-c", "other"), "cluster_unknown"),
        (("ls", "-c", ""), "usage"),
        (("-c", "", "ls"), "usage"),
        (("plan", "u", "data", "-f", ""), "usage"),
        (("ls", "-p", "[1]"), "config_invalid"),
        (("apply", "no.plan"), "plan_file_invalid"),
        (("rm",), "usage"),
        (("-c", "amll", "u", "data"), "cluster_unknown"),
        (("u", "data", "-f", "we3v32"), "cluster_unknown"),
        (("u", "dta/a.txt"), "path_unmapped"),
        (("d", "../data"), "path_outside_project"),
        (("u", "data", "--recursive"), "usage"),
        (("u", "data", "--overwrite", "--keep", "both"), "usage"),
        (("u", "data", "--engine", "ftp"), "usage"),
        (("u", "data", "-p", "{gpu_per_node: four}"), "config_invalid"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes(cli: Cli, words: tuple[str, ...], code: str) -> None:
    _demand_one_mistake(cli, words, code)


def test_no_project_and_no_cluster_are_mistakes(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    (cli.root / "aux_data/aml/aml.yaml").rename(cli.root / "aux_data/aml/eu.yaml")
    _demand_one_mistake(cli, ("u", "data"), "config_not_found")
    os.chdir(tmp_path_factory.mktemp("empty"))
    _demand_one_mistake(cli, ("ls",), "config_not_found")


def _demand_one_mistake(cli: Cli, words: tuple[str, ...], code: str) -> None:
    """The same in words and as a document, wherever the option stands."""
    said = cli(*words)
    for given in ((*words, "--json"), ("--json", *words)):
        ended = cli(*given)
        document = ended.document
        assert list(document) == ENVELOPE
        assert (document["status"], document["exit_code"], ended.code) == ("error", 2, 2)
        assert document["data"] == {}
        [error] = document["errors"]
        assert list(error) == ERROR
        assert error["code"] == code, error
        assert "\n" not in error["message"]
        assert ended.err == ""
        if words:
            hint = f"  hint: {error['hint']}\n" if error["hint"] else ""
            assert (said.code, said.out, said.err) == (2, "", f"blobsync: {error['message']}\n{hint}")


@pytest.mark.parametrize(
    ("words", "as_json"),
    [
        (("submit", "--json"), True),
        (("submit", "--name", "x", "--json", "--nosuch"), True),
        (("--json", "submit", "--nosuch", "x"), True),
        (("submit", "--nosuch", "python", "x", "--json"), False),
        (("submit", "--nosuch", "--", "--json"), False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_json_of_a_submitted_command_is_its_own(cli: Cli, words: tuple[str, ...], as_json: bool) -> None:
    ended = cli(*words)
    assert ended.code == 2
    assert ended.out.startswith("{") is as_json
    assert bool(ended.err) is not as_json


@pytest.mark.parametrize("word", ["submit", "local"])
@pytest.mark.parametrize(
    ("option", "rest"),
    [
        ("-n", ("8", "ls")),
        ("--num-gpu", ("8", "ls")),
        ("-c", ("eu", "ls")),
        ("-p", ("{num_gpu: 2}", "ls")),
        ("-q", ("ls",)),
    ],
)
def test_global_options_stand_before_a_word_that_ends_with_a_command(
    cli: Cli, word: str, option: str, rest: tuple[str, ...]
) -> None:
    ended = cli(word, option, *rest)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        f"blobsync: {option} must come before {word}: later options belong to {word} or to your command\n"
        f"  hint: blobsync {option} ... {word} ...\n"
    )


@pytest.mark.parametrize("option", ["-n", "-c", "--json", "--nodes"])
def test_options_behind_the_commands_first_word_are_its_own(cli: Cli, option: str) -> None:
    ended = cli("-p", "{config_param: null, platform: local}", "submit", "--dry-run", "ls", option, "8")
    assert ended.code == 0, ended.err
    assert f'"argv": ["ls", "{option}", "8"]' in ended.out


def test_the_same_mistake_in_words(cli: Cli) -> None:
    ended = cli("resolve", "dat/voc20")
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err == (
        "blobsync: dat/voc20 is not covered by any folder entry of aux_data/aml/aml.yaml; entries: data, output\n"
        "  hint: did you mean data/voc20?\n"
    )


def test_a_broken_configuration_is_listed_whole(cli: Cli) -> None:
    cli.write("aux_data/aml/aml.yaml", "config_param: []\ngpu_per_node: x\nnum_gpu: -1\n")
    document = cli("config", "check", "--json").document
    assert (document["status"], document["exit_code"]) == ("error", 2)
    assert [error["message"] for error in document["errors"]] == [
        "aux_data/aml/aml.yaml:1: config_param: must be a mapping of folder entries, not a list",
        "aux_data/aml/aml.yaml:2: gpu_per_node: must be a whole number, not a text",
        "aux_data/aml/aml.yaml:3: num_gpu: must not be negative",
    ]
    assert [file["ok"] for file in document["data"]["files"]] == [False, True]


def test_overrides_are_not_repeated_in_the_answer(cli: Cli) -> None:
    document = cli("ls", "--json", "-p", "{docker: {password: hidden}}").document
    assert document["command"] == ["ls", "--json", "-p", "***"]
    assert cli("--param={password: hidden}", "ls", "--json").document["command"][0] == "--param=***"
    for word in ("-p", "-qp", "-qvp"):
        for words in ((f"{word}{{docker: {{password:\n  hidden}}}}",), (word, "{docker: {password: hidden}}")):
            shown = cli("ls", "--json", *words).document["command"]
            assert shown == ["ls", "--json", *([f"{word}***"] if len(words) == 1 else [word, "***"])]
    for words, shown in (
        (("--env", "A=hidden"), ["--env", "A=***"]),
        (("--env=A=hidden",), ["--env=A=***"]),
        (("--env", "hidden"), ["--env", "***"]),
    ):
        ended = cli("--json", "submit", *words, "--env", "9=hidden", "ls")
        assert "=hidden" not in ended.out + ended.err and ended.code == 2
        assert ended.document["command"] == ["--json", "submit", *shown, "--env", "9=***", "ls"]
    # What only looks like it is shown: a cluster of that name, and the words of a program.
    assert cli("ls", "--json", "-cprod").document["command"] == ["ls", "--json", "-cprod"]
    assert cli("--json", "submit", "find", "-print").document["command"] == ["--json", "submit", "find", "-print"]


def test_overrides_come_from_standard_input_when_asked(cli: Cli) -> None:
    elsewhere = "{config_param: {data_folder: {path: elsewhere}}}"
    for words in (("-p", "-", "resolve", "data"), ("resolve", "data", "-p-")):
        command = [sys.executable, "-m", "blobsync", *words]
        done = subprocess.run(command, cwd=cli.root, input=elsewhere, capture_output=True, text=True, check=False)
        assert "/cont/elsewhere" in done.stdout, done


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("resolve data >&-", 0, ""),
        ("config check 2>&-", 2, "mistake"),
        ("config check 2>/dev/full", 2, "mistake"),
        ("config check 2>&1 >/dev/null | true", 2, ""),
        ("config check | true", 2, "must be a whole number"),
        ("resolve none --json | true", 2, "not covered"),
        ("resolve data --json >/dev/full", 1, "the output: No space left on device"),
        ("rm data/x -y <&-", 1, "cannot be reached"),
    ],
)
def test_where_output_goes_does_not_change_how_a_command_ends(cli: Cli, line: str, code: int, says: str) -> None:
    """Closed, full, or a pipe that nobody reads."""
    cli.write("aux_data/aml/wrong.yaml", "gpu_per_node: x\n")
    command, pipe, reader = line.partition(" | ")
    # The reader is gone before the first word is written.
    shell = f"{{ sleep 0.1; {sys.executable} -m blobsync {command}; }}{pipe}{reader}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], cwd=cli.root, capture_output=True, text=True, check=False)
    assert done.returncode == code and "Traceback" not in done.stderr, done
    assert says in done.stdout + done.stderr and bool(done.stdout + done.stderr) is bool(says), done


@pytest.mark.parametrize(
    ("words", "encoding", "code", "says"),
    [
        (("resolve", "data/\u65e5"), "latin-1", 0, b"data/\\u65e5\n"),
        (("-p", "-", "ls"), "utf-8:strict", 2, b"a character that is not allowed"),
    ],
)
def test_characters_that_an_encoding_does_not_have_are_no_bug(
    cli: Cli, words: tuple[str, ...], encoding: str, code: int, says: bytes
) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, "-m", "blobsync", *words]
    done = subprocess.run(command, cwd=cli.root, env=environ, input=b"\xff", capture_output=True, check=False)
    assert done.returncode == code and says in done.stdout + done.stderr, done


def test_help_and_version_are_not_json(cli: Cli) -> None:
    assert cli("--version").out.startswith("blobsync ")
    assert cli("ls", "--help").code == 0


def test_a_bug_is_reported_as_a_json_document(cli: Cli) -> None:
    # A file where the state directory belongs.
    cli.write(".blobsync", "")
    cli.write("data/x", "1")
    document = cli("u", "data/x", "--json").document
    assert document["status"] == "error"
    assert document["exit_code"] in (1, 2)


def test_a_log_file_gets_all_of_it_and_the_time_and_colours_are_told_when_asked_for(cli: Cli) -> None:
    log = cli.root / "log"
    words = ("doctor", "--color", "always", "--timings", "--log-file", str(log), "-p", "{env: {A: SENTINEL}}")
    ended = subprocess.run(
        [sys.executable, "-m", "blobsync", *words], cwd=cli.root, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1 and "\x1b[31mFAIL\x1b[0m" in ended.stdout, ended
    assert re.search(r"^blobsync: .* in all: starting [\d.]+ s", ended.stderr, re.MULTILINE), ended
    text = log.read_text()
    assert "command: blobsync doctor" in text and " D blobsync" in text
    assert SENTINEL not in text and "SENTINEL}" not in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert cli("ls", "--timings", "--json").document["data"]["timings"][0]["span"] == "starting"
    assert cli("ls", "--color", "sometimes").code == 2
