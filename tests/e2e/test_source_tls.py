"""Sources over TLS: with a certificate that is trusted, and with one that is not; and services that are far away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sources import COPY, MIB, configure, fill, receipt_of
from tests.e2e.world import Container, Project, hashes, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import CopySourceHandle, copy_source_proxy
from tests.servers.fault_proxy import FaultHandle, fault_proxy
from tests.servers.recording_server import RecordingServer
from tests.servers.s3 import S3Server, rclone_web_server
from tests.servers.tls_front import TlsFront, tls_front

pytestmark = pytest.mark.e2e

_FILES = random_files(41, 10, [9 * MIB])
_NOT_TRUSTED = "127.0.0.1 presented a TLS certificate that this machine does not trust"


@pytest.fixture
def watched(moto: S3Server) -> Iterator[FaultHandle]:
    with fault_proxy(moto.url) as proxy:
        yield proxy


@pytest.fixture
def secure(watched: FaultHandle) -> Iterator[TlsFront]:
    """moto, over TLS."""
    with tls_front(watched.url) as front:
        yield front


@pytest.fixture
def fetching(service: str, watched: FaultHandle, secure: TlsFront) -> Iterator[CopySourceHandle]:
    with copy_source_proxy(service, outside=[f"{secure.url}={watched.url}"]) as proxy:
        yield proxy


@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_a_bucket_is_copied_over_tls(
    engine: str,
    project: Project,
    moto: S3Server,
    bucket: str,
    secure: TlsFront,
    fetching: CopySourceHandle,
    container: Container,
) -> None:
    fill(moto, bucket, _FILES)
    configure(project, S3Server(secure.url), bucket)
    project.environ.update(AWS_CA_BUNDLE="", SSL_CERT_FILE=str(secure.certificate))
    project.configure(container, cluster="eu", url=fetching.url, sas=container.sas(), path="near/data")
    done = project.json(*COPY, "--engine", engine)
    assert done.code == 0 and container.contents("near/data/") == hashes(_FILES), done
    assert (fetching.stats().fetched > 0) is (engine == "direct")
    here = project.json("-c", "laion", "d", "data")
    assert here.code == 0 and read_tree(project.data) == hashes(_FILES), here


@pytest.mark.parametrize("empty", [True, False], ids=["an empty list", "no list"])
def test_a_bucket_whose_certificate_is_not_trusted_is_not_asked(
    empty: bool, project: Project, moto: S3Server, bucket: str, secure: TlsFront, watched: FaultHandle
) -> None:
    fill(moto, bucket, {"a.bin": b"a"})
    configure(project, S3Server(secure.url), bucket)
    bundles = ("AWS_CA_BUNDLE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
    project.before = (
        ("env", *(f"{name}=" for name in bundles)) if empty else ("env", *(f"-u{name}" for name in bundles))
    )
    done = project.json("-c", "laion", "d", "data")
    assert done.code == 1 and done.codes == {"storage_unreachable"}, done
    assert f"{secure.url}/{bucket}" in done.errors[0]["message"], done
    assert "a TLS certificate that this machine does not trust" in done.errors[0]["message"], done
    assert "SSL_CERT_FILE" in done.errors[0]["hint"], done
    assert watched.stats().requests == 0 and not project.data.exists()
    # boto3's own variable comes first.
    project.before = ()
    project.environ.update(AWS_CA_BUNDLE=str(secure.certificate), SSL_CERT_FILE="/nonexistent.pem")
    assert project.json("-c", "laion", "d", "data").code == 0


def test_files_of_the_web_are_copied_over_tls(
    project: Project, service: str, container: Container, tmp_path: Path
) -> None:
    write_tree(tmp_path / "served", _FILES)
    body = _FILES["large0.bin"]
    with (
        rclone_web_server(tmp_path / "served") as web,
        tls_front(web) as secure,
        copy_source_proxy(service, outside=[f"{secure.url}={web}"]) as copying,
    ):
        moved = f"HTTP/1.1 302 Found\r\nLocation: {secure.url}/large0.bin\r\nContent-Length: 0\r\n\r\n".encode()
        with RecordingServer({f"{verb} /old": moved for verb in ("HEAD", "GET")}) as old:
            project.configure(container, url=copying.url, sas=container.sas(), path="near/data")
            url = f"{secure.url}/large0.bin"
            refused = project.json("u", "data/one.bin", f"--source={url}")
            assert refused.code == 1 and refused.codes == {"storage_unreachable"}, refused
            assert _NOT_TRUSTED in refused.errors[0]["message"] and "SSL_CERT_FILE" in refused.errors[0]["hint"], (
                refused
            )
            assert not container.names()
            project.environ["SSL_CERT_FILE"] = str(secure.certificate)
            for engine in ("direct", "relay"):
                done = project.json("u", "data/one.bin", f"--source={url}", "--engine", engine, "--overwrite")
                assert done.code == 0 and container.get("near/data/one.bin") == body, done
                container.blob("near/data/one.bin").delete_blob()
            assert copying.stats().fetched == len(body)
            # From plain http on this machine to https at another port of it, which was not typed.
            elsewhere = project.json("u", "data/two.bin", f"--source={old.url}/old", "--engine", "relay")
            assert elsewhere.code == 2 and elsewhere.codes == {"access_denied"}, elsewhere
            assert f"BLOBSYNC_TRUSTED_BUCKETS={secure.url}" in elsewhere.errors[0]["hint"], elsewhere
            project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = secure.url
            there = project.json("u", "data/two.bin", f"--source={old.url}/old", "--engine", "relay")
            assert there.code == 0 and container.get("near/data/two.bin") == body, there
            here = project.json("d", "data/three.bin", f"--source={url}")
            assert here.code == 0 and (project.data / "three.bin").read_bytes() == body, here


def test_a_service_far_away_fetches_nothing_from_inside(
    project: Project, moto: S3Server, bucket: str, service: str, container: Container
) -> None:
    fill(moto, bucket, _FILES)
    configure(project, moto, bucket)
    # A host of the account's own name, which a proxy leads to Azurite.
    host = f"{container.account}.blobs.example"
    with copy_source_proxy(service, outside=[moto.url]) as copying, tls_front(copying.url, host) as far:
        project.configure(container, cluster="eu", path="near/data")
        config = project.root / "aux_data/configs/eu.yaml"
        config.write_text(config.read_text().replace(f"{service}/{container.account}", f"https://{host}"))
        project.environ.update(HTTPS_PROXY=far.proxy, NO_PROXY="127.0.0.1", SSL_CERT_FILE=str(far.certificate))
        project.environ["BLOBSYNC_TRUSTED_HOSTS"] = host
        plan = project.json("-c", "eu", "-f", "laion", "plan", "u", "data")
        assert plan.code == 0 and plan.data["engine"] == "relay", plan
        why = "127.0.0.1 is inside your network, where the service cannot fetch from"
        assert why in project.run("-c", "eu", "-f", "laion", "plan", "u", "data").out
        done = project.json(*COPY)
        assert done.code == 0 and container.contents("near/data/") == hashes(_FILES), done
        assert copying.stats().fetched == 0 and receipt_of(done)["data/large0.bin"]["compared_by"] == "md5"
