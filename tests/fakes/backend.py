"""A backend in memory, tested by the same contract as the real ones: a job's first word says what it does."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from blobsync.backends.protocol import Backend, ClusterSummary, Holder, Outcome, Plan, Refused, Unknown
from blobsync.base.errors import BackendUnavailableError, JobError, JobNotFoundError, LostContactError, SubmissionError
from blobsync.jobspec.spec import JobRef, JobSpec, LogFile, NodeChange, RunInfo, Secrets, State


@dataclass
class FakeBackend(Backend):
    """``echo`` ends at once, ``exit`` with the code of the next word, ``sleep`` when it is cancelled."""

    name: str = "fake"
    jobs: dict[str, RunInfo] = field(default_factory=dict)
    specs: dict[str, JobSpec] = field(default_factory=dict)
    secrets: dict[str, Secrets] = field(default_factory=dict)
    asked: int = 0
    gone: bool = False
    lost: bool = False

    def plan(self, spec: JobSpec) -> Plan:
        return Plan(spec, f"# would run\n{spec.to_json()}", None)

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        if self.gone:
            return Refused(BackendUnavailableError("the cluster does not answer"))
        spec = plan.spec
        if spec.run_id not in self.jobs:
            if spec.argv[0] == "refuse":
                return Refused(SubmissionError("the cluster rejected the job"))
            self.specs[spec.run_id], self.secrets[spec.run_id] = spec, secrets
            if spec.argv[0] != "vanish":
                self._start(spec)
        if self.lost or spec.argv[0] == "vanish":
            return Unknown(LostContactError("there is no connection to the cluster"))
        return self._ref(spec)

    def locate(self, spec: JobSpec) -> JobRef | None:
        self._check()
        return self._ref(spec) if spec.run_id in self.jobs else None

    def forget(self, spec: JobSpec) -> None:
        self._check()
        self.secrets.pop(spec.run_id, None)

    def _ref(self, spec: JobSpec) -> JobRef:
        return JobRef(spec.run_id, f"n-{spec.run_id}", "memory")

    def _start(self, spec: JobSpec) -> None:
        code = 72 if "false" in spec.setup else int(spec.argv[1]) if spec.argv[0] == "exit" else 0
        state = State.RUNNING if spec.argv[0] == "sleep" else State.FAILED if code else State.COMPLETED
        now = time.time()
        self.jobs[spec.run_id] = RunInfo(
            spec.run_id,
            state,
            code if state.is_final else None,
            started=now,
            ended=now,
            changes=(NodeChange(now, spec.nodes, spec.nodes),) if spec.is_elastic else (),
        )

    def scale(self, ref: JobRef, nodes: int) -> None:
        self._check()
        info = self.jobs.get(ref.run_id)
        if info is None or info.state.is_final:
            raise JobError(f"{ref.run_id} does not run")
        changes = (*info.changes, NodeChange(time.time(), nodes, nodes))
        self.jobs[ref.run_id] = replace(info, changes=changes)
        self._answer()

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        self._check()
        self.asked += 1
        return tuple(self.jobs.get(ref.run_id, RunInfo(ref.run_id, State.UNKNOWN)) for ref in refs)

    def cancel(self, ref: JobRef) -> None:
        self._check()
        info = self.jobs.get(ref.run_id)
        if info is None:
            raise JobNotFoundError("the cluster does not know it")
        if not info.state.is_final:
            self.jobs[ref.run_id] = replace(info, state=State.CANCELED, ended=time.time())
        self._answer()

    def cancel_task(self, ref: JobRef, number: int) -> None:
        raise JobError("there are no tasks")

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        self._check()
        text = self._text(ref.run_id)
        return (LogFile("user_logs/std_log.txt", len(text), ref.run_id),) if text else ()

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        return self._text(log.handle)[start:end]

    def summary(self) -> ClusterSummary:
        return ClusterSummary(nodes_total=1, nodes_free=1, gpus_total=8, gpus_free=8)

    def blame(self) -> Sequence[Holder]:
        running = [info for info in self.jobs.values() if not info.state.is_final]
        return tuple(Holder("me", info.run_id, info.run_id, info.state, 1, 1) for info in running)

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        raise JobError("there is nothing to connect to")

    def _text(self, run_id: str) -> bytes:
        spec = self.specs[run_id]
        return (" ".join(spec.argv[1:]) + "\n").encode() if spec.argv[0] == "echo" else b""

    def _answer(self) -> None:
        if self.lost:
            raise LostContactError("there is no connection to the cluster")

    def _check(self) -> None:
        if self.gone:
            raise BackendUnavailableError("the cluster does not answer")
