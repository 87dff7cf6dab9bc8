"""``--nodes`` with sources outside Azure: the nodes ask the source, and the destination's service fetches."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.e2e.sources import configure, fill, no_secret_in, receipt_of
from tests.e2e.world import Container, Project, hashes, kill_tree, random_files, write_tree
from tests.servers.copy_source_proxy import CopySourceHandle, copy_source_proxy
from tests.servers.s3 import S3Server, rclone_web_server
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

_MIB = 1 << 20
_COPY = ("-c", "eu", "-f", "laion", "u", "data", "--nodes", "2")


@pytest.mark.parametrize("anonymous", [True, False], ids=["anonymous", "with the nodes' own credentials"])
def test_nodes_copy_a_bucket(
    anonymous: bool,
    project: Project,
    moto: S3Server,
    bucket: str,
    copying: CopySourceHandle,
    container: Container,
) -> None:
    files = dict(random_files(21, 80, [5 * _MIB]))
    fill(moto, bucket, files)
    body = random_files(22, 0, [70 * _MIB])["large0.bin"]
    moto.put_parts(bucket, "far/data/parts.bin", [body[: 40 * _MIB], body[40 * _MIB :]])
    moto.put(bucket, "far/data/crc64.bin", body[:1000], ChecksumAlgorithm="CRC64NVME")
    # The service does not take a URL of this length: this machine copies it, in the end.
    far = "\u00e9" * 400
    moto.put(bucket, f"far/data/{far}", b"far")
    files |= {"parts.bin": body, "crc64.bin": body[:1000], far: b"far"}
    if anonymous:
        for name in files:
            moto.client.put_object_acl(Bucket=bucket, Key=f"far/data/{name}", ACL="public-read")
    configure(project, moto, bucket, anonymous=anonymous)
    project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
    planned = project.json("-c", "eu", "-f", "laion", "plan", "u", "data", "--nodes", "2")
    assert planned.code == 0, planned
    assert planned.data["spread"]["nodes"] == 2 and planned.data["engine"] == "direct", planned
    done = project.json(*_COPY, *([] if anonymous else ["--compare-content"]))
    assert done.code == 0 and done.data["verified"] == done.data["transferred"] == len(files), done
    assert {name.removeprefix("near/data/"): each for name, each in container.contents().items()} == hashes(files)
    receipt = receipt_of(done)
    assert receipt["data/crc64.bin"]["compared_by"] == "crc64nvme"
    assert receipt["data/large0.bin"]["compared_by"] == "md5"
    assert receipt["data/parts.bin"]["compared_by"] == ("nothing" if anonymous else "content")
    assert done.data["not_compared"] == int(anonymous)
    # Only shards, records and that one went through this machine.
    assert copying.stats().downloaded < 1 << 20 and copying.stats().fetched >= sum(map(len, files.values())) - 3
    again = project.json(*_COPY)
    assert again.code == 0 and again.data["transferred"] == 0, again
    no_secret_in(project, done, again)


def test_nodes_copy_a_list_of_the_web_also_without_their_command(
    project: Project, service: str, container: Container, tmp_path: Path
) -> None:
    files = random_files(23, 40, [5 * _MIB])
    write_tree(tmp_path / "served", files)
    with rclone_web_server(tmp_path / "served") as url, copy_source_proxy(service, outside=[url]) as copying:
        project.configure(container, url=copying.url, sas=container.sas(), path="near/data")
        lines = []
        for number, (name, body) in enumerate(files.items()):
            known = [str(len(body)), f"md5:{hashlib.md5(body).hexdigest()}"] if number % 2 else []
            lines.append("\t".join([f"{url}/{quote(name)}", f"sub/{name}", *known]))
        (project.root / "list.tsv").write_text("\n".join(lines))
        project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = url
        words = ("u", "data/web", "--source=list.tsv", "--nodes", "2")
        done = project.json(*words)
        assert done.code == 0 and done.data["verified"] == done.data["transferred"] == len(files), done
        assert container.contents("near/data/web/sub/") == hashes(files)
        assert {each["compared_by"] for each in receipt_of(done).values()} == {"md5", "nothing"}
        for name in container.names("near/data/"):
            container.blob(name).delete_blob()
        left = project.json(*words, "--detach", "--overwrite")
        assert left.code == 0, left
        job = left.data["job_id"]

        def state() -> str:
            return str(project.json("q", job).data["jobs"][0]["status"])

        assert wait_until(lambda: state() in ("Completed", "Failed"), seconds=120, pause=0.5)
        assert state() == "Completed", project.run("logs", job).out
        assert container.contents("near/data/web/sub/") == hashes(files)
        again = project.json(*words)
        assert (again.code, again.data["transferred"]) == (0, 0), again
        # Nodes reach no more of the network than the command does.
        del project.environ["BLOBSYNC_TRUSTED_BUCKETS"]
        refused = project.json("u", "data/other", "--source=list.tsv", "--nodes", "2")
        assert refused.codes == {"access_denied"}, refused
        (project.root / "signed.tsv").write_text(f"{url}/large0.bin?sig=secret\n")
        project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = url
        signed = project.json("u", "data/other", "--source=signed.tsv", "--nodes", "2")
        assert signed.code == 2 and "may be a secret" in signed.errors[0]["message"], signed
        here = project.json("d", "data/web", "--source=list.tsv", "--nodes", "2")
        assert here.code == 2 and "downloads from list:list.tsv are not spread" in here.errors[0]["message"], here
        assert "sig=secret" not in signed.out + signed.err


def test_a_killed_command_and_a_node_without_boto3(
    project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, container: Container, tmp_path: Path
) -> None:
    files = random_files(24, 120, [])
    fill(moto, bucket, files)
    configure(project, moto, bucket)
    project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
    process = project.start(*_COPY, "--cap-mbps", "5")
    assert wait_until(lambda: len(container.names("near/data/")) > 10 or process.poll() is not None, seconds=60)
    kill_tree(process.pid)
    process.communicate()
    done = project.json(*_COPY)
    assert done.code == 0 and container.contents("near/data/") == hashes(files), done
    no_secret_in(project, done)
    moto.put(bucket, "far/data/more.bin", b"more")
    (tmp_path / "none").mkdir()
    # The command finds boto3, the node does not.
    (tmp_path / "none/sitecustomize.py").write_text(
        "import sys\nif 'spread' in sys.orig_argv:\n    sys.modules['boto3'] = None\n"
    )
    project.environ["PYTHONPATH"] = str(tmp_path / "none")
    bare = project.json(*_COPY)
    assert bare.codes == {"spread_refused"} and "pip install 'blobsync[s3]'" in bare.errors[0]["message"], bare
    assert "file system" not in str(bare.errors[0]["hint"])
