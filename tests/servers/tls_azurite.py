"""Azurite with TLS and OAuth, for tests of identities, certificates and https endpoints."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from blobsync.base.process import ProcessRunner
from blobsync.emulator.nodejs import ensure_node
from blobsync.emulator.server import QUICK_LOOKUPS, find_azurite

GUARD = Path(__file__).resolve().parents[2] / "blobsync" / "emulator" / "guard.js"
READY = re.compile(r"successfully listens on (https://127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class TlsAzurite:
    """``certificate`` is the PEM file for clients to trust."""

    url: str
    certificate: Path
    pid: int


@contextmanager
def tls_azurite(
    tools: Path, environ: Mapping[str, str], keys: Mapping[str, str], preloads: Sequence[Path] = (QUICK_LOOKUPS,)
) -> Iterator[TlsAzurite]:
    """Run Azurite in memory until the end of the block. ``keys`` by account; ``preloads`` are scripts for Node."""
    node = ensure_node(tools, environ=environ, runner=ProcessRunner(), note=lambda _: None).node
    script = find_azurite(tools, environ=environ)
    assert script is not None, "Azurite is not installed yet"
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = make_certificate(Path(folder))
        loaded = [word for each in (GUARD, *preloads) for word in ("-r", str(each))]
        argv = [str(node), *loaded, str(script), "--blobPort", "0", "--blobHost", "127.0.0.1", "--silent"]
        argv += ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--oauth", "basic"]
        argv += ["--cert", str(certificate), "--key", str(key)]
        known = ";".join(f"{name}:{text}" for name, text in keys.items())
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**environ, "AZURITE_ACCOUNTS": known, "BLOBSYNC_EMULATOR_WITH_PARENT": "1"},
        )
        with process:
            try:
                yield TlsAzurite(await_url(process), certificate, process.pid)
            finally:
                process.terminate()


def await_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = iter(process.stdout)
    said = []
    for line in lines:
        said.append(line)
        if ready := READY.search(line):
            # Keep reading its output, or it would block on a full pipe.
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
            return ready[1]
    raise AssertionError("Azurite did not start: " + "".join(said))


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and other names, and its key."""
    subjects = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, names)]
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(subjects), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files


def access_token(*, seconds: float = 3600) -> str:
    """A token for Azurite's basic check: valid claims, and a signature that is not verified."""
    now = int(time.time())
    claims = {
        "aud": "https://storage.azure.com",
        "iss": "https://sts.windows.net/ab1f708d-50f6-404c-a006-d71b2ac7a606/",
        "iat": now - 60,
        "nbf": now - 60,
        "exp": int(now + seconds),
        "oid": "11059fcc-5514-4800-b5f8-49808b9cfab6",
        "tid": "ab1f708d-50f6-404c-a006-d71b2ac7a606",
    }
    parts = [json.dumps({"alg": "HS256", "typ": "JWT"}), json.dumps(claims), "nobody signed this"]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
