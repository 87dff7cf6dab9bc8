"""Where a job's outputs are, and which files of a folder are this job's."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.ancestors.batchai_runtime import plain_options, renewed
from blobsync.base.errors import ConfigError, JobError, NothingMatchedError, UsageError
from blobsync.base.file_states import LocalState
from blobsync.base.redaction import Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobs.context import JobContext
from blobsync.jobs.outputs import OutputPlace, copy_outputs, demand_mapped, list_outputs, output_places
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import FolderLink, JobRef, JobSpec, RunInfo, State
from blobsync.local.files import hash_file
from tests.fakes.jobs import make_spec
from tests.fakes.store import MemoryStore

URL = "https://acct.blob.core.windows.net/box"
BOX = StorageAccount("aux_data/configs/box.yaml", "acct", "box", "https://acct.blob.core.windows.net")
OUT = FolderLink("output", URL, "mine/output", "upload")
LOGS = FolderLink("logs", URL, "mine/logs", "upload")
DATA = FolderLink("data", URL, "mine/data", "download")
RUN = "me_1_0badcafe"
STD = "$AZ_BATCHAI_JOB_MOUNT_ROOT/logs/$BLOBSYNC_RUN_ID"


@pytest.mark.parametrize(
    ("folders", "options", "places"),
    [
        ([OUT, DATA], {"own_output": "output"}, [("output", f"output/{RUN}", False)]),
        ([OUT, LOGS, DATA], {}, [("output", "output", True)]),
        ([LOGS, DATA], {}, [("logs", "logs", True)]),
        ([DATA], {}, []),
        (
            [LOGS, replace(DATA, mode="mount")],
            plain_options(
                {"outputs": {"MODEL": f"{STD}/model", "TMP": "$AZ_BATCHAI_JOB_TEMP/x"}, "std_out_err": STD}, {}
            ),
            [("MODEL", f"logs/{RUN}/model", False), ("stdouterr", f"logs/{RUN}", False)],
        ),
        (
            [DATA],
            renewed({"batchai": {"outputs": {"A": "${AZ_BATCHAI_MOUNT_ROOT}/data/${BLOBSYNC_RUN_ID}"}}}, {}),
            [("A", f"data/{RUN}", False)],
        ),
        ([OUT], {"outputs": {"A": "elsewhere"}}, []),
    ],
)
def test_the_places_of_a_job(folders: list[FolderLink], options: dict[str, Any], places: list[Any]) -> None:
    spec = make_spec(folders=tuple(folders), options=options)
    assert [(one.id, one.path, one.is_shared) for one in output_places(spec)] == places


@pytest.mark.parametrize(
    ("asked", "part"),
    [("", ""), ("MODEL", ""), ("MODEL/a/b", "a/b"), ("a/b", "a/b"), ("logs/me/model/a", "a"), ("MODELS/a", "MODELS/a")],
)
def test_a_path_is_the_projects_or_begins_with_the_id_or_is_a_name(asked: str, part: str) -> None:
    assert OutputPlace("MODEL", LOGS, "me/model").part(asked) == part


class Desk:
    """A project whose cluster ``eu`` has an output folder in a container in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "aux_data/configs").mkdir(parents=True)
        self.store = MemoryStore("box")
        folder = FolderEntry("output", BOX, "mine/output", mode="upload")
        self.cluster = Cluster("eu", "aux_data/aml/eu.yaml", root, folders=(folder,), platform="kubernetes")

    def context(self, **changes: Any) -> JobContext:
        environ = {**os.environ, "HOME": str(self.root / "home")}
        return JobContext(self.root, environ, self.cluster._replace(**changes), stores={URL: self.store})

    def put(self, name: str, size: int, modified: float = 1000.0) -> None:
        info = self.store.add(name, b"x" * size)._replace(last_modified=modified)
        self.store.blobs[name] = replace(self.store.blobs[name], info=info)

    def record(self, spec: JobSpec, ended: float | None = None) -> JobRecord:
        state = State.RUNNING if ended is None else State.COMPLETED
        return JobRecord(
            replace(spec, cluster="eu"), JobRef(RUN, "n"), "kubernetes", RunInfo(RUN, state, ended=ended), 1000.5
        )


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


OWN = make_spec(platform="kubernetes", folders=(OUT,), options={"own_output": "output"})
SHARED = make_spec(platform="kubernetes", folders=(OUT,))


