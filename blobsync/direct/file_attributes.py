"""What a blob says of its file besides the content: its type, and executable bits and times.

The type is that of the extension alone, the same on every machine and Python version. Bits and times are kept as
metadata under the names that rclone uses: ``mode`` is ``st_mode`` in octal digits, ``mtime`` a time of RFC
3339 with nanoseconds. What is missing or malformed is not restored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime
from time import gmtime, strftime

from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple
from blobsync.plan.transfer_plan import KeptAttributes

_SECOND_NS = 1_000_000_000
_MODE = pattern(r"[0-7]{3,7}")
_TIME = pattern(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:\.([0-9]{1,9}))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class FileAttributes(NamedTuple):
    """What a downloaded file gets; None: as any new file. ``mtime_ns`` in nanoseconds since 1970."""

    executable: bool | None = None
    mtime_ns: int | None = None


def metadata_of(found: os.stat_result, kept: KeptAttributes) -> dict[str, str]:
    """The metadata of an upload of this file."""
    said = {}
    if kept.modes:
        said["mode"] = f"{found.st_mode:o}"
    if kept.times:
        seconds, rest = divmod(found.st_mtime_ns, _SECOND_NS)
        said["mtime"] = f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(seconds))}.{rest:09}Z"
    return said


def attributes_in(metadata: Mapping[str, str], kept: KeptAttributes) -> FileAttributes:
    """What the metadata of a blob says, as far as the folder entry keeps it."""
    said = {name.lower(): value for name, value in metadata.items()}
    mode = said.get("mode", "") if kept.modes else ""
    executable = bool(int(mode, 8) & 0o111) if _MODE.fullmatch(mode) else None
    return FileAttributes(executable, _nanoseconds(said.get("mtime", "")) if kept.times else None)


def _nanoseconds(text: str) -> int | None:
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(day.upper() + zone.upper().replace("Z", "+00:00"))
    except ValueError:
        return None
    return int(at.timestamp()) * _SECOND_NS + int((fraction or "0").ljust(9, "0"))


# https://www.iana.org/assignments/media-types
_BY_EXTENSION = {
    "7z": "application/x-7z-compressed",
    "avi": "video/x-msvideo",
    "bmp": "image/bmp",
    "bz2": "application/x-bzip2",
    "css": "text/css",
    "csv": "text/csv",
    "flac": "audio/flac",
    "gif": "image/gif",
    "gz": "application/gzip",
    "htm": "text/html",
    "html": "text/html",
    "ipynb": "application/x-ipynb+json",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "js": "text/javascript",
    "json": "application/json",
    "jsonl": "application/jsonl",
    "log": "text/plain",
    "md": "text/markdown",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "parquet": "application/vnd.apache.parquet",
    "pdf": "application/pdf",
    "png": "image/png",
    "py": "text/x-python",
    "sh": "application/x-sh",
    "svg": "image/svg+xml",
    "tar": "application/x-tar",
    "tgz": "application/gzip",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "tsv": "text/tab-separated-values",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
    "xml": "application/xml",
    "xz": "application/x-xz",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "zip": "application/zip",
    "zst": "application/zstd",
}


def guess_content_type(name: str) -> str:
    """The type of the blob ``name``; unknown ones are a stream of bytes, as for the service itself."""
    return _BY_EXTENSION.get(name.rpartition("/")[2].rpartition(".")[2].lower(), "application/octet-stream")
