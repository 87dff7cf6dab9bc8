"""The keywords of ``Project.upload`` and the like, for type checkers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypedDict

from blobsync.plan.transfer_options import EngineName, Keep, Links


class TransferKeywords(TypedDict, total=False):
    """The fields of ``TransferOptions`` as keywords. One pattern needs no tuple."""

    engine: EngineName | None
    mirror: bool
    max_delete_files: int
    max_delete_percent: float
    overwrite: bool
    keep: Keep | None
    links: Links
    include: str | Iterable[str]
    exclude: str | Iterable[str]
    compare_content: bool
    cap_mbps: float | None
    relay: bool
    from_path: str | os.PathLike[str] | None
    receipt: bool
    all_entries: bool
    processes: int | None
    nodes: int | None
    detach: bool
    force: bool
    no_trash: bool
    incomplete: bool
    locked: bool
    wildcards: bool
