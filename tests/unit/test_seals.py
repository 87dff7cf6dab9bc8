from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.seals import SealKey

KEY = SealKey(bytes(range(32)))
BODY = b'{"path": "a"}'


def test_what_was_sealed_is_opened_under_the_same_kind_place_and_name() -> None:
    sealed = KEY.seal("shard", "cont/run", "shards/1", BODY)
    assert KEY.opened("shard", "cont/run", "shards/1", sealed) == BODY
    assert KEY.opened("shard", "cont/run", "shards/1", KEY.seal("shard", "cont/run", "shards/1", b"")) == b""


@pytest.mark.parametrize(
    "where",
    [("record", "cont/run", "shards/1"), ("shard", "cont/other", "shards/1"), ("shard", "cont/run", "shards/2")],
)
def test_a_seal_counts_nowhere_else(where: tuple[str, str, str]) -> None:
    assert KEY.opened(*where, KEY.seal("shard", "cont/run", "shards/1", BODY)) is None


def test_parts_cannot_be_cut_otherwise() -> None:
    assert KEY.opened("a", "bc", "d", KEY.seal("ab", "c", "d", BODY)) is None
    assert KEY.opened("a", "b", "c", KEY.seal("a", "b", "", b"c" + BODY)) is None
    assert KEY.derive("a", "b") != KEY.derive("ab")


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_opens_nothing(at: int, change: int) -> None:
    sealed = bytearray(KEY.seal("shard", "p", "n", BODY))
    sealed[at % len(sealed)] ^= change
    assert KEY.opened("shard", "p", "n", bytes(sealed)) is None


@given(st.binary(max_size=200))
def test_what_somebody_else_wrote_opens_nothing(document: bytes) -> None:
    assert KEY.opened("shard", "p", "n", document) is None
    assert KEY.opened("shard", "p", "n", SealKey(bytes(32)).seal("shard", "p", "n", document)) is None


def test_each_purpose_has_a_key_of_its_own_that_opens_nothing_of_another() -> None:
    run, other = KEY.derive("run", "1"), KEY.derive("run", "2")
    assert len({KEY.secret, run.secret, other.secret, run.derive("worker", "1").secret}) == 4
    assert KEY.derive("run", "1").secret == run.secret
    assert other.opened("shard", "p", "n", run.seal("shard", "p", "n", BODY)) is None


def test_a_key_is_shown_nowhere() -> None:
    assert KEY.secret.hex() not in repr(KEY) and repr(KEY.secret) not in repr(KEY)
    with pytest.raises(ValueError, match="32 long, in bytes"):
        SealKey(b"short")
