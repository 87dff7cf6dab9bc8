"""The part of blobsync that runs on a compute node. One file, standard library only, Python 3.8 or newer.

    runner.py prepare --job JOB.json     once per node: code, folders, setup commands
    runner.py exec    --job JOB.json     once per process, started by srun or mpirun
    runner.py node    --job JOB.json     once per node, starts the node's processes itself
    runner.py finish  --job JOB.json     once per node: last uploads, then clean up
    runner.py here    --job JOB.json     the processes of one node with this terminal, in a directory that is ready

``JOB.json`` is the job's specification. ``--secrets`` names a file that only the owner can read: SAS tokens
by container URL, and secret environment values. Nothing of it is ever written to a log.

Exit codes: the user's own; 72 when the node could not be made ready; 73 when the program succeeded but its
outputs could not be brought out.
"""

# It is one long module on purpose: a node gets this file alone, whatever is or is not installed there.

from __future__ import annotations

import argparse
import base64
import fcntl
import fnmatch
import glob
import hashlib
import http.client
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

SETUP_FAILED = 72
OUTPUT_FAILED = 73
# Downloads that are not complete yet, ours and azcopy's.
PART = re.compile(r"\.blobsync-[0-9a-f]{8}\.part|\.azDownload-[0-9a-fA-F-]{36}-.*", re.DOTALL)
# Linux: NAME_MAX and PATH_MAX of limits.h.
NAME_BYTES, PATH_BYTES = 255, 4095
# What may stand in a URL as it is (RFC 3986); anything else in a configured SAS is encoded.
IN_URLS = "%:/?#[]@!$&'()*+,;=-._~"
# What init writes into the archive about itself; not part of the code.
MANIFEST = ".blobsync-manifest.json"
API_VERSION = "2021-12-02"
TRIES = 8
BLOCK = 16 * 1024 * 1024
# What an archive holds beside the code, at most; and how large code may become where nobody knows its size.
OWN_BYTES, SMALL_CODE, UNPACKED_RATIO = 1 << 26, 1 << 30, 100
APPEND_BLOCK = 4 * 1024 * 1024
DOWNLOADS, UPLOADS = 8, 4
# A file whose last change is longer ago is taken to be complete.
SETTLED_SECONDS = 5.0
TERM_TO_KILL_SECONDS = 10.0
# Processes that fail for one reason fail together; each may say its own before the first one ends the others.
TOGETHER_SECONDS = 1.5
ENDING = (signal.SIGTERM, signal.SIGINT)
FORWARDED = (*ENDING, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
# What a scheduler says while there is still time. A program without a handler would die of it.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
# Signals that are still to be passed on. One may arrive while the program it is meant for is being started.
HELD: list[int] = []


class SetupError(Exception):
    """The node cannot be made ready; the text is safe to print."""


class BlobError(Exception):
    """An answer of the blob service; ``status`` is 0 when nothing answered. The text holds no URL query."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class RemoteFile(NamedTuple):
    name: str
    size: int


class Container:
    """The few requests to one container that a node needs, with a SAS."""

    def __init__(self, url: str, sas: str) -> None:
        self._url = urllib.parse.quote(url.rstrip("/"), safe=IN_URLS)
        self._sas = urllib.parse.quote(sas.strip().lstrip("?"), safe=IN_URLS)

    def list(self, prefix: str) -> Iterator[RemoteFile]:
        marker = ""
        while True:
            query = {"restype": "container", "comp": "list", "prefix": prefix, "marker": marker, "include": "metadata"}
            _, body = self._call("GET", "", query)
            tree = xml.etree.ElementTree.fromstring(body)
            for blob in tree.iter("Blob"):
                name, stub = _listed_name(blob), blob.findtext("Metadata/hdi_isfolder")
                kind = blob.findtext("Properties/ResourceType")
                unfinished = PART.fullmatch(name.rpartition("/")[2])
                if stub != "true" and kind != "directory" and not name.endswith("/") and not unfinished:
                    yield RemoteFile(name, int(blob.findtext("Properties/Content-Length") or 0))
            marker = tree.findtext("NextMarker") or ""
            if not marker:
                return

    def size(self, name: str) -> int | None:
        """None where there is no such blob."""
        try:
            headers, _ = self._call("HEAD", name)
        except BlobError as error:
            if error.status == 404:
                return None
            raise
        return int(headers.get("Content-Length") or 0)

    def get(self, name: str, target: str, halt: threading.Event | None = None) -> None:
        """Download to ``target``, resuming a body that breaks off, checked against the blob's length and MD5.

        ``halt`` ends it from outside.
        """
        halt = halt or threading.Event()
        digest, expected, size, written = hashlib.md5(), None, -1, 0
        with open(target, "wb") as sink:
            for attempt in range(TRIES):
                try:
                    headers = {"Range": f"bytes={written}-"} if written else {}
                    with self._open("GET", name, {}, headers, None) as answer:
                        if not written:
                            size = int(answer.headers.get("Content-Length") or 0)
                            expected = answer.headers.get("Content-MD5")
                        for chunk in iter(lambda: b"" if halt.is_set() else answer.read(1 << 20), b""):
                            sink.write(chunk)
                            digest.update(chunk)
                            written += len(chunk)
                except (OSError, http.client.HTTPException, BlobError) as error:
                    if attempt == TRIES - 1 or not _worth_retrying(error):
                        raise BlobError(f"cannot read {name}: {_reason(error)}", _status(error)) from None
                if written == size:
                    break
                if halt.wait(_pause(attempt)):
                    raise BlobError(f"{name} was not wanted any more")
        if written != size:
            raise BlobError(f"{name} broke off after {written} of {size} bytes")
        if expected and base64.b64encode(digest.digest()).decode() != expected:
            raise BlobError(f"{name} arrived damaged: its MD5 differs")

    def put(self, name: str, source: str) -> None:
        """Upload a file as a block blob, with its MD5."""
        with open(source, "rb") as body:
            first = body.read(BLOCK)
            if len(first) < BLOCK:
                headers = {"x-ms-blob-type": "BlockBlob", "Content-MD5": _md5(first)}
                self._call("PUT", name, {}, headers, first)
                return
            digest, block = hashlib.md5(), first
            ids: list[str] = []
            while block:
                block_id = base64.b64encode(b"%08d" % len(ids)).decode()
                self._call("PUT", name, {"comp": "block", "blockid": block_id}, {"Content-MD5": _md5(block)}, block)
                digest.update(block)
                ids.append(block_id)
                block = body.read(BLOCK)
        listing = "".join(f"<Latest>{block_id}</Latest>" for block_id in ids)
        xml_body = (f"<?xml version='1.0' encoding='utf-8'?><BlockList>{listing}</BlockList>").encode()
        headers = {"x-ms-blob-content-md5": base64.b64encode(digest.digest()).decode()}
        self._call("PUT", name, {"comp": "blocklist"}, headers, xml_body)

    def append(self, name: str, source: str) -> None:
        """Bring the append blob ``name`` up to what ``source`` holds now; a longer blob is begun again."""
        there = self.size(name)
        if there is None or there > os.path.getsize(source):
            self._call("PUT", name, {}, {"x-ms-blob-type": "AppendBlob", "Content-Type": "text/plain"}, b"")
            there = 0
        with open(source, "rb") as body:
            body.seek(there)
            for block in iter(lambda: body.read(APPEND_BLOCK), b""):
                # A block that arrived although its answer was lost must not be written twice.
                headers = {"x-ms-blob-condition-appendpos": str(there)}
                try:
                    self._call("PUT", name, {"comp": "appendblock"}, headers, block)
                except BlobError as error:
                    if error.status != 412 or self.size(name) != there + len(block):
                        raise
                there += len(block)

    def _call(
        self,
        method: str,
        name: str,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[Any, bytes]:
        for attempt in range(TRIES):
            try:
                with self._open(method, name, query or {}, headers or {}, body) as answer:
                    return answer.headers, answer.read()
            except (OSError, http.client.HTTPException, BlobError) as error:
                if attempt == TRIES - 1 or not _worth_retrying(error):
                    where = name or self._url.rpartition("/")[2]
                    raise BlobError(f"{method} {where}: {_reason(error)}", _status(error)) from None
            time.sleep(_pause(attempt))
        raise AssertionError("unreachable")

    def _open(self, method: str, name: str, query: dict[str, str], headers: dict[str, str], body: bytes | None) -> Any:
        path = "/" + urllib.parse.quote(name, safe="/-._~") if name else ""
        text = "&".join(part for part in (urllib.parse.urlencode(query), self._sas) if part)
        request = urllib.request.Request(f"{self._url}{path}?{text}", data=body, method=method)
        for key, value in {"x-ms-version": API_VERSION, **headers}.items():
            request.add_header(key, value)
        if body is not None and not request.has_header("Content-type"):
            request.add_header("Content-Type", "application/octet-stream")
        try:
            return urllib.request.urlopen(request, timeout=120)
        except urllib.error.HTTPError as error:
            with error:
                code = error.headers.get("x-ms-error-code") or error.reason
            raise BlobError(f"{code} (HTTP {error.code})", error.code) from None


def _listed_name(blob: Any) -> str:
    element = blob.find("Name")
    text = element.text or ""
    # Names that XML cannot hold come percent-encoded.
    return urllib.parse.unquote(text) if element.get("Encoded") == "true" else text


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()


def _status(error: BaseException) -> int:
    return error.status if isinstance(error, BlobError) else 0


def _worth_retrying(error: BaseException) -> bool:
    return _status(error) in (0, 408, 429) or _status(error) >= 500


def _reason(error: BaseException) -> str:
    # URLError's reason is safe; its other texts may quote the URL.
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__


def _pause(attempt: int) -> float:
    return float(min(0.25 * 2**attempt, 20.0))


class Ranks(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    local_size: int
    node_rank: int


# How each launcher tells a process who it is: rank, local rank, node rank. Open MPI comes first: its daemons, and
# so their children, also have the Slurm names, but those are the daemons' ranks. It has no name for the node's.
RANK_NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    ("PMI_RANK", "MPI_LOCALRANKID", "NODE_RANK"),
    ("RANK", "LOCAL_RANK", "NODE_RANK"),
)


class Job:
    """The specification, this node's place in it, and where its files are."""

    def __init__(self, spec: dict[str, Any], secrets: dict[str, Any], place: argparse.Namespace) -> None:
        self.spec = spec
        self.options: dict[str, Any] = spec["options"]
        self.run_id = str(spec["run_id"])
        self.procs = int(spec["procs_per_node"])
        self.world_size = int(spec["nodes"]) * self.procs
        self.node_rank = place.node_rank
        # Each task of a Slurm array has its own logs and its own code.
        number = os.environ.get("SLURM_ARRAY_TASK_ID")
        self.task = f"task_{number}" if number else ""
        self.run_dir = os.path.join(os.path.abspath(place.run_dir), self.task)
        self.node_log = os.path.join(self.run_dir, "system_logs", f"node_{self.node_rank}.txt")
        self.keep_root = place.keep_root
        self.sync_seconds = float(place.sync_seconds)
        self._sas: dict[str, str] = secrets.get("sas", {})
        self.secret_env: dict[str, str] = secrets.get("env", {})
        self._hidden = _forms([*self.secret_env.values(), *self._sas.values()])
        self.root = os.path.abspath(place.root or _scratch_root(self.run_id + self.task, place.node_rank))
        self.owns_parent = not place.root
        self.work_dir = os.path.join(self.root, str(self.options.get("work_dir", "")))
        # Without a code archive the job runs where it is, and that directory is not ours to remove.
        self.in_place = not spec.get("code")
        # Whether somebody asked for the job's end.
        self.stopped = False

    def beside(self, name: str) -> str:
        """A file of ours beside the root; never beside a directory that is the user's own."""
        return f"{self.run_dir}/node_{self.node_rank}.{name}" if self.in_place else f"{self.root}.{name}"

    def container(self, url: str) -> Container:
        if url not in self._sas:
            raise BlobError(f"no access to {url} was handed over")
        return Container(url, self._sas[url])

    def redacted(self, text: str) -> str:
        """Every text of ours goes through here, to whatever place."""
        for secret in self._hidden:
            text = text.replace(secret, "***")
        return text

    def complain(self, text: str) -> None:
        sys.stderr.write(self.redacted(text) + "\n")

    def say(self, text: str) -> None:
        """A line of ours, in this node's log; never in the user's."""
        os.makedirs(os.path.dirname(self.node_log), exist_ok=True)
        with open(self.node_log, "a", encoding="utf-8") as log:
            log.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + self.redacted(text) + "\n")

    def folders(self, mode: str) -> list[dict[str, Any]]:
        return [entry for entry in self.spec["folders"] if entry["mode"] == mode]

    def rank_log(self, rank: int) -> str:
        name = "std_log.txt" if self.world_size == 1 else f"std_log_process_{rank}.txt"
        return os.path.join(self.run_dir, "user_logs", name)


