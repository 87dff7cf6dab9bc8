"""Copies between two clusters: each file is in one leg and arrives at its own path, whatever the folder entries."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.base.errors import FailureCode, NothingMatchedError
from blobsync.base.locations import BlobLocation, Location
from blobsync.config.mapping import resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.plan.path_mapping import Leg, legs, request_for
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, Route
from tests.fakes.project_context import World, account

NAMES = st.sampled_from(["a", "b", "ab"])
BELOW = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ENTRIES = st.sets(BELOW, max_size=4)


def entries(name: str, below: set[str]) -> Cluster:
    """``data`` and some folders below it, each at a path of its own, every second one in another container."""
    folders = tuple(
        FolderEntry(prefix, account(f"{name}{number % 2}"), f"{name}/{number}")
        for number, prefix in enumerate(sorted(["data", *(f"data/{path}" for path in below)]))
    )
    return Cluster(name, f"aux_data/aml/{name}.yaml", Path("/nowhere"), folders=folders)


def files_only(paths: set[str]) -> set[str]:
    """The names without those that are folders of other names."""
    return {path for path in paths if not any(other.startswith(f"{path}/") for other in paths)}


def place(path: str, cluster: Cluster, root: Path) -> tuple[str, str]:
    """Account and blob of a path relative to the project's root."""
    found = resolve(path, cwd=root, root=root, cluster=cluster)
    return found.remote.container.account, found.remote.name


def at(end: Location, relative: str) -> tuple[str, str]:
    assert isinstance(end, BlobLocation)
    return end.container.account, end.child(relative).name


def carrying(world: World, chosen: tuple[Leg, ...], shown: str, options: TransferOptions) -> list[tuple[Leg, str]]:
    """The legs that the path ``shown`` goes by, and its name below them."""
    found = []
    for leg in chosen:
        relative = "" if leg.part.path == shown else shown.removeprefix(f"{leg.part.path}/")
        apart = request_for(world.context(copy=True), leg, options).apart
        if relative != shown and (not relative or apart is None or not apart(relative)):
            found.append((leg, relative))
    return found


@settings(max_examples=200, deadline=None)
@given(here=ENTRIES, there=ENTRIES, tree=st.sets(BELOW, min_size=1, max_size=8), moved=st.booleans())
def test_a_copy_moves_each_file_once_and_to_its_own_path(
    here: set[str], there: set[str], tree: set[str], *, moved: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), entries("dst", here), entries("src", there))
        assert world.there is not None
        first, second = ("data/a", "data/b") if moved else ("data", "data")
        options = TransferOptions(from_path=first) if moved else TransferOptions()
        chosen = legs(world.context(copy=True), Direction.UP, [second], options)
        for name in files_only(tree):
            (leg, relative), *others = carrying(world, chosen, f"{second}/{name}", options)
            assert not others, name
            assert at(leg.part.source, relative) == place(f"{first}/{name}", world.there, world.root)
            assert at(leg.part.destination, relative) == place(f"{second}/{name}", world.here, world.root)


@settings(max_examples=40, deadline=None)
@given(here=ENTRIES, there=ENTRIES, tree=st.sets(BELOW, min_size=1, max_size=8), down=st.booleans())
def test_all_files_of_the_source_arrive(here: set[str], there: set[str], tree: set[str], *, down: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "project", entries("dst", here), entries("src", there))
        assert world.there is not None
        names = [f"data/{name}" for name in sorted(files_only(tree))]
        for name in names:
            where, blob = place(name, world.there, world.root)
            world.store(where).add(blob, name.encode())
        result = world.run("d" if down else "u", "data", copy=True)
        assert (result.ok, result.verified) == (True, len(names))
        assert world.run("d" if down else "u", "data", copy=True).transferred == 0
        if down:
            data = world.root / "data"
            assert sorted(f"data/{file.relative_to(data)}" for file in data.rglob("*") if file.is_file()) == names
            return
        arrived = {
            (where, blob): held.body for where in ("dst0", "dst1") for blob, held in world.store(where).blobs.items()
        }
        assert arrived == {place(name, world.here, world.root): name.encode() for name in names}


@pytest.mark.parametrize("nested_here", [True, False])
def test_a_mirror_between_clusters_respects_the_entries_of_both(tmp_path: Path, *, nested_here: bool) -> None:
    nested, plain = {"coco"}, set[str]()
    world = World(
        tmp_path, entries("dst", nested if nested_here else plain), entries("src", plain if nested_here else nested)
    )
    assert world.there is not None
    names = [f"data/{n}" for n in range(5)] + [f"data/coco/{n}" for n in range(5)]
    for name in names:
        where, blob = place(name, world.there, tmp_path)
        world.store(where).add(blob, b"1")
    for extra in ("data/extra", "data/coco/extra"):
        where, blob = place(extra, world.here, tmp_path)
        world.store(where).add(blob, b"2")
    options = TransferOptions(mirror=True, max_delete_percent=100.0)
    result = world.run("u", "data", options=options, copy=True)
    assert (result.ok, result.transferred, result.deleted) == (True, 10, 2)
    arrived = {(where, blob) for where in ("dst0", "dst1") for blob in world.store(where).blobs}
    assert arrived == {place(name, world.here, tmp_path) for name in names}


