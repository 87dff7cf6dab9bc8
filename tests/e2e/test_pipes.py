"""A pipe or a socket in the place of a file: reported at once by everything that reads or writes files."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from tests.e2e.world import Container, Project, hashes, random_files, read_tree, write_tree
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

# A command that opens a pipe would hang.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

_SMALL = {f"d{number % 3}/f{number}.bin": random.Random(number).randbytes(3000) for number in range(12)}
_LARGE = 24 << 20


def _put(place: Path, kind: str, target: Path | None = None) -> None:
    """Put a pipe, a socket, or a link to ``target`` there, at once: a command that runs may look at any moment."""
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside a project, so that no command sees it.
    with TemporaryDirectory(dir=_outside(place)) as folder:
        new = Path(folder, "new")
        if target is not None:
            new.symlink_to(target)
        else:
            os.mknod(new, (stat.S_IFIFO if kind == "pipe" else stat.S_IFSOCK) | 0o600)
        new.replace(place)


def _outside(place: Path) -> Path:
    """The folder in which the project of ``place`` is."""
    return next(each for each in place.parents if (each / "aux_data").is_dir()).parent


def _is(place: Path, kind: str) -> bool:
    mode = place.lstat().st_mode
    return stat.S_ISFIFO(mode) if kind == "pipe" else stat.S_ISSOCK(mode)


def _files(folder: Path) -> dict[str, str]:
    """Only the regular files."""
    there = [Path(at, name) for at, _, names in os.walk(folder) for name in names]
    odd = [path for path in there if not path.is_file()]
    aside = [(path, path.rename(folder.parent / f"odd-{number}")) for number, path in enumerate(odd)]
    try:
        return read_tree(folder)
    finally:
        for path, other in aside:
            other.rename(path)


def _entries(folder: Path) -> set[str]:
    """Of everything but folders."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


_WAYS = [("--engine", "direct"), ("--engine", "azcopy"), ("--processes", "2"), ("--nodes", "2"), ("--overwrite",),
         ("--keep", "remote"), ("--keep", "both"), ("--mirror", "-y"), ("-f", "we3v32")]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "ways"),
    [
        ("pipe", _WAYS),
        ("socket", [("--processes", "2"), ("-f", "we3v32")]),
        pytest.param("socket", _WAYS, marks=pytest.mark.soak),
    ],
    ids=["pipe", "socket", "socket, every way"],
)
def test_a_download_names_what_is_in_the_way_and_fetches_the_rest(
    with_azcopy: Project, container: Container, kind: str, ways: Sequence[tuple[str, ...]]
) -> None:
    project = with_azcopy
    for name, data in _SMALL.items():
        container.put(f"data/{name}", data)
    project.configure(container, cluster="we3v32")
    rest = {name: data for name, data in _SMALL.items() if name != "d0/f3.bin"}
    for words in ways:
        project.configure(container, path="nothing" if "-f" in words else "data")
        _put(project.data / "d0/f3.bin", kind)
        done = project.json("d", "data", *words)
        assert (done.code, done.codes, done.data["transferred"]) == (3, {"local_file"}, len(rest)), str(done)
        assert "data/d0/f3.bin: 1 file left out, neither a file nor a folder is in the way" in str(done)
        assert _files(project.data) == hashes(rest) and _is(project.data / "d0/f3.bin", kind)
        for folder in (project.data, project.root / ".blobsync"):
            shutil.rmtree(folder)


def _with_job(project: Project, container: Container, folder: str, mode: str, **more: Any) -> None:
    """Let jobs on this machine have ``folder``; more keys of the cluster file."""
    project.configure(container)
    file = project.root / "aux_data/aml/aml.yaml"
    entry = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": folder, "mode": mode}
    local = {"platform": "local", "local": {"gpus": 0}, "runtime": {"sync_seconds": 1}}
    file.write_text(yaml.safe_dump({**local, "config_param": {f"{folder}_folder": entry}, **more}))


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_job_on_this_machine_names_what_is_in_the_way_of_its_folder(
    project: Project, container: Container, kind: str
) -> None:
    for name, data in _SMALL.items():
        container.put(f"data/{name}", data)
    _with_job(project, container, "data", "download")
    _put(project.data / "d0/f3.bin", kind)
    done = project.run("--json", "submit", "--wait", "--", "cat", "data/d0/f0.bin")
    assert (done.code, done.data["status"]) == (72, "Failed"), str(done)
    job_id = done.data["job_id"]
    said = " ".join(project.run("logs", job_id).out.split())
    assert "data/d0/f3.bin: 1 file left out, neither a file nor a folder is in the way" in said, said
    assert _is(project.data / "d0/f3.bin", kind)
    (project.data / "d0/f3.bin").unlink()
    again = project.run("--json", "submit", "--wait", "--", "cat", "data/d0/f3.bin")
    assert again.code == 0, str(again)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_outputs_of_a_job_are_not_written_into_what_is_in_the_way(
    project: Project, container: Container, kind: str
) -> None:
    _with_job(project, container, "output", "upload", output="per_job")
    write = "import os; p = os.environ['BLOBSYNC_OUTPUT']; [open(f'{p}/{n}', 'w').write(n) for n in 'ab']"
    job_id = project.run("--json", "submit", "--wait", "--", "python3", "-c", write).data["job_id"]
    here = project.root / "output" / job_id
    shutil.rmtree(project.root / "output", ignore_errors=True)
    _put(here / "a", kind)
    done = project.json("outputs", job_id, "--download")
    assert (done.code, done.codes) == (3, {"local_file"}), str(done)
    assert f"output/{job_id}/a: 1 file left out, neither a file nor a folder is in the way" in str(done)
    assert _is(here / "a", kind) and (here / "b").read_text() == "b"


