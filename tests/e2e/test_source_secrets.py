"""URLs that are secrets, typed or in a list: nothing that is shown, written or started has their signatures."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.e2e.sources import MIB, fill
from tests.e2e.world import (
    AS_INSTALLED,
    Container,
    Done,
    Project,
    command_lines,
    every_text_below,
    hashes,
    processes,
    random_files,
)
from tests.servers.copy_source_proxy import copy_source_proxy
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.servers.s3 import S3Server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

_FILES = random_files(51, 6, [9 * MIB])


def presigned(server: S3Server, bucket: str, name: str) -> str:
    """A URL that opens an object to whoever has it."""
    words = {"Bucket": bucket, "Key": f"far/data/{name}"}
    return str(server.client.generate_presigned_url("get_object", Params=words, ExpiresIn=3600))


def signature(url: str) -> str:
    (found,) = parse_qs(urlsplit(url).query)["X-Amz-Signature"]
    assert len(found) == 64
    return found


def not_in(secrets: set[str], texts: dict[str, bytes]) -> None:
    assert texts
    for place, text in texts.items():
        for secret in secrets:
            assert secret.encode() not in text, place


def printed(*runs: Done) -> dict[str, bytes]:
    """What each run printed."""
    return {f"{number}: {run}"[:300]: (run.out + run.err).encode() for number, run in enumerate(runs)}


@pytest.mark.parametrize("engine", ["direct", "relay", "download"])
@pytest.mark.parametrize("given", ["typed", "in a list"])
def test_nothing_has_the_signature_of_a_url(
    given: str,
    engine: str,
    project: Project,
    moto: S3Server,
    bucket: str,
    service: str,
    container: Container,
    tmp_path: Path,
) -> None:
    fill(moto, bucket, _FILES)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    project.environ["TMPDIR"] = str(temporary)
    with fault_proxy(moto.url) as faulty, copy_source_proxy(service, outside=[faulty.url]) as copying:
        project.configure(container, url=copying.url, sas=container.sas(), path="near/data")
        server = S3Server(faulty.url)
        urls = {name: presigned(server, bucket, name) for name in _FILES}
        if given == "typed":
            urls = {"large0.bin": urls["large0.bin"]}
            path, source = "data/large0.bin", urls["large0.bin"]
        else:
            path, source = "data", str(tmp_path / "list.tsv")
            Path(source).write_text("".join(f"{url}\t{name}\n" for name, url in urls.items()))
            project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = faulty.url
        secrets = set(map(signature, urls.values()))
        verb = ("d", path) if engine == "download" else ("u", path, "--engine", engine)
        planned = project.run("plan", *verb[:2], f"--source={source}")
        assert planned.code == 0, planned
        # While it is under way, all processes are looked at.
        faulty.inject(Fault("hold", at=(1,), operations=("get blob",), pattern="large0.bin"))
        process = replace(project, before=AS_INSTALLED).start(*verb, f"--source={source}", "--json")
        assert wait_until(faulty.is_holding, seconds=60)
        time.sleep(0.2)
        children = {f"process {each}": of_process(each, "cmdline") for each in processes(process.pid)}
        environments = {f"of {each}": of_process(each, "environ") for each in processes(process.pid)}
        own = " ".join(command_lines(process.pid))
        during = dict(written(project, temporary))
        faulty.release()
        done = project.finish(process)
        assert done.code == 0 and done.data["verified"] == len(urls), done
        if engine != "download":
            assert container.contents("near/data/") == hashes({name: _FILES[name] for name in urls})
        # A typed one is in the command line that the user typed, and in no other.
        assert any(secret in own for secret in secrets) is (given == "typed")
        not_in(secrets, {"": b"", **children, **environments})
        faulty.inject(Fault("status", rate=1.0, pattern="far/data/", status=403))
        failed = project.json(*verb, f"--source={source}")
        assert failed.code == 2 and failed.codes == {"access_denied"}, failed
        told = [project.run(*words) for words in (("history",), ("history", "--json"), ("status",))]
        not_in(secrets, printed(planned, done, failed, *told))
        not_in(secrets, during)
        not_in(secrets, dict(written(project, temporary)))


def of_process(pid: int, name: str) -> bytes:
    """What the system tells of a process; nothing of one that has ended meanwhile."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def written(project: Project, *folders: Path) -> list[tuple[str, bytes]]:
    """All files of the project, of its user and of ``folders``: state, receipts, logs, temporary ones."""
    places = (project.root, Path(project.environ["HOME"]), *folders)
    return [(str(file), text) for file, text in every_text_below(*places)]


@pytest.mark.parametrize(
    "words",
    [
        ("u", "data/a", "--source=ftp://files.example/a?token={}"),
        ("u", "data/a", "--source=http://files.example/a?token={}"),
        ("u", "data/a", "--source", "https://me:{}@files.example/a"),
        ("u", "data/a", "--source=s3://bucket/a?token={}"),
        ("u", "data/a", "data/b", "--source=https://files.example/a?token={}"),
        ("rm", "data/a", "--source=https://files.example/a?token={}"),
    ],
)
def test_what_may_open_a_refused_url_is_not_shown_either(
    words: tuple[str, ...], project: Project, container: Container
) -> None:
    project.configure(container, path="near/data")
    # Nothing tells that this is a secret but where it is.
    secret = "pink-elephants-in-line"
    given = [each.format(secret) for each in words]
    project.environ["AWS_EC2_METADATA_DISABLED"] = "true"
    runs = [project.json(*given), project.run("-v", *given), project.run("history")]
    assert [run.code for run in runs] == [2, 2, 0], runs
    not_in({secret}, {**printed(*runs), **dict(written(project))})