def test_a_job_of_its_own_folder_shows_nothing_else(desk: Desk) -> None:
    for name in (f"{RUN}/a.txt", f"{RUN}/deep/b.txt", f"{RUN}2/c.txt", "d.txt"):
        desk.put(f"mine/output/{name}", 3)
    found = list_outputs(desk.context(), desk.record(OWN))
    assert [(one.shown, one.path, one.size) for one in found.files] == [
        ("output/a.txt", f"output/{RUN}/a.txt", 3),
        ("output/deep/b.txt", f"output/{RUN}/deep/b.txt", 3),
    ]
    assert found.paths == (f"output/{RUN}",) and found.notes == ()
    for asked in ("deep", "output/deep/", f"output/{RUN}/deep/b.txt"):
        part = list_outputs(desk.context(), desk.record(OWN), asked)
        assert [one.name for one in part.files] == ["deep/b.txt"]
        assert part.paths[0].startswith(f"output/{RUN}/deep")
    with pytest.raises(NothingMatchedError, match="has written no dee"):
        list_outputs(desk.context(), desk.record(OWN), "dee")
    for ended, said in ((None, "nothing to output so far"), (2000.0, "nothing to output$")):
        with pytest.raises(NothingMatchedError, match=said):
            list_outputs(desk.context(), desk.record(replace(OWN, run_id="other_1_x"), ended), "output")
    assert list_outputs(desk.context(), desk.record(replace(OWN, run_id="other_1_x"))).files == ()


def test_of_a_shared_folder_only_what_changed_while_the_job_ran(desk: Desk) -> None:
    for name, modified in (("before", 999.0), ("during", 1000.0), ("late", 2100.0), ("after", 2400.0)):
        desk.put(f"mine/output/{name}", 1, modified)
    running = list_outputs(desk.context(), desk.record(SHARED))
    assert [one.name for one in running.files] == ["after", "during", "late"]
    ended = list_outputs(desk.context(), desk.record(SHARED, ended=2000.0))
    assert [one.name for one in ended.files] == ["during", "late"]
    assert ended.paths == ("output/during", "output/late")
    assert "output is shared by all jobs" in ended.notes[0] and "output: per_job" in ended.notes[0]


def test_a_job_that_keeps_nothing_says_what_to_write(desk: Desk) -> None:
    with pytest.raises(NothingMatchedError, match="has no output folder that stays") as caught:
        list_outputs(desk.context(), desk.record(make_spec(folders=(DATA,))))
    assert "output: per_job" in str(caught.value.hint)


def linked(desk: Desk, root: Path) -> JobSpec:
    """A job of Slurm that wrote ``deep/a.txt`` to the output folder of ``root``."""
    folder = root / "output" / RUN / "deep"
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("12345")
    return replace(OWN, folders=(replace(OUT, mode="link", source=str(root / "output")),), platform="slurm")


def test_a_file_of_a_linked_folder_has_the_link_of_its_blob_once_that_is_the_same(desk: Desk) -> None:
    spec, name = linked(desk, desk.root), f"output/{RUN}/deep/a.txt"
    signing = BOX._replace(account_key=Secret("a2V5"))
    folders = (desk.cluster.folders[0]._replace(account=signing),)
    found = list_outputs(desk.context(platform="slurm", folders=folders), desk.record(spec))
    [one] = found.files
    assert (one.shown, one.size, one.blob, one.on_disk) == ("output/deep/a.txt", 5, None, desk.root / name)
    assert found.is_here(one) and found.paths == () and found.notes == ()
    with pytest.raises(UsageError, match="is on this machine, not in a container") as caught:
        found.link(one)
    assert caught.value.hint == f"blobsync -c eu u {name}"
    for other, with_md5 in ((b"54321", True), (b"123456", True), (b"12345", False)):
        desk.store.add(f"mine/{name}", other, with_md5=with_md5)
        with pytest.raises(UsageError, match=f"is not known to be what {URL}/mine/{name} holds") as caught:
            found.link(one)
        assert f"blobsync -c eu url {name} links to what is there" in str(caught.value.hint)
    desk.store.add(f"mine/{name}", b"12345")
    assert found.link(one).startswith(f"{URL}/mine/{name}?")


