"""Every key that a configuration file may hold, with its type.

The first part of the cluster table is ACT's, then come Philly's and ours. ``docs/configuration.md``
documents each; a test keeps the two in sync. A misspelt word gets the most similar known one.
"""

import enum
from collections.abc import Iterable, Mapping

from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import NamedTuple

CODE_KEY = "code_path"
FOLDER_SUFFIX = "_folder"
PLATFORMS = ("local", "slurm", "aml", "itp", "singularity", "kubernetes")
# Services that no longer exist; their files are read, for transfers and for `convert`.
GONE_PLATFORMS = ("philly", "batchai")
AUTH_CHOICES = ("sas", "key", "identity")
RELAY_CHOICES = ("ask", "auto")
UNDO_CHOICES = ("required", "optional")
ENGINE_CHOICES = ("auto", "azcopy", "direct", "relay")
FOLDER_MODES = ("link", "mount", "ro_mount", "download", "upload")


class Kind(enum.Enum):
    """The type of a value; the values are its names in messages."""

    TEXT = "a text"
    WHOLE = "a whole number"
    FLAG = "true or false"
    TEXTS = "a list of texts"
    WHOLES = "a list of whole numbers"
    SIZE = "a size such as 50 MB or a number of bytes"
    MAPPING = "a mapping"
    MAPPINGS = "a list of mappings"
    TEXT_OR_MAPPING = "a text or a mapping"
    ENVIRONMENT = "a mapping of names to texts"
    FOLDERS = "a mapping of folder entries"
    PROGRAM = "a program's name or an absolute path"


class Key(NamedTuple):
    """What a key may hold. ``keys`` are those of a mapping, None if any key is allowed.

    ``quoted``: messages may show a wrong value. In an account file it may be a key or a SAS in the wrong line.
    """

    kind: Kind
    keys: "Mapping[str, Key] | None" = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    quoted: bool = True


# A word that a shell looks up, or an absolute path: never relative to the folder in which a command runs.
PROGRAM_FORM = pattern(r"(?:~?/[A-Za-z0-9_./+@,-]*|)[A-Za-z0-9_][A-Za-z0-9_.+-]*")

TEXT = Key(Kind.TEXT)
PROGRAM = Key(Kind.PROGRAM)
SECRET = Key(Kind.TEXT, secret=True)
WHOLE = Key(Kind.WHOLE)
FLAG = Key(Kind.FLAG)
TEXTS = Key(Kind.TEXTS)
FREE_MAPPING = Key(Kind.MAPPING)


def one_of(*choices: str) -> Key:
    """A text that must be one of these."""
    return Key(Kind.TEXT, choices=choices)


# What a file with ``storage_type: s3`` does not have, and what only such a file has.
OF_AZURE: Mapping[str, Key] = {
    "account_name": TEXT,
    "container_name": TEXT,
    "account_key": SECRET,
    "sas_token": SECRET,
    "blob_endpoint": TEXT,
    "auth": one_of(*AUTH_CHOICES)._replace(quoted=False),
}
OF_BUCKETS: Mapping[str, Key] = {
    "bucket": TEXT,
    "endpoint": TEXT,
    "region": TEXT,
    "profile": TEXT,
    "anonymous": FLAG,
    "requester_pays": FLAG,
}
ACCOUNT: Mapping[str, Key] = {**OF_AZURE, "storage_type": one_of("blob", "s3"), **OF_BUCKETS}

WORKSPACE: Mapping[str, Key] = {
    "subscription_id": TEXT,
    "resource_group": TEXT,
    "workspace_name": TEXT,
    "management_endpoint": TEXT,
    "api_version": TEXT,
}

# How the sets of files of a folder entry are uploaded, besides ``checkpoints`` itself.
_CHECKPOINTS: Mapping[str, Key] = {
    "complete": TEXTS,
    "settle_seconds": WHOLE,
    "restore": TEXT,
    "restore_from": TEXT,
    "keep_last": WHOLE,
    "keep_every": WHOLE,
    "keep_best": TEXT,
    "upload_cores": WHOLE,
    "cap_mbps": WHOLE,
}
CHECKPOINT_KEYS = tuple(_CHECKPOINTS)
RESTORE_CHOICES = ("latest", "best", "own", "none")

