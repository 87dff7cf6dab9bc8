"""What a cluster file says that its jobs cannot use, or do not. Pure.

``config check`` and ``submit`` report them; transfers are not affected. The tables are the only list of keys without
effect: a test checks that every other key is read somewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blobsync.config.model import AML_PLATFORMS
from blobsync.config.typed import FOLDER_SUFFIX
from blobsync.config.yaml_lines import Document, KeyPath

NESTED_HINT = "give the outer one mode ro_mount or download, or remove one of the two from this cluster file"
# Read-only folders can be linked into a directory of ours, beside other folders.
READ_ONLY_MODES = ("download", "ro_mount")

_ACT = "only ACT used it"
_PHILLY = "only Philly used it"
_REGISTRY = "Azure ML v2 takes it from a workspace connection, or lets the compute's identity pull (role AcrPull)"

# Keys that are accepted but have no effect, with the reason; * stands for any entry of a mapping or list.
IDLE: Mapping[str, str] = {
    "source_directory": _ACT,
    "entry_script": _ACT,
    "with_log": _ACT,
    "with_details": _ACT,
    "log_full": _ACT,
    "inject_collection": _ACT,
    "is_ssh_scheduler": _ACT,
    "unique_gjd_cluster": "Azure ML v2 has no counterpart",
    "aks_compute_global_dispatch_arg.cluster_selection_policy": "Azure ML v2 has no counterpart",
    "queue_settings.priority": "only preview versions of Azure ML's interface have it",
    "config_param.*.submit_with_url": "everybody could read a URL in the job; blobsync uses a datastore instead",
    "vc": "it names no place to run; programs find it in PHILLY_VC",
    "vc_type": _PHILLY,
    "cluster": _PHILLY,
    "user_name": "no login needs it; programs find it in PHILLY_USER",
    "password": _PHILLY,
    "docker_tag": f"{_PHILLY}; use docker: {{tag: ...}}",
    "isDebug": _PHILLY,
    "use_blob_as_input": _PHILLY,
}

# Keys that only jobs on these platforms use.
ONLY_ON: Mapping[str, tuple[str, ...]] = {
    "priority": ("itp", "singularity"),
    "elastic_num_gpu": ("itp", "singularity"),
    "preemption_allowed": AML_PLATFORMS,
    "queue_settings": AML_PLATFORMS,
    "sla_tier": ("aml", "singularity"),
    "instance_type": AML_PLATFORMS,
    "identity": AML_PLATFORMS,
    "launcher": AML_PLATFORMS,
    "ssh_public_key": AML_PLATFORMS,
    "timeout": ("slurm", "kubernetes", *AML_PLATFORMS),
    "docker.username": ("kubernetes",),
    "docker.password": ("kubernetes",),
    "aks_compute_global_dispatch": ("itp",),
    "aks_compute_global_dispatch_arg": ("itp",),
    "singularity_sla_tier": ("singularity",),
    "singularity_instance_type": ("singularity",),
    "config_param.*.blob_cache_timeout": ("local", "slurm", "kubernetes"),
    "config_param.*.blob_fuse_options": ("local", "slurm"),
    "blob_mount_info.*.blob_fuse_options": ("local", "slurm"),
}

# What to do instead on Azure ML.
_THERE: Mapping[str, str] = {"docker.username": _REGISTRY, "docker.password": _REGISTRY}


def enclosing(modes: Mapping[str, str]) -> Mapping[str, str]:
    """Folder entries, given with their modes, inside another one that jobs write to -> that one.

    Azure ML cannot mount a folder into a mounted one.
    """
    written = [name for name, mode in modes.items() if mode not in READ_ONLY_MODES]
    found = {name: max((one for one in written if name.startswith(f"{one}/")), key=len, default="") for name in modes}
    return {name: outer for name, outer in found.items() if outer}


def nested_sentence(outer: str) -> str:
    """What is wrong with a folder entry inside ``outer``."""
    return f"lies inside {outer}{FOLDER_SUFFIX}, and a folder that jobs write to cannot contain another one"


def job_notes(document: Document, values: Mapping[str, Any], platform: str, folders: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each key that jobs on ``platform`` cannot use or do not, with its place. No value is shown."""
    found = []
    for path, sentence in _findings(values, platform, folders):
        origin = document.origin(path)
        where = f"{origin.file}:{origin.line}" if origin.line else origin.file
        found.append(f"{where}: {'.'.join(path)}: {sentence}")
    return tuple(found)


def _findings(values: Mapping[str, Any], platform: str, folders: Sequence[str]) -> Iterator[tuple[KeyPath, str]]:
    for path, value in _given(values, ()):
        name = _pattern(path)
        if name in IDLE:
            yield path, f"has no effect: {IDLE[name]}"
        elif platform not in ONLY_ON.get(name, (platform,)) and value not in ({}, (), "", False):
            instead = f": {_THERE[name]}" if name in _THERE and platform in AML_PLATFORMS else ""
            yield path, f"has no effect on {platform} jobs, only on those of {', '.join(ONLY_ON[name])}{instead}"
    modes = {name: _mode(values, f"{name}{FOLDER_SUFFIX}") for name in folders}
    for inner, outer in enclosing(modes).items() if platform in AML_PLATFORMS else ():
        entry = ("config_param", f"{inner}{FOLDER_SUFFIX}")
        yield entry, f"{nested_sentence(outer)}: submit refuses it ({platform}), transfers do not; {NESTED_HINT}"


def _mode(values: Mapping[str, Any], key: str) -> str:
    entries = values.get("config_param")
    entry = entries.get(key) if isinstance(entries, Mapping) else None
    return str(entry.get("mode") or "") if isinstance(entry, Mapping) else ""


def _given(values: Mapping[str, Any], around: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Every key with something to say, at whatever depth: false asks for nothing."""
    for key, value in values.items():
        path = (*around, str(key))
        if value is not False:
            yield path, value
        if isinstance(value, Mapping):
            yield from _given(value, path)
        elif isinstance(value, tuple):
            inner = {str(number): item for number, item in enumerate(value) if isinstance(item, Mapping)}
            yield from _given(inner, path)


def _pattern(path: KeyPath) -> str:
    """The name of a key in the tables."""
    parts = list(path)
    if parts[0] in ("config_param", "blob_mount_info") and len(parts) > 1:
        parts[1] = "*"
    return ".".join(parts)