def test_what_is_on_the_disk_of_a_login_node_is_reported_with_the_command_that_brings_it(desk: Desk) -> None:
    spec = linked(desk, desk.root / "there")
    away = desk.context(platform="slurm", values={"ssh": "me@login"})
    with pytest.raises(JobError, match=f"are on me@login, in {desk.root}/there/output/{RUN}") as caught:
        list_outputs(away, desk.record(spec))
    here = f"{desk.root}/output/{RUN}"
    brings = f"mkdir -p {here} && rsync -a me@login:{desk.root}/there/output/{RUN}/ {here}/ brings them here"
    assert str(caught.value.hint).startswith(brings)


def test_outputs_on_the_disk_of_a_shared_root_are_copied_and_none_is_replaced(desk: Desk) -> None:
    there = desk.root / "there"
    spec = linked(desk, there)
    for name in ("b.txt", "big"):
        (there / "output" / RUN / name).write_bytes(b"x" * 3_000_001)
    context = desk.context(platform="slurm")
    found = list_outputs(context, desk.record(spec))
    [first, *_] = found.files
    assert not found.is_here(first) and first.on_disk == there / first.path
    [note] = found.notes
    assert note.startswith(f"output of this job is {there}/output, which is not the project's folder")
    with pytest.raises(UsageError) as caught:
        found.link(first)
    brings = f"blobsync outputs {RUN} output/b.txt --download, then blobsync -c eu u output/{RUN}/b.txt"
    assert caught.value.hint == brings

    here = desk.root / "output" / RUN
    here.mkdir(parents=True)
    (here / "b.txt").write_text("an earlier one")
    done = copy_outputs(found, desk.root, context.environ)
    assert [one.name for one in done.copied] == ["big", "deep/a.txt"] and done.present == ()
    assert (here / "deep/a.txt").read_text() == "12345" and (here / "big").stat().st_size == 3_000_001
    [conflict] = done.failures
    assert (conflict.path, conflict.code, done.exit_code) == (f"output/{RUN}/b.txt", "conflict", 3)
    assert conflict.hint == f"cp {there}/output/{RUN}/b.txt {here}/b.txt replaces it"
    assert (here / "b.txt").read_text() == "an earlier one"
    assert not [name for name in os.listdir(here) if name.startswith(".")]

    (here / "b.txt").unlink()
    again = copy_outputs(found, desk.root, context.environ)
    assert [one.name for one in again.copied] == ["b.txt"] and len(again.present) == 2 and again.exit_code == 0


def test_outputs_are_on_the_disk_before_they_are_called_copied(desk: Desk) -> None:
    spec = linked(desk, desk.root / "there")
    (desk.root / "there/output" / RUN / "b.txt").write_text("x")
    context = desk.context(platform="slurm")
    found = list_outputs(context, desk.record(spec))
    here = desk.root / "output" / RUN
    waited: list[str] = []

    def wait(files: Collection[str]) -> Mapping[str, OSError]:
        assert all(Path(each).is_file() for each in files)
        waited.extend(files)
        return {str(here / "b.txt"): OSError(errno.ENOSPC, "No space left on device")}

    done = copy_outputs(found, desk.root, context.environ, wait)
    assert waited == [str(here / "b.txt"), str(here / "deep/a.txt")]
    assert [one.name for one in done.copied] == ["deep/a.txt"]
    assert [(each.path, each.code) for each in done.failures] == [(f"output/{RUN}/b.txt", "disk_full")]


