"""Storage account files and the Azure ML workspace file."""

from __future__ import annotations

import base64
import binascii
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from blobsync.base.errors import ConfigError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import AMAZON
from blobsync.base.redaction import SasToken, Secret
from blobsync.base.trusted_hosts import host_of
from blobsync.config.known_keys import ACCOUNT, OF_AZURE, OF_BUCKETS, WORKSPACE
from blobsync.config.model import StorageAccount, WorkspaceConfig, default_blob_endpoint, value_at
from blobsync.config.typed_values import Checker, described, is_placeholder
from blobsync.config.user_config import load_user_config
from blobsync.config.yaml_document import Document, KeyPath, read_document

if TYPE_CHECKING:
    from blobsync.config.logins import StoredLogin

# https://learn.microsoft.com/rest/api/storageservices/naming-and-referencing-containers--blobs--and-metadata
_CONTAINER = pattern(r"\$root|\$web|\$logs|[a-z0-9](?:-?[a-z0-9]){2,62}")
# https://learn.microsoft.com/azure/storage/common/storage-account-overview#storage-account-name
_ACCOUNT = pattern(r"[a-z0-9]{3,24}")
_ACCOUNT_RULE = "3 to 24 lowercase letters and digits"
# Emulators and on-premises stores have other names; an account key, which ends with "=", never matches.
_ANY_ACCOUNT = pattern(r"[A-Za-z0-9._-]{1,63}")
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html; older buckets, and those of other
# services, may have capitals and underscores.
_BUCKET = pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = pattern(r"[A-Za-z0-9-]{1,40}")
_CREDENTIAL_KEYS = {"sas": "sas_token", "key": "account_key"}


