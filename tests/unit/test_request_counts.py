"""What a transfer asks of an account, counted in a plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from blobsync.base.locations import BlobContainer, LocalLocation, Location
from blobsync.base.plan_reasons import Reason
from blobsync.plan.request_counts import leaves_account, planned_operations
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, EngineChoice, FileAction, IndexKey, Part, Route, TransferPlan

HERE = LocalLocation(Path("/p/data"))
ONE, TWO = (BlobContainer(name, "c", f"https://{name}.blob.core.windows.net").child("data") for name in ("one", "two"))
MIB = 1 << 20


def plan(route: Route, source: Location, destination: Location, *actions: FileAction) -> TransferPlan:
    part = Part("data", route, source, destination, IndexKey(HERE, ONE, ""), actions=actions)
    return TransferPlan(route, "eu", None, ("data",), TransferOptions(), (part,), EngineChoice("direct", ""))


def moves(*sizes: int) -> list[FileAction]:
    return [FileAction(f"{at}", Action.TRANSFER, Reason.NEW, size) for at, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("route", "source", "destination", "counts"),
    [
        # Two small files in one request each; 5 MiB in three blocks and a list of them.
        (Route.UPLOAD, HERE, ONE, {"write": 6, "list": 1, "delete": 1}),
        (Route.DOWNLOAD, ONE, HERE, {"read": 3, "list": 1, "bytes_out": 5 * MIB + 3}),
        (Route.SAME_ACCOUNT, ONE, ONE, {"write": 3, "read": 3, "list": 2, "delete": 1}),
        (Route.CROSS_ACCOUNT, ONE, TWO, {"write": 3, "read": 3, "list": 2, "delete": 1, "bytes_out": 5 * MIB + 3}),
    ],
)
def test_requests_are_counted_as_an_account_charges_them(
    route: Route, source: Location, destination: Location, counts: dict[str, int]
) -> None:
    extra = FileAction("x", Action.DELETE, Reason.EXTRA, 1)
    same = FileAction("y", Action.UNCHANGED, Reason.SAME_MD5, 1)
    made = plan(route, source, destination, *moves(0, 3, 5 * MIB), extra, same)
    assert {name: count for name, count in asdict(planned_operations(made)).items() if count} == counts
    assert leaves_account(made) == ("bytes_out" in counts)


def test_what_is_there_already_and_what_goes_to_the_source_counts_as_it_moves() -> None:
    half = FileAction("a", Action.TRANSFER, Reason.NEW, 5 * MIB, on_record=4 * MIB)
    back = FileAction("b", Action.ADOPT, Reason.KEEP_DESTINATION, 9 * MIB)
    found = planned_operations(plan(Route.UPLOAD, HERE, ONE, half, back))
    assert (found.write, found.read, found.bytes_out) == (1, 2, 9 * MIB)


def test_large_copies_are_made_of_pieces_and_large_listings_of_pages() -> None:
    made = plan(Route.SAME_ACCOUNT, ONE, ONE, *moves(*[1] * 5000, 300 * MIB))
    found = planned_operations(made)
    assert (found.write, found.read, found.list) == (5003, 5002, 4)
