"""A worker's private orders, and that no shard can change its destination."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from blobsync.base.errors import LoginRequiredError, SasExpiredError
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.plain_json import parse_object
from blobsync.base.plan_reasons import Reason
from blobsync.base.redaction import SasToken, Secret
from blobsync.local.state_dir import StateDir
from blobsync.plan.transfer_plan import Action, FileAction, Route
from blobsync.spread.file_json import FormatError
from blobsync.spread.orders import (
    Handed,
    RemoteOrders,
    WorkerOrders,
    handed_line,
    orders_line,
    read_handed,
    read_orders,
    remote_orders,
    signer_of,
    transport_environment,
)
from blobsync.spread.shard import Shard
from blobsync.spread.worker_pipe import worker_environment
from blobsync.spread.worker_process import Incoming, Outgoing, Worker
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, SharedKeySigner, Signer

_BOX = BlobContainer("acct", "box", "http://127.0.0.1:9/acct")
_KEY = Secret("c2VudGluZWxzZW50aW5lbHNlbnRpbmVs")
_SAS = SasToken.parse("sv=1&se=2099-01-01&sig=c2VudGluZWw%3D")


def _no_token() -> tuple[Secret, float]:
    raise LoginRequiredError("nobody is signed in", hint="az login")


_SIGNERS: tuple[Signer, ...] = (SharedKeySigner("acct", _KEY), SasSigner(_SAS), BearerSigner(_no_token))


def _orders(root: Path, signer: Signer) -> WorkerOrders:
    ends = LocalLocation(root, (root.parent,)), remote_orders(_BOX.child("sets/data"), signer)
    return WorkerOrders(*ends, 2, 40.0, {"HTTPS_PROXY": "http://me:password@proxy:1"}, StateDir(root / "state"))


@pytest.mark.parametrize("signer", _SIGNERS, ids=lambda signer: type(signer).__name__)
def test_orders_are_the_same_after_their_line_and_sign_the_same_way(signer: Signer, tmp_path: Path) -> None:
    orders = _orders(tmp_path, signer)
    read = read_orders(orders_line(orders))
    assert read == orders
    assert type(signer_of(remote_orders(_BOX.child(""), signer), _no_token)) is type(signer)
    for secret in (_KEY.reveal(), "c2VudGluZWw", "password"):
        assert secret not in repr(read)


def test_orders_without_a_folder_for_state_have_none(tmp_path: Path) -> None:
    orders = dataclasses.replace(_orders(tmp_path, _SIGNERS[0]), state=None)
    assert read_orders(orders_line(orders)) == orders


def test_orders_of_another_version_are_refused(tmp_path: Path) -> None:
    values = json.loads(orders_line(_orders(tmp_path, _SIGNERS[0])))
    assert values["blobsync_orders"] == 2
    for version in (0, 1, None):
        with pytest.raises(ValueError, match="not orders of version 2"):
            read_orders(json.dumps({**values, "blobsync_orders": version}))


@pytest.mark.parametrize("credential", ["key", "sas"])
def test_orders_that_need_a_secret_and_have_none_are_refused(credential: str) -> None:
    with pytest.raises(ValueError, match="orders without a secret"):
        signer_of(RemoteOrders(_BOX.child("sets"), credential), _no_token)


def test_orders_are_immutable(tmp_path: Path) -> None:
    orders = read_orders(orders_line(_orders(tmp_path, _SIGNERS[0])))
    handed = read_handed(parse_object(handed_line(Handed(Secret("token-1")))))
    assert handed.ends == 0, "nobody knows when"
    source, destination = orders.source, orders.destination
    for value, name in ((orders, "environ"), (source, "path"), (destination, "location"), (handed, "ends")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, None)
        assert not hasattr(value, "__dict__")


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"blobsync_orders": 1}', '{"blobsync_orders": 2}'])
def test_invalid_orders_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"JSON|object|orders|Expecting|missing"):
        read_orders(line)


@pytest.mark.parametrize(
    ("source", "destination"),
    [("/etc", f"{_BOX}/sets/data"), ("ROOT", f"{_BOX}/sets/other"), ("ROOT", "/p/data")],
)
def test_a_shard_between_other_ends_is_refused(source: str, destination: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    said: list[bytes] = []
    incoming, outgoing = Incoming(iter(()), lambda: None), Outgoing(said.append)
    worker = Worker(_orders(tmp_path, _SIGNERS[0]), incoming, outgoing)
    action = FileAction("a", Action.TRANSFER, Reason.NEW, 1)
    shard = Shard(0, Route.UPLOAD, "data", source.replace("ROOT", str(tmp_path)), destination, (action,))
    with pytest.raises(FormatError, match="other ends"):
        worker.carry(shard)
    outgoing.flush()
    assert said == []


def test_a_credential_or_its_refusal_arrives() -> None:
    for handed in (Handed(Secret("token-1"), 5.0), Handed()):
        assert read_handed(parse_object(handed_line(handed))) == handed
    read = read_handed(parse_object(handed_line(Handed(problem=SasExpiredError("it ended", hint="ask")))))
    assert read.problem is not None
    assert (read.problem.code, read.problem.message, read.problem.hint) == ("sas_expired", "it ended", "ask")


def test_a_worker_gets_of_the_environment_what_python_and_its_transport_need() -> None:
    given = {"PATH": "/bin", "PYTHONPATH": "/x", "LC_ALL": "C", "BLOBSYNC_KEY": "k", "AZURE_CLIENT_SECRET": "s"}
    proxies = {"https_proxy": "http://me:password@proxy:1", "NO_PROXY": "a", "SSL_CERT_FILE": "/c"}
    assert worker_environment({**given, **proxies}) == {"PATH": "/bin", "PYTHONPATH": "/x", "LC_ALL": "C"}
    assert transport_environment({**given, **proxies}) == proxies
