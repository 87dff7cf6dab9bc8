"""How long a plan over a million entries takes, and how much memory: ``python -m benchmarks.million [--entries N]``.

The local side is a real tree of empty files, on a memory file system where there is one. The remote side is a server
that makes up List Blobs pages of 5,000 blobs as fast as it can, so that what is measured is blobsync: walking, parsing,
pairing, deciding, and holding the plan.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.measure import run
from benchmarks.tools import Blobsync, Place

_PAGE = 5_000
_PER_FOLDER = 1_000
_MD5 = b64encode(hashlib.md5(b"").digest()).decode()


def name_of(number: int) -> str:
    return f"f{number // _PER_FOLDER:05}/entry-{number:08}.jpg"


@lru_cache(maxsize=256)
def _page(start: int, total: int) -> bytes:
    blobs = "".join(
        f"<Blob><Name>base/tree/{name_of(number)}</Name><Properties><Last-Modified>Fri, 20 Nov 2026 10:00:00 GMT"
        f"</Last-Modified><Etag>0x8DE{number:012X}</Etag><Content-Length>0</Content-Length><Content-Type>image/jpeg"
        f"</Content-Type><Content-MD5>{_MD5}</Content-MD5><BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier>"
        "</Properties></Blob>"
        for number in range(start, min(start + _PAGE, total))
    )
    rest = f"<NextMarker>{start + _PAGE}</NextMarker>" if start + _PAGE < total else "<NextMarker />"
    results = f"<EnumerationResults><Blobs>{blobs}</Blobs>{rest}</EnumerationResults>"
    return f'<?xml version="1.0" encoding="utf-8"?>{results}'.encode()


@contextmanager
def listing_server(total: int) -> Iterator[str]:
    """``http://127.0.0.1:port`` of a service that holds ``total`` empty blobs and answers nothing but listings."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            body = _page(int(query.get("marker", ["0"])[0]), total)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(404)
            self.send_header("x-ms-error-code", "BlobNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def make_tree(root: Path, entries: int) -> None:
    for start in range(0, entries, _PER_FOLDER):
        folder = root / name_of(start).partition("/")[0]
        folder.mkdir(parents=True)
        handle = os.open(folder, os.O_RDONLY)
        for number in range(start, min(start + _PER_FOLDER, entries)):
            leaf = name_of(number).partition("/")[2]
            os.close(os.open(leaf, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=handle))
        os.close(handle)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million", description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--limit-mb", type=float, default=1024 * 1.048576, help="fail above this peak (1 GiB)")
    options = parser.parse_args(argv)
    memory = Path("/dev/shm")
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-million-", dir=memory if os.access(memory, os.W_OK) else None))
    ours = Blobsync(scratch)
    worst = 0.0
    try:
        make_tree(scratch / "full" / "data" / "tree", options.entries)
        (scratch / "bare" / "data").mkdir(parents=True)
        cases = (
            ("u", "full", 0, "upload, nothing is there yet"),
            ("d", "bare", options.entries, "download, nothing is here yet"),
            ("u", "full", options.entries, "upload, all of it is there, never verified before"),
        )
        for command, project, remote, title in cases:
            with listing_server(remote) as url:
                place = Place(
                    f"{url}/benchmark", "container", "base/tree", scratch / project / "data" / "tree", single=False
                )
                words = ours.bare("plan", command, "-q", "data/tree").argv
                sample = run(words, env={}, cwd=ours.project(place), log=scratch / "output.log", server=None)
            if sample.exit_code:
                sys.exit((scratch / "output.log").read_text(errors="replace")[-2000:])
            worst = max(worst, sample.peak_mb)
            print(
                f"{options.entries:,} entries, {title}: {sample.wall:.1f} s, CPU {sample.cpu:.1f} s, "
                f"peak {sample.peak_mb:.0f} MB, {sample.peak_mb * 1e6 / options.entries:.0f} bytes an entry",
                flush=True,
            )
            (scratch / "output.log").unlink()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if worst <= options.limit_mb else 1


if __name__ == "__main__":
    sys.exit(main())
