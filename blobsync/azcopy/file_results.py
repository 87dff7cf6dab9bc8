"""Decides the result of each file, from azcopy's log and messages, and from the blobs if these break off.

azcopy sends no checksum with the blocks of a file; the MD5 that it stores with the blob is that of the local file. Over
TLS no byte changes unnoticed. Over plain http, which emulators speak, one would; the service checks the
MD5 of a blob that is sent in one piece, so only files in several blocks are read back. A damaged blob carries the
right MD5 and would be taken for the file from then on, so it is replaced at once, by the engine whose every request
carries a checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from blobsync.azcopy.azcopy_process import AzcopyJobOutcome
from blobsync.azcopy.failure_reasons import (
    ErrorDetails,
    LogReader,
    blob_or_path,
    expired,
    explain,
    reason_in,
)
from blobsync.base.background_calls import side_by_side
from blobsync.base.errors import BlobsyncError, CredentialError, FailureCode, StorageError
from blobsync.base.events import Listener
from blobsync.base.file_states import FileState, RemoteState
from blobsync.base.redaction import SasToken
from blobsync.direct.circuit_breaker import NotTriedError
from blobsync.direct.engine import DirectEngine
from blobsync.plan.pairing import equal_content
from blobsync.plan.transfer_plan import FileAction, Route
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobInfo, BlobStore
from blobsync.transfer.engines import CollectedReport, MoveTask

_SINGLE_QUESTIONS = 20


class LogFollower:
    """Follows the job's private log. ``on_moving`` gets the number of moving files, and the blob that began last."""

    def __init__(self, folder: Path, on_moving: Callable[[int, str], None] = lambda files, blob: None) -> None:
        self._folder = folder
        self._on_moving = on_moving
        self._offsets: dict[Path, int] = {}
        self.reader = LogReader()

    def shows_success(self) -> bool:
        """Whether the log says that every file is done and none failed.

        Only the verbose log shows it; azcopy must confirm it, too (see ``Job``).
        """
        self.read()
        return self.reader.finished and not self.reader.failures

    def shows_no_room(self) -> bool:
        """Whether the disk had no room for a downloaded file: it would have none for the others."""
        self.read()
        return self.reader.no_room is not None

    def read(self) -> None:
        """Read new whole lines."""
        for path in self._folder.glob("*.log"):
            if path.stem.endswith("-scanning"):
                continue
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
            end = data.rfind(b"\n") + 1
            self._offsets[path] = self._offsets.get(path, 0) + end
            before = (self.reader.begun, self.reader.ended)
            self.reader.feed(data[:end].decode("utf-8", "replace").splitlines())
            if before != (self.reader.begun, self.reader.ended) and self.reader.latest:
                self._on_moving(max(self.reader.begun - self.reader.ended, 0), self.reader.latest)


def blobs_below(end: OpenBlob) -> Iterator[tuple[str, RemoteState]]:
    """Every blob of the folder by its name relative to it, those included that a survey takes for no data.

    Left out are stubs of folders (``hdi_isfolder``), which a service with folders makes by itself.
    """
    prefix = f"{end.name}/" if end.name else ""
    for blob in end.store.list_blobs(prefix):
        if not blob.is_folder_stub:
            yield blob.name[len(prefix) :], RemoteState(blob.size, blob.etag, blob.md5)


