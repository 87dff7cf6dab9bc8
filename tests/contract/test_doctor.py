from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import formatdate
from pathlib import Path

import pytest

from blobsync.azcopy.binary import Found
from blobsync.azcopy.sandbox import Landlock
from blobsync.base.check_results import CheckResult, CheckStatus
from blobsync.base.errors import AzcopyError, AzcopyNotFoundError, AzcopyVersionError
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import Cluster, CodeEntry, FolderEntry, StorageAccount
from blobsync.project.doctor import examine, examine_account
from blobsync.store.connect import connect
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from blobsync.store.sas import mint_sas
from tests.conftest import Azurite
from tests.contract.test_blob_store import block_id, md5, new_account, put, with_sas
from tests.fakes.scripted_http import Step, scripted

OK, UNTRIED, WARN, FAIL = CheckStatus.OK, CheckStatus.UNTRIED, CheckStatus.WARN, CheckStatus.FAIL


def cluster(*accounts: StorageAccount) -> Cluster:
    entries = [FolderEntry(f"data{number}", account, "me/data") for number, account in enumerate(accounts)]
    code = CodeEntry(accounts[0], "me/code/code.zip")
    return Cluster("aml", "aux_data/aml/aml.yaml", Path("/nowhere"), folders=tuple(entries), code=code)


def findings(*accounts: StorageAccount, now: datetime | None = None) -> list[CheckResult]:
    found = list(examine(cluster(*accounts), environ={}, find_azcopy=present, now=now))
    confined = "the kernel confines it" if Landlock().is_possible else "the kernel cannot confine it"
    assert found[-1].status is OK
    assert found[-1].detail.startswith(f"10.32.2 at /tools/azcopy (PATH); {confined}")
    return found[:-1]


def present(environ: Mapping[str, str]) -> Found:
    return Found(Path("/tools/azcopy"), (10, 32, 2), "PATH")


def by_name(found: list[CheckResult]) -> dict[str, CheckStatus]:
    """The worst status of each check."""
    order = (OK, UNTRIED, WARN, FAIL)
    return {
        name: max((each.status for each in found if each.name == name), key=order.index)
        for name in {each.name for each in found}
    }


def test_an_account_where_everything_works(azurite: Azurite) -> None:
    account = new_account(azurite)
    with connect(account, environ={}) as store:
        put(store, "me/data/a")
        found = findings(account, account)
        statuses = by_name(found)
        # Azurite does not say whether it would keep what is deleted.
        assert statuses.pop("recovery") is UNTRIED
        assert statuses == dict.fromkeys(("credential", "clock", "listing", "reading", "writing", "account"), OK)
        assert [blob.name for blob in store.list_blobs()] == ["me/data/a"]
    assert len(found) == 7


def test_an_identity_is_named_once_the_service_has_accepted_it(azurite: Azurite) -> None:
    keyed = new_account(azurite)
    bare = keyed._replace(account_key=None, blob_endpoint="https://acct.blob.core.windows.net")
    now = datetime.now(timezone.utc)

    def told(there: StorageAccount) -> CheckResult:
        found = examine_account(
            bare,
            "me/data",
            connect=lambda _: connect(there, environ={}, retry=RetryPolicy(tries=1)),
            now=now,
            environ={},
            identity=lambda: "an identity; azcopy aside",
        )
        return next(each for each in found if each.name == "credential")

    accepted = told(keyed)
    said = "an identity, an identity; azcopy aside; azcopy gets a user delegation SAS of the one container"
    assert (accepted.status, accepted.detail) == (OK, said)
    untried = told(keyed._replace(blob_endpoint="http://127.0.0.1:9/acct"))
    assert untried.status is UNTRIED and untried.detail.startswith("an identity; azcopy gets ")


def test_uploads_that_never_ended_are_reported(azurite: Azurite) -> None:
    account = new_account(azurite)
    with connect(account, environ={}) as store:
        put(store, "me/data/empty", b"")
        put(store, "me/data/a")
        for name in ("me/data/b", "me/data/deep/c", "elsewhere/d"):
            for number in range(3):
                store.put_block(name, block_id(number), b"12345")
        store.put_block("me/data/a", block_id(0), b"more")
        (told,) = [each for each in findings(account) if each.name == "leftovers"]
        assert (told.status, told.hint is not None) == (WARN, True)
        assert told.detail.startswith(
            "2 uploads began and never ended, and left 30 bytes of uncommitted blocks: me/data/b"
        )
        for name in ("me/data/b", "me/data/deep/c"):
            ids = [block_id(number) for number in range(3)]
            store.put_block_list(name, ids, size=15, md5=md5(b"12345" * 3))
        assert not [each for each in findings(account) if each.name == "leftovers"]


def test_a_sas_that_may_only_read(azurite: Azurite) -> None:
    account = new_account(azurite)
    with connect(account, environ={}) as store:
        put(store, "me/data/a")
    found = findings(with_sas(account, "rl"))
    assert by_name(found)["writing"] is WARN and by_name(found)["reading"] is OK
    said = [each.detail for each in found if each.status is WARN and each.name == "credential"]
    assert [text.partition(" needs ")[2] for text in said if " needs " in text] == [
        "w (write), has rl: no uploads",
        "d (delete), has rl: no rm, and no --mirror",
    ]


def test_a_sas_that_may_not_delete_leaves_nothing_behind(azurite: Azurite) -> None:
    account = new_account(azurite)
    found = findings(with_sas(account, "rwl"))
    assert by_name(found)["writing"] is OK
    assert "works; deleting is not allowed and was not tried" in [each.detail for each in found]
    with connect(account, environ={}) as store:
        assert list(store.list_blobs()) == []


