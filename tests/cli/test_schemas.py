"""The schemas of ``--json``: one for each command, closed, and the ones that documents are held to."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from blobsync.cli.schema import ANSWERS, document_schema
from tests.documents import check_document, command_of
from tests.e2e.world import blobsync_command
from tools.docs_site.command_tree import commands

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

SCHEMAS = {name: document_schema(name, shapes) for name, shapes in ANSWERS.items()}
# These run in the terminal, or until they are stopped.
_WITHOUT_JSON = ("local", "web", "demo", "cat")
_GROUPS = ("checkpoint", "tunnel", "trash", "keep", "config", "convert", "compute", "azcopy", "emulator")


def test_every_command_has_a_schema_or_says_that_it_has_no_json(cli: Cli) -> None:
    words = {each.names[0] for each in commands()} - set(_GROUPS)
    assert set(SCHEMAS) | set(_WITHOUT_JSON) == words
    for word in _WITHOUT_JSON:
        [error] = cli("--json", word, *{"local": ["ls"], "cat": ["data"]}.get(word, [])).document["errors"]
        assert "no --json" in error["message"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_and_names_every_key_of_ours(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["$id"] == f"urn:blobsync:json:1:{name.replace(' ', '-')}"
    for inner in _inside(SCHEMAS[name]):
        assert (
            "properties" not in inner
            or inner is SCHEMAS[name]["if"]
            or inner is SCHEMAS[name]["then"]
            or (inner["additionalProperties"] is False and set(inner["required"]) <= set(inner["properties"]))
        ), inner


def _inside(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for inner in schema.values():
            yield from _inside(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _inside(inner)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("u data --json", "u"),
        ("-c eu -f we3v32 upload data", "u"),
        ("--json --log-file u d data", "d"),
        ("--color never initi --json", "init"),
        ("compute --json ls", "compute ls"),
        ("tunnel 3f2a --port 8", "tunnel job"),
        ("tunnel --port 8 3f2a", "tunnel job"),
        ("tunnel ls", "tunnel ls"),
        ("keep output/run7 --settle 5s", "keep start"),
        ("keep stop output/run7", "keep stop"),
        ("-rt eu resubmit 3f2a", "resubmit"),
        ("-ca x submit ls", ""),
        ("config", ""),
        ("uplaod data", ""),
        ("", ""),
    ],
)
def test_the_words_of_a_document_lead_to_its_schema(words: str, command: str) -> None:
    assert command_of(words.split()) == command


def _changed(document: dict[str, Any], change: str) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    place = changed["data"]["paths"][0]
    if change == "renamed":
        place["uri"] = place.pop("url")
    elif change == "missing":
        del place["url"]
    elif change == "more":
        place["more"] = 1
    elif change == "type":
        place["url"] = None
    elif change == "empty":
        changed["data"] = {}
    elif change == "code":
        changed["errors"] = [{"code": "new_code", "message": "", "hint": None, "path": None}]
    return changed


@pytest.mark.parametrize("change", ["renamed", "missing", "more", "type", "empty", "code"])
def test_a_document_that_changed_does_not_fit_its_schema(cli: Cli, change: str) -> None:
    document = cli("resolve", "data/voc20", "--json").document
    check_document(_changed(document, ""))
    with pytest.raises(AssertionError, match="does not fit its schema"):
        check_document(_changed(document, change))


def test_the_shapes_of_commands_that_need_no_service(cli: Cli) -> None:
    """Each run is held to its schema by the runner."""
    cli.write("train.py", "print(1)\n")
    for words in (
        ("status",),
        ("ls",),
        ("history",),
        ("q",),
        ("qf",),
        ("config", "check"),
        ("config", "trust-link"),
        ("config", "trust-state"),
        ("config", "trust-docker"),
        ("login", "--list"),
        ("doctor",),
        ("init", "--list"),
        ("init", "--why", "train.py"),
        ("keep", "ls"),
        ("keep", "stop"),
        ("tunnel", "add", "box", "me@localhost"),
        ("tunnel", "ls"),
        ("tunnel", "close", "box"),
        ("tunnel", "rm", "box"),
        ("-p", "{config_param: null, platform: local}", "summary"),
        ("-p", "{config_param: null, platform: local}", "blame"),
        ("-p", "{config_param: null, platform: local}", "submit", "--dry-run", "ls"),
        ("emulator", "status"),
        ("schema",),
        ("schema", "compute", "ls"),
    ):
        ended = cli("--json", *words)
        document = ended.document
        assert document["data"], ended


def test_schema_prints_what_other_tools_can_use(cli: Cli) -> None:
    assert json.loads(cli("schema", "upload").out) == SCHEMAS["u"]
    assert cli("schema").out.split("\n")[:-1] == list(SCHEMAS)
    [error] = cli("schema", "web", "--json").document["errors"]
    assert (error["code"], error["message"]) == ("usage", "'web' prints no JSON document")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nope",), "no such command 'nope'"),
        (("emulator", "nope"), "no such command 'emulator nope'"),
        (("u", "data"), "no such command 'u data'"),
        (("web",), "'web' prints no JSON document"),
        (("keep",), "'keep' prints no JSON document"),
    ],
)
def test_schema_of_another_word_says_what_it_is(cli: Cli, words: tuple[str, ...], said: str) -> None:
    ended = cli("schema", *words)
    assert ended.code == 2 and ended.err.startswith(f"blobsync: {said}\n")


@pytest.mark.parametrize(
    ("typed", "offered"), [("comp", ["compute"]), ("compute c", ["create"]), ("resolv", ["resolve"])]
)
def test_a_shell_is_offered_the_commands_that_have_a_schema(typed: str, offered: list[str]) -> None:
    words = f"blobsync schema {typed}"
    asked = {"_BLOBSYNC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [blobsync_command()], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == offered, done
