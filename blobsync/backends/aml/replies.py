"""Parses responses of Azure ML and its run history. Pure.

Every response is an :class:`AmlReply`, which returns values of the requested type only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from blobsync.backends.protocol import Holder
from blobsync.base.errors import LostContactError, UnsafeNameError
from blobsync.base.formatting import iso_seconds, quoted, utc_seconds
from blobsync.base.records import dataclass
from blobsync.base.redaction import is_secret_name
from blobsync.config.model import Cluster
from blobsync.jobspec.spec import JobSpec, RunInfo, State

# The values of JobStatus in the specification; others are UNKNOWN.
_WORDS = {
    State.QUEUED: "NotStarted Queued Paused",
    State.PREPARING: "Starting Provisioning Preparing",
    State.RUNNING: "Running Finalizing NotResponding",
    State.CANCELING: "CancelRequested",
}
_SAME = (State.COMPLETED, State.FAILED, State.CANCELED, State.UNKNOWN)
STATES = {word: state for state, words in _WORDS.items() for word in words.split()} | {one.value: one for one in _SAME}

SPEC_TAG = "blobsync.spec"
# A tag's value may be cut by the service; longer texts are spread over several tags.
TAG_CHARS = 250

# The tag in which ITP reports its own status; the spelling of its name varies.
_ITP_TAG = re.compile(r"amlk8s[ _-]?status", re.IGNORECASE)
_EXIT_CODE = re.compile(r"(?:exit(?:ed)?|status)[ a-z]{0,40}code:? {0,9}([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_ACTS_COMMAND = "--command"
# The service's own variables.
_OF_THE_SERVICE = re.compile(r"(?:AZUREML|AZ_BATCH)\w*", re.IGNORECASE)
_USER_LOG = re.compile(r"(?:user_logs|system_logs|azureml-logs|logs)/[^\0]+")


# More nodes, or GPUs of one node, than any cluster has.
_MOST = 10_000_000
_REASON_CHARS = 600


@dataclass(frozen=True, slots=True)
class AmlReply:
    """One JSON object of a response. Missing and null values are empty: the services omit what they do not know.

    ``host`` is the sender; ``at`` is the object's position in the response. Raises ``LostContactError`` for a value
    of another type than the service's specification has.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    host: str = "Azure ML"
    at: str = ""

    def __bool__(self) -> bool:
        return bool(self.values)

    def inner(self, name: str) -> AmlReply:
        """The object of this name."""
        found = self.values.get(name)
        if found is None or isinstance(found, dict):
            return AmlReply(found or {}, self.host, self._place(name))
        raise self._odd(name, "an object")

    def objects(self, name: str) -> list[AmlReply]:
        """The list of objects of this name."""
        found = self.values.get(name)
        if found is None:
            return []
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._odd(name, "a list of objects")
        return [AmlReply(each, self.host, f"{self._place(name)}[{number}]") for number, each in enumerate(found)]

    def members(self, name: str) -> dict[str, AmlReply]:
        """The member objects of the object of this name, by name."""
        outer = self.inner(name)
        return {each: outer.inner(each) for each in outer.values}

    def text(self, name: str) -> str:
        """The text of this name; numbers and booleans as texts, since tags may have any type."""
        found = self.values.get(name)
        if found is None:
            return ""
        if not isinstance(found, (str, int, float)):
            raise self._odd(name, "a text")
        try:
            return str(found)
        except ValueError:
            # It has thousands of digits.
            raise self._odd(name, "a text") from None

    def texts(self, name: str) -> dict[str, str]:
        """The member texts of the object of this name."""
        outer = self.inner(name)
        return {each: outer.text(each) for each in outer.values}

    def count(self, name: str) -> int | None:
        """The integer of this name; None if it is missing."""
        found = self.values.get(name)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= _MOST:
            raise self._odd(name, "a number of things")
        return found

    def _place(self, name: str) -> str:
        return f"{self.at}.{name}" if self.at else name

    def _odd(self, name: str, kind: str) -> LostContactError:
        return LostContactError(
            f"{self.host} returned data that does not match Azure ML's API: {self._place(name)[:200]} is not {kind}",
            hint="try again; if it happens again, check management_endpoint and api_version in the workspace file",
        )


