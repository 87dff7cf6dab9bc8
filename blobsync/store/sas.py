"""Creates shared access signatures for others, and defines their rights and lifetimes.

Each is for one purpose: for azcopy, another account, a node or a person. It is signed with the account key or an
identity, for one container or blob, with the rights and the lifetime of its purpose. Only with an identity is the
network used, to get a user delegation key. The format of a SAS is in ``store.sas_token``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from functools import partial

from blobsync.base.errors import CredentialError
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.base.redaction import SasToken
from blobsync.base.user_folders import environment
from blobsync.config.model import Cluster, StorageAccount
from blobsync.store.sas_token import sign_sas

# -- rights and lifetimes ---------------------------------------------------------------------------------------

# The source of a server-side copy: one blob with a known name.
READ_BLOB = "r"
# A folder: its listing and its blobs.
READ_FOLDER = "rl"
# Enough for Put Blob and Put Block; azcopy does not list the destination.
WRITE_BLOBS = "w"
# To keep a blob's access tier, azcopy reads the kind of the destination's account, which requires "r".
WRITE_BLOBS_WITH_TIER = "rw"
# The destination of a transfer is listed, written, and then checked.
WRITE_FOLDER = "rwl"
MIRROR_FOLDER = "rwdl"
REMOVE = "rdl"
# By the mode of a job's folder. In a mount, programs create, change and remove blobs as files.
JOB_FOLDER = {
    "download": READ_FOLDER,
    "upload": "rcwl",
    "mount": "rcwdl",
    "ro_mount": READ_FOLDER,
    "link": "",
}
# A job's folder of mode upload, whose sets of files a key of the cluster file lets go.
ROTATED_FOLDER = "rcwdl"
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
# The lifetime is that of a transfer at this rate and an hour more; real connections are faster.
_BYTES_PER_SECOND = 10_000_000
_MARGIN_SECONDS = 3600


def transfer_seconds(size: int) -> int:
    """How long a SAS for moving ``size`` bytes must be valid."""
    return _MARGIN_SECONDS + size // _BYTES_PER_SECOND


# -- minting ----------------------------------------------------------------------------------------------------

SasForAccount = Callable[[StorageAccount, str, int], SasToken]


def sas_minter(cluster: Cluster, environ: Mapping[str, str]) -> SasForAccount:
    """A function that makes SAS with the credentials of a cluster's files; see :func:`mint_sas`."""
    return partial(mint_sas, environ=environ, use_cli_auth=cluster.flag("use_cli_auth"))


def mint_sas(
    account: StorageAccount,
    rights: str,
    seconds: int,
    *,
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
) -> SasToken:
    """A SAS for a container, with ``rights`` (letters such as ``rl``), valid for ``seconds``.

    Signed with the account key, even if the file also has a SAS, or with a user delegation key of the identity
    (seven days at most). If the file has only a SAS, or ``auth: sas``, that SAS is checked
    for the rights and returned unchanged.
    """
    from blobsync.store.connect import check_host, check_sas, demand_container, own_sas

    environ = environment(environ)
    demand_container(account)
    if account.granting_credential == "sas":
        check_host(account, "sas", environ)
        check_sas(account, rights, seconds=seconds)
        return own_sas(account)
    return _mint(account, account.container, rights, seconds, environ=environ, use_cli_auth=use_cli_auth)


def sas_url(
    account: StorageAccount,
    target: BlobLocation,
    rights: str,
    seconds: int,
    *,
    scope: str = "blob",
    environ: Mapping[str, str] | None = None,
    use_cli_auth: bool = False,
) -> str:
    """A URL for others, valid for ``seconds``; ``scope`` is what it opens: the ``blob``, the ``folder`` (a directory
    of an account with a hierarchical namespace), or the ``container`` around it.

    It contains a signature: anyone who has it has its rights. Raises ``CredentialError`` if the file has only a SAS,
    unless that grants no more than the container and ``rights``: a SAS cannot be narrowed.
    """
    from blobsync.store.connect import check_host, demand_container

    environ = environment(environ)
    demand_container(account)
    if account.granting_credential == "sas":
        check_host(account, "sas", environ)
        return f"{target}?{_own_sas_to_give_away(account, rights, scope).reveal()}"
    opened = target.container if scope == "container" else target
    minted = _mint(account, opened, rights, seconds, scope=scope, environ=environ, use_cli_auth=use_cli_auth)
    return f"{target}?{minted.reveal()}"


def _own_sas_to_give_away(account: StorageAccount, rights: str, scope: str) -> SasToken:
    from blobsync.store.connect import check_sas, own_sas

    own = own_sas(account)
    check_sas(account, rights)
    if own.field("srt"):
        raise CredentialError(
            f"{account.file} has only an account SAS: a link made with it would open every container of the account",
            hint="use account_key or an identity, or a SAS of the container",
        )
    if scope != "container":
        raise CredentialError(
            f"{account.file} has only a SAS of the container: a narrower one cannot be made from it",
            hint="use account_key or an identity; --container hands out that SAS, which opens the whole container",
        )
    if set(own.permissions) != set(rights):
        raise CredentialError(
            f"{account.file} has a SAS only, with the rights {own.permissions}: one with fewer cannot be made from it",
            hint="use account_key or an identity, or ask for exactly its rights with --permission",
        )
    return own


def _mint(
    account: StorageAccount,
    target: BlobContainer | BlobLocation,
    rights: str,
    seconds: int,
    *,
    scope: str = "container",
    environ: Mapping[str, str],
    use_cli_auth: bool = False,
) -> SasToken:
    from blobsync.store.connect import check_host, connect, own_key
    from blobsync.store.rest.request_signing import SharedKeySigner

    now = datetime.now(timezone.utc)
    folder = scope == "folder"
    if account.granting_credential == "key":
        check_host(account, "key", environ)
        key = own_key(account)
        SharedKeySigner(account.account_name, key)  # raises if the key is not base64
        return sign_sas(target, rights, key=key, expires=now + timedelta(seconds=seconds), folder=folder)
    ends = now + timedelta(seconds=min(seconds, LONGEST_DELEGATION_SECONDS))
    with connect(account, environ=environ, use_cli_auth=use_cli_auth) as store:
        delegation = store.user_delegation_key(now, ends)
    return sign_sas(target, rights, key=delegation, expires=ends, folder=folder)
