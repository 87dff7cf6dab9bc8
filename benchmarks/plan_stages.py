"""CPU time per file of each stage of a large plan: ``python -m benchmarks.plan_stages [--entries N]``.

CPU seconds of this process, which other work on the machine hardly changes; no wall times. From these
docs/large-plans.md computes what 100 million files cost.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.locations import LocalLocation
from blobsync.local.index import Index, Record
from blobsync.local.link_policy import LinkPolicy
from blobsync.local.names import local_problem
from blobsync.local.sorted_runs import Spill
from blobsync.local.tree import walk
from blobsync.plan.decisions import check_names, decide
from blobsync.plan.pairing import HeldFiles, Pair
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import (
    Actions,
    EngineChoice,
    FileAction,
    IndexKey,
    Part,
    PlanPart,
    Route,
    TransferPlan,
    plan_record,
)
from blobsync.store.protocol import BlobInfo
from blobsync.store.rest.xml import list_page
from tests.servers.listing_server import PAGE, PER_FOLDER, name_of, page

_MD5 = hashlib.md5(b"").digest()
_BATCH = 2000


class Stages:
    """Runs the stages in order, each on the output of the one before, and prints the time of each."""

    def __init__(self, folder: Path, count: int) -> None:
        self._count = count
        # All of it goes to the disk.
        self._spill = Spill(lambda: folder, min(count, 100_000))
        self._folder = folder

    def _take(self, title: str, work: Callable[[], object], share: float = 1.0) -> None:
        began = time.process_time()
        work()
        each = (time.process_time() - began) / (self._count * share)
        print(f"{title:<58} {each * 1e6:6.2f} µs", flush=True)

    def run(self) -> None:
        count, rng = self._count, random.Random(7)
        paths = [name_of(number) for number in range(count)]
        mixed = rng.sample(paths, count)
        times = [10**18 + rng.randrange(10**17) for _ in paths]
        local = [LocalState(rng.randrange(10**6), at, at, rng.randrange(10**9)) for at in times]
        blobs = [RemoteState(rng.randrange(10**6), f"0x8DE{at:X}", rng.randbytes(16), "Hot") for at in times]
        held, pages = HeldFiles(self._spill), list[bytes]()
        self._walk()
        pages += (page(count, "", "", str(start)) for start in range(0, count, PAGE))
        self._take("read the XML of a listing", lambda: [_read(each) for each in pages])
        self._take("put one end on the disk, sorted in runs: a walk", lambda: _hold(held, mixed, local))
        found: list[Pair] = []
        listing = zip(paths, blobs, strict=True)
        self._take("read it back, and match the listing of the other", lambda: found.extend(_pairs(held, listing)))
        self._index(found)
        actions: list[FileAction] = []
        self._take("decide", lambda: actions.extend(_decide(found)))
        stored = Actions(self._spill, on_disk=True)
        self._take("put a decision on the disk, with the totals", lambda: stored.extend(actions))
        self._take("check its name", lambda: check_names(stored, (), "data", _problem, spill=self._spill))
        self._take("read it back", lambda: sum(1 for _ in stored))
        self._take("write its line of JSON", lambda: _records(actions))
        print(
            f"on the disk: {held.size / count:.0f} bytes a file for one end, {stored.size / count:.0f} for its decision"
        )

    def _walk(self) -> None:
        tree, few = self._folder / "tree", min(self._count, 20 * PER_FOLDER)
        for number in range(few):
            file = tree / name_of(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        policy = LinkPolicy("follow", str(self._folder))
        self._take(
            "walk a folder and stat its files (in the cache)",
            lambda: sum(1 for _ in walk(tree, policy)),
            few / self._count,
        )

    def _index(self, found: list[Pair]) -> None:
        records = Index(self._folder / "index.sqlite").pair("data", "https://x/c/data")
        batches = [found[start : start + _BATCH] for start in range(0, len(found), _BATCH)]

        def put() -> None:
            for batch in batches:
                records.put({pair.path: Record(LocalState(0, 1, 1, 7), RemoteState(0, "e", _MD5)) for pair in batch})

        self._take("write its record to the index", put)
        self._take("look it up there", lambda: [records.get([pair.path for pair in batch]) for batch in batches])


def _read(body: bytes) -> int:
    return sum(isinstance(each, BlobInfo) for each in list_page(body))


def _hold(held: HeldFiles, paths: Iterable[str], states: Sequence[LocalState]) -> None:
    for path, state in zip(paths, states, strict=True):
        held.add(path, state)


def _pairs(held: HeldFiles, listing: Iterable[tuple[str, RemoteState]]) -> Iterable[Pair]:
    return (Pair(*each) for each in held.matched(listing))


def _decide(found: list[Pair]) -> Iterable[FileAction]:
    decisions = (decide(each._replace(destination=None), Route.UPLOAD, TransferOptions()) for each in found)
    return (action for action in decisions if action is not None)


def _problem(name: str) -> str | None:
    return local_problem(name, "/data")


def _records(actions: list[FileAction]) -> int:
    part: PlanPart = Part(
        "data",
        Route.UPLOAD,
        LocalLocation(Path("/data")),
        LocalLocation(Path("/data")),
        IndexKey(LocalLocation(Path("data")), LocalLocation(Path("data")), ""),
    )
    plan = TransferPlan(Route.UPLOAD, "eu", None, ("data",), TransferOptions(), (part,), EngineChoice("direct", ""))
    return sum(len(json.dumps(plan_record(plan, part, action))) for action in actions)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_stages", description=__doc__)
    parser.add_argument("--entries", type=int, default=400_000)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        Stages(Path(folder), options.entries).run()
    return 0


if __name__ == "__main__":
    main()