def read_state(status: str, tags: Mapping[str, str]) -> State:
    """A job's state, with ACT's two corrections for ITP.

    There the service reports Queued while the platform already runs the job, and Canceled if the platform killed it or
    it failed.
    """
    state = STATES.get(status, State.UNKNOWN)
    itp_state = next((value.lower() for name, value in tags.items() if _ITP_TAG.search(name)), "")
    itp_state = itp_state.rpartition("=")[2].strip()
    if state is State.QUEUED and itp_state == "running":
        return State.RUNNING
    if state is State.CANCELED and itp_state in ("killing", "failed"):
        return State.FAILED
    return state


def read_job(body: AmlReply, details: AmlReply | None = None) -> RunInfo:
    """Parse a job resource and its run history: times, error, exit code."""
    return _read(body.text("name"), body.inner("properties"), details or AmlReply())


def read_run(run: AmlReply) -> RunInfo:
    """Parse a run of run history, which has all of this itself."""
    return _read(run.text("runId"), run, run)


def _read(name: str, stated: AmlReply, details: AmlReply) -> RunInfo:
    status = stated.text("status") or "Unknown"
    state = read_state(status, stated.texts("tags"))
    reason = _reason(details)
    if status == "NotResponding" and not reason:
        reason = "the node does not respond (NotResponding)"
    return RunInfo(
        name,
        state,
        exit_code=_exit_code(state, reason),
        reason=reason,
        started=utc_seconds(details.text("startTimeUtc")),
        ended=utc_seconds(details.text("endTimeUtc")) if state.is_final else None,
    )


def studio_url(body: AmlReply) -> str:
    """The URL of the job's page, from the response; empty if there is none."""
    return body.inner("properties").inner("services").inner("Studio").text("endpoint")


def secrets_uri(body: AmlReply) -> str:
    """The URI of the job's secrets, from its inputs; empty if it has none."""
    return body.inner("properties").inner("inputs").inner("secrets").text("uri")


def artifacts(body: AmlReply) -> dict[str, str]:
    """The URL of each artifact of a run, by its path."""
    return {one.text("path"): one.text("contentUri") for one in body.objects("value")}


def spec_tags(spec: JobSpec) -> dict[str, str]:
    """The tags that mark a job as ours and hold its specification."""
    tags = {"blobsync": "1", "blobsync.cluster": spec.cluster}
    if spec.code and spec.code.digest:
        tags["blobsync.code_sha"] = spec.code.digest
    text = spec.to_json()
    for number, start in enumerate(range(0, len(text), TAG_CHARS)):
        tags[f"{SPEC_TAG}.{number:02}"] = text[start : start + TAG_CHARS]
    return {**tags, **spec.tags}


def read_spec(body: AmlReply) -> JobSpec | None:
    """The specification in a job's tags; None for a job of another program or version."""
    tags = body.inner("properties").texts("tags")
    # The numbers in their names have two digits, or more.
    names = sorted((name for name in tags if name.startswith(SPEC_TAG)), key=lambda name: (len(name), name))
    parts = [tags[name] for name in names]
    try:
        return JobSpec.from_json("".join(parts)) if parts else None
    except (ValueError, UnsafeNameError):
        return None


def read_foreign(body: AmlReply, details: AmlReply, cluster: Cluster) -> JobSpec:
    """A job that blobsync did not submit, as a specification for ``cluster``; ``unread`` lists what it lacks.

    ``details`` are those of run history, empty if they were not requested. Jobs of ACT have their command in the
    arguments of the run's definition there: ``--command`` (act/aml_client.py, update_by_run_details).
    """
    properties, name = body.inner("properties"), body.text("name")
    acts = _command_of_act(details)
    command = acts or properties.text("command")
    nodes, each = _size(properties, details)
    given = properties.texts("environmentVariables")
    own = {key: value for key, value in given.items() if not _OF_THE_SERVICE.fullmatch(key)}
    env = {key: value for key, value in own.items() if not is_secret_name(key)}
    unread = [f"the variable {key}" for key in sorted(own.keys() - env.keys())]
    limit = properties.inner("limits").text("timeout")
    seconds = iso_seconds(limit) or None
    unread += [f"the limit {limit}"] if limit and not seconds else []
    if not acts:
        unread += _places(properties)
    return JobSpec(
        run_id=name,
        argv=(command,),
        cluster=cluster.name,
        platform=cluster.platform,
        name=properties.text("displayName"),
        nodes=nodes,
        procs_per_node=each,
        # With one process per node the service does not report a machine's GPUs.
        gpus_per_node=each if each > 1 else (cluster.gpu_per_node or 1),
        env=env,
        timeout_s=seconds,
        options={"foreign": True, "unread": [text[:200] for text in unread]},
    )


