"""What is read without PyYAML is what PyYAML reads, with the same lines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.base.errors import ConfigError
from blobsync.config.yaml_document import read_plain_yaml
from blobsync.config.yaml_nodes import parse_nodes

SAMPLE = """\
# A cluster.
azure_blob_config_file: aux_data/configs/store.yaml   # its account
num_gpu: 8

use_cli_auth: yes
config_param:
  data_folder: {azure_blob_config_file: 'aux_data/configs/a b.yaml', path: "p/data"}
  model_folder:
      path: http://127.0.0.1:10000/devstoreaccount1
      azure_blob_config_file: a.yaml
  output_folder: {}
code_path:
key: Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
"""
KEYS = ("a", "b_folder", "data/coco_folder", "null", "yes", "a.b", "1a", "x:y", "", "<<", "-", "'q'", "? k")
VALUES = (
    *("", "1", "0", "01", "-5", "1.5", "12:30:00", "2026-11-20", "1e3", "99999999999999999999", "1_000", "0x1f", "~"),
    *(
        "null",
        "yes",
        "Off",
        "TRUE",
        "nO",
        "=",
        "<<",
        "a:b",
        "a: b",
        "a:",
        "a #b",
        "a#b",
        "#b",
        "a  # b",
        "{}",
        "{a: 1}",
    ),
    *("{a: 1, b: 'x, y'}", "{a: 1, a: 2}", "{a: {b: 1}}", "{a: 1,}", "{a:1}", "{a}", "{ a: x:y }", "[a]", "'it''s'"),
    *(
        '"a\\n"',
        '"a b"',
        "'a: #b'",
        "'open",
        "&x a",
        "*x",
        "!!str 1",
        "!t a",
        "|",
        "> a",
        "- a",
        "@a",
        "`a",
        "%a",
        "a b",
    ),
    *(
        "http://h:1/x",
        "${NAME}",
        "a?b",
        "{a: b?c}",
        "a\tb",
        "ä",
        "a]",
        "a}",
        "a, b",
        "~/data",
        "./x",
        "...",
        "---",
        "a\\b",
    ),
)


@st.composite
def _documents(draw: st.DrawFn) -> str:
    lines = []
    for _ in range(draw(st.integers(0, 7))):
        indent = " " * draw(st.sampled_from((0, 0, 0, 1, 2, 2, 4)))
        key, value = draw(st.sampled_from(KEYS[:4] + KEYS)), draw(st.sampled_from(("", "x", *VALUES)))
        separator = draw(st.sampled_from((": ", ": ", ": ", ":", ":  ", " : ")))
        line = f"{indent}{key}{separator}{value}"
        lines.append(draw(st.sampled_from((line, line, line, line, "", "# c", "   # c", "---", f"{indent}- {value}"))))
    return draw(st.sampled_from(("\n", "\n", "\n", "\r\n"))).join(lines) + draw(st.sampled_from(("", "\n", " ")))


def _agrees(text: str) -> None:
    found = read_plain_yaml(text)
    if found is None:
        return
    try:
        meant = parse_nodes(text, "f.yaml")
    except ConfigError as error:
        raise AssertionError(f"{text!r} is refused: {error}") from error
    assert found == meant and repr(found[0]) == repr(meant[0]), text


@settings(max_examples=3_000, deadline=None)
@given(_documents())
def test_a_plain_file_means_the_same_to_pyyaml(text: str) -> None:
    _agrees(text)


@settings(max_examples=1_000, deadline=None)
@given(st.data())
def test_a_changed_file_means_the_same_to_pyyaml(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(SAMPLE)))
    removed = data.draw(st.integers(0, 3))
    put = data.draw(st.text(st.sampled_from(" \n:#{}[],'\"-&*!|>%@`~\\\t=?aä0"), max_size=3))
    _agrees(SAMPLE[:at] + put + SAMPLE[at + removed :])


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", ["k: {}\n", "k:\n  l: {}\nm: 1\n", "k: {{l: {}}}\n"])
def test_each_value_means_the_same_to_pyyaml(form: str, value: str) -> None:
    _agrees(form.format(value))


def test_what_projects_have_is_plain() -> None:
    values, lines = read_plain_yaml(SAMPLE) or ({}, {})
    assert values["config_param"]["data_folder"] == {
        "azure_blob_config_file": "aux_data/configs/a b.yaml",
        "path": "p/data",
    }
    assert (values["num_gpu"], values["use_cli_auth"], values["code_path"]) == (8, True, None)
    assert lines[("config_param", "model_folder", "path")] == 9
    _agrees(SAMPLE)


@pytest.mark.parametrize(
    "text",
    ["- a\n", "a: 1\n b: 2\n", "a: 1\na: 2\n", "a:\n  b: 1\n c: 2\n", " a: 1\n", "a: |\n  b: c\n", "a: *b\n", "a: é\n"],
)
def test_what_is_not_plain_is_left_to_pyyaml(text: str) -> None:
    assert read_plain_yaml(text) is None
