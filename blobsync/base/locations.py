"""Where data is: a path of this machine, a blob or folder of a container, an object of a bucket, a mount of a node.

Values without a connection or a secret, made from a configuration, a command line or the text of a URL and carried
through plans and jobs as they are. ``str`` is the path or the URL, as in messages and files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from blobsync.base.errors import CredentialError
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.trusted_hosts import host_of

# "Naming and Referencing Containers, Blobs, and Metadata", in the service's documentation.
MAX_NAME_CHARS = 1024

# How the text of a mounted location begins: in the specification of a job, and on its nodes.
_MOUNTED = "mounted:"

# Where Amazon's own buckets are; a bucket of another service has that service's endpoint.
AMAZON = "https://s3.amazonaws.com"

# Names a source on the command line.
SOURCE_OPTION = "--source"
# How the names of lists of URLs end.
LISTS = (".tsv", ".txt")

# RFC 3986's unreserved characters, and the separator of virtual folders.
_SAFE_IN_BLOB_NAME = "/-._~"
_PLAIN = f"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789{_SAFE_IN_BLOB_NAME}"


def reaches_another(name: str) -> str | None:
    """Return why a request for the blob ``name`` would reach another blob; None if it would not.

    Azure's service and Azurite store ``a\\b`` as ``a/b``, however the backslash is written in the URL.
    """
    return "contains a backslash, which the service takes for '/'" if "\\" in name else None


def quote_blob_name(name: str) -> str:
    """Percent-encode the UTF-8 bytes of ``name`` for the path of a URL."""
    # Most names need none, and this is for each file.
    return quote(name, safe=_SAFE_IN_BLOB_NAME) if name.strip(_PLAIN) else name


def below(folder: str, relative: str) -> str:
    """The name of ``relative`` in ``folder``; either may be empty."""
    return f"{folder}/{relative}" if folder and relative else folder or relative


def at_and_above(name: str) -> Iterator[str]:
    """The name, and each folder that it is in, the nearest first."""
    while name:
        yield name
        name = name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class BlobContainer:
    """A container of a storage account.

    ``endpoint`` is the blob endpoint without a trailing slash: ``https://<account>.blob.core.windows.net``
    or, for emulators and other path-style servers, ``http://127.0.0.1:10000/<account>``.
    """

    account: str
    name: str
    endpoint: str

    @classmethod
    def parse(cls, text: str) -> "BlobContainer":
        """Parse ``https://ACCOUNT.blob.core.windows.net/CONTAINER``, or path style, without a SAS.

        Raises ``CredentialError`` for anything else: nothing of it may be requested.
        """
        endpoint, _, name = text.rstrip("/").rpartition("/")
        host = host_of(endpoint)
        if host is None or not name:
            raise CredentialError(f"{text!a} is not a container URL")
        return cls(urlsplit(endpoint).path.strip("/") or host.partition(".")[0], name, endpoint)

    def __str__(self) -> str:
        return f"{self.endpoint}/{self.name}"

    def child(self, name: str) -> "BlobLocation":
        """The blob or folder ``name`` in this container; the whole container if it is empty."""
        return BlobLocation(self, name)

    def same_service(self, other: "BlobContainer") -> bool:
        """Whether both are in one storage account, so that a copy stays inside the service."""
        return (self.endpoint.lower(), self.account) == (other.endpoint.lower(), other.account)


class Source(BlobContainer):
    """A place outside Azure that is only read: nothing is written or deleted there.

    Its objects are named as blobs are, by :class:`BlobLocation`.
    """

    __slots__ = ()

    def same_service(self, other: BlobContainer) -> bool:
        """False: no service copies within a source."""
        return False


class Bucket(Source):
    """A bucket of an S3-compatible service; ``account`` is the host of its ``endpoint``."""

    __slots__ = ()

    @classmethod
    def at(cls, name: str, endpoint: str = AMAZON) -> "Bucket":
        """The bucket ``name`` of a service; ``endpoint`` is a URL without a trailing slash."""
        return cls(host_of(endpoint) or endpoint, name, endpoint)

    def __str__(self) -> str:
        return f"s3://{self.name}" if self.endpoint == AMAZON else f"{self.endpoint}/{self.name}"


class UrlList(Source):
    """Files of the web: those of a list, or the one of a URL. ``name`` is the list's path, or the URL of the folder."""

    __slots__ = ()

    def __str__(self) -> str:
        return self.name if "://" in self.name else f"list:{self.name}"