def test_of_a_file_that_is_still_written_no_version_stays_here(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = linked(desk, desk.root / "there")
    growing = desk.root / "there/output" / RUN / "deep/a.txt"

    def hashed(file: Path) -> LocalState | None:
        if file == growing:
            with file.open("a") as more:
                more.write("6")
        return hash_file(file)

    context = desk.context(platform="slurm")
    found = list_outputs(context, desk.record(spec))
    monkeypatch.setattr("blobsync.jobs.outputs.hash_file", hashed)
    [failure] = copy_outputs(found, desk.root, context.environ).failures
    again = "run the same command again once nothing writes to it"
    assert (failure.code, failure.hint) == ("changed_while_read", again)
    monkeypatch.undo()
    assert [one.name for one in copy_outputs(found, desk.root, context.environ).copied] == ["deep/a.txt"]


@pytest.mark.parametrize("kind", [stat.S_IFIFO, stat.S_IFSOCK], ids=["pipe", "socket"])
def test_a_copy_does_not_write_into_what_is_in_the_way(desk: Desk, kind: int) -> None:
    spec = linked(desk, desk.root / "there")
    context = desk.context(platform="slurm")
    (desk.root / "there/output" / RUN / "b.txt").write_text("x")
    found = list_outputs(context, desk.record(spec))
    here = desk.root / "output" / RUN
    here.mkdir(parents=True)
    os.mknod(here / "b.txt", kind | 0o600)
    done = copy_outputs(found, desk.root, context.environ)
    [failure] = done.failures
    assert failure.message == f"{here}/b.txt: neither a file nor a folder is in its place"
    assert (failure.code, failure.hint) == ("local_file", "move it away, then run the same command again")
    assert [one.name for one in done.copied] == ["deep/a.txt"] and stat.S_IFMT((here / "b.txt").lstat().st_mode) == kind


def test_no_link_leads_a_copy_out_of_either_folder(desk: Desk, tmp_path: Path) -> None:
    there, secret = desk.root / "there", desk.root / "secret"
    spec = linked(desk, there)
    secret.write_text("mine")
    (there / "output" / RUN / "stolen").symlink_to(secret)
    (there / "output" / RUN / "latest").symlink_to("deep/a.txt")
    context = desk.context(platform="slurm")
    found = list_outputs(context, desk.record(spec))
    done = copy_outputs(found, desk.root, context.environ)
    assert [(each.path, each.code) for each in done.failures] == [(f"output/{RUN}/stolen", "link_refused")]
    assert [one.name for one in done.copied] == ["deep/a.txt", "latest"] and done.exit_code == 3
    assert not (desk.root / "output" / RUN / "stolen").exists()

    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    (desk.root / "output").rename(desk.root / "before")
    (desk.root / "output").symlink_to(outside)
    refused = copy_outputs(found, desk.root, context.environ)
    assert refused.copied == () and refused.exit_code == 1 and not list(outside.iterdir())
    assert "config trust-link" in str(refused.failures[0].hint)


def test_a_download_needs_the_folder_where_the_job_had_it(desk: Desk) -> None:
    desk.put(f"mine/output/{RUN}/a.txt", 3)
    found = list_outputs(desk.context(), desk.record(OWN))
    demand_mapped(found, desk.cluster)
    moved = desk.cluster._replace(folders=(FolderEntry("output", BOX, "other"),))
    with pytest.raises(UsageError, match=r"is not what it was for .*: .*mine/output") as caught:
        demand_mapped(found, moved)
    assert "--url" in str(caught.value.hint)


def test_an_account_file_beside_the_clusters_opens_the_container(desk: Desk) -> None:
    (desk.root / "aux_data/configs/z.yaml").write_text("account_name: acct\ncontainer_name: box\n")
    desk.put(f"mine/output/{RUN}/a.txt", 3)
    assert len(list_outputs(desk.context(folders=()), desk.record(OWN)).files) == 1
    (desk.root / "aux_data/configs/z.yaml").unlink()
    with pytest.raises(UsageError, match=r"which neither aux_data/aml/eu.yaml nor aux_data/configs/ opens"):
        list_outputs(desk.context(folders=()), desk.record(OWN))


@pytest.mark.parametrize("asked", ["../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_outputs_is_refused(desk: Desk, asked: str) -> None:
    with pytest.raises(UsageError, match="is not a path below the outputs"):
        list_outputs(desk.context(), desk.record(OWN), asked)


def test_per_job_needs_an_output_folder_to_write_to() -> None:
    def spec_with(*folders: FolderEntry) -> JobSpec:
        cluster = Cluster("eu", "f", Path("/p"), folders=folders, values={"output": "per_job"})
        return describe(cluster, SubmitRequest(("true",)), RUN, None)

    nested = FolderEntry("output/logs", BOX, "l")
    assert spec_with(nested, FolderEntry("output", BOX, "o")).options["own_output"] == "output"
    for folders in ((), (FolderEntry("data", BOX, "d"),), (FolderEntry("output", BOX, "o", mode="ro_mount"),)):
        with pytest.raises(ConfigError, match="is per_job, but there is no output folder that jobs write to"):
            spec_with(*folders)