def _forms(secrets: list[str]) -> list[str]:
    """Secrets, and the signatures in them, as an error or a URL may show them; the longest first."""
    given = [text.strip().lstrip("?") for text in secrets]
    given += [text.strip() for text in re.findall(r"\bsig[=]([^&\n]+)", "\n".join(given))]
    plain = [urllib.parse.unquote(text) for text in given]
    encoded = [urllib.parse.quote(text, safe=safe) for text in (*given, *plain) for safe in ("", IN_URLS)]
    return sorted({*given, *plain, *encoded} - {""}, key=len, reverse=True)


def _scratch_root(run_id: str, node_rank: int) -> str:
    given = os.environ.get("BLOBSYNC_SCRATCH")
    base = given or os.path.join(tempfile.gettempdir(), f"blobsync-{os.getuid()}")
    os.makedirs(base, mode=0o700, exist_ok=True)
    found = os.lstat(base)
    if not given and (stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022):
        # Its name can be told beforehand: somebody else on this node was first.
        base = os.path.expanduser("~/.local/state/blobsync/scratch")
    node = os.environ.get("SLURMD_NODENAME") or f"node{node_rank}"
    return os.path.join(base, run_id, node)


@contextmanager
def node_lock(job: Job) -> Iterator[None]:
    """One process of this node at a time; the kernel lets go of it when its holder dies."""
    os.makedirs(os.path.dirname(job.root), exist_ok=True)
    with open(job.beside("lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def prepare(job: Job) -> int:
    """Make this node ready, once: whoever comes second finds it done. Raises ``SetupError``."""
    attempt = os.environ.get("SLURM_RESTART_COUNT", "0")
    ready, failed = job.beside("ready"), job.beside("failed")
    with node_lock(job):
        if os.path.exists(ready):
            return 0
        if _read_text(failed).startswith(attempt + "\n"):
            raise SetupError(_read_text(failed).partition("\n")[2])
        try:
            probe(job)
            unpack_code(job)
            place_folders(job)
            run_setup(job)
        except Exception as error:
            text = job.redacted(str(error) or type(error).__name__)
            job.say("setup failed: " + text)
            _write_text(failed, attempt + "\n" + text)
            raise SetupError(text) from error
        except SystemExit:
            # Stopped meanwhile: nobody comes back for what is here.
            clean_up(job, 128 + signal.SIGTERM)
            raise
        _write_text(ready, attempt)
        job.say(f"ready: {job.root}")
        return 0


def unpack_code(job: Job) -> None:
    """Fetch the code archive (or a blob folder of code), check it, unpack it beside its place, rename."""
    code = job.spec.get("code")
    if not code:
        if not os.path.isdir(job.root):
            raise SetupError(f"there is no directory {job.root}")
        return
    if os.path.isdir(job.root):
        job.say("an earlier attempt did not finish; beginning again")
        remove_root(job)
    fresh = tempfile.mkdtemp(prefix=os.path.basename(job.root) + ".new-", dir=os.path.dirname(job.root))
    archive = fresh + ".zip"
    try:
        started = time.monotonic()
        if code["blob"].endswith(".zip"):
            job.container(code["container"]).get(code["blob"], archive)
            unzip(archive, fresh, str(code["digest"]), int(code.get("size") or 0))
        else:
            folder = {"name": "code", "container": code["container"], "path": code["blob"], "include": []}
            download(job, folder, fresh)
        os.chmod(fresh, 0o755)
        os.rename(fresh, job.root)
        job.say(f"code {code['digest'][:12]} unpacked in {time.monotonic() - started:.1f} s")
    finally:
        with suppress(OSError):
            os.remove(archive)
        shutil.rmtree(fresh, ignore_errors=True)


def unzip(archive: str, target: str, digest: str, size: int) -> None:
    """Unpack with run bits and symbolic links, once names, ``size`` (bytes of all files; 0: not known) and ``digest``
    (empty: not known) are as they should be; nothing may come to lie, or point, outside ``target``.

    The digest is SHA-256 over ``<mode> <sha256> <path>`` and a zero byte for each file, by name, mode being 644, 755 or
    link. ``blobsync init`` names the archive by it. Raises ``SetupError``.
    """
    base, links = os.path.realpath(target), []
    limit = size + OWN_BYTES if size else max(SMALL_CODE, UNPACKED_RATIO * os.path.getsize(archive))
    with zipfile.ZipFile(archive) as source:
        members: dict[str, zipfile.ZipInfo] = {}
        for item in source.infolist():
            path = _inside(base, item.filename[:-1] if item.is_dir() else item.filename)
            # No more than this is ever unpacked of a member, whatever its stream holds.
            limit -= item.file_size
            if limit < 0 or members.setdefault(path, item) is not item:
                raise SetupError(f"the code archive holds {item.filename!a} twice, or is larger than it should be")
        if digest and digest != _digest(source):
            raise SetupError("the code archive does not hold the code that was submitted")
        for path, item in members.items():
            os.makedirs(path if item.is_dir() else os.path.dirname(path), exist_ok=True)
            if _kind(item) == "link":
                links.append((path, os.fsdecode(source.read(item))))
            elif not item.is_dir():
                with source.open(item) as stream, open(path, "xb") as sink:
                    shutil.copyfileobj(stream, sink, 1 << 20)
                os.chmod(path, int(_kind(item), 8))
    _place_links(base, links)


def _place_links(base: str, links: list[tuple[str, str]]) -> None:
    """They come last, never in a folder's place: nothing is written through one, and it is known where each leads."""
    for path, to in links:
        os.symlink(to, path)
    for path, to in links:
        if os.path.isabs(to) or not (os.path.realpath(path) + os.sep).startswith(base + os.sep):
            raise SetupError(f"the code archive holds a link that leads outside: {path[len(base) + 1 :]} -> {to}")


def _kind(item: zipfile.ZipInfo) -> str:
    mode = item.external_attr >> 16
    return "link" if stat.S_ISLNK(mode) else "755" if mode & 0o100 else "644"


def _digest(source: zipfile.ZipFile) -> str:
    lines = ""
    for item in sorted(source.infolist(), key=lambda item: item.filename):
        if not item.is_dir() and item.filename != MANIFEST:
            digest = hashlib.sha256()
            with source.open(item) as stream:
                for chunk in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(chunk)
            lines += f"{_kind(item)} {digest.hexdigest()} {item.filename}\0"
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def name_problem(name: str, base: str = "") -> str:
    """Why a name from outside must not become a path below ``base``; the rules are those of blobsync itself."""
    parts = name.split("/")
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in (f"{base}/{name}", *parts)]
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        return "has a NUL character, or a part that is empty, '.' or '..': it would lead outside"
    if sizes[0] > PATH_BYTES or max(sizes[1:]) > NAME_BYTES or re.search("[\ud800-\udfff]", name):
        return "is too long, or not valid Unicode"
    return "has the form of an unfinished download" if PART.fullmatch(parts[-1]) else ""


def _inside(base: str, name: str) -> str:
    problem = name_problem(name, base)
    if problem:
        raise SetupError(f"the name {name!a} {problem}")
    return os.path.join(base, name)


def place_folders(job: Job) -> None:
    """Put each folder entry at ``$ROOT/<name>``, outer folders before the ones inside them."""
    for entry in sorted(job.spec["folders"], key=lambda one: str(one["name"])):
        path = os.path.join(job.root, entry["name"])
        _clear_way(job, path, entry)
        inner = [one["name"][len(entry["name"]) + 1 :] for one in job.spec["folders"] if _is_below(one, entry)]
        if entry["mode"] == "link" and entry.get("read_only") and inner:
            _spread(path, entry["source"], inner)
        elif entry["mode"] == "link":
            _link(path, entry)
        elif entry["mode"] in ("mount", "ro_mount"):
            _mount(job, path, entry)
        elif entry["mode"] == "download":
            os.makedirs(path, exist_ok=True)
            download(job, entry, path)
        elif entry["mode"] == "upload":
            os.makedirs(path, exist_ok=True)
            if os.environ.get("SLURM_RESTART_COUNT", "0") != "0":
                # What the earlier attempt left is where a job that goes on finds its checkpoints.
                download(job, entry, path)
        else:
            raise SetupError(f"folder {entry['name']}: there is no mode {entry['mode']!r}")


def _clear_way(job: Job, path: str, entry: dict[str, Any]) -> None:
    """An entry wins over what the code archive has at its place, but never writes through another entry's link."""
    parent = os.path.realpath(os.path.dirname(path))
    outside = not (parent + os.sep).startswith(os.path.realpath(job.root) + os.sep)
    same = entry["mode"] == "link" and os.path.realpath(path) == os.path.realpath(entry["source"])
    if outside and not same:
        raise SetupError(f"folder {entry['name']} lies inside another folder that is linked to {parent}")
    if job.in_place or same:
        return
    if os.path.islink(path) or os.path.isfile(path):
        os.remove(path)
    elif os.path.isdir(path):
        shutil.rmtree(path)


def _link(path: str, entry: dict[str, Any]) -> None:
    os.makedirs(entry["source"], exist_ok=True)
    if os.path.realpath(path) != os.path.realpath(entry["source"]):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(entry["source"], path)


def _is_below(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return str(one["name"]).startswith(f"{other['name']}/")


def _spread(path: str, source: str, inner: list[str]) -> None:
    """What is in ``source``, which is only read, as links in a directory that has room for the folders ``inner``."""
    os.makedirs(path)
    ways = {name.split("/")[0] for name in inner}
    for name in os.listdir(source):
        below = os.path.join(source, name)
        if name not in ways:
            os.symlink(below, os.path.join(path, name))
        elif name not in inner and os.path.isdir(below):
            deeper = [one.partition("/")[2] for one in inner if one.startswith(f"{name}/")]
            _spread(os.path.join(path, name), below, deeper)


def _mount(job: Job, path: str, entry: dict[str, Any]) -> None:
    program = shutil.which("blobfuse2")
    if not program:
        raise SetupError(f"folder {entry['name']} has mode mount, and this node has no blobfuse2; use mode download")
    os.makedirs(path, exist_ok=True)
    endpoint, _, container = entry["container"].rpartition("/")
    account = urllib.parse.urlsplit(endpoint).netloc.split(".")[0]
    cache = job.beside("cache-" + entry["name"].replace("/", "-"))
    env = dict(
        os.environ,
        AZURE_STORAGE_ACCOUNT=account,
        AZURE_STORAGE_BLOB_ENDPOINT=endpoint,
        AZURE_STORAGE_ACCOUNT_CONTAINER=container,
        AZURE_STORAGE_AUTH_TYPE="sas",
        AZURE_STORAGE_SAS_TOKEN=job._sas.get(entry["container"], ""),
    )
    command = [program, "mount", path, "--tmp-path=" + cache, "--container-name=" + container]
    if entry["mode"] == "ro_mount":
        command.append("--read-only=true")
    if entry["path"]:
        command += ["--virtual-directory=true", "--subdirectory=" + entry["path"]]
    if entry.get("cache_seconds"):
        command.append(f"--file-cache-timeout={entry['cache_seconds']}")
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    job.say(f"mount {entry['name']}: {done.stdout.decode('utf-8', 'replace').strip() or 'done'}")
    if done.returncode:
        raise SetupError(f"folder {entry['name']}: blobfuse2 could not mount it (exit {done.returncode})")


def download(job: Job, entry: dict[str, Any], target: str) -> None:
    """Bring the folder, or the included parts of it; a file of the same size that is there already stays."""
    started, store = time.monotonic(), job.container(entry["container"])
    wanted = list(_wanted(store, entry))
    base = os.path.realpath(target)
    halt = threading.Event()

    def bring(one: RemoteFile) -> int:
        name = one.name[len(entry["path"]) + 1 :] if entry["path"] else one.name
        path = _inside(base, name)
        if os.path.exists(path) and os.path.getsize(path) == one.size:
            return 0
        os.makedirs(os.path.dirname(path), exist_ok=True)
        part = os.path.join(os.path.dirname(path), f".blobsync-{random.getrandbits(32):08x}.part")
        store.get(one.name, part, halt)
        os.replace(part, path)
        return one.size

    with ThreadPoolExecutor(DOWNLOADS) as pool:
        try:
            moved = sum(pool.map(bring, wanted))
        finally:
            # After a failure, or when the job is stopped, the pool waits for what is under way: whole files.
            halt.set()
    job.say(f"{entry['name']}: {len(wanted)} files, {moved} bytes in {time.monotonic() - started:.1f} s")


def _wanted(store: Container, entry: dict[str, Any]) -> Iterator[RemoteFile]:
    prefix = entry["path"] + "/" if entry["path"] else ""
    if not entry["include"]:
        yield from store.list(prefix)
        return
    for part in entry["include"]:
        plain = part.strip("/")
        if any(letter in plain for letter in "*?["):
            yield from (one for one in store.list(prefix) if fnmatch.fnmatchcase(one.name[len(prefix) :], plain))
            continue
        found = [one for one in store.list(prefix + plain) if (one.name + "/").startswith(prefix + plain + "/")]
        if not found:
            raise SetupError(f"folder {entry['name']}: there is nothing called {part} in the blob")
        yield from found


def run_setup(job: Job) -> None:
    env = user_env(job, ranks_of_node(job)[0])
    for line in job.spec["setup"]:
        job.say("setup: " + line)
        with open(job.node_log, "ab") as log:
            done = subprocess.run(
                shell_line(line), cwd=job.root, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False
            )
        if done.returncode:
            raise SetupError(f"the setup command ended with {done.returncode}: {line}")


PROBES = (("nvidia-smi", "-L"), ("rocm-smi",), ("ibstatus",), ("df", "-h", "."))


def probe(job: Job) -> None:
    """What this node is, once, for whoever has to find out why a job went wrong there."""
    facts = (socket.gethostname(), f"{os.cpu_count()} CPUs", f"Python {sys.version.split()[0]}")
    job.say(f"node {job.node_rank} is {', '.join(facts)}")
    os.makedirs(os.path.dirname(job.root), exist_ok=True)
    for command in PROBES:
        if shutil.which(command[0]):
            job.say(f"$ {' '.join(command)}\n{_output(command, os.path.dirname(job.root))}")


def _output(command: tuple[str, ...], cwd: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return done.stdout.decode("utf-8", "replace").strip()


def remove_root(job: Job) -> None:
    """Take mounts off first; while one is still there nothing is removed."""
    for entry in job.folders("mount") + job.folders("ro_mount"):
        path = os.path.join(job.root, entry["name"])
        if os.path.ismount(path):
            subprocess.run(["fusermount3", "-u", path], check=False, stdin=subprocess.DEVNULL)
        if os.path.ismount(path):
            job.say(f"{path} is still mounted; {job.root} stays")
            return
    shutil.rmtree(job.root, ignore_errors=True)


def user_env(job: Job, ranks: Ranks) -> dict[str, str]:
    """The environment of the user's program: the job's values, and each name that launchers are known to set."""
    master = _master_address(job)
    derived = 20000 + int(hashlib.sha256(job.run_id.encode()).hexdigest(), 16) % 20000
    port = os.environ.get("MASTER_PORT") or str(derived)
    env = {**os.environ, **job.spec["env"], **job.secret_env}
    hosts = os.environ.get("BLOBSYNC_HOSTS") or os.environ.get("AZ_BATCH_HOST_LIST") or master
    env.update(
        RANK=str(ranks.rank),
        LOCAL_RANK=str(ranks.local_rank),
        WORLD_SIZE=str(ranks.world_size),
        LOCAL_WORLD_SIZE=str(ranks.local_size),
        NODE_RANK=str(ranks.node_rank),
        MASTER_ADDR=master,
        MASTER_PORT=port,
        OMPI_COMM_WORLD_RANK=str(ranks.rank),
        OMPI_COMM_WORLD_SIZE=str(ranks.world_size),
        OMPI_COMM_WORLD_LOCAL_RANK=str(ranks.local_rank),
        OMPI_COMM_WORLD_LOCAL_SIZE=str(ranks.local_size),
        AZ_BATCH_MASTER_NODE=f"{master}:{port}",
        AZ_BATCH_HOST_LIST=hosts,
        AZ_BATCHAI_JOB_MASTER_NODE_IP=master,
        AZ_BATCHAI_MPI_MASTER_NODE=master,
        AZ_BATCHAI_TASK_INDEX=str(ranks.node_rank),
        BLOBSYNC_RUN_ID=job.run_id,
        BLOBSYNC_ROOT=job.root,
        PYTHONUNBUFFERED=env.get("PYTHONUNBUFFERED", "1"),
    )
    return env


def _master_address(job: Job) -> str:
    for name in ("MASTER_ADDR", "AZ_BATCHAI_JOB_MASTER_NODE_IP"):
        if os.environ.get(name):
            return os.environ[name]
    if os.environ.get("AZ_BATCH_MASTER_NODE"):
        return os.environ["AZ_BATCH_MASTER_NODE"].rpartition(":")[0]
    return "127.0.0.1" if job.spec["nodes"] == 1 else socket.gethostname()


def shell_line(line: str) -> list[str]:
    return [shutil.which("bash") or "/bin/sh", "-c", line]


def command_of(job: Job) -> list[str]:
    """The user's argument vector as it was given; one argument with white space in it is a shell line."""
    argv, prefix = [str(part) for part in job.spec["argv"]], str(job.options.get("command_prefix", ""))
    if len(argv) == 1 and any(letter.isspace() for letter in argv[0].strip()):
        return shell_line(f"{prefix} {argv[0]}".strip())
    return shlex.split(prefix) + argv


class Process:
    """One process of the user's, in a group of its own."""

    def __init__(self, job: Job, ranks: Ranks, log: str | None) -> None:
        self.returncode: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        command = command_of(job)
        self._is_shell_line = command[:2] == shell_line("")[:2]
        # A rank's log, or our own output.
        os.makedirs(os.path.dirname(log or job.node_log), exist_ok=True)
        with open(log or os.devnull, "ab") as sink:
            try:
                self._child = subprocess.Popen(
                    command,
                    cwd=job.work_dir,
                    env=user_env(job, ranks),
                    stdin=subprocess.DEVNULL,
                    stdout=sink if log else None,
                    stderr=subprocess.STDOUT if log else None,
                    start_new_session=True,
                )
            except OSError as error:
                # What a shell answers: 127 for a program that is not there, 126 for one that may not be run.
                self.returncode = 127 if isinstance(error, FileNotFoundError) else 126
                text = job.redacted(f"cannot start {command[0]}: {error.strerror}\n")
                os.write(sink.fileno() if log else 2, text.encode("utf-8", "replace"))

    def poll(self) -> int | None:
        if self._child is not None:
            code = self._child.poll()
            self.returncode = code if code is None or code >= 0 else 128 - code
        return self.returncode

    def signal(self, number: int) -> None:
        """What ends a program goes to all it started; anything else only to itself."""
        if self._child is not None and self._child.poll() is None:
            to_all = self._is_shell_line or number in (*ENDING, signal.SIGKILL)
            with suppress(ProcessLookupError, PermissionError):
                (os.killpg if to_all else os.kill)(self._child.pid, number)

    def warn(self, number: int) -> bool:
        """Warn the program, or what it runs if that is what listens; False while nobody does.

        Workers inherit their parent's handler: only the topmost process that listens is meant.
        """
        if self._child is None or self._child.poll() is not None:
            return True
        listening = listeners(self._child.pid, number)
        for pid in [pid for pid, parent in listening.items() if parent not in listening]:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return bool(listening)

    def sweep(self) -> None:
        """End what the process left running behind itself."""
        if self._child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, signal.SIGKILL)


def listeners(group: int, number: int) -> dict[int, int]:
    """Processes of a group that catch a signal, or block it to wait for it, with their parents; see proc(5)."""
    if not os.path.isdir("/proc/self"):
        return {group: 0}
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        # A process may end while we look.
        with suppress(OSError, ValueError):
            _, parent, its_group = _read_text(f"/proc/{name}/stat").rpartition(")")[2].split()[:3]
            masks = re.findall(r"^Sig(?:Cgt|Blk):\s*(\w+)", _read_text(f"/proc/{name}/status"), re.MULTILINE)
            if int(its_group) == group and any(int(mask, 16) >> (number - 1) & 1 for mask in masks):
                found[int(name)] = int(parent)
    return found


def run_processes(job: Job, log_of: Callable[[Ranks], str | None], all_ranks: list[Ranks]) -> int:
    """Start and wait; the first process that fails ends the others. Signals that reach us go on to them.

    A node's processes end with whoever started the runner: nobody else would know of them.
    """
    processes: list[Process] = []
    stopping, parent = Stopping(job, processes), os.getppid()
    for number in FORWARDED:
        signal.signal(number, hold)
    processes.extend(Process(job, ranks, log_of(ranks)) for ranks in all_ranks)
    while True:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            break
        stopping.look(next((code for code in codes if code), 0 if os.getppid() == parent else 128 + signal.SIGTERM))
        time.sleep(0.05)
    # Slurm may have told the program and us at once.
    stopping.look(0)
    for process in processes:
        process.sweep()
    code = stopping.first_failure or next((code for code in codes if code), 0) or 0
    if job.options.get("sleep_if_fail" if code else "sleep_if_succeed"):
        job.say(f"the command ended with {code}; the node stays until a signal, as the cluster file says")
        while not HELD:
            time.sleep(0.2)
    for number in ENDING:
        signal.signal(number, stopping.give_up)
    return code


def hold(number: int, _frame: Any) -> None:
    HELD.append(number)


class Stopping:
    """How a group of processes is told of signals and ended: asked first, killed later."""

    def __init__(self, job: Job, processes: list[Process]) -> None:
        self._job = job
        self._processes = processes
        self._warnings: list[tuple[Process, int]] = []
        self._look_again_at = 0.0
        self._asked_at = 0.0
        self._failed_at = 0.0
        self._told = False
        self.first_failure = 0

    def look(self, failure: int) -> None:
        """What has to be done now; ``failure`` is the code of a process that failed, or 0."""
        while HELD:
            self._forward(HELD.pop(0))
        if self._warnings and time.monotonic() >= self._look_again_at:
            # Reading what all processes of a node do is not free.
            self._look_again_at = time.monotonic() + 1.0
            self._warnings = [(process, number) for process, number in self._warnings if not process.warn(number)]
        if failure and not self._asked_at and not self.first_failure:
            self.first_failure, self._failed_at = failure, time.monotonic()
        since = time.monotonic() - self._failed_at
        if self.first_failure and since > TOGETHER_SECONDS and not self._told:
            self._told = True
            self._signal(signal.SIGTERM)
        if self.first_failure and since > TOGETHER_SECONDS + TERM_TO_KILL_SECONDS:
            self._signal(signal.SIGKILL)

    def _forward(self, number: int) -> None:
        """Asked from outside, a program may take its time to save what it has, until it is asked again.

        Not at once, though: Slurm's daemon and srun both pass one request on.
        """
        if number in WARNINGS:
            self._job.say(f"{signal.Signals(number).name} came; it is passed on to a program that catches it")
            self._warnings += [(process, number) for process in self._processes]
            self._look_again_at = 0.0
            return
        again = number in ENDING and self._is_asked_again()
        self._signal(signal.SIGKILL if again else number)

    def give_up(self, number: int, _frame: Any) -> None:
        """When the program has ended, what it left is brought out in peace, until somebody asks again."""
        if self._is_asked_again():
            sys.exit(128 + number)

    def _is_asked_again(self) -> bool:
        now = time.monotonic()
        self._asked_at = self._asked_at or now
        self._job.stopped = True
        return now - self._asked_at > TERM_TO_KILL_SECONDS / 2

    def _signal(self, number: int) -> None:
        for process in self._processes:
            process.signal(number)


class Keeper:
    """Carries outputs and logs to the container while the job runs, and once more at its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._done = threading.Event()
        self._sent: dict[str, list[int]] = json.loads(_read_text(job.beside("sent")) or "{}")
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> bool:
        """The last round; False when something could not be brought out."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        return self.round(final=True)

    def round(self, final: bool) -> bool:
        with self._lock:
            done = [self._upload(entry, final) for entry in self._job.folders("upload")]
            return all([*done, self._mirror()])

    def _loop(self) -> None:
        while not self._done.wait(self._job.sync_seconds):
            self._job.say(heartbeat(self._job))
            self.round(final=False)

    def _upload(self, entry: dict[str, Any], final: bool) -> bool:
        """What is new since the last round; a file that is being written is left for a later one."""
        base = os.path.join(self._job.root, entry["name"])

        def bring_out(path: str) -> bool:
            name = "/".join(part for part in (entry["path"], os.path.relpath(path, base)) if part)
            try:
                facts = os.stat(path)
                now = [facts.st_size, facts.st_mtime_ns]
                if self._sent.get(path) != now and (final or time.time() - facts.st_mtime > SETTLED_SECONDS):
                    self._job.container(entry["container"]).put(name, path)
                    self._sent[path] = now
            except FileNotFoundError:
                pass
            except (BlobError, OSError) as error:
                self._job.say(f"upload of {name}: {error}")
                return False
            return True

        with ThreadPoolExecutor(UPLOADS) as pool:
            fine = all(list(pool.map(bring_out, sorted(_files_below(base)))))
        # Another process of this node may do the last round.
        _write_text(self._job.beside("sent"), json.dumps(self._sent))
        return fine

    def _mirror(self) -> bool:
        target, fine = self._job.spec.get("logs"), True
        if not target:
            return True
        for path in self._own_logs():
            name = "/".join([target["path"], *self._job.task.split(), os.path.relpath(path, self._job.run_dir)])
            try:
                self._job.container(target["container"]).append(name, path)
            except (BlobError, OSError) as error:
                # Not into the log that cannot be brought out: it would never come to rest.
                self._job.complain(f"blobsync: log {os.path.basename(path)} is not mirrored: {error}")
                fine = False
        return fine

    def _own_logs(self) -> list[str]:
        first = self._job.node_rank * self._job.procs
        logs = [self._job.rank_log(rank) for rank in range(first, first + self._job.procs)]
        return [path for path in [*logs, self._job.node_log] if os.path.isfile(path)]


def _files_below(base: str) -> Iterator[str]:
    for folder, _, names in os.walk(base, followlinks=False):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not PART.fullmatch(name):
                yield path


def heartbeat(job: Job) -> str:
    disk = shutil.disk_usage(job.root if os.path.isdir(job.root) else "/")
    parts = [
        f"heartbeat: disk {disk.free / 1e9:.0f} of {disk.total / 1e9:.0f} GB free",
        f"load {os.getloadavg()[0]:.1f}",
    ]
    if shutil.which("nvidia-smi"):
        query = ("nvidia-smi", "--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")
        used = [line.replace(", ", "%/") + "MB" for line in _output(query, "/").splitlines()]
        parts.append("GPU " + " ".join(used))
    return ", ".join(parts)


def do_exec(job: Job, log: bool) -> int:
    """One process, started by a launcher; the node's first one looks after outputs and logs."""
    ranks = ranks_from_environment(job)
    prepare(job)
    keeper = Keeper(job) if ranks.local_rank == 0 else None
    if keeper:
        keeper.start()
    done = job.beside(f"done{ranks.local_rank}")
    with suppress(FileNotFoundError):
        os.remove(done)
    # From here on a warning is not lost; only Slurm's batch script makes the directory, and waits for it to fill.
    with suppress(FileNotFoundError):
        _write_text(os.path.join(job.run_dir, "up", str(ranks.rank)), "")
    code = run_processes(job, lambda one: job.rank_log(one.rank) if log else None, [ranks])
    _write_text(done, str(code))
    if keeper:
        alone = _wait_for_the_others(job, code)
        if not keeper.stop():
            return code or OUTPUT_FAILED
        if alone and (code or job.stopped):
            # Slurm starts nothing more for a job that was cancelled, "finish" neither.
            clean_up(job, code)
    return code


def _wait_for_the_others(job: Job, code: int) -> bool:
    """Their last outputs have to be there before the last upload; after a failure the launcher ends them anyway.

    True when all of them have ended.
    """
    until = time.monotonic() + (TERM_TO_KILL_SECONDS if job.stopped else 60.0 if code == 0 else 2.0)
    waiting = [job.beside(f"done{local_rank}") for local_rank in range(job.procs)]
    while not all(os.path.exists(path) for path in waiting):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def do_node(job: Job) -> int:
    """All processes of this node."""
    keeper = Keeper(job)
    try:
        prepare(job)
    except SetupError:
        keeper.stop()
        clean_up(job, SETUP_FAILED)
        raise
    keeper.start()
    _write_text(os.path.join(job.run_dir, "phase"), "running")
    code = run_processes(job, lambda one: job.rank_log(one.rank), ranks_of_node(job))
    job.say(f"the command ended with {code}")
    if not keeper.stop():
        return code or OUTPUT_FAILED
    clean_up(job, code)
    return code


def do_here(job: Job) -> int:
    """One process becomes the command itself, so that a debugger has the terminal; several are looked after."""
    ranks = ranks_of_node(job)
    if len(ranks) == 1:
        command = command_of(job)
        os.chdir(job.work_dir)
        try:
            os.execvpe(command[0], command, user_env(job, ranks[0]))
        except OSError as error:
            job.complain(f"cannot start {command[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126
    return run_processes(job, lambda _: None, ranks)


def do_finish(job: Job, code: int) -> int:
    if not Keeper(job).stop():
        return OUTPUT_FAILED
    clean_up(job, code)
    return 0


def clean_up(job: Job, code: int) -> None:
    if job.in_place or job.keep_root == "always" or (job.keep_root == "failed" and code):
        return
    # First what says that the root is ready: a job that is queued again may come back to this node.
    for path in glob.glob(glob.escape(job.root) + ".*"):
        with suppress(OSError):
            os.remove(path)
    remove_root(job)
    if job.owns_parent:
        with suppress(OSError):
            os.rmdir(os.path.dirname(job.root))


def ranks_of_node(job: Job) -> list[Ranks]:
    first = job.node_rank * job.procs
    return [Ranks(first + local, local, job.world_size, job.procs, job.node_rank) for local in range(job.procs)]


def ranks_from_environment(job: Job) -> Ranks:
    for rank, local_rank, node_rank in RANK_NAMES:
        if rank in os.environ:
            number = int(os.environ[rank])
            local = int(os.environ.get(local_rank, number % job.procs))
            node = int(os.environ.get(node_rank, number // job.procs))
            return Ranks(number, local, job.world_size, job.procs, node)
    return Ranks(0, 0, job.world_size, job.procs, 0)


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as body:
            return body.read()
    except FileNotFoundError:
        return ""


def _write_text(path: str, text: str) -> None:
    fresh = f"{path}.{os.getpid()}"
    with open(fresh, "w", encoding="utf-8") as body:
        body.write(text)
    os.replace(fresh, path)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="runner.py")
    parser.add_argument("verb", choices=("prepare", "exec", "node", "finish", "here"))
    parser.add_argument("--job", required=True, help="the job's specification")
    parser.add_argument("--secrets", help="a file that only the owner can read")
    parser.add_argument("--run-dir", required=True, help="where the job's logs are")
    parser.add_argument("--root", help="where the code goes; without it, a directory of this node")
    parser.add_argument("--node-rank", type=int)
    parser.add_argument("--log", action="store_true", help="exec: write the rank's log ourselves")
    parser.add_argument("--code", type=int, default=0, help="finish: what the command ended with")
    parser.add_argument("--keep-root", choices=("never", "failed", "always"), default="never")
    parser.add_argument("--sync-seconds", type=float, default=60.0)
    return parser.parse_args(argv)


def redact_tracebacks(job: Job) -> None:
    """A fault of ours may quote a URL; so may the library's."""

    def show(kind: Any, error: Any, trace: Any) -> None:
        job.complain("".join(traceback.format_exception(kind, error, trace)).rstrip())

    sys.excepthook = show
    threading.excepthook = lambda args: show(args.exc_type, args.exc_value, args.exc_traceback)


def main(argv: list[str]) -> int:
    place = parse_arguments(argv)
    spec = json.loads(_read_text(place.job))
    secrets = json.loads(_read_text(place.secrets) or "{}") if place.secrets else {}
    for number in WARNINGS:
        signal.signal(number, hold)
    # Until there are processes to pass it on to; cleaning up happens on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if place.node_rank is None:
            place.node_rank = int(os.environ.get("SLURM_NODEID") or os.environ.get("NODE_RANK") or 0)
            if place.verb == "exec":
                place.node_rank = ranks_from_environment(Job(spec, secrets, place)).node_rank
        job = Job(spec, secrets, place)
        redact_tracebacks(job)
        if place.verb == "finish":
            return do_finish(job, place.code)
        if place.verb == "exec":
            return do_exec(job, place.log)
        return {"prepare": prepare, "node": do_node, "here": do_here}[place.verb](job)
    except SetupError as error:
        sys.stderr.write(f"blobsync: this node could not be made ready: {error}\n")
        return SETUP_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
