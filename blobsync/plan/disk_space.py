"""Checks that the files of a plan fit on this machine's disks, before any is fetched."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from blobsync.base.errors import FailureCode, FileFailure
from blobsync.base.formatting import size_text
from blobsync.base.records import NamedTuple
from blobsync.config.mapping import is_below
from blobsync.local.disks import LocalDisks
from blobsync.plan.name_clashes import Names
from blobsync.plan.transfer_plan import Action, FileAction


class WrittenHere(NamedTuple):
    """The actions of a part with an end on this machine, and the files that its names lead to; ``shown`` is its
    path."""

    shown: str
    names: Names
    actions: Iterable[FileAction]


class _Need:
    """The bytes needed on one disk. Each new file is complete before the old one is removed."""

    def __init__(self, shown: str, free: int) -> None:
        self.shown = shown
        self.free = free
        self.growth = 0
        self.largest = 0
        self.on_record = 0
        self.places: list[str] = []

    def add(self, place: str, arriving: int, replaced: int, on_record: int) -> None:
        if place not in self.places:
            self.places.append(place)
        self.growth += arriving - replaced
        self.largest = max(self.largest, arriving)
        self.on_record += on_record

    @property
    def bytes(self) -> int:
        return max(self.growth, self.largest)

    def free_again(self, disks: LocalDisks) -> int:
        """The bytes that killed runs left and that are removed first, without those that this run continues."""
        apart = [each for each in self.places if not any(is_below(each, at) for at in self.places if at != each)]
        return max(0, sum(disks.left_over(Path(place)) for place in apart) - self.on_record)


def lacking_room(parts: Sequence[WrittenHere], writing: Action, size: int, disks: LocalDisks) -> list[FileFailure]:
    """Each disk with less free space than the plan needs at least, with both numbers.

    ``writing`` is the action that writes here: a download's ``TRANSFER``, an upload's ``ADOPT``. At most ``size`` bytes
    are written in all. A file system with compression may still hold more than is free.
    """
    known = {part.names.root: disks.of(Path(part.names.root)) for part in parts}
    if not any(part.names.followed for part in parts):
        # Nearly always there is far more space, and the files need not be examined.
        known = {place: disk for place, disk in known.items() if disk is not None and disk.free < size}
        parts = [part for part in parts if part.names.root in known]
    needs: dict[int, _Need] = {}
    for part in parts:
        for action in part.actions:
            for arriving, replaced in _written(action, writing):
                place = _place_of(part.names, action.path)
                if place not in known:
                    known[place] = disks.of(Path(place))
                disk = known[place]
                if disk is not None:
                    need = needs.setdefault(disk.device, _Need(part.shown, disk.free))
                    need.add(place, arriving, replaced, action.on_record)
    for need in needs.values():
        if need.bytes > need.free:
            need.free += need.free_again(disks)
    return [_refusal(need) for need in needs.values() if need.bytes > need.free]


def _place_of(names: Names, path: str) -> str:
    """The folder that determines the disk: a link to a folder is followed, a link to a file is replaced."""
    link = names.link_of(path)
    return names.root if link is None or link == path else names.followed[link]


def _written(action: FileAction, writing: Action) -> Iterator[tuple[int, int]]:
    """The bytes that arrive for this file, and those of the version that they replace."""
    before = action.destination if writing is Action.TRANSFER else action.source
    if action.action is writing:
        # A version that is set aside stays.
        yield action.size - action.on_record, before.size if before and not action.aside else 0
    elif action.aside and action.destination and writing is Action.ADOPT:
        yield action.destination.size, 0


def _refusal(need: _Need) -> FileFailure:
    return FileFailure(
        need.shown,
        FailureCode.DISK_TOO_SMALL,
        f"{need.shown}: {size_text(need.bytes)} would be written to {need.places[0]},"
        f" and {size_text(need.free)} are free",
        "free some space, or move fewer files with --include; --force fetches what fits",
    )
