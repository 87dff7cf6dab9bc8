"""A stand-in for an account with a hierarchical namespace (Data Lake Storage): a reverse proxy before Azurite.

Azurite keeps the files, and for each directory ``d`` an empty blob ``d/``. What clients see of it is what Microsoft has
published ("Known issues with Azure Data Lake Storage", "Blob service error codes", "Path - Create"), what the tests
of the Azure SDKs have recorded of such accounts, and what others have measured there:

- a flat listing has an entry for each directory, a listing with a delimiter a ``BlobPrefix`` also for an empty one;
- a directory and a blob cannot share a name, and a blob has nothing below it;
- the directories above a blob are made with it, stay when it goes, and are deleted only when they are empty;
- Put Block and Put Block List are refused for a file that was written through the other end, Put Blob is not;
- there are no versions, no snapshots, no batches, and no listings from a name on (``startFrom``);
- a deleted file is kept (soft delete), listed with ``showonly=deleted`` and an id of its deletion, and comes back by
  that id where nothing has its name; what is replaced is not kept, and nothing of a deleted directory is seen.

The other end (``dfs``) is served at the same address: directories, files (create, append, flush), rename with
conditions, deletion and access control lists. Its signatures are not checked; of a SAS, the rights are. A rename gives
the file another ETag here, and keeps the ETag in an account. Not covered: that a deleted directory comes back.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree

from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobBlock, BlobClient, BlobProperties, BlobServiceClient

from tests.servers import child
from tests.servers.copy_source_proxy import error_response
from tests.servers.past_blobs import Kept, entry, listing, service_settings, store
from tests.servers.proxy import Link, Proxy, operation
from tests.servers.wire import Framing, Headers, Request, encode_response, pump, read_body

_MARK = {"hdi_isfolder": "true"}
_DATE = "Sun, 22 Nov 2026 03:00:00 GMT"
_FILE_ACL, _FOLDER_ACL = "user::rw-,group::r--,other::---", "user::rwx,group::r-x,other::---"
_BLOCKS = ("put block", "put block list")
_WRITES = (*_BLOCKS, "put blob", "put blob from url", "copy blob", "put block from url", "put appendblock")
_TYPE_MISMATCH = (409, "ResourceTypeMismatch", "The specified resource type does not match the existing resource type.")
_NOT_HERE = (
    409,
    "FeatureNotYetSupportedForHierarchicalNamespaceAccounts",
    "This feature is not yet supported for hierarchical namespace accounts.",
)
# Of the other end: what a SAS must allow. A rename needs it at both ends.
_RIGHTS = {"rename": "m", "create": "cw", "append": "w", "flush": "w", "delete": "d", "setAccessControl": "p"}
_RIGHTS["getAccessControl"] = "e"


class DataLake(Proxy):
    """``keys`` are those of Azurite's accounts: what a client did not ask for itself is done with them."""

    def __init__(self, upstream: str, keys: Mapping[str, str]) -> None:
        super().__init__(upstream)
        self._services = {
            account: BlobServiceClient(f"{upstream}/{account}", credential=key) for account, key in keys.items()
        }
        # Each as /account/container/path.
        self._directories: set[str] = set()
        self._by_dfs: set[str] = set()
        self._appended: dict[str, bytes] = {}
        self._acls: dict[str, str] = {}
        # With the path of each.
        self._deleted: list[tuple[str, Kept]] = []
        self._deletions = itertools.count(133360211214002465)

    async def handle(self, link: Link, request: Request) -> bool:
        path = unquote(urlsplit(request.target).path).rstrip("/")
        query = {key: values[0] for key, values in parse_qs(urlsplit(request.target).query).items()}
        word = _dfs_word(request, query)
        if word:
            return await self._dfs(link, request, word, path, query)
        name = operation(request)
        if path.count("/") < 3:
            return await self._container(link, request, name, query)
        if query.get("comp") == "snapshot":
            return await self.reply(link, request, error_response(*_NOT_HERE))
        if path in self._directories:
            return await self._directory(link, request, path)
        if name in _WRITES:
            return await self._write(link, request, name, path)
        if query.get("comp") == "undelete":
            return await self.reply(link, request, await self._undelete(request, path))
        if request.method == "DELETE":
            return await self._delete_file(link, request, path)
        return await self.forward(link, request)

    # -- the blob end -------------------------------------------------------------------------------------

    async def _container(self, link: Link, request: Request, name: str, query: Mapping[str, str]) -> bool:
        if name == "list" and ("versions" in query.get("include", "") or "startFrom" in query):
            return await self.reply(link, request, error_response(*_NOT_HERE))
        if name == "list" and query.get("showonly") == "deleted":
            return await self.reply(link, request, self._list_deleted(request, query))
        if name == "list":
            return await self._list(link, request, query)
        if name == "get service":
            return await self.reply(link, request, service_settings(soft_delete=True))
        if name == "get account":
            headers = [("x-ms-is-hns-enabled", "true"), ("x-ms-account-kind", "StorageV2"), ("Content-Length", "0")]
            return await self.reply(link, request, encode_response(200, "OK", headers))
        if query.get("comp") == "batch":
            return await self.reply(link, request, error_response(*_NOT_HERE))
        return await self.forward(link, request)

    async def _directory(self, link: Link, request: Request, path: str) -> bool:
        """A request about a directory by its name as a blob."""
        if request.method == "DELETE":
            if await self._is_full(path):
                refusal = (409, "DirectoryIsNotEmpty", "This operation is not permitted on a non-empty directory.")
                return await self.reply(link, request, error_response(*refusal))
            await self._remove_directory(path)
            return await self.reply(link, request, encode_response(202, "Accepted", [("Content-Length", "0")]))
        if request.get("x-ms-range"):
            return await self.reply(link, request, error_response(416, "InvalidRange", "The range is invalid."))
        if request.method in ("GET", "HEAD") and "comp=" not in request.target:
            headers = [
                *[("ETag", '"0xD"'), ("Last-Modified", _DATE), ("Content-Length", "0")],
                *[("x-ms-blob-type", "BlockBlob"), ("x-ms-meta-hdi_isfolder", "true")],
                ("x-ms-resource-type", "directory"),
            ]
            return await self.reply(link, request, encode_response(200, "OK", headers))
        absent = request.get("if-none-match") == "*"
        exists = (409, "BlobAlreadyExists", "The specified blob already exists.")
        return await self.reply(link, request, error_response(*(exists if absent else _TYPE_MISMATCH)))

    async def _delete_file(self, link: Link, request: Request, path: str) -> bool:
        # Before the client hears of it.
        kept = await asyncio.to_thread(self._keep_deleted, path)
        answered = await self.forward(link, request)
        if await self._is_file(path):
            self._deleted.remove(kept)
        else:
            self._forget(path)
        return answered

    def _keep_deleted(self, path: str) -> tuple[str, Kept]:
        try:
            fetched = self._blob(path).download_blob()
        except ResourceNotFoundError:
            return path, Kept("", b"", BlobProperties())
        kept = path, Kept(str(next(self._deletions)), fetched.readall(), fetched.properties, "deleted")
        self._deleted.append(kept)
        return kept

    def _list_deleted(self, request: Request, query: Mapping[str, str]) -> bytes:
        lead = unquote(urlsplit(request.target).path).rstrip("/") + "/"
        return listing(
            entry(path.removeprefix(lead), kept, "DeletionId")
            for path, kept in sorted(self._deleted, key=lambda each: each[0])
            if path.startswith(lead + query.get("prefix", ""))
        )

    async def _undelete(self, request: Request, path: str) -> bytes:
        name, _, id = (request.get("x-ms-undelete-source") or "").partition("?deletionid=")
        source = "/".join([*path.split("/")[:3], unquote(name)])
        found = [each for each in self._deleted if each[0] == source and each[1].id == id]
        if not found:
            return error_response(404, "BlobNotFound", "The specified blob does not exist.")
        if await self._is_file(path):
            return error_response(409, "PathAlreadyExists", "The specified path already exists.")
        await asyncio.to_thread(store, self._blob(path), found[0][1])
        self._deleted.remove(found[0])
        return _done(200, [("x-ms-resource-type", "file")])

    async def _write(self, link: Link, request: Request, name: str, path: str) -> bool:
        if name in _BLOCKS and path in self._by_dfs:
            refusal = error_response(409, "BlobOperationNotSupported", "Blob operation is not supported.")
            return await self.reply(link, request, refusal)
        above = _above(path)
        if any([await self._is_file(each) for each in above if each not in self._directories]):
            return await self.reply(link, request, error_response(*_TYPE_MISMATCH))
        sent, reader, response = await self.send(link, request)
        if response.status == 201 and name not in ("put block", "put block from url"):
            await self._make_directories(above)
            self._by_dfs.discard(path)
        link.writer.write(response.raw)
        framing = response.framing(request.method)
        received = await pump(reader, link.writer, framing)
        await link.writer.drain()
        self.count(request, response.status, sent, received)
        return not (request.last_on_connection() or response.last_on_connection() or framing == Framing())

    async def _list(self, link: Link, request: Request, query: Mapping[str, str]) -> bool:
        sent, reader, response = await self.send(link, request)
        body = await read_body(reader, response.framing(request.method))
        if response.status == 200:
            place = unquote(urlsplit(request.target).path).rstrip("/")
            body = self._with_directories(body, place, query.get("prefix", ""))
        headers = response.without(lambda name: name in ("content-length", "transfer-encoding"))
        head = encode_response(response.status, response.first[2], [*headers, ("Content-Length", str(len(body)))])
        link.writer.write(head + body)
        await link.writer.drain()
        self.count(request, response.status, sent, len(body))
        return not (request.last_on_connection() or response.last_on_connection())

    def _with_directories(self, body: bytes, place: str, prefix: str) -> bytes:
        try:
            root = ElementTree.fromstring(body)
        except ElementTree.ParseError:
            # Names with characters that XML cannot contain.
            return body
        blobs = root.find("Blobs")
        for item in list(() if blobs is None else blobs):
            found, properties = item.find("Name"), item.find("Properties")
            assert blobs is not None and found is not None
            name = found.text or ""
            if item.tag == "BlobPrefix":
                ElementTree.SubElement(ElementTree.SubElement(item, "Properties"), "ResourceType").text = "directory"
                continue
            kind = "file"
            if f"{place}/{name[:-1]}" in self._directories and name[-1:] == "/":
                if name == prefix:
                    # A directory is not below itself.
                    blobs.remove(item)
                    continue
                found.text, kind = name[:-1], "directory"
            assert properties is not None
            ElementTree.SubElement(properties, "ResourceType").text = kind
        text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return text

    # -- the other end ------------------------------------------------------------------------------------

    async def _dfs(self, link: Link, request: Request, word: str, path: str, query: Mapping[str, str]) -> bool:
        body = await read_body(link.reader, request.framing())
        rights = _RIGHTS.get(word, "")
        if "sp" in query and rights and not set(rights) & set(query["sp"]):
            message = "This request is not authorized to perform this operation using this permission."
            raw = error_response(403, "AuthorizationPermissionMismatch", message)
        else:
            raw = await self._dfs_answer(request, word, path, query, body)
        return await self.reply(link, request, raw, read=True)

    async def _dfs_answer(self, request: Request, word: str, path: str, query: Mapping[str, str], body: bytes) -> bytes:
        if word == "rename":
            return await self._rename(request, path)
        if word == "create":
            return await self._create(request, path, is_folder=query.get("resource") == "directory")
        if word == "append":
            self._appended[path] = self._appended.get(path, b"")[: int(query["position"])] + body
            return _done(202)
        if word == "flush":
            return await self._keep(path, self._appended.pop(path, b""))
        if word == "delete":
            return await self._delete(path, recursive=query.get("recursive") == "true")
        if word == "setAccessControl":
            self._acls[path] = request.get("x-ms-acl") or self._acl(path)
            return _done(200)
        kind = "directory" if path in self._directories else "file"
        return _done(200, [("x-ms-acl", self._acl(path)), ("x-ms-resource-type", kind)])

    async def _create(self, request: Request, path: str, *, is_folder: bool) -> bytes:
        there = path in self._directories or await self._is_file(path)
        if there and request.get("if-none-match") == "*":
            return error_response(409, "PathAlreadyExists", "The specified path already exists.")
        if there and is_folder != (path in self._directories):
            return error_response(409, "PathConflict", "The specified path, or an element of it, is of another type.")
        if is_folder:
            await self._make_directories([*_above(path), path])
            return _done(201)
        properties = request.get("x-ms-properties") or ""
        pairs = (pair.partition("=") for pair in properties.split(",") if pair)
        metadata = {key: base64.b64decode(value).decode() for key, _, value in pairs}
        return await self._keep(path, b"", metadata, status=201)

    async def _keep(
        self, path: str, data: bytes, metadata: Mapping[str, str] | None = None, *, status: int = 200
    ) -> bytes:
        """Store a file as one that was written through this end: without an MD5, and without blocks."""
        await self._make_directories(_above(path))

        def store() -> str:
            blob = self._blob(path)
            kept = dict(metadata) if metadata is not None else blob.get_blob_properties().metadata
            blob.stage_block("0" * 8, data) if data else None
            made = blob.commit_block_list([BlobBlock("0" * 8)] if data else [], metadata=kept)
            return str(made["etag"])

        etag = await asyncio.to_thread(store)
        self._by_dfs.add(path)
        return _done(status, [("ETag", etag), ("Last-Modified", _DATE)])

    async def _rename(self, request: Request, path: str) -> bytes:
        given = unquote((request.get("x-ms-rename-source") or "").partition("?")[0])
        source = f"/{path.split('/')[1]}{given}"
        old, there = await self._etag(source), await self._etag(path)
        if old is None:
            return error_response(404, "SourcePathNotFound", "The source path for a rename operation does not exist.")
        if request.get("if-none-match") == "*" and there is not None:
            return error_response(409, "PathAlreadyExists", "The specified path already exists.")
        wanted, source_wanted = request.get("if-match"), request.get("x-ms-source-if-match")
        if wanted not in (None, there):
            return error_response(412, "ConditionNotMet", "The condition specified using HTTP conditional header(s).")
        if source_wanted not in (None, old):
            return error_response(412, "SourceConditionNotMet", "The source condition specified using HTTP headers.")
        await self._make_directories(_above(path))

        def move() -> None:
            fetched = self._blob(source).download_blob()
            data, found = fetched.readall(), fetched.properties
            self._blob(path).upload_blob(
                data, overwrite=True, metadata=found.metadata, content_settings=found.content_settings
            )
            self._blob(source).delete_blob()

        await asyncio.to_thread(move)
        self._acls[path] = self._acl(source)
        self._by_dfs.discard(path)
        if source in self._by_dfs:
            self._by_dfs.add(path)
        self._forget(source)
        return _done(201)

    async def _delete(self, path: str, *, recursive: bool) -> bytes:
        if path not in self._directories:
            if await self._etag(path) is None:
                return error_response(404, "PathNotFound", "The specified path does not exist.")
            _, kept = await asyncio.to_thread(self._keep_deleted, path)
            await asyncio.to_thread(self._blob(path).delete_blob)
            self._forget(path)
            return _done(200, [("x-ms-deletion-id", kept.id), ("x-ms-delete-type-permanent", "false")])
        if not recursive and await self._is_full(path):
            return error_response(409, "DirectoryNotEmpty", "The recursive query parameter value must be true.")
        for below in await asyncio.to_thread(self._below, path):
            await asyncio.to_thread(self._blob(below).delete_blob)
            self._directories.discard(below.rstrip("/"))
            self._forget(below)
        return _done(200)

    # -- what Azurite keeps -------------------------------------------------------------------------------

    def _blob(self, path: str) -> BlobClient:
        _, account, container, name = path.split("/", 3)
        return self._services[account].get_blob_client(container, name)

    def _below(self, path: str) -> list[str]:
        """The directory and everything below it, files first."""
        _, account, container, name = path.split("/", 3)
        listed = self._services[account].get_container_client(container).list_blob_names(name_starts_with=f"{name}/")
        return sorted((f"/{account}/{container}/{each}" for each in listed), key=lambda each: (each[-1] == "/", each))

    async def _is_full(self, path: str) -> bool:
        return len(await asyncio.to_thread(self._below, path)) > 1

    async def _etag(self, path: str) -> str | None:
        def ask() -> str | None:
            try:
                return str(self._blob(path).get_blob_properties().etag)
            except ResourceNotFoundError:
                return None

        return await asyncio.to_thread(ask)

    async def _is_file(self, path: str) -> bool:
        return await self._etag(path) is not None

    async def _make_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            if path not in self._directories:
                self._directories.add(path)
                await asyncio.to_thread(self._blob(f"{path}/").upload_blob, b"", overwrite=True, metadata=_MARK)

    async def _remove_directory(self, path: str) -> None:
        self._directories.discard(path)
        self._deleted = [each for each in self._deleted if not each[0].startswith(f"{path}/")]
        await asyncio.to_thread(self._blob(f"{path}/").delete_blob)

    def _acl(self, path: str) -> str:
        return self._acls.get(path, _FOLDER_ACL if path in self._directories else _FILE_ACL)

    def _forget(self, path: str) -> None:
        self._by_dfs.discard(path)
        self._acls.pop(path, None)


