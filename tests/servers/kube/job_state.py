"""Decides a Job's state from its pods: indexes, failures, its end. Pure: the controller carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.servers.kube.store import TERMINAL, Object, age

TRACKED = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"
FAILURES = "batch.kubernetes.io/job-index-failure-count"
IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"
FIRST_DELAY, LONGEST_DELAY = 10.0, 600.0


class Finish(NamedTuple):
    """Why a Job ends; ``interim`` is the condition that comes before the pods have gone."""

    interim: str
    final: str
    reason: str
    message: str


def index_of(pod: Object) -> int:
    return int(pod["metadata"]["annotations"].get(INDEX, -1))


def phase(pod: Object) -> str:
    return str(pod["status"].get("phase", "Pending"))


def is_tracked(pod: Object) -> bool:
    return TRACKED in pod["metadata"].get("finalizers", [])


def is_terminating(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"] and phase(pod) not in TERMINAL


def is_active(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and phase(pod) not in TERMINAL


def is_ready(pod: Object) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", []))


def condition(job: Object, kind: str) -> dict[str, Any] | None:
    conditions = job["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)


def is_finished(job: Object) -> bool:
    return bool(condition(job, "Complete") or condition(job, "Failed"))


def spread(text: str) -> set[int]:
    """Parse ``0,2-4``."""
    found: set[int] = set()
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def gathered(numbers: set[int]) -> str:
    """Format as ``0,2-4``; two neighbours are separate, as the server writes them."""
    runs: list[list[int]] = []
    for each in sorted(numbers):
        if runs and each == runs[-1][-1] + 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(str(each) for each in run) for run in runs)


class Verdict(NamedTuple):
    """The policy's action for a failed pod; ``message`` is that of a ``FailJob``."""

    action: str
    message: str = ""


def judged(job: Object, pod: Object) -> Verdict:
    """The first rule that matches a failed pod; ``Count`` without one."""
    meta = pod["metadata"]
    for number, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        end = f"matching {rule['action']} rule at index {number}"
        for pattern in rule.get("onPodConditions") or []:
            for each in pod["status"].get("conditions", []):
                if (each["type"], each["status"]) == (pattern["type"], pattern["status"]):
                    text = f"Pod {meta['namespace']}/{meta['name']} has condition {pattern['type']} {end}"
                    return Verdict(rule["action"], text)
        codes = rule.get("onExitCodes") or {}
        for container in pod["status"].get("containerStatuses", []) if codes else []:
            code = (container["state"].get("terminated") or {}).get("exitCode", 0)
            chosen = codes.get("containerName") in (None, container["name"]) and code != 0
            if chosen and (code in codes["values"]) == (codes["operator"] == "In"):
                name = f"Container {container['name']} for pod {meta['namespace']}/{meta['name']}"
                return Verdict(rule["action"], f"{name} failed with exit code {code} {end}")
    return Verdict("Count")


def failures(pod: Object, name: str) -> int:
    return int(pod["metadata"]["annotations"].get(name, 0))


def ended_at(pod: Object) -> str:
    """When its last container ended, else when it was deleted or created."""
    ends = [
        each["state"]["terminated"]["finishedAt"]
        for each in pod["status"].get("containerStatuses", [])
        if "terminated" in each["state"]
    ]
    meta = pod["metadata"]
    return str(max(ends) if ends else meta.get("deletionTimestamp", meta["creationTimestamp"]))


