"""The reasons of a plan: why each file is moved, left, skipped or in conflict."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """The value is the sentence that ``plan`` shows."""

    NEW = "not at the destination yet"
    CHANGED_HERE = "changed since it was last verified"
    CONTENT_DIFFERS = "same size, different content"
    OVERWRITE = "differs, and --overwrite was given"
    KEEP_SOURCE = "both sides changed, keeping the source"
    KEEP_BOTH = "both sides changed, keeping both"
    SAME_RECORD = "as last verified on both sides"
    SAME_MD5 = "same size and MD5"
    SAME_CRC64 = "same size and CRC64"
    DESTINATION_CHANGED = "only the destination changed since it was last verified"
    KEEP_DESTINATION = "both sides changed, keeping the destination"
    BOTH_CHANGED = "both sides changed since they were last verified"
    NEVER_VERIFIED = "both sides exist, differ, and were never verified against each other"
    NO_MD5 = "same size, but the blob has no MD5"
    EXTRA = "not at the source"
    SYMLINK_OUTSIDE = "a symlink that points outside the project"
    SYMLINK_TO_FOLDER = "a symlink to a folder elsewhere, which a job does not upload: copy its files"
    SYMLINK_SKIPPED = "a symlink, and --links skip was given"
    SYMLINK_REFUSED = "a symlink, and --links error was given"
    SYMLINK_PROTECTED = "a symlink into .git, .blobsync or aux_data"
    THROUGH_LINK = "a symlink, or below one: --mirror deletes nothing there"
    SAME_FILE = "reached through a symlink, and transferred under its own name"
    ONE_FILE_HERE = "shares one local file with another name through a symlink, and their blobs differ"
    NOT_A_FILE = "neither a file nor a folder"
    REPLACED = "replaced or deleted by the run"
    CREATED = "created by the run"
    AS_BEFORE = "as before the run"
    CHANGED_SINCE = "changed since the run"
    NOT_KEPT = "what it was before is not kept anywhere"
    UNREADABLE = "cannot be read"
