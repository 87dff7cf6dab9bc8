"""``--source``: a bucket, a URL or a list of URLs, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import UsageError
from blobsync.base.redaction import redact
from blobsync.config.source_option import GivenSource, cluster_of, read_list
from blobsync.config.sources import ListedFile

ROOT = Path("/project")
HEX = "ab" * 32


def given(text: str, path: str = "data/laion", cwd: Path = ROOT, **words: object) -> tuple[str, str, str]:
    cluster = cluster_of(GivenSource(text, **words), path, ROOT, cwd, {})  # type: ignore[arg-type]
    (entry,) = cluster.folders
    return str(entry.account.container), entry.path, entry.prefix


def test_a_bucket() -> None:
    assert given("s3://laion/a/b/") == ("s3://laion", "a/b", "data/laion")
    assert given("s3://laion") == ("s3://laion", "", "data/laion")
    assert given("s3://b-1/x", endpoint_url="https://m.example/")[0] == "https://m.example/b-1"
    cluster = cluster_of(GivenSource("s3://b-1"), "d", ROOT, ROOT, {"AWS_ENDPOINT_URL": "https://e.example"})
    account = cluster.folders[0].account
    assert account.blob_endpoint == "https://e.example" and account.bucket is not None and account.bucket.by_hand
    assert account.credential == "aws" and account.is_source


def test_a_url() -> None:
    assert given("https://h.example/a/f.bin?sig=" + "k" * 40) == ("https://h.example/a", "f.bin", "data/laion")
    assert given("https://h.example/a/f.bin?token=anything-at-all")[1] == "f.bin"
    assert "kkkk" not in redact("the url with ?sig=" + "k" * 40) and "anything-at-all" not in redact(
        "?token=anything-at-all"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("laion", {}),
        ("ftp://h/x", {}),
        ("http://h.example/x", {}),
        ("https://user:pass@h.example/x", {}),
        ("https://h.example/", {}),
        ("https://h.example/x#y", {}),
        ("s3://", {}),
        ("s3://a_/x", {}),
        ("https://h.example/x", {"endpoint_url": "https://m.example"}),
        ("https://h.example/x", {"anonymous": True}),
        ("s3://laion", {"endpoint_url": "m.example"}),
        ("s3://laion", {"endpoint_url": "https://m.example/path"}),
        ("none.tsv", {}),
    ],
)
def test_anything_else_is_refused(text: str, words: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        given(text, cwd=tmp_path, **words)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("gs://b/x", "--source s3://b/x --endpoint-url https://storage.googleapis.com"),
        ("az://b/x", "-f CLUSTER copies from it"),
        ("hdfs://b/x", None),
    ],
)
def test_another_services_address_has_a_hint(text: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as refused:
        given(text)
    assert "not s3://BUCKET/PREFIX" in refused.value.message
    assert refused.value.hint is None if hint is None else hint in str(refused.value.hint)


def test_a_word_that_is_no_source_is_taken_for_a_folder_or_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "aux_data/aml").mkdir(parents=True)
    (tmp_path / "aux_data/aml/we3v32.yaml").touch()
    (tmp_path / "my data").mkdir()
    for text, hint in (
        ("my data", "a folder of this machine is uploaded: blobsync u 'my data'"),
        ("we3v23", "-f we3v32 copies from a cluster file's container; --source s3://... from a bucket"),
        ("nothere", "-f CLUSTER copies from a cluster file's container; --source s3://... from a bucket"),
    ):
        with pytest.raises(UsageError) as refused:
            cluster_of(GivenSource(text), "data", tmp_path, tmp_path, {})
        assert refused.value.hint == hint


def test_a_list(tmp_path: Path) -> None:
    file = tmp_path / "l.tsv"
    file.write_text(
        "\ufeff# a comment\r\n\r\n"
        "https://h.example/a%20b.bin\r\n"
        f"https://h.example/x\tsub/y.bin\t7\tsha256:{HEX}\n"
        "https://h.example/z\tz\t\tmd5:" + "cd" * 16 + "\n"
    )
    assert read_list(file, "l.tsv") == {
        "a b.bin": ListedFile("https://h.example/a%20b.bin"),
        "sub/y.bin": ListedFile("https://h.example/x", 7, ("sha256", bytes.fromhex(HEX))),
        "z": ListedFile("https://h.example/z", None, ("md5", b"\xcd" * 16)),
    }


@pytest.mark.parametrize(
    "line",
    [
        "h.example/a",
        "http://h.example/a",
        "https://h.example/a\t\t-1",
        "https://h.example/a\t\t99999999999999999999",
        "https://h.example/a\t\t9223372036854775808",
        "https://h.example/a\t\t\tsha256:12",
        "https://h.example/a\t\t\tsha512:12",
        "https://h.example/a\t\t\tmd5:zz",
        "https://h.example/",
        "https://h.example/a\nhttps://h.example/b/a",
        "",
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "l.tsv").write_text(line)
    with pytest.raises(UsageError, match=r"l\.tsv"):
        read_list(tmp_path / "l.tsv", "l.tsv")
