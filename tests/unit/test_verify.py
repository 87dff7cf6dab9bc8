"""``verify``: compares the local files, the blobs and the index."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import NothingMatchedError
from blobsync.base.locations import LocalLocation
from blobsync.config.mapping import resolve
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.sorted_runs import IN_MEMORY, Spill
from blobsync.plan.survey import Request
from blobsync.plan.transfer_plan import IndexKey, Part, PlanPart, Route
from blobsync.project.browse import path_status
from blobsync.project.verify import CLASSES, VerifyReport, verify
from tests.fakes.project_context import World, account, cluster
from tests.source import ROOT


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "project", cluster("eu", data=account("eu")))
    folder = world.root / "data" / "v"
    folder.mkdir(parents=True)
    for name in "abc":
        (folder / name).write_bytes(name.encode() * 4)
    world.run("u", "data/v")
    return world


def look(world: World, *, deep: bool = False, spill: Spill = IN_MEMORY) -> VerifyReport:
    context = world.context()
    there = world.here.folders[0].remote
    key = IndexKey(LocalLocation(Path("data")), there, "v")
    part: PlanPart = Part("data/v", Route.UPLOAD, LocalLocation(world.root / "data" / "v"), there.child("v"), key)
    links = LinkPolicy("follow", str(world.root), "data/v")
    request = Request(context.opened(part), links, context.records(key), spill=spill)
    return verify([request], lambda _: None, deep=deep)


def classes(report: VerifyReport) -> dict[str, str]:
    return {finding.path.rpartition("/")[2]: finding.status for finding in report.not_equal}


@pytest.mark.parametrize("deep", [False, True])
def test_uploaded_files_are_equal(world: World, *, deep: bool) -> None:
    report = look(world, deep=deep)
    assert (report.counts, report.bytes_equal, report.exit_code) == ({"equal": 3}, 12, 0)


def test_each_kind_of_difference_has_its_class(world: World) -> None:
    folder = world.root / "data" / "v"
    (folder / "a").write_bytes(b"edit")
    world.store("eu").add("store/data/v/b", b"them")
    (folder / "new").write_bytes(b"n")
    world.store("eu").add("store/data/v/far", b"f")
    (folder / "c").write_bytes(b"mine")
    world.store("eu").add("store/data/v/c", b"them")
    report = look(world)
    assert classes(report) == {
        "a": "changed_here",
        "b": "changed_there",
        "c": "differs",
        "new": "local_only",
        "far": "remote_only",
    }
    assert report.exit_code == 1


def test_deep_finds_damage_that_stat_and_listing_do_not_show(world: World) -> None:
    blob = world.store("eu").blobs["store/data/v/a"]
    blob.body = b"rott"
    file = world.root / "data" / "v" / "b"
    before = file.stat()
    with file.open("r+b") as stream:
        stream.write(b"rott")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look(world).counts.get("equal", 0) >= 1
    report = look(world, deep=True)
    assert classes(report) == {"a": "damaged", "b": "changed_here"}
    assert report.exit_code == 3


def test_equal_size_without_an_md5_is_unknown_until_read(world: World) -> None:
    folder = world.root / "data" / "v"
    (folder / "d").write_bytes(b"dddd")
    world.store("eu").add("store/data/v/d", b"dddd", with_md5=False)
    assert classes(look(world)) == {"d": "unknown"}
    assert look(world, deep=True).exit_code == 0


def test_stat_and_verify_agree_about_a_blob_without_an_md5(world: World) -> None:
    blobs, context = world.store("eu").blobs, world.context()
    for name in ("a", "b"):
        blob = blobs[f"store/data/v/{name}"]
        blob.info = blob.info._replace(md5=None)
    (world.root / "data" / "v" / "b").write_bytes(b"edit")
    said = {}
    for name in "abc":
        place = resolve(f"data/v/{name}", cwd=world.root, root=world.root, cluster=world.here)
        said[name] = path_status(context.connections, world.index, place).equal
    assert said == {"a": True, "b": None, "c": True}
    assert classes(look(world)) == {"b": "changed_here"}


def test_a_missing_side_is_reported_file_by_file(world: World) -> None:
    for file in (world.root / "data" / "v").iterdir():
        file.unlink()
    (world.root / "data" / "v").rmdir()
    report = look(world)
    assert report.counts == {"remote_only": 3}
    world.store("eu").blobs.clear()
    with pytest.raises(NothingMatchedError):
        look(world)


def test_a_report_with_only_equal_files_and_an_unreadable_one_is_no_success(world: World) -> None:
    (world.root / "data" / "v" / "dangling").symlink_to("nowhere")
    report = look(world)
    assert report.exit_code == 3
    assert replace(report, unreadable=()).exit_code == 0


@pytest.mark.parametrize("deep", [False, True])
def test_files_that_are_not_equal_go_to_the_disk_above_the_limit(world: World, *, deep: bool) -> None:
    for name in ("z", "y", "x", "w", "a"):
        (world.root / "data" / "v" / name).write_bytes(b"other")
    few, many = look(world, deep=deep), look(world, deep=deep, spill=Spill(most=3))
    assert isinstance(few.not_equal, tuple) and not isinstance(many.not_equal, tuple)
    assert [file.path for file in few.not_equal] == [f"data/v/{name}" for name in "awxyz"]
    for _ in range(2):
        assert tuple(many.not_equal) == few.not_equal
    assert len(many.not_equal) == 5
    assert (many.not_equal[0], many.not_equal[-1], many.not_equal[1:3]) == (
        few.not_equal[0],
        few.not_equal[4],
        few.not_equal[1:3],
    )
    for outside in (5, -6):
        with pytest.raises(IndexError):
            many.not_equal[outside]
    assert (many.counts, many.bytes_equal, many.exit_code) == (few.counts, few.bytes_equal, few.exit_code)
    assert not many.ok


def test_the_commands_page_documents_each_class() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    table = page.partition("| `status` in `--json` | meaning |\n")[2].partition("\n\n")[0]
    # One row may say two that mirror each other.
    cells = re.findall(r"^\| ([^|]+) \| .+ \|$", table, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(cells))) == sorted(CLASSES)
