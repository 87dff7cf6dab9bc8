"""The ids of blocks: their content hashes, and the rejection of other ids."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.store.protocol import block_id_of, sha256_of_block

ONE = hashlib.sha256(b"one").digest()


@given(st.binary(min_size=32, max_size=32))
def test_an_id_contains_the_hash_of_its_content(digest: bytes) -> None:
    block_id = block_id_of(digest)
    assert len(block_id) == 48 and len(b64decode(block_id, validate=True)) == 36
    assert sha256_of_block(block_id) == digest


@given(st.text(max_size=90) | st.binary(max_size=64).map(lambda raw: b64encode(raw).decode()))
def test_only_the_canonical_form_of_an_id_is_recognised(text: str) -> None:
    digest = sha256_of_block(text)
    assert digest is None or block_id_of(digest) == text


@pytest.mark.parametrize(
    "foreign",
    [
        "",
        b64encode(b"blobsync-0123456789abcdef-000000....").decode(),
        b64encode(b"bsc2" + ONE).decode(),
        b64encode(b"bsc1" + ONE[:31]).decode(),
        b64encode(b"bsc1" + ONE + b"x").decode(),
        block_id_of(ONE)[:-1],
        block_id_of(ONE)[:-1] + "\n",
        block_id_of(ONE)[:-1] + "=",
        " " + block_id_of(ONE)[1:],
        block_id_of(ONE)[:-1] + "é",
        "\u0410" * 48,
    ],
)
def test_other_ids_are_not_recognised(foreign: str) -> None:
    assert sha256_of_block(foreign) is None


@pytest.mark.parametrize("length", [0, 31, 33])
def test_an_id_needs_a_sha256(length: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        block_id_of(b"x" * length)
