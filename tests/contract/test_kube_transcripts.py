"""The stand-in for Kubernetes answers as a real API server, Job controller and scheduler did.

``tests/data/kubernetes`` has what kubectl asked a server of version 1.36 and what it answered. Each request is sent
again, in order; what the real one answered, this one must answer, and each state that a watch of the real one
showed must come in the same order. What differs is named in ``KNOWN``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.kube_replay import WorkerPipe, polled, recording, reduced, stories, told
from tests.servers.kube.cluster import KubeCluster, missing_for_kubernetes

pytestmark = pytest.mark.kubernetes
Line = dict[str, Any]
_PATIENCE = 60.0

# The recorder's node wrote an evicted pod's conditions anew, and so lost the one by which the Job knows that the pod
# is not to blame: there it counted. A kubelet keeps the conditions of others.
KNOWN = "04-elastic-scale-evict"
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
_COUNTS = ("active", "ready", "terminating", "succeeded", "failed", "completedIndexes", "uncountedTerminatedPods")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """One node with eight GPUs, as where it was recorded; ten seconds are two."""
    if missing := missing_for_kubernetes():
        pytest.skip(missing)
    with KubeCluster(tmp_path_factory.mktemp("kube"), scale=0.2, nodes=[{"name": "n1"}]) as started:
        yield started


class Scene:
    """One recording on its way; ``seen`` is every state that Jobs and pods have had since it began."""

    def __init__(self, cluster: KubeCluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.talk = WorkerPipe(cluster, Path())
        self.own = WorkerPipe(cluster, Path())
        for path in ("/apis/batch/v1/namespaces/default/jobs", "/api/v1/namespaces/default/pods"):
            self.own.watch({"method": "GET", "path": f"{path}?watch=true"})

    def play(self) -> None:
        try:
            for number, line in enumerate(recording(self.name)):
                self._step(line, f"request {number + 1}, {line['method']} {line['path']}")
            self._compare_watches()
        finally:
            self.talk.close()
            self.own.close()

    def _step(self, line: Line, what: str) -> None:
        if "events" in line:
            self.talk.watch(line)
            return
        expected = self._expected(line.get("reply"))
        for _ in polled(_PATIENCE):
            status, reply = self.talk.send(line)
            if line["method"] != "GET" or (status == line["status"] and self._has(expected, reply)):
                break
        assert status == line["status"], f"{what}: {reply}"
        if line["method"] != "GET" or not self._has(expected, reply):
            assert not differences(reduced(reply), expected), what
        self.talk.learn(line, reply)
        if self.name == KNOWN and "resourceVersion=0" in line["path"]:
            # What the recorder did after it: it let the programs end. The end of index 0 ends the Job.
            for index in (1, 0):
                name = self.cluster.running("el", index)
                self.cluster.kubectl("exec", name, "--", "touch", "el.done")
                for _ in polled(_PATIENCE):
                    pod = self.cluster.pod("el", index)
                    if pod is None or pod["status"]["phase"] != "Running":
                        break

    def _has(self, expected: Any, reply: Any) -> bool:
        """Whether this is what was answered, or, of a state that passes, what Jobs and pods have been since."""
        now = reduced(reply)
        if not isinstance(expected, dict) or not differences(now, expected):
            return True
        if expected.get("kind") == "EventList":
            said = [_said(each) for each in now["items"]]
            return not [each for each in expected["items"] if _said(each) not in said]
        items = expected.get("items", [expected])
        if not any(map(_passes, items)):
            return False
        events = [event["object"] for _, events in self.own.watches for event in events]
        seen = [reduced(each) for each in events if "spec" in each]
        if "items" in expected:
            seen = [{key: each[key] for key in each if key not in ("kind", "apiVersion")} for each in seen]
        return all(any(not differences(old, each) for old in seen) for each in items)

    def _expected(self, reply: Any) -> Any:
        if self.name != KNOWN:
            return reply
        known = copy.deepcopy(reply)
        for each in [known, *(known or {}).get("items", [])] if isinstance(known, dict) else []:
            _as_not_to_blame(each)
        return known

    def _compare_watches(self) -> None:
        """Each object's states in the order of the recording; and a watch from a version shows all that came after."""
        for line, events in self.talk.watches:
            wanted = stories([{**each, "object": self._expected(each["object"])} for each in line["events"]])
            mine = next(every for own, every in self.own.watches if line["path"].startswith(own["path"].split("?")[0]))
            for _ in polled(_PATIENCE):
                given = stories(told(list(mine)))
                missing = [who for who, story in wanted.items() if not _within(story, given.get(who, []))]
                if not missing:
                    break
            for who in missing:
                shown = "\n".join(steps(given.get(who, [])))
                pytest.fail(
                    f"{line['path']}: {who} went through\n{shown}\ninstead of\n" + "\n".join(steps(wanted[who]))
                )
            later = [_point(each) for each in events]
            assert later and later == [_point(each) for each in mine if _point(each) in later]


