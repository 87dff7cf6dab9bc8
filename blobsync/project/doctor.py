"""Checks everything that transfers need, for each storage account, with hints for what fails.

User data is not changed: doctor writes one blob with its own name and removes it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path

from blobsync.azcopy.binary import Found, find_azcopy
from blobsync.azcopy.sandbox import Landlock
from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.errors import (
    AzcopyError,
    AzcopyNotFoundError,
    BlobsyncError,
    ContainerNotFoundError,
    CredentialError,
    FailureCode,
    LocalFileError,
    LoginRequiredError,
    StorageError,
    UntrustedStateError,
)
from blobsync.base.locations import BlobContainer
from blobsync.base.user_folders import environment
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobs.preflight import examine_jobs
from blobsync.local.names import new_temporary_name
from blobsync.local.resume_records import RangeRecords, UnfinishedDownload
from blobsync.local.state_dir import open_state_dir
from blobsync.store import sas_token
from blobsync.store.azure_identity import identity_used
from blobsync.store.connect import check_sas, connect, signer_for
from blobsync.store.protocol import BlobInfo, Precondition
from blobsync.store.rest.error_codes import MAX_SKEW_SECONDS, describe_skew
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.rest.transport import Timeouts
from blobsync.store.sas import READ_FOLDER, REMOVE, WRITE_FOLDER
from blobsync.store.sas_token import rights_in_words

# Warn from one minute on; from 15 minutes on the service rejects signatures.
WARN_SKEW_SECONDS = 60.0

# Fewer retries than a transfer, so that doctor ends quickly.
_RETRY = RetryPolicy(tries=3, patience=20.0)
_TIMEOUTS = Timeouts(connect=5.0, read=15.0)


# To be quick, only the first 10,000 names below each folder are searched, and this many are examined.
_PAGES = 2
_CLOSER = 50
# Maximum number of unfinished downloads that are listed, and what their results are about.
_NAMED = 20
_PROJECT = "this project"

ConnectRest = Callable[[StorageAccount], RestBlobStore]
_UNCONFINED = "the kernel cannot confine it (no Landlock), so it downloads only from lists of names"

FindAzcopy = Callable[[Mapping[str, str]], Found]


def diagnose(cluster: Cluster, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """All of :func:`examine`, and whether the cluster would accept a job."""
    yield from examine(cluster, environ=environ)
    yield from examine_jobs(cluster, environ)


def examine(
    cluster: Cluster,
    *,
    environ: Mapping[str, str] | None = None,
    connect: ConnectRest | None = None,
    find_azcopy: FindAzcopy = find_azcopy,
    now: datetime | None = None,
) -> Iterator[CheckResult]:
    """Check azcopy and every storage account of ``cluster``, each until a check fails.

    Yields results as they arrive. A failure is a result, not an exception.
    """
    environ = environment(environ)
    connect = connect or _connector(environ, cluster.flag("use_cli_auth"))
    for account, path in _accounts(cluster):
        yield from examine_account(
            account,
            path,
            connect=connect,
            now=now or datetime.now(timezone.utc),
            environ=environ,
            folders=_folders(cluster, account),
            identity=lambda: identity_used(environ, use_cli_auth=cluster.flag("use_cli_auth")),
        )
    yield _azcopy(environ, find_azcopy)


def examine_login(
    account: StorageAccount, path: str, *, environ: Mapping[str, str] | None = None
) -> tuple[CheckResult, ...]:
    """Check what the credential of ``account`` allows below the blob folder ``path``.

    Raises ``ContainerNotFoundError`` if there is no such container, and ``CredentialError`` if it cannot be listed;
    other failures are results.
    """
    environ = environment(environ)
    connect, now = _connector(environ, use_cli_auth=False), datetime.now(timezone.utc)
    found = tuple(examine_account(account, path, connect=connect, now=now, environ=environ))
    refused = [each for each in found if each.status is CheckStatus.FAIL and each.name not in ("reading", "writing")]
    if refused and refused[0].code == FailureCode.CONTAINER_NOT_FOUND:
        raise ContainerNotFoundError(refused[0].detail, hint=refused[0].hint)
    if refused:
        raise CredentialError(f"{account.file}: {refused[0].detail}", hint=refused[0].hint)
    return found


def examine_account(
    account: StorageAccount,
    path: str,
    *,
    connect: ConnectRest,
    now: datetime,
    environ: Mapping[str, str],
    folders: Iterable[str] = (),
    identity: Callable[[], str] | None = None,
) -> Iterator[CheckResult]:
    """Check credential, clock, and listing, reading and writing below the blob folder ``path``.

    Below ``folders`` it looks for unfinished uploads. ``identity`` names the one in use, which is known once
    the service has accepted it.
    """
    if account.bucket is not None:
        yield from _bucket(account, path, environ)
        return
    about = account.file
    folder = f"{path}/" if path else ""
    # A credential is OK only after the service has accepted it.
    looks = list(_tried(about, "credential", _credential(account, now, environ)))
    try:
        store = connect(account)
    except CredentialError:
        yield from looks
        return
    with store:
        reached: list[CheckResult] = []
        try:
            reached.append(_clock(about, store))
            found = _first_file(store, folder)
        except LoginRequiredError as error:
            yield failed_check(about, "credential", error)
            return
        except BlobsyncError as error:
            yield from (*map(_untried, looks), *reached, failed_check(about, "listing", error))
            return
        if account.credential == "identity" and identity is not None:
            looks = [_identity(account, f", {identity()}")]
        yield from (*looks, *reached)
        yield CheckResult(about, "listing", CheckStatus.OK, f"{account.container.name}/{folder} can be listed")
        if found is not None:
            yield from _tried(about, "reading", _reading(about, store, found))
        yield _writing(about, store, folder, account)
        yield from _tried(about, "recovery", _account(about, store), CheckStatus.WARN)
        yield from _tried(about, "leftovers", _leftovers(about, store, folders), CheckStatus.WARN)


def _tried(
    about: str, name: str, looks: Iterator[CheckResult], status: CheckStatus = CheckStatus.FAIL
) -> Iterator[CheckResult]:
    """What these checks find; where one raises, that is the last result."""
    try:
        yield from looks
    except BlobsyncError as error:
        yield failed_check(about, name, error, status)


def _bucket(account: StorageAccount, path: str, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Check a source: it is listed, and nothing more is ever done there."""
    from blobsync.store.s3 import open_bucket

    about = account.file
    with closing(open_bucket(account, environ)) as store:
        try:
            next(store.list_blobs(f"{path}/" if path else ""), None)
        except BlobsyncError as error:
            refused = isinstance(error, CredentialError)
            yield failed_check(about, "credential" if refused else "listing", error)
            return
    used = (
        "no credential" if account.bucket is not None and account.bucket.anonymous else "credentials that boto3 finds"
    )
    yield CheckResult(about, "credential", CheckStatus.OK, f"{used}; {account.container} is only read")
    yield CheckResult(about, "listing", CheckStatus.OK, f"{account.container.child(path)} can be listed")


