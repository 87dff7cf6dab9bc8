"""Shards and records, which may come from another machine."""

from __future__ import annotations

from contextlib import suppress

from blobsync.plan.transfer_plan import Route
from blobsync.spread.file_json import FormatError
from blobsync.spread.record import read_answer
from blobsync.spread.shard import ShardReader
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
{{"done":3}}
"""


def _shard(data: bytes) -> None:
    reader = ShardReader()
    for line in text(data).splitlines():
        if (shard := reader.take(line)) is not None:
            assert all(".." not in action.path.split("/") for action in shard.actions)


def _records(data: bytes) -> None:
    for line in text(data).splitlines():
        with suppress(FormatError):
            read_answer(line, Route.DOWNLOAD)
        read_answer(line, Route.UPLOAD)


TARGETS = (
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
