"""Makes a job's specification from a cluster file and a request. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

from blobsync.ancestors.batchai_runtime import plain_options
from blobsync.ancestors.philly import gone_platform, philly_variables
from blobsync.base.errors import ConfigError, UsageError
from blobsync.base.records import dataclass
from blobsync.base.redaction import is_secret_name
from blobsync.config.job_keys import LINKING, READ_ONLY_MODES, demand_keys, folder_mode, read_only_words
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.jobspec.containers import OPTION as CONTAINER
from blobsync.jobspec.interactive import WAITING, duration_seconds, hold_seconds
from blobsync.jobspec.spec import (
    OWN_OUTPUT,
    SERVICES,
    CodeRef,
    FolderLink,
    JobOptions,
    JobRef,
    JobSpec,
    LogMirror,
    TaskArray,
)
from blobsync.jobspec.submit_options import ORDERING, SLURM_OPTIONS, SWEEPING, SubmitKeywords
from blobsync.jobspec.sweep import array_argument, demand_fillable, is_shell_line, read_array, sweep_tags
from blobsync.jobspec.topology import Bounds, JobShape, Size, asks_for_gpus, find_bounds, find_shape

# An image's address or file for docker and Apptainer; other first characters could make it an option.
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_.:/@+-]*")

# Keys of the cluster file that the node reads.
_FOR_NODES = ("work_dir", "command_prefix", "sleep_if_fail", "sleep_if_succeed")

# Where quotes may mean something else: here-documents, substitutions, and a # inside a word, which starts no comment.
_NOT_PLAIN = re.compile(r"<<|\$['({]|`|[^\s;&|()]#")


@dataclass(frozen=True, slots=True)
class SubmitRequest:
    """The options of one submission; None: the cluster file's. ``here``: in the foreground of this machine;
    ``elastic``: the bounds of an elastic job, ``MIN:MAX``; ``hold``: how long an interactive job waits, ``4h``;
    ``after``: the job that has to complete first; ``tasks``: those of a sweep, of which ``parallel`` run at a time."""

    argv: tuple[str, ...]
    num_gpu: int | None = None
    nodes: int | None = None
    name: str = ""
    multi_process: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    here: bool = False
    elastic: str = ""
    hold: str = ""
    after: JobRef | None = None
    tasks: TaskArray | None = None
    parallel: int | None = None

    @classmethod
    def of(cls, argv: Sequence[str], words: SubmitKeywords) -> SubmitRequest:
        """The request of these options, without the job that comes first, which the history knows."""
        return cls(
            tuple(argv),
            words.get("num_gpu"),
            words.get("nodes"),
            words.get("name", ""),
            words.get("multi_process"),
            {name: text for name in SLURM_OPTIONS if (text := words.get(name))},
            elastic=words.get("elastic") or "",
            hold=words.get("hold") or "",
            parallel=words.get("parallel"),
        )


def demand_platform(cluster: Cluster) -> None:
    """Raise ``ConfigError`` if no file has a platform: a job meant for a cluster must not run here."""
    if cluster.platform_given:
        return
    if gone := gone_platform(cluster):
        raise gone
    hint = "write platform: local to run jobs on this machine, or one of slurm, kubernetes, aml, itp, singularity"
    if "aml_config" in cluster.values:
        hint = "for Azure ML, name its compute_target as well; to run jobs on this machine, write platform: local"
    raise ConfigError("is missing, so no job can run", file=cluster.file, key="platform", hint=hint)


def demand_command(request: SubmitRequest) -> None:
    """Raise ``UsageError`` if there is nothing to run, or a shell line that no shell can run."""
    if not request.argv or not request.argv[0].strip():
        raise UsageError("no command given", hint="blobsync submit python train.py --data voc20")
    if is_shell_line(request.argv) and _has_open_quote(request.argv[0]):
        raise UsageError("a quote is opened and not closed, so no shell can run the command", hint="close the quote")


def _has_open_quote(line: str) -> bool:
    """Whether a shell would wait for the end of a quote. Where that takes a shell to know, it decides on the node."""
    if _NOT_PLAIN.search(line):
        return False
    try:
        shlex.split(line, comments=True)
    except ValueError:
        return True
    return False


def describe(cluster: Cluster, request: SubmitRequest, run_id: str, code: CodeRef | None) -> JobSpec:
    """The specification of one submission. Raises ``UsageError`` and ``ConfigError``."""
    hold = None if request.here else hold_seconds(request.argv, request.hold)
    if hold:
        request = _waiting(cluster, request)
    demand_command(request)
    if not request.here:
        demand_keys(cluster.job_refusals)
    if request.options and cluster.platform != "slurm":
        option = next(iter(request.options))
        limit = "the cluster file's timeout is the limit: -p '{timeout: 5h}'" if option == "time" else None
        raise UsageError(f"--{option} is for Slurm, and {cluster.name} is {cluster.platform}", hint=limit)
    if request.after and cluster.platform not in ORDERING:
        raise UsageError(
            f"--after is for Slurm and this machine, and {cluster.name} is {cluster.platform}",
            hint="submit --wait ends with the job; then submit the next one",
        )
    bounds = elastic_bounds(cluster, request)
    shape = shape_of(cluster, request)
    tasks = tasks_of(cluster, request)
    secret = secret_names(cluster)
    env = {**philly_variables(cluster), **{name: cluster.env[name] for name in cluster.env if name not in secret}}
    options: dict[str, Any] = {name: cluster.value(name) for name in _FOR_NODES if cluster.value(name)}
    options.update({name: value for name, value in request.options.items() if name != "array"})
    options.update(plain_options(cluster.value("batchai"), env))
    if hold:
        options["hold"] = hold
    if own := own_variables(cluster):
        options["own_env"] = own
    if request.after:
        options["after"] = {"run_id": request.after.run_id, "native_id": request.after.native_id}
    options.update(own_output(cluster))
    options.update(container(cluster, request))
    if code is None:
        options["in_place"] = str(cluster.root)
    return JobSpec(
        run_id=run_id,
        argv=request.argv,
        cluster=cluster.name,
        platform=cluster.platform,
        name=request.name,
        **shape._asdict(),
        min_nodes=bounds.least if bounds else None,
        max_nodes=bounds.most if bounds else None,
        image=image_of(cluster),
        env=env,
        secret_env=secret,
        code=code,
        folders=tuple(folder_link(cluster, entry) for entry in cluster.folders),
        logs=find_mirror(cluster, run_id),
        setup=setup_lines(cluster),
        timeout_s=time_limit(cluster),
        preemptible=cluster.flag("preemption_allowed"),
        retries=cluster.number("retries") or 0,
        options=cast("JobOptions", options),
        tasks=tasks,
        tags=sweep_tags(tasks) if tasks else {},
    )


def tasks_of(cluster: Cluster, request: SubmitRequest) -> TaskArray | None:
    """The tasks of a sweep, or of Slurm's ``array``; None: the command runs once. Raises ``UsageError``."""
    if request.here:
        return None
    array, tasks = _array(cluster, request), request.tasks
    if request.tasks and request.options.get("array"):
        raise UsageError("--array and --sweep are two lists of tasks", hint="use only one of them")
    if array and tasks is None:
        tasks = _read_array(cluster, array, is_option="array" in request.options)
    if tasks is None:
        if request.parallel:
            raise UsageError("--parallel is for the tasks of --sweep", hint="--sweep 'seed=0..4' --parallel 2")
        return None
    demand_fillable(request.argv, tasks)
    if cluster.platform not in SWEEPING:
        which = "Slurm, Kubernetes, Azure ML's own computes and this machine"
        raise UsageError(f"--sweep is for {which}, and {cluster.name} is {cluster.platform}")
    parallel = min(request.parallel or tasks.parallel, tasks.count)
    if parallel and cluster.platform == "kubernetes" and shape_of(cluster, request).nodes > 1:
        queue = cluster.text("kubernetes.queue") or "NAME"
        raise UsageError(
            "--parallel: on Kubernetes a task of several nodes is a Job of its own, and only a queue counts those",
            hint=f"omit --parallel; kubernetes: {{queue: {queue}}} leaves that to the quota of Kueue's queue",
        )
    return replace(tasks, parallel=parallel)


