"""The rights and lifetime of every SAS that blobsync requests, by kind of work.

Letters of rights, in the order that the service requires:
https://learn.microsoft.com/rest/api/storageservices/create-service-sas#specify-permissions. Pure.
"""

from __future__ import annotations

from datetime import timedelta

_ORDER = "racwdxyltfmeopi"

_WORDS = {
    "r": "read",
    "a": "add",
    "c": "create",
    "w": "write",
    "d": "delete",
    "l": "list",
    "t": "tags",
    "x": "versions",
}

# One blob with a known name: the source of a server-side copy.
READ_BLOB = "r"
# A folder: its listing and its blobs.
READ_FOLDER = "rl"
# Put Blob and Put Block need no more; what azcopy uploads has been listed before.
WRITE_BLOBS = "w"
# To keep a blob's access tier, azcopy reads the kind of the destination's account, which requires "r".
WRITE_BLOBS_WITH_TIER = "rw"
# The destination of a transfer is listed, written, and checked afterwards.
WRITE_FOLDER = "rwl"
MIRROR_FOLDER = "rwdl"
REMOVE = "rdl"
# By the mode of a job's folder. A mount creates, changes and removes blobs as the program does files.
JOB_FOLDER = {
    "download": READ_FOLDER,
    "upload": "rcwl",
    "mount": "rcwdl",
    "ro_mount": READ_FOLDER,
    "link": "",
}
# Logs grow by Append Block.
JOB_LOGS = "racw"
# The rights that a link may have.
LINK = "rlwcad"

# https://learn.microsoft.com/rest/api/storageservices/get-user-delegation-key: seven days from now at most; 15 minutes
# are reserved for clock differences.
LONGEST_DELEGATION_SECONDS = 7 * 86_400 - 900
# The maximum for an identity. Jobs that run longer keep what they have unpacked and mounted, but their last
# uploads fail.
JOB_SECONDS = LONGEST_DELEGATION_SECONDS
# The copy of a code archive within its account: archives are small.
CODE_COPY_SECONDS = 3600
LINK_LIFETIME = timedelta(days=7)
# Warn about a SAS that expires sooner.
WARN_BEFORE = timedelta(hours=1)

# The time for the plan's bytes at this rate, and an hour more: slower than any realistic link for a terabyte
# transfer.
_BYTES_PER_SECOND = 10_000_000
_MARGIN_SECONDS = 3600


def transfer_seconds(size: int) -> int:
    """How long a SAS for moving ``size`` bytes must be valid."""
    return _MARGIN_SECONDS + size // _BYTES_PER_SECOND


def ordered_rights(rights: str) -> str:
    """Each letter once, in the service's order; ``ValueError`` for unknown letters and for none."""
    unknown = set(rights) - set(_ORDER)
    if unknown or not rights:
        raise ValueError(f"not rights of a SAS: {''.join(sorted(unknown)) or 'none given'}")
    return "".join(letter for letter in _ORDER if letter in rights)


def known_rights(rights: str) -> str:
    """The known letters, in order."""
    return "".join(letter for letter in _ORDER if letter in rights)


def rights_in_words(rights: str) -> str:
    """Format ``rl`` as ``read, list``."""
    return ", ".join(_WORDS.get(letter, letter) for letter in rights)
