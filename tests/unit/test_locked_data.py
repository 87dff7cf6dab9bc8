"""Jobs record which locked data they see, and one may be submitted again only if that is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import JobError
from blobsync.base.file_states import RemoteState
from blobsync.config.model import FolderEntry
from blobsync.jobs.context import JobContext
from blobsync.jobs.submit import resubmit
from blobsync.local.index import Index
from blobsync.local.lock_files import Lock, LockedFile, pack, write_lock
from tests.unit.test_submit import ACCOUNT, context, eu, send, set_current, us

__all__ = ("context", "eu", "us")

ONE, TWO = bytes(16), bytes(range(16))


def listed(context: JobContext, entry: FolderEntry, *blobs: tuple[str, bytes | None]) -> None:
    """Have the container listed, with these blobs."""
    index = Index(context.state.index_file)
    records = index.pair(entry.prefix, str(entry.remote))
    found = records.differences("")
    for name, md5 in blobs:
        found.seen(name, RemoteState(3, f"0x{len(name)}{md5!r:.8}".replace('"', "").replace("\\", ""), md5))
    records.remember_listing("", found, 1.0)
    index.close()


def locked(root: Path, path: str, *files: LockedFile) -> str:
    packed = pack(files)
    write_lock(root, Lock(path, packed.digest, packed.files, packed.size, "acct", "box", path), packed.data)
    return packed.digest


def test_a_job_records_what_is_known_of_its_locked_folders(context: JobContext) -> None:
    data, inner = FolderEntry("data", ACCOUNT, "d"), FolderEntry("data/inner", ACCOUNT, "i")
    set_current(context, folders=(data, inner))
    assert send(context, "true").spec.options.get("locks") is None
    digest = locked(context.root, "data/v", LockedFile("a", 3, ONE), LockedFile("b", 3, TWO))
    locked(context.root, "data/inner/w", LockedFile("a", 3, ONE))
    # Never listed: nothing is known.
    old = send(context, "true")
    assert old.spec.options.get("locks") is None
    with pytest.raises(JobError, match="recorded no locked data"):
        resubmit(context, old, locked=True)
    listed(context, data, ("v/a", ONE), ("v/b", TWO), ("w", None), ("inner/w/a", TWO))
    old = send(context, "true")
    assert old.spec.options.get("locks") == {"data/v": digest}
    again = resubmit(context, old, locked=True).record
    assert again.spec.options.get("locks") == {"data/v": digest}
    listed(context, data, ("v/a", ONE), ("v/b", ONE))
    with pytest.raises(JobError, match=f"data/v has other files now; {old.run_id} saw {digest[:12]}"):
        resubmit(context, old, locked=True)
    assert resubmit(context, old).record.spec.options["locks"] != old.spec.options["locks"]
    listed(context, data, ("v/a", ONE), ("v/b", None))
    with pytest.raises(JobError, match="is not known to be the same"):
        resubmit(context, old, locked=True)
    assert resubmit(context, old).record.spec.options.get("locks") is None


def test_what_an_entry_ignores_is_in_no_digest(context: JobContext) -> None:
    data = FolderEntry("data", ACCOUNT, "d", ignore=("*.tmp",))
    set_current(context, folders=(data,))
    digest = locked(context.root, "data/v", LockedFile("a", 3, ONE))
    listed(context, data, ("v/a", ONE), ("v/x.tmp", None))
    assert send(context, "true").spec.options.get("locks") == {"data/v": digest}