def _read_array(cluster: Cluster, text: str, *, is_option: bool) -> TaskArray:
    try:
        return read_array(text)
    except UsageError as error:
        if is_option:
            raise
        key = "slurm.array" if cluster.text("slurm.array") else "slurm.args"
        raise ConfigError(f"{text!r} are not numbers of tasks", file=cluster.file, key=key, hint=error.hint) from error


def _array(cluster: Cluster, request: SubmitRequest) -> str:
    """``--array``, or the array of the cluster file's ``slurm``, which may also be among its ``args``."""
    own = ""
    if cluster.platform == "slurm":
        own = cluster.text("slurm.array") or array_argument(cluster.texts("slurm.args"))
    return str(request.options.get("array") or own)


def _waiting(cluster: Cluster, request: SubmitRequest) -> SubmitRequest:
    """The size of an interactive job: one program on each node, with all GPUs."""
    if request.elastic or cluster.number("min_nodes") or cluster.number("max_nodes"):
        raise UsageError("a job that waits for you has a fixed size", hint="omit --elastic, min_nodes and max_nodes")
    if _array(cluster, request) or request.tasks:
        raise UsageError("a job that waits for you cannot have tasks", hint="omit --array and --sweep")
    return replace(request, argv=WAITING, multi_process=False)


def elastic_bounds(cluster: Cluster, request: SubmitRequest) -> Bounds | None:
    """The bounds of an elastic job; None: a fixed number of nodes. Raises ``UsageError`` and ``ConfigError``."""
    if request.here:
        return None
    if request.elastic and cluster.value("elastic_num_gpu"):
        raise UsageError(
            f"--elastic {request.elastic} and elastic_num_gpu of {cluster.file} cannot be combined",
            hint="use only one of them",
        )
    least, most = cluster.number("min_nodes"), cluster.number("max_nodes")
    bounds = find_bounds(cluster.platform, request.elastic, least, most, cluster.file)
    if bounds and (_array(cluster, request) or request.tasks):
        raise UsageError(
            "an elastic job cannot have tasks", hint="omit --array and --sweep, or submit it without --elastic"
        )
    return bounds


