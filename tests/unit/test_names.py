"""Names that are valid for files, for blobs, and beside each other."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest

from blobsync.base.errors import UnsafeNameError
from blobsync.local.names import (
    blob_problem,
    is_own_temporary,
    is_temporary,
    local_problem,
    new_temporary_name,
    relative_name,
    safe_name,
    shape_clashes,
)


@pytest.mark.parametrize(
    "name",
    [
        "a", "a/b", "a b", " a", "a ", "é", "e\u0301", "日本/語", "🙂", "a#b?c%20d", "a\\b", "C:\\x",
        "a*b;c", "-rf", "...", "~",
        ".git/x", "x" * 255, "\tx\r\n", "con", "a:b", "\u202ertl",
    ],
)  # fmt: skip
def test_names_that_a_disk_can_hold(name: str) -> None:
    assert local_problem(name, "/data") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty part"),
        ("/etc/passwd", "empty part"),
        ("a//b", "empty part"),
        ("a/", "empty part"),
        ("../x", "part '..'"),
        ("a/../../x", "part '..'"),
        ("a/./b", "part '.'"),
        ("a\x00b", "NUL"),
        ("x" * 256, "255 bytes"),
        ("é" * 128, "255 bytes"),
        ("é/" + "x" * 256, "255 bytes"),
        ("/".join(["x" * 200] * 25), "4,095 bytes"),
        ("\ud800", "Unicode"),
        ("d/.blobsync-0123abcd.part", "unfinished download"),
        (".azDownload-01234567-89ab-cdef-0123-456789abcdef-x", "unfinished download"),
    ],
)
def test_names_that_must_not_be_written_say_why(name: str, said: str) -> None:
    assert said in (local_problem(name, "/data") or "")


@pytest.mark.parametrize("name", ["", "/home/x", "a//b", "../x", "a/../../x", "a\x00b", "\ud800", "x" * 256])
def test_the_gate_refuses_names_that_lead_elsewhere_and_quotes_them_harmlessly(name: str) -> None:
    with pytest.raises(UnsafeNameError) as caught:
        relative_name(name)
    assert caught.value.message.isascii() and "\x00" not in caught.value.message


def test_the_gate_lets_names_through_unchanged_and_holds_them_to_a_form() -> None:
    form = re.compile(r"[a-z/]+")
    assert relative_name("a/b", allowed=form) == "a/b"
    assert relative_name("A/\x1bB") == "A/\x1bB"
    assert safe_name("abc", allowed=form) == "abc"
    for wrong in ("a/b1", "a\n"):
        with pytest.raises(UnsafeNameError, match="has an invalid form"):
            relative_name(wrong, allowed=form)
    with pytest.raises(UnsafeNameError, match="has a '/'"):
        safe_name("a/b", allowed=form)


def test_a_folder_whose_path_is_no_utf8_has_names_below_it() -> None:
    assert local_problem("a", "/data/\udcff") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a\nb", "control character '\\n'"),
        ("a\x7fb", "control character '\\x7f'"),
        ("a\udcffb", "not valid UTF-8"),
        ("x" * 1025, "1024 characters"),
        ("a/" * 254 + "b", "254 parts"),
        ("a/../b", "URLs cannot contain"),
        ("a\\b", "contains a backslash, which the service takes for '/'"),
    ],
)
def test_names_that_the_service_refuses_say_why(name: str, said: str) -> None:
    assert said in (blob_problem(name) or "")


def test_a_long_name_of_the_allowed_length_is_a_blob() -> None:
    assert blob_problem("é" * 1024) is None
    assert blob_problem("a/" * 253 + "b") is None


def test_clashes_are_found_whatever_lies_between() -> None:
    def clashes(names: Iterable[str], *new: str) -> list[str]:
        return [name for name, _, _ in shape_clashes(sorted((name, name in new) for name in (*names, *new)))]

    names = ["x", "x-y", "x/y", "z/a/b", "z/a"]
    assert clashes(names, *names) == ["x", "z/a"]
    assert clashes(names, "x/y", "other") == ["x"]
    assert clashes(names, "z/a") == ["z/a"]
    assert clashes(names, "other") == []
    assert clashes((), "a", "ab", "b/c") == []


@pytest.mark.parametrize(
    "name",
    [
        ".blobsync-0123abcd.part",
        ".azDownload-01234567-89ab-cdef-0123-456789abcdef-a.jpg",
        ".probe-of-blobsync-0123456789abcdef",
    ],
)
def test_unfinished_downloads_are_known_by_their_names(name: str) -> None:
    assert is_temporary(name)
    assert not is_temporary(name[1:])


def test_a_newline_hides_no_unfinished_download_and_makes_none() -> None:
    assert is_temporary(".azDownload-01234567-89ab-cdef-0123-456789abcdef-a\nb")
    assert not is_temporary(".blobsync-0123abcd.part\n")


def test_what_is_made_anew_is_known_as_ours_and_has_a_name_of_its_own() -> None:
    names = {new_temporary_name() for _ in range(100)}
    assert len(names) == 100
    assert all(is_own_temporary(name) and is_temporary(name) for name in names)
    assert not is_own_temporary(".azDownload-01234567-89ab-cdef-0123-456789abcdef-a.jpg")