class AccountFile:
    """An account file, read and checked, with the user's login if it contains no credential.

    ``account`` is None if there are ``problems``. ``takes_login``: no credential is in the file.
    """

    def __init__(self, path: Path, shown: str, environ: Mapping[str, str], document: Document | None = None) -> None:
        """``document`` replaces the file's content if there is no file yet."""
        self._environ = environ
        is_new = document is not None
        document = document or read_document(path, shown)
        self._checker = Checker(document, environ, lambda: load_user_config(environ).allowed_variables)
        self._values = self._checker.check(ACCOUNT)
        self.problems = self._checker.problems
        self.warnings = self._checker.warnings
        if not is_new:
            self.warnings.extend(warn_if_others_can_read(path, document, (("account_key",), ("sas_token",))))
        is_bucket = self._values.get("storage_type") == "s3"
        self.takes_login = not is_bucket and not self._values.keys() & {"account_key", "sas_token"}
        self.holds_secret = any(_is_literal_secret(document.values.get(key)) for key in ("account_key", "sas_token"))
        account = self._read_bucket(shown) if is_bucket else self._read(shown)
        # The account without its missing login; None if anything else is wrong.
        self.without_login = None if self.problems else account
        account = self._with_login(account)
        self.account = None if self.problems else account

    def _read_bucket(self, shown: str) -> StorageAccount:
        """A bucket as a source. The file holds no key: boto3 finds the user's own."""
        for key in OF_AZURE:
            if key in self._values:
                self._checker.problem((key,), "is of Azure, and the file has storage_type: s3")
        name = self._required("bucket")
        if name and not is_placeholder(name) and (problem := bucket_problem(name)):
            self._checker.problem(("bucket",), problem)
        endpoint = str(self._values.get("endpoint", AMAZON)).rstrip("/")
        problem = service_problem(endpoint)
        if problem:
            self._checker.problem(("endpoint",), problem)
        region, profile = (str(self._values.get(key, "")) for key in ("region", "profile"))
        if region and not _REGION.fullmatch(region):
            self._checker.problem(("region",), f"{described(region)} is not a region: for example eu-west-1")
        anonymous = bool(self._values.get("anonymous", False))
        if profile and anonymous:
            self._checker.problem(("profile",), "is given with anonymous: true, which uses no credential")
        from blobsync.config.sources import BucketAccess  # late: few projects have one

        pays = bool(self._values.get("requester_pays", False))
        if pays and anonymous:
            self._checker.problem(("requester_pays",), "is given with anonymous: true, and nobody pays without a name")
        return StorageAccount(
            file=shown,
            account_name="",
            container_name=name,
            blob_endpoint=endpoint,
            origin="of no one" if anonymous else "of boto3",
            bucket=BucketAccess(region, profile, anonymous, requester_pays=pays),
        )

    def _read(self, shown: str) -> StorageAccount:
        for key in OF_BUCKETS:
            if key in self._values:
                self._checker.problem((key,), "is of a bucket", hint="a bucket has storage_type: s3")
        name = self._required("account_name")
        container = self._required("container_name")
        self._not_the_example("account_key", "sas_token", "blob_endpoint")
        endpoint = self._endpoint(name)
        if container and not _CONTAINER.fullmatch(container) and not is_placeholder(container):
            self._checker.problem(
                ("container_name",),
                f"{described(container)} is not a valid container name: "
                "3 to 63 lowercase letters, digits and single hyphens",
            )
        account = StorageAccount(
            file=shown,
            account_name=name,
            container_name=container,
            blob_endpoint=endpoint,
            account_key=self._key(),
            sas_token=self._sas(),
            auth=self._auth(),
            from_outside=frozenset(
                kind for kind, key in _CREDENTIAL_KEYS.items() if (key,) in self._checker.from_environment
            ),
        )
        names = self._checker.from_environment.get((_CREDENTIAL_KEYS.get(account.credential, ""),))
        return account._replace(origin=f"from the environment ({', '.join(names)})") if names else account

    def _required(self, key: str) -> str:
        value = self._values.get(key, "")
        if not value and not any(problem.key == key for problem in self.problems):
            self._checker.missing(key)
        self._not_the_example(key)
        return str(value)

    def _not_the_example(self, *keys: str) -> None:
        for key in keys:
            value = self._values.get(key)
            text = value.reveal() if isinstance(value, Secret) else value
            if text and is_placeholder(text):
                self._checker.problem((key,), "still has the example's placeholder: fill in your own")
                del self._values[key]

    def _endpoint(self, account: str) -> str:
        given = self._values.get("blob_endpoint")
        form, rule = (_ANY_ACCOUNT, "letters, digits, '-', '_' and '.'") if given else (_ACCOUNT, _ACCOUNT_RULE)
        if account and not form.fullmatch(account) and not is_placeholder(account):
            self._checker.problem(
                ("account_name",),
                f"{described(account)} is not a valid storage account name: {rule}",
                hint="only the name, without .blob.core.windows.net; for other clouds set blob_endpoint too",
            )
            account = "ACCOUNT"
        if not given:
            return default_blob_endpoint(account)
        endpoint = str(given).rstrip("/")
        problem = _endpoint_problem(endpoint, account)
        if problem:
            self._checker.problem(("blob_endpoint",), problem)
        return endpoint

    def _key(self) -> Secret | None:
        key = self._values.get("account_key")
        if not isinstance(key, Secret):
            return None
        try:
            base64.b64decode(key.reveal(), validate=True)
        except (binascii.Error, ValueError):
            self._checker.problem(
                ("account_key",), "is not base64: copy the whole key, including the = signs at the end"
            )
        return key

    def _sas(self) -> SasToken | None:
        token = self._values.get("sas_token")
        if not isinstance(token, Secret):
            return None
        try:
            return SasToken.parse(token.reveal())
        except ValueError as error:
            self._checker.problem(("sas_token",), f"is {error}")
            return None

    def _auth(self) -> str | None:
        auth = self._values.get("auth")
        needs = _CREDENTIAL_KEYS.get(str(auth))
        if self.takes_login or not needs or needs in self._values:
            return auth
        if not any(problem.key == needs for problem in self.problems):
            self._checker.problem(("auth",), f"is '{auth}', but there is no {needs}")
        return auth

    def _with_login(self, account: StorageAccount) -> StorageAccount:
        """Add the user's login. Most files without a credential are for an identity, and then none is stored."""
        if self.problems or not self.takes_login or account.auth == "identity":
            return account
        from blobsync.config.logins import load_login  # late: most files have a credential, or are for an identity

        try:
            login = load_login(account.container, self._environ)
        except ConfigError as error:
            self.problems.append(error)
            return account
        if account.auth and (login is None or login.kind != account.auth):
            self._checker.problem(
                ("auth",),
                f"is '{account.auth}', but there is no {_CREDENTIAL_KEYS[account.auth]}, here or in your logins",
                hint=f"store your own: blobsync login {shlex.quote(account.file)}",
            )
        return account if login is None else signed_in(account, login)


