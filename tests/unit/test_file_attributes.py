"""Executable bits and times as metadata, under rclone's names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blobsync.direct.file_attributes import FileAttributes, attributes_in, metadata_of
from blobsync.plan.transfer_plan import Action, KeptAttributes
from tests.fakes.project_context import World, account, cluster

BOTH = KeptAttributes(modes=True, times=True)
AT = 1_700_000_000_123_456_789


def test_what_is_written_is_read_back_to_the_nanosecond(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch()
    file.chmod(0o750)
    for at in (AT, 0, -1, 951_782_399_999_999_999):
        os.utime(file, ns=(at, at))
        said = metadata_of(file.stat(), BOTH)
        assert attributes_in(said, BOTH) == FileAttributes(executable=True, mtime_ns=at)
    assert said == {"mode": "100750", "mtime": "2000-02-28T23:59:59.999999999Z"}
    assert metadata_of(file.stat(), KeptAttributes()) == {}
    assert attributes_in(said, KeptAttributes(times=True)).executable is None
    assert attributes_in(said, KeptAttributes(modes=True)).mtime_ns is None


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"Mtime": "2023-11-14T22:13:20.123456789Z", "MODE": "644"}, FileAttributes(False, AT)),
        ({"mtime": "2023-11-14t23:13:20.123456789+01:00"}, FileAttributes(None, AT)),
        ({"mtime": "2023-11-14T22:13:20Z"}, FileAttributes(None, 1_700_000_000_000_000_000)),
        ({"mtime": "2023-11-14T22:13:20.5Z", "mode": "601"}, FileAttributes(True, 1_700_000_000_500_000_000)),
        ({}, FileAttributes()),
        ({"mtime": "soon", "mode": "rwx"}, FileAttributes()),
        ({"mtime": "2023-13-14T22:13:20Z", "mode": "9"}, FileAttributes()),
        ({"mtime": "2023-11-14T22:13:20", "mode": "-755"}, FileAttributes()),
        ({"mtime": "2023-11-14T22:13:20.1234567890Z", "mode": "1" * 99}, FileAttributes()),
    ],
)
def test_of_what_others_wrote_only_the_well_formed_counts(said: dict[str, str], found: FileAttributes) -> None:
    assert attributes_in(said, BOTH) == found


def test_an_upload_says_that_modes_and_times_alone_are_not_sent(tmp_path: Path) -> None:
    here = cluster("eu", data=account("eu"))
    here = here._replace(folders=(here.folders[0]._replace(times=True),))
    world = World(tmp_path / "project", here)
    file = world.root / "data" / "f"
    file.parent.mkdir()
    file.write_text("one")
    # What was written just before is looked at again.
    while world.run("u", "data").plan.warnings or not world.plan("u", "data").count(Action.UNCHANGED):
        pass
    os.utime(file, ns=(AT, AT))
    plan = world.plan("u", "data")
    assert plan.warnings == ("data: 1 file touched, not changed: modes and times alone are not sent",)
    assert world.carry_out(plan).ok
