"""Plain http to this machine never reaches a program of another user."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from blobsync.base.errors import BlobsyncError, CredentialError
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken
from blobsync.config.model import StorageAccount
from blobsync.node.job_stores import JobStores
from blobsync.store.connect import check_copy, check_host, check_listener, connect
from blobsync.store.protocol import BlobProperties, Precondition, PutOrder
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SasSigner
from blobsync.store.rest.retries import RetryPolicy
from blobsync.store.rest.store import RestBlobStore
from tests.fakes.scripted_http import Script, Step, scripted
from tests.servers.stranger import Stranger, stranger

SAS = SasToken.parse("sv=2023-11-03&sp=rwl&sr=c&se=2099-01-01T00:00:00Z&sig=SENTINEL%3D")
QUICK = RetryPolicy(tries=2, base=0.001, longest=0.002, patience=60.0)
NOWHERE = {"HOME": "/nonexistent"}


@pytest.fixture(params=["curl", "urllib3"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The next request needs a new connection.
GONE = Step(404, headers={"Connection": "close"})


def port_of(script: Script) -> int:
    return urlsplit(script.url).port or 0


def box(port: int, host: str = "127.0.0.1") -> BlobContainer:
    return BlobContainer("acct", "box", f"http://{host}:{port}/acct")


def account(port: int, *, outside: bool) -> StorageAccount:
    return StorageAccount(
        file="aux_data/configs/a.yaml",
        account_name="acct",
        container_name="box",
        blob_endpoint=f"http://127.0.0.1:{port}/acct",
        sas_token=SAS,
        from_outside=frozenset({"sas"} if outside else ()),
    )


def ask(port: int, transport: str, host: str = "127.0.0.1", **environ: str) -> int:
    http = BlobHttp(box(port, host), SasSigner(SAS), environ={"BLOBSYNC_TRANSPORT": transport, **environ}, retry=QUICK)
    with closing(http):
        return http.send("GET", "/acct/box/a", {}, {}).status


def demand_refused(error: BlobsyncError, other: Stranger, host: str = "127.0.0.1") -> None:
    assert f"a program of another user of this machine listens at {host}:{other.port}" in error.message
    assert "BLOBSYNC_TRUSTED_HOSTS=" in (error.hint or "")
    assert other.received == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_server_of_another_user_gets_no_byte_unless_trusted(tmp_path: Path, transport: str, host: str) -> None:
    with stranger(tmp_path) as other:
        with pytest.raises(CredentialError) as refused:
            ask(other.port, transport, host)
        demand_refused(refused.value, other, host)
        assert ask(other.port, transport, host, BLOBSYNC_TRUSTED_HOSTS=host) == 404
        assert b"sig=SENTINEL" in other.received


def test_none_of_many_requests_reaches_a_server_of_another_user(tmp_path: Path) -> None:
    with stranger(tmp_path) as other:
        http = BlobHttp(box(other.port), SasSigner(SAS), environ={"BLOBSYNC_TRANSPORT": "curl"}, retry=QUICK)
        store = RestBlobStore(box(other.port), http)
        orders = store.orders()
        if orders is None:
            pytest.skip("pycurl is not installed")
        with closing(http), closing(orders):
            for number in range(5):
                orders.begin(number, PutOrder(f"f{number}", b"private", b"0" * 16, BlobProperties(), Precondition()))
            ended: list[object] = []
            while orders.under_way:
                ended += [end for _, end in orders.ended(1)]
        assert [type(end) for end in ended] == [CredentialError] * 5
        assert other.received == b""


def test_the_owner_of_the_server_is_checked_for_each_new_connection(tmp_path: Path, transport: str) -> None:
    """The user's own program ends, and another user's takes its port."""
    with scripted([GONE]) as script:
        port = port_of(script)
        http = BlobHttp(box(port), SasSigner(SAS), environ={"BLOBSYNC_TRANSPORT": transport}, retry=QUICK)
        assert http.send("GET", "/acct/box/a", {}, {}).status == 404
    with closing(http):
        with stranger(tmp_path, port=port) as other:
            with pytest.raises(CredentialError) as refused:
                http.send("GET", "/acct/box/a", {}, {})
            demand_refused(refused.value, other)


@pytest.mark.parametrize("outside", [True, False])
def test_the_store_of_a_project_refuses_a_server_of_another_user(
    tmp_path: Path, transport: str, *, outside: bool
) -> None:
    environ = {**NOWHERE, "BLOBSYNC_TRANSPORT": transport}
    with stranger(tmp_path) as other:
        with (
            pytest.raises(CredentialError) as refused,
            connect(account(other.port, outside=outside), environ=environ) as store,
        ):
            store.head("a")
        demand_refused(refused.value, other)


def test_a_credential_from_outside_is_sent_only_if_the_owner_of_the_server_is_known(transport: str) -> None:
    """No listener is found, as on systems without the table, or with a port forwarded by a rule."""
    with scripted([GONE] * 2) as script:
        port = port_of(script)
        for outside in (True, False):
            with connect(account(port, outside=outside), environ={**NOWHERE, "BLOBSYNC_TRANSPORT": transport}) as store:
                assert store.head("a") is None
    # Nothing listens: the connection fails, and no other program gets a SAS meanwhile.
    check_host(account(port, outside=True), "sas", NOWHERE)
    check_listener(account(port, outside=False), NOWHERE)
    with pytest.raises(CredentialError, match="nothing says whose program listens"):
        check_listener(account(port, outside=True), NOWHERE)
    check_listener(account(port, outside=True), {**NOWHERE, "BLOBSYNC_TRUSTED_HOSTS": "127.0.0.1"})


def test_other_programs_get_no_sas_for_a_server_of_another_user(tmp_path: Path) -> None:
    with stranger(tmp_path) as other:
        for outside in (True, False):
            with pytest.raises(CredentialError) as refused:
                check_listener(account(other.port, outside=outside), NOWHERE)
            demand_refused(refused.value, other)
        with pytest.raises(CredentialError, match="a secret from outside the project is not sent there"):
            check_host(account(other.port, outside=True), "sas", NOWHERE)
        source = StorageAccount("b.yaml", "acct", "box", "https://acct.blob.core.windows.net")
        with pytest.raises(CredentialError, match="another user"):
            check_copy(source, account(other.port, outside=False), NOWHERE)


def test_a_job_sends_no_sas_to_a_server_of_another_user(tmp_path: Path) -> None:
    with stranger(tmp_path) as other:
        url = str(box(other.port))
        places = JobStores({url: SAS.reveal()}, {})
        with pytest.raises(CredentialError) as refused:
            places.container(url).head("a")
        demand_refused(refused.value, other)
