"""Which credentials a bucket is read with, as seen on the wire: boto3's chain, and none for a public bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.sources import COPY, configure, fill
from tests.e2e.world import Container, Project, every_text_below, hashes, read_tree
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import FaultHandle, fault_proxy
from tests.servers.recording_server import RecordingServer
from tests.servers.s3 import KEYS, S3Server

pytestmark = pytest.mark.e2e

_FILES = {"a.bin": b"a" * 700, "sub/b.bin": b"b"}
_OF_ENVIRONMENT = KEYS["AWS_ACCESS_KEY_ID"]
_OF_DEFAULT, _OF_RESEARCH = "AKIADEFAULTEXAMPLE00", "AKIARESEARCHEXAMPLE0"
_OF_ROLE = "ASIAROLEEXAMPLE00000"
_SESSION = "session" + "T0ken" * 150
_ROLE = {
    "Code": "Success",
    "Type": "AWS-HMAC",
    "AccessKeyId": _OF_ROLE,
    "SecretAccessKey": "roleSecretEXAMPLEroleSecretEXAMPLE000000",
    "Token": _SESSION,
    "LastUpdated": "2026-01-01T00:00:00Z",
    "Expiration": "2100-01-01T00:00:00Z",
}


@pytest.fixture
def watched(moto: S3Server) -> Iterator[FaultHandle]:
    with fault_proxy(moto.url) as proxy:
        yield proxy


@pytest.fixture
def research(project: Project, moto: S3Server, bucket: str, watched: FaultHandle) -> Project:
    """A project with a bucket, and an own configuration with two profiles."""
    fill(moto, bucket, _FILES)
    configure(project, S3Server(watched.url), bucket)
    home = Path(project.environ["HOME"])
    profiles = (("default", _OF_DEFAULT), ("research", _OF_RESEARCH))
    text = "".join(
        f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = s3cret{key}\n" for name, key in profiles
    )
    (home / "aws").write_text(text)
    own = home / ".config/blobsync/config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump({"trusted_profiles": ["research"]}))
    own.chmod(0o600)
    project.environ.update(AWS_SHARED_CREDENTIALS_FILE=str(home / "aws"), XDG_CONFIG_HOME=str(home / ".config"))
    return project


def without_keys(project: Project) -> None:
    """No keys in the environment, and not in a file."""
    project.before = ("env", *(f"-u{name}" for name in KEYS))


def use(project: Project, watched: FaultHandle, bucket: str, **more: Any) -> None:
    configure(project, S3Server(watched.url), bucket, **more)
    project.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(Path(project.environ["HOME"], "aws"))


def signers(project: Project, watched: FaultHandle) -> set[str]:
    """Who signed what was asked for while everything was brought here."""
    watched.reset()
    done = project.json("-c", "laion", "d", "data", "--overwrite")
    assert done.code == 0 and read_tree(project.data) == hashes(_FILES), done
    found = watched.journal()
    assert {each.operation for each in found} >= {"get blob", "head blob"}, found
    for name in _FILES:
        (project.data / name).unlink()
    return {each.signer for each in found}


def test_keys_of_the_environment_a_profile_and_the_files_profile(
    research: Project, watched: FaultHandle, bucket: str
) -> None:
    assert signers(research, watched) == {_OF_ENVIRONMENT}
    without_keys(research)
    assert signers(research, watched) == {_OF_DEFAULT}
    research.environ["AWS_PROFILE"] = "research"
    assert signers(research, watched) == {_OF_RESEARCH}
    # The profile that the file names comes before all of these.
    del research.environ["AWS_PROFILE"]
    research.before = ()
    use(research, watched, bucket, profile="research")
    assert signers(research, watched) == {_OF_RESEARCH}


def test_a_profile_that_is_not_there_is_named_and_no_other_is_used(
    research: Project, watched: FaultHandle, bucket: str
) -> None:
    use(research, watched, bucket, profile="research")
    Path(research.environ["HOME"], "aws").write_text("[default]\naws_access_key_id = x\naws_secret_access_key = y\n")
    done = research.json("-c", "laion", "d", "data")
    assert done.code == 2 and done.codes == {"credential_invalid"}, done
    assert "there is no such profile in your configuration of AWS" in done.errors[0]["message"], done
    assert watched.stats().requests == 0


@pytest.mark.parametrize("how", ["anonymous: true", "--no-sign-request"])
def test_nothing_is_signed_for_a_public_bucket_though_there_are_keys(
    how: str,
    research: Project,
    watched: FaultHandle,
    moto: S3Server,
    bucket: str,
    service: str,
    container: Container,
) -> None:
    moto.client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    for name in _FILES:
        moto.client.put_object_acl(Bucket=bucket, Key=f"far/data/{name}", ACL="public-read")
    use(research, watched, bucket, anonymous=True)
    words: tuple[str, ...] = COPY
    if how == "anonymous: true":
        assert signers(research, watched) == {""}
    else:
        there = (f"--source=s3://{bucket}/far/data", f"--endpoint-url={watched.url}", "--no-sign-request")
        words = ("-c", "eu", "u", "data", *there)
    with copy_source_proxy(service, outside=[watched.url]) as copying:
        research.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        watched.reset()
        done = research.json(*words)
        assert done.code == 0 and container.contents("near/data/") == hashes(_FILES), done
    found = watched.journal()
    # Ours, and those of the service that fetches.
    assert {each.agent for each in found} == {"Boto3", "unknown"} and {each.signer for each in found} == {""}


def answer(body: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def headers_of(request: bytes) -> dict[str, str]:
    lines = request.split(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def no_role_in(project: Project, *texts: str) -> None:
    """Nothing that was printed or written has the role's key or session."""
    written = [text for _, text in every_text_below(project.root, Path(project.environ["HOME"]))]
    for text in (*(each.encode() for each in texts), *written):
        for secret in (_SESSION, _ROLE["SecretAccessKey"]):
            assert secret.encode() not in text