def test_a_sas_without_the_right_to_list(azurite: Azurite) -> None:
    found = findings(with_sas(new_account(azurite), "rw"))
    assert by_name(found) == {"credential": FAIL, "clock": OK, "listing": FAIL}
    assert "needs l (list), has rw" in found[0].detail


def test_a_sas_that_ended(azurite: Azurite) -> None:
    account = with_sas(new_account(azurite), "rwdl")
    ended = account._replace(sas_token=SasToken.parse("sp=rwdl&sr=c&se=2020-01-01T00:00:00Z&sig=x"))
    (found,) = findings(ended)
    assert (found.name, found.status) == ("credential", FAIL)
    assert found.hint == "store a new one: blobsync login, or sas_token in the storage account file if that holds it"


def test_a_key_that_is_none() -> None:
    account = StorageAccount("vig.yaml", "vig", "data", "https://vig.invalid", account_key=Secret("no key"))
    (found,) = findings(account)
    assert (found.name, found.status) == ("credential", FAIL) and "base64" in found.detail


def test_a_sas_that_ends_soon_warns(azurite: Azurite) -> None:
    account = with_sas(new_account(azurite), "rwdl")
    soon = datetime.now(timezone.utc) + timedelta(minutes=40)
    assert by_name(findings(account, now=soon))["credential"] is WARN


def test_a_wrong_key_and_a_missing_container(azurite: Azurite) -> None:
    account = new_account(azurite)
    wrong = account._replace(account_key=Secret(azurite.keys["two"]))
    gone = account._replace(container_name="gone")
    for broken, says in ((wrong, "does not accept the credential"), (gone, "there is no container gone")):
        (failed,) = [each for each in findings(broken) if each.status is FAIL]
        assert failed.name == "listing" and says in failed.detail and failed.hint
        assert by_name(findings(broken))["credential"] is UNTRIED


def test_a_login_that_nobody_made_is_not_called_good(tmp_path: Path) -> None:
    """No Azure CLI on PATH, so there is nobody to ask for a token."""
    account = StorageAccount("t", "acct", "box", "https://acct.blob.core.windows.net")
    nobody = cluster(account)._replace(values={"use_cli_auth": True})
    before = os.environ["PATH"]
    os.environ["PATH"] = str(tmp_path)
    try:
        (found, _) = examine(nobody, environ={}, find_azcopy=present)
    finally:
        os.environ["PATH"] = before
    assert (found.name, found.status) == ("credential", FAIL)
    assert "no Azure identity is signed in" in found.detail
    assert found.hint and found.hint.startswith("run az login")


def test_a_host_that_is_not_there() -> None:
    account = StorageAccount("vig.yaml", "vig", "data", "https://vig.invalid", account_key=Secret("a2V5"))
    (untried, failed) = findings(account)
    assert (untried.name, untried.status) == ("credential", UNTRIED)
    assert (failed.about, failed.status, failed.detail) == (
        "vig.yaml",
        FAIL,
        "cannot resolve the host vig.invalid (3 tries)",
    )


@pytest.mark.parametrize(("minutes", "status"), [(0, OK), (5, WARN), (-70, FAIL)])
def test_the_clock_is_compared(minutes: int, status: CheckStatus) -> None:
    theirs = formatdate(time.time() - minutes * 60, usegmt=True)
    page = b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>"
    steps = [Step(200, page, {"Date": theirs}), Step(200, page), *[Step(403)] * 9]
    with scripted(steps) as script:
        account = StorageAccount("t", "acct", "box", script.url, sas_token=SasToken.parse("sp=rl&se=2099-01-01&sig=x"))
        found = list(examine(cluster(account), environ={}, connect=scripted_connect(), find_azcopy=present))
    (clock,) = [each for each in found if each.name == "clock"]
    assert clock.status is status
    if minutes:
        assert ("ahead of" if minutes > 0 else "behind") in clock.detail


def scripted_connect() -> Callable[[StorageAccount], RestBlobStore]:
    def make(account: StorageAccount) -> RestBlobStore:
        assert account.sas_token is not None
        http = BlobHttp(account.container, SasSigner(account.sas_token), environ={}, retry=RetryPolicy(1))
        return RestBlobStore(account.container, http)

    return make


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (
            AzcopyNotFoundError("azcopy was not found", hint="install it"),
            WARN,
            "every transfer uses the direct engine",
        ),
        (
            AzcopyError("the library libsecret-1.so.0 is missing", hint="install it"),
            FAIL,
            "libsecret-1.so.0 is missing",
        ),
        (AzcopyVersionError("azcopy is 9.0.0", hint="install it"), FAIL, "azcopy is 9.0.0"),
    ],
)
def test_what_is_wrong_with_azcopy(error: AzcopyError, status: CheckStatus, says: str) -> None:
    def absent(environ: Mapping[str, str]) -> Found:
        raise error

    empty = Cluster("aml", "aux_data/aml/aml.yaml", Path("/nowhere"))
    (found,) = examine(empty, environ={}, find_azcopy=absent)
    assert (found.about, found.status, found.hint) == ("azcopy", status, "install it")
    assert says in found.detail


def test_an_account_sas_is_called_too_wide(azurite: Azurite) -> None:
    account = new_account(azurite)
    wide = SasToken.parse("ss=b&srt=sco&sp=rwdl&se=2099-01-01T00:00:00Z&sig=x")
    found = findings(account._replace(account_key=None, sas_token=wide))
    assert any("opens every container of the account" in each.detail for each in found)


def test_nothing_shows_a_secret(azurite: Azurite) -> None:
    account = new_account(azurite)
    token = mint_sas(account, "rwdl", 60)
    shown = repr(findings(account) + findings(account._replace(account_key=None, sas_token=token)))
    assert azurite.keys["one"] not in shown
    assert token.reveal().rpartition("sig=")[2] not in shown