def signed_in(account: StorageAccount, login: StoredLogin) -> StorageAccount:
    """``account`` with a credential that its file does not contain."""
    sas = login.secret if isinstance(login.secret, SasToken) else None
    key = login.secret if isinstance(login.secret, Secret) else None
    outside = frozenset({login.kind})
    return account._replace(sas_token=sas, account_key=key, from_outside=outside, origin="of your login")


def _endpoint_problem(endpoint: str, account: str) -> str | None:
    no_url = "is not a URL: expected https://<account>.blob.core.windows.net"
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return no_url
    if parts.query or parts.fragment or parts.username:
        return "must be the plain URL; put a SAS in sas_token"
    if host_of(endpoint) is None:
        return no_url
    if parts.hostname == "localhost":
        # azcopy takes the account from the path only if the host is an IP address.
        return "azcopy does not support 'localhost' here: use 127.0.0.1"
    with suppress(ValueError):
        ip_address(parts.hostname or "")
        if parts.path != f"/{account}":
            return f"must end with the account name after an IP address: {parts.scheme}://{parts.netloc}/{account}"
    return None


def bucket_problem(name: str) -> str | None:
    """What is wrong with the name of a bucket."""
    return None if _BUCKET.fullmatch(name) else f"{described(name)} is not a valid bucket name"


def service_problem(endpoint: str) -> str | None:
    """What is wrong with the URL of an S3-compatible service."""
    no_url = "is not a URL: expected https://HOST"
    try:
        parts = urlsplit(endpoint)
    except ValueError:
        return no_url
    if parts.query or parts.fragment or parts.username or parts.path:
        return "must be https://HOST alone: the bucket and the path have keys of their own"
    return no_url if host_of(endpoint) is None else None


def warn_if_others_can_read(path: Path, document: Document, secrets: Sequence[KeyPath]) -> list[str]:
    """A warning if the file itself contains one of ``secrets`` and other users of the machine can read it."""
    held = [".".join(key) for key in secrets if _is_literal_secret(value_at(document.values, key))]
    mode = stat.S_IMODE(path.stat().st_mode)
    if not held or not mode & 0o077:
        return []
    from blobsync.base.daily_warnings import DailyWarning  # late: most files hold no secret

    return [
        DailyWarning(
            f"{document.file}: holds {' and '.join(held)} and is readable by other users (mode {mode:o}); "
            f"run: chmod 600 {document.file}"
        )
    ]


def _is_literal_secret(value: Any) -> bool:
    return isinstance(value, str) and not value.startswith("${") and not is_placeholder(value)


class WorkspaceFile:
    """The workspace of ``aml_config``, from its own file or from the cluster file itself."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        checker = Checker(document, environ, lambda: load_user_config(environ).allowed_variables)
        values = checker.check(WORKSPACE)
        self.problems = checker.problems
        self.warnings = checker.warnings
        for key in ("subscription_id", "resource_group", "workspace_name"):
            if key not in values:
                checker.missing(key)
            elif is_placeholder(values[key]):
                checker.problem((key,), "still has the example's placeholder: fill in your own")
        self.workspace = None if self.problems else WorkspaceConfig(file=document.file, **values)


def first_of(problems: list[ConfigError]) -> ConfigError:
    """The first problem; its hint says that there are more."""
    first = problems[0]
    if len(problems) > 1:
        more = f"{len(problems) - 1} more: blobsync config check"
        first.hint = f"{first.hint}; {more}" if first.hint else more
    return first
