"""What a Kubernetes server refuses although its schemas let it pass: the stand-in refuses it in the same words."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest

from tests.contract.test_kube_cluster import job
from tests.servers.kube import rules
from tests.servers.kube.defaults import prepare
from tests.servers.kube.errors import Refused
from tests.servers.kube.fields import checked
from tests.servers.kube.resources import of_kind

Change = Callable[[dict[str, Any]], None]
_VERSIONS = ("1.31", "1.36")
_POLICY = {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [72]}}]}


def a_job(**spec: Any) -> dict[str, Any]:
    return job("run-1", "true", size=2, **spec)


def refusal(obj: dict[str, Any]) -> str:
    """What the server says to the manifest; empty if it takes it."""
    own = copy.deepcopy(obj)
    resource = of_kind(own["kind"])
    try:
        checked(own, resource, "Strict")
        prepare(own)
        rules.check(own, resource)
    except Refused as refused:
        return str(refused)
    return ""


def _in_pod(**fields: Any) -> Change:
    return lambda obj: obj["spec"]["template"]["spec"].update(fields)


def _in_main(**fields: Any) -> Change:
    return lambda obj: obj["spec"]["template"]["spec"]["containers"][0].update(fields)


def _in_spec(**fields: Any) -> Change:
    return lambda obj: obj["spec"].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_in_spec(backoffLimitPerIndex=3, maxFailedIndexes=5), "spec.maxFailedIndexes: Invalid value: 5: must be less"),
        (_in_spec(maxFailedIndexes=1), "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified"),
        (_in_spec(podFailurePolicy=_POLICY), 'rules[0].action: Invalid value: "FailIndex": requires the backoffLimit'),
        (
            _in_spec(podFailurePolicy={"rules": [{"action": "Ignore"}]}),
            "rules[0]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required",
        ),
        (_in_spec(completionMode="NonIndexed", backoffLimitPerIndex=1), "1: requires indexed completion mode"),
        (_in_spec(backoffLimit=-1), "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"),
        (_in_pod(restartPolicy="Always"), 'restartPolicy: Required value: valid values: "OnFailure", "Never"'),
        (_in_pod(subdomain="run_1"), 'subdomain: Invalid value: "run_1": a lowercase RFC 1123 label'),
        (_in_main(resources={"limits": {"nvidia.com/gpu": "0.5"}}), '"500m": must be an integer'),
        (_in_main(volumeMounts=[{"name": "gone", "mountPath": "/x"}]), 'volumeMounts[0].name: Not found: "gone"'),
        (lambda obj: obj["metadata"].update(name="run_1"), "a lowercase RFC 1123 subdomain must consist"),
        (
            lambda obj: obj["metadata"].update(name="r" * 62),
            f"will not able to create pod with invalid DNS label: {'r' * 62}-1",
        ),
        (
            lambda obj: obj["metadata"].update(labels={"a": "b c"}),
            'metadata.labels: Invalid value: "b c": a valid label',
        ),
    ],
)
def test_what_schemas_let_pass_is_refused(change: Change, said: str) -> None:
    obj = a_job()
    assert not refusal(obj)
    change(obj)
    for version in _VERSIONS:
        kubernetes_validate.validate(obj, version, strict=True)
    assert said in refusal(obj)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_in_spec(podReplacementPolicyX="Failed"), 'strict decoding error: unknown field "spec.podReplacementPolicyX"'),
        (_in_main(imagePolicy="x"), 'unknown field "spec.template.spec.containers[0].imagePolicy"'),
        (
            _in_spec(parallelism="2"),
            "json: cannot unmarshal string into Go struct field Job.spec.parallelism of type int32",
        ),
    ],
)
def test_what_schemas_refuse_is_refused(change: Change, said: str) -> None:
    obj = a_job()
    change(obj)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(obj, _VERSIONS[-1], strict=True)
    assert said in refusal(obj)


def test_unknown_fields_are_dropped_with_a_warning() -> None:
    obj = {**a_job(), "specs": {}}
    assert checked(obj, of_kind("Job"), "Warn") == ['unknown field "specs"']
    assert "specs" not in obj
    assert checked({**a_job(), "specs": {}}, of_kind("Job"), "Ignore") == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _in_spec(completions=3),
            "spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism",
        ),
        (_in_spec(completions=3, parallelism=3), ""),
        (_in_spec(parallelism=1), ""),
        (_in_spec(suspend=True, ttlSecondsAfterFinished=9), ""),
        (_in_spec(backoffLimitPerIndex=1), "spec.backoffLimitPerIndex: Invalid value: 1: field is immutable"),
        (_in_pod(nodeSelector={"a": "b"}), "spec.template: Invalid value: {"),
    ],
)
def test_what_can_change_of_a_job_that_has_started(change: Change, said: str) -> None:
    old = a_job()
    prepare(old)
    old["status"] = {"startTime": "2026-01-01T00:00:00Z"}
    new = copy.deepcopy(old)
    change(new)
    if not said:
        rules.check_update(old, new, of_kind("Job"))
        return
    with pytest.raises(Refused, match="is invalid") as refused:
        rules.check_update(old, new, of_kind("Job"))
    assert said in str(refused.value)


def test_where_pods_may_run_can_change_until_the_job_starts() -> None:
    old = a_job(suspend=True)
    prepare(old)
    new = copy.deepcopy(old)
    _in_pod(nodeSelector={"a": "b"})(new)
    rules.check_update(old, new, of_kind("Job"))
    _in_main(command=["true"])(new)
    with pytest.raises(Refused, match="field is immutable"):
        rules.check_update(old, new, of_kind("Job"))
