"""The sealed orders of nodes, and their key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.aml.job_secrets import node_secrets, with_seal_keys
from blobsync.base.errors import LocalFileError
from blobsync.base.redaction import Secret
from blobsync.base.seals import SealKey
from blobsync.jobspec.node_secrets import own_spread_key, run_key, with_job_keys
from blobsync.jobspec.spec import SPREAD_KEY, Secrets
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.job_stores import JobStores
from blobsync.node.ranks import NotReadyError
from blobsync.node.spread import run_spread
from blobsync.spread.shared_store import orders_seal
from tests.fakes.jobs import make_spec

_KEY = SealKey(bytes(range(32)))


def _orders(tmp_path: Path) -> dict[str, Any]:
    orders: dict[str, Any] = {
        "container": "",
        "base": str(tmp_path / "base"),
        "place": str(tmp_path / "base" / "runs" / "one"),
        "claim": str(tmp_path / "base"),
        "run": "one",
        "count": 3,
        "workers": 1,
        "cap_mbps": None,
        "compare_content": False,
        "detach": False,
        "ends": [],
        "rights": {},
        "state": "",
    }
    orders["seal"] = orders_seal(_KEY, orders)
    return orders


def _run(tmp_path: Path, orders: Mapping[str, Any], key: str = _KEY.secret.hex(), **environ: str) -> int:
    words = parse_arguments(
        ["spread", "--job", "/j", "--run-dir", str(tmp_path / "run"), "--root", str(tmp_path / "r")]
    )
    secrets = {SPREAD_KEY: Secret(key)} if key else {}
    job = NodeJob(make_spec(options={"spread": dict(orders)}), secrets, words, environ, 0)
    return run_spread(job, JobStores({}, {}))


@pytest.mark.parametrize(
    "change",
    [
        {"place": "/elsewhere"},
        {
            "ends": [
                {"source": {"root": "/", "boundary": ["/"]}, "destination": {"container": "https://x/y", "name": ""}}
            ]
        },
        {"container": "https://account.blob.core.windows.net/theirs"},
        {"seal": "0" * 64},
        {"run": "two"},
    ],
)
def test_a_node_refuses_orders_that_are_not_those_of_the_job(tmp_path: Path, change: Mapping[str, Any]) -> None:
    with pytest.raises(NotReadyError, match="not those that it was submitted with"):
        _run(tmp_path, {**_orders(tmp_path), **change})
    # On Azure ML the key is in the environment.
    with pytest.raises(NotReadyError, match="not those that it was submitted with"):
        _run(tmp_path, {**_orders(tmp_path), **change}, "", **{SPREAD_KEY: _KEY.secret.hex()})


def test_a_job_of_an_older_version_is_refused(tmp_path: Path) -> None:
    orders = _orders(tmp_path)
    with pytest.raises(NotReadyError, match="another version of blobsync submitted it"):
        _run(tmp_path, orders, "")
    older = {name: value for name, value in orders.items() if name not in ("count", "base", "place")}
    with pytest.raises(NotReadyError, match="another version of blobsync submitted it"):
        _run(tmp_path, older)
    with pytest.raises(NotReadyError, match="the key of the transfer is none"):
        _run(tmp_path, orders, "00")


def test_the_key_of_a_transfer_is_made_from_the_users_own(tmp_path: Path) -> None:
    one, other = {"HOME": str(tmp_path / "one")}, {"HOME": str(tmp_path / "other")}
    assert run_key(one, "a").secret == run_key(one, "a").secret == own_spread_key(one).derive("run", "a").secret
    assert len({run_key(one, "a").secret, run_key(one, "b").secret, run_key(other, "a").secret}) == 3
    spec = make_spec(options={"spread": {"run": "a"}})
    assert with_job_keys(spec, Secrets(env={"A": "b"}), one, str).env == {
        "A": "b",
        SPREAD_KEY: run_key(one, "a").secret.hex(),
    }
    # Other jobs get no key.
    assert with_job_keys(make_spec(), Secrets(), one, str) == Secrets()


def test_a_key_that_others_know_is_not_used(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    own_spread_key(environ)
    (tmp_path / ".config" / "blobsync" / "state.key").chmod(0o644)
    with pytest.raises(LocalFileError, match="other users can read it"):
        own_spread_key(environ)


def test_on_azure_ml_the_key_is_in_the_definition_and_not_in_the_container(tmp_path: Path) -> None:
    key = _KEY.secret.hex()
    secrets = Secrets({"https://a/c": "sig=x"}, {SPREAD_KEY: key, "MY_TOKEN": "mine"})
    spec = make_spec(options={"spread": {"run": "a", "rights": {"https://a/c": "rl"}}})
    assert node_secrets(spec, secrets) == Secrets({"https://a/c": "sig=x"}, {"MY_TOKEN": "mine"})
    body = {"properties": {"command": "python -c x", "environmentVariables": {"A": "b"}}}
    sent = with_seal_keys(body, secrets)
    assert sent["properties"]["environmentVariables"] == {"A": "b", SPREAD_KEY: key}
    assert sent["properties"]["command"] == "python -c x" and key not in json.dumps(body)
    assert with_seal_keys(body, Secrets()) is body
