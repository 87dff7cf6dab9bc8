"""Why a file gets what it gets: the words of every plan."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """Why; the value is the sentence that ``plan`` shows."""

    NEW = "not at the destination yet"
    CHANGED_HERE = "changed since it was last verified"
    CONTENT_DIFFERS = "equal size, other content"
    OVERWRITE = "differs, and --overwrite was given"
    KEEP_SOURCE = "both sides changed, and the source is to be kept"
    KEEP_BOTH = "both sides changed, and both are to be kept"
    SAME_RECORD = "as last verified on both sides"
    SAME_MD5 = "equal size and MD5"
    DESTINATION_CHANGED = "only the destination changed since it was last verified"
    KEEP_DESTINATION = "both sides changed, and the destination is to be kept"
    BOTH_CHANGED = "both sides changed since they were last verified"
    NEVER_VERIFIED = "both sides exist, differ, and were never verified against each other"
    NO_MD5 = "equal size, but the blob has no MD5 to compare with"
    EXTRA = "not at the source"
    SYMLINK_OUTSIDE = "a symlink that leads out of the project"
    SYMLINK_SKIPPED = "a symlink, and --links skip was given"
    SYMLINK_REFUSED = "a symlink, and --links error was given"
    SYMLINK_PROTECTED = "a symlink into .git, .blobsync or aux_data"
    THROUGH_LINK = "a symlink or behind one, where --mirror deletes nothing"
    SAME_FILE = "another name of a file that moves, through a symlink"
    ONE_FILE_HERE = "through a symlink another name of one file here, and the blobs of the two names differ"
    NOT_A_FILE = "neither a file nor a folder"
    UNREADABLE = "cannot be read"
