"""Records of the code that jobs may run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError, UsageError
from blobsync.config.trusted_code import (
    KnownCode,
    demand_digest,
    forget_code,
    load_known_code,
    record_published,
    trust_code,
    trusted_code_file,
)

ONE, TWO, THREE = "1" * 64, "2" * 64, "3" * 64
EU, US = "https://eu/c/code.zip", "https://us/c/code.zip"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "config")}


def test_the_last_upload_is_that_of_the_place_or_of_the_project(tmp_path: Path, environ: dict[str, str]) -> None:
    assert load_known_code(tmp_path, environ) == KnownCode()
    for place, digest in ((EU, ONE), (US, TWO), (EU, ONE), (EU, THREE), (EU, THREE)):
        record_published(tmp_path, place, digest, environ)
    known = load_known_code(tmp_path, environ)
    assert [(one.place, one.digest) for one in known.published] == [(EU, ONE), (US, TWO), (EU, THREE)]
    assert [last.digest for place in (EU, US, "elsewhere") if (last := known.last(place))] == [THREE, TWO, THREE]
    assert known.find(TWO) and not known.find("4" * 64)


def test_many_uploads_do_not_push_out_the_last_one_of_another_place(tmp_path: Path, environ: dict[str, str]) -> None:
    record_published(tmp_path, US, TWO, environ)
    for number in range(130):
        record_published(tmp_path, EU, f"{number:064x}", environ)
    known = load_known_code(tmp_path, environ)
    last = known.last(US)
    assert last and last.digest == TWO and len(known.published) == 101


def test_trust_is_of_one_project_and_can_be_taken_back(tmp_path: Path, environ: dict[str, str]) -> None:
    trust_code(tmp_path, [ONE, TWO, ONE], environ)
    assert load_known_code(tmp_path, environ).trusted == (ONE, TWO)
    assert load_known_code(tmp_path / "other", environ) == KnownCode()
    with pytest.raises(UsageError, match=f"{THREE} is not trusted"):
        forget_code(tmp_path, [ONE, THREE], environ)
    forget_code(tmp_path, [ONE], environ)
    assert load_known_code(tmp_path, environ).trusted == (TWO,)


def test_two_commands_at_once_lose_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    digests = [f"{number:064x}" for number in range(24)]
    begin = threading.Barrier(len(digests))

    def trust(digest: str) -> None:
        begin.wait()
        trust_code(tmp_path, [digest], environ)

    threads = [threading.Thread(target=trust, args=(digest,)) for digest in digests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(load_known_code(tmp_path, environ).trusted) == digests


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"project": "/elsewhere", "published": [], "trusted": []}'])
def test_a_record_that_is_damaged_or_of_another_project_is_an_error(
    tmp_path: Path, environ: dict[str, str], text: str
) -> None:
    trust_code(tmp_path, [ONE], environ)
    trusted_code_file(tmp_path, environ).write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        load_known_code(tmp_path, environ)


@pytest.mark.parametrize("text", ["", "x" * 64, "a" * 63, "a" * 65, "../" + "a" * 61])
def test_what_is_no_digest_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="not a digest"):
        demand_digest(text, "--code")
    assert demand_digest(f" {'AB' * 32}", "--code") == "ab" * 32