class Verdict:
    """Results of single files, from azcopy's output; from the blobs themselves if the output broke off."""

    def __init__(
        self,
        route: Route,
        outcome: AzcopyJobOutcome,
        log: LogReader,
        credentials: Sequence[SasToken],
        end: OpenBlob,
    ) -> None:
        self._route = route
        self._outcome = outcome
        self._log = log
        self._credentials = credentials
        self.end = end
        self._failed = {
            blob_or_path(each.source if route is Route.DOWNLOAD else each.destination): each.http_status
            for each in outcome.failed.values()
        }
        self._there: dict[str, RemoteState] | None = None
        self._asked = 0

    def failure(self, relative: str, expected: FileState | None) -> BlobsyncError | None:
        """Why the file did not reach the destination, or None if nothing indicates a failure."""
        if self._key(relative) in self._failed or self._key(relative) in self._log.reasons:
            return self.reason(relative)
        if self._outcome.clean:
            return None
        found = self._look(relative)
        if found and expected and equal_content(found, expected):
            return None
        return self.reason(relative)

    def unplanned(self, planned: Iterable[str]) -> list[str]:
        """Blobs, relative to the folder, that azcopy failed to transfer although they are not in the plan.

        A blob that appeared since the plan, or whose name leads to where azcopy may not write.
        """
        known = {self._key(relative) for relative in planned}
        folder = self._key("").rstrip("/") + "/"
        named = {key for key in (*self._failed, *self._log.reasons) if key.startswith(folder)}
        return sorted(key.removeprefix(folder) for key in named - known)

    def reason(self, relative: str) -> BlobsyncError:
        """The most exact known cause for a missing file."""
        key = self._key(relative)
        found = self._log.reasons.get(key)
        if found is None and key in self._failed:
            found = ErrorDetails(self._failed[key])
        room = self._log.no_room
        if room is not None and not self._outcome.clean and (found is None or not (found.status or found.text)):
            # It was stopped then.
            return NotTriedError(explain(room, self._route))
        if found is None and self._outcome.clean:
            said = "azcopy skipped it: it changed or moved since it was checked"
            return BlobsyncError(said, hint="run the same command again", code=FailureCode.CHANGED_WHILE_READ)
        found = found or self._general()
        if found.status == 0 and expired(*self._credentials):
            found = ErrorDetails(403, "AuthenticationFailed", "the SAS has expired")
        return explain(found, self._route, *self._credentials)

    def _general(self) -> ErrorDetails:
        """The cause that stopped the whole job."""
        outcome = self._outcome
        if outcome.stalled:
            return ErrorDetails(text="azcopy made no progress and was stopped")
        for text in (outcome.fatal, *reversed(outcome.words)):
            if reason := reason_in(text):
                return reason
        for reason in self._log.reasons.values():
            return reason
        if outcome.fatal:
            return ErrorDetails(text=outcome.fatal)
        last = outcome.stderr or (outcome.words[-1] if outcome.words else "")
        return ErrorDetails(
            text=f"azcopy ended with code {outcome.exit_code} and reported no result; its last output: {last}"
        )

    def _key(self, relative: str) -> str:
        return blob_or_path(str(self.end.child(relative)))

    def _look(self, relative: str) -> RemoteState | None:
        """The blob as it is now: single requests for the first few, then one listing."""
        try:
            if self._there is None and self._asked < _SINGLE_QUESTIONS:
                self._asked += 1
                info = self.end.store.head(self.end.at(relative))
                return RemoteState(info.size, info.etag, info.md5) if info else None
            if self._there is None:
                self._there = dict(blobs_below(self.end))
        except (StorageError, CredentialError):
            # The same error as azcopy's, whose text is better.
            self._there = {}
        return self._there.get(relative)


_THREADS = 4
_PIECE = 1 << 20


def needs_reading_back(store: BlobStore, size: int, block_mb: float) -> bool:
    """Whether a blob of ``size`` bytes was sent to ``store`` in blocks without a checksum."""
    return str(store.container).startswith("http://") and size > block_mb * (1 << 20)


def damaged_blobs(store: BlobStore, expected: Mapping[str, bytes]) -> dict[str, RemoteState | None]:
    """Blobs with the expected MD5 property but other content, or gone (None), each as it is now.

    One with another MD5 is a later version of somebody else's: it is left to the fresh look.
    """
    looks = side_by_side(lambda item: _look(store, *item), expected.items(), _THREADS)
    return {name: there for name, (is_damaged, there) in zip(expected, looks, strict=True) if is_damaged}


def send_again(
    task: MoveTask, found: Iterable[tuple[FileAction, RemoteState | None]], listener: Listener
) -> CollectedReport:
    """Replace damaged blobs, as they were ``found``, unless somebody else has replaced them."""
    end = task.part.destination
    if not isinstance(end, OpenBlob):
        raise ValueError("only uploads are sent again")
    fresh = [action._replace(destination=there) for action, there in found]
    report = CollectedReport()
    DirectEngine().move(task._replace(actions=fresh), report, listener)
    for action, _ in report.failed:
        # No blob is better than a damaged one that looks valid. A SAS may not allow the deletion.
        with suppress(StorageError):
            if isinstance(action.destination, RemoteState):
                end.store.delete(end.at(action.target or action.path), etag=action.destination.etag)
    return report


def _look(store: BlobStore, name: str, md5: bytes) -> tuple[bool, RemoteState | None]:
    """Whether the blob is damaged, and what is there."""
    digest = hashlib.md5(usedforsecurity=False)
    blob: BlobInfo | None
    try:
        with store.open(name) as reader:
            blob = reader.info
            while piece := reader.read(_PIECE):
                digest.update(piece)
    except StorageError:
        # It cannot be read, or is gone.
        blob = store.head(name)
    else:
        if digest.digest() == md5:
            return False, None
    if blob is None:
        return True, None
    return blob.md5 == md5, RemoteState(blob.size, blob.etag, blob.md5)