FOLDER: Mapping[str, Key] = {
    "azure_blob_config_file": TEXT,
    "path": TEXT,
    "datastore_name": TEXT,
    "storage_type": one_of("blob", "file"),
    "file_share": TEXT,
    "blob_cache_timeout": WHOLE,
    "submit_with_url": FLAG,
    "blob_fuse_options": TEXTS,
    "mode": one_of(*FOLDER_MODES),
    "include": TEXTS,
    "ignore": TEXTS,
    "modes": FLAG,
    "times": FLAG,
    "checkpoints": TEXT,
    **_CHECKPOINTS,
}

DOCKER: Mapping[str, Key] = {
    "image": TEXT,
    "tag": TEXT,
    "environment": TEXT,
    "runtime": one_of("docker", "podman", "apptainer", "singularity"),
    "address": TEXT,
    "username": TEXT,
    "password": SECRET,
    "shm_size": TEXT,
    "args": TEXTS,
}

MOUNT: Mapping[str, Key] = {
    "blob_mount_point": TEXT,
    "azure_blob_config_file": TEXT,
    "blob_fuse_options": TEXTS,
}

GLOBAL_DISPATCH: Mapping[str, Key] = {
    "vm_size": TEXTS,
    "region": TEXTS,
    "my_resource_only": FLAG,
    "low_priority_vm_tolerant": FLAG,
    "cluster_selection_policy": TEXT,
}

SLURM: Mapping[str, Key] = {
    "partition": TEXT,
    "qos": TEXT,
    "account": TEXT,
    "time": TEXT,
    "gres": TEXT,
    "constraint": TEXT,
    "reservation": TEXT,
    "array": TEXT,
    "mem": TEXT,
    "cpus_per_task": WHOLE,
    "exclusive": FLAG,
    "launcher": one_of("srun", "mpirun"),
    "shared_root": TEXT,
    "job_root": TEXT,
    "export": TEXTS,
    "args": TEXTS,
}

TOLERATION: Mapping[str, Key] = {
    "key": TEXT,
    "operator": one_of("Equal", "Exists"),
    "value": TEXT,
    "effect": one_of("NoSchedule", "PreferNoSchedule", "NoExecute"),
}

KUBERNETES: Mapping[str, Key] = {
    "context": TEXT,
    "namespace": TEXT,
    "image": TEXT,
    "service_account": TEXT,
    "node_selector": FREE_MAPPING,
    "tolerations": Key(Kind.MAPPINGS, keys=TOLERATION),
    "priority_class": TEXT,
    "queue": TEXT,
    "cpu": TEXT,
    "memory": TEXT,
    "shm_size": TEXT,
    "pull_secret": TEXT,
    "ttl_days": WHOLE,
    "gpu_resource": TEXT,
    "security_context": Key(Kind.TEXT_OR_MAPPING),
}

LOCAL: Mapping[str, Key] = {
    "slots": WHOLE,
    "gpus": WHOLE,
}

TRASH: Mapping[str, Key] = {
    "days": WHOLE,
    "size": Key(Kind.SIZE),
}

QUEUE: Mapping[str, Key] = {
    "job_tier": TEXT,
    "priority": TEXT,
}

RUNTIME: Mapping[str, Key] = {
    "python": PROGRAM,
    "scratch": TEXT,
    "keep_root": one_of("never", "failed", "always"),
    "sync_seconds": WHOLE,
}

# What jobs of Azure Batch AI relied on, as `convert batchai` writes it; paths hold variables of the job.
BATCHAI: Mapping[str, Key] = {
    "toolkit": TEXT,
    "std_out_err": TEXT,
    "inputs": FREE_MAPPING,
    "outputs": FREE_MAPPING,
    "workers": WHOLE,
    "parameter_servers": WHOLE,
    "communication_backend": TEXT,
    "mpi_processes": WHOLE,
    "job_file": TEXT,
}

