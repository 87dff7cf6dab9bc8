"""The main job: data there and back, exactly, and nothing beside it touched."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
import urllib3
import yaml

from blobsync.direct.upload import BlockIds
from tests.e2e.world import Container, Project, blobsync_command, hashes, read_tree, sha256, write_tree

pytestmark = pytest.mark.e2e

_MEGABYTE = 1_000_000
# As azcopy 10.32 wrote it.
_AZCOPY_BLOCK_ID = "MDAwMDDvDvAnNSdOun3ZFfpa8yKnMDAwMDAwMDAwMzAwMDAw"


def _folder(seed: int) -> dict[str, bytes]:
    """123 files, 90 MB: 120 of a few kilobytes in folders three deep, and three that share the rest."""
    chance = random.Random(seed)
    files = {f"a{number % 5}/b{number % 3}/f{number:03}.txt": chance.randbytes(2_000 + number) for number in range(120)}
    rest = 90 * _MEGABYTE - sum(len(data) for data in files.values())
    for number, size in enumerate((rest - 40 * _MEGABYTE, 30 * _MEGABYTE, 10 * _MEGABYTE)):
        files[f"large/{number}.bin"] = chance.randbytes(size)
    return files


@pytest.fixture
def elsewhere(with_azcopy: Project, container: Container, tmp_path: Path) -> Project:
    """Another machine's clone of the same project."""
    root = tmp_path / "elsewhere"
    root.mkdir()
    project = Project(root, with_azcopy.environ)
    project.configure(container)
    return project


@pytest.mark.soak
def test_a_folder_of_123_files_and_90_mb_there_and_back_twice(
    with_azcopy: Project, container: Container, elsewhere: Project
) -> None:
    files = _folder(1)
    assert (len(files), sum(map(len, files.values()))) == (123, 90 * _MEGABYTE)
    write_tree(with_azcopy.data / "voc20", files)
    with_azcopy.configure(container)
    expected = hashes(files)
    for transferred in (123, 0):
        up = with_azcopy.json("u", "data/voc20")
        assert (up.code, up.data["transferred"], up.data["unchanged"]) == (0, transferred, 123 - transferred), str(up)
        assert up.data["verified"] == 123
        assert container.contents("data/voc20/") == expected
        assert set(container.names()) == {f"data/voc20/{name}" for name in files}, "nested one deeper or one up"
    for transferred in (123, 0):
        down = elsewhere.json("d", "data/voc20")
        assert (down.code, down.data["transferred"]) == (0, transferred), str(down)
        assert read_tree(elsewhere.data) == {f"voc20/{name}": digest for name, digest in expected.items()}
    assert (up.data["route"], up.data["shape"], down.data["route"]) == ("upload", "folder", "download")


@pytest.mark.parametrize("size", [0, 1, 5 * _MEGABYTE])
def test_a_single_file_there_and_back_twice(
    with_azcopy: Project, container: Container, elsewhere: Project, size: int
) -> None:
    data = random.Random(size).randbytes(size)
    write_tree(with_azcopy.data, {"voc20/one.bin": data})
    with_azcopy.configure(container)
    for transferred in (1, 0):
        up = with_azcopy.json("u", "data/voc20/one.bin")
        assert (up.code, up.data["transferred"], up.data["shape"]) == (0, transferred, "file"), str(up)
        assert container.contents() == {"data/voc20/one.bin": sha256(data)}
    for transferred in (1, 0):
        down = elsewhere.json("d", "data/voc20/one.bin")
        assert (down.code, down.data["transferred"], down.data["shape"]) == (0, transferred, "file"), str(down)
        assert read_tree(elsewhere.data) == {"voc20/one.bin": sha256(data)}