@pytest.mark.parametrize("inner", ["p/out", "p2"])
def test_a_mirror_deletes_nothing_that_another_entry_has_below_the_same_blobs(tmp_path: Path, inner: str) -> None:
    folders = FolderEntry("data", account("dst"), "p"), FolderEntry("output", account("dst"), inner)
    world = World(tmp_path, Cluster("dst", "aux_data/aml/dst.yaml", Path("/nowhere"), folders=folders))
    world.write("data/a", b"1")
    for name in ("p/old", "p/out/result"):
        world.store("dst").add(name, b"2")
    options = TransferOptions(mirror=True, max_delete_percent=100.0)
    refused = [(each.code, each.message) for each in world.plan("u", "data", options=options).refusals]
    of_another = "--mirror would delete out/result, which output_folder has as its own (" + str(folders[1].remote) + ")"
    assert refused == ([(FailureCode.MIRROR_REFUSED, of_another)] if inner == "p/out" else [])
    # As the hint says.
    result = world.run("u", "data", options=options._replace(exclude=("out/",)))
    assert result.ok and set(world.store("dst").blobs) == {"p/a", "p/out/result"}


def test_a_mirror_reports_folders_that_the_source_does_not_have(tmp_path: Path) -> None:
    world = World(tmp_path, entries("dst", {"coco"}), entries("src", set()))
    world.store("src0").add("src/0/a", b"1")
    where, blob = place("data/coco/kept", world.here, tmp_path)
    world.store(where).add(blob, b"2")
    result = world.run("u", "data", options=TransferOptions(mirror=True), copy=True)
    assert (result.ok, result.deleted, blob in world.store(where).blobs) == (True, 0, True)
    assert [text for text in result.plan.warnings if text.startswith("data/coco: the source has nothing there")]


def test_a_file_with_its_own_entry_uses_that_entry(tmp_path: Path) -> None:
    world = World(tmp_path, entries("dst", {"big.zip"}))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "big.zip").write_bytes(b"1")
    (tmp_path / "data" / "a").write_bytes(b"2")
    result = world.run("u", "data")
    assert (result.ok, result.transferred) == (True, 2)
    assert set(world.store("dst0").blobs) == {"dst/0/a"}
    assert set(world.store("dst1").blobs) == {"dst/1"}


def test_a_missing_path_is_an_error_even_if_another_path_contains_it(tmp_path: Path) -> None:
    world = World(tmp_path, entries("dst", {"coco"}), entries("src", set()))
    world.store("src0").add("src/0/a", b"1")
    with pytest.raises(NothingMatchedError, match="data/coco"):
        world.run("u", "data", "data/coco", copy=True)


def test_the_record_of_a_copy_is_used_whichever_folder_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, entries("dst", {"coco"}), entries("src", set()))
    # Without MD5s only the record in the index shows that both sides are equal.
    world.store("src0").add("src/0/coco/sub/a", b"1", with_md5=False)
    assert world.run("u", "data", copy=True).transferred == 1
    for path in ("data/coco", "data/coco/sub", "data/coco/sub/a"):
        plan = world.plan("u", path, copy=True)
        assert [action.reason.value for _, action in plan.each()] == ["as last verified on both sides"], path
        assert plan.route in (Route.SAME_ACCOUNT, Route.CROSS_ACCOUNT)


def test_the_index_keeps_records_under_the_prefix_of_the_entry_and_the_url_of_its_folder(tmp_path: Path) -> None:
    context = World(tmp_path, entries("dst", {"b c"})).context()
    urls = {entry.prefix: str(entry.remote) for entry in context.cluster.folders}
    for direction in Direction:
        (leg,) = legs(context, direction, ["data/b c/d"], TransferOptions())
        assert leg.part.key.roots == ("data/b c", urls["data/b c"]) and leg.part.key.path == "d"
    (elsewhere,) = legs(context, Direction.DOWN, ["data/to"], TransferOptions(from_path="data/from"))
    assert elsewhere.part.key.roots == ("data/to", f"{urls['data']}/from") and elsewhere.part.key.path == ""


def test_the_index_keeps_records_of_a_copy_under_both_urls(tmp_path: Path) -> None:
    world = World(tmp_path, entries("dst", set()), entries("src", set()))
    assert world.there is not None
    (leg,) = legs(world.context(copy=True), Direction.UP, ["data/d"], TransferOptions())
    assert leg.part.key.roots == (str(world.there.folders[0].remote), str(world.here.folders[0].remote))
    assert leg.part.key.path == "d"
