"""A source that a command names itself, with ``--source``: a cluster without a file, whose one folder is the PATH.

It is a bucket, a URL, or a list of URLs. A list has one file a line: its URL and, after tabs, where known, its path
below the PATH, its size, and a checksum (``md5:`` or ``sha256:`` and hexadecimal digits). Lines that begin with ``#``
say nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from blobsync.base.errors import UsageError
from blobsync.base.file_states import regular_only
from blobsync.base.locations import AMAZON, LISTS, SOURCE_OPTION
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import register_url
from blobsync.base.trusted_hosts import host_of, is_loopback
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.config.sources import BucketAccess, ListedFile, WebFiles

_S3 = "s3://"
# What other tools call a container of Azure.
_AZURE = ("az", "azure", "abfs", "abfss", "wasb", "wasbs", "adl")
# As the aws command line does.
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
# Bytes and lines; a list of more files is better cut.
_LONGEST, _MOST = 256_000_000, 2_000_000
# In bytes.
_CHECKSUMS = {"md5": 16, "sha256": 32, "sha1": 20, "crc32": 4, "crc32c": 4, "crc64nvme": 8}


class GivenSource(NamedTuple):
    """The words of a command: the source, the service's URL if it is not Amazon's, and whether to sign."""

    text: str
    endpoint_url: str | None = None
    anonymous: bool = False


def cluster_of(given: GivenSource, path: str, root: Path, cwd: Path, environ: Mapping[str, str]) -> Cluster:
    """The cluster that maps ``path``, from the project's root, to the source. Raises ``UsageError``."""
    # It is in the command, which is recorded. Those of a list are in nothing that is shown.
    register_url(given.text)
    shown = given.text.partition("?")[0]
    if given.text.startswith(_S3):
        account, below = _bucket(given, environ)
    elif given.endpoint_url is not None or given.anonymous:
        raise UsageError("--endpoint-url and --no-sign-request are about buckets", hint="--source s3://BUCKET/PREFIX")
    elif given.text.startswith(("https://", "http://")):
        account, below = _one_url(given.text, shown)
    elif given.text.endswith(LISTS):
        files = WebFiles(read_list(cwd / given.text, given.text))
        account, below = StorageAccount(SOURCE_OPTION, "", given.text, "", web=files), ""
    else:
        raise UsageError(
            f"{SOURCE_OPTION} {shown}: not s3://BUCKET/PREFIX, https://HOST/FILE, or a list of URLs (*.tsv, *.txt)",
            hint=_meant(shown, root, cwd),
        )
    entry = FolderEntry(path.strip("/"), account, below)
    return Cluster(name=shown, file=SOURCE_OPTION, root=root, folders=(entry,))


def _meant(shown: str, root: Path, cwd: Path) -> str | None:
    """What somebody means who names none of these: a folder of this machine, a cluster, another service."""
    scheme, is_url, rest = shown.partition("://")
    if not is_url:
        from blobsync.config.known_keys import nearest  # late: only a mistake needs them
        from blobsync.config.loader import cluster_names

        if (cwd / shown).exists():
            return f"a folder of this machine is uploaded: blobsync u {shlex.quote(shown)}"
        cluster = nearest(shown, cluster_names(root))
        where = "a cluster file's container"
        return f"-f {cluster or 'CLUSTER'} copies from {where}; {SOURCE_OPTION} s3://... from a bucket"
    if scheme == "gs":
        # https://cloud.google.com/storage/docs/interoperability
        return f"Google's buckets speak S3: {SOURCE_OPTION} s3://{rest} --endpoint-url https://storage.googleapis.com"
    if scheme in _AZURE:
        return "another container of Azure is the account of a cluster file: -f CLUSTER copies from it"
    return None


