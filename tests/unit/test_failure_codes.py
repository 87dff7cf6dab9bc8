"""One table of failure codes: the classes of errors, the files that failed, the docs and ``--json`` use no other."""

from __future__ import annotations

import ast
import inspect
import json

import pytest

from blobsync.base import errors
from blobsync.base.errors import BlobsyncError, FailureCode, Retry
from blobsync.base.exit_codes import ExitCode
from tests.source import modules

TABLE = "blobsync.base.errors"


def test_a_code_is_its_word_wherever_it_is_written() -> None:
    code = FailureCode.SAS_EXPIRED
    assert [str(code), f"{code}", json.loads(json.dumps({"code": code}))["code"]] == ["sas_expired"] * 3
    assert FailureCode("sas_expired") is code


@pytest.mark.parametrize("code", FailureCode)
def test_each_code_has_a_sentence_and_an_exit_code_that_is_a_failure(code: FailureCode) -> None:
    assert len(code.sentence.split()) >= 3
    assert code.sentence[0].islower() or code.sentence.startswith("SAS")
    assert not code.sentence.endswith(".")
    assert code.exit_code is not ExitCode.DONE


def test_each_error_exits_with_what_its_code_says() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, BlobsyncError)]
    assert len(classes) > 40
    for each in classes:
        assert isinstance(each.code, FailureCode)
        # Neither an attribute nor a property of its own takes the table's place.
        assert each is BlobsyncError or "exit_code" not in vars(each)
    assert BlobsyncError("no").exit_code is ExitCode.FAILED
    assert errors.JobNotFoundError("no").exit_code is ExitCode.NOTHING_MATCHED


def test_each_code_is_used_and_written_out_in_one_place() -> None:
    used, written = set(), []
    # A word without "_" may be any word.
    words = {code.value for code in FailureCode if "_" in code.value}
    # To parse and walk the whole package takes seconds.
    for module in (each for each in modules() if any(word in each.text for word in ("FailureCode", *words))):
        for node in module.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "FailureCode":
                used.add(node.attr)
            elif module.name != TABLE and isinstance(node, ast.Constant) and node.value in words:
                written.append(f"{module.file}:{node.lineno}: {node.value!r}")
    assert written == []
    assert used == {code.name for code in FailureCode}


@pytest.mark.parametrize(
    ("retry", "after_azcopy", "after_direct", "after_relay"),
    [
        (Retry.NONE, None, None, None),
        (Retry.DIRECT, "direct", "direct", "relay"),
        (Retry.DIRECT_AFTER_AZCOPY, "direct", None, None),
        (Retry.NEW_SAS, "azcopy", None, None),
        (Retry.RELAY, "relay", "relay", "relay"),
        (Retry.AT_THE_END, "direct", "direct", "relay"),
    ],
)
def test_the_rule_names_the_engine_that_can_mend_it(
    retry: Retry, after_azcopy: str | None, after_direct: str | None, after_relay: str | None
) -> None:
    after = tuple(map(retry.engine_after, ("azcopy", "direct", "relay")))
    assert after == (after_azcopy, after_direct, after_relay)