def copied_as_role(project: Project, watched: FaultHandle, service: str, container: Container) -> None:
    """Copy everything by the service: whoever asked had the role's key, also in the URLs that the service got."""
    with copy_source_proxy(service, outside=[watched.url]) as copying:
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        watched.reset()
        done = project.json(*COPY)
        assert done.code == 0 and done.data["engine"] == "direct", done
        assert container.contents("near/data/") == hashes(_FILES)
        assert copying.stats().fetched == sum(map(len, _FILES.values()))
    assert {each.signer for each in watched.journal()} == {_OF_ROLE}
    no_role_in(project, done.out, done.err)


def test_the_role_of_a_machine(research: Project, watched: FaultHandle, service: str, container: Container) -> None:
    without_keys(research)
    place = "/latest/meta-data/iam/security-credentials/"
    answers = {
        "PUT /latest/api/token": answer("the-token-of-the-metadata"),
        f"GET {place}": answer("reader"),
        f"GET {place}reader": answer(json.dumps(_ROLE)),
    }
    with RecordingServer(answers) as metadata:
        research.environ.update(
            AWS_SHARED_CREDENTIALS_FILE="/dev/null",
            AWS_EC2_METADATA_DISABLED="false",
            AWS_EC2_METADATA_SERVICE_ENDPOINT=metadata.url,
        )
        copied_as_role(research, watched, service, container)
        asked = metadata.requests
    assert asked[0].startswith(b"PUT /latest/api/token ")
    tokens = {headers_of(each).get("x-aws-ec2-metadata-token") for each in asked if each.startswith(b"GET")}
    assert tokens == {"the-token-of-the-metadata"}


def test_the_role_of_a_container(research: Project, watched: FaultHandle, service: str, container: Container) -> None:
    without_keys(research)
    with RecordingServer({"GET /v2/credentials": answer(json.dumps(_ROLE))}) as provider:
        research.environ.update(
            AWS_SHARED_CREDENTIALS_FILE="/dev/null",
            AWS_CONTAINER_CREDENTIALS_FULL_URI=f"{provider.url}/v2/credentials",
            AWS_CONTAINER_AUTHORIZATION_TOKEN="the-token-of-the-container",
        )
        copied_as_role(research, watched, service, container)
        assert {headers_of(each)["authorization"] for each in provider.requests} == {"the-token-of-the-container"}


def test_no_credential_at_all_is_said_and_nothing_is_asked(research: Project, watched: FaultHandle) -> None:
    without_keys(research)
    research.environ["AWS_SHARED_CREDENTIALS_FILE"] = "/dev/null"
    done = research.json("-c", "laion", "d", "data")
    assert done.code == 2 and done.codes == {"credential_invalid"}, done
    assert "boto3 finds no credentials" in done.errors[0]["message"] and watched.stats().requests == 0, done


def test_a_bucket_of_this_machine_is_asked_without_a_proxy(research: Project, watched: FaultHandle) -> None:
    with RecordingServer() as proxy:
        research.environ.update(HTTP_PROXY=proxy.url, http_proxy=proxy.url, NO_PROXY="", no_proxy="")
        assert signers(research, watched) == {_OF_ENVIRONMENT}
        assert not proxy.requests