def _bucket(given: GivenSource, environ: Mapping[str, str]) -> tuple[StorageAccount, str]:
    # Nodes, which read the lines of a list, have no YAML.
    from blobsync.config.accounts import bucket_problem, service_problem

    bucket, _, prefix = given.text.removeprefix(_S3).partition("/")
    endpoint = given.endpoint_url or next(filter(None, map(environ.get, _ENDPOINT_VARIABLES)), AMAZON)
    endpoint = endpoint.rstrip("/")
    for option, value, problem in (
        (SOURCE_OPTION, given.text, bucket_problem(bucket)),
        ("--endpoint-url", endpoint, service_problem(endpoint)),
    ):
        if problem:
            raise UsageError(f"{option} {value}: {problem}")
    access = BucketAccess(anonymous=given.anonymous, by_hand=True)
    return StorageAccount(SOURCE_OPTION, "", bucket, endpoint, bucket=access), prefix.strip("/")


def _one_url(url: str, shown: str) -> tuple[StorageAccount, str]:
    try:
        name, file = _parsed(url)
    except ValueError as error:
        raise UsageError(f"{SOURCE_OPTION} {shown}: {error}") from error
    parts = urlsplit(url)
    folder = f"{parts.scheme}://{parts.netloc}{parts.path.rpartition('/')[0]}"
    return StorageAccount(SOURCE_OPTION, "", folder, folder, web=WebFiles({name: file}, by_hand=True)), name


def read_list(file: Path, shown: str) -> Mapping[str, ListedFile]:
    """The files of a list by their paths. Raises ``UsageError`` with the number of the line."""
    try:
        with open(file, "rb", opener=regular_only) as stream:
            text = stream.read(_LONGEST + 1)
        lines = text.decode("utf-8-sig").split("\n")
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not UTF-8 text") from error
    if len(text) > _LONGEST or len(lines) > _MOST:
        raise UsageError(f"{shown} is too long: more than {_LONGEST:,} bytes or {_MOST:,} lines")
    found: dict[str, ListedFile] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            path, listed = _parsed(line)
        except ValueError as error:
            raise UsageError(
                f"{shown}:{number}: {error}", hint="a line is URL, PATH, SIZE, CHECKSUM, with tabs"
            ) from error
        if path in found:
            raise UsageError(f"{shown}:{number}: {path} is there twice")
        found[path] = listed
    if not found:
        raise UsageError(f"{shown} names no URL")
    return found


def _parsed(line: str) -> tuple[str, ListedFile]:
    """The path and the file of a line. Raises ``ValueError``, whose text has nothing of the URL's query."""
    url, path, size, checksum = [*(each.strip() for each in line.split("\t")), "", "", ""][:4]
    file = listed_file(url, size, checksum)
    path = (path or unquote(urlsplit(url).path.rpartition("/")[2])).strip("/")
    if not path:
        raise ValueError("the URL has no name at its end: give a path")
    return path, file


def words_of(file: ListedFile) -> tuple[str, str, str]:
    """The file as the words of :func:`listed_file`."""
    checksum = f"{file.checksum[0]}:{file.checksum[1].hex()}" if file.checksum else ""
    return file.url, "" if file.size is None else str(file.size), checksum


def listed_file(url: str, size: str, checksum: str) -> ListedFile:
    """A file from the words of a list. Raises ``ValueError``, whose text has nothing of the URL's query."""
    if host_of(url) is None or urlsplit(url).username is not None or urlsplit(url).fragment:
        raise ValueError("not a URL")
    if not url.startswith("https:") and not is_loopback(url):
        raise ValueError("not an https URL")
    # Fifteen digits are more than any blob has.
    if size and not (size.isascii() and size.isdigit() and len(size) < 16):
        raise ValueError(f"{size[:40]!a} is not a size")
    return ListedFile(url, int(size) if size else None, _checksum(checksum) if checksum else ())


def _checksum(text: str) -> tuple[str, bytes]:
    name, _, digits = text.partition(":")
    try:
        value = bytes.fromhex(digits)
    except ValueError:
        value = b""
    if len(value) != _CHECKSUMS.get(name, -1):
        raise ValueError(f"{text[:40]!a} is not a checksum such as sha256:HEX")
    return name, value
