"""A job file as the record of its job keeps it, so that `resubmit` can translate it for another cluster.

No secret is in it: values of ``secrets``, and of variables that are named like secrets, are kept by name only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from blobsync.ancestors.batchai_job import BatchAiJob
from blobsync.ancestors.json_part import JsonPart, ReadKeys
from blobsync.base.errors import JobError
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.redaction import is_secret_name
from blobsync.config.yaml_document import Document

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
