"""The mapping of paths to blobs."""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.errors import MappingError, OutsideProjectError, UnmappedPathError
from blobsync.config.mapping import Resolution, resolve
from blobsync.config.model import Cluster, FolderEntry, StorageAccount

ROOT = Path("/home/me/project")
ACCOUNT = StorageAccount("a.yaml", "acct", "cont", "https://acct.blob.core.windows.net")


def cluster(**entries: str) -> Cluster:
    folders = tuple(FolderEntry(prefix.replace("__", "/"), ACCOUNT, path) for prefix, path in entries.items())
    return Cluster(name="aml", file="aux_data/aml/aml.yaml", root=ROOT, folders=folders)


CLUSTER = cluster(data="path/to/data", data__coco="elsewhere/coco", output="path/to/output", everything="")


def at(given: str, cwd: str = "", of: Cluster = CLUSTER) -> Resolution:
    return resolve(given, cwd=ROOT / cwd if cwd else ROOT, root=ROOT, cluster=of)


@pytest.mark.parametrize(
    ("given", "cwd", "path", "blob"),
    [
        ("data/voc20", "", "data/voc20", "path/to/data/voc20"),
        ("data", "", "data", "path/to/data"),
        ("./data/voc20", "", "data/voc20", "path/to/data/voc20"),
        ("data/voc20/", "", "data/voc20", "path/to/data/voc20"),
        ("data//voc20", "", "data/voc20", "path/to/data/voc20"),
        ("data/./voc20/../voc21", "", "data/voc21", "path/to/data/voc21"),
        ("/home/me/project/data/voc20", "", "data/voc20", "path/to/data/voc20"),
        ("//home/me/project/data/voc20", "", "data/voc20", "path/to/data/voc20"),
        ("voc20", "data", "data/voc20", "path/to/data/voc20"),
        (".", "data", "data", "path/to/data"),
        ("../output/x.txt", "data/voc20/..", "output/x.txt", "path/to/output/x.txt"),
        ("../../project/data/x", "src", "data/x", "path/to/data/x"),
        ("data/coco/a", "", "data/coco/a", "elsewhere/coco/a"),
        ("data/coco", "", "data/coco", "elsewhere/coco"),
        ("data/coco20", "", "data/coco20", "path/to/data/coco20"),
        ("everything/x", "", "everything/x", "x"),
        ("everything", "", "everything", ""),
        ("data/Ünï #%?.txt", "", "data/Ünï #%?.txt", "path/to/data/Ünï #%?.txt"),
    ],
)
def test_paths_and_their_blobs(given: str, cwd: str, path: str, blob: str) -> None:
    found = at(given, cwd)
    assert (found.path, found.remote.name, found.local) == (path, blob, ROOT / path)
    assert "/".join(filter(None, (found.entry.prefix, found.relative))) == path


@pytest.mark.parametrize(
    ("given", "folder_only"),
    [("data/a", False), ("data/a/", True), ("data/a/.", True), ("data/a/b/..", True), (".", True), ("data/a.", False)],
)
def test_a_slash_at_the_end_means_the_folder(given: str, folder_only: bool) -> None:
    assert at(given, "data" if given == "." else "").folder_only is folder_only


def test_entries_below_a_path_are_reported() -> None:
    assert [entry.prefix for entry in at("data").nested] == ["data/coco"]
    assert at("data/coco").nested == ()
    assert at("data/voc20").nested == ()


def test_why_is_a_sentence() -> None:
    assert at("data/voc20").why == (
        "data_folder in aux_data/aml/aml.yaml maps data to path/to/data in container cont of account acct"
    )
    assert at("data/coco/a").why == (
        "data/coco_folder in aux_data/aml/aml.yaml maps data/coco to elsewhere/coco in container cont of account acct; "
        "it is the longest prefix of data/coco/a (also: data)"
    )
    assert at("everything/x").why == (
        "everything_folder in aux_data/aml/aml.yaml maps everything to the top in container cont of account acct"
    )


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("dta/voc20", "did you mean data/voc20?"),
        ("src/x.py", "add src_folder under config_param"),
        ("train.py", "put it into one of these folders; code goes to jobs with blobsync init"),
        ("data2", "did you mean data?"),
        (".", "name one: data"),
    ],
)
def test_unmapped_paths(given: str, hint: str) -> None:
    known = "data, data/coco, output, everything"
    message = f"{given} is not covered by any folder entry of aux_data/aml/aml.yaml; entries: {known}"
    if given == ".":
        message = f"the project root has no blob folder, only these folders have one ({known})"
    with pytest.raises(UnmappedPathError) as caught:
        at(given)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_a_path_above_nested_entries_names_them() -> None:
    with pytest.raises(UnmappedPathError) as caught:
        at("sets", of=cluster(sets__coco="c", sets__voc="v"))
    assert caught.value.hint == "entries below it: sets/coco, sets/voc"


