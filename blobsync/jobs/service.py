"""Acts on jobs: submits, stops, scales and resubmits them, and brings their outputs into the project."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import BlobsyncError, JobError, UsageError
from blobsync.base.records import dataclass
from blobsync.jobs.context import JobContext, demand_own
from blobsync.jobs.failure_causes import FoundCause, is_retriable
from blobsync.jobs.queries import JobName, JobQueries
from blobsync.jobs.record import JobRecord
from blobsync.jobs.states import INTERRUPTED, cancel, cancel_task, demand_task, doubts_said, refresh
from blobsync.jobspec.spec import JobRef, JobSpec, State
from blobsync.jobspec.topology import demand_scalable

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from blobsync.config.model import Cluster
    from blobsync.jobs.array_job import ArrayJob
    from blobsync.jobs.outputs import CopiedOutputs, JobOutputs
    from blobsync.jobs.submit import Submitted
    from blobsync.jobspec.code_choice import ChooseCode, ProjectOpener
    from blobsync.jobspec.make_spec import SubmitRequest
    from blobsync.jobspec.submit_options import SubmitKeywords

# A command: words, never split again; one text alone is a line for the shell.
Command = str | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True, repr=False)
class PlannedJob:
    """What would be submitted: its id, the text for the backend, the same for people, warnings; what it asks for in
    words, and the job itself."""

    run_id: str
    text: str
    shown: str
    warnings: tuple[str, ...] = ()
    asked: str = ""
    spec: JobSpec | None = None

    def __repr__(self) -> str:
        return f"<PlannedJob {self.run_id}: {len(self.text):,} characters, {len(self.warnings)} warnings>"


@dataclass(frozen=True, slots=True, repr=False)
class Cancellation:
    """Several jobs after a request to stop; ``errors`` name those that could not be asked, and why."""

    records: tuple[JobRecord, ...]
    errors: tuple[BlobsyncError, ...] = ()

    def __repr__(self) -> str:
        return f"<Cancellation: {len(self.records) - len(self.errors):,} of {len(self.records):,} jobs>"


@dataclass(frozen=True, slots=True, repr=False)
class Resubmission:
    """Several jobs that were submitted again; ``errors`` name those that were not, and why."""

    submitted: tuple[Submitted, ...]
    errors: tuple[BlobsyncError, ...] = ()

    def __repr__(self) -> str:
        return f"<Resubmission: {len(self.submitted):,} jobs, {len(self.errors):,} errors>"


@dataclass(frozen=True, slots=True, repr=False)
class Attempt:
    """One ended attempt; ``next_id`` is the job that was submitted in its place, None for the last."""

    record: JobRecord
    causes: tuple[FoundCause, ...] = ()
    next_id: str | None = None

    def __repr__(self) -> str:
        again = f", submitted again as {self.next_id}" if self.next_id else ""
        return f"<Attempt {self.record.run_id}: {self.record.state}, {len(self.causes)} causes{again}>"


class JobService(JobQueries):
    """Acts on the jobs of one project, and looks at them as ``JobQueries`` does."""

    def __init__(self, context: JobContext, open_project: ProjectOpener) -> None:
        """``open_project`` opens the project with a cluster, to find or pack its code."""
        super().__init__(context)
        self._open_project = open_project

    # -- starting -----------------------------------------------------------------------------------------------

    def plan(self, command: Command, **keywords: Unpack[SubmitKeywords]) -> PlannedJob:
        """What :meth:`submit` would submit; nothing is uploaded, submitted or recorded."""
        from blobsync.jobs.empty_folders import empty_links
        from blobsync.jobs.submit import asked_text, plan_job

        cluster, request = self._asked(command, keywords)
        chooser, hidden = self._chooser(keywords, looks_only=True), keywords.get("env") or ()
        plan, warnings = plan_job(self._context, cluster, request, chooser, hidden=hidden)
        warnings = (*empty_links(self._context, cluster, plan.spec), *warnings)
        asked = asked_text(cluster, plan.spec)
        return PlannedJob(plan.spec.run_id, plan.text, plan.shown or plan.text, warnings, asked, plan.spec)

    def submit(self, command: Command, **keywords: Unpack[SubmitKeywords]) -> Submitted:
        """Run a command on the project's cluster, with the code of the last ``init`` and the folders in place.

        Raises ``UsageError`` and ``ConfigError`` before anything runs, ``UntrustedCodeError`` for code that was neither
        published from here nor trusted (``project.trust_code``), ``SubmissionError`` if the cluster rejected it, and
        ``SubmissionUnknownError`` if its answer got lost: the job then stays in the history.
        """
        from blobsync.jobs.submit import submit

        cluster, request = self._asked(command, keywords)
        return submit(self._context, cluster, request, self._chooser(keywords))

    def sweep(
        self, command: Command, parameters: Mapping[str, Iterable[object]], **keywords: Unpack[SubmitKeywords]
    ) -> ArrayJob:
        """Run a command once for each combination of parameters: ``{"lr": [0.1, 0.01], "seed": range(5)}``.

        ``{lr}`` in the command and in values of ``env`` is a task's own value. Raises what :meth:`submit` raises.
        """
        from blobsync.jobs.array_job import ArrayJob

        keywords["sweep"] = parameters
        submitted = self.submit(command, **keywords)
        self._note_all(submitted.warnings)
        return ArrayJob(self._context, submitted.record)

    def resubmit(
        self,
        job: JobName,
        *,
        cluster: str | None = None,
        num_gpu: int | None = None,
        latest_code: bool = False,
        tasks: Collection[int] | None = None,
        agree: Callable[[Sequence[str]], None] | None = None,
        locked: bool = False,
    ) -> Submitted:
        """Submit a recorded job again, with the code that it had; then cancel it if it has not ended.

        ``cluster`` is another one, ``num_gpu`` another number of GPUs, ``latest_code`` the code of the last ``init``.
        ``tasks`` are the numbers of those of its tasks that are submitted again, and canceled; the others stay.
        ``agree`` is called with what would run of a job that only a container has a record of; it raises to refuse.
        Without it such a job is refused (``UsageError``); its cluster file, variables and credentials are your own.
        ``locked``: only if the locked folders are known to be as it saw them; else raises ``JobError``.
        """
        from blobsync.jobs.submit import resubmit

        record = self.find(job)
        # The code of another program's job is somewhere else.
        own = latest_code or record.spec.is_foreign or (bool(record.by) and record.spec.code is None)
        choose = self._chooser({}) if own else None
        if tasks is not None and not tasks:
            raise UsageError(f"no task of {record.run_id} is named")
        for number in tasks or ():
            demand_task(record, number)
        return resubmit(
            self._context,
            record,
            to=cluster,
            num_gpu=num_gpu,
            choose_code=choose,
            tasks=tasks,
            agree=agree,
            locked=locked,
        )

    def failed_tasks(self, job: JobName) -> tuple[int, ...] | None:
        """The tasks of a job that failed and were not submitted again; None if it has no tasks."""
        record = self.get(job)
        if record.spec.tasks is None or record.spec.spread is not None:
            return None
        later = [each.spec.tasks for each in self.history() if each.successor_of == record.run_id]
        again = {number for tasks in later if tasks for number in tasks.all_numbers}
        return tuple(
            each.number for each in record.info.tasks if each.state is State.FAILED and each.number not in again
        )

    def resubmit_all(
        self,
        jobs: Iterable[JobName | tuple[JobName, Collection[int] | None]],
        *,
        cluster: str | None = None,
        num_gpu: int | None = None,
        latest_code: bool = False,
        agree: Callable[[Sequence[str]], None] | None = None,
        locked: bool = False,
    ) -> Resubmission:
        """Submit several recorded jobs, or some tasks of each, again, in this order; an error with one does not keep
        the others."""
        submitted: list[Submitted] = []
        errors: list[BlobsyncError] = []
        pairs = [job if isinstance(job, tuple) else (job, None) for job in jobs]
        for record, tasks in [(self.find(job), tasks) for job, tasks in pairs]:
            try:
                again = partial(self.resubmit, cluster=cluster, num_gpu=num_gpu, latest_code=latest_code, locked=locked)
                submitted.append(again(record, tasks=tasks, agree=agree))
            except BlobsyncError as error:
                errors.append(error)
        return Resubmission(tuple(submitted), tuple(errors))

    def run_here(self, command: Command, *, num_gpu: int | None = None) -> int:
        """Run a command in the foreground of this terminal, as a job would be; returns its exit code."""
        from blobsync.jobs.empty_folders import empty_here
        from blobsync.jobs.foreground import run_here
        from blobsync.jobspec.make_spec import SubmitRequest

        request, cluster = SubmitRequest(_words(command), num_gpu, here=True), self._cluster()
        for sentence in empty_here(self._context, cluster):
            self._context.note(sentence)
        return run_here(cluster, request, self._context.process, self._context.environ, self._context.note)

    # -- what runs ----------------------------------------------------------------------------------------------

    def cancel(self, job: JobName) -> JobRecord:
        """Stop a job; one that has ended stays as it is. Safe to repeat.

        Raises ``JobError`` and its like unless the job's own backend has taken the request.
        """
        return cancel(self._context, self.get(job))

    def cancel_all(self, jobs: Iterable[JobName | tuple[JobName, Collection[int] | None]]) -> Cancellation:
        """Stop several jobs, or some tasks of each; an error with one does not stop the others."""
        records: list[JobRecord] = []
        errors: list[BlobsyncError] = []
        pairs = [job if isinstance(job, tuple) else (job, None) for job in jobs]
        for record, (_, tasks) in zip(self.refresh([job for job, _ in pairs]), pairs, strict=True):
            try:
                records.append(self.cancel_tasks(record, tasks) if tasks else cancel(self._context, record))
            except BlobsyncError as error:
                records.append(record)
                errors.append(error)
        return Cancellation(tuple(records), tuple(errors))

    def cancel_tasks(self, job: JobName, numbers: Iterable[int]) -> JobRecord:
        """Stop some tasks of a job; those that have ended stay as they are. Raises what :meth:`cancel` raises, and
        ``UsageError`` where the platform ends all tasks or none."""
        record = self.get(job)
        for number in numbers:
            demand_task(record, number)
            cancel_task(self._context, record, number)
        return self.get(record)

    def scale(self, job: JobName, nodes: int) -> JobRecord:
        """Ask for another number of nodes of an elastic job; node 0 stays, and the last request counts.

        Raises ``UsageError`` outside the job's bounds and for a job of a fixed size, ``JobError`` and its like unless
        the job's own backend has taken the request.
        """
        record = self.get(job)
        demand_own(record)
        demand_scalable(record.spec, record.info.state, nodes)
        if not record.ref.native_id:
            raise JobError(f"{record.run_id} cannot be scaled yet: {INTERRUPTED}", hint="try again later")
        asked_at = time.time()
        with doubts_said(f"{record.run_id} is being scaled"):
            self._context.backend_of(record).scale(record.ref, nodes)
        return refresh(self._context, [self._context.history.ask_scale(record, nodes, asked_at)])[0]

    def watch(self, job: JobName, *, retries: int | None = None) -> Iterator[Attempt]:
        """Wait for the end of a job; submit it again when the failure looks temporary, ``retries`` times at most.

        Yields each attempt when it has ended. Without ``retries``, the cluster file's are taken.
        """
        from blobsync.jobs.submit import resubmit

        record = self.find(job)
        demand_own(record)
        left = record.spec.retries if retries is None else retries
        while True:
            record = self.wait(record)
            if record.info.state is not State.FAILED:
                yield Attempt(record)
                return
            causes = self._find_causes(record)
            listed = record.info.exit_code in record.spec.retry_exit_codes
            if left <= 0 or not (is_retriable(causes) or listed):
                yield Attempt(record, causes)
                return
            left -= 1
            # Each attempt has the code that the job had.
            new = resubmit(self._context, record, tasks=self.failed_tasks(record) or None).record
            yield Attempt(record, causes, new.run_id)
            record = new

    def copy_outputs(self, outputs: JobOutputs) -> CopiedOutputs:
        """Bring those files of a job that are on a disk, but not in the project, to their paths in it.

        Each is verified, and none replaces another version: see ``failures``. Raises ``LocalFileError``.
        """
        from blobsync.jobs.outputs import copy_outputs

        return copy_outputs(outputs, self._context.root, self._context.environ)

    def ssh(self, job: JobName, *, node: int = 0) -> int:
        """Open a shell on one of a job's nodes in this terminal; returns its exit code."""
        return self._context.process.attach(self.ssh_command(job, node=node), env=self._context.environ)

    # -- inside -------------------------------------------------------------------------------------------------

    def _asked(self, command: Command, keywords: SubmitKeywords) -> tuple[Cluster, SubmitRequest]:
        from blobsync.jobspec.make_spec import SubmitRequest, shape_of
        from blobsync.jobspec.submit_options import SUBMIT_OPTIONS, SubmitKeywords, changed_keys
        from blobsync.jobspec.sweep import sweep

        unknown = keywords.keys() - SubmitKeywords.__annotations__.keys()
        if unknown:
            raise TypeError(f"submit has no option {min(unknown)!r}")
        for name, one in SUBMIT_OPTIONS.items():
            value, least = keywords.get(name), one.about.least
            if isinstance(value, int) and least is not None and value < least:
                raise UsageError(f"{name} {value}: at least {least}")
            if value == "" and name != "name":
                # A script's variable that is not set: without --after, for example, the job would begin at once.
                raise UsageError(f"{one.flag} is empty", hint="give it a value, or omit it")
        request = SubmitRequest.of(_words(command), keywords)
        given, file = keywords.get("sweep") or (), keywords.get("sweep_file")
        if given or file:
            request = replace(request, tasks=sweep(given, file, zipped=bool(keywords.get("zip"))))
        elif keywords.get("zip"):
            raise UsageError("--zip is for --sweep", hint="--zip --sweep 'lr=0.1,0.01' --sweep 'seed=1,2'")
        cluster = self._changed(self._cluster(), keywords.get("param") or {})
        shape = shape_of(cluster, request) if keywords.get("cpus_per_task") else None
        processes = max(shape.procs_per_node, shape.workers_per_node) if shape else 1
        cluster = self._changed(cluster, changed_keys(cluster, keywords, processes))
        after = keywords.get("after")
        return cluster, replace(request, after=self._first(cluster, after)) if after else request

    def _changed(self, cluster: Cluster, changes: Mapping[str, Any]) -> Cluster:
        """The cluster with these keys changed, beside those of ``-p``. Raises ``ConfigError``."""
        from blobsync.base.plain_json import merged
        from blobsync.config.loader import reload_cluster
        from blobsync.config.model import Written

        old = cluster.written
        if not changes or old is None:
            return cluster
        written = Written(old.path, merged(old.overrides, changes), old.values)
        return reload_cluster(self._context.root, written, environ=self._context.environ, anew=True)

    def _first(self, cluster: Cluster, job: JobName) -> JobRef | None:
        """The job that has to complete before one on ``cluster``; None: it has. Raises ``UsageError``."""
        from blobsync.jobs.record import home_of
        from blobsync.jobspec.submit_options import ORDERING

        record = self.get(job)
        id, state = record.run_id, record.state
        if cluster.platform in ORDERING:
            here = home_of(cluster, self._context.environ).key
            if (record.home.key if record.home else "") != here:
                raise UsageError(
                    f"--after: {id} is on {record.cluster}, and a job of {cluster.name} cannot wait for it",
                    hint=f"submit it to the same cluster: -c {record.cluster}",
                )
            if state.is_final and state is not State.COMPLETED:
                raise UsageError(f"--after: {id} is {state}, so the job would never start", hint=f"blobsync q {id}")
            if state is State.UNKNOWN or not record.ref.native_id:
                raise UsageError(f"--after: the state of {id} is not known", hint=f"blobsync q {id} looks for it")
            if state is State.COMPLETED:
                self._context.note(f"{id} has completed: the job waits for nothing")
                return None
        return record.ref

    def _chooser(self, keywords: SubmitKeywords, *, looks_only: bool = False) -> ChooseCode:
        from blobsync.jobspec.code_choice import CodeOptions, code_chooser

        digest, trust = keywords.get("code") or "", keywords.get("trust_code") or ""
        return code_chooser(self._open_project, CodeOptions(bool(keywords.get("init")), digest, trust, looks_only))


def _words(command: Command) -> tuple[str, ...]:
    return (command,) if isinstance(command, str) else tuple(os.fspath(word) for word in command)
