"""Every environment variable that blobsync itself reads, outside jobs and in them.

A test compares these with the code.
"""

from __future__ import annotations

from collections.abc import Mapping

# Name -> what it does, for whoever runs blobsync.
FOR_USERS: Mapping[str, str] = {
    "AML_CONFIG_PATH": "the cluster file, where `-c` does not name one",
    "AML_LOG_FOLDER": "the folder for the logs of jobs, in place of `assets`",
    "AZURE_STORAGE_KEY": "may be used as `${AZURE_STORAGE_KEY}` in a storage account file",
    "AZURE_STORAGE_SAS_TOKEN": "may be used as `${AZURE_STORAGE_SAS_TOKEN}` in a storage account file",
    "BLOBSYNC_ALLOWED_VARIABLES": "more variables that a project file may use as `${NAME}`; commas or spaces between",
    "BLOBSYNC_AZCOPY": "the azcopy to use",
    "BLOBSYNC_AZCOPY_SOURCE": "where `azcopy install` gets the archive: a file or an address",
    "BLOBSYNC_AZURITE": "a folder into which npm installed azurite, for `emulator start`",
    "BLOBSYNC_ENGINE": "the engine, where `--engine` does not choose one",
    "BLOBSYNC_LARGE_PLAN": "from how many files on a plan is made on the disk; default 500,000",
    "BLOBSYNC_LOGIN": "`device-code` logs in with a code that you enter on another device",
    "BLOBSYNC_OUTAGE_SECONDS": "how long a command waits for a host that does not answer any more; default 300",
    "BLOBSYNC_SAFE_PROJECTS": "more projects of other users that you trust; `:` between the paths",
    "BLOBSYNC_TRANSPORT": "`curl` or `urllib3`: what sends requests",
    "BLOBSYNC_TRUSTED_BUCKETS": "buckets that a project may name, and your credentials read; with commas between them",
    "BLOBSYNC_TRUSTED_HOSTS": "more hosts that may get a credential; commas or spaces between them",
    "CUDA_VISIBLE_DEVICES": "the GPUs of this machine that `platform: local` gives to jobs",
    "HOME": "where your own files are",
    "PATH": "where programs are: azcopy, Node.js, kubectl, those of nodes",
    "REQUESTS_CA_BUNDLE": "certificates to trust, where `SSL_CERT_FILE` is not set",
    "SSL_CERT_FILE": "certificates to trust, in place of the system's",
    "SUDO_UID": "under sudo: whose project folders are trusted besides root's",
    "NO_COLOR": "not empty: no colours ([no-color.org](https://no-color.org))",
    "TERM": "`dumb`: no progress bar",
    "USER": "the name of a job's owner",
    "XDG_CONFIG_HOME": "where your own configuration file is; default `~/.config`",
    "XDG_DATA_HOME": "where azcopy and the emulator are installed; default `~/.local/share`",
    "XDG_STATE_HOME": "where blobsync remembers; default `~/.local/state`",
}

# Set by blobsync or a cluster for the parts of a job; what programs of a job see is in docs/jobs.md.
IN_JOBS = frozenset(
    {
        *("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_CONTAINER", "AZURE_STORAGE_AUTH_TYPE"),
        *("AZURE_STORAGE_BLOB_ENDPOINT", "AZ_BATCH_HOST_LIST", "AZ_BATCH_MASTER_NODE", "BLOBSYNC_ATTEMPT"),
        *("BLOBSYNC_CONTAINER", "BLOBSYNC_EVICTIONS", "BLOBSYNC_FAILURES", "BLOBSYNC_HOLD", "BLOBSYNC_HOSTS"),
        *("BLOBSYNC_COMPLETE", "BLOBSYNC_MAX_NODES", "BLOBSYNC_MIN_NODES", "BLOBSYNC_RESTORED"),
        *(
            "BLOBSYNC_NODE_OF",
            "BLOBSYNC_OUTPUT",
            "BLOBSYNC_SCRATCH",
            "CONDA_PYTHON_EXE",
            "MASTER_PORT",
            "SLURMD_NODENAME",
        ),
        *(
            "BLOBSYNC_REGISTRY_PASSWORD",
            "BLOBSYNC_ROOT",
            "BLOBSYNC_RUN_ID",
            "BLOBSYNC_LINEAGE_KEYS",
            "BLOBSYNC_SPREAD_KEY",
            "BLOBSYNC_TASK",
            "BLOBSYNC_TASK_ATTEMPT",
            "BLOBSYNC_TASK_TYPE",
        ),
        *("BLOBSYNC_GPUS", "BLOBSYNC_LAST_LINE", "BLOBSYNC_SHARED", "BLOBSYNC_TEMP"),
        *("SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"),
        *("SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
    }
)

# From blobsync to programs that it starts itself: the emulator, the user's notify.command.
AMONG_ITS_OWN = frozenset(
    {
        "BLOBSYNC_EMULATOR_WITH_PARENT",
        *("BLOBSYNC_JOB", "BLOBSYNC_JOB_CLUSTER", "BLOBSYNC_JOB_NAME", "BLOBSYNC_JOB_REASON", "BLOBSYNC_JOB_STATE"),
    }
)
