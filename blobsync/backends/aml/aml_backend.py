"""Azure Machine Learning: computes of a workspace, attached Kubernetes (ITP), and Singularity.

Jobs go there as v2 command jobs over REST. Folders are the service's own inputs and outputs, through datastores that
hold the credentials; secret variables travel as a blob beside the code archive, which is removed when the job has
ended.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from blobsync.backends.aml import replies as aml_replies
from blobsync.backends.aml.client import VIRTUAL_CLUSTER_VERSION, AmlClient
from blobsync.backends.aml.computes import Computes, summary_of
from blobsync.backends.aml.itp_and_singularity import virtual_cluster_id
from blobsync.backends.aml.job_secrets import close_secrets, node_secrets, secrets_path, with_seal_keys
from blobsync.backends.aml.replies import AmlReply
from blobsync.backends.aml.request import AmlRequest, build_request, without_bundle
from blobsync.backends.aml.ssh_service import find_az, machine_behind, read_address, tagged_machine
from blobsync.backends.aml.sweep_job import MOST_TRIALS, is_sweep, read_sweep, trials_by_task
from blobsync.backends.port_forwarding import SshMachine, forward_line, machine_command
from blobsync.backends.protocol import (
    DOUBTFUL,
    Backend,
    ClusterSummary,
    Holder,
    Outcome,
    Plan,
    PortForward,
    Refused,
    SeenJob,
    Surroundings,
    Unknown,
)
from blobsync.base.errors import (
    BackendBusyError,
    BackendUnavailableError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    StorageError,
    UsageError,
)
from blobsync.base.formatting import utc_seconds
from blobsync.config.loader import load_workspace
from blobsync.config.user_config import load_user_config
from blobsync.jobspec.spec import RUN_ID, JobRef, JobSpec, LogFile, RunInfo, Secrets, State, owner_name, run_name

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential


# Up to so many jobs are queried one by one; more are looked up in the list first.
_ONE_BY_ONE = 4
# How much of the list is read for them, and for a job that is not in the history.
_NEWEST = 500
# How many that have not ended a summary counts.
_MOST_COUNTED = 100
_ALL = {"listViewType": "ActiveOnly"}
_LIST = {**_ALL, "tag": "blobsync"}


def computes_of(backend: Backend) -> Computes:
    """The computes of a backend's workspace. Raises ``UsageError`` for another backend."""
    if not isinstance(backend, AmlBackend):
        raise UsageError(
            f"the cluster's platform is {backend.name}: only Azure ML has computes",
            hint="choose a cluster of Azure ML with -c",
        )
    return backend.computes


