"""Words on the command line: where options may stand, what is printed where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import CLUSTER

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_resolve_says_where_and_why(cli: Cli) -> None:
    ended = cli("resolve", "data/voc20")
    assert ended.out == (
        "data/voc20\n"
        "  blob:  http://127.0.0.1:9/acct/cont/p/data/voc20\n"
        f"  local: {cli.root}/data/voc20\n"
        "  why:   data_folder in aux_data/aml/aml.yaml maps data to p/data in container cont of account acct\n"
    )
    assert (ended.code, ended.err) == (0, "")


def test_resolve_tells_of_nested_entries(cli: Cli) -> None:
    entry = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: c}"
    cli.write("aux_data/aml/aml.yaml", CLUSTER + f"  data/coco_folder: {entry}\n")
    assert cli("resolve", "data").out.endswith(
        "  but:   data/coco has an entry of its own, http://127.0.0.1:9/acct/cont/c\n"
    )


def test_ls_without_path(cli: Cli) -> None:
    assert cli("ls").out == (
        "data/    http://127.0.0.1:9/acct/cont/p/data\noutput/  http://127.0.0.1:9/acct/cont/p/output\n"
    )


@pytest.mark.parametrize("words", [("-c", "eu", "ls"), ("ls", "-c", "eu"), ("-c", "nix", "ls", "-c", "eu")])
def test_global_options_stand_before_or_after_the_word(cli: Cli, words: tuple[str, ...]) -> None:
    cli.write("aux_data/aml/eu.yaml", CLUSTER.replace("p/data", "eu/data"))
    assert "cont/eu/data" in cli(*words).out


def test_overrides_reach_the_cluster_file(cli: Cli) -> None:
    ended = cli("resolve", "data", "-p", "{config_param: {data_folder: {path: elsewhere}}}")
    assert "cont/elsewhere" in ended.out


def test_warnings_of_the_configuration_come_once_on_standard_error(cli: Cli) -> None:
    cli.write("aux_data/aml/aml.yaml", CLUSTER + "mutli_process: true\n")
    ended = cli("ls")
    assert ended.err == (
        "blobsync: aux_data/aml/aml.yaml:4: mutli_process: unknown key, ignored; did you mean 'multi_process'?\n"
    )
    assert cli("ls", "-q").err == ""


def test_below_the_project_paths_are_relative_to_the_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.root / "data/sub").mkdir(parents=True)
    monkeypatch.chdir(cli.root / "data/sub")
    assert cli("resolve", "x").out.startswith("data/sub/x\n")


def test_config_check_tells_warnings_and_refusals_in_the_order_of_the_lines(cli: Cli) -> None:
    file = cli.root / "aux_data/aml/aml.yaml"
    file.write_text(f"platform: slurm\nsetupp: 1\n{file.read_text().rstrip()}\nnmu_gpu: 2\n")
    told = [line for line in cli("config", "check").err.splitlines() if "aml.yaml:" in line]
    lines = [int(line.split(":")[2]) for line in told]
    assert "submit refuses it" in told[1] and lines == sorted(lines) and len(lines) == 3


def test_config_check_and_new(cli: Cli) -> None:
    checked = cli("config", "check")
    assert (checked.code, checked.out) == (
        0,
        (
            "aux_data/aml/aml.yaml: valid for transfers only, submit would reject it (data, output)\n"
            "aux_data/configs/acct.yaml: good\n"
        ),
    )
    assert checked.err == (
        "blobsync: aux_data/aml/aml.yaml: platform: is missing, so no job can run: submit refuses it, "
        "transfers do not; write platform: local to run jobs on this machine, or one of slurm,"
        " kubernetes, aml, itp, singularity\n"
    )
    assert cli("config", "check", "-p", "{platform: local}").out == (
        "aux_data/aml/aml.yaml: good (local; data, output)\naux_data/configs/acct.yaml: good\n"
    )
    assert cli("config", "check", "-c", "nope").code == 2
    bad = cli("config", "check", "-p", "{ignore: ['[']}")
    assert bad.code == 2 and "-p: ignore.0: bad pattern '['" in bad.err
    ended = cli("config", "new", "--emulator")
    assert ended.out == (
        "wrote aux_data/configs/storage.yaml\n"
        "wrote .gitignore\n"
        "kept aux_data/aml/aml.yaml as it is\n"
        "next: blobsync emulator start\n"
    )
    assert cli("-c", "eu", "config", "new", "--emulator").out == (
        "wrote aux_data/aml/eu.yaml\n"
        "wrote aux_data/configs/eu.yaml\n"
        "kept .gitignore as it is\n"
        "next: blobsync emulator start\n"
    )


def test_an_unknown_word_suggests_the_nearest(cli: Cli) -> None:
    ended = cli("donwload", "data")
    assert ended.err == (
        "blobsync: no such command 'donwload'\n"
        "  hint: did you mean 'blobsync download' (Download files or folders)? 'blobsync --help' lists all commands\n"
    )


@pytest.mark.parametrize("word", ["u", "upload", "d", "download"])
def test_a_path_is_required(cli: Cli, word: str) -> None:
    ended = cli(word)
    assert ended.code == 2
    assert ended.err.startswith("blobsync: no path given\n")
    assert "--all" in ended.err and "all_entries" not in ended.err


@pytest.mark.parametrize(
    ("word", "said", "hint"),
    [
        ("keep", "keep needs PATH, or one of start, ls, stop", "for example: blobsync keep output/run7; "),
        ("tunnel", "tunnel needs ID, or one of job, ", "for example: blobsync tunnel 3f2a --port 8888; "),
        ("emulator", "emulator needs one of start, ", "'blobsync emulator --help'"),
        ("checkpoint", "checkpoint needs the word done after it", "'blobsync checkpoint --help'"),
    ],
)
def test_a_group_alone_says_what_is_missing(cli: Cli, word: str, said: str, hint: str) -> None:
    ended = cli(word)
    assert ended.code == 2 and ended.err.startswith(f"blobsync: {said}")
    assert f"\n  hint: {hint}" in ended.err


@pytest.mark.parametrize(
    ("option", "value", "hint"),
    [
        ("--keep", "newer", "no clock or size decides: 'blobsync diff PATH'"),
        ("--engine", "azcpy", "did you mean 'azcopy'"),
    ],
)
def test_a_wrong_choice_has_a_hint(cli: Cli, option: str, value: str, hint: str) -> None:
    ended = cli("u", "data", option, value)
    assert ended.code == 2 and f"{option} {value}: not one of " in ended.err and hint in ended.err


def _with_checkpoints(cli: Cli, more: str = "") -> Path:
    entry = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: p/output, mode: upload, checkpoints: 'step-*'}"
    cli.write("aux_data/aml/eu.yaml", f"{more}config_param:\n  output_folder: {entry}\n")
    for name in ("step-1", "other", "job_1/step-1"):
        cli.write(f"output/{name}/x", "x")
    return cli.root / "output"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("output/step-1",), "output_folder in aux_data/aml/aml.yaml has no checkpoints"),
        (("output/other", "-c", "eu"), "output_folder.checkpoints in aux_data/aml/eu.yaml names output/step-*"),
        (("output/step-1/x", "-c", "eu"), "output/step-1/x is no checkpoint"),
        (("output", "-c", "eu"), "output is no checkpoint"),
        (("output/none", "-c", "eu"), "there is no such file or folder"),
    ],
)
def test_what_no_pattern_names_is_not_said_to_be_complete(cli: Cli, words: tuple[str, ...], said: str) -> None:
    output = _with_checkpoints(cli)
    ended = cli("checkpoint", "done", *words)
    assert ended.code == 2 and said in ended.err, ended
    assert not list(output.rglob(".*"))


def test_what_a_pattern_names_is_said_to_be_complete(cli: Cli) -> None:
    output = _with_checkpoints(cli)
    ended = cli("checkpoint", "done", "output/step-1", "-c", "eu")
    assert (ended.code, ended.out) == (0, "output/step-1: said to be complete\n")
    assert [path.name for path in output.glob(".*")] == [".step-1.0.blobsync-complete"]
    _with_checkpoints(cli, "output: per_job\n")
    assert cli("checkpoint", "done", "output/step-1", "-c", "eu").code == 2
    assert cli("checkpoint", "done", "output/job_1/step-1", "-c", "eu").code == 0


def test_in_a_job_and_outside_of_projects_any_set_is_said_to_be_complete(
    cli: Cli, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_checkpoints(cli)
    elsewhere = tmp_path_factory.mktemp("node")
    with monkeypatch.context() as job:
        job.setenv("BLOBSYNC_COMPLETE", str(elsewhere))
        assert cli("checkpoint", "done", "output/other").code == 0
    assert len(list(elsewhere.glob("*.json"))) == 1
    monkeypatch.chdir(elsewhere)
    (elsewhere / "other").mkdir()
    assert cli("checkpoint", "done", "other").code == 0
    assert (elsewhere / ".other.0.blobsync-complete").exists()


def test_an_absolute_path_may_go_through_a_symlink(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("links") / "project"
    link.symlink_to(cli.root)
    assert cli("resolve", f"{link}/data/x").out.startswith("data/x\n")
    (cli.root / "data").symlink_to(tmp_path_factory.mktemp("disk"))
    assert cli("resolve", f"{link}/data/x/", f"{cli.root}/data/y").out.count("  blob: ") == 2
    assert cli("resolve", f"{link.parent}/other/data/x").code == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_is_not_reported_as_a_bug(cli: Cli) -> None:
    cli.write("aux_data/configs/acct.yaml", "account_name: acct\ncontainer_name: cont\n")
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "blobsync", "ls"],
            cwd=cli.root,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, "blobsync: the output: No space left on device\n")


def test_a_key_that_others_can_read_is_reported_once_a_day(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (cli.root / "aux_data/configs/acct.yaml").chmod(0o644)
    assert ["chmod 600" in cli("resolve", "data/x").err for _ in range(3)] == [True, False, False]
    assert "chmod 600" in cli("config", "check").err
    assert "chmod 600" in cli("config", "check").err


def test_a_clone_without_the_account_file_says_what_to_do(cli: Cli) -> None:
    (cli.root / "aux_data/configs/acct.yaml").unlink()
    assert cli("d", "data/x").err == (
        "blobsync: aux_data/aml/aml.yaml:2: config_param.data_folder.azure_blob_config_file: "
        "names aux_data/configs/acct.yaml, which does not exist\n"
        "  hint: git ignores such files because they may contain a key: copy it from a working checkout: "
        "scp -r HOST:PROJECT/aux_data/configs aux_data/\n"
    )


# -- status -----------------------------------------------------------------------------------------------------------


def test_status_needs_no_network_and_says_that_the_account_does_not_answer(cli: Cli) -> None:
    cli.write("data/a.txt", "a")
    ended = cli("status")
    assert ended.code == 0
    first, *rest = ended.out.splitlines()
    assert first == "data: 1 file (1 B) here, container not listed yet"
    assert rest[0] == "  never verified: 1 file (1 B)"
    assert rest[1].startswith("  the account does not answer: ")
    assert rest[-1] == "nothing is known to differ; 'blobsync doctor' shows how to reach what does not answer"
    entry = cli("status", "data", "--json").document["data"]["entries"][0]
    assert (entry["path"], entry["there"], entry["as_of"], entry["answers"]) == ("data", None, None, False)
    assert entry["here"] == {"files": 1, "bytes": 1}


def test_a_project_without_folder_entries_has_no_status(cli: Cli) -> None:
    cli.write("aux_data/aml/aml.yaml", "platform: local\n")
    for words in (("status",), ("u", "--all"), ("verify", "--all")):
        ended = cli(*words)
        assert ended.code == 2
        assert "has no folder entries" in ended.err


@pytest.mark.parametrize("word", ["u", "d", "verify"])
def test_all_and_a_path_exclude_each_other(cli: Cli, word: str) -> None:
    ended = cli(word, "data", "--all")
    assert ended.code == 2
    assert ended.err.startswith("blobsync: --all means every folder entry: give no PATH with it\n")


def test_a_pattern_of_an_entry_that_is_none_is_named(cli: Cli) -> None:
    cli.write(
        "aux_data/aml/aml.yaml",
        "config_param:\n  data_folder:\n    {azure_blob_config_file: aux_data/configs/acct.yaml, path: p, ignore: 7}\n",
    )
    ended = cli("status")
    assert ended.code == 2
    assert "ignore" in ended.err and "a list of texts" in ended.err


SHARE = CLUSTER.replace("p/data}", "p/data, storage_type: file, file_share: team}")


@pytest.mark.parametrize(
    "words",
    [
        *(("u", "data/a b"), ("d", "data/a b"), ("plan", "u", "data/a b"), ("plan", "d", "data/a b")),
        *(("ls", "data/a b"), ("rm", "data/a b", "-y"), ("verify", "data/a b"), ("stat", "data/a b")),
        *(("url", "data/a b"), ("du", "data/a b"), ("resolve", "data/a b"), ("status", "data/a b")),
    ],
    ids=" ".join,
)
def test_a_file_share_is_refused_with_a_line_that_can_be_pasted(
    cli: Cli, words: tuple[str, ...], tmp_path: Path
) -> None:
    cli.write("aux_data/aml/aml.yaml", SHARE)
    done = cli(*words)
    assert done.code == 2 and "data_folder, an Azure file share (storage_type: file)" in done.err
    line = done.err.partition("after az login: ")[2].partition("; or mount the share")[0]
    # What the shell makes of it, with a blobsync and an azcopy that write down their words.
    recorder = 'env | grep ^AZCOPY_; printf "%s\\n" "$@"'
    for name, script in (("blobsync", f"echo {tmp_path}/azcopy"), ("azcopy", recorder)):
        cli.write(name, f"#!/bin/sh\n{script}\n").chmod(0o755)
    ran = subprocess.run(["sh", "-c", line], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    here, there = f"{tmp_path}/data/a b", "https://acct.file.core.windows.net/team/p/data/a%20b"
    uploads = "u" in words or words[0] in ("verify", "status")
    ends = [here, there, "--from-to", "LocalFile"] if uploads else [there, here, "--from-to", "FileLocal"]
    told = ["AZCOPY_AUTO_LOGIN_TYPE=AZCLI", "copy", *ends, "--recursive", "--as-subdir=false"]
    assert ran.stdout.splitlines() == told, ran


def test_ls_shows_where_a_file_share_is(cli: Cli) -> None:
    cli.write("aux_data/aml/aml.yaml", SHARE)
    assert "data/    https://acct.file.core.windows.net/team/p/data" in cli("ls").out


# -- cat and diff -----------------------------------------------------------------------------------------------------


def test_cat_has_bytes_and_no_document(cli: Cli) -> None:
    ended = cli("cat", "data/x", "--json")
    (error,) = ended.document["errors"]
    assert (ended.code, error["message"]) == (2, "cat prints the bytes of a blob, so it has no --json")
    assert error["hint"] == "'blobsync stat PATH --json' tells the size, the MD5 and the ETag"


def test_diff_of_two_paths_is_not_taken_for_a_comparison_of_both(cli: Cli) -> None:
    ended = cli("diff", "data/a b", "data/c")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == (
        "blobsync: 'data/a b': git knows no such revision here\n"
        "  hint: a revision is a commit, a tag or a branch: git log --oneline shows some\n"
    )
    ended = cli("diff", "data/a", "data/b", "data/c", "data/d")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("blobsync: diff takes a PATH, with up to two revisions before it\n")


def test_at_is_for_the_lock_of_a_path(cli: Cli) -> None:
    for words in ((), ("data", "--du"), ("data", "--source", "s3://b/x")):
        ended = cli("ls", *words, "--at", "HEAD")
        assert (ended.code, "--at lists the lock of a PATH" in ended.err) == (2, True)


def test_diff_of_a_folder_names_the_command_for_folders(cli: Cli) -> None:
    cli.write("data/sub/a", "a")
    ended = cli("diff", "data/sub/")
    assert ended.code == 2
    assert "hint: 'blobsync verify data/sub' names the files that differ" in ended.err


@pytest.mark.parametrize("word", ["cat", "diff"])
def test_other_words_than_paths_of_the_project_are_refused(cli: Cli, word: str) -> None:
    assert cli(word).code == 2
    assert "is not covered by any folder entry" in cli(word, "elsewhere/x").err
    assert cli(word, "../x").code == 2


def test_a_cluster_without_docker_options_has_none_to_trust(cli: Cli) -> None:
    said = "nothing in docker.args of aux_data/aml/aml.yaml reaches beyond the project\n"
    assert cli("config", "trust-docker").out == said


def test_records_that_others_could_change_are_an_error_and_never_an_empty_answer(cli: Cli) -> None:
    assert cli("history").code == 0
    (state,) = (cli.root / ".blobsync").glob("state-*")
    state.chmod(0o777)
    for words in (("history",), ("q",), ("status",), ("plan", "u", "data"), ("keep", "ls")):
        ended = cli(*words, "--json")
        assert (ended.code, [each["code"] for each in ended.document["errors"]]) == (2, ["state_untrusted"]), words
    assert cli("config", "trust-state").code == 2
    accepted = cli("config", "trust-state", "-y", "--json").document["data"]
    assert (accepted["closed"], accepted["accepted"]) == ([str(cli.root / ".blobsync")], False)
    assert cli("history").code == 0
