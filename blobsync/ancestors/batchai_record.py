"""A job file as the record of its job keeps it, so that `resubmit` can translate it for another cluster.

No secret is in it: values of ``secrets``, and of variables that are named like secrets, are kept by name only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from blobsync.ancestors.batchai_job import BatchAiJob, Image, JobDirectory, Toolkit, Volume
from blobsync.ancestors.json_part import JsonPart, ReadKeys
from blobsync.base.errors import JobError
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.redaction import is_secret_name
from blobsync.config.yaml_document import Document

# The option of a job, and the key of ``batchai`` in a cluster file, that hold the text.
RECORDED = "job_file"
_VOLUME = ("path", "kind", "account", "container", "share")
_IMAGE = ("name", "server", "username", "shm_size")


def record_job(job: BatchAiJob) -> str:
    """The job as one line of JSON."""
    env = {name: value for name, value in job.env.items() if not is_secret_name(name)}
    values = {
        "file": job.file.document.file,
        "nodes": job.nodes,
        "toolkit": asdict(job.toolkit),
        "std_prefix": job.std_prefix,
        "volumes": [
            {**{name: getattr(one, name) for name in _VOLUME}, "read_only": one.read_only} for one in job.volumes
        ],
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
        return _read(parse_object(text))
    except (ValueError, KeyError, TypeError) as error:
        raise JobError("the job file that the job was submitted from cannot be read any more") from error


def _read(values: dict[str, Any]) -> tuple[BatchAiJob, tuple[str, ...]]:
    file = JsonPart(Document(str(values["file"]), {}, {}), (), {}, {}, ReadKeys())
    secrets = tuple(map(str, values["secrets"]))
    job = BatchAiJob(
        nodes=int(values["nodes"]),
        file=file,
        toolkit=made_of(Toolkit, values["toolkit"]),
        std_prefix=str(values["std_prefix"]),
        volumes=tuple(_volume(one, file) for one in values["volumes"]),
        inputs=tuple(made_of(JobDirectory, one) for one in values["inputs"]),
        outputs=tuple(made_of(JobDirectory, one) for one in values["outputs"]),
        setup=tuple(map(str, values["setup"])),
        env={str(name): str(value) for name, value in values["env"].items()},
        image=made_of(Image, values["image"]) if values["image"] else None,
        seconds=None if values["seconds"] is None else int(values["seconds"]),
        priority=str(values["priority"]),
    )
    return job, secrets


def _volume(values: Mapping[str, Any], file: JsonPart) -> Volume:
    path, kind, account, container, share = (str(values[name]) for name in _VOLUME)
    return Volume(path, kind, file, account, container, share, read_only=values.get("read_only") is True)