@dataclass
class Picture:
    """A snapshot of a Job and its pods. ``scale`` is that of time: 0.1 makes ten seconds one."""

    job: Object
    pods: Sequence[Object]
    scale: float
    succeeded: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    delayed: Mapping[int, Object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spec, self.status = self.job["spec"], self.job["status"]
        self.indexed = self.spec["completionMode"] == "Indexed"
        self.per_index = self.spec.get("backoffLimitPerIndex") is not None
        self.size = self.spec.get("completions") or 0
        self.active = [pod for pod in self.pods if is_active(pod)]
        self.terminating = [pod for pod in self.pods if is_terminating(pod)]
        counted = {each for ids in self.status.get("uncountedTerminatedPods", {}).values() for each in ids}
        self.ended = [
            pod
            for pod in self.pods
            if is_tracked(pod) and phase(pod) in TERMINAL and pod["metadata"]["uid"] not in counted
        ]
        within = [pod for pod in self.ended if not self.indexed or index_of(pod) < self.size]
        if self.indexed:
            self.succeeded = {each for each in spread(self.status.get("completedIndexes", "")) if each < self.size}
            self.succeeded |= {index_of(pod) for pod in within if phase(pod) == "Succeeded"}
        self.new_failed = [pod for pod in within if phase(pod) == "Failed"]
        if self.per_index:
            self._per_index()
        self.failed_count = self.status.get("failed", 0) + sum(
            judged(self.job, pod).action != "Ignore" for pod in self.new_failed
        )
        newly = sum(phase(pod) == "Succeeded" for pod in within)
        self.succeeded_count = len(self.succeeded) if self.indexed else self.status.get("succeeded", 0) + newly

    def _per_index(self) -> None:
        """The failed indexes, and the ended pods to keep until their index has another."""
        self.failed = {each for each in spread(self.status.get("failedIndexes", "")) if each < self.size}
        replaced = {index_of(pod) for pod in self.active} | self.succeeded
        waiting: dict[int, Object] = {}
        for pod in self.new_failed:
            verdict, index = judged(self.job, pod), index_of(pod)
            spent = failures(pod, FAILURES) + (verdict.action != "Ignore")
            if verdict.action == "FailIndex" or spent > self.spec["backoffLimitPerIndex"]:
                self.failed.add(index)
            elif index not in replaced and ended_at(waiting.get(index, pod)) <= ended_at(pod):
                waiting[index] = pod
        self.delayed = {index: pod for index, pod in waiting.items() if index not in self.failed}

    def finish(self) -> Finish | None:
        """Why the Job has to end; None if it continues."""
        for interim, final in (("FailureTarget", "Failed"), ("SuccessCriteriaMet", "Complete")):
            if found := condition(self.job, interim):
                return Finish(interim, final, found["reason"], found["message"])
        return self._failure() or self._success()

    def _failure(self) -> Finish | None:
        def failed(reason: str, message: str) -> Finish:
            return Finish("FailureTarget", "Failed", reason, message)

        for pod in self.new_failed:
            verdict = judged(self.job, pod)
            if verdict.action == "FailJob":
                return failed("PodFailurePolicy", verdict.message)
        if self.failed_count > self.spec["backoffLimit"]:
            return failed("BackoffLimitExceeded", "Job has reached the specified backoff limit")
        deadline, start = self.spec.get("activeDeadlineSeconds"), self.status.get("startTime")
        if deadline is not None and start and not self.spec["suspend"] and age(start) >= deadline * self.scale:
            return failed("DeadlineExceeded", "Job was active longer than specified deadline")
        most = self.spec.get("maxFailedIndexes")
        if most is not None and len(self.failed) > most:
            return failed("MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes")
        if self.failed and len(self.failed) + len(self.succeeded) >= self.size:
            return failed("FailedIndexes", "Job has failed indexes")
        return None

    def _success(self) -> Finish | None:
        for number, rule in enumerate((self.spec.get("successPolicy") or {}).get("rules") or []):
            chosen = self.succeeded
            if "succeededIndexes" in rule:
                chosen = chosen & spread(rule["succeededIndexes"])
            wanted = rule.get("succeededCount", len(spread(rule.get("succeededIndexes", ""))))
            if len(chosen) >= wanted:
                return Finish("SuccessCriteriaMet", "Complete", "SuccessPolicy", f"Matched rules at index {number}")
        whole = self.spec.get("completions")
        enough = self.succeeded_count >= whole if whole is not None else self.succeeded_count and not self.active
        if enough and not self.active:
            text = "Reached expected number of succeeded pods"
            return Finish("SuccessCriteriaMet", "Complete", "CompletionsReached", text)
        return None

    def surplus(self) -> list[Object]:
        """The active pods to end: those above the wanted number, the highest indexes first."""
        if self.spec["suspend"]:
            return list(self.active)
        if not self.indexed:
            return list(self.active)[self._wanted() :]
        kept: set[int] = set()
        ended = []
        for pod in sorted(self.active, key=lambda pod: (index_of(pod), phase(pod) != "Running")):
            index = index_of(pod)
            if index >= self.size or index in kept | self.succeeded | self.failed or len(kept) >= self._wanted():
                ended.append(pod)
            else:
                kept.add(index)
        return ended

    def missing(self) -> list[int]:
        """The indexes that need a pod now, without those in back-off."""
        if self.spec["suspend"]:
            return []
        replace_late = self.spec["podReplacementPolicy"] == "Failed"
        held = self.active + (self.terminating if replace_late else [])
        room = self._wanted() - len(held)
        if not self.indexed:
            return [-1] * max(0, room) if self._delay_of_all() <= 0 else []
        taken = {index_of(pod) for pod in held} | self.succeeded | self.failed
        free = [each for each in range(self.size) if each not in taken]
        if self.per_index:
            free = [each for each in free if self._delay(self.delayed.get(each)) <= 0]
        elif self._delay_of_all() > 0:
            free = []
        return free[: max(0, room)]

    def _wanted(self) -> int:
        most = int(self.spec["parallelism"])
        if self.spec.get("completions") is None:
            return most
        return min(most, max(0, self.size - self.succeeded_count - len(self.failed)))

    def _delay(self, pod: Object | None) -> float:
        if pod is None:
            return 0.0
        verdict = judged(self.job, pod)
        again = failures(pod, FAILURES) + failures(pod, IGNORED) + 1
        return 0.0 if verdict.action == "FailIndex" else self._left(again, ended_at(pod))

    def _delay_of_all(self) -> float:
        """The back-off without a limit per index: from the failures since the last success."""
        good = max((ended_at(pod) for pod in self.pods if phase(pod) == "Succeeded"), default="")
        bad = [ended_at(pod) for pod in self.pods if phase(pod) == "Failed" and ended_at(pod) > good]
        return self._left(len(bad), max(bad)) if bad else 0.0

    def _left(self, times: int, since: str) -> float:
        whole: float = min(FIRST_DELAY * 2.0 ** (times - 1), LONGEST_DELAY)
        return whole * self.scale - age(since)
