"""Several names of one local file: written once, and never deleted while another name remains."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blobsync.base.errors import LocalFileError, MirrorRefusedError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.plan_reasons import Reason
from blobsync.config.trust_store import OutsideLink
from blobsync.local.link_policy import way_to
from blobsync.plan.name_clashes import Names, settle, spare_links
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, FileAction, Part, PlanPart, Route
from tests.fakes.project_context import World, account, cluster
from tests.fakes.tasks import index_key

NAMES = Names("/p/data", {"dl": "/p/data/d0", "dl/deeper": "/p/data/x", "fl": "/p/data/d0/g"})
HERE = LocalState(1, 1, 1, 1)


def there(md5: bytes | None = b"1") -> RemoteState:
    return RemoteState(1, "etag", md5)


def move(path: str, md5: bytes | None = b"1") -> FileAction:
    return FileAction(path, Action.TRANSFER, Reason.NEW, 1, there(md5))


def plan_part(path: str, local: Path, *actions: FileAction) -> PlanPart:
    end = LocalLocation(local)
    return Part(path, Route.DOWNLOAD, end, end, index_key("", "", ""), actions=actions)


def decided(*actions: FileAction, names: Names = NAMES, writing: Action = Action.TRANSFER) -> dict[str, str]:
    part = plan_part("data", Path("/p/data"), *actions)
    (settled,) = settle([part], [names], writing=writing)
    return {action.path: action.action.value for action in settled.actions}


@pytest.mark.parametrize(
    ("path", "real", "link"),
    [
        ("d0/g", "/p/data/d0/g", None),
        ("dl/g", "/p/data/d0/g", "dl"),
        ("dl", "/p/data/d0", "dl"),
        ("dl2/g", "/p/data/dl2/g", None),
        ("dl/deeper/a", "/p/data/x/a", "dl/deeper"),
        ("fl", "/p/data/d0/g", "fl"),
        ("", "/p/data", None),
    ],
)
def test_the_real_path_of_a_name_with_links(path: str, real: str, link: str | None) -> None:
    assert (NAMES.real(path), NAMES.link_of(path)) == (real, link)


def test_equal_blobs_are_written_once_under_the_name_without_a_link() -> None:
    assert decided(move("dl/g"), move("d0/g"), move("fl"), move("other")) == {
        "dl/g": "skip",
        "d0/g": "transfer",
        "fl": "skip",
        "other": "transfer",
    }


@pytest.mark.parametrize("md5", [b"2", None])
def test_blobs_that_may_differ_are_a_conflict(md5: bytes | None) -> None:
    assert decided(move("dl/g", md5), move("d0/g", md5 and b"1")) == {"dl/g": "conflict", "d0/g": "conflict"}


def test_an_unchanged_name_makes_its_alias_a_conflict() -> None:
    same = FileAction("d0/g", Action.UNCHANGED, Reason.SAME_RECORD, 1)
    assert decided(move("dl/g"), same) == {"dl/g": "conflict", "d0/g": "unchanged"}


def test_a_file_is_not_deleted_while_an_alias_stays() -> None:
    extra = FileAction("d0/g", Action.DELETE, Reason.EXTRA, 1, None, HERE)
    assert decided(extra, move("dl/g")) == {"d0/g": "skip", "dl/g": "transfer"}
    assert decided(extra) == {"d0/g": "delete"}


def test_a_mirror_deletes_neither_links_nor_their_targets() -> None:
    deletions = [FileAction(path, Action.DELETE, Reason.EXTRA, 1, None, HERE) for path in ("dl/g", "fl", "d0/g", "dlx")]
    spared = spare_links(deletions, NAMES)
    assert [action.action.value for action in spared] == ["skip", "skip", "delete", "delete"]
    assert decided(*spared) == {"dl/g": "skip", "fl": "skip", "d0/g": "delete", "dlx": "delete"}


def test_an_upload_writes_local_files_only_with_keep_remote() -> None:
    assert decided(move("dl/g"), move("d0/g", b"2"), writing=Action.ADOPT) == {"dl/g": "transfer", "d0/g": "transfer"}
    taken = [FileAction(path, Action.ADOPT, Reason.KEEP_DESTINATION, 1, HERE, there()) for path in ("dl/g", "d0/g")]
    assert decided(*taken, writing=Action.ADOPT) == {"dl/g": "skip", "d0/g": "adopt"}


def test_aliases_are_found_across_parts() -> None:
    parts = [plan_part(path, Path(), move("a")) for path in ("data/w", "data/v")]
    settled = settle(parts, [Names("/p/data/w", {}), Names("/p/data/w", {})], writing=Action.TRANSFER)
    assert [part.actions[0].action.value for part in settled] == ["transfer", "skip"]


# -- links on the way to a path ---------------------------------------------------------------------------------------


def test_each_link_that_leaves_the_project_must_be_trusted(tmp_path: Path) -> None:
    disk, other, project = tmp_path / "disk", tmp_path / "other", tmp_path / "project"
    for folder in (disk / "in", other, project / "data"):
        folder.mkdir(parents=True)
    (project / "data/coco").symlink_to(disk)
    (disk / "away").symlink_to(other)
    (disk / "round").symlink_to("in")
    first, second = OutsideLink("data/coco", str(disk)), OutsideLink("data/coco/away", str(other))
    nobody = frozenset[OutsideLink]()
    assert way_to(project, "data/coco/away/x", nobody).untrusted == (first, second)
    assert way_to(project, "data/coco/away/x", frozenset({first})).untrusted == (second,)
    assert way_to(project, "data/coco/away/x", frozenset({first, second})).entered == (str(disk), str(other))
    assert way_to(project, "data/coco/round/x", frozenset({first})).untrusted == ()
    assert way_to(project, "data/coco/x", frozenset({OutsideLink("data/coco", str(other))})).untrusted == (first,)
    assert way_to(project, "data/x", nobody) == ((), ())


@pytest.mark.parametrize("target", [".git", ".git/hooks", "aux_data", ".blobsync", "sub/.git", "."])
def test_links_into_the_projects_own_folders_are_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "data").symlink_to(tmp_path / target)
    with pytest.raises(LocalFileError, match="data is a symlink into"):
        way_to(tmp_path, "data/x", frozenset())


# -- everything together -------------------------------------------------------------------------------------------

FILES = st.dictionaries(
    st.sampled_from([f"{folder}/{name}" for folder in ("d0", "d1", "dl", "ll") for name in "abc"]),
    st.sampled_from([b"1", b"22", b"3"]),
    max_size=8,
)


@settings(max_examples=40, deadline=None)
@given(
    here=st.dictionaries(st.sampled_from(["d0/a", "d0/b", "d1/c", "d0/z"]), st.sampled_from([b"1", b"x"])),
    remote=FILES,
    mirror=st.booleans(),
    overwrite=st.booleans(),
)
def test_no_download_loses_a_file_whatever_its_alias(
    here: dict[str, bytes], remote: dict[str, bytes], *, mirror: bool, overwrite: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "project", cluster("eu", data=account("eu")))
        data = world.root / "data"
        for name in ("d0", "d1"):
            (data / name).mkdir(parents=True)
        (data / "dl").symlink_to("d0")
        (data / "ll").symlink_to("dl")
        for name, body in here.items():
            (data / name).write_bytes(body)
        for name, body in remote.items():
            world.store("eu").add(f"store/data/{name}", body)
        for name in ("d0", "d1"):
            # A mirror removes the folders that it empties.
            world.store("eu").add(f"store/data/{name}/always", b"there")
        try:
            result = world.run(
                "d", "data", options=TransferOptions(mirror=mirror, overwrite=overwrite, max_delete_percent=100.0)
            )
        except MirrorRefusedError:
            return
        assert all((data / link).is_symlink() for link in ("dl", "ll"))
        assert not [failure for failure in result.failures if failure.code == "changed_meanwhile"], result.failures
        left = {each.path for _, each in result.plan.each() if each.action is Action.CONFLICT}
        for path in remote:
            # Each blob has a local file of its name, or is reported as a conflict.
            assert path in left or (data / path).is_file(), path
        if result.ok:
            assert all((data / path).read_bytes() == body for path, body in remote.items())
        if not mirror:
            assert all((data / path).is_file() for path in here)
        assert sorted(os.listdir(data)) == ["d0", "d1", "dl", "ll"]
