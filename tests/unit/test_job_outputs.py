"""Where a job's outputs are, and what of a folder is this job's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ConfigError, JobError, NothingMatchedError, UsageError
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobs.board import Board
from blobsync.jobs.describe import SubmitRequest, describe
from blobsync.jobs.history import JobRecord
from blobsync.jobs.outputs import OutputPlace, demand_mapped, list_outputs, output_places
from blobsync.jobs.spec import FolderLink, JobRef, JobSpec, RunInfo, State
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
            {"batchai": {"outputs": {"MODEL": f"{STD}/model", "TMP": "$AZ_BATCHAI_JOB_TEMP/x"}, "std_out_err": STD}},
            [("MODEL", f"logs/{RUN}/model", False), ("stdouterr", f"logs/{RUN}", False)],
        ),
        (
            [DATA],
            {"batchai": {"outputs": {"A": "${AZ_BATCHAI_MOUNT_ROOT}/data/${BLOBSYNC_RUN_ID}"}}},
            [("A", f"data/{RUN}", False)],
        ),
        ([OUT], {"batchai": {"outputs": "none"}}, []),
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

    def board(self, **changes: Any) -> Board:
        environ = {**os.environ, "HOME": str(self.root / "home")}
        return Board(self.root, environ, replace(self.cluster, **changes), stores={URL: self.store})

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
    found = list_outputs(desk.board(), desk.record(OWN))
    assert [(one.shown, one.path, one.size) for one in found.files] == [
        ("output/a.txt", f"output/{RUN}/a.txt", 3),
        ("output/deep/b.txt", f"output/{RUN}/deep/b.txt", 3),
    ]
    assert found.paths == (f"output/{RUN}",) and found.notes == ()
    for asked in ("deep", "output/deep/", f"output/{RUN}/deep/b.txt"):
        part = list_outputs(desk.board(), desk.record(OWN), asked)
        assert [one.name for one in part.files] == ["deep/b.txt"]
        assert part.paths[0].startswith(f"output/{RUN}/deep")
    with pytest.raises(NothingMatchedError, match="has written no dee"):
        list_outputs(desk.board(), desk.record(OWN), "dee")
    for ended, said in ((None, "nothing to output so far"), (2000.0, "nothing to output$")):
        with pytest.raises(NothingMatchedError, match=said):
            list_outputs(desk.board(), desk.record(replace(OWN, run_id="other_1_x"), ended), "output")
    assert list_outputs(desk.board(), desk.record(replace(OWN, run_id="other_1_x"))).files == ()


def test_of_a_shared_folder_only_what_changed_while_the_job_ran(desk: Desk) -> None:
    for name, modified in (("before", 999.0), ("during", 1000.0), ("late", 2100.0), ("after", 2400.0)):
        desk.put(f"mine/output/{name}", 1, modified)
    running = list_outputs(desk.board(), desk.record(SHARED))
    assert [one.name for one in running.files] == ["after", "during", "late"]
    ended = list_outputs(desk.board(), desk.record(SHARED, ended=2000.0))
    assert [one.name for one in ended.files] == ["during", "late"]
    assert ended.paths == ("output/during", "output/late")
    assert "output is shared by all jobs" in ended.notes[0] and "output: per_job" in ended.notes[0]


def test_a_job_that_keeps_nothing_says_what_to_write(desk: Desk) -> None:
    with pytest.raises(NothingMatchedError, match="has no output folder that stays") as caught:
        list_outputs(desk.board(), desk.record(make_spec(folders=(DATA,))))
    assert "output: per_job" in str(caught.value.hint)


def test_linked_folders_are_on_the_disk_and_have_no_links(desk: Desk) -> None:
    link = replace(OUT, mode="link", source=str(desk.root / "output"))
    spec = replace(OWN, folders=(link,), platform="slurm")
    (desk.root / f"output/{RUN}/deep").mkdir(parents=True)
    (desk.root / f"output/{RUN}/deep/a.txt").write_text("12345")
    found = list_outputs(desk.board(platform="slurm"), desk.record(spec))
    [one] = found.files
    assert (one.shown, one.size, one.blob) == ("output/deep/a.txt", 5, None)
    with pytest.raises(UsageError, match="is on this machine") as caught:
        found.link(one)
    assert caught.value.hint == f"blobsync u output/{RUN}/deep/a.txt"
    away = desk.board(platform="slurm", values={"ssh": "me@login"})
    with pytest.raises(JobError, match=f"are on me@login, in {desk.root}/output/{RUN}"):
        list_outputs(away, desk.record(spec))


def test_a_download_needs_the_folder_where_the_job_had_it(desk: Desk) -> None:
    desk.put(f"mine/output/{RUN}/a.txt", 3)
    found = list_outputs(desk.board(), desk.record(OWN))
    demand_mapped(found, desk.cluster)
    moved = replace(desk.cluster, folders=(FolderEntry("output", BOX, "other"),))
    with pytest.raises(UsageError, match=r"is not what it was for .*: .*mine/output") as caught:
        demand_mapped(found, moved)
    assert "--url" in str(caught.value.hint)


def test_an_account_file_beside_the_clusters_opens_the_container(desk: Desk) -> None:
    (desk.root / "aux_data/configs/z.yaml").write_text("account_name: acct\ncontainer_name: box\n")
    desk.put(f"mine/output/{RUN}/a.txt", 3)
    assert len(list_outputs(desk.board(folders=()), desk.record(OWN)).files) == 1
    (desk.root / "aux_data/configs/z.yaml").unlink()
    with pytest.raises(UsageError, match=r"which neither aux_data/aml/eu.yaml nor aux_data/configs/ opens"):
        list_outputs(desk.board(folders=()), desk.record(OWN))


@pytest.mark.parametrize("asked", ["../x", "a/../../x", "a\0b"])
def test_a_path_out_of_the_outputs_is_refused(desk: Desk, asked: str) -> None:
    with pytest.raises(UsageError, match="is no path below the outputs"):
        list_outputs(desk.board(), desk.record(OWN), asked)


def test_per_job_needs_an_output_folder_to_write_to() -> None:
    def spec_with(*folders: FolderEntry) -> JobSpec:
        cluster = Cluster("eu", "f", Path("/p"), folders=folders, values={"output": "per_job"})
        return describe(cluster, SubmitRequest(("true",)), RUN, None)

    nested = FolderEntry("output/logs", BOX, "l")
    assert spec_with(nested, FolderEntry("output", BOX, "o")).options["own_output"] == "output"
    for folders in ((), (FolderEntry("data", BOX, "d"),), (FolderEntry("output", BOX, "o", mode="ro_mount"),)):
        with pytest.raises(ConfigError, match="is per_job, but there is no output folder that jobs write to"):
            spec_with(*folders)
