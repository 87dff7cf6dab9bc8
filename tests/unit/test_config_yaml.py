"""YAML with lines: what is read, what is refused, and where the refusal points."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError, ConfigNotFoundError
from blobsync.config.yaml_document import parse_document, read_document


def test_keys_know_their_lines() -> None:
    document = parse_document("a: 1\nb:\n  c: x\n  d:\n    - one\n    - {e: two}\n", "f.yaml")
    assert document.values == {"a": 1, "b": {"c": "x", "d": ["one", {"e": "two"}]}}
    lines = {".".join(path): origin.line for path, origin in document.origins.items()}
    assert lines == {"a": 1, "b": 2, "b.c": 3, "b.d": 4, "b.d.0": 5, "b.d.1": 6, "b.d.1.e": 6}


def test_a_missing_key_is_reported_at_the_mapping_around_it() -> None:
    document = parse_document("\na:\n  b: 1\n", "f.yaml")
    assert str(document.error(("a", "path"), "is missing")) == "f.yaml:2: a.path: is missing"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12:30:00", "12:30:00"),
        ("3.10", "3.10"),
        ("0123", "0123"),
        ("2026-11-20", "2026-11-20"),
        ("1_000", "1_000"),
        ("12", 12),
        ("-3", -3),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("", None),
        ("?sv=2024&sig=a%2Bb", "?sv=2024&sig=a%2Bb"),
    ],
)
def test_scalars_stay_what_was_typed(text: str, value: object) -> None:
    assert parse_document(f"k: {text}\n", "f").values["k"] == value


def test_keys_are_always_texts() -> None:
    assert parse_document("on: 1\n5: 2\n", "f").values == {"on": 1, "5": 2}


def test_anchors_and_merge_keys_work() -> None:
    document = parse_document("base: &b {x: 1, y: 2}\nmore: {<<: *b, y: 3}\ntwice: [*b, *b]\n", "f")
    assert document.values["more"] == {"x": 1, "y": 3} and document.values["twice"] == [{"x": 1, "y": 2}] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3: a: is set twice, first on line 1"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3: a.b: is set twice, first on line 2"),
        ("a:\n\tb: 1\n", "f.yaml:2: is not valid YAML: a tab where spaces belong"),
        (
            "a: b: c\n",
            "f.yaml:1: is not valid YAML: a second ':' on the line (put the value in quotes), or wrong indentation",
        ),
        ("a: 1\nb\nc: 2\n", "f.yaml:2: is not valid YAML: a ':' is missing after a key"),
        (
            "a: 1\n---\nb: 2\n",
            "f.yaml:2: is not valid YAML: expected a single document in the stream, but found another document",
        ),
        ("a: [1, 2\n", "f.yaml:2: is not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("- a\n- b\n", "f.yaml:1: is not a mapping of keys to values"),
        ("just text\n", "f.yaml:1: is not a mapping of keys to values"),
        ("a: &x\n  b: *x\n", "f.yaml:1: a.b: refers to itself"),
        # Its keys are not merged before, which would take as long as there are keys, times names of the whole.
        ("a: &x\n  b: 1\n  c:\n    <<: [*x, *x]\n", "f.yaml:1: a.c.<<.0: refers to itself"),
        ("a: &x\n  c: {<<: *x}\n  b: 1\n", "f.yaml:1: a.c.<<: refers to itself"),
        ("{a: 1}: 2\n", "f.yaml:1: a key must be a single word"),
        ("a: !secret x\n", "f.yaml:1: is not valid YAML: !secret is not allowed in a configuration"),
        ("a: \x07\n", "f.yaml: is not valid YAML: it contains a character that is not allowed"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document(text, "f.yaml")
    assert str(caught.value) == message


@pytest.mark.parametrize("itself", ["", "a: *L, "], ids=["plain", "each level refers to itself"])
def test_keys_that_merges_multiply_are_refused_before_they_are_merged(itself: str) -> None:
    # Older releases of PyYAML copy the keys of a merged mapping as often as it is named: here 10 ** 6 times.
    text = "&l0 {b: 1}"
    for number in range(1, 7):
        below, own = f"l{number - 1}", itself.replace("L", f"l{number}")
        text = f"&l{number} {{{own}<<: [{text}{f', *{below}' * 9}]}}"
    with pytest.raises(ConfigError, match=r"^f\.yaml:1: expands to more than 100,000 values with its aliases$"):
        parse_document(f"<<: {text}\n", "f.yaml")


def test_a_yaml_error_never_quotes_the_file() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_document("account_key: SENTINEL== x: y\n", "f.yaml")
    assert "SENTINEL" not in str(caught.value)
    assert "SENTINEL" not in repr(caught.value.__cause__)


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("# nothing but words\n")
    assert read_document(tmp_path / "e.yaml", "e.yaml").values == {}


def test_json_with_tabs_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n\t"workspace_name": "w",\n\t"n": 1\n}\n')
    assert read_document(tmp_path / "config.json", "config.json").values == {"workspace_name": "w", "n": 1}


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFoundError, match=r"^gone\.yaml: no such file$"):
        read_document(tmp_path / "gone.yaml", "gone.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(ConfigError, match=r"^latin\.yaml: is not UTF-8 text$"):
        read_document(tmp_path / "latin.yaml", "latin.yaml")
    with pytest.raises(ConfigError, match=r"^folder: cannot be read: Is a directory$"):
        read_document(tmp_path, "folder")