_ACT: Mapping[str, Key] = {
    "azure_blob_config_file": TEXT,
    "datastore_name": TEXT,
    "aml_config": Key(Kind.TEXT_OR_MAPPING, keys=WORKSPACE),
    "config_param": Key(Kind.FOLDERS, keys=FOLDER),
    "use_custom_docker": FLAG,
    "compute_target": TEXT,
    "aks_compute": FLAG,
    "docker": Key(Kind.MAPPING, keys=DOCKER),
    "experiment_name": TEXT,
    "use_cli_auth": FLAG,
    "multi_process": FLAG,
    "gpu_per_node": WHOLE,
    "num_gpu": WHOLE,
    "env": Key(Kind.ENVIRONMENT),
    "zip_options": TEXTS,
    "platform": one_of(*PLATFORMS, *GONE_PLATFORMS),
    "source_directory": TEXT,
    "entry_script": TEXT,
    "with_log": FLAG,
    "with_details": FLAG,
    "log_full": FLAG,
    "sleep_if_fail": FLAG,
    "sleep_if_succeed": FLAG,
    "compile_args": TEXT,
    "preemption_allowed": FLAG,
    "elastic_num_gpu": Key(Kind.WHOLES),
    "aks_compute_global_dispatch": FLAG,
    "aks_compute_global_dispatch_arg": Key(Kind.MAPPING, keys=GLOBAL_DISPATCH),
    "unique_gjd_cluster": FLAG,
    "singularity_sla_tier": TEXT,
    "singularity_instance_type": TEXT,
    "process_count_per_node": WHOLE,
    "interpreter_path": PROGRAM,
    "command_prefix": TEXT,
    "inject_collection": TEXT,
    "is_ssh_scheduler": FLAG,
}

_PHILLY: Mapping[str, Key] = {
    "vc": TEXT,
    "vc_type": TEXT,
    "cluster": TEXT,
    "user_name": TEXT,
    "password": SECRET,
    "blob_mount_point": TEXT,
    "blob_mount_info": Key(Kind.MAPPINGS, keys=MOUNT),
    "docker_tag": TEXT,
    "isDebug": FLAG,
    "use_blob_as_input": FLAG,
}

# Keys of the workspace file only.
PHILLY_MARKS = frozenset({"vc", "vc_type", "blob_mount_point", "blob_mount_info"})

_OURS: Mapping[str, Key] = {
    "relay": one_of(*RELAY_CHOICES),
    "trash": Key(Kind.MAPPING, keys=TRASH),
    "undo": one_of(*UNDO_CHOICES),
    "engine": one_of(*ENGINE_CHOICES),
    "ignore": TEXTS,
    "max_file_size": Key(Kind.SIZE),
    "output": one_of("shared", "per_job"),
    "nodes": WHOLE,
    "min_nodes": WHOLE,
    "max_nodes": WHOLE,
    "launcher": one_of("mpi", "pytorch", "none"),
    "instance_type": TEXT,
    "sla_tier": TEXT,
    "priority": TEXT,
    "queue_settings": Key(Kind.MAPPING, keys=QUEUE),
    "timeout": TEXT,
    "retries": WHOLE,
    "setup": TEXT,
    "work_dir": TEXT,
    "ssh": TEXT,
    "ssh_public_key": TEXT,
    "identity": Key(Kind.TEXT_OR_MAPPING),
    "secret_env": TEXTS,
    "runtime": Key(Kind.MAPPING, keys=RUNTIME),
    "local": Key(Kind.MAPPING, keys=LOCAL),
    "batchai": Key(Kind.MAPPING, keys=BATCHAI),
    "slurm": Key(Kind.MAPPING, keys=SLURM),
    "kubernetes": Key(Kind.MAPPING, keys=KUBERNETES),
    "singularity": FREE_MAPPING,
    "itp": FREE_MAPPING,
}

# The user's own file, outside all projects.
USER: Mapping[str, Key] = {
    "trusted_hosts": TEXTS,
    "allowed_variables": TEXTS,
    "safe_projects": TEXTS,
    "trusted_buckets": TEXTS,
    "trusted_profiles": TEXTS,
    "notify": Key(Kind.MAPPING, keys={"command": TEXTS}),
}

CLUSTER: Mapping[str, Key] = {**_ACT, **_PHILLY, **_OURS}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The most similar of ``known``, or None if none is similar enough to suggest."""
    # difflib is needed only for errors; importing it here keeps start-up fast.
    from difflib import get_close_matches

    candidates = {item.lower(): item for item in known}
    found = get_close_matches(word.lower(), list(candidates), n=1, cutoff=0.6)
    return candidates[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint with the most similar known word, or None."""
    guess = nearest(word, known)
    return f"did you mean '{guess}'?" if guess else None