@pytest.mark.parametrize("engine", ["azcopy", "direct"])
def test_what_one_engine_left_half_done_the_other_finishes(
    with_azcopy: Project, container: Container, engine: str
) -> None:
    """All blocks of a blob, uncommitted ones included, must have ids of one length; the service refuses others."""
    data = random.Random(7).randbytes(20 * _MEGABYTE)
    write_tree(with_azcopy.data, {"large.bin": data})
    with_azcopy.configure(container)
    left = BlockIds()[0] if engine == "azcopy" else _AZCOPY_BLOCK_ID
    block = f"{_url(container, 'data/large.bin')}&comp=block&blockid={quote(left)}"
    assert urllib3.request("PUT", block, body=b"half").status == 201
    done = with_azcopy.json("u", "data/large.bin", "--engine", engine)
    assert (done.code, done.data["transferred"], done.data["engine"]) == (0, 1, engine), str(done)
    assert container.contents() == {"data/large.bin": sha256(data)}
    assert container.names(uncommitted=True) == ["data/large.bin"]


def test_a_sibling_with_the_same_beginning_is_never_touched(project: Project, container: Container) -> None:
    project.configure(container)
    for name in ("voc/a", "voc20/b", "voc.txt", "voc20", "vo"):
        container.put(f"data/{name}" + ("/x" if name == "voc20" else ""), name.encode())
    listed = project.json("ls", "data/voc", "-r")
    assert [entry["path"] for entry in listed.data["entries"]] == ["data/voc/a"]
    assert project.json("d", "data/voc").code == 0
    assert set(read_tree(project.data)) == {"voc/a"}
    gone = project.json("rm", "data/voc", "-y")
    assert (gone.code, gone.data["deleted"]) == (0, 1), str(gone)
    assert set(container.names()) == {"data/voc20/b", "data/voc.txt", "data/voc20/x", "data/vo"}
    assert set(read_tree(project.data)) == {"voc/a"}, "rm must not touch what is here"


def test_several_paths_are_one_plan(project: Project, container: Container) -> None:
    write_tree(project.data, {"a/1": b"1", "b.txt": b"2", "c/3": b"3"})
    project.configure(container)
    up = project.json("u", "data/a", "data/b.txt")
    assert (up.code, up.data["transferred"]) == (0, 2), str(up)
    assert set(container.names()) == {"data/a/1", "data/b.txt"}
    # A shell leaves a pattern as it is where it is quoted.
    up = project.json("u", "data/[cx]", "data/*.txt")
    assert (up.code, up.data["transferred"], up.data["unchanged"]) == (0, 1, 1), str(up)
    refused = project.run("u", "data/*", "--mirror")
    assert refused.code == 2 and "data/* is a pattern" in refused.err
    assert project.json("verify", "data/?").data["counts"] == {"equal": 2}
    gone = project.run("rm", "data/?", "-y", "--dry-run")
    assert gone.out.splitlines()[1:] == ["  data/a/1", "  data/c/3", "would delete 2 blobs, 2 B"], str(gone)
    assert project.json("rm", "data/?", "-y").data["deleted"] == 2 and container.names() == ["data/b.txt"]
    assert project.run("d", "data/*/3").code == 4


def test_a_plan_is_saved_and_applied(project: Project, container: Container) -> None:
    write_tree(project.data, {"a/1": b"1", "a/2": b"22"})
    project.configure(container)
    planned = project.json("plan", "u", "data/a", "--save", "a.plan")
    assert planned.code == 0, str(planned)
    assert [(each["path"], each["action"], each["size"]) for each in planned.data["actions"]] == [
        ("data/a/1", "upload", 1),
        ("data/a/2", "upload", 2),
    ]
    assert all(each["reason"] for each in planned.data["actions"])
    assert container.names() == [], "a plan must not touch anything"
    assert container.key not in (project.root / "a.plan").read_text()
    project.configure(container, cluster="eu")
    assert "is a plan for cluster aml, not for cluster eu" in str(project.run("-c", "eu", "apply", "a.plan"))
    assert container.names() == []
    applied = project.json("apply", "a.plan")
    assert (applied.code, applied.data["transferred"]) == (0, 2), str(applied)
    assert container.contents() == hashes({"data/a/1": b"1", "data/a/2": b"22"})
    again = project.json("apply", "a.plan")
    assert (again.code, again.codes) == (2, {"plan_file_invalid"}), str(again)


