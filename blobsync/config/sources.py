"""What a storage account has in its place if it is a source outside Azure: a bucket, or files of the web."""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.base.records import NamedTuple


class BucketAccess(NamedTuple):
    """How a bucket is asked: with the credentials that boto3 finds (of ``profile``, if there is one), or without any.

    ``by_hand``: the user named the bucket on the command line, no file of a project did. ``requester_pays``: who reads
    it pays for that, and says so in each request.
    """

    region: str = ""
    profile: str = ""
    anonymous: bool = False
    by_hand: bool = False
    requester_pays: bool = False


class ListedFile(NamedTuple):
    """A file of the web. ``size`` is None and ``checksum`` empty if nothing is said of it; else the latter is its name
    and its value, as S3 names them."""

    url: str
    size: int | None = None
    checksum: tuple[str, bytes] | tuple[()] = ()


class WebFiles(NamedTuple):
    """Files of the web by their paths. ``by_hand``: the user typed the URL, no list did."""

    files: Mapping[str, ListedFile]
    by_hand: bool = False
