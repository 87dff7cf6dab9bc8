"""The reference of the Python API: every public name with all that it has, as the interpreter sees it."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import blobsync
from tools.docs_site.python_api import PAGES, Writer, anchor


@cache
def texts() -> dict[str, str]:
    return dict(Writer().pages())


@cache
def _parts() -> list[str]:
    return [part for text in texts().values() for part in text.split("\n## ")[1:]]


def _section(name: str) -> str:
    """What the pages say of one name, up to the next one."""
    (found,) = [part for part in _parts() if part.startswith(f"{name}\n")]
    return found


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


def _classes() -> list[tuple[str, type, str]]:
    """Each public class with its name, and what the pages say of it."""
    found = [(name, getattr(blobsync, name)) for name in dir(blobsync)]
    return [(name, value, _section(name)) for name, value in found if inspect.isclass(value)]


def test_every_public_name_is_in_the_list_and_on_one_page() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\((python-\w+)\.md#(\w+)\)", texts()["python-api"], re.MULTILINE)
    assert [name for name, _, _ in listed] == sorted(set(dir(blobsync)) - {"__version__"})
    for name, page, target in listed:
        assert f"\n## {name}\n" in texts()[page] and anchor(name) == target
        assert _section(name)
    assert set(texts()) == {"python-api", *PAGES}


def test_an_entry_has_every_call_with_its_parameters() -> None:
    for name, value, section in _classes():
        calls = _calls(value)
        told = re.findall(rf"^### {name}\.(\w+)\n\n```python\n(.*?)\n```", section, re.MULTILINE | re.DOTALL)
        assert {call for call, _ in told} == set(calls), name
        for call, signature in told:
            member = getattr(calls[call], "__func__", calls[call])
            if isinstance(member, property) or not callable(member):
                assert signature.startswith(f"property {call}")
                continue
            parameters = [each for each in inspect.signature(member).parameters if each not in ("self", "cls")]
            inner = signature.partition("(")[2].rpartition(")")[0]
            assert [each for each in parameters if not re.search(rf"(?<!\w){each}(?:[:=,\s]|$)", inner)] == [], (
                signature
            )


def _types(value: type[Any]) -> dict[str, str]:
    """Of each field, as it is written."""
    return {
        ast.unparse(item.target): str(item.annotation.value)
        if isinstance(item.annotation, ast.Constant)
        else ast.unparse(item.annotation)
        for owner in reversed(value.__mro__)
        if dataclasses.is_dataclass(owner)
        for item in ast.walk(ast.parse(inspect.getsource(owner)))
        if isinstance(item, ast.AnnAssign)
    }


def test_an_entry_has_every_field_or_member() -> None:
    for name, value, section in _classes():
        if issubclass(value, blobsync.FailureCode):
            assert "(../failure-codes.md)" in section
        elif issubclass(value, enum.Enum):
            assert [each.name for each in value if f"| `{each.name}` | `" not in section] == [], name
        elif dataclasses.is_dataclass(value):
            types = _types(value)
            for each in (each for each in dataclasses.fields(value) if not each.name.startswith("_")):
                row = re.search(rf"^\| `{each.name}` \| `(.+?)` \| (.*?) \|(?: (.*) \|)?$", section, re.MULTILINE)
                assert row is not None, (name, each.name)
                written = types[each.name]
                kind = re.sub(r"^Annotated\[(.*?), Option\(.*", r"\1", written)
                assert row[1].replace("\\|", "|").replace(" ", "") == kind.replace(" ", ""), (name, each.name)
                assert bool(row[3]) == (kind != written), (name, each.name)
                has_default = each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING
                assert bool(row[2]) == has_default, (name, each.name)


def test_errors_say_their_code_and_what_they_are_a_kind_of() -> None:
    section = _section("ChecksumError")
    assert "A kind of [`StorageError`](#storageerror)." in section
    assert "Code [`checksum_mismatch`](../failure-codes.md), exit code 1: " in section
    assert "Attributes of its own: `message`, `hint`, `path`, `code`." in _section("BlobsyncError")


def test_docstrings_are_markdown_with_links_to_what_they_name() -> None:
    upload = _section("Project").split("### Project.upload\n")[1].split("### ")[0]
    assert "-> TransferResult" in upload
    assert "The keywords are the fields of [`TransferOptions`](python-transfers.md#transferoptions)" in upload
    assert not [page for page, text in texts().items() if re.search(r":(?:meth|class|func):|(?<!`)``(?!`)", text)]