def test_a_dry_run_touches_nothing(project: Project, container: Container) -> None:
    write_tree(project.data, {"a": b"1"})
    project.configure(container)
    shown = project.run("u", "data/a", "--dry-run")
    assert shown.code == 0
    assert shown.out.startswith("not at the destination yet:\n  upload       1 B  data/a\nwould upload 1 file, 1 B")
    assert container.names() == []
    container.put("data/b", b"2")
    assert project.json("rm", "data/b", "--dry-run").data["deleted"] == 0
    assert container.names() == ["data/b"]


def test_verbose_says_more_and_no_secret(project: Project, container: Container) -> None:
    sas = container.sas("rwl")
    write_tree(project.data, {"a": b"1", "b": b"2"})
    project.configure(container, sas=sas)
    told = project.run("u", "data/a", "-v")
    assert told.err.startswith("blobsync: would upload 1 file, 1 B. Engine: direct, "), str(told)
    everything = project.run("u", "data/b", "-vv")
    assert "PUT /" in everything.err and "data/b" in everything.err, str(everything)
    signature = dict(part.split("=", 1) for part in sas.split("&"))["sig"]
    assert signature not in told.err + everything.err
    assert "sig=***" in everything.err


def test_stat_verify_du_and_url(project: Project, container: Container) -> None:
    write_tree(project.data, {"a/1": b"one", "a/2": b"two!"})
    project.configure(container)
    assert project.run("u", "data/a").code == 0
    [status] = project.json("stat", "data/a/1").data["paths"]
    assert (status["local"]["size"], status["remote"]["size"], status["equal"]) == (3, 3, True)
    assert status["verified_md5"] == status["remote"]["md5"] == status["local"]["md5"]
    assert project.json("verify", "data/a").data["counts"] == {"equal": 2}
    usage = project.json("du", "data/a").data
    assert (usage["count"], usage["bytes"]) == (2, 7)
    (project.data / "a/1").write_bytes(b"edited")
    verified = project.json("verify", "data/a")
    assert (verified.code, verified.data["counts"]) == (3, {"changed_here": 1, "equal": 1}), str(verified)
    [made] = project.json("url", "data/a/2", "--expiry", "1h").data["urls"]
    assert _fetch(made["url"]) == (200, b"two!")
    assert _fetch(made["url"].replace("data/a/2", "data/a/1"))[0] == 403
    assert _fetch(made["url"], method="DELETE")[0] == 403


def _fetch(url: str, method: str = "GET") -> tuple[int, bytes]:
    reply = urllib3.request(method, url, retries=False)
    return reply.status, reply.data


def test_ls_levels_and_forms(project: Project, container: Container) -> None:
    project.configure(container)
    for name in ("a.txt", "sub/b.txt", "sub/deep/c.txt"):
        container.put(f"data/{name}", name.encode())
    assert project.run("ls", "data").out == "data/a.txt\ndata/sub/\n"
    assert project.run("ls", "data", "-r").out == "data/a.txt\ndata/sub/b.txt\ndata/sub/deep/c.txt\n"
    assert project.run("ls", "data/a.txt").out == "data/a.txt\n"
    assert project.run("ls", "data/sub/", "data/a.txt").out == "data/sub/b.txt\ndata/sub/deep/\ndata/a.txt\n"
    sizes = project.json("ls", "data", "--du").data
    assert [(entry["path"], entry["count"], entry["size"]) for entry in sizes["entries"]] == [
        ("data/a.txt", 1, 5),
        ("data/sub/", 2, 23),
    ]
    # By pattern; a name that has such letters itself comes first.
    container.put("data/s[ub]", b"odd")
    assert project.run("ls", "data/s*", "data/?.txt").out == "data/s[ub]\ndata/sub/\ndata/a.txt\n"
    assert project.run("ls", "data/s*/*.txt").out == "data/sub/b.txt\n"
    assert project.run("ls", "-r", "data/su[ab]").out == "data/sub/b.txt\ndata/sub/deep/c.txt\n"
    assert project.run("ls", "data/s[ub]").out == "data/s[ub]\n"
    assert [entry["path"] for entry in project.json("du", "data/s*").data["entries"]] == ["data/s[ub]", "data/sub/"]
    nothing = project.run("cat", "data/su*")
    assert nothing.code == 4 and "only names are taken here: blobsync ls 'data/su*' shows" in nothing.err
    assert project.run("ls", "data/x*").code == 4
    long = project.run("ls", "-l", "data/a.txt").out.split()
    assert (long[0], long[1], long[-1]) == ("5", "B", "data/a.txt")


