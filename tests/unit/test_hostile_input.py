"""Input that is made to take for ever, or all memory: an answer in time, and one of our own errors."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blobsync.backends.slurm.replies import expand_nodes
from blobsync.base.errors import ConfigError, PlanFileError, StorageError
from blobsync.base.plain_json import parse_json
from blobsync.config.yaml_document import parse_document, read_document
from blobsync.jobs.failure_causes import log_lines, read_causes
from blobsync.jobs.record import Home
from blobsync.jobspec.spec import JobSpec
from blobsync.local.globs import zip_excludes
from blobsync.local.ignore_patterns import parse_lines
from blobsync.plan.saved_plan import load
from blobsync.plan.transfer_options import selector
from blobsync.store.rest.xml import BadAnswerError, Markers
from tests.fakes.jobs import make_spec
from tests.fakes.scripted_http import Step, scripted
from tests.unit.test_blob_http import store


@contextmanager
def soon(seconds: float = 2.0) -> Iterator[None]:
    """Processor time, of which a busy machine gives no more: each of these took from ten seconds to for ever."""
    started = time.process_time()
    yield
    assert time.process_time() - started < seconds


def page(marker: str, *names: str) -> Step:
    blobs = "".join(
        f"<Blob><Name>{name}</Name><Properties><Content-Length>1</Content-Length><Etag>0x1</Etag></Properties></Blob>"
        for name in names
    )
    text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{marker}</NextMarker></EnumerationResults>"
    return Step(200, text.encode())


def test_a_listing_that_repeats_its_marker_ends() -> None:
    pages = [page("m1", "a"), page("m2", "b"), page("m1", "c"), *[page("m2", "d"), page("m1", "e")] * 20]
    with scripted(pages) as script, pytest.raises(StorageError, match="never ends"):
        list(store(script).list_blobs())
    assert len(script.seen) < 6


def test_a_listing_may_have_empty_pages() -> None:
    with scripted([page("m1"), page("m2"), page("", "a")]) as script:
        assert [blob.name for blob in store(script).list_blobs()] == ["a"]


def test_a_listing_of_empty_pages_ends() -> None:
    markers = Markers()
    for number in range(10_000):
        assert markers.after(page(f"m{number}").body) == f"m{number}"
    with pytest.raises(BadAnswerError, match="10,001 empty pages"):
        markers.after(page("m10000").body)


@pytest.mark.parametrize("status", [200, 403, 503])
def test_an_answer_without_end_is_not_kept_in_memory(status: int) -> None:
    with scripted([Step(status, b"x" * (65 << 20))]) as script, pytest.raises(StorageError, match="64 MiB"):
        list(store(script).list_blobs())


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*a" * 60 + "b", "a" * 255),
        ("**/a/" * 40 + "b", "a/" * 2000 + "c"),
        ("**/*a*a*a*a*b/" * 8 + "c", "aaaaaaaaaaaaaaaaaaa/" * 200),
        ("?*?*?*?*?*?*?*?*?*b", "a" * 255),
    ],
)
def test_a_pattern_of_many_stars(pattern: str, name: str) -> None:
    rules = parse_lines(pattern, ".gitignore").rules
    chosen = selector((pattern,), ())
    assert chosen is not None
    with soon():
        for _ in range(20):
            assert not rules[0].regex.fullmatch(name)
        assert not chosen(name)


def test_a_zip_option_of_many_stars() -> None:
    (exclude,), _ = zip_excludes(("-x", "'" + "*a" * 60 + "b'"), "aml.yaml")
    with soon():
        assert not exclude.leaves_out("a/a" * 1000, folder=False)
    assert exclude.leaves_out("xa" * 60 + "b", folder=False)


@pytest.mark.parametrize(
    "line",
    [
        "NCCL WARN " * 40_000,
        "NCCL WARN socket " * 20_000,
        "GPU " + "100%/1" * 60_000 + "!",
        "Xid" * 100_000,
        "cannot start " * 30_000,
        "the code archive " * 30_000,
    ],
)
def test_a_log_line_without_end(line: str) -> None:
    with soon():
        assert read_causes("0.txt", log_lines(io.StringIO(line))) == ()


def test_what_stands_at_the_end_of_a_long_line_is_seen() -> None:
    text = "progress\r" * 100_000 + "RuntimeError: CUDA out of memory\nCUDA error: device-side assert triggered\n"
    found = read_causes("0.txt", log_lines(io.StringIO(text)))
    assert {"OOM": 1, "assert": 2}.items() <= {each.cause.code: each.line_number for each in found}.items()


def test_aliases_of_aliases() -> None:
    levels = "\n".join(
        f"k{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10) if level else ', '.join('x' * 10)}]"
        for level in range(12)
    )
    with soon(), pytest.raises(ConfigError, match="with its aliases"):
        parse_document(levels, "aml.yaml")


def test_merged_aliases() -> None:
    levels = "a0: &a0 {x: 1}\n" + "\n".join(
        f"a{level}: &a{level}\n  <<: [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)
    )
    with soon(), pytest.raises(ConfigError, match="with its aliases"):
        parse_document(levels, "aml.yaml")


@pytest.mark.parametrize(
    "text",
    [
        *("a: " + "[" * depth + "]" * depth for depth in (101, 150, 500, 1_000, 100_000)),
        "a: " + "[" * 100_000,
        "a: " + "{b: " * 3000 + "1" + "}" * 3000,
        "a: " + "[\n" * 150 + "]" * 150,
        "a:" + "".join("\n" + " " * level + "a:" for level in range(1, 150)),
    ],
    ids=lambda text: f"{len(text)} of {text[3]!r}",
)
def test_yaml_that_is_nested_too_deep(text: str) -> None:
    with soon(10.0), pytest.raises(ConfigError, match=r"nested too deeply|not valid YAML"):
        parse_document(text, "aml.yaml")


def test_yaml_that_is_nested_as_deep_as_may_be() -> None:
    assert parse_document("a: " + "[" * 90 + "]" * 90, "aml.yaml").values["a"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"a": NaN}', "-Infinity", "{"])
def test_json_that_is_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_json(text)
    (tmp_path / "saved.plan").write_text(text)
    with pytest.raises(PlanFileError):
        load(tmp_path / "saved.plan")


@pytest.mark.parametrize(
    "text", ["n[1-999999999]", "n[1-9],m[0-99999999]", "n[a-b]", "n[" + "9" * 5000 + "]", "n[5-1]"]
)
def test_a_list_of_nodes_without_end_is_not_written_out(text: str) -> None:
    with soon():
        assert expand_nodes(text) == (text[:200],)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": "2"},
        {"nodes": True},
        {"argv": "ls"},
        {"argv": [1]},
        {"env": []},
        {"env": {"A": 1}},
        {"code": "x"},
        {"code": {"container": 1, "blob": "b", "digest": ""}},
        {"folders": [5]},
        {"folders": [{"name": "a", "container": "c", "path": "p", "mode": "link", "include": [1]}]},
        {"logs": ["a"]},
        {"retry_exit_codes": ["1"]},
        {"unknown": 1},
        {"timeout_s": 1.5},
    ],
)
def test_a_specification_of_another_shape_is_none(change: dict[str, object]) -> None:
    values = json.loads(make_spec("true").to_json())
    assert JobSpec.from_json(json.dumps(values)).nodes == 1
    with pytest.raises(ValueError, match=r"specification|has the wrong type"):
        JobSpec.from_json(json.dumps({**values, **change}))


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"platform": 1, "address": {}}', '{"platform": "a", "address": {"b": 1}}', "5"]
)
def test_what_led_to_a_job_is_of_its_shape_or_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a JSON object|fields of a Home|has the wrong type"):
        Home.from_json(text)


def test_a_configuration_of_megabytes_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("".join(f"key{number}: value\n" for number in range(30_000)))
    for size in (file.stat().st_size, 1 << 40):
        os.truncate(file, size)
        with soon(0.5), pytest.raises(ConfigError, match="is larger than 256,000 bytes"):
            read_document(file, "a.yaml")
