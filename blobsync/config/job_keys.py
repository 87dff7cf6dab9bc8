"""Which keys of a cluster file apply to jobs on each platform, and what users are told about the others. Pure.

A job asks for what its cluster file says. A key that its platform does not support, and whose loss would change what
the job does or who may see it, is therefore refused by ``submit`` and everything else that creates jobs; transfers and
``blobsync local`` are not affected. A key that only labels a job, or says where another platform runs it, has no
effect, and one sentence names all of these. The tables are the only list of such keys: a test checks that every other
key is read somewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from blobsync.base.errors import ConfigError
from blobsync.base.formatting import count_text
from blobsync.config.known_keys import FOLDER_SUFFIX
from blobsync.config.model import AML_PLATFORMS, FolderEntry, JobRefusal, value_at
from blobsync.config.yaml_document import Document, KeyPath

NESTED_HINT = "give the outer one mode ro_mount or download, or remove one of the two from this cluster file"
# Read-only folders can be linked into a directory of ours, beside other folders.
READ_ONLY_MODES = ("download", "ro_mount")
_MOUNTED = ("mount", "ro_mount")
# Platforms whose jobs see the project's own folders, or a shared file system's.
LINKING = ("local", "slurm")

_OF_Q = "it says what a list of jobs shows: see blobsync q --help"
_PHILLY = "only Philly had it"
_NO_COUNTERPART = "Azure ML v2 has no counterpart"
_OWN_START = "blobsync starts jobs with a program of its own"
_REGISTRY = "Azure ML v2 takes it from a workspace connection, or lets the compute's identity pull (role AcrPull)"

# Keys without effect on a job: reported with the reason. * stands for any entry of a mapping or list.
IDLE: Mapping[str, str] = {
    "with_log": _OF_Q,
    "with_details": _OF_Q,
    "log_full": _OF_Q,
    "inject_collection": "blobsync keeps its own history: see blobsync history",
    "is_ssh_scheduler": "platform says where jobs are submitted",
    "vc_type": _PHILLY,
    "cluster": f"{_PHILLY}; platform says where jobs run",
    "password": f"{_PHILLY}; no login needs it",
    "config_param.*.submit_with_url": "everybody could read a URL in the job; nodes get the code in another way",
}

# Keys about how blobsync itself runs on a node, which have no effect on a job on this machine.
_OWN_PROGRAM = "jobs on this machine run with the blobsync that submitted them, in its state folder"
IDLE_HERE: Mapping[str, str] = dict.fromkeys(("interpreter_path", "runtime.python", "runtime.scratch"), _OWN_PROGRAM)

# Keys that no platform supports, with the reason.
NOWHERE: Mapping[str, str] = {
    "source_directory": _OWN_START,
    "entry_script": _OWN_START,
    "unique_gjd_cluster": _NO_COUNTERPART,
    "aks_compute_global_dispatch_arg.cluster_selection_policy": _NO_COUNTERPART,
    "queue_settings.priority": "only preview versions of Azure ML's interface have it",
    "docker_tag": f"{_PHILLY}; write docker: {{tag: ...}}",
    "isDebug": _PHILLY,
    "use_blob_as_input": f"{_PHILLY}; the path of each folder entry says it",
}

_IMAGE_PLATFORMS = ("kubernetes", *AML_PLATFORMS)
_MOUNTING = ("local", "slurm", "kubernetes")

# Keys that only these platforms support. Sections named like a platform are not listed.
ONLY_ON: Mapping[str, tuple[str, ...]] = {
    "aml_config": AML_PLATFORMS,
    "compute_target": AML_PLATFORMS,
    "experiment_name": AML_PLATFORMS,
    "datastore_name": AML_PLATFORMS,
    "config_param.*.datastore_name": AML_PLATFORMS,
    "priority": ("itp", "singularity"),
    "elastic_num_gpu": ("itp", "singularity"),
    "preemption_allowed": AML_PLATFORMS,
    "queue_settings": AML_PLATFORMS,
    "sla_tier": ("aml", "singularity"),
    "instance_type": AML_PLATFORMS,
    "identity": AML_PLATFORMS,
    "launcher": AML_PLATFORMS,
    "ssh_public_key": AML_PLATFORMS,
    "ssh": ("slurm",),
    "docker.environment": AML_PLATFORMS,
    "docker.runtime": LINKING,
    "docker.username": ("kubernetes",),
    "docker.password": ("kubernetes",),
    "docker.args": ("local", "slurm", *AML_PLATFORMS),
    "aks_compute_global_dispatch": ("itp",),
    "aks_compute_global_dispatch_arg": ("itp",),
    "singularity_sla_tier": ("singularity",),
    "singularity_instance_type": ("singularity",),
    "config_param.*.blob_cache_timeout": _MOUNTING,
    "config_param.*.blob_fuse_options": _MOUNTING,
    "blob_mount_info.*.blob_fuse_options": _MOUNTING,
}

# Keys that label a job, or say where, in which queue and by which program these platforms run it.
_LABELS_OF_SOME = (
    *("aml_config", "compute_target", "experiment_name", "datastore_name", "config_param.*.datastore_name"),
    *("instance_type", "queue_settings", "preemption_allowed", "ssh", "docker.runtime"),
    *("aks_compute_global_dispatch", "aks_compute_global_dispatch_arg"),
    *("singularity_sla_tier", "singularity_instance_type"),
)
LABELS: Mapping[str, tuple[str, ...]] = {
    **{name: ONLY_ON[name] for name in _LABELS_OF_SOME},
    **dict.fromkeys(("priority", "sla_tier"), AML_PLATFORMS),
    **dict.fromkeys(("aks_compute", "unique_gjd_cluster"), ("itp",)),
}

# What to do instead.
_INSTEAD: Mapping[str, str] = {
    "docker.username": _REGISTRY,
    "docker.password": _REGISTRY,
    "config_param.*.blob_cache_timeout": "Azure ML mounts folders with its own cache",
    "config_param.*.blob_fuse_options": "Azure ML mounts folders by itself; read-only is mode: ro_mount",
    "blob_mount_info.*.blob_fuse_options": "Azure ML mounts folders by itself; read-only is mode: ro_mount",
}

# Keys without effect if another key has another value, which takes precedence on these platforms.
OUTRANKED: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]] = {
    "instance_type": [("singularity_instance_type", ("singularity",))],
    "sla_tier": [("singularity_sla_tier", ("singularity",)), ("queue_settings.job_tier", ("aml",))],
    "docker.image": [("docker.environment", AML_PLATFORMS), ("kubernetes.image", ("kubernetes",))],
    "docker.tag": [("docker.environment", AML_PLATFORMS), ("kubernetes.image", ("kubernetes",))],
    "docker.shm_size": [("kubernetes.shm_size", ("kubernetes",))],
    "runtime.python": [("interpreter_path", ("slurm", *_IMAGE_PLATFORMS))],
    "timeout": [("slurm.time", ("slurm",))],
    "min_nodes": [("elastic_num_gpu", ("itp", "singularity"))],
    "max_nodes": [("elastic_num_gpu", ("itp", "singularity"))],
}


# An instance type that is a part of a machine ends with its number of GPUs: ND40_v2g1.
_INSTANCE_GPUS = re.compile(r"v[0-9]{1,2}g([1-9][0-9]?)$")


def enclosing(modes: Mapping[str, str]) -> Mapping[str, str]:
    """Maps each folder entry inside another one that jobs write to, to that one; ``modes`` are those of all entries.

    Azure ML cannot mount a folder into a mounted one.
    """
    written = [name for name, mode in modes.items() if mode not in READ_ONLY_MODES]
    found = {name: max((one for one in written if name.startswith(f"{one}/")), key=len, default="") for name in modes}
    return {name: outer for name, outer in found.items() if outer}


def nested_sentence(outer: str) -> str:
    """What is wrong with a folder entry inside ``outer``."""
    return f"is inside {outer}{FOLDER_SUFFIX}, and a folder that jobs write to cannot contain another one"


def folder_mode(platform: str, entry: FolderEntry) -> str:
    """How jobs see a folder: by the mode of its entry, else through a link or a mount.

    If a job sees a shared file system, or this very machine, links are cheapest. A mount whose blobfuse options
    make it read-only (``-o ro``) is a ``ro_mount`` on every platform.
    """
    mode = entry.mode or ("link" if platform in LINKING else "mount")
    return "ro_mount" if mode == "mount" and read_only_words(entry.blob_fuse_options)[0] else mode


def read_only_words(options: Sequence[str]) -> tuple[bool, tuple[str, ...]]:
    """Whether options for blobfuse ask for a read-only mount (``-o ro``, ``--read-only``), and the other options.

    ``-o`` and the word that follows it are one text: ``-o attr_timeout=240``.
    """
    words = iter([word for text in options for word in text.split()])
    is_read_only, rest = False, []
    for word in words:
        if word.startswith("-o"):
            given = (word[2:] or next(words, "")).split(",")
            kept = [option for option in given if option != "ro"]
            is_read_only = is_read_only or kept != given
            rest += [f"-o {','.join(kept)}"] if kept else []
        elif word in ("--read-only", "--read-only=true"):
            is_read_only = True
        else:
            rest.append(word)
    return is_read_only, tuple(rest)


def gpus_of_node(values: Mapping[str, Any], platform: str) -> int | None:
    """The number of GPUs of a node: that of the instance type, if its name ends with it, else ``gpu_per_node``."""
    _, count = _instance(values, platform)
    return count or values.get("gpu_per_node")


def _instance(values: Mapping[str, Any], platform: str) -> tuple[str, int | None]:
    """The instance type of a job on Azure ML, and its number of GPUs: one in ``ND40_v2g1``. None: unknown."""
    if platform not in AML_PLATFORMS:
        return "", None
    key = "singularity_instance_type" if platform == "singularity" else "instance_type"
    given = [values.get(key) or values.get("instance_type")]
    if platform == "itp" and values.get("aks_compute_global_dispatch"):
        given += value_at(values, ("aks_compute_global_dispatch_arg", "vm_size")) or ()
    names = [name.strip() for text in given if isinstance(text, str) for name in text.split(",")]
    counts = {int(match[1]) if (match := _INSTANCE_GPUS.search(name)) else None for name in names}
    # Several types with different numbers say nothing of a node.
    return ", ".join(names), counts.pop() if len(counts) == 1 else None


def job_keys(
    document: Document, values: Mapping[str, Any], platform: str, folders: Sequence[FolderEntry]
) -> tuple[Sequence[JobRefusal], tuple[str, ...]]:
    """Why jobs on ``platform`` are refused, and what users are told, each with its place. Shows no value."""
    refusals = [
        JobRefusal(path, document.error(path, sentence)) for path, sentence in _refused(values, platform, folders)
    ]
    notes = [f"{document.place(path)}: {'.'.join(path)}: {text}" for path, text in _notes(values, platform, folders)]
    return refusals, (*_labels(document, values, platform), *notes)


def _labels(document: Document, values: Mapping[str, Any], platform: str) -> Iterator[str]:
    """One sentence for each file that has labels and addresses of other platforms."""
    found: dict[str, list[str]] = {}
    for path, _ in _given(values, ()):
        if _is_label(path, platform) and not _is_label(path[:-1], platform):
            file, line = document.origin(path)
            found.setdefault(file, []).append(".".join(path) + (f" (line {line})" if line else ""))
    for file, keys in found.items():
        from blobsync.base.daily_warnings import DailyWarning  # late: most files have no such key

        yield DailyWarning(f"{file}: no effect on jobs on {platform}, only on other platforms: {', '.join(keys)}")


def _is_label(path: KeyPath, platform: str) -> bool:
    """Whether a key, or one around it, is a label or an address of other platforms."""
    return any(platform not in LABELS.get(_pattern(path[:size]), (platform,)) for size in range(1, len(path) + 1))


def demand_keys(refusals: Sequence[JobRefusal]) -> None:
    """Raise ``ConfigError`` for the first of these refusals; it names the others too."""
    if refusals:
        raise refusal_of(refusals)


def refusal_of(refusals: Sequence[JobRefusal]) -> ConfigError:
    """The error for the first of these refusals; it names the others too, with the way out for all of them."""
    first, *more = [one.error for one in refusals]
    others = ", ".join(f"{one.key} (line {one.line})" if one.line else f"{one.key} ({one.file})" for one in more)
    message = first.detail + (f"; refused as well: {others}" if others else "")
    without = _without([one.path for one in refusals])
    hint = f"remove {'them' if others else 'it'}" + (f", or for one command: {without}" if without else "")
    return ConfigError(message, file=first.file, line=first.line, key=first.key, hint=hint)


def _without(paths: Sequence[KeyPath]) -> str:
    """The option that removes these keys; empty if one of them is in a list, or contains a separator of keys."""
    if any(path[0] == "blob_mount_info" or any("$" in part for part in path) for path in paths):
        return ""
    param: dict[str, Any] = {}
    # Skip those inside another one, which is removed with its contents.
    for path in (path for path in paths if not any(path[:size] in paths for size in range(1, len(path)))):
        *around, last = path
        here = param
        for part in around:
            here = here.setdefault(part, {})
        here[last] = None
    return f"-p '{yaml.safe_dump(param, default_flow_style=True, width=10**6, sort_keys=False).strip()}'"


_Finding = tuple[KeyPath, str]
# Sections whose keys are names, or numbers.
_NAMED = ("config_param", "blob_mount_info")


def _refused(values: Mapping[str, Any], platform: str, folders: Sequence[FolderEntry]) -> Iterator[_Finding]:
    for path, value in _given(values, ()):
        name = _pattern(path)
        if _is_label(path, platform):
            continue
        if name in NOWHERE:
            yield path, f"jobs do not have it: {NOWHERE[name]}"
        elif platform not in ONLY_ON.get(name, (platform,)):
            if not (name.endswith(".blob_fuse_options") and not read_only_words(value)[1]):
                instead = f": {_INSTEAD[name]}" if name in _INSTEAD and platform in AML_PLATFORMS else ""
                yield path, f"jobs on {platform} do not have it, only those on {', '.join(ONLY_ON[name])}{instead}"
        elif reason := _outranked(name, value, values, platform):
            yield path, reason
    yield from _of_values(values, platform)
    for entry in folders:
        yield from _of_folder(values, platform, entry)
    yield from _of_mount_points(values, platform, folders)


def _outranked(name: str, value: Any, values: Mapping[str, Any], platform: str) -> str:
    """Why another key overrides this one; empty if it takes effect."""
    for winner, where in OUTRANKED.get(name, ()):
        other = value_at(values, winner.split("."))
        if platform in where and other not in (None, "") and other != value and not _is_told(name, values):
            return f"conflicts with {winner}, which {platform} uses: keep only one of them"
    return ""


def _of_values(values: Mapping[str, Any], platform: str) -> Iterator[_Finding]:
    """Keys that require or exclude another one."""
    if platform == "aml" and values.get("compute_target"):
        if values.get("preemption_allowed"):
            yield ("preemption_allowed",), "the compute cluster decides (low priority), not a job on it"
        if values.get("sla_tier"):
            yield ("sla_tier",), "only serverless jobs have one; a compute cluster has its own"
    elif platform == "aml" and values.get("preemption_allowed") and values.get("sla_tier", "Spot").lower() != "spot":
        yield ("sla_tier",), "a job that may be preempted has the tier Spot"
    dispatch = "aks_compute_global_dispatch"
    if platform == "itp" and values.get(f"{dispatch}_arg") and not values.get(dispatch):
        yield (f"{dispatch}_arg",), f"counts only with {dispatch}: true"
    if platform == "singularity" and not str(values.get("identity", "/subscriptions/")).startswith("/subscriptions/"):
        yield ("identity",), "Singularity takes the ARM id of a managed identity, and no other"
    has_image = value_at(values, ("kubernetes", "image"))
    if platform == "kubernetes" and values.get("use_custom_docker") is False and not has_image:
        yield ("use_custom_docker",), "jobs on kubernetes always run in docker.image, which false rules out"
    if platform == "local" and values.get("nodes", 1) > 1 and not values.get("max_nodes"):
        yield ("nodes",), "this machine is one node"
    if values.get("multi_process") is False and values.get("process_count_per_node", 1) != 1:
        yield ("process_count_per_node",), "conflicts with multi_process: false, which means one process on each node"


def _of_folder(values: Mapping[str, Any], platform: str, entry: FolderEntry) -> Iterator[_Finding]:
    """What a folder's mode does not support. With ``include`` a mount would be a copy, and what is written there
    lost."""
    mode, at = folder_mode(platform, entry), ("config_param", entry.key)
    written = value_at(values, at)
    own = written if isinstance(written, Mapping) else {}
    if mode == "link" and platform not in LINKING:
        yield (*at, "mode"), f"mode link needs a file system that this machine and the nodes of {platform} share"
    if entry.include and mode != "download" and not (mode == "ro_mount" and platform not in LINKING):
        yield (*at, "include"), f"only mode: download brings parts of a folder, and this one has mode {mode}"
    if mode not in _MOUNTED:
        needed = f"only a mounted folder has it, and this one has mode {mode}"
        for name in ("blob_cache_timeout", "blob_fuse_options"):
            if own.get(name) and platform in ONLY_ON[f"config_param.*.{name}"]:
                yield (*at, name), needed
    if entry.checkpoints and mode != "upload":
        yield (*at, "checkpoints"), f"only a folder with mode: upload has it, and this one has mode {mode}"
    if entry.storage_type == "file" and mode == "upload" and platform in AML_PLATFORMS:
        yield (*at, "mode"), "nodes upload to containers only: with mode mount jobs write to an Azure file share"
    if entry.storage_type == "file" and platform == "kubernetes":
        yield (*at, "storage_type"), "jobs on kubernetes cannot mount an Azure file share"
    if entry.file_share and (entry.storage_type != "file" or platform == "kubernetes"):
        yield (*at, "file_share"), "it counts only with storage_type: file, and where jobs can mount a share"


def _of_mount_points(values: Mapping[str, Any], platform: str, folders: Sequence[FolderEntry]) -> Iterator[_Finding]:
    """Options of a mount point if the folders below it are links because they have no mode."""
    for number, mount in enumerate(values.get("blob_mount_info", ())):
        options = mount.get("blob_fuse_options")
        linked = [entry.key for entry in folders if options and entry.blob_fuse_options == options and not entry.mode]
        if linked and platform in LINKING:
            at = ("blob_mount_info", str(number), "blob_fuse_options")
            yield at, f"{', '.join(linked)} is a link on {platform}, which has none: give it a mode"


def _notes(values: Mapping[str, Any], platform: str, folders: Sequence[FolderEntry]) -> Iterator[_Finding]:
    for path, _ in _given(values, ()):
        name = _pattern(path)
        if name in IDLE or (platform == "local" and name in IDLE_HERE):
            yield path, f"has no effect: {IDLE.get(name) or IDLE_HERE[name]}"
        elif name in OUTRANKED and platform in AML_PLATFORMS and _is_told(name, values):
            yield path, "has no effect: use_custom_docker is false, and docker.environment is what jobs run in"
    instance, count = _instance(values, platform)
    if count and values.get("gpu_per_node", count) != count:
        yield ("gpu_per_node",), f"has no effect: {instance} has {count_text(count, 'GPU')}"
    modes = {entry.prefix: folder_mode(platform, entry) for entry in folders}
    for entry in folders if platform in AML_PLATFORMS else ():
        if modes[entry.prefix] == "upload" and value_at(values, ("config_param", entry.key, "datastore_name")):
            yield ("config_param", entry.key, "datastore_name"), "has no effect: nodes upload this folder themselves"
    for inner, outer in enclosing(modes).items() if platform in AML_PLATFORMS else ():
        at = ("config_param", f"{inner}{FOLDER_SUFFIX}")
        yield at, f"{nested_sentence(outer)}: submit refuses it ({platform}), transfers do not; {NESTED_HINT}"


def _is_told(name: str, values: Mapping[str, Any]) -> bool:
    """ACT's own meaning of ``use_custom_docker: false``: the image is not used."""
    environment = value_at(values, ("docker", "environment"))
    return name in ("docker.image", "docker.tag") and values.get("use_custom_docker") is False and bool(environment)


def _given(values: Mapping[str, Any], around: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Every key that asks for something, at any depth; false and empty values do not."""
    for key, value in values.items():
        path = (*around, str(key))
        if value is not False and value not in ({}, (), ""):
            yield path, value
        if isinstance(value, Mapping):
            yield from _given(value, path)
        elif isinstance(value, tuple):
            inner = {str(number): item for number, item in enumerate(value) if isinstance(item, Mapping)}
            yield from _given(inner, path)


def _pattern(path: KeyPath) -> str:
    """The name of a key in the tables."""
    parts = list(path)
    if parts[0] in _NAMED and len(parts) > 1:
        parts[1] = "*"
    return ".".join(parts)
