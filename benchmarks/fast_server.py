"""A server fast enough not to be the bottleneck: ``fast_blob_server.js``, run by the emulator's own Node.js."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from benchmarks.emulator import TOOLS, Emulator
from blobsync.base.process import ProcessRunner
from blobsync.emulator.nodejs import ensure_node
from tests.servers.tls_azurite import make_certificate

Crc64Mode = Literal["check", "ignore", "refuse"]

_SCRIPT = Path(__file__).with_name("fast_blob_server.js")


@contextmanager
def fast_server(
    *, tls: bool = False, tools: Path = TOOLS, crc64: Crc64Mode = "check", flat: int = 0, arrow: bool = False
) -> Iterator[Emulator]:
    """A fresh one, which ends with the block and with this process.

    ``tools`` may have a Node.js; ``crc64`` is how it treats the CRC64 of a block. ``flat`` empty blobs are in the
    folder ``base/tree`` of the container ``flat``; ``arrow``: flat listings come in Arrow's form to who asks for it.
    """
    node = ensure_node(tools, environ=os.environ, runner=ProcessRunner(), note=lambda _: None).node
    with ExitStack() as held:
        certificate = None
        words = [str(node), str(_SCRIPT), "--crc64", crc64, *(("--flat", str(flat)) if flat else ())]
        words += ["--arrow"] if arrow else []
        if tls:
            certificate, key = make_certificate(Path(held.enter_context(tempfile.TemporaryDirectory())))
            words += [str(certificate), str(key)]
        process = held.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        held.callback(process.terminate)
        assert process.stdout is not None
        yield Emulator(process.pid, process.stdout.readline().split()[-1], certificate)