def _dfs_word(request: Request, query: Mapping[str, str]) -> str:
    """What a request asks of the other end; empty: it is one of the blob end."""
    if request.get("x-ms-rename-source"):
        return "rename"
    if request.method == "PUT" and query.get("resource") in ("file", "directory"):
        return "create"
    if request.method == "DELETE" and "recursive" in query:
        return "delete"
    return query.get("action", "") if request.method in ("PATCH", "HEAD") else ""


def _done(status: int, headers: Headers | None = None) -> bytes:
    kept = [*(headers or []), ("x-ms-version", "2021-12-02"), ("Content-Length", "0")]
    return encode_response(status, "Done", kept)


def _above(path: str) -> list[str]:
    """The directories that contain the blob at ``/account/container/...``, the uppermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(4, len(parts))]


@contextmanager
def data_lake(upstream: str, keys: Mapping[str, str]) -> Iterator[child.ServerProcess]:
    """Run the stand-in for ``upstream`` in a child process."""
    with child.ServerProcess("data_lake", ["--upstream", upstream, "--keys", json.dumps(dict(keys))]) as handle:
        yield handle


def main() -> None:
    options = child.parser("An account with a hierarchical namespace, before Azurite.")
    options.add_argument("--keys", required=True, help="JSON: the keys of the accounts")
    chosen: Any = options.parse_args()
    child.run(DataLake(chosen.upstream, json.loads(chosen.keys)), chosen)


if __name__ == "__main__":
    main()
