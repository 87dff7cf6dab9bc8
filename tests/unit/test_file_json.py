"""Validation of what other machines report of a file."""

from __future__ import annotations

import json
import re

import pytest

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.spread.file_json import (
    FormatError,
    message_of,
    name_of,
    object_of,
    shown_name,
    size_of,
    state_json,
    state_of,
    text_of,
)

_LONGEST = 65_536


def test_a_line_of_64_ki_characters_is_read_and_a_longer_one_refused() -> None:
    def line(length: int) -> str:
        return json.dumps({"a": "x" * (length - len('{"a": ""}'))})

    assert len(object_of(line(_LONGEST))["a"]) == _LONGEST - len('{"a": ""}')
    with pytest.raises(FormatError, match="more than 65,536 characters"):
        object_of(line(_LONGEST + 1))


def test_a_text_has_no_nul_and_is_not_too_long() -> None:
    assert text_of({"a": "x" * _LONGEST}, "a") == "x" * _LONGEST
    for found in ("x" * (_LONGEST + 1), "a\x00b", "\x00", 5, None):
        with pytest.raises(FormatError, match="a is not a text"):
            text_of({"a": found}, "a")


def test_a_message_is_cut_at_2000_characters_and_stays_as_it_is_where_it_can_be_shown() -> None:
    assert message_of({"a": "y" * 3000}, "a") == "y" * 2000
    assert message_of({"a": "caf\u00e9 C:\\x"}, "a") == "caf\u00e9 C:\\x"
    assert message_of({"a": "caf\u00e9\n"}, "a") == "caf\\xe9\\n"


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(("name", "problem"), [("", ""), ("/etc", "begins with '/'"), ("//", "begins with '/'")])
def test_a_name_without_a_part_or_from_the_root_is_refused_at_both_ends(local: bool, name: str, problem: str) -> None:
    with pytest.raises(FormatError, match=f"the name {re.escape(repr(name))} .*{problem}"):
        name_of({"a": name}, "a", local=local)
    assert name_of({"a": "b/c"}, "a", local=local) == "b/c"


def test_a_name_in_a_message_is_quoted_and_has_200_characters_at_most() -> None:
    assert shown_name("\x1b" + "n" * 300) == "'\\x1b" + "n" * 199 + "'"


@pytest.mark.parametrize("change", [{"etag": "a\r\nb"}, {"etag": ""}, {"md5": 5}, {"tier": 5}, {"size": -1}])
def test_a_blob_that_cannot_be_is_refused_and_not_taken_for_none(change: dict[str, object]) -> None:
    fine = {"size": 1, "etag": "a", "md5": "00" * 16, "tier": "Cool"}
    assert state_of({"a": fine}, "a", local=False) == RemoteState(1, "a", bytes(16), "Cool")
    with pytest.raises(FormatError):
        state_of({"a": {**fine, **change}}, "a", local=False)


@pytest.mark.parametrize("crc64", [None, b"12345678"])
def test_a_blob_has_its_checksums_on_the_other_side(crc64: bytes | None) -> None:
    sent = RemoteState(1, "a", bytes(16), "Hot", crc64)
    found = state_of({"a": state_json(sent)}, "a", local=False)
    assert isinstance(found, RemoteState) and (found, found.crc64, found.tier) == (sent, crc64, "Hot")


@pytest.mark.parametrize("value", [1, "", "00", "g" * 16, "A" * 16, "0" * 15, "0" * 17])
@pytest.mark.parametrize("key", ["md5", "crc64"])
def test_a_checksum_is_hexadecimal_digits_of_its_length(key: str, value: object) -> None:
    there = {"size": 1, "etag": "a", "md5": None, "tier": "", key: value}
    with pytest.raises(FormatError, match=f"{key} is not"):
        state_of({"a": there}, "a", local=False)


@pytest.mark.parametrize("key", ["mtime_ns", "ctime_ns", "inode"])
def test_times_and_inodes_are_numbers_of_64_bits_with_a_sign_or_without(key: str) -> None:
    fine = state_json(LocalState(1, 1, 1, 1))
    assert fine is not None
    for number in (-(1 << 63), (1 << 64) - 1):
        read = state_of({"a": {**fine, key: number}}, "a", local=True)
        assert getattr(read, key) == number
    for bad in (-(1 << 63) - 1, 1 << 64, True, 1.0, "1", None):
        with pytest.raises(FormatError, match=f"{key} is not a number of 64 bits"):
            state_of({"a": {**fine, key: bad}}, "a", local=True)


def test_a_number_of_bytes_or_files_is_from_0_to_its_limit() -> None:
    assert [size_of({"a": number}, "a", 90) for number in (0, 90)] == [0, 90]
    for bad in (-1, 91, True, 1.0, "1", None):
        with pytest.raises(FormatError, match="a is not a number from 0 to 90"):
            size_of({"a": bad}, "a", 90)