def _point(event: Line) -> tuple[str, str, str]:
    meta = event["object"]["metadata"]
    return event["type"], meta.get("name", ""), meta["resourceVersion"]


def _as_not_to_blame(found: Line) -> None:
    """What the real one would have shown had its node kept the condition."""
    found.get("status", {}).pop("failed", None) if isinstance(found.get("status"), dict) else None
    if found.get("annotations", {}).get(_FAILURES) == "1":
        found["annotations"] |= {_FAILURES: "0", _IGNORED: "1"}
    if found.get("ended") == "by a signal" and found.get("index") and found.get("hostname") == "el-1":
        found["disrupted"] = "EvictionByEvictionAPI"


def _said(event: Line) -> Any:
    return [event[key] for key in ("reason", "message", "type")] + [event["involvedObject"]["kind"]]


def _passes(state: Line) -> bool:
    """Whether a Job or a pod is on its way to another state by itself."""
    status = state.get("status", {})
    on_its_way = isinstance(status, dict) and status.get("ready") != status.get("active", 0)
    return state.get("phase") == "Pending" or on_its_way


def differences(given: Any, expected: Any, at: str = "") -> list[str]:
    """What is not the same, one line for each."""
    if isinstance(given, dict) and isinstance(expected, dict):
        keys = sorted({*given, *expected})
        return [each for key in keys for each in differences(given.get(key), expected.get(key), f"{at}.{key}")]
    if isinstance(given, list) and isinstance(expected, list) and len(given) == len(expected):
        pairs = enumerate(zip(given, expected, strict=True))
        return [each for i, (one, other) in pairs for each in differences(one, other, f"{at}[{i}]")]
    return [] if given == expected else [f"{at}: {json.dumps(given)} instead of {json.dumps(expected)}"]


def steps(story: list[Any]) -> list[str]:
    """A story as what changes from one event to the next."""
    before: Any = {}
    lines = []
    for kind, state in story:
        lines.append(f"{kind} {'; '.join(differences(state, before))}")
        before = state
    return lines


def _within(story: list[Any], whole: list[Any]) -> bool:
    """Whether ``story`` stands in ``whole`` without a gap: the watch began later, or ended earlier.

    Two pods of a Job need not become ready, or end, in the same moment: between two states there may be others that
    differ from the one before them only in how many pods there are of each kind.
    """
    return any(_goes_on(story, whole[at:]) for at in range(len(whole)))


def _goes_on(story: list[Any], whole: list[Any]) -> bool:
    """Whether ``whole`` begins with ``story``, but for states between that only count."""
    wanted = iter(story)
    before, now = None, next(wanted, None)
    for state in whole:
        if now is None or not differences(state, now):
            before, now = state, next(wanted, None)
        elif before is None or differences(_uncounted(state), _uncounted(before)):
            break
    return now is None


def _uncounted(state: list[Any]) -> list[Any]:
    """One state of a story without the numbers of pods."""
    kind, seen = state
    if not isinstance(seen.get("status"), dict):
        return state
    return [kind, {**seen, "status": {name: each for name, each in seen["status"].items() if name not in _COUNTS}}]


@pytest.mark.parametrize(
    "scene",
    [
        "02-suspended-then-released",
        "03-fails-with-7",
        "04-elastic-scale-evict",
        "05-index-back-off",
        "06-no-node-fits",
        "07-refusals",
        "08-strict-validation",
    ],
)
def test_requests_are_answered_as_by_a_real_server(cluster: KubeCluster, scene: str) -> None:
    Scene(cluster, scene).play()


def test_discovery_names_what_a_real_server_names(cluster: KubeCluster) -> None:
    talk = WorkerPipe(cluster, Path())
    for line in recording("01-version-and-rights"):
        status, reply = talk.send(line)
        assert status == line["status"], line["path"]
        if "/namespaces/" in line["path"]:
            assert not differences(reduced(reply), line["reply"])
        given = {each["name"]: each for each in reply.get("resources", [])}
        for each in line.get("reply", {}).get("resources", []):
            if each["name"] in given:
                mine = given[each["name"]]
                assert [mine[key] for key in ("kind", "namespaced")] == [each[key] for key in ("kind", "namespaced")]
                assert set(mine["verbs"]) == set(each["verbs"])
