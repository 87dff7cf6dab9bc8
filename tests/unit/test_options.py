"""What is declared of an option is what the command line has of it."""

from __future__ import annotations

import math
from inspect import Parameter
from typing import get_args

import pytest

from blobsync.base.errors import UsageError
from blobsync.cli.commands import OptionGroup
from blobsync.cli.transfer import Far, TransferWords
from blobsync.jobspec.submit_options import SubmitKeywords
from blobsync.plan.transfer_options import TransferOptions, check_options


def _rows(group: OptionGroup) -> dict[str, Parameter]:
    # Typer takes the first name of an annotation's option as its default.
    return {get_args(each.annotation)[1].default: each for each in group.rows}


def test_a_command_has_the_options_that_are_valid_for_it() -> None:
    up, down, both = (_rows(OptionGroup(TransferWords, name)).keys() for name in ("u", "d", "plan"))
    assert (up - down, down - up) == ({"--relay", "--receipt"}, {"--incomplete", "--locked"})
    assert both == up | down


def test_type_default_form_and_limit_are_those_of_the_field() -> None:
    rows = _rows(OptionGroup(TransferWords, "u")) | _rows(OptionGroup(SubmitKeywords, "submit"))
    for flag, kind, default, settings in (
        ("--links", str, "follow", {"metavar": "follow|skip|error"}),
        ("--keep", str | None, None, {"metavar": "local|remote|both"}),
        ("--cap-mbps", float | None, None, {"metavar": "N"}),
        ("--include", list[str] | None, None, {"metavar": "PATTERN"}),
        ("--all", bool, False, {}),
        ("--single", bool, False, {}),
        ("--cpus-per-task", int | None, None, {"min": 1, "help": "Slurm, Kubernetes: the CPUs of each process."}),
        ("--array", str | None, None, {"help": "Slurm: run it once per number, such as 0-9%2."}),
    ):
        has, declared = get_args(rows[flag].annotation)
        assert (has, rows[flag].default) == (kind, default), flag
        assert settings.items() <= vars(declared).items(), flag


def test_what_is_typed_becomes_one_value_and_the_rest_has_its_default() -> None:
    submit = OptionGroup(SubmitKeywords, "submit")
    not_given = {each.name: each.default for each in submit.rows}
    assert submit.build(not_given) == {}
    assert submit.build({**not_given, "multi_process": True, "num_gpu": 0}) == {"multi_process": False, "num_gpu": 0}
    typed = {"max_delete_files": ["5"], "include": ["*.pt"], "mirror": True, "keep": None}
    made = TransferOptions(include=("*.pt",), mirror=True, max_delete_files=5, max_delete_percent=100.0, wildcards=True)
    assert OptionGroup(TransferWords, "u").build(typed) == made
    with pytest.raises(UsageError, match="--max-delete x: neither"):
        OptionGroup(TransferWords, "u").build({"max_delete_files": ["x"]})
    assert OptionGroup(Far, "ls").build({"source": None, "no_sign_request": True}) == Far(no_sign_request=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (TransferOptions(processes=0), "--processes 0: not a number from 1 to 64"),
        (TransferOptions(processes=65), "--processes 65: not a number from 1 to 64"),
        (TransferOptions(processes=2, engine="azcopy"), "--processes and --engine azcopy cannot be combined"),
        (TransferOptions(nodes=0), "--nodes 0: not a number from 1 to 1024"),
        (TransferOptions(nodes=2, processes=2), "--nodes and --processes cannot be combined"),
        (TransferOptions(nodes=2, engine="azcopy"), "--nodes and --engine azcopy cannot be combined"),
        (TransferOptions(detach=True), "--detach is for transfers on nodes"),
        (TransferOptions(max_delete_files=5), "--max-delete is for --mirror: nothing is deleted without it"),
        (TransferOptions(max_delete_percent=5.0), "--max-delete is for --mirror: nothing is deleted without it"),
        *(
            (TransferOptions(cap_mbps=cap), f"--cap-mbps {cap:g}: not a number of megabits a second above 0")
            for cap in (0.0, -1.0, math.nan, math.inf)
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(options: TransferOptions, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        check_options(options, None, uploads=True)
    assert raised.value.message == said
