"""azcopy's command lines and environment, with all options explicit; pure.

Nothing is left to azcopy's defaults or guesses: they have changed between releases, and some depend on the
host's name. The flags' meanings are those that ``azcopy copy --help`` of 10.32 prints.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from math import floor, log2
from pathlib import Path

from blobsync.base.locations import BlobLocation
from blobsync.base.records import dataclass
from blobsync.base.redaction import SasToken, redact_word

# azcopy's own figures: 32 connections for up to 4 processors, else 16 each, at most 300.
_FEW_PROCESSORS = 4
_MAX_CONNECTIONS = 300

# Under a cap, one block of one connection should take no longer than this many seconds: azcopy gives a request
# up after 15 minutes, and all connections share the cap.
_BLOCK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Command:
    """A command line. ``display`` is for logs and errors and shows no signature; never show ``argv``."""

    argv: tuple[str, ...] = field(repr=False)
    display: str


@dataclass(frozen=True, slots=True)
class AzcopyTuning:
    """``block_mb`` in MiB (fractions allowed), ``cap_mbps`` in megabits (10^6) a second for the whole process."""

    connections: int
    block_mb: float
    cap_mbps: float | None = None
    chatty_log: bool = False


def tuning(
    processors: int, cap_mbps: float | None = None, *, chatty_log: bool = False, fetches: bool = False
) -> AzcopyTuning:
    """Use as many connections as azcopy itself would; fewer and smaller blocks under a tight cap.

    ``fetches``: a download, of which azcopy 10.32 refuses each block that is larger than what the cap lets through in
    a second ("request size greater than pacer target").
    """
    connections = 32 if processors <= _FEW_PROCESSORS else min(16 * processors, _MAX_CONNECTIONS)
    block_mb = 8.0
    if cap_mbps:
        mib_in_time = cap_mbps * 1e6 / 8 * _BLOCK_SECONDS / (1 << 20)
        block_mb = min(block_mb, max(0.25, 2.0 ** floor(log2(mib_in_time))))
        if fetches:
            block_mb = min(block_mb, 2.0 ** floor(log2(cap_mbps * 1e6 / 8 / (1 << 20))))
        connections = max(1, min(connections, int(mib_in_time / block_mb)))
    return AzcopyTuning(connections, block_mb, cap_mbps, chatty_log)


def upload_command(binary: Path, folder: Path, destination: BlobLocation, sas: SasToken, how: AzcopyTuning) -> Command:
    """Upload everything below ``folder`` (links followed) to below the virtual folder ``destination``.

    ``--check-length`` is off: it costs one more request a file, and the fresh look at the destination that
    decides about success sees the length anyway.
    """
    return _command(
        binary,
        [str(folder), *_url(destination, sas, folder=True)],
        [
            "--from-to=LocalBlob",
            "--recursive=true",
            "--as-subdir=false",
            "--follow-symlinks=true",
            "--put-md5=true",
            "--check-length=false",
            "--blob-type=BlockBlob",
        ],
        how,
    )


def download_command(
    binary: Path,
    source: BlobLocation,
    sas: SasToken,
    target: Path,
    how: AzcopyTuning,
    *,
    folder: bool,
    listed: Path | None = None,
) -> Command:
    """Download the virtual folder ``source`` to below ``target``, or the one blob to the file ``target``.

    ``listed`` is a file that names, one per line and relative to ``source``, the only blobs to download. azcopy's own
    check of the MD5 is off: ``staged_downloads`` checks it against the planned blob's.
    """
    return _command(
        binary,
        [*_url(source, sas, folder=folder), str(target)],
        [
            "--from-to=BlobLocal",
            *_scope(folder, listed),
            "--check-length=true",
            "--check-md5=NoCheck",
            "--decompress=false",
            "--preserve-last-modified-time=false",
        ],
        how,
    )


# A container cannot be confined as a folder on a disk is: whatever a service lists to azcopy, no name of it may lead
# out of the folder that is copied. azcopy holds its expressions against paths relative to that folder.
_NEVER_OUTSIDE = r"--exclude-regex=(^|/)\.\.?(/|$)"


def copy_command(
    binary: Path,
    source: tuple[BlobLocation, SasToken],
    destination: tuple[BlobLocation, SasToken],
    how: AzcopyTuning,
    *,
    folder: bool,
    listed: Path | None = None,
    keep_tier: bool = True,
) -> Command:
    """Copy from blob to blob by the destination's service, with properties and metadata.

    ``keep_tier``, the access tier as well, needs the right to read at the destination.
    """
    return _command(
        binary,
        [*_url(*source, folder=folder), *_url(*destination, folder=folder)],
        [
            "--from-to=BlobBlob",
            *_scope(folder, listed),
            *([_NEVER_OUTSIDE] if folder and listed is None else []),
            "--check-length=false",
            "--s2s-preserve-properties=true",
            f"--s2s-preserve-access-tier={str(keep_tier).lower()}",
            "--s2s-preserve-blob-tags=false",
            "--s2s-detect-source-changed=true",
            "--s2s-handle-invalid-metadata=FailIfInvalid",
        ],
        how,
    )


def child_environment(
    inherited: Mapping[str, str], home: Path, logs: Path, plans: Path, how: AzcopyTuning
) -> dict[str, str]:
    """azcopy's environment: ours without settings for azcopy and logins, and with private folders.

    azcopy notes its process below ``HOME`` whatever the other variables say; a private one is always
    writable and goes away with the transfer.
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(("AZCOPY_", "AZURE_"))}
    chosen = inherited.get("AZCOPY_CONCURRENCY_VALUE", "")
    return kept | {
        "HOME": str(home),
        "AZCOPY_LOG_LOCATION": str(logs),
        "AZCOPY_JOB_PLAN_LOCATION": str(plans),
        "AZCOPY_DISABLE_SYSLOG": "true",
        # AUTO measures first, which alone takes 1.3 s.
        "AZCOPY_CONCURRENCY_VALUE": chosen if chosen.isdigit() and not how.cap_mbps else str(how.connections),
        "AZCOPY_DOWNLOAD_TO_TEMP_PATH": "true",
    }


