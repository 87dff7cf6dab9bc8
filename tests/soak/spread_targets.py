"""Shards and records, which may come from another machine, and the seals that stand around them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from blobsync.base.seals import SealKey
from blobsync.plan.transfer_plan import Route
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import read_answer
from blobsync.spread.shard import read_shards
from blobsync.spread.shared_store import FolderStore, SealedStore
from tests.soak.target import Target, ignoring, text

_BLOB = '{"size":5,"etag":"0x8DC","md5":"000102030405060708090a0b0c0d0e0f","tier":"Cool"}'
_FILE = '{"size":5,"mtime_ns":1700000000123456789,"ctime_ns":1,"inode":42,"md5":null}'
_SHARD = f"""\
{{"blobsync_shard":1,"number":0,"route":"upload","path":"data/x","source":"/p/data","destination":"https://a/b"}}
{{"path":"a/b.jpg","reason":"NEW","size":5,"source":{_FILE},"destination":null}}
{{"path":"c","reason":"OVERWRITE","size":5,"source":{_FILE},"destination":{_BLOB},"target":"d","on_record":3,"delta":true}}
{{"end":2}}
"""
_DOWN = f"""\
{{"blobsync_shard":1,"number":7,"route":"download","path":"data/x","source":"https://a/b","destination":"/p/data"}}
{{"path":"a/b.jpg","reason":"NEW","size":5,"source":{_BLOB},"destination":{_FILE}}}
{{"end":1}}
"""
_RECORDS = f"""\
{{"blobsync_records":1}}
{{"bytes":4194304,"reused":0}}
{{"path":"a/b.jpg","source":{_FILE},"destination":{_BLOB},"reused":0}}
{{"path":"c","code":"access_denied","message":"no access","hint":null}}
{{"kept":"c","size":8388608}}
{{"note":"a sentence"}}
{{"ask":"token","end":"source"}}
{{"refused":"n1: f0 is another file here"}}
{{"done":3}}
"""


def _shard(data: bytes) -> None:
    for shard in read_shards(text(data).splitlines()):
        assert all(".." not in action.path.split("/") for action in shard.actions)


def _records(data: bytes) -> None:
    for line in text(data).splitlines():
        with suppress(FormatError):
            read_answer(line, Route.DOWNLOAD)
        read_answer(line, Route.UPLOAD)


class _OneDocument(FolderStore):
    """A place with one document, whatever it is asked for."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.document = b""

    def write(self, name: str, body: bytes) -> None:
        self.document = body

    def read(self, name: str) -> bytes | None:
        return self.document


def _ignored(text: str) -> None:
    """Drops the warnings about foreign documents."""


_RUN = SealKey(bytes(range(32)))
_SEALED = {
    "ended": b"",
    "closing": b"0000001",
    "shards/0000001": _SHARD.encode(),
    "records/0000001": _RECORDS.encode(),
    "result": b'{"job":"me_1_x","exit_code":0,"transferred":1,"verified":1,"failures":[]}',
}


def _place() -> tuple[_OneDocument, SealedStore]:
    raw = _OneDocument()
    return raw, SealedStore(raw, _RUN, "run", _ignored)


def _document(name: str, body: bytes) -> bytes:
    raw, place = _place()
    place.write(name, body)
    return raw.document


_DOCUMENTS = {name: _document(name, body) for name, body in _SEALED.items()}
_USERS = _RUN.seal("known", "place", "known", b'{"a":1}')


def _sealed(data: bytes) -> None:
    """Nothing but the documents themselves is believed, and each under its own name only."""
    raw, place = _place()
    raw.document = data
    for name, document in _DOCUMENTS.items():
        assert place.read(name) is None or data == document, name
    assert _RUN.opened("known", "place", "known", data) is None or data == _USERS


TARGETS = (
    Target("sealed", ignoring(_sealed), (*_DOCUMENTS.values(), _USERS), (b"blobsync-seal 1 ", b"\n")),
    Target(
        "shard",
        ignoring(_shard),
        (_SHARD.encode(), _DOWN.encode()),
        (b'"end"', b"../", b"\\u0000", b"9" * 20),
        documented=(FormatError,),
    ),
    Target(
        "record",
        ignoring(_records),
        (_RECORDS.encode(), *(line.encode() for line in _RECORDS.splitlines())),
        (b'"path"', b"null", b"-1", b"\\ud800"),
        documented=(FormatError,),
    ),
)
