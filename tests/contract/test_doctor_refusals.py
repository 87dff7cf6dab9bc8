"""``doctor`` reports refused credentials in the words of a transfer.

The cases are held to the code: each place that refuses a credential, and each refusal of the service that has a
sentence, has to have been met here or says why it cannot be.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from blobsync.base.check_results import CheckResult, CheckStatus
from blobsync.base.errors import BlobsyncError, CredentialError
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.project.api import Project
from blobsync.project.doctor import ConnectRest, examine_account
from blobsync.store import connect as connecting
from blobsync.store import sas_token
from blobsync.store.connect import connect
from blobsync.store.rest import error_codes, request_signing
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SharedKeySigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from tests.fakes.scripted_http import Step, scripted
from tests.unit.test_refusals import raised_in

BARE = StorageAccount("vig.yaml", "acct", "box", "https://acct.blob.core.windows.net")
KEY = Secret("a2V5")
NOBODY = "https://evil.example"


def with_token(text: str, endpoint: str = BARE.blob_endpoint) -> StorageAccount:
    return BARE._replace(sas_token=SasToken.parse(f"{text}&sig=x"), blob_endpoint=endpoint)


# Each is an account with which a download is refused before a request is sent.
REFUSED: Mapping[str, StorageAccount] = {
    "plain http": BARE._replace(account_key=KEY, blob_endpoint="http://192.0.2.1/acct"),
    "an identity at a host of nobody": BARE._replace(blob_endpoint=NOBODY),
    "a login at a host of nobody": BARE._replace(
        account_key=KEY, blob_endpoint=NOBODY, from_outside=frozenset({"key"})
    ),
    "an identity without https": BARE._replace(blob_endpoint="http://127.0.0.1:1/acct"),
    "auth: sas without one": BARE._replace(auth="sas"),
    "auth: key without one": BARE._replace(auth="key"),
    "a key that is none": BARE._replace(account_key=Secret("no key")),
    "a SAS that ended": with_token("sp=rl&sr=c&se=2020-01-01"),
    "a SAS that has not begun": with_token("sp=rl&sr=c&st=2098-01-01&se=2099-01-01"),
    "a SAS with an expiry that is none": with_token("sp=rl&sr=c&se=soon"),
    "a SAS without an expiry": with_token("sp=rl&sr=c"),
    "a SAS that grants nothing": with_token("sr=c&se=2099-01-01"),
    "a SAS that may not read": with_token("sp=l&sr=c&se=2099-01-01"),
    "a SAS for https": with_token("sp=rl&sr=c&se=2099-01-01&spr=https", "http://127.0.0.1:1/acct"),
    "a SAS of one blob": with_token("sp=rl&sr=b&se=2099-01-01"),
    "an account SAS of another service": with_token("sp=rl&ss=q&srt=sco&se=2099-01-01"),
    "an account SAS without containers": with_token("sp=rl&ss=b&srt=o&se=2099-01-01"),
}
ELSEWHERE: Mapping[str, str] = {
    "no SAS is sent there": "whose program listens on this machine: tests/e2e/test_hostile_project.py",
    "it gets no": "a copy from another cluster, which doctor is not told of",
    "has only an account SAS": "url hands out links",
    "has only a SAS of the container": "url hands out links",
    "has a SAS only": "url hands out links",
    "this credential cannot": "a request that no transfer makes",
}


def project(root: Path, account: StorageAccount, connect: Callable[[StorageAccount], RestBlobStore] | None) -> Project:
    (root / "data").mkdir(parents=True)
    (root / "data/a").write_bytes(b"a")
    cluster = Cluster("aml", "aux_data/aml/aml.yaml", root, folders=(FolderEntry("data", account, "d"),))
    return Project(root, root, cluster, environ={"HOME": str(root)}, connect=connect)


def refusal(
    root: Path, account: StorageAccount, connect: Callable[[StorageAccount], RestBlobStore] | None = None
) -> BlobsyncError:
    with project(root, account, connect) as opened, pytest.raises(BlobsyncError) as caught:
        opened.download("data")
    return caught.value


def failures(root: Path, account: StorageAccount, connect: ConnectRest) -> list[CheckResult]:
    found = examine_account(account, "d", connect=connect, now=this_moment(), environ={"HOME": str(root)})
    return [each for each in found if each.status is CheckStatus.FAIL]


def this_moment() -> datetime:
    return datetime.now(timezone.utc)


def as_transfers_do(root: Path, url: str) -> ConnectRest:
    """The real connection as far as it gets without a request, then the service at ``url``."""

    def make(account: StorageAccount) -> RestBlobStore:
        connect(account, environ={"HOME": str(root)}).close()
        return at(url)(account)

    return make


def timeless(text: str) -> str:
    """The clock goes on between two sentences."""
    return re.sub(r"clock says \S+", "clock says now", text)


@pytest.mark.parametrize("account", REFUSED.values(), ids=REFUSED.keys())
def test_a_credential_that_a_download_refuses(tmp_path: Path, account: StorageAccount) -> None:
    error = refusal(tmp_path, account)
    assert isinstance(error, CredentialError)
    with scripted([Step(403)] * 9) as script:
        found = failures(tmp_path, account, as_transfers_do(tmp_path, script.url))
    assert (timeless(error.message), error.hint) in [(timeless(each.detail), each.hint) for each in found]


def test_a_right_that_an_upload_lacks_is_a_warning_in_the_same_words(tmp_path: Path) -> None:
    account = with_token("sp=rl&sr=c&se=2099-01-01")
    with project(tmp_path, account, None) as opened, pytest.raises(CredentialError) as caught:
        opened.upload("data")
    said = caught.value
    steps = [Step(404, b"", {"x-ms-error-code": "ContainerNotFound"})]
    with scripted([*steps * 9]) as script:
        looks = examine_account(
            account, "d", connect=at(script.url), now=this_moment(), environ={"HOME": str(tmp_path)}
        )
        warned = [each for each in looks if each.status is CheckStatus.WARN]
    assert (f"{said.message}: no uploads", said.hint) in [(each.detail, each.hint) for each in warned]


def test_no_refusal_of_a_credential_is_missing_above(tmp_path: Path) -> None:
    seen = set()
    for number, account in enumerate(REFUSED.values()):
        error = refusal(tmp_path / str(number), account)
        last = traceback.extract_tb(error.__traceback__)[-1]
        seen.add((last.filename, last.lineno or 0))
    files = [Path(str(module.__file__)) for module in (connecting, sas_token, request_signing)]
    left = [
        text
        for file in files
        for node, text in raised_in(file, "CredentialError|SasExpiredError|SasPermissionError")
        if not seen & {(str(file), line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    ]
    assert [each for each in left if not any(words in each for words in ELSEWHERE)] == []


def at(url: str) -> Callable[[StorageAccount], RestBlobStore]:
    """The container of an account at a service of the test's own, asked once."""

    def make(account: StorageAccount) -> RestBlobStore:
        there = replace(account.container, endpoint=url)
        http = BlobHttp(there, SharedKeySigner("acct", KEY), environ={}, retry=RetryPolicy(1))
        return RestBlobStore(account.container, http)

    return make


def codes() -> Iterator[tuple[int, str]]:
    """Each refusal that the table of sentences has, and one that it does not have."""
    for code, meaning in error_codes._MEANINGS.items():
        yield (404 if "NotFound" in code else 403 if meaning.kind.__name__ == "AccessDeniedError" else 400), code
    yield 403, ""
    yield 418, "NeverHeardOfIt"


@pytest.mark.parametrize(("status", "code"), list(codes()))
def test_a_refusal_of_the_service(tmp_path: Path, status: int, code: str) -> None:
    account = BARE._replace(account_key=KEY)
    answer = Step(status, b"", {"x-ms-error-code": code} if code else {})
    with scripted([answer] * 12) as script:
        error = refusal(tmp_path, account, at(script.url))
        found = failures(tmp_path, account, at(script.url))
    hint = error.hint.partition("; 'blobsync doctor'")[0] if error.hint else None
    assert (error.message, hint) in [(each.detail, each.hint) for each in found]
    assert all(each.status is not CheckStatus.OK for each in found)