class BlobLocation(NamedTuple):
    """A blob, or a virtual folder when ``name`` is used as a prefix; the whole container if it is empty."""

    container: BlobContainer
    name: str

    def __str__(self) -> str:
        return f"{self.container}/{quote_blob_name(self.name)}" if self.name else str(self.container)

    def child(self, relative: str) -> "BlobLocation":
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        return BlobLocation(self.container, below(self.name, relative))

    @property
    def parent(self) -> "BlobLocation":
        """The folder that this is in."""
        return BlobLocation(self.container, self.name.rpartition("/")[0])


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """A file or folder of this machine.

    blobsync never writes through a symlink that points outside ``boundary``, some folders without links in their
    paths: the project and the targets of trusted links (empty: ``path`` itself, or its folder if it is a file).
    ``kept`` is where what is replaced or deleted at ``path`` is kept; None: it is not.
    """

    path: Path
    boundary: tuple[Path, ...] = ()
    kept: Path | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return str(self.path)

    def at(self, relative: str) -> Path:
        """The path of :meth:`child`."""
        return self.path / relative if relative else self.path

    def child(self, relative: str) -> "LocalLocation":
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        return replace(self, path=self.at(relative), kept=self.kept / relative if self.kept else None)

    def to_json(self) -> dict[str, Any]:
        """As workers on other machines and in other processes get it."""
        boundary = [str(folder) for folder in self.boundary]
        kept = {"kept": str(self.kept)} if self.kept else {}
        return {"root": str(self.path), "boundary": boundary, **kept}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "LocalLocation":
        """The inverse of :meth:`to_json`. Raises ``KeyError`` or ``TypeError`` for anything else."""
        kept = values.get("kept")
        return cls(Path(values["root"]), tuple(map(Path, values["boundary"])), Path(kept) if kept else None)

    @property
    def parent(self) -> "LocalLocation":
        """The folder that this is in."""
        return replace(self, path=self.path.parent, kept=self.kept.parent if self.kept else None)


class MountedLocation(NamedTuple):
    """A file or folder of a compute node where a service has mounted a container, or a part of one, for the job."""

    path: Path

    def __str__(self) -> str:
        return f"{_MOUNTED}{self.path}"

    def child(self, relative: str) -> "MountedLocation":
        """``relative`` below this folder; the folder itself if ``relative`` is empty."""
        return MountedLocation(self.path / relative if relative else self.path)

    @property
    def parent(self) -> "MountedLocation":
        """The folder that this is in."""
        return MountedLocation(self.path.parent)


# The root of a store.
StoreLocation = BlobContainer | MountedLocation
Location = LocalLocation | BlobLocation | MountedLocation


def is_given(name: str) -> bool:
    """Whether the name of a cluster is a source that a command named itself."""
    return "://" in name or name.endswith(LISTS)


def is_source(location: Location | StoreLocation) -> bool:
    """Whether it is outside Azure, and only read."""
    return isinstance(location.container if isinstance(location, BlobLocation) else location, Source)


def parse_store_location(text: str) -> StoreLocation:
    """Parse a container as jobs name it: its URL, or ``mounted:PATH``.

    Raises ``CredentialError`` as :meth:`BlobContainer.parse` does.
    """
    if text.startswith(_MOUNTED):
        return MountedLocation(Path(text.removeprefix(_MOUNTED)))
    return BlobContainer.parse(text)
