"""The azcopy engine with a scripted azcopy: what it prepares, and how it judges azcopy's output."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.azcopy.engine import AzcopyEngine
from blobsync.base.errors import AzcopyNotFoundError, ProcessError
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.base.redaction import SasToken
from blobsync.base.stopping import StopRequest
from blobsync.plan.transfer_plan import Route
from blobsync.store.open_locations import OpenBlob
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.fakes.azcopy_process import AzcopyRunner, ScriptedAzcopy
from tests.fakes.store import MemoryStore, Request
from tests.fakes.tasks import RecordingListener, action, live_part, local_state, moved_by, upload

SAS = SasToken.parse("sp=w&sig=SENTINEL")
BINARY = Path("/bin/azcopy")


def md5(data: bytes) -> bytes:
    return hashlib.md5(data).digest()


def line(kind: str, content: object) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return json.dumps({"MessageType": kind, "MessageContent": text})


STARTED = line("Init", {"JobID": "job-1", "LogFileLocation": "/log"})
ALREADY = line("Error", "Can't cancel JobID=job-1 because it has already completed")


def ended(status: str, *failed: str, store: MemoryStore | None = None, code: str = "503") -> list[str]:
    """The last two messages; ``failed`` are blob names of ``store``."""
    names = [
        {
            "Src": f"/links/{name}",
            "Dst": str(store.container.child(name)),
            "TransferStatus": "Failed",
            "ErrorCode": code,
        }
        for name in failed
        if store
    ]
    content = {"JobID": "job-1", "JobStatus": status, "TotalBytesTransferred": "4"}
    return [line("Progress", {**content, "FailedTransfers": names}), line("EndOfJob", content)]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("one", {})


def engine(tmp_path: Path, runner: AzcopyRunner) -> AzcopyEngine:
    environ = {"PATH": "/nowhere"}
    return AzcopyEngine(
        tmp_path / "state", lambda end, rights: SAS, environ, runner, BINARY, confinement=runner.confinement
    )


def two_files(tmp_path: Path, store: MemoryStore) -> MoveTask:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"AA")
    (tmp_path / "source" / "b c").write_bytes(b"BB")
    return upload(tmp_path / "source", store, "x")


def codes(report: CollectedReport) -> dict[str, str]:
    return {action.path: failure.code for action, failure in report.failed}


def moved(report: CollectedReport) -> set[str]:
    return {each.action.path for each in report.moved}


def test_an_upload_reads_exactly_the_planned_files(tmp_path: Path, store: MemoryStore) -> None:
    task = two_files(tmp_path, store)
    (tmp_path / "source" / "other").write_bytes(b"not planned")
    seen: dict[str, bytes] = {}

    def look(argv: Sequence[str], env: Mapping[str, str]) -> None:
        root = Path(argv[2])
        seen.update({str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*")})
        assert argv[3] == f"{store.container}/x/?sp=w&sig=SENTINEL"
        assert Path(env["AZCOPY_LOG_LOCATION"]).parent == root.parent

    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), look)
    listener = RecordingListener()
    report = moved_by(engine(tmp_path, runner), task, listener)
    assert seen == {"a": b"AA", "b c": b"BB"}
    assert moved(report) == {"a", "b c"}
    assert [each.source for each in report.moved] == [
        replace(state, md5=md5(body))
        for name, body in (("a", b"AA"), ("b c", b"BB"))
        if (state := local_state(tmp_path / "source" / name))
    ]
    assert {each.destination for each in report.moved} == {None}
    assert (listener.bytes, report.azcopy_job_ids) == (4, ["job-1"])


def test_a_request_to_stop_ends_azcopy_as_ctrl_c_does(tmp_path: Path, store: MemoryStore) -> None:
    stop = StopRequest()
    process = ScriptedAzcopy([STARTED], lambda text: [None], ends=False)
    runner = AzcopyRunner(process, lambda argv, env: stop.make())
    with pytest.raises(KeyboardInterrupt):
        moved_by(engine(tmp_path, runner), two_files(tmp_path, store)._replace(stop=stop))
    assert process.received == ["cancel"] and process.stopped


def test_an_upload_names_what_is_under_way_as_the_user_did(tmp_path: Path, store: MemoryStore) -> None:
    task = two_files(tmp_path, store)
    elsewhere = "http://other/fake/one/xy/c"
    lines = [
        f'INFO: [P#0-T#0] Starting transfer: Source "/links/b c" Destination "{store.container}/x/b%20c". Chunk',
        f'INFO: [P#0-T#1] Starting transfer: Source "/links/c" Destination "{elsewhere}". Chunk',
    ]

    def log(argv: Sequence[str], env: Mapping[str, str]) -> None:
        Path(env["AZCOPY_LOG_LOCATION"], "job-1.log").write_text(lines.pop(0) + "\n")

    listener = RecordingListener()
    for _ in range(2):
        moved_by(engine(tmp_path, AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), log)), task, listener)
    assert listener.begun == [(1, f"{task.part.path}/b c")]


def test_a_target_is_the_name_of_the_link(tmp_path: Path, store: MemoryStore) -> None:
    task = two_files(tmp_path, store)
    task = task._replace(actions=[task.actions[0]._replace(target="a.local")])
    names: list[str] = []

    def look(argv: Sequence[str], env: Mapping[str, str]) -> None:
        names.extend(path.name for path in Path(argv[2]).iterdir())

    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), look)
    moved_by(engine(tmp_path, runner), task)
    assert names == ["a.local"]


def test_failures_keep_their_causes_from_the_log(tmp_path: Path, store: MemoryStore) -> None:
    def log(argv: Sequence[str], env: Mapping[str, str]) -> None:
        Path(env["AZCOPY_LOG_LOCATION"], "job-1.log").write_text(
            "ERR: [P#0-T#0] UPLOADFAILED: /links/b c : 412 : 412 The condition was not met.. When Putting. "
            f"X-Ms-Request-Id: \n   Dst: {store.container.child('x/b c')}\nPUT {store.container}?sig=SENTINEL\n"
        )

    lines = [STARTED, *ended("CompletedWithErrors", "x/b c", store=store)]
    task = two_files(tmp_path, store)
    report = moved_by(engine(tmp_path, AzcopyRunner(ScriptedAzcopy(lines, exit_code=1), log)), task)
    assert moved(report) == {"a"}
    ((_, failure),) = report.failed
    assert (failure.path, failure.code) == ("data/x/b c", "changed_meanwhile")
    assert "The condition was not met" in failure.message
    (kept,) = (tmp_path / "state" / "azcopy" / "logs").rglob("*.log")
    assert "SENTINEL" not in kept.read_text() + repr(report)


def test_a_job_that_broke_off_is_judged_by_looking(tmp_path: Path, store: MemoryStore) -> None:
    task = two_files(tmp_path, store)
    store.put("x/a", b"AA", md5=md5(b"AA"))
    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Cancelled")], exit_code=1))
    report = moved_by(engine(tmp_path, runner), task)
    assert moved(report) == {"a"}
    assert codes(report) == {"b c": "azcopy_failed"}


@pytest.mark.parametrize("lines", [[], [STARTED], ["panic: oh no"]])
def test_exit_code_0_is_no_success(tmp_path: Path, store: MemoryStore, lines: list[str]) -> None:
    runner = AzcopyRunner(ScriptedAzcopy(lines, exit_code=0))
    report = moved_by(engine(tmp_path, runner), two_files(tmp_path, store))
    assert codes(report) == {"a": "azcopy_failed", "b c": "azcopy_failed"}


def test_a_talkative_log_ends_the_job_when_azcopy_confirms(tmp_path: Path, store: MemoryStore) -> None:
    def log(argv: Sequence[str], env: Mapping[str, str]) -> None:
        assert "--log-level=INFO" in argv
        Path(env["AZCOPY_LOG_LOCATION"], "job-1.log").write_text(
            "all parts of entire Job job-1 successfully completed, cancelled or paused\n"
        )

    process = ScriptedAzcopy([STARTED], lambda text: [ALREADY, None], ends=False)
    report = moved_by(engine(tmp_path, AzcopyRunner(process, log)), two_files(tmp_path, store))
    assert process.received == ["cancel"]
    assert moved(report) == {"a", "b c"}


def download(tmp_path: Path, **bodies: bytes) -> MoveTask:
    there = OpenBlob(MemoryStore("one", {}), "x")
    actions = [action(name, RemoteState(len(body), "e", md5(body)), None) for name, body in bodies.items()]
    return MoveTask(live_part(Route.DOWNLOAD, there, LocalLocation(tmp_path / "target")), actions, whole_folder=True)


def arrive(path: Path, body: bytes) -> None:
    """Write like azcopy: the final name comes last, since the folder is watched."""
    temporary = path.with_name(f".azDownload-{path.name}")
    temporary.write_bytes(body)
    temporary.rename(path)


def writes(**bodies: bytes) -> AzcopyRunner:
    """A fake azcopy that has written these files at its start, and runs until it is cancelled."""

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        for name, body in bodies.items():
            arrive(Path(argv[3], name), body)

    return AzcopyRunner(ScriptedAzcopy([STARTED], lambda text: [ALREADY, None], ends=False), write)


def test_a_download_ends_as_soon_as_every_file_is_in_place(tmp_path: Path) -> None:
    runner = writes(a=b"AA", b=b"", unplanned=b"no")
    report = moved_by(engine(tmp_path, runner), download(tmp_path, a=b"AA", b=b""))
    assert runner.process.received == ["cancel"]
    assert moved(report) == {"a", "b"}
    assert report.strays == ["unplanned"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "target").iterdir()} == {"a": b"AA", "b": b""}
    first = next(each for each in report.moved if each.action.path == "a")
    assert isinstance(first.destination, LocalState)
    assert first.destination.md5 == md5(b"AA")


def test_the_first_file_that_finds_no_room_ends_azcopy(tmp_path: Path) -> None:
    """azcopy by itself would go through all others, too."""

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        source, text = f"{url}/b?sig=REDACTED", "write /p/data/b: no space left on device"
        log = f"ERR: [P#0-T#1] DOWNLOADFAILED: {source} : 000 : {text}\n   Dst: {argv[3]}/b\n"
        Path(env["AZCOPY_LOG_LOCATION"], "job-1.log").write_text(log)

    def answers(text: str) -> list[str | None]:
        content = {"JobID": "job-1", "JobStatus": "Cancelled", "TotalBytesTransferred": "0"}
        return [line("EndOfJob", content), None]

    runner = AzcopyRunner(ScriptedAzcopy([STARTED], answers, ends=False), write)
    task = download(tmp_path, a=b"AA", b=b"BB", c=b"CC")
    assert isinstance(task.part.source, OpenBlob)
    url = task.part.source.store.container.child("x")
    report = moved_by(engine(tmp_path, runner), task)
    assert runner.process.received == ["cancel"]
    assert codes(report) == dict.fromkeys("abc", "disk_full")
    said = {action.path: failure.message for action, failure in report.failed}
    assert said["b"] == "the disk is full: write /p/data/b: no space left on device"
    assert said["a"] == said["c"] == f"not tried, since others failed: {said['b']}"


def test_what_azcopy_has_room_for_arrives_though_others_have_none(tmp_path: Path) -> None:
    task = download(tmp_path, a=b"AA", b=b"BB")
    assert isinstance(task.part.source, OpenBlob)
    url = task.part.source.store.container.child("x")

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        text = "File Creation Error no space left on device"
        log = f"ERR: [P#0-T#1] DOWNLOADFAILED: {url}/b : 000 : {text}\n   Dst: {argv[3]}/b\n"
        Path(env["AZCOPY_LOG_LOCATION"], "job-1.log").write_text(log)
        arrive(Path(argv[3], "a"), b"AA")

    failed = {"Src": f"{url}/b", "Dst": "", "TransferStatus": "Failed", "ErrorCode": "0"}
    content = {"JobID": "job-1", "JobStatus": "CompletedWithErrors", "FailedTransfers": [failed]}
    runner = AzcopyRunner(ScriptedAzcopy([STARTED, line("Progress", content), line("EndOfJob", content)]), write)
    report = moved_by(engine(tmp_path, runner), task)
    assert (moved(report), codes(report), runner.process.received) == ({"a"}, {"b": "disk_full"}, [])


def test_azcopy_may_write_in_its_own_places_only(tmp_path: Path) -> None:
    runner = writes(a=b"AA")
    moved_by(engine(tmp_path, runner), download(tmp_path, a=b"AA"))
    *private, staging = runner.confinement.folders
    assert {folder.name for folder in private} == {"home", "log", "plan"}
    assert all(folder.is_relative_to(tmp_path / "state") for folder in private)
    assert staging.parent == tmp_path / "target"
    uploading = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]))
    moved_by(engine(tmp_path, uploading), two_files(tmp_path, MemoryStore("one", {})))
    assert {folder.name for folder in uploading.confinement.folders} == {"home", "log", "plan"}


def test_a_whole_folder_is_listed_name_by_name_where_azcopy_cannot_be_confined(tmp_path: Path) -> None:
    large = b"L" * (8 << 20)
    runner = writes(a=large)
    runner.confinement.is_possible = False
    task = download(tmp_path, a=large)._replace(whole_folder=True)
    assert moved(moved_by(engine(tmp_path, runner), task)) == {"a"}
    assert any(word.startswith("--list-of-files=") for word in runner.argv)
    confined = writes(a=large)
    task = download(tmp_path / "again", a=large)._replace(whole_folder=True)
    assert moved(moved_by(engine(tmp_path, confined), task)) == {"a"}
    assert not any(word.startswith("--list-of-files=") for word in confined.argv)


def test_wrong_bytes_and_wrong_lengths_get_no_name(tmp_path: Path) -> None:
    runner = writes(a=b"AX", b=b"B", c=b"CC")
    task = download(tmp_path, a=b"AA", b=b"BB", c=b"CC")
    report = moved_by(engine(tmp_path, runner), task)
    assert codes(report) == {"a": "changed_while_read", "b": "changed_while_read"}
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["c"]


SEVERAL_BLOCKS = 9 * 1024 * 1024


@pytest.mark.parametrize("arrived", ["whole", "damaged"])
def test_a_file_in_several_blocks_is_read_back_over_plain_http_and_sent_again(
    tmp_path: Path, store: MemoryStore, arrived: str
) -> None:
    body = bytes(SEVERAL_BLOCKS)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(body)
    (tmp_path / "source" / "small").write_bytes(b"s")
    task = upload(tmp_path / "source", store, "x")

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        sent = body if arrived == "whole" else b"!" + body[1:]
        store.add("x/a", sent)
        # The MD5 that azcopy stores with it is that of the local file.
        store.blobs["x/a"].info = store.blobs["x/a"].info._replace(md5=md5(body))
        store.add("x/small", b"s")

    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), write)
    listener = RecordingListener()
    report = moved_by(engine(tmp_path, runner), task, listener)
    assert (moved(report), report.failed) == ({"a", "small"}, [])
    assert store.body("x/a") == body
    assert [each.name for each in store.asked("get")] == ["x/a"]
    assert bool(store.asked("put") + store.asked("put_block")) is (arrived == "damaged")
    states = {each.action.path: each.source for each in report.moved}
    assert {path: state and state.md5 for path, state in states.items()} == {"a": md5(body), "small": md5(b"s")}
    assert listener.bytes == SEVERAL_BLOCKS + 1


@pytest.mark.parametrize("when", ["before it is read back", "after it is read back"])
def test_what_another_uploads_in_the_place_of_a_file_is_neither_replaced_nor_deleted(
    tmp_path: Path, store: MemoryStore, when: str
) -> None:
    body, theirs = bytes(SEVERAL_BLOCKS), b"theirs"
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(body)
    task = upload(tmp_path / "source", store, "x")

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        store.add("x/a", theirs if when.startswith("before") else b"!" + body[1:])
        if when.startswith("after"):
            store.blobs["x/a"].info = store.blobs["x/a"].info._replace(md5=md5(body))

    def replaced(request: Request) -> None:
        if request.operation in ("head", "put", "put_block"):
            store.before = lambda _: None
            store.add("x/a", theirs)

    if when.startswith("after"):
        store.before = replaced
    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), write)
    report = moved_by(engine(tmp_path, runner), task, RecordingListener())
    assert store.body("x/a") == theirs
    # Nothing is said to be there: the look at the end tells what is.
    assert [each.destination for each in report.moved] == ([None] if when.startswith("before") else [])
    assert codes(report) == ({} if when.startswith("before") else {"a": "changed_meanwhile"})


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "sub").symlink_to(tmp_path / "outside")

    def write(argv: Sequence[str], env: Mapping[str, str]) -> None:
        Path(argv[3], "sub").mkdir()
        arrive(Path(argv[3], "sub", "a"), b"AA")

    task = download(tmp_path)
    task = task._replace(actions=[action("sub/a", RemoteState(2, "e", md5(b"AA")), None)])
    process = ScriptedAzcopy([STARTED], lambda text: [ALREADY, None], ends=False)
    report = moved_by(engine(tmp_path, AzcopyRunner(process, write)), task)
    assert codes(report) == {"sub/a": "local_file"}
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_target_folder_that_got_nothing_is_not_left_behind(tmp_path: Path) -> None:
    runner = AzcopyRunner(ScriptedAzcopy([STARTED, line("Error", "RESPONSE 403: 403 no")], exit_code=1))
    report = moved_by(engine(tmp_path, runner), download(tmp_path, a=b"AA"))
    assert codes(report) == {"a": "access_denied"}
    assert not (tmp_path / "target").exists()


def test_names_that_azcopy_would_change_are_left_to_others(tmp_path: Path) -> None:
    runner = writes(a=b"AA")
    task = download(tmp_path, a=b"AA")
    strange = [action(name, RemoteState(1, "e"), None) for name in ("a\\b", "n" * 207, "../x")]
    report = moved_by(engine(tmp_path, runner), task._replace(actions=[*task.actions, *strange]))
    assert moved(report) == {"a"}
    assert set(codes(report).values()) == {"azcopy_cannot_carry"}
    assert len(report.failed) == 3


def test_without_a_credential_nothing_starts(tmp_path: Path, store: MemoryStore) -> None:
    runner = writes()
    mute = replace(engine(tmp_path, runner), mint=lambda end, rights: None)
    report = moved_by(mute, two_files(tmp_path, store))
    assert codes(report) == {"a": "credential_invalid", "b c": "credential_invalid"}
    assert runner.argv == ()


def test_the_rights_that_are_asked_for(tmp_path: Path, store: MemoryStore) -> None:
    asked: list[str] = []

    def mint(end: OpenBlob, rights: str) -> SasToken:
        asked.append(rights)
        return SAS

    def played() -> AzcopyEngine:
        return replace(engine(tmp_path, AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]))), mint=mint)

    moved_by(played(), two_files(tmp_path, store))
    moved_by(played(), download(tmp_path, a=b"AA"))
    there = OpenBlob(store, "y")
    task = download(tmp_path, a=b"AA")
    moved_by(
        played(),
        task._replace(part=replace(task.part, route=Route.CROSS_ACCOUNT, destination=there)),
        RecordingListener(),
    )
    assert asked == ["w", "rl", "rl", "rw"]


def test_no_azcopy(tmp_path: Path, store: MemoryStore) -> None:
    absent = replace(engine(tmp_path, writes()), binary=None, environ={"PATH": "/nowhere", "HOME": str(tmp_path)})
    with pytest.raises(AzcopyNotFoundError):
        moved_by(absent, two_files(tmp_path, store))


def test_azcopy_that_does_not_start(tmp_path: Path, store: MemoryStore) -> None:
    def refuse(argv: Sequence[str], env: Mapping[str, str]) -> None:
        raise ProcessError("cannot start azcopy: Exec format error")

    report = moved_by(engine(tmp_path, AzcopyRunner(ScriptedAzcopy([]), refuse)), two_files(tmp_path, store))
    assert codes(report) == {"a": "process_failed", "b c": "process_failed"}
    assert not list((tmp_path / "state" / "azcopy").glob("run-*"))


def folder_copy(store: MemoryStore, *names: str) -> MoveTask:
    """Of a whole folder: these blobs of ``from``, to ``to`` of the same container."""
    actions = []
    for name in names:
        store.put(f"from/{name}", b"AA", md5=md5(b"AA"))
        actions.append(action(name, RemoteState(2, "", md5(b"AA")), None))
    part = live_part(Route.CROSS_ACCOUNT, OpenBlob(store, "from"), OpenBlob(store, "to"))
    return MoveTask(replace(part, path="data"), actions, whole_folder=True)


def test_a_copied_folder_is_held_against_the_plan(tmp_path: Path, store: MemoryStore) -> None:
    task = folder_copy(store, "a", "b/c")

    def copy(argv: Sequence[str], env: Mapping[str, str]) -> None:
        for name in ("a", "b/c", "b/planted", "z"):
            store.put(f"to/{name}", b"AA", md5=md5(b"AA"))
        store.put("together", b"elsewhere", md5=md5(b"elsewhere"))

    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]), copy)
    report = moved_by(engine(tmp_path, runner), task)
    assert (moved(report), report.failed, report.strays) == ({"a", "b/c"}, [], ["b/planted", "z"])
    assert all(each.destination for each in report.moved)


@pytest.mark.parametrize("other", ["mine", "b/mine", ".blobsync-0a1b2c3d.part"])
def test_no_folder_is_copied_whole_where_others_stand(tmp_path: Path, store: MemoryStore, other: str) -> None:
    task = folder_copy(store, "a", "b/c")
    store.put("to/a", b"old", md5=md5(b"old"))
    store.put(f"to/{other}", b"mine", md5=md5(b"mine"))
    runner = AzcopyRunner(ScriptedAzcopy([STARTED, *ended("Completed")]))
    report = moved_by(engine(tmp_path, runner), task)
    assert codes(report) == dict.fromkeys(["a", "b/c"], "azcopy_cannot_carry")
    assert not runner.argv
