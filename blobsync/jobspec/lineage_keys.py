"""The keys with which jobs seal the marks of their checkpoints: derived from the user's, one for each lineage.

They travel with a job's other secrets, and never enter a container or a command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from blobsync.base.errors import LocalFileError
from blobsync.base.seals import SealKey
from blobsync.jobspec.spec import LINEAGE_KEYS, JobSpec, Secrets, lineage_of_job
from blobsync.local.state_dir import user_key


def own_lineage_keys(environ: Mapping[str, str]) -> Callable[[str], SealKey]:
    """The user's keys, of any lineage. Raises ``LocalFileError`` if the user's own cannot be kept private."""
    try:
        own = user_key(environ).derive("checkpoints")
    except OSError as error:
        raise LocalFileError(
            f"checkpoints: {error.filename or 'the folder of your configuration'}: {error.strerror}",
            hint="their marks are sealed with a key that is kept there: you alone must be able to write there",
        ) from error
    return lambda lineage: own.derive("lineage", lineage_of_job(lineage))


def with_lineage_keys(
    spec: JobSpec, secrets: Secrets, environ: Mapping[str, str], lineage_of: Callable[[str], str]
) -> Secrets:
    """The secrets of a job, with the keys of its lineage and of those that it may first start from.

    ``lineage_of`` is the lineage of a job.
    """
    rules = [folder.checkpoints for folder in spec.folders if folder.checkpoints]
    if not rules:
        return secrets
    keys = own_lineage_keys(environ)
    wanted = {spec.lineage, *(lineage_of_job(lineage_of(rule.restore_from)) for rule in rules if rule.restore_from)}
    text = json.dumps({lineage: keys(lineage).secret.hex() for lineage in sorted(wanted)})
    return replace(secrets, env={**secrets.env, LINEAGE_KEYS: text})
