"""A source outside Azure in the orders of a job's nodes: which one it is, without a credential.

A node reads a bucket with what boto3 finds there, or without credentials. Whether the project may name it was decided
where the command ran, whose user sealed the orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blobsync.base.locations import UrlList
from blobsync.config.model import StorageAccount
from blobsync.config.sources import BucketAccess
from blobsync.store.protocol import BlobStore
from blobsync.store.source_trust import server_of, trusted_servers


def source_values(account: StorageAccount, environ: Mapping[str, str]) -> Mapping[str, Any]:
    """What :func:`open_source` reads. The files of a list are not in it: each shard has its own."""
    values = {"name": account.container_name, "endpoint": account.blob_endpoint}
    access, web = account.bucket, account.web
    if access is not None:
        return {**values, "region": access.region, "profile": access.profile, "anonymous": access.anonymous}
    assert web is not None
    # Nodes, which only open sources, have no YAML.
    from blobsync.config.user_config import load_user_config

    trusted = trusted_servers(load_user_config(environ).trusted_buckets)
    named = {server_of(file.url) for file in web.files.values()}
    return {**values, "reaches": sorted(named if web.by_hand else named & trusted)}


def open_source(values: Mapping[str, Any], environ: Mapping[str, str]) -> BlobStore:
    """The store, on a node. Uses no network of its own."""
    name, endpoint = values["name"], values["endpoint"]
    if "reaches" in values:
        from blobsync.store.url_list import UrlListStore

        reaches = frozenset(values["reaches"])
        return UrlListStore(UrlList("", name, endpoint), {}, environ, may_reach=lambda server: server in reaches)
    from blobsync.store.s3 import open_bucket

    access = BucketAccess(values["region"], values["profile"], values["anonymous"], by_hand=True)
    return open_bucket(StorageAccount("the job's orders", "", name, endpoint, bucket=access), environ)