def test_a_cluster_without_entries_says_none() -> None:
    with pytest.raises(UnmappedPathError, match=r"entries: none$"):
        at("data", of=cluster())


@pytest.mark.parametrize("given", ["../x", "/etc/passwd", "/home/me/project2/data", "data/../../x", "/"])
def test_paths_outside_the_project(given: str) -> None:
    with pytest.raises(OutsideProjectError) as caught:
        at(given)
    assert str(caught.value) == f"{given} is outside the project /home/me/project"
    assert str(caught.value.hint).startswith("give a path inside it, such as data/voc20; ")
    assert "blobsync config trust-link data/NAME" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "a path must not be empty"),
        ("data/a\0b", "a path must not contain a NUL"),
        ("data/\udce9", "data/\\udce9 is not UTF-8, and blob names must be"),
        ("data/" + "x" * 1024, "the blob's name would be longer than 1024 characters"),
    ],
)
def test_impossible_paths(given: str, message: str) -> None:
    with pytest.raises(MappingError) as caught:
        at(given)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("https://acct.blob.core.windows.net", "acct.file.core.windows.net"),
        ("https://acct.blob.core.chinacloudapi.cn", "acct.file.core.chinacloudapi.cn"),
        ("https://10.0.0.4/acct", "acct.file.core.windows.net"),
    ],
)
def test_a_file_share_is_for_jobs_only(endpoint: str, host: str) -> None:
    account = ACCOUNT._replace(blob_endpoint=endpoint)
    share = FolderEntry("data", account, "p q", storage_type="file", file_share="s")
    of = Cluster(name="aml", file="f", root=ROOT, folders=(share,))
    for uploads in (True, False):
        with pytest.raises(MappingError) as caught:
            resolve("data/x", cwd=ROOT, root=ROOT, cluster=of, uploads=uploads)
        assert str(caught.value) == (
            "data/x belongs to data_folder, an Azure file share (storage_type: file), which only jobs can use"
        )
        here, there = "/home/me/project/data/x", f"https://{host}/s/p%20q/x"
        ends = f"{here} {there} --from-to LocalFile" if uploads else f"{there} {here} --from-to FileLocal"
        assert caught.value.hint is not None
        assert f" copy {ends} --recursive --as-subdir=false;" in caught.value.hint


NAMES = st.sampled_from(["data", "coco", "voc", "voc20", "a", "b.txt", "ü", "a b", "..."])
PATHS = st.lists(NAMES, min_size=0, max_size=4)


@given(prefixes=st.sets(st.lists(NAMES, min_size=1, max_size=3).map("/".join), min_size=1, max_size=5), path=PATHS)
def test_the_longest_covering_prefix_wins_by_whole_names(prefixes: set[str], path: list[str]) -> None:
    folders = tuple(FolderEntry(prefix, ACCOUNT, f"blobs/{number}") for number, prefix in enumerate(sorted(prefixes)))
    of = Cluster(name="aml", file="f", root=ROOT, folders=folders)
    covering = [prefix for prefix in prefixes if path[: prefix.count("/") + 1] == prefix.split("/")]
    if not covering:
        with pytest.raises(UnmappedPathError):
            at("/".join(path) or ".", of=of)
        return
    found = at("/".join(path), of=of)
    assert found.entry.prefix == max(covering, key=lambda prefix: prefix.count("/"))
    assert "/".join(filter(None, (found.entry.prefix, found.relative))) == "/".join(path)
    assert found.remote.name == "/".join(filter(None, (found.entry.path, found.relative)))


@given(path=st.lists(NAMES, max_size=4), cwd=st.lists(NAMES, max_size=3), slash=st.booleans())
def test_every_way_to_write_a_path_means_the_same(path: list[str], cwd: list[str], slash: bool) -> None:
    absolute = ROOT.joinpath("data", *path)
    end = "/" if slash else ""
    here = ROOT.joinpath(*cwd)
    plain = at(str(absolute) + end)
    relative = resolve(posixpath.relpath(absolute, here) + end, cwd=here, root=ROOT, cluster=CLUSTER)
    dotted = resolve("./" + posixpath.relpath(absolute, here) + end, cwd=here, root=ROOT, cluster=CLUSTER)
    assert (plain.path, plain.remote, plain.local) == (relative.path, relative.remote, relative.local)
    assert (relative.remote, relative.local) == (dotted.remote, dotted.local)


@given(first=PATHS, second=PATHS)
def test_different_paths_never_share_a_blob(first: list[str], second: list[str]) -> None:
    one, other = at("/".join(["data", *first])), at("/".join(["data", *second]))
    assert (one.remote == other.remote) is (one.path == other.path)
