"""``doctor``'s checks of a cluster, by the cluster's answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.backends.kubernetes.kubectl import find_kubectl
from blobsync.base.check_results import CheckResult, CheckStatus
from blobsync.base.errors import ProcessError
from blobsync.base.process import Completed
from blobsync.config.loader import load_cluster
from blobsync.jobs.preflight import examine_jobs
from tests.fakes.aml_configs import ENTRY
from tests.fakes.kubernetes import WITH_KUBECTL
from tests.fakes.runner import Call, ScriptedRunner
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

OK, UNTRIED, WARN, FAIL = CheckStatus.OK, CheckStatus.UNTRIED, CheckStatus.WARN, CheckStatus.FAIL
CODE = {"code_path": {**ENTRY, "path": "me/code.zip"}}
DOWNLOADS = {**CODE, "data_folder": {**ENTRY, "path": "d", "mode": "download"}}
SERVER = {"clientVersion": {"minor": "37"}, "serverVersion": {"minor": "36"}}


class Answers:
    """A fake kubectl with changed answers; ``denied`` are the missing rights."""

    def __init__(self) -> None:
        self.version: Mapping[str, Any] = SERVER
        self.denied: set[str] = set()
        self.errors: dict[str, str] = {}
        self.objects: dict[str, Mapping[str, Any]] = {}

    def __call__(self, call: Call) -> Completed:
        words = [word for word in call.argv[1:] if not word.startswith(("--context", "--request-timeout"))]
        said = " ".join(words)
        for part, error in self.errors.items():
            if part in said:
                return Completed(1, "", error)
        if words[:2] == ["config", "current-context"]:
            return Completed(0, "mine\n", "")
        if words[0] == "config":
            return Completed(0, "train", "")
        if words[0] == "version":
            return Completed(0, json.dumps(self.version), "")
        if words[0] == "create":
            asked = json.loads(call.input or "")["spec"]["resourceAttributes"]
            right = f"{asked['verb']} {asked['resource']}"
            return Completed(0, json.dumps({"status": {"allowed": right not in self.denied}}), "")
        empty: Mapping[str, Any] = {"items": []}
        found = next((each for path, each in self.objects.items() if path in said), empty)
        return Completed(0, json.dumps(found), "")


def examined(
    root: Path, answers: Callable[[Call], Completed], environ: Mapping[str, str] = WITH_KUBECTL, **changes: Any
) -> list[CheckResult]:
    settings = {"image": "i", "namespace": "train", **changes.pop("kubernetes", {})}
    values = {"platform": "kubernetes", "kubernetes": settings, "config_param": DOWNLOADS, **changes}
    ProjectFiles(root).cluster(yaml.safe_dump(values))
    cluster = load_cluster(root, environ=NO_ENVIRON)
    return list(examine_jobs(cluster, environ, ScriptedRunner(answers)))


def shown(found: list[CheckResult]) -> dict[str, tuple[CheckStatus, str]]:
    assert {each.about for each in found} == {"aux_data/aml/aml.yaml"}
    return {each.name: (each.status, each.detail) for each in found}


def test_a_cluster_that_would_take_a_job(tmp_path: Path) -> None:
    found = shown(examined(tmp_path, Answers()))
    assert found == {
        "kubectl": (OK, f"{find_kubectl(WITH_KUBECTL)}, context mine, namespace train"),
        "server": (OK, "reachable, and its version is supported"),
        "namespace": (OK, "train is there"),
        "rights": (OK, "you have the 16 rights that a job needs"),
        "cluster": (OK, "kubernetes answers: 0 nodes, 0 GPUs, 0 jobs running, 0 waiting"),
    }


def test_a_machine_without_kubectl_says_how_to_get_it(tmp_path: Path) -> None:
    def none(call: Call) -> Completed:
        raise ProcessError("cannot start kubectl")

    (found,) = examined(tmp_path, none)
    assert (found.name, found.status, found.detail) == ("kubectl", FAIL, "cannot start kubectl")
    assert found.hint and "pip install 'blobsync[kubernetes]'" in found.hint


@pytest.mark.parametrize(
    ("part", "error", "name", "says", "hint"),
    [
        (
            "config current-context",
            "error: current-context is not set",
            "kubectl",
            "no current context",
            "get-contexts",
        ),
        ("version", "Unable to connect to the server: x509: unknown", "server", "cannot be reached", "get-contexts"),
        (
            "/api/v1/namespaces/train",
            'Error from server (NotFound): namespaces "train" not found',
            "namespace",
            "train is not there",
            "kubectl create namespace train",
        ),
    ],
)
def test_what_is_missing_ends_the_questions(
    tmp_path: Path, part: str, error: str, name: str, says: str, hint: str
) -> None:
    answers = Answers()
    answers.errors[part] = error
    found = examined(tmp_path, answers)
    assert [each.name for each in found if each.status is not OK] == [name] == [found[-1].name]
    assert found[-1].status is FAIL and says in found[-1].detail and hint in (found[-1].hint or "")


def test_a_server_that_is_too_old_and_one_that_nobody_tried(tmp_path: Path) -> None:
    answers = Answers()
    answers.version = {"clientVersion": {"minor": "37"}, "serverVersion": {"minor": "30"}}
    status, detail = shown(examined(tmp_path / "old", answers))["server"]
    assert status is FAIL and "runs Kubernetes 1.30" in detail
    answers.version = {"clientVersion": {"minor": "37"}, "serverVersion": {"minor": "99"}}
    status, detail = shown(examined(tmp_path / "new", answers))["server"]
    assert status is WARN and "the cluster is version 1.99" in detail


def test_each_right_that_is_missing_is_named_with_the_command_that_shows_it(tmp_path: Path) -> None:
    answers = Answers()
    answers.denied = {"create secrets", "list events"}
    found = examined(tmp_path, answers)
    (rights,) = [each for each in found if each.name == "rights"]
    assert (rights.status, rights.detail) == (FAIL, "you may not create secrets, list events")
    assert rights.hint and "kubectl auth can-i --list -n train" in rights.hint
    assert "cluster" not in shown(found)


def test_rights_for_volumes_are_asked_for_where_folders_are_mounted(tmp_path: Path) -> None:
    answers = Answers()
    answers.denied = {"create persistentvolumes"}
    assert shown(examined(tmp_path / "a", answers))["rights"][0] is OK
    answers.errors["csidrivers/blob.csi.azure.com"] = "Error from server (NotFound): the server could not find it"
    mounted = {**CODE, "data_folder": {**ENTRY, "path": "d", "mode": "mount"}}
    found = shown(examined(tmp_path / "b", answers, config_param=mounted))
    assert found["rights"] == (FAIL, "you may not create persistentvolumes")
    assert found["mounts"] == (FAIL, "the driver blob.csi.azure.com is not there")


def test_what_may_not_be_looked_at_is_not_called_good(tmp_path: Path) -> None:
    answers = Answers()
    forbidden = 'Error from server (Forbidden): it is forbidden: User "u" cannot get it'
    answers.errors = {"namespaces/train/serviceaccounts": forbidden, "selfsubjectaccessreviews": forbidden}
    answers.errors["/api/v1/nodes"] = forbidden
    found = shown(examined(tmp_path, answers, kubernetes={"service_account": "trainer"}))
    assert [found[name][0] for name in ("service account", "rights", "cluster")] == [UNTRIED] * 3


def test_what_the_file_names_in_the_cluster_has_to_be_there(tmp_path: Path) -> None:
    names = {"service_account": "trainer", "pull_secret": "login", "priority_class": "low", "queue": "gpus"}
    answers = Answers()
    answers.objects["/apis/kueue.x-k8s.io"] = {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}}
    found = shown(examined(tmp_path / "there", answers, kubernetes=names))
    assert [found[name][0] for name in ("service account", "pull secret", "priority class", "queue")] == [OK] * 4
    gone = "Error from server (NotFound): not found"
    answers.errors = {f"/{name}": gone for name in names.values()}
    found = shown(examined(tmp_path / "gone", answers, kubernetes=names))
    assert found["queue"] == (FAIL, "the namespace train has no queue gpus, so the job would wait forever")
    assert found["priority class"][0] is FAIL
    answers.errors = {"/apis/kueue.x-k8s.io": gone}
    assert shown(examined(tmp_path / "no-kueue", answers, kubernetes=names))["queue"] == (
        FAIL,
        "the cluster has no Kueue, so a job in queue gpus would wait forever",
    )


def test_what_submit_would_refuse_is_reported_and_the_cluster_is_asked_all_the_same(tmp_path: Path) -> None:
    found = examined(tmp_path, Answers(), config_param={})
    assert (found[0].name, found[0].status) == ("submit", WARN) and "where the code is" in found[0].detail
    assert shown(found)["rights"] == (UNTRIED, "not checked: first fix what submit refuses")


def test_a_file_without_a_platform_is_for_transfers_alone(tmp_path: Path) -> None:
    ProjectFiles(tmp_path).cluster("config_param: {}\n")
    assert list(examine_jobs(load_cluster(tmp_path, environ=NO_ENVIRON), NO_ENVIRON, ScriptedRunner())) == []


def test_a_slurm_that_does_not_answer_is_reported(tmp_path: Path) -> None:
    def absent(call: Call) -> Completed:
        raise ProcessError("sinfo was not found")

    ProjectFiles(tmp_path).cluster(yaml.safe_dump({"platform": "slurm", "config_param": DOWNLOADS}))
    cluster = load_cluster(tmp_path, environ=NO_ENVIRON)
    (found,) = examine_jobs(cluster, NO_ENVIRON, ScriptedRunner(absent))
    assert (found.name, found.status) == ("cluster", FAIL) and "sinfo" in found.detail


def test_this_machine_answers(tmp_path: Path) -> None:
    ProjectFiles(tmp_path).cluster("platform: local\nlocal: {gpus: 2}\n")
    cluster = load_cluster(tmp_path, environ=NO_ENVIRON)
    (found,) = examine_jobs(cluster, {"HOME": str(tmp_path)}, ScriptedRunner())
    assert (found.status, found.detail) == (OK, "local answers: 1 node, 2 GPUs, 0 jobs running, 0 waiting")
