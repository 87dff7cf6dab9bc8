"""Spreading a project's plan: which files are cut into ranges, and how long these are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import UsageError
from blobsync.base.locations import BlobContainer, BlobLocation, Bucket, LocalLocation
from blobsync.base.reasons import Reason
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, EngineChoice, FileAction, Part, PlanPart, Route, TransferPlan
from blobsync.project.spreading import with_spread
from blobsync.store.protocol import MAX_BLOB_BYTES
from tests.fakes.aml_configs import load
from tests.fakes.tasks import index_key

GIB = 1 << 30


def _plan(*sizes: int, nodes: int | None = 2) -> TransferPlan:
    actions = tuple(FileAction(f"f{number}", Action.TRANSFER, Reason.NEW, size) for number, size in enumerate(sizes))
    remote = BlobLocation(BlobContainer("acct", "cont", "https://acct.blob.core.windows.net"), "me/data")
    part: PlanPart = Part(
        "data", Route.UPLOAD, LocalLocation(Path("/p/data")), remote, index_key("data", "b", ""), actions=actions
    )
    options = TransferOptions(nodes=nodes)
    return TransferPlan(Route.UPLOAD, "aml", None, ("data",), options, (part,), EngineChoice("direct", "w"))


@pytest.mark.parametrize(
    ("sizes", "cut_files", "length"),
    [
        # On 2 nodes of 4 workers an eighth of a worker's share is a 64th.
        ((500 * GIB, 1), 1, 500 * GIB // 64),
        ((500 * GIB, 2 * GIB), 1, 502 * GIB // 64),
        ((2 * GIB, 2 * GIB, 2 * GIB - 1), 2, GIB),
        ((2 * GIB - 1,) * 3, 0, 0),
        ((1, 2, 3), 0, 0),
        ((MAX_BLOB_BYTES,), 1, MAX_BLOB_BYTES // 64),
    ],
)
def test_a_file_of_two_ranges_is_cut_and_a_range_is_an_eighth_of_a_workers_share(
    sizes: tuple[int, ...], cut_files: int, length: int, tmp_path: Path
) -> None:
    cluster, _ = load(tmp_path)
    spread = with_spread(_plan(*sizes), cluster, {}, copies=True).spread
    assert spread is not None and spread.cut_files == cut_files
    # The cost of requests counts as work, too.
    assert length <= spread.range_bytes <= length * 1.05


def test_what_is_downloaded_or_not_spread_is_not_cut(tmp_path: Path) -> None:
    cluster, _ = load(tmp_path)
    down = replace(_plan(500 * GIB), route=Route.DOWNLOAD)
    spread = with_spread(down, replace(cluster, platform="slurm"), {}, copies=False).spread
    assert spread is not None and (spread.cut_files, spread.range_bytes) == (0, 0)
    plan = _plan(500 * GIB)
    bucket = BlobLocation(Bucket.at("laion"), "far")
    copied = replace(plan, route=Route.CROSS_ACCOUNT, parts=tuple(replace(each, source=bucket) for each in plan.parts))
    spread = with_spread(copied, cluster, {}, copies=True).spread
    assert spread is not None and (spread.cut_files, spread.range_bytes) == (0, 0)
    assert with_spread(_plan(1, nodes=None), cluster, {}, copies=True).spread is None


def test_a_variable_sets_the_least_length_of_a_range(tmp_path: Path) -> None:
    cluster, _ = load(tmp_path)
    spread = with_spread(_plan(9 << 20), cluster, {"BLOBSYNC_SPREAD_RANGE": str(4 << 20)}, copies=True).spread
    assert spread is not None and (spread.cut_files, spread.range_bytes) == (1, 4 << 20)
    for wrong in ("0", "-1", "1e9", "٣", "9" * 30):
        with pytest.raises(UsageError, match="is not a number of bytes"):
            with_spread(_plan(1), cluster, {"BLOBSYNC_SPREAD_RANGE": wrong}, copies=True)