@pytest.mark.parametrize("words", [(), ("--engine", "azcopy")], ids=["direct", "azcopy"])
def test_a_large_file_and_its_changed_blocks_do_not_wait_for_a_pipe(
    with_azcopy: Project, container: Container, words: tuple[str, ...]
) -> None:
    project = with_azcopy
    data = bytearray(random.Random(1).randbytes(_LARGE))
    write_tree(project.data, {"large.bin": bytes(data), "other.bin": b"o"})
    project.configure(container)
    assert project.json("u", "data").code == 0
    data[5] ^= 1
    container.put("data/large.bin", bytes(data))
    _put(project.data / "large.bin", "pipe")
    for path in ("data", "data/large.bin"):
        done = project.json("d", path, *words)
        assert done.code != 0 and "neither a file nor a folder" in str(done), str(done)
    assert _is(project.data / "large.bin", "pipe")
    (project.data / "large.bin").unlink()
    assert project.json("d", "data", *words).code == 0
    assert read_tree(project.data) == hashes({"large.bin": bytes(data), "other.bin": b"o"})


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("words", "kind", "moments"),
    [
        (("--engine", "direct"), "socket", 1),
        *(
            pytest.param(words, kind, 20, marks=pytest.mark.soak)
            for words in (("--engine", "direct"), ("--engine", "azcopy"), ("--processes", "2"), ("--nodes", "2"))
            for kind in ("pipe", "socket")
        ),
    ],
)
def test_a_pipe_or_socket_that_appears_at_a_random_moment_is_left_alone(
    with_azcopy: Project, container: Container, service: str, words: tuple[str, ...], kind: str, moments: int
) -> None:
    """It takes the name of a file before, or after, the file gets it."""
    project = with_azcopy
    files = random_files(3, 60)
    for name, data in files.items():
        container.put(f"data/{name}", data)
    for seed in range(moments):
        chance = random.Random(seed)
        taken = project.data / chance.choice(sorted(files))
        with fault_proxy(service, Fault("stall", rate=0.3, operations=("get blob",), seconds=0.05)) as line:
            project.configure(container, url=line.url)
            process = project.start("d", "data", *words, "--json")
            moment = chance.randrange(60)
            wait_until(lambda: line.stats().requests >= moment or process.poll() is not None, seconds=60, pause=0.002)  # noqa: B023
            time.sleep(chance.random() / 10)
            _put(taken, kind)
            done = project.finish(process)
        name = taken.relative_to(project.data).as_posix()
        rest = hashes({path: data for path, data in files.items() if path != name})
        # The file was written before, or it is named; where another process wrote it, the look at the end misses it.
        gone = done.codes == {"missing_after_transfer"} and words[0] in ("--processes", "--nodes")
        named = f"data/{name}" in str(done) and (gone or "neither a file nor a folder" in str(done))
        assert done.code == (3 if named else 0), f"seed {seed}: {done}"
        assert _files(project.data) == rest and _is(taken, kind), f"seed {seed}"
        if seed == 0 or gone:
            project.configure(container)
            again = project.json("d", "data")
            assert (again.code, again.codes) == (3, {"local_file"}), str(again)
            assert f"data/{name}: 1 file left out" in str(again)
        shutil.rmtree(project.data)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "moments"),
    [
        ("pipe", 1),
        ("link that is skipped", 1),
        *(
            pytest.param(kind, 20, marks=pytest.mark.soak)
            for kind in ("pipe", "socket", "link that is skipped", "link to elsewhere")
        ),
    ],
)
def test_a_mirror_deletes_nothing_for_what_is_left_out_from_a_random_moment_on(
    kind: str, moments: int, project: Project, container: Container, service: str, tmp_path: Path
) -> None:
    """A file that is in the container becomes something else, or a blob gets the name of what is something else."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"of somebody else")
    words = ("u", "data", "--mirror", "-y", *(("--links", "skip") if kind == "link that is skipped" else ()))

    def change(place: Path) -> None:
        links = {"link that is skipped": project.data / "f1", "link to elsewhere": outside}
        _put(place, kind, links.get(kind))

    def begin(number: int) -> None:
        """30 files to send again, and a blob to delete."""
        write_tree(project.data, {**kept, **{f"f{each}": f"{number} {each}".encode() for each in range(30)}})
        container.put("data/extra", b"extra")

    kept = {"odd": b"a file once", "z/odd": b"another"}
    with fault_proxy(service, Fault("stall", rate=0.2, operations=("put blob",), seconds=0.05)) as line:
        project.configure(container, url=line.url)
        begin(-2)
        assert project.json(*words).code == 0
        begin(-1)
        whole = project.json(*words)
        assert (whole.code, whole.data["deleted"]) == (0, 1), str(whole)
        for number in range(moments):
            chance = random.Random(f"{kind} {number}")
            name = chance.choice(sorted(kept))
            begin(number)
            blob_comes = number % 2 == 1
            if blob_comes:
                change(project.data / name)
                container.blob(f"data/{name}").delete_blob()
            process = project.start(*words, "--json")
            moment = chance.uniform(0, whole.seconds)
            time.sleep(moment)
            if blob_comes:
                container.put(f"data/{name}", kept[name])
            else:
                change(project.data / name)
            done = project.finish(process)
            for each in (done, project.json(*words)):
                where = f"{name} after {moment:.2f} s, the blob comes: {blob_comes}: {each}"
                # Between the look at a file and its upload it changed, or now leads outside, which the command says.
                said = [(error["code"], error["path"]) for error in each.errors]
                codes = ("changed_while_read", *(("local_file",) if kind == "link to elsewhere" else ()))
                allowed = ([], *([(code, f"data/{name}")] for code in codes if each is done))
                assert said in allowed and (each.code == 0) == (not said), where
                assert "wrong listing" not in str(each) and "twice" not in str(each), where
                assert container.get(f"data/{name}") == kept[name], where
                assert set(container.names("data/")) == {f"data/{one}" for one in _entries(project.data)}, where
            assert each.data["skipped"] == 1, where
            (project.data / name).unlink()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_mirror_leaves_the_blob_of_what_an_upload_leaves_out(
    project: Project, container: Container, kind: str
) -> None:
    files = {f"f{number}": b"x" for number in range(30)}
    write_tree(project.data, {**files, "odd": b"a file once", "dir/odd": b"another"})
    project.configure(container)
    assert project.json("u", "data").code == 0
    for name in ("odd", "dir/odd"):
        _put(project.data / name, kind)
    (project.data / "f7").unlink()
    for _ in range(2):
        done = project.json("u", "data", "--mirror", "-y")
        assert done.code == 0 and done.data["skipped"] == 2, str(done)
        assert set(container.names("data/")) == {f"data/{name}" for name in {*files, "odd", "dir/odd"} - {"f7"}}


@pytest.mark.parametrize("target", ["inside", "outside", "a folder"])
def test_a_mirror_leaves_the_blobs_of_links_that_are_skipped(
    project: Project, container: Container, target: str, tmp_path: Path
) -> None:
    """Uploaded once through the link, or as a file, then left out: nothing is deleted for that."""
    files = {f"f{number}": b"x" for number in range(30)}
    below = "link/inner" if target == "a folder" else "link"
    write_tree(project.data, {**files, below: b"once"})
    project.configure(container)
    assert project.json("u", "data").code == 0
    outside = tmp_path / "outside"
    write_tree(outside, {"link": b"once", "link2/inner": b"once"})
    link = project.data / "link"
    if target == "a folder":
        (project.data / below).unlink()
        link.rmdir()
    else:
        link.unlink()
    link.symlink_to({"inside": project.data / "f1", "outside": outside / "link", "a folder": outside / "link2"}[target])
    for words in (("--links", "skip"), ("--links", "skip", "--overwrite"), () if target != "inside" else None):
        if words is not None:
            done = project.json("u", "data", "--mirror", "-y", *words)
            assert (done.code, done.data["deleted"], done.codes) == (0, 0, set()), str(done)
            assert "data/link: left out" in str(done)
            assert set(container.names("data/")) == {f"data/{name}" for name in (*files, below)}


def test_looking_at_a_pipe_ends(project: Project, container: Container) -> None:
    write_tree(project.data, {"a": b"a"})
    project.configure(container)
    assert project.json("u", "data").code == 0
    container.put("data/pipe", b"there")
    _put(project.data / "pipe", "pipe")
    for words in (("stat", "data/pipe"), ("verify", "data"), ("verify", "data", "--deep"), ("status",), ("u", "data")):
        assert "bug in blobsync" not in str(project.json(*words)), words
    refused = project.json("u", "data/pipe")
    assert refused.code != 0 and "is neither a file nor a folder" in str(refused)


def test_a_pipe_among_the_code_is_left_out(project: Project, container: Container) -> None:
    project.configure(container)
    document = yaml.safe_load((project.root / "aux_data/aml/aml.yaml").read_text())
    document["config_param"]["code_path"] = {
        "azure_blob_config_file": "aux_data/configs/aml.yaml",
        "path": "c/code.zip",
    }
    (project.root / "aux_data/aml/aml.yaml").write_text(yaml.safe_dump(document))
    (project.root / "main.py").write_text("print()")
    for name in ("pipe.py", "CACHEDIR.TAG", "lib/CACHEDIR.TAG", "lib/pyvenv.cfg"):
        _put(project.root / name, "pipe")
    done = project.json("init")
    assert done.code == 0, str(done)
