"""What a container keeps of what is replaced or deleted, and whether it has directories: :class:`AccountFeatures`."""

import json

from blobsync.base.formatting import count_text
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import NamedTuple

# https://learn.microsoft.com/azure/storage/blobs/soft-delete-blob-overview#how-blob-soft-delete-works
MOST_DAYS = 365


class AccountFeatures(NamedTuple):
    """Of one container; None: unknown.

    ``versioning``: what is replaced or deleted stays as a version. ``soft_delete_days``: deleted blobs stay for so many
    days; 0: not at all. ``hns`` (hierarchical namespace): folders are directories, and there is the other end, dfs.
    ``immutability``: blobs can be neither replaced nor deleted for a time.
    """

    versioning: bool | None = None
    soft_delete_days: int | None = None
    hns: bool | None = None
    immutability: bool | None = None

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "what it keeps is unknown"
        days = self.soft_delete_days
        soft = "unknown" if days is None else count_text(days, "day") if days else "no"
        return (
            f"versioning: {_word(self.versioning)}; soft delete: {soft}; "
            f"HNS: {_word(self.hns)}; immutability: {_word(self.immutability)}"
        )

    @property
    def tells_recovery(self) -> bool:
        """Whether :attr:`recovery` is known."""
        return self.versioning is not None or self.soft_delete_days is not None

    @property
    def recovery(self) -> str:
        """Whether and how what is deleted or replaced can be had back: the end of a sentence about the container."""
        if self.versioning:
            return "keeps versions: 'blobsync undo' brings back what is replaced or deleted"
        if self.soft_delete_days:
            what, where = (
                (", but not replaced,", ", but only where their directory stays") if self.hns else (" and replaced", "")
            )
            days = count_text(self.soft_delete_days, "day")
            return f"keeps deleted{what} blobs for {days}: 'blobsync undo' brings them back{where}"
        if self.soft_delete_days == 0 and self.versioning is False:
            return "has neither versioning nor soft delete: deleted blobs cannot be restored"
        return "may keep deleted blobs or not: this credential cannot read whether they can be restored"

    def to_text(self) -> str:
        """See :meth:`from_text`."""
        return json.dumps(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> "AccountFeatures":
        """What :meth:`to_text` made; what is malformed is unknown."""
        try:
            found = made_of(cls, parse_object(text))
        except ValueError:
            return cls()
        return found if 0 <= (found.soft_delete_days or 0) <= MOST_DAYS else cls()


UNKNOWN = AccountFeatures()


def _word(flag: bool | None) -> str:
    return "unknown" if flag is None else "yes" if flag else "no"