def _connector(environ: Mapping[str, str], use_cli_auth: bool) -> ConnectRest:
    return lambda account: connect(
        account, environ=environ, use_cli_auth=use_cli_auth, retry=_RETRY, timeouts=_TIMEOUTS
    )


def _accounts(cluster: Cluster) -> list[tuple[StorageAccount, str]]:
    """The containers of a cluster, each with the first blob folder used in it."""
    found: dict[BlobContainer, tuple[StorageAccount, str]] = {}
    for entry in cluster.folders:
        found.setdefault(entry.account.container, (entry.account, entry.path))
    if cluster.code is not None:
        folder = cluster.code.path.rpartition("/")[0]
        found.setdefault(cluster.code.account.container, (cluster.code.account, folder))
    return list(found.values())


def _folders(cluster: Cluster, account: StorageAccount) -> list[str]:
    """The blob folders used in the account's container, none below another."""
    paths = {entry.path for entry in cluster.folders if entry.account.container == account.container}
    folders = sorted(f"{path}/" if path else "" for path in paths)
    return [each for each in folders if not any(each != other and each.startswith(other) for other in folders)]


def _credential(account: StorageAccount, now: datetime, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    signer_for(account, environ=environ)
    if account.credential == "sas":
        yield from _own_sas(account, now)
        return
    if account.credential == "identity":
        yield _identity(account)
        return
    detail = f"account_key {account.origin}; azcopy and others get only a SAS of the one container, made from it"
    yield CheckResult(account.file, "credential", CheckStatus.OK, detail)


def _identity(account: StorageAccount, which: str = "") -> CheckResult:
    detail = f"an identity{which}; azcopy gets a user delegation SAS of the one container"
    return CheckResult(account.file, "credential", CheckStatus.OK, detail)


def _own_sas(account: StorageAccount, now: datetime) -> Iterator[CheckResult]:
    about = account.file
    warnings = check_sas(account, READ_FOLDER, now=now)
    token = account.sas_token
    assert token is not None
    rights = f"may {rights_in_words(token.permissions)}" if token.permissions else "rights not shown"
    ends = f"ends {token.field('se')}" if token.expires_at else "its expiry is defined by an access policy"
    detail = f"sas_token {account.origin}: {sas_token.kind(token)}, {rights}, {ends}"
    yield CheckResult(about, "credential", CheckStatus.OK, detail)
    for warning in warnings:
        yield CheckResult(about, "credential", CheckStatus.WARN, warning, "get a new one in time")
    if token.field("srt"):
        yield CheckResult(
            about,
            "credential",
            CheckStatus.WARN,
            "an account SAS opens every container of the account, and azcopy shows it to others on this machine",
            "a SAS of the container, account_key or an identity is narrower",
        )
    for needs, what in ((WRITE_FOLDER, "no uploads"), (REMOVE, "no rm, and no --mirror")):
        try:
            check_sas(account, needs, now=now)
        except BlobsyncError as error:
            yield CheckResult(about, "credential", CheckStatus.WARN, f"{error.message}: {what}", error.hint)


def _clock(about: str, store: RestBlobStore) -> CheckResult:
    skew = store.clock_skew()
    if skew is None:
        return CheckResult(about, "clock", CheckStatus.WARN, "the service does not send its time")
    if abs(skew) < WARN_SKEW_SECONDS:
        return CheckResult(about, "clock", CheckStatus.OK, f"{abs(skew):.0f} s from the service's")
    status = CheckStatus.FAIL if abs(skew) >= MAX_SKEW_SECONDS else CheckStatus.WARN
    detail = f"this machine's clock is {describe_skew(skew)} the service's"
    return CheckResult(about, "clock", status, detail, "set the clock: timedatectl set-ntp true")


def _first_file(store: RestBlobStore, folder: str) -> BlobInfo | None:
    """A blob that is not empty, if the first page of the listing has one."""
    first = islice(store.list_folder(folder), 1000)
    return next((entry for entry in first if isinstance(entry, BlobInfo) and entry.size), None)


def _reading(about: str, store: RestBlobStore, blob: BlobInfo) -> Iterator[CheckResult]:
    with store.open(blob.name, length=1) as reader:
        reader.read(1)
    yield CheckResult(about, "reading", CheckStatus.OK, "a blob can be read")


def _writing(about: str, store: RestBlobStore, folder: str, account: StorageAccount) -> CheckResult:
    name = folder + new_temporary_name()
    body = b"blobsync doctor"
    md5 = hashlib.md5(body).digest()
    token = account.sas_token if account.credential == "sas" else None
    try:
        if token is not None and token.permissions and "d" not in token.permissions:
            # Without the right to delete, write an uncommitted block instead of a blob.
            store.put_block(name, b64encode(b"000000").decode(), body)
            return CheckResult(about, "writing", CheckStatus.OK, "works; deleting is not allowed and was not tried")
        store.put(name, body, md5=md5, condition=Precondition(absent=True))
    except BlobsyncError as error:
        status = CheckStatus.WARN if token is not None and "w" not in token.permissions else CheckStatus.FAIL
        return failed_check(about, "writing", error, status)
    return _removing(about, store, name, body)


def _removing(about: str, store: RestBlobStore, name: str, body: bytes) -> CheckResult:
    try:
        with store.open(name) as reader:
            same = reader.read(len(body) + 1) == body
        store.delete(name)
    except StorageError as error:
        return CheckResult(
            about,
            "writing",
            CheckStatus.WARN,
            f"writing works, reading back and removing does not ({error.message}): {name} stays",
            error.hint,
        )
    if not same:
        return CheckResult(
            about, "writing", CheckStatus.FAIL, "the blob was read back with different content", "check the proxy"
        )
    return CheckResult(about, "writing", CheckStatus.OK, "a blob was written, read and removed")


def _account(about: str, store: RestBlobStore) -> Iterator[CheckResult]:
    found = store.features()
    yield CheckResult(about, "account", CheckStatus.OK, str(found))
    known = found.versioning or found.soft_delete_days is not None
    status, hint = (CheckStatus.OK, None) if known else (CheckStatus.UNTRIED, "ask the owner of the account")
    yield CheckResult(about, "recovery", status, f"the container {found.recovery}", hint)


def _leftover_blocks(store: RestBlobStore, folders: Iterable[str]) -> dict[str, int]:
    """The names of blobs with only uncommitted blocks, which no ordinary listing has, and the bytes of these.

    Searches quickly below ``folders`` (each ends with ``/``, or is empty).
    """
    found: dict[str, int] = {}
    for folder in folders:
        for name in islice(store.without_content(folder, _PAGES), _CLOSER):
            blocks = store.block_list(name)
            # An existing blob may have such blocks as well, but the listing does not show it.
            if blocks is not None and blocks.uncommitted and not blocks.committed and store.head(name) is None:
                found[name] = sum(block.size for block in blocks.uncommitted)
    return found


def _leftovers(about: str, store: RestBlobStore, folders: Iterable[str]) -> Iterator[CheckResult]:
    found = _leftover_blocks(store, folders)
    names, size = list(found), sum(found.values())
    if names:
        said = "1 upload began and never ended" if len(names) == 1 else f"{len(names):,} uploads began and never ended"
        detail = f"{said}, and left {size:,} bytes of uncommitted blocks: {', '.join(names[:3])}"
        detail += ", ..." if len(names) > 3 else ""
        hint = "upload again to go on; the service drops such blocks after a week"
        yield CheckResult(about, "leftovers", CheckStatus.WARN, detail, hint)


def _azcopy(environ: Mapping[str, str], find_azcopy: FindAzcopy) -> CheckResult:
    try:
        found = find_azcopy(environ)
    except AzcopyNotFoundError as error:
        detail = f"{error.message}; without it every transfer uses the direct engine"
        return CheckResult("azcopy", "program", CheckStatus.WARN, detail, error.hint)
    except AzcopyError as error:
        return failed_check("azcopy", "program", error)
    kept = "the kernel confines it to its own folders" if Landlock().is_possible else _UNCONFINED
    return CheckResult(
        "azcopy", "program", CheckStatus.OK, f"{found.version_text} at {found.path} ({found.origin}); {kept}"
    )


def _untried(finding: CheckResult) -> CheckResult:
    if finding.status is not CheckStatus.OK:
        return finding
    return replace(finding, status=CheckStatus.UNTRIED, detail=f"{finding.detail}; the service has not confirmed it")


def examine_downloads(root: Path, environ: Mapping[str, str]) -> Iterator[CheckResult]:
    """Each unfinished download of the project at ``root``, with its bytes on the disk. Changes nothing."""
    said: list[str] = []
    try:
        records = RangeRecords(open_state_dir(root, environ, said.append))
        found = sorted(records.all(), key=lambda each: each[0].destination)
    except (LocalFileError, UntrustedStateError) as error:
        yield failed_check(_PROJECT, "state", error)
        return
    for text in said:
        yield CheckResult(_PROJECT, "state", CheckStatus.WARN, text)
    for of, size in found[:_NAMED]:
        shown = _shown(root, of.destination)
        detail = (
            f"{shown} is not finished: {size:,} of {of.size:,} bytes are here, in"
            f" {_shown(root, of.part_path)} ({_on_disk(of):,} bytes on disk)"
        )
        hint = f"'blobsync d {shlex.quote(shown)}' resumes from there; after a week the next transfer removes it"
        yield CheckResult(_PROJECT, "downloads", CheckStatus.WARN, detail, hint)
    if len(found) > _NAMED:
        size = sum(size for _, size in found[_NAMED:])
        detail = f"{len(found) - _NAMED:,} more are not finished, with {size:,} bytes"
        yield CheckResult(_PROJECT, "downloads", CheckStatus.WARN, detail)


def _shown(root: Path, path: str) -> str:
    """As a user types it: from the project's root, if it is below."""
    relative = os.path.relpath(path, root)
    return path if relative.startswith("..") else relative


def _on_disk(of: UnfinishedDownload) -> int:
    try:
        # Blocks of 512 bytes on every file system: stat(2).
        return os.lstat(of.part_path).st_blocks * 512
    except OSError:
        return 0
