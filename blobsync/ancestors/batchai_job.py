"""A Batch AI job file and its cluster file as values, and each toolkit's settings as a command.

The record of a job keeps its file too, so that ``resubmit`` can translate it for another cluster. No secret is in it:
values of ``secrets``, and of variables that are named like secrets, are kept by name only. Pure, but for reading files.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path

from blobsync.ancestors.json_part import NOWHERE, JsonPart, ReadKeys, inner_properties, open_json
from blobsync.base.errors import JobError
from blobsync.base.formatting import count_text, iso_seconds
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import dataclass
from blobsync.base.redaction import Secret, is_secret_name
from blobsync.config.job_keys import read_only_words
from blobsync.config.yaml_document import Document

# What a shell reads as one word, with its variables replaced.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,~-]*(?:\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})[A-Za-z0-9_./:=@%+,~-]*)*")
_SPECIAL = re.compile(r'["\\`]|\$(?![A-Za-z_{])')


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What runs: ``line`` for a shell, ``processes`` in all, under mpirun or not.

    ``workers`` and ``servers`` are TensorFlow's, whose tasks are told apart by ``BLOBSYNC_TASK_TYPE``; 0 elsewhere.
    ``backend`` is PyTorch's communicationBackend.
    """

    name: str
    line: str
    processes: int
    uses_mpi: bool = False
    workers: int = 0
    servers: int = 0
    backend: str = ""

    def processes_on_each(self, nodes: int) -> int:
        """How many on each of so many nodes; tasks of TensorFlow may leave some without one."""
        if self.servers:
            return -(-self.workers // nodes) + -(-self.servers // nodes)
        return -(-self.processes // nodes)


def read_toolkit(properties: JsonPart, nodes: int) -> Toolkit:
    """The one toolkit of a job. Raises ``ConfigError`` where there is none, or a second one."""
    given = [name for name in _READERS if properties.has(name)]
    if not given:
        raise properties.error("", f"needs one of {', '.join(_READERS)}")
    if len(given) > 1:
        raise properties.error(given[1], f"conflicts with {given[0]}: a job has one toolkit")
    if (part := properties.part(given[0])) is None:
        raise properties.error(given[0], "must be an object")
    return _READERS[given[0]](part, nodes)


def path_word(text: str) -> str:
    """A path as one word of a shell line, in which variables are replaced."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + _SPECIAL.sub(lambda match: "\\" + match[0], text) + '"'


def _python(part: JsonPart, arguments_key: str = "commandLineArgs") -> str:
    arguments = part.text(arguments_key)
    interpreter = part.text("pythonInterpreterPath", "python")
    return f"{path_word(interpreter)} {path_word(part.demanded('pythonScriptFilePath'))} {arguments}".strip()


def _configured(part: JsonPart, program: str, what: str) -> str:
    """The line of a program that reads a configuration file; ``program`` ends where that file's path begins."""
    for name in ("pythonScriptFilePath", "pythonInterpreterPath"):
        part.refuse(name, f"conflicts with {what}: only one of them can run")
    return f"{program}{path_word(part.demanded('configFilePath'))} {part.text('commandLineArgs')}".strip()


def _processes(part: JsonPart, nodes: int) -> int:
    """How many in all; without the key, one on each node."""
    count = part.whole("processCount", nodes) or nodes
    if count % nodes:
        raise part.error("processCount", f"is {count}, which cannot be divided evenly among {nodes:,} nodes")
    return count


def _script(name: str) -> Callable[[JsonPart, int], Toolkit]:
    def read(part: JsonPart, nodes: int) -> Toolkit:
        return Toolkit(name, _python(part), _processes(part, nodes), uses_mpi=True)

    return read


def _caffe2(part: JsonPart, nodes: int) -> Toolkit:
    return Toolkit("caffe2", _python(part), nodes)


def _pytorch(part: JsonPart, nodes: int) -> Toolkit:
    backend = part.one_of("communicationBackend", "TCP", "Gloo", "MPI", "NCCL").lower()
    return Toolkit("pytorch", _python(part), _processes(part, nodes), uses_mpi=backend == "mpi", backend=backend)


def _cntk(part: JsonPart, nodes: int) -> Toolkit:
    language = part.one_of("languageType", "BrainScript", "Python")
    is_script = language == "BrainScript" or (not language and part.has("configFilePath"))
    if not is_script:
        part.refuse("configFilePath", "is for languageType BrainScript")
    line = _configured(part, "cntk configFile=", "BrainScript's configFilePath") if is_script else _python(part)
    return Toolkit("cntk", line, _processes(part, nodes), uses_mpi=True)


def _caffe(part: JsonPart, nodes: int) -> Toolkit:
    is_configured = part.has("configFilePath")
    line = _configured(part, "caffe train --solver=", "configFilePath") if is_configured else _python(part)
    return Toolkit("caffe", line, _processes(part, nodes), uses_mpi=True)


def _tensorflow(part: JsonPart, nodes: int) -> Toolkit:
    keys = {"master": "master", "worker": "worker", "ps": "parameterServer"}
    lines = {name: _python(part, f"{key}CommandLineArgs") for name, key in keys.items()}
    spread = nodes > 1 or part.has("workerCount") or part.has("parameterServerCount")
    workers = part.whole("workerCount", nodes) or nodes
    servers = part.whole("parameterServerCount", 1) or 1
    if not spread:
        for name in ("workerCommandLineArgs", "parameterServerCommandLineArgs"):
            if part.has(name):
                part.note(name, "has no effect: a job of one node without workerCount has only a master")
        return Toolkit("tensorflow", lines["master"], 1, workers=1)
    if servers > nodes:
        raise part.error("parameterServerCount", f"is {servers}, and the job has {count_text(nodes, 'node')}")
    cases = " ".join(f"{name}) exec {line} ;;" for name, line in lines.items())
    line = f'case "$BLOBSYNC_TASK_TYPE" in {cases} esac'
    return Toolkit("tensorflow", line, workers + servers, workers=workers, servers=servers)


def _custom_mpi(part: JsonPart, nodes: int) -> Toolkit:
    return Toolkit("mpi", part.demanded("commandLine"), _processes(part, nodes), uses_mpi=True)


def _custom(part: JsonPart, nodes: int) -> Toolkit:
    line = part.demanded("commandLine")
    if nodes > 1:
        # https://github.com/Azure/BatchAI, schemas/2018-05-01/job.json: "to execute on the master node".
        line = f'[ "$RANK" != 0 ] || bash -c {shlex.quote(line)}'
        part.note("commandLine", "runs on the first node, as it did; the other nodes of the job stay idle")
    return Toolkit("custom", line, nodes)


_READERS: Mapping[str, Callable[[JsonPart, int], Toolkit]] = {
    "cntkSettings": _cntk,
    "pyTorchSettings": _pytorch,
    "tensorFlowSettings": _tensorflow,
    "caffeSettings": _caffe,
    "caffe2Settings": _caffe2,
    "chainerSettings": _script("chainer"),
    "horovodSettings": _script("horovod"),
    "customMpiSettings": _custom_mpi,
    "customToolkitSettings": _custom,
}


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ID = re.compile(r"[A-Za-z0-9_]+")
_SHARE_URL = re.compile(r"https://([a-z0-9]+)\.file\.[^/]+/([^/?#]+)/?")
# As .NET writes a time (7.00:00:00), as `az` printed it (7 days, 0:00:00), and as ISO 8601 does (P7D, PT1H30M).
_NET = re.compile(r"(?:(\d{1,6})(?:\.| days?, ))?(\d{1,2}):(\d{2}):(\d{2})(?:\.\d+)?")
_ANSWERS = (
    *("toolType", "jobOutputDirectoryPathSegment", "creationTime", "provisioningState", "executionState"),
    *("provisioningStateTransitionTime", "executionStateTransitionTime", "executionInfo"),
)
_CLUSTER_ANSWERS = (
    *("allocationState", "allocationStateTransitionTime", "creationTime", "currentNodeCount", "errors"),
    *("nodeStateCounts", "provisioningState", "provisioningStateTransitionTime"),
)
_MACHINES = ("vmSize", "vmPriority", "scaleSettings", "virtualMachineConfiguration", "userAccountSettings", "subnet")
# As docker takes it; other places take one letter for the unit.
_SIZE = re.compile(r"(\d{1,15})\s*([bkmg]?)b?", re.IGNORECASE)
_KEY_VAULT = "names a secret of a Key Vault, which blobsync does not ask"


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume, at ``$AZ_BATCHAI_MOUNT_ROOT/<path>`` or ``$AZ_BATCHAI_JOB_MOUNT_ROOT/<path>``.

    ``kind`` is ``blob`` for a container, else what it was in words; ``share`` is the name of a file share. A container
    is ``read_only`` where its mount options say so. ``where`` is its place in its file, for messages.
    """

    path: str
    kind: str
    where: JsonPart = field(default=NOWHERE, repr=False, compare=False)
    account: str = ""
    container: str = ""
    share: str = ""
    key: Secret | None = None
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """An input or output directory: its id and its path, with variables. ``suffix`` is for outputs only."""

    id: str
    path: str
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Image:
    """The container that the job runs in, and its registry."""

    name: str
    server: str = ""
    username: str = ""
    password: Secret | None = None
    shm_size: str = ""


@dataclass(frozen=True, slots=True)
class BatchAiJob:
    """A job file with its cluster file: nothing left to check, but what the place where it runs has to say.

    ``setup`` are shell lines for each node; ``seconds`` the time limit, None where there is none. ``notes`` name what
    has no effect, or another one.
    """

    nodes: int
    toolkit: Toolkit
    std_prefix: str
    file: JsonPart = field(default=NOWHERE, repr=False, compare=False)
    volumes: tuple[Volume, ...] = ()
    inputs: tuple[JobDirectory, ...] = ()
    outputs: tuple[JobDirectory, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    image: Image | None = None
    seconds: int | None = None
    priority: str = ""
    notes: tuple[str, ...] = ()


def read_job_file(job: Path, cluster: Path | None, environ: Mapping[str, str]) -> BatchAiJob:
    """Read both files. Raises ``ConfigError`` with the line of the first thing that is wrong or cannot be honoured."""
    whole = open_json(job, environ)
    properties = inner_properties(whole, "job file", ("nodeCount", "stdOutErrPathPrefix"))
    volumes, setup, notes = _read_cluster(cluster, environ) if cluster else ((), (), ())
    for name in _ANSWERS:
        properties.ignore(name, "the service reported it")
    if (target := properties.part("cluster")) is not None:
        target.ignore("id", "the job runs on the cluster of -c")
    if (preparation := properties.part("jobPreparation")) is not None:
        setup = (*setup, preparation.demanded("commandLine"))
    nodes = properties.whole("nodeCount")
    if nodes is None:
        raise properties.error("", "needs nodeCount")
    found = BatchAiJob(
        nodes=nodes,
        toolkit=read_toolkit(properties, nodes),
        std_prefix=properties.demanded("stdOutErrPathPrefix"),
        file=properties,
        volumes=_distinct((*volumes, *_volumes(properties.part("mountVolumes")))),
        inputs=_directories(properties, "inputDirectories", "path"),
        outputs=_directories(properties, "outputDirectories", "pathPrefix"),
        env=_environment(properties),
        secrets=_secrets(properties),
        setup=setup,
        image=_image(properties.part("containerSettings")),
        seconds=_time_limit(properties.part("constraints")),
        priority=_priority(properties),
    )
    whole.demand_all_read()
    return replace(found, notes=(*notes, *whole.read.notes))


def _read_cluster(
    path: Path, environ: Mapping[str, str]
) -> tuple[tuple[Volume, ...], tuple[str, ...], tuple[str, ...]]:
    """The volumes, the setup lines and the notes of a cluster file."""
    whole = open_json(path, environ)
    properties = inner_properties(whole, "cluster file", ("vmSize", "scaleSettings", "nodeSetup"))
    for name in _MACHINES:
        properties.ignore(name, "blobsync creates no machines here; the cluster of -c has its own")
    for name in _CLUSTER_ANSWERS:
        properties.ignore(name, "the service reported it")
    volumes: tuple[Volume, ...] = ()
    setup: tuple[str, ...] = ()
    if (node := properties.part("nodeSetup")) is not None:
        volumes = tuple(_volumes(node.part("mountVolumes")))
        node.ignore("performanceCountersSettings", "Application Insights gets nothing from blobsync")
        if (task := node.part("setupTask")) is not None:
            setup = (_setup_task(task),)
    whole.demand_all_read()
    return volumes, setup, tuple(whole.read.notes)


def _setup_task(task: JsonPart) -> str:
    """The cluster's setup task as a line that runs before each job."""
    for name in ("stdOutErrPathPrefix", "stdOutErrPathSuffix"):
        task.ignore(name, "the node's log (system_logs) has what it prints")
    if any(True for _ in task.parts("secrets")):
        raise task.error("secrets", "a setup task has no secrets of its own here", hint="use secrets of the job")
    task.note("commandLine", "runs before each job, not once per machine, and as the job's user, not as root")
    env = _environment(task)
    values = "".join(f"export {name}={shlex.quote(value)}; " for name, value in env.items())
    return f"{values}{task.demanded('commandLine')}"


def _volumes(part: JsonPart | None) -> Iterator[Volume]:
    if part is None:
        return
    for one in part.parts("azureBlobFileSystems"):
        is_read_only, others = read_only_words((one.text("mountOptions"),))
        if others:
            one.note("mountOptions", "only read-only counts: blobsync mounts with the options of the folder entry")
        account, container = one.demanded("accountName"), one.demanded("containerName")
        yield Volume(_mount_path(one), "blob", one, account, container, key=_key(one), read_only=is_read_only)
    for one in part.parts("azureFileShares"):
        match = _SHARE_URL.fullmatch(one.demanded("azureFileUrl"))
        if not match:
            raise one.error("azureFileUrl", "is not https://ACCOUNT.file.core.windows.net/SHARE")
        for name in ("fileMode", "directoryMode"):
            one.ignore(name, "the folder entry in its place has its own permissions")
        one.ignore("accountName", "the folder entry in its place names the account")
        one.ignore("credentials", "the folder entry in its place names the account")
        yield Volume(_mount_path(one), f"Azure file share {match[2]}", one, match[1], share=match[2])
    for one in part.parts("fileServers"):
        server = one.part("fileServer")
        name = (server.demanded("id") if server else "").rpartition("/")[2]
        for key in ("sourceDirectory", "mountOptions"):
            one.ignore(key, "the folder entry in its place has its own path")
        yield Volume(_mount_path(one), f"NFS file server {name}".strip(), one)
    for one in part.parts("unmanagedFileSystems"):
        one.ignore("mountCommand", "blobsync mounts no file systems; the folder entry in its place is used")
        yield Volume(_mount_path(one), "file system of its own", one)


def _mount_path(part: JsonPart) -> str:
    given = part.demanded("relativeMountPath")
    path = posixpath.normpath(given.strip("/")) if given.strip("/") else ""
    if not path or path in (".", "..") or path.startswith("../") or "\\" in path:
        raise part.error("relativeMountPath", "must be a path below the mount root, such as data")
    return path


def _key(part: JsonPart) -> Secret | None:
    credentials = part.part("credentials")
    if credentials is None:
        return None
    credentials.refuse("accountKeySecretReference", _KEY_VAULT, hint="write accountKey, or an account file of blobsync")
    key = credentials.text("accountKey")
    return Secret(key) if key else None


def _distinct(volumes: tuple[Volume, ...]) -> tuple[Volume, ...]:
    """Volumes of the cluster and of the job share one root here."""
    seen: dict[str, Volume] = {}
    for volume in volumes:
        known = seen.setdefault(volume.path, volume)
        if known != volume:
            raise volume.where.error(
                "relativeMountPath",
                f"is {volume.path}, where another volume is mounted already: here both roots are one folder",
                hint="rename one of the two",
            )
    return tuple(seen.values())


def _directories(part: JsonPart, name: str, path: str) -> tuple[JobDirectory, ...]:
    found: dict[str, JobDirectory] = {}
    for one in part.parts(name):
        identity = one.demanded("id")
        if not _ID.fullmatch(identity):
            raise one.error("id", "becomes part of a variable: use letters, digits and _")
        if identity in found:
            raise one.error("id", f"is {identity}, which another directory has")
        suffix = one.text("pathSuffix") if path == "pathPrefix" else ""
        found[identity] = JobDirectory(identity, one.demanded(path), suffix)
    return tuple(found.values())


def _environment(part: JsonPart) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in part.parts("environmentVariables"):
        if not one.has("value"):
            raise one.error("", "needs value")
        found[_name(one)] = one.text("value")
    return found


def _secrets(part: JsonPart) -> dict[str, Secret]:
    found: dict[str, Secret] = {}
    for one in part.parts("secrets"):
        one.refuse("valueSecretReference", _KEY_VAULT, hint="write value, or secret_env in the cluster file")
        found[_name(one)] = Secret(one.demanded("value"))
    return found


def _name(part: JsonPart) -> str:
    name = part.demanded("name")
    if not _VARIABLE.fullmatch(name):
        raise part.error("name", "cannot be the name of an environment variable")
    return name


def _image(part: JsonPart | None) -> Image | None:
    if part is None:
        return None
    registry = part.part("imageSourceRegistry")
    if registry is None:
        raise part.error("", "needs imageSourceRegistry")
    username, password = "", ""
    if (credentials := registry.part("credentials")) is not None:
        credentials.refuse("passwordSecretReference", _KEY_VAULT, hint="write password, or docker in the cluster file")
        username, password = credentials.demanded("username"), credentials.demanded("password")
    server = registry.text("serverUrl")
    if server and not password:
        registry.note(
            "serverUrl", "has no credentials in this file: the nodes must be able to pull from it without them"
        )
    return Image(registry.demanded("image"), server, username, Secret(password) if password else None, _shm_size(part))


def _shm_size(part: JsonPart) -> str:
    text = part.text("shmSize")
    match = _SIZE.fullmatch(text)
    if text and not match:
        raise part.error("shmSize", "is not a size: write 512m or 16g")
    return f"{match[1]}{match[2].lower() or 'b'}" if match else ""


def _priority(part: JsonPart) -> str:
    """Microsoft's own examples say ``priority``, its specification ``schedulingPriority``."""
    given = [part.one_of(name, "low", "normal", "high") for name in ("schedulingPriority", "priority")]
    return given[0] or given[1]


def _time_limit(part: JsonPart | None) -> int | None:
    text = part.text("maxWallClockTime") if part else ""
    if not part or not text:
        return None
    if match := _NET.fullmatch(text):
        days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
        total = days * 86_400 + hours * 3600 + minutes * 60 + seconds
    else:
        total = iso_seconds(text) or 0
    if not total:
        raise part.error("maxWallClockTime", "is not a time: write P7D, PT1H30M or 7.00:00:00")
    return total


# The option of a job, and the key of ``batchai`` in a cluster file, that hold the text.
RECORDED = "job_file"
_VOLUME = ("path", "kind", "account", "container", "share", "read_only")
_IMAGE = ("name", "server", "username", "shm_size")


def record_job(job: BatchAiJob) -> str:
    """The job as one line of JSON."""
    env = {name: value for name, value in job.env.items() if not is_secret_name(name)}
    values = {
        "file": job.file.document.file,
        "nodes": job.nodes,
        "toolkit": asdict(job.toolkit),
        "std_prefix": job.std_prefix,
        "volumes": [{name: getattr(one, name) for name in _VOLUME} for one in job.volumes],
        "inputs": [asdict(one) for one in job.inputs],
        "outputs": [asdict(one) for one in job.outputs],
        "setup": list(job.setup),
        "env": env,
        "secrets": sorted({*job.secrets, *(job.env.keys() - env.keys())}),
        "image": {name: getattr(job.image, name) for name in _IMAGE} if job.image else None,
        "seconds": job.seconds,
        "priority": job.priority,
    }
    return json.dumps(values, sort_keys=True)


def recorded_job(text: str) -> tuple[BatchAiJob, tuple[str, ...]]:
    """The job file that a job was submitted from, and the names of its secret variables.

    Raises ``JobError`` for a record that blobsync did not write.
    """
    try:
        values = parse_object(text)
        file = JsonPart(Document(str(values.pop("file")), {}, {}), (), {}, {}, ReadKeys())
        secrets = tuple(map(str, values.pop("secrets")))
        job = made_of(BatchAiJob, values)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError("the job file that the job was submitted from cannot be read any more") from error
    return replace(job, file=file, volumes=tuple(replace(one, where=file) for one in job.volumes)), secrets