@pytest.mark.soak
@pytest.mark.timeout(600)  # 20,000 requests to fill the container
def test_20_000_blobs_are_listed_in_bounded_memory(
    project: Project, new_container: Callable[[str], Container], tmp_path: Path
) -> None:
    container = new_container("two")
    project.configure(container)
    expected = _fill(container, 20_000)
    few, peak_of_few = _with_peak(project, tmp_path, "ls", "data/0000", "-r", "--jsonl")
    listed, peak = _with_peak(project, tmp_path, "ls", "data", "-r", "--jsonl")
    assert len(few.splitlines()) == 100
    paths = [json.loads(line)["path"] for line in listed.splitlines()]
    assert len(paths) == 20_000
    assert set(paths) == expected
    assert peak < peak_of_few + 30 * 1024, f"{peak} KiB for 20,000, {peak_of_few} KiB for 100"
    document = project.json("ls", "-r", "data").data
    assert (document["count"], document["bytes"]) == (20_000, 20_000)
    assert len(project.run("ls", "-r", "data").out.splitlines()) == 20_000


def _with_peak(project: Project, folder: Path, *words: str) -> tuple[str, int]:
    """What a run prints, and its greatest resident size in KiB."""
    with (folder / "out").open("w+") as out:
        process = subprocess.Popen(
            [blobsync_command(), *words], cwd=project.root, env={**os.environ, **project.environ}, stdout=out
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        out.seek(0)
        return out.read(), usage.ru_maxrss


def _fill(container: Container, count: int) -> set[str]:
    """``count`` blobs of one byte, 100 to a folder, written with a few requests at a time."""
    pool = urllib3.PoolManager(maxsize=16)
    url = _url(container, "data/NAME")
    names = [f"{number // 100:04}/{number % 100:02}.bin" for number in range(count)]

    def put(name: str) -> int:
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-version": "2021-12-02"}
        return pool.request("PUT", url.replace("NAME", name), body=b"x", headers=headers).status

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(put, names)) == {201}
    return {f"data/{name}" for name in names}


def _url(container: Container, blob: str) -> str:
    """For requests that the SDK does not make."""
    return f"{container.service}/{container.account}/{container.name}/{blob}?{container.sas('cw')}"


def test_verify_all_skips_an_entry_that_has_nothing_on_either_side(project: Project, container: Container) -> None:
    account = "aux_data/configs/aml.yaml"
    project.configure(container)
    empty = {"azure_blob_config_file": account, "path": "elsewhere"}
    file = project.root / "aux_data/aml/aml.yaml"
    settings = yaml.safe_load(file.read_text())
    settings["config_param"]["output_folder"] = empty
    file.write_text(yaml.safe_dump(settings))
    nothing = project.json("verify", "--all")
    assert (nothing.code, nothing.errors[0]["path"]) == (4, "data"), str(nothing)

    write_tree(project.data, {"a": b"a", "b": b"bb"})
    assert project.run("u", "--all").code == 0
    done = project.json("verify", "--all")
    assert (done.code, done.data["counts"]) == (0, {"equal": 2}), str(done)
    named = project.json("verify", "data", "output")
    assert (named.code, named.errors[0]["path"]) == (4, "output"), "a PATH that was typed is looked for"