def _command_of_act(details: AmlReply) -> str:
    arguments: Any = details.inner("runDefinition").values.get("arguments")
    if not isinstance(arguments, list) or arguments.count(_ACTS_COMMAND) != 1:
        return ""
    found = arguments[arguments.index(_ACTS_COMMAND) + 1 :]
    return str(found[0]) if found and isinstance(found[0], str) else ""


def _size(properties: AmlReply, details: AmlReply) -> tuple[int, int]:
    """The number of nodes, and of processes on each."""
    run = details.inner("runDefinition")
    nodes = properties.inner("resources").count("instanceCount") or run.count("nodeCount") or 1
    each = properties.inner("distribution").count("processCountPerInstance")
    return nodes, each or run.inner("mpi").count("processCountPerNode") or 1


def _places(properties: AmlReply) -> list[str]:
    """The job's code, environment, inputs and outputs, which a cluster file has in another form."""
    found = [f"its code {code}" for code in [properties.text("codeId")] if code]
    found += [f"its environment {place}" for place in [properties.text("environmentId")] if place]
    for kind in ("inputs", "outputs"):
        found += [f"the {kind[:-1]} {name}" for name in sorted(properties.members(kind))]
    return found


def is_readable(body: AmlReply) -> bool:
    """Whether a job is one that can be shown: ours, or another program's command job."""
    properties = body.inner("properties")
    return properties.text("jobType") == "Command" or "blobsync" in properties.texts("tags")


def log_names(files: Mapping[str, str]) -> Iterator[str]:
    """The log files, under both naming schemes; none that would escape the folder."""
    for name in sorted(files):
        if _USER_LOG.fullmatch(name) and ".." not in name.split("/") and "\\" not in name:
            yield name


def read_quota(body: AmlReply) -> tuple[str, ...]:
    """A sentence for each quota of a Singularity virtual cluster."""
    quotas = body.inner("properties").inner("managed").members("quotas")
    return tuple(
        f"{series}: {limit.text('slaTier') or '?'} {limit.text('used') or '?'} of {limit.text('limit') or '?'} used"
        for series, quota in sorted(quotas.items())
        for limit in quota.objects("limits")
    )


def read_holders(body: AmlReply, gpus_per_node: int) -> tuple[Holder, ...]:
    """The runs of a compute that have not ended, of all users."""
    found = []
    for run in body.objects("value"):
        tags = run.texts("tags")
        state = read_state(run.text("status"), tags)
        if state.is_final:
            continue
        creator = run.inner("createdBy")
        compute = run.inner("compute") or run.inner("computeRequest")
        nodes = compute.count("instanceCount") or compute.count("nodeCount") or 1
        name = run.text("displayName") or tags.get("mlflow.runName", "")
        user = creator.text("userName") or creator.text("upn") or "?"
        found.append(Holder(user, run.text("runId"), name, state, nodes * gpus_per_node, nodes))
    return tuple(found)


def _reason(details: AmlReply) -> str:
    """The innermost message of run history's nested errors; empty for other forms."""
    error: Any = details.values.get("error")
    while isinstance(error, Mapping) and isinstance(error.get("error"), Mapping):
        error = error["error"]
    if not isinstance(error, Mapping):
        return ""
    message, code = (str(error.get(name) or "").strip() for name in ("message", "code"))
    first, code = (quoted(text.split("\n")[0], _REASON_CHARS) for text in (message, code))
    return f"{first} ({code})" if first and code else first or code


def _exit_code(state: State, reason: str) -> int | None:
    if state is State.COMPLETED:
        return 0
    match = _EXIT_CODE.search(reason) if state is State.FAILED else None
    return int(match[1]) if match else None
