"""What a progress bar shows of downloads and copies, at each moment, against what has moved by then."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from blobsync.azcopy.engine import AzcopyEngine
from blobsync.base.errors import StorageUnreachableError
from blobsync.base.redaction import SasToken
from blobsync.plan.progress import Progress, ProgressCounter
from blobsync.plan.transfer_options import TransferOptions
from blobsync.transfer.engines import Engine
from tests.fakes.azcopy_process import AzcopyRunner, ScriptedAzcopy
from tests.fakes.project_context import World, account, cluster
from tests.fakes.store import MemoryStore, Request

MIB = 1 << 20
# Some in one request, and some in blocks or ranges.
# No two blocks of the large ones are equal: what repeats is as long as a prime.
FILES = {f"small{at:02}": random.Random(at).randbytes(1000 + at) for at in range(40)} | {
    "large0": (random.Random(1).randbytes(65_537) * 321)[: 20 * MIB],
    "large1": (random.Random(2).randbytes(65_537) * 530)[: 33 * MIB + 1],
}
WHOLE = sum(map(len, FILES.values()))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("us", data=account("us")))
    for name in ("eu", "us"):
        made.store(name)
    made.relay_allowed = True
    return made


class Shown(ProgressCounter):
    """Records what a bar would show after each event, with what ``look`` finds at that moment."""

    def __init__(self, look: Callable[[], tuple[int, int]]) -> None:
        super().__init__()
        self._look = look
        self.seen: list[tuple[Progress, tuple[int, int]]] = []

    def show(self, *, force: bool, began: bool = False) -> None:
        if self.step == "moving":
            self.seen.append((self.progress(self.clock()), self._look()))


def there(store: MemoryStore) -> tuple[int, int]:
    """Files and bytes in a container, blocks of unfinished blobs included."""
    staged = sum(len(body) for blocks in tuple(store.blocks.values()) for body in tuple(blocks.values()))
    return len(store.blobs), staged + sum(len(blob.body) for blob in tuple(store.blobs.values()))


def fetched(world: World) -> tuple[int, int]:
    """Files with their final names, and the bytes that were asked for."""
    folder, store = world.root / "data/x", world.store("eu")
    files = sum(name in FILES for name in (each.name for each in folder.iterdir())) if folder.is_dir() else 0
    return files, sum(each.size or store.blobs[each.name].info.size for each in store.asked("get"))


def hold_to_the_truth(shown: Shown) -> None:
    assert shown.seen
    for progress, (files, size) in shown.seen:
        assert progress.files <= files and progress.bytes <= size, (progress, progress.bytes, files, size)
        assert (progress.files_expected, progress.bytes_expected) == (len(FILES), WHOLE)
        assert not progress.failures
    counts = [progress.files for progress, _ in shown.seen]
    assert counts == sorted(counts) and counts[-1] == len(FILES)
    assert shown.seen[-1][0].bytes == WHOLE
    # More than a jump at the end.
    assert len({progress.bytes for progress, _ in shown.seen}) >= len(FILES)


def break_once_each(store: MemoryStore, operation: str, *names: str) -> None:
    """Requests of this kind for each of these blobs fail, the first time."""
    left = {f"store/data/x/{name}" for name in names}

    def before(request: Request) -> None:
        if request.operation == operation and request.name in left:
            left.discard(request.name)
            raise StorageUnreachableError("gone for a moment")

    store.before = before


@pytest.mark.parametrize("breaks", [False, True])
def test_a_download_shows_no_more_than_has_arrived(world: World, breaks: bool) -> None:
    for name, body in FILES.items():
        world.store("eu").add(f"store/data/x/{name}", body)
    if breaks:
        break_once_each(world.store("eu"), "get", "small03", "large1")
    shown = Shown(lambda: fetched(world))
    result = world.carry_out(world.plan("d", "data/x", options=TransferOptions(engine="direct")), listener=shown)
    assert result.ok, result.failures
    hold_to_the_truth(shown)


@pytest.mark.parametrize("engine", ["direct", "relay"])
@pytest.mark.parametrize("breaks", [False, True])
def test_a_copy_shows_no_more_than_is_at_the_destination(world: World, engine: str, breaks: bool) -> None:
    for name, body in FILES.items():
        world.store("us").add(f"store/data/x/{name}", body)
    if breaks:
        break_once_each(world.store("eu"), "put_from_url" if engine == "direct" else "put", "small03", "small07")
    shown = Shown(lambda: there(world.store("eu")))
    plan = world.plan("u", "data/x", options=TransferOptions(engine=engine), copy=True)  # type: ignore[arg-type]
    result = world.carry_out(plan, listener=shown)
    assert result.ok, result.failures
    hold_to_the_truth(shown)


def message(kind: str, content: object) -> str:
    return json.dumps({"MessageType": kind, "MessageContent": json.dumps(content)})


class Azcopy:
    """azcopy as it copies a folder: it tells counts, and names a file only at its end, if that failed."""

    def __init__(self, world: World, *, failing: str = "") -> None:
        self._world = world
        self._failing = failing
        self.told: list[tuple[int, int]] = []

    def __call__(self) -> Engine:
        lines = list(self._lines())
        runner = AzcopyRunner(ScriptedAzcopy(lines, exit_code=int(bool(self._failing))), self._copy)
        sas = SasToken.parse("sp=w&sig=SENTINEL")
        return AzcopyEngine(
            self._world.root / "state",
            lambda end, rights: sas,
            {"PATH": "/nowhere"},
            runner,
            Path("/bin/azcopy"),
            confinement=runner.confinement,
        )

    def _copy(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        for name, body in FILES.items():
            if name != self._failing:
                self._world.store("eu").add(f"store/data/x/{name}", body)

    def _lines(self) -> Iterator[str]:
        yield message("Init", {"JobID": "job-1", "LogFileLocation": "/log"})
        done = [body for name, body in FILES.items() if name != self._failing]
        for count in range(len(done) + 1):
            self.told.append((count, sum(map(len, done[:count]))))
            yield message("Progress", self._counts(*self.told[-1]))
        store = self._world.store("eu").container
        ends = {"Src": "", "Dst": str(store.child(f"store/data/x/{self._failing}"))}
        failed = [{**ends, "TransferStatus": "Failed", "ErrorCode": "503"}] if self._failing else []
        status = "CompletedWithErrors" if self._failing else "Completed"
        yield message("Progress", {**self._counts(*self.told[-1]), "JobStatus": status, "FailedTransfers": failed})
        yield message("EndOfJob", {**self._counts(*self.told[-1]), "JobStatus": status})

    def _counts(self, files: int, size: int) -> dict[str, str]:
        whole = str(len(FILES))
        counts = {"TotalTransfers": whole, "TransfersCompleted": str(files), "TotalBytesTransferred": str(size)}
        return {"JobID": "job-1", "JobStatus": "InProgress", **counts}


@pytest.mark.parametrize("failing", ["", "small03"])
def test_a_copy_by_azcopy_counts_each_file_once_as_azcopy_tells_of_it(world: World, failing: str) -> None:
    """A file that azcopy failed to copy and the next engine copies is never shown as a failure."""
    for name, body in FILES.items():
        world.store("us").add(f"store/data/x/{name}", body)
    azcopy = Azcopy(world, failing=failing)
    shown = Shown(lambda: there(world.store("eu")))
    plan = world.plan("u", "data/x", options=TransferOptions(engine="azcopy"), copy=True)
    result = world.carry_out(plan, listener=shown, azcopy=azcopy)
    assert result.ok, result.failures
    hold_to_the_truth(shown)
    counted = {(progress.files, progress.bytes) for progress, _ in shown.seen}
    assert counted >= set(azcopy.told)
