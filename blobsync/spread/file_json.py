"""Files in shards and records as JSON, and the validation when they are read.

A shard or a record may come from another machine. Each name, number and text is checked here before anything uses it;
``FormatError`` says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blobsync.base.file_states import FileState, LocalState, RemoteState
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import redact
from blobsync.local.names import blob_problem, local_problem
from blobsync.store.protocol import MAX_BLOB_BYTES
from blobsync.store.rest.xml import BadAnswerError, checked_etag

# Characters. Names, ETags and messages are far shorter, even if each character is escaped.
LONGEST_LINE = 64 << 10
LONGEST_TEXT = 2000
_LONGEST_SHOWN = 200

_HEXADECIMAL = re.compile("[0-9a-f]*")
_MD5_DIGITS = 32
_CRC64_DIGITS = 16
# The tier goes into a header: Hot, Cool, Cold, Archive, P10, ...
_TIER = re.compile("[A-Za-z0-9]{0,32}")
# Limit of times and inodes: 64 bits.
_LONG = 1 << 63


class FormatError(ValueError):
    """A line that is not in this format, or has an invalid value."""


def object_of(line: str) -> dict[str, Any]:
    """Parse one line as a JSON object."""
    if len(line) > LONGEST_LINE:
        raise FormatError(f"a line has more than {LONGEST_LINE:,} characters")
    try:
        return parse_object(line)
    except ValueError as error:
        raise FormatError(str(error)) from error


def text_of(values: Mapping[str, Any], key: str) -> str:
    """A string without NUL that is not too long."""
    found = values.get(key)
    if not isinstance(found, str) or len(found) > LONGEST_LINE or "\x00" in found:
        raise FormatError(f"{key} is not a text")
    return found


def message_of(values: Mapping[str, Any], key: str) -> str:
    """A message for the user: one line, without secrets or control characters."""
    found = redact(text_of(values, key)[:LONGEST_TEXT])
    return found if found.isprintable() else found.encode("unicode_escape").decode()


def size_of(values: Mapping[str, Any], key: str, most: int = MAX_BLOB_BYTES) -> int:
    """A number of bytes or files."""
    found = values.get(key)
    if type(found) is not int or not 0 <= found <= most:
        raise FormatError(f"{key} is not a number from 0 to {most}")
    return found


def shown_name(name: str) -> str:
    """A name from outside, escaped and shortened for messages."""
    return f"{name[:_LONGEST_SHOWN]!a}"


def name_of(values: Mapping[str, Any], key: str, *, local: bool) -> str:
    """A name that stays below its folder, at a ``local`` end or in a container."""
    found = text_of(values, key)
    problem = "is empty" if not found else local_problem(found) if local else blob_problem(found)
    if found.startswith("/"):
        problem = "begins with '/'"
    if problem:
        raise FormatError(f"the name {shown_name(found)} {problem}")
    return found


def state_json(state: FileState | None) -> dict[str, Any] | None:
    """A state as JSON, for :func:`state_of`."""
    if state is None:
        return None
    md5 = state.md5.hex() if state.md5 else None
    if isinstance(state, LocalState):
        times = {"mtime_ns": state.mtime_ns, "ctime_ns": state.ctime_ns, "inode": state.inode}
        return {"size": state.size, **times, "md5": md5}
    crc64 = {"crc64": state.crc64.hex()} if state.crc64 else {}
    return {"size": state.size, "etag": state.etag, "md5": md5, "tier": state.tier, **crc64}


def state_of(values: Mapping[str, Any], key: str, *, local: bool) -> FileState | None:
    """The state of one side; None if the file does not exist. ``local``: a file of this machine, else a blob."""
    found = values.get(key)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise FormatError(f"{key} is not an object")
    size, md5 = size_of(found, "size"), _digest(found, "md5", _MD5_DIGITS)
    if local:
        return LocalState(size, _number(found, "mtime_ns"), _number(found, "ctime_ns"), _number(found, "inode"), md5)
    try:
        return RemoteState(
            size, checked_etag(text_of(found, "etag")), md5, _tier(found), _digest(found, "crc64", _CRC64_DIGITS)
        )
    except BadAnswerError as error:
        raise FormatError(str(error)) from error


def _digest(values: Mapping[str, Any], key: str, digits: int) -> bytes | None:
    found = values.get(key)
    if found is None:
        return None
    if not isinstance(found, str) or len(found) != digits or not _HEXADECIMAL.fullmatch(found):
        raise FormatError(f"{key} is not {digits} hexadecimal digits")
    return bytes.fromhex(found)


def _tier(values: Mapping[str, Any]) -> str | None:
    found = values.get("tier")
    if found is not None and (not isinstance(found, str) or not _TIER.fullmatch(found)):
        raise FormatError("tier is not an access tier")
    return found


def _number(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key)
    if type(found) is not int or not -_LONG <= found < 2 * _LONG:
        raise FormatError(f"{key} is not a number of 64 bits")
    return found