class AmlBackend(Backend):
    """One compute of one workspace."""

    def __init__(self, around: Surroundings, make_credential: Callable[[], TokenCredential] | None = None) -> None:
        """``make_credential`` returns the identity of the environment. Raises ``ConfigError``."""
        self._around = around
        self._cluster = cluster = around.cluster
        self.name = cluster.platform
        self._workspace = load_workspace(cluster, environ=around.environ)
        login = make_credential or self._credential

        def trusted() -> Sequence[str]:
            return load_user_config(around.environ).trusted_hosts

        self._client = AmlClient(self._workspace, login, cluster.file, around.note, trusted)
        self._log_urls: dict[str, str] = {}
        # The runs of trials, by the sweep and the number of the task.
        self._trials: dict[tuple[str, int], str] = {}

    # -- submitting ---------------------------------------------------------------------------------------------

    def plan(self, spec: JobSpec) -> Plan:
        request = build_request(self._cluster, self._workspace, spec)
        base = f"{self._client.base}{self._client.path}"
        text = request.render(f"{base}/jobs/{spec.run_id}?api-version={self._client.api_version}", base)
        return Plan(spec, text, request, shown=without_bundle(text))

    def submit(self, plan: Plan, secrets: Secrets) -> Outcome:
        request: AmlRequest = plan.request
        spec = plan.spec
        try:
            if request.secrets_blob:
                request = self._put_secrets(request.secrets_blob, spec, secrets)
            self._prepare(request, secrets)
        except BlobsyncError as error:
            self.forget(spec)
            return Refused(error)
        try:
            body = with_seal_keys(request.job, secrets)
            answer = self._client.call("PUT", f"jobs/{run_name(spec.run_id)}", body, doing="submit")
        except BlobsyncError as error:
            return self._not_accepted(spec, error)
        return self._ref(spec.run_id, answer)

    def locate(self, spec: JobSpec) -> JobRef | None:
        found = self._client.try_call(f"jobs/{run_name(spec.run_id)}", patient=False)
        return None if found is None else self._ref(spec.run_id, found)

    def forget(self, spec: JobSpec) -> None:
        if self._cluster.code and (blob := secrets_path(self._cluster, spec)):
            self._drop_secrets(blob)

    def _prepare(self, request: AmlRequest, secrets: Secrets) -> None:
        for store in request.datastores:
            path = f"datastores/{store.name}"
            there = self._client.try_call(path)
            # A datastore with a name from the cluster file is used by many jobs: its SAS is renewed for each.
            if there is None or (store.given and store.is_ours(there.inner("properties").values)):
                registered = store.body(secrets.sas, datetime.now(timezone.utc))
                self._client.call("PUT", path, registered, doing="submit", skipValidation="true")
        if request.environment:
            path, body = request.environment
            if self._client.try_call(path) is None:
                self._client.call("PUT", path, body, doing="submit")

    def _not_accepted(self, spec: JobSpec, error: BlobsyncError) -> Outcome:
        """The outcome of a lost response, or of a refusal, which may be the answer to azure-core's second try."""
        # After a gateway timeout the service may still process the request.
        unknown = isinstance(error, DOUBTFUL) and not isinstance(error, BackendBusyError)
        try:
            if found := self.locate(spec):
                return found
        except BlobsyncError:
            unknown = isinstance(error, DOUBTFUL)
        if unknown:
            return Unknown(error)
        self.forget(spec)
        return Refused(error)

    def _ref(self, run_id: str, body: AmlReply) -> JobRef:
        url = f"https://ml.azure.com/runs/{run_id}?wsid={self._client.path}"
        return JobRef(run_id, run_id, aml_replies.studio_url(body) or url)

    # -- queries ------------------------------------------------------------------------------------------------

    def get(self, refs: Sequence[JobRef]) -> tuple[RunInfo, ...]:
        found: dict[str, AmlReply] = {}
        if len(refs) > _ONE_BY_ONE:
            wanted = {ref.run_id for ref in refs}
            for body in islice(self._newest(), _NEWEST):
                found[body.text("name")] = body
                if wanted <= found.keys():
                    break
        for ref in refs:
            if ref.run_id not in found:
                # Jobs have our ids there; another name in a record must not get into a URL.
                found[ref.run_id] = self._client.try_call(f"jobs/{run_name(ref.run_id)}") or AmlReply()
        return tuple(self._info(ref.run_id, found[ref.run_id], len(refs) <= _ONE_BY_ONE) for ref in refs)

    def recall(self, suffix: str) -> Iterator[tuple[JobSpec, JobRef]]:
        """The workspace's newest jobs whose id ends so, of all users and programs."""
        found: dict[str, AmlReply] = {}
        # The list of our own jobs reaches farther back.
        for only in (_LIST, _ALL):
            for body in islice(self._newest(only), _NEWEST):
                run_id = body.text("name")
                if run_id.endswith(suffix) and RUN_ID.fullmatch(run_id) and aml_replies.is_readable(body):
                    found.setdefault(run_id, body)
        for run_id, body in found.items():
            yield self._spec(body, closely=True), self._ref(run_id, body)

    @property
    def experiment(self) -> str:
        return self._cluster.experiment_name or owner_name(self._around.environ)

    def newest(self, states: Collection[State], limit: int | None) -> Iterator[SeenJob]:
        def seen() -> Iterator[SeenJob]:
            for body in islice(self._newest(_ALL), _NEWEST):
                run_id, info = body.text("name"), aml_replies.read_job(body)
                mine = body.inner("properties").text("experimentName") == self.experiment
                mine = mine and RUN_ID.fullmatch(run_id) is not None and aml_replies.is_readable(body)
                if mine and (not states or info.state in states):
                    made = utc_seconds(body.inner("systemData").text("createdAt"))
                    yield SeenJob(self._spec(body), self._ref(run_id, body), info, made or 0.0)

        yield from islice(seen(), limit)

    def _spec(self, body: AmlReply, *, closely: bool = False) -> JobSpec:
        """The specification of a job: in the tags of ours, else what can be read, ``closely`` also from run history."""
        run_id, ours = body.text("name"), aml_replies.read_spec(body)
        if ours:
            return replace(ours, run_id=run_id, cluster=self._cluster.name)
        details = self._client.history(f"runs/{run_name(run_id)}/details") if closely else None
        return aml_replies.read_foreign(body, details or AmlReply(), self._cluster)

    def cancel(self, ref: JobRef) -> None:
        self._cancel(run_name(ref.run_id), lambda: self.get([ref])[0].state)

    def cancel_task(self, ref: JobRef, number: int) -> None:
        trial = self._trial(ref, number)
        if trial is None:
            said = f"Azure ML has not made the trial of task {number} of {ref.run_id} yet"
            raise JobError(said, hint=f"try again when it runs; blobsync abort {ref.run_id} ends all tasks")
        self._cancel(trial, lambda: _state_of(self.get([ref])[0], number))

    def _cancel(self, name: str, look: Callable[[], State]) -> None:
        refusal = self._client.cancel(name)
        # It is refused where the job has ended, as requested.
        if refusal is None or (state := look()).is_final:
            return
        if state is State.UNKNOWN:
            raise JobNotFoundError(f"Azure ML does not know {name}: {refusal.sentence}")
        raise JobError(f"Azure ML did not cancel {name}: {refusal.sentence}")

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        if tasks is None:
            return self._logs(run_name(ref.run_id))
        trials = {task: trial for task in tasks if (trial := self._trial(ref, task))}
        return [log for task, trial in trials.items() for log in self._logs(trial, f"task_{task}/")]

    def _logs(self, run_id: str, folder: str = "") -> Sequence[LogFile]:
        """The logs of a run; ``folder``: what their names begin with here."""
        details = self._client.history(f"runs/{run_id}/details")
        if details is None:
            raise JobNotFoundError(f"run history does not know {run_id}")
        files = details.texts("logFiles")
        if not files:
            files = self._artifacts(run_id)
        names = list(aml_replies.log_names(files))
        # A log's URL contains a SAS: keep it private, and request it again when it may have expired.
        self._log_urls.update({f"{run_id}/{name}": files[name] for name in names})
        return tuple(LogFile(folder + name, None, f"{run_id}/{name}") for name in names)

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        if log.handle not in self._log_urls:
            raise JobError(f"the log {log.name} was not found")
        return self._client.read(self._log_urls[log.handle], start, end)

    # -- the cluster --------------------------------------------------------------------------------------------

    def summary(self) -> ClusterSummary:
        states = (aml_replies.read_job(body).state for body in islice(self._newest(), _NEWEST))
        alive = (state for state in states if state in (State.QUEUED, State.PREPARING, State.RUNNING))
        waiting = list(islice(alive, _MOST_COUNTED))
        running = waiting.count(State.RUNNING)
        found = self._nodes()
        counted = f"the jobs are all blobsync jobs in the workspace {self._workspace.workspace_name}"
        return replace(found, jobs_running=running, jobs_queued=len(waiting) - running, notes=(*found.notes, counted))

    @property
    def computes(self) -> Computes:
        """The computes of the workspace."""
        return Computes(self._client, self._around.note)

    def blame(self) -> Sequence[Holder]:
        target = self._cluster.compute_target
        if not target or self._cluster.platform == "singularity":
            raise JobError(
                f"cluster {self._cluster.name} has no compute whose jobs could be listed",
                hint="see blobsync summary",
            )
        found = self._client.history(f"computes/{target.rpartition('/')[2]}/runs")
        return aml_replies.read_holders(found or AmlReply(), self._cluster.gpu_per_node or 1)

    def ssh_command(self, ref: JobRef, node: int = 0, *, holds: bool = False) -> Sequence[str]:
        info = self.get([ref])[0]
        if info.state is not State.RUNNING:
            raise JobError(f"{ref.run_id} is {info.state}: only a running job has nodes to connect to")
        if info.tasks:
            raise JobError(f"{ref.run_id} is a sweep: Azure ML opens no ssh to its trials")
        if machine := self._tagged(ref):
            return ("ssh", "-p", str(machine.port), "--", machine.destination)
        place = self._workspace
        # With '=', because a value could begin with '-'.
        command = ["az", "ml", "job", "connect-ssh", f"--name={run_name(ref.run_id)}", f"--node-index={node}"]
        command += [f"--resource-group={place.resource_group}", f"--workspace-name={place.workspace_name}"]
        return (*command, f"--subscription={place.subscription_id}")

    def forward_argv(self, ref: JobRef, forward: PortForward) -> Sequence[str]:
        return forward_line(self._machine(ref, forward.node), local=forward.local, remote=forward.remote)

    def python_beside(self, ref: JobRef, node: int, source: str) -> Sequence[str]:
        return machine_command(self._machine(ref, node), "python3", "-I", "-c", source)

    # -- private ------------------------------------------------------------------------------------------------

    def _tagged(self, ref: JobRef) -> SshMachine | None:
        body = self._client.try_call(f"jobs/{run_name(ref.run_id)}") if self._cluster.platform == "itp" else None
        return tagged_machine(body) if body else None

    def _machine(self, ref: JobRef, node: int) -> SshMachine:
        """The node: on ITP at the address in the job's tags, else behind the job's ssh service."""
        if machine := self._tagged(ref):
            return machine
        name = run_name(ref.run_id)
        service = self._client.history(f"runs/{name}/serviceinstances/{node}")
        address = read_address(service or AmlReply(), name, node)
        return machine_behind(find_az(self._around.process, self._around.environ), address)

    def _credential(self) -> TokenCredential:
        from blobsync.store.azure_identity import credential

        return credential(self._around.environ, use_cli_auth=self._cluster.flag("use_cli_auth"))

    def _newest(self, only: Mapping[str, str] = _LIST) -> Iterator[AmlReply]:
        return self._client.pages("jobs", **only)

    def _info(self, run_id: str, body: AmlReply, closely: bool) -> RunInfo:
        if not body:
            return RunInfo(run_id, State.UNKNOWN, reason="the workspace does not know it")
        info = aml_replies.read_job(body)
        if is_sweep(body):
            with contextlib.suppress(BackendUnavailableError, JobError):
                info = read_sweep(body, *self._runs(run_id))
        elif info.state.is_final or (closely and info.state is State.RUNNING):
            # The times and the error are in run history only; without it the state is still worth knowing.
            with contextlib.suppress(BackendUnavailableError, JobError):
                details = self._client.history(f"runs/{run_name(run_id)}/details")
                info = aml_replies.read_job(body, details)
        if info.state.is_final:
            self._forget_secrets(run_id, body)
        return replace(info, run_id=run_id)

    def _runs(self, run_id: str) -> tuple[AmlReply, Sequence[AmlReply]]:
        """The run of a sweep, and those of its trials."""
        path = f"runs/{run_name(run_id)}"
        run = self._client.history(path) or AmlReply()
        children = list(islice(self._client.history_pages(f"{path}/children"), 2 * MOST_TRIALS))
        trials = trials_by_task(run, children)
        self._trials.update({(run_id, number): trial.text("runId") for number, trial in trials.items()})
        return run, children

    def _trial(self, ref: JobRef, number: int) -> str | None:
        """The run of one task of a sweep; None: there is none yet."""
        if (ref.run_id, number) not in self._trials:
            self._runs(ref.run_id)
        return self._trials.get((ref.run_id, number))

    def _nodes(self) -> ClusterSummary:
        cluster, target = self._cluster, self._cluster.compute_target
        if cluster.platform == "singularity":
            path = virtual_cluster_id(cluster, self._workspace)
            body = self._client.call("GET", path, doing="summary", api_version=VIRTUAL_CLUSTER_VERSION)
            return ClusterSummary(notes=aml_replies.read_quota(body))
        if not target:
            return ClusterSummary(notes=("serverless: the service allocates the nodes",))
        body = self._client.call("GET", f"computes/{target.rpartition('/')[2]}", doing="summary")
        return summary_of(body, cluster.gpu_per_node or 1)

    def _artifacts(self, run_id: str) -> dict[str, str]:
        path = f"artifacts/prefix/contentinfo/ExperimentRun/dcid.{run_id}"
        return aml_replies.artifacts(self._client.history(path, "artifact/v2.0", path="user_logs") or AmlReply())

    def _put_secrets(self, blob: str, spec: JobSpec, secrets: Secrets) -> AmlRequest:
        """Upload the secrets; returns the request that opens them, since others may use that container."""
        body, opening = close_secrets(node_secrets(spec, secrets))
        with self._code_store() as store:
            store.put(blob, body, md5=hashlib.md5(body).digest())
        return build_request(self._cluster, self._workspace, spec, opening=opening)

    def _forget_secrets(self, run_id: str, body: AmlReply) -> None:
        uri = aml_replies.secrets_uri(body)
        code = self._cluster.code
        if code and uri.endswith(f"/paths/{code.path}.d/secrets/{run_id}.json"):
            self._drop_secrets(f"{code.path}.d/secrets/{run_id}.json")

    def _drop_secrets(self, blob: str) -> None:
        # It may be deleted already, or a colleague may lack the permission.
        with contextlib.suppress(StorageError), self._code_store() as store:
            store.delete(blob)

    def _code_store(self) -> Any:
        from blobsync.store.connect import connect

        code = self._cluster.code
        if code is None:
            raise JobError(f"cluster {self._cluster.name} has no code_path")
        cli_login = self._cluster.flag("use_cli_auth")
        return connect(code.account, environ=self._around.environ, use_cli_auth=cli_login)


def _state_of(info: RunInfo, number: int) -> State:
    return next((task.state for task in info.tasks if task.number == number), State.UNKNOWN)