def shape_of(cluster: Cluster, request: SubmitRequest) -> JobShape:
    """The job's nodes and processes. Raises ``UsageError``."""
    if cluster.platform == "slurm":
        _demand_no_gres(cluster, request)
    return find_shape(
        Size(
            cluster.platform,
            _gpus_asked(cluster, request),
            request.nodes,
            cluster.gpu_per_node,
            cluster.number("nodes"),
            request.multi_process if request.multi_process is not None else cluster.multi_process,
            cluster.number("process_count_per_node"),
            request.here,
            None if cluster.platform in SERVICES else elastic_bounds(cluster, request),
        )
    )


def _gpus_asked(cluster: Cluster, request: SubmitRequest) -> int | None:
    return request.num_gpu if request.num_gpu is not None else cluster.num_gpu


def _demand_no_gres(cluster: Cluster, request: SubmitRequest) -> None:
    """``-n 0`` and a fixed ``gres`` contradict each other."""
    gres = str(request.options.get("gres") or cluster.text("slurm.gres") or "")
    if _gpus_asked(cluster, request) == 0 and not request.here and asks_for_gpus(gres) and "{gpus}" not in gres:
        raise UsageError(
            f"-n 0 requests no GPU, but gres {gres} does", hint="write gres: gpu:{gpus} in the cluster file"
        )


def own_variables(cluster: Cluster) -> list[str]:
    """The variables that were set for this job alone, by ``--env`` or ``-p``: they stay with it on another cluster."""
    if cluster.written is None:
        return []
    overrides = cluster.written.overrides
    given = overrides.get("env")
    names = {*given} if isinstance(given, Mapping) else set()
    names |= {key.partition("$")[2] for key in overrides if key.startswith("env$")}
    return sorted(name for name in names if name in cluster.env)


def secret_names(cluster: Cluster) -> tuple[str, ...]:
    """The variables whose values are never recorded: those in ``secret_env``, and those with names of secrets."""
    listed = cluster.texts("secret_env")
    return tuple(sorted(name for name in cluster.env if name in listed or is_secret_name(name)))


def folder_link(cluster: Cluster, entry: FolderEntry) -> FolderLink:
    """The folder entry for a job on ``cluster``."""
    mode = folder_mode(cluster.platform, entry)
    if entry.storage_type == "file" and cluster.platform in LINKING and mode != "link":
        raise ConfigError(
            f"a {cluster.platform} job cannot use an Azure file share",
            file=cluster.file,
            key=f"config_param.{entry.key}",
            hint="mount the share yourself and use mode: link",
        )
    return FolderLink(
        entry.prefix,
        str(entry.account.container),
        entry.path,
        mode,
        source=_link_source(cluster, entry) if mode == "link" else "",
        include=entry.include,
        cache_seconds=entry.blob_cache_timeout,
        ignore=entry.ignore,
        # The mode says read-only.
        fuse_options=read_only_words(entry.blob_fuse_options)[1],
        checkpoints=entry.checkpoints if mode == "upload" else None,
        modes=entry.modes,
        times=entry.times,
    )


