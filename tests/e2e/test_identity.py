"""Account files without a key or SAS: the Azure CLI's identity, over https, with real azcopy."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.storage.blob import ContainerClient

from blobsync.emulator import new_key
from tests.conftest import FOR_INSTALLERS, TOOLS, Azurite
from tests.e2e.world import Container, Project, hashes, random_files, read_tree, sha256, write_tree
from tests.servers.tls_azurite import TlsAzurite, access_token, tls_azurite

pytestmark = pytest.mark.e2e

KEY = new_key().reveal()
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(azurite: Azurite) -> Iterator[TlsAzurite]:
    """Requires ``azurite`` so that the programs are installed."""
    with tls_azurite(TOOLS, FOR_INSTALLERS, {"one": KEY}) as running:
        yield running


@pytest.fixture
def oracle(server: TlsAzurite, tmp_path: Path) -> Iterator[ContainerClient]:
    """Direct access with the Azure SDK and the key."""
    name = f"c{abs(hash(tmp_path)) % 10**12}"
    endpoint = f"{server.url}/one"
    with ContainerClient(endpoint, name, credential=KEY, connection_verify=str(server.certificate)) as client:
        client.create_container()
        yield client


@pytest.fixture
def signed_in(project: Project, server: TlsAzurite, oracle: ContainerClient, tmp_path: Path) -> Project:
    """A project whose only credential is the token of ``az`` on PATH; its calls are counted in a file."""
    token = access_token()
    answer = {"accessToken": token, "expires_on": int(time.time()) + 3600, "tokenType": "Bearer", "tenant": "t"}
    az = tmp_path / "bin" / "az"
    az.parent.mkdir()
    az.write_text(f"#!/bin/sh\necho called >> '{tmp_path}/az-calls'\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    az.chmod(0o755)
    project.environ["PATH"] = f"{az.parent}:/usr/local/bin:/usr/bin:/bin"
    project.environ["SSL_CERT_FILE"] = str(server.certificate)
    place = Container(server.url, "one", KEY, str(oracle.container_name))
    project.configure(place, key=False, extra={"use_cli_auth": True})
    return project


def contents(oracle: ContainerClient) -> dict[str, str]:
    return {
        str(blob.name).removeprefix("data/"): sha256(oracle.download_blob(str(blob.name)).readall())
        for blob in oracle.list_blobs()
    }


def test_up_and_down_with_a_token(signed_in: Project, oracle: ContainerClient, tmp_path: Path) -> None:
    files = random_files(1, 20, [5 * MIB])
    write_tree(signed_in.data, files)
    up = signed_in.json("u", "data", "--engine", "direct")
    assert up.code == 0, up
    assert contents(oracle) == hashes(files)
    assert (tmp_path / "az-calls").read_text().count("called") == 1
    for file in files:
        (signed_in.data / file).unlink()
    down = signed_in.json("d", "data", "--engine", "direct")
    assert down.code == 0 and read_tree(signed_in.data) == hashes(files), down


def test_azcopy_gets_a_delegated_sas(signed_in: Project, with_azcopy: Project, oracle: ContainerClient) -> None:
    files = random_files(2, 6, [9 * MIB])
    write_tree(signed_in.data, files)
    up = signed_in.json("u", "data", "--engine", "azcopy")
    assert up.code == 0 and up.data["azcopy_job_ids"], up
    assert contents(oracle) == hashes(files)
    for file in files:
        (signed_in.data / file).unlink()
    down = signed_in.json("d", "data", "--engine", "azcopy")
    assert down.code == 0 and read_tree(signed_in.data) == hashes(files), down


def test_a_url_is_signed_by_delegation(signed_in: Project, oracle: ContainerClient) -> None:
    oracle.upload_blob("data/a", b"hello")
    done = signed_in.json("url", "data/a", "--expiry", "1h")
    assert done.code == 0, done
    (url,) = (text for text in json.dumps(done.data).split('"') if text.startswith("https:"))
    query = dict(urllib.parse.parse_qsl(url.partition("?")[2]))
    assert (query["sr"], query["sp"], query["skoid"]) == ("b", "r", "11059fcc-5514-4800-b5f8-49808b9cfab6")


def test_the_doctor_is_content(signed_in: Project, with_azcopy: Project, oracle: ContainerClient) -> None:
    done = signed_in.json("doctor")
    assert done.code == 0, done
    statuses = {each["check"]: each["status"] for each in done.data["findings"]}
    assert statuses["credential"] == statuses["listing"] == statuses["writing"] == "ok"
    assert list(oracle.list_blobs()) == []


def test_a_command_without_a_login(signed_in: Project, tmp_path: Path) -> None:
    az = tmp_path / "bin" / "az"
    az.write_text("#!/bin/sh\necho \"ERROR: Please run 'az login' to setup account.\" >&2\nexit 1\n")
    done = signed_in.json("ls", "data")
    assert done.code == 2 and done.codes == {"login_required"}, done
    assert "az login" in done.errors[0]["hint"]
