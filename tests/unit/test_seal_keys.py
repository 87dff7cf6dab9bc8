"""The keys of checkpoints' marks: the user's own, one for each lineage, on their way to a job's nodes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.backends.aml.job_secrets import node_secrets, with_seal_keys
from blobsync.backends.kubernetes.request import SECRETS_KEY, with_own_keys
from blobsync.base.errors import LocalFileError
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.node_secrets import own_lineage_keys, with_job_keys
from blobsync.jobspec.spec import LINEAGE_KEYS, FolderLink, JobSpec, Secrets
from tests.fakes.jobs import make_spec


def spec_of(rule: CheckpointRule, **changes: object) -> JobSpec:
    folder = FolderLink("output", "https://a/c", "out", "upload", checkpoints=rule)
    return make_spec("true", folders=(folder,), **changes)


def test_a_lineage_has_a_key_of_its_own_for_each_user_and_its_tasks_the_same(tmp_path: Path) -> None:
    one, other = (own_lineage_keys({"HOME": str(tmp_path / name)}) for name in ("one", "other"))
    same = one("a"), own_lineage_keys({"HOME": str(tmp_path / "one")})("a"), one("a_task_3")
    assert len({key.secret for key in same}) == 1
    assert len({key.secret for key in (one("a"), one("b"), other("a"), one("a_task_"), one("a_task_3x"))}) == 5
    (tmp_path / "one/.config/blobsync/state.key").chmod(0o644)
    with pytest.raises(LocalFileError, match=r"checkpoints: .*other users can"):
        own_lineage_keys({"HOME": str(tmp_path / "one")})


def test_a_job_gets_the_keys_of_its_lineage_and_of_those_that_it_may_start_from(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path)}
    keys = own_lineage_keys(environ)
    rule = CheckpointRule("checkpoint-*", restore_from="b")
    spec = spec_of(rule, options={"lineage": "a"})
    sent = with_job_keys(spec, Secrets(env={"A": "b"}), environ, {"b": "first"}.__getitem__).env
    assert sent["A"] == "b"
    assert json.loads(sent[LINEAGE_KEYS]) == {name: keys(name).secret.hex() for name in ("a", "first")}
    assert with_job_keys(make_spec("true"), Secrets(), environ, str) == Secrets()
    # No job reads what it does not need.
    assert Secrets(env=sent).asked_for(spec).env == {LINEAGE_KEYS: sent[LINEAGE_KEYS]}
    assert Secrets(env=sent).asked_for(make_spec("true")).env == {}
    assert sent[LINEAGE_KEYS] not in replace(spec, secret_env=()).to_json()


def test_on_azure_ml_the_keys_are_in_the_definition_and_not_in_the_container() -> None:
    secrets = Secrets({"https://a/c": "sig=x"}, {LINEAGE_KEYS: "{}", "MY_TOKEN": "mine"})
    spec = spec_of(CheckpointRule("checkpoint-*"))
    assert node_secrets(spec, secrets).env == {"MY_TOKEN": "mine"}
    body = {"properties": {"command": "python -c x"}}
    assert with_seal_keys(body, secrets)["properties"] == {
        "command": "python -c x",
        "environmentVariables": {LINEAGE_KEYS: "{}"},
    }


def test_who_renews_the_sas_of_a_job_in_kubernetes_leaves_it_the_keys_of_who_submitted_it() -> None:
    had = Secrets({"https://a/c": "old"}, {LINEAGE_KEYS: "theirs", "MY_TOKEN": "old"})
    there = {"data": {SECRETS_KEY: base64.b64encode(had.to_json().encode()).decode()}}
    new = Secrets({"https://a/c": "new"}, {"MY_TOKEN": "new"})
    assert with_own_keys(there, new) == replace(new, env={"MY_TOKEN": "new", LINEAGE_KEYS: "theirs"})
    assert with_own_keys({}, new) == with_own_keys({"data": {SECRETS_KEY: "!"}}, new) == new