def _command(binary: Path, ends: Sequence[str], flags: Sequence[str], how: AzcopyTuning) -> Command:
    argv = (
        str(binary),
        "copy",
        *ends,
        *flags,
        "--overwrite=true",
        "--include-directory-stub=false",
        "--output-type=json",
        # Quieter levels hide the prompts, and azcopy then waits for an answer.
        "--output-level=default",
        f"--log-level={'INFO' if how.chatty_log else 'ERROR'}",
        "--skip-version-check",
        "--cancel-from-stdin",
        f"--block-size-mb={how.block_mb:g}",
        f"--put-blob-size-mb={how.block_mb:g}",
        *([f"--cap-mbps={how.cap_mbps:g}"] if how.cap_mbps else []),
    )
    return Command(argv, shlex.join(redact_word(word) for word in argv))


def _scope(folder: bool, listed: Path | None) -> list[str]:
    if not folder:
        return ["--recursive=false", "--as-subdir=false"]
    if listed:
        # azcopy treats a name that is not a blob as a folder, and lists it if it may recurse: no name
        # outside the file may be copied.
        return ["--recursive=false", "--as-subdir=false", f"--list-of-files={listed}"]
    return ["--recursive=true", "--as-subdir=false"]


def _url(end: BlobLocation, sas: SasToken, *, folder: bool) -> list[str]:
    # A folder's URL ends with "/", else azcopy asks the service whether it is a blob, and trusts the response.
    text = str(end)
    slash = "/" if folder and not text.endswith("/") else ""
    return [f"{text}{slash}?{sas.reveal()}"]