def _link_source(cluster: Cluster, entry: FolderEntry) -> str:
    base = cluster.text("slurm.shared_root") if cluster.platform == "slurm" else None
    if base is None and cluster.platform == "slurm" and cluster.text("ssh"):
        raise ConfigError(
            f"mode link needs slurm.shared_root, the project's folder on {cluster.text('ssh')}",
            file=cluster.file,
            key=f"config_param.{entry.key}",
            hint="set slurm: {shared_root: /path/there}, or mode: download",
        )
    return f"{base or cluster.root}/{entry.prefix}"


def image_of(cluster: Cluster, *, here: bool = False) -> str | None:
    """The image of ``docker``. Raises ``ConfigError`` for an invalid one, where blobsync itself runs it."""
    image = cluster.docker.reference
    if image is not None and (here or cluster.platform in LINKING) and not _IMAGE.fullmatch(image):
        raise ConfigError(f"{image!a} is not an image name", file=cluster.file, key="docker.image")
    return image


def container(cluster: Cluster, request: SubmitRequest) -> dict[str, Any]:
    """The image for backends where blobsync runs it; None with ``use_custom_docker: false``."""
    docker = cluster.docker
    if request.here or cluster.platform not in LINKING or docker.reference is None:
        return {}
    if cluster.value("use_custom_docker") is False:
        return {}
    options = {"runtime": docker.runtime, "args": docker.args, "shm_size": docker.shm_size}
    return {CONTAINER: {"file": cluster.file, **{name: value for name, value in options.items() if value}}}


def own_output(cluster: Cluster) -> dict[str, str]:
    """The folder entry in which the job gets a folder of its own, with ``output: per_job``. Raises ``ConfigError``."""
    if cluster.text("output") != "per_job":
        return {}
    named = [entry for entry in cluster.folders if entry.is_output]
    written = [entry for entry in named if entry.mode not in READ_ONLY_MODES]
    if not written:
        raise ConfigError(
            "is per_job, but there is no output folder that jobs write to",
            file=cluster.file,
            key="output",
            hint="add output_folder under config_param",
        )
    return {OWN_OUTPUT: min(written, key=lambda entry: len(entry.prefix)).prefix}


def find_mirror(cluster: Cluster, run_id: str) -> LogMirror | None:
    """Where a job's logs are mirrored; None: nowhere."""
    place = mirror_place(cluster)
    return LogMirror(str(place[0].container), f"{place[1]}/{run_id}") if place else None


def mirror_place(cluster: Cluster) -> tuple[StorageAccount, str] | None:
    """The container and the folder of all mirrored logs: beside the output folder, so that ``u --mirror output`` does
    not delete them. Azure ML keeps logs, and a list of jobs, itself."""
    if cluster.platform in SERVICES:
        return None
    entries = sorted(cluster.folders, key=lambda entry: (not entry.is_output, entry.mode != "upload"))
    chosen = entries[0] if entries and (entries[0].is_output or entries[0].mode == "upload") else cluster.code
    return (chosen.account, f"{chosen.remote.name or 'blobsync'}.logs") if chosen else None


def setup_lines(cluster: Cluster) -> tuple[str, ...]:
    """``setup``; without it, on Azure ML, ACT's default: requirements.txt and compile.aml.sh, if they exist."""
    given = cluster.texts("setup")
    if any(map(_has_open_quote, given)):
        raise ConfigError(
            "a quote is opened and not closed, so no shell can run it",
            file=cluster.file,
            key="setup",
            hint="close the quote",
        )
    if given or cluster.platform in LINKING:
        return given
    compile_args = cluster.text("compile_args") or ""
    # These files are at the code's root.
    there = 'cd "$BLOBSYNC_ROOT"; ' if cluster.text("work_dir") else ""
    return (
        f"{there}if [ -e requirements.txt ]; then python -m pip install -r requirements.txt; fi",
        f"{there}if [ -e compile.aml.sh ]; then bash compile.aml.sh {compile_args}; fi",
    )


def time_limit(cluster: Cluster) -> int | None:
    """``timeout`` in seconds: ``90m``, ``5h``, ``2d``, or a number of seconds."""
    text = cluster.text("timeout")
    seconds = duration_seconds(text) if text else None
    if text and seconds is None:
        raise ConfigError(f"{text!r} is not a duration: write 90m, 5h or 2d", file=cluster.file, key="timeout")
    return seconds
