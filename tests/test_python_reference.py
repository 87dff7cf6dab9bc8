"""The reference of the Python API: every public name with all that it has, as the interpreter sees it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import blobsync
from tools.docs_site.python_api import PAGES, Writer, anchor

TEXTS = dict(Writer().pages())


def _section(name: str) -> str:
    """What the pages say of one name, up to the next one."""
    found = [part for text in TEXTS.values() for part in text.split("\n## ")[1:] if part.startswith(f"{name}\n")]
    assert len(found) == 1, f"{name} has {len(found)} entries"
    return found[0]


def _ours(value: type) -> Iterator[type]:
    """A class and those above it that have no entry of their own."""
    public = {getattr(blobsync, name) for name in dir(blobsync)} - {value}
    for one in value.__mro__:
        if one in public:
            return
        if one.__module__.startswith("blobsync"):
            yield one


def _calls(value: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in _ours(value):
        for name, member in vars(one).items():
            function = (
                getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", member)
            )
            if not name.startswith("_") and inspect.isfunction(function):
                found.setdefault(name, member)
    return found


CLASSES = [name for name in dir(blobsync) if inspect.isclass(getattr(blobsync, name))]


def test_every_public_name_is_in_the_list_and_on_one_page() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\((python-\w+)\.md#(\w+)\)", TEXTS["python-api"], re.MULTILINE)
    assert [name for name, _, _ in listed] == sorted(set(dir(blobsync)) - {"__version__"})
    for name, page, target in listed:
        assert f"\n## {name}\n" in TEXTS[page] and anchor(name) == target
        assert _section(name)
    assert set(TEXTS) == {"python-api", *PAGES}


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_has_every_call_with_its_parameters(name: str) -> None:
    section = _section(name)
    calls = _calls(getattr(blobsync, name))
    told = re.findall(rf"^### {name}\.(\w+)\n\n```python\n(.*?)\n```", section, re.MULTILINE | re.DOTALL)
    assert {call for call, _ in told} == set(calls)
    for call, signature in told:
        member = calls[call]
        if isinstance(member, property) or not callable(getattr(member, "__func__", member)):
            assert signature.startswith(f"property {call}")
            continue
        parameters = [
            each
            for each in inspect.signature(getattr(member, "__func__", member)).parameters
            if each not in ("self", "cls")
        ]
        inner = signature.partition("(")[2].rpartition(")")[0]
        assert [each for each in parameters if not re.search(rf"(?<!\w){each}(?:[:=,\s]|$)", inner)] == [], signature


@pytest.mark.parametrize("name", CLASSES)
def test_an_entry_has_every_field_or_member(name: str) -> None:
    value, section = getattr(blobsync, name), _section(name)
    if issubclass(value, blobsync.FailureCode):
        assert "(../failure-codes.md)" in section
    elif issubclass(value, enum.Enum):
        assert [each.name for each in value if f"| `{each.name}` | `" not in section] == []
    elif dataclasses.is_dataclass(value):
        wanted = [each for each in dataclasses.fields(value) if not each.name.startswith("_")]
        for each in wanted:
            row = re.search(rf"^\| `{each.name}` \| `(.+?)` \| (.*?) \|(?: (.*) \|)?$", section, re.MULTILINE)
            assert row is not None, each.name
            kind = re.sub(r"^Annotated\[(.*?), Option\(.*", r"\1", str(each.type))
            assert row[1].replace("\\|", "|").replace(" ", "") == kind.replace(" ", "")
            assert bool(row[3]) == (kind != each.type), each.name
            has_default = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
            assert bool(row[2]) == has_default, each.name


def test_errors_say_their_code_and_what_they_are_a_kind_of() -> None:
    section = _section("ChecksumError")
    assert "A kind of [`StorageError`](#storageerror)." in section
    assert "Code [`checksum_mismatch`](../failure-codes.md), exit code 1: " in section
    assert "Attributes of its own: `message`, `hint`, `path`." in _section("BlobsyncError")


def test_docstrings_are_markdown_with_links_to_what_they_name() -> None:
    upload = _section("Project").split("### Project.upload\n")[1].split("### ")[0]
    assert "-> TransferResult" in upload
    assert "The keywords are the fields of [`TransferOptions`](python-transfers.md#transferoptions)" in upload
    assert not [page for page, text in TEXTS.items() if re.search(r":(?:meth|class|func):|(?<!`)``(?!`)", text)]
