"""The keys with which jobs seal what they write: of checkpoints one for each lineage, and one for each spread transfer.

They are derived from the user's, travel with a job's other secrets, and never enter a container or a command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from blobsync.base.errors import LocalFileError
from blobsync.base.seals import SealKey
from blobsync.jobspec.spec import LINEAGE_KEYS, SPREAD_KEY, JobSpec, Secrets, lineage_of_job
from blobsync.local.state_dir import user_key


def own_lineage_keys(environ: Mapping[str, str]) -> Callable[[str], SealKey]:
    """The user's keys, of any lineage. Raises ``LocalFileError`` if the user's own cannot be kept private."""
    own = _own_key(environ, "checkpoints", "checkpoints: ", "their marks are")
    return lambda lineage: own.derive("lineage", lineage_of_job(lineage))


def own_spread_key(environ: Mapping[str, str]) -> SealKey:
    """The user's key for spread transfers. Raises ``LocalFileError`` if it cannot be kept private."""
    return _own_key(environ, "spread", "--nodes: ", "what workers say is")


def _own_key(environ: Mapping[str, str], purpose: str, where: str, sealed: str) -> SealKey:
    try:
        return user_key(environ).derive(purpose)
    except OSError as error:
        raise LocalFileError(
            f"{where}{error.filename or 'the folder of your configuration'}: {error.strerror}",
            hint=f"{sealed} sealed with a key that is kept there: you alone must be able to write there",
        ) from error


def run_key(environ: Mapping[str, str], run: str) -> SealKey:
    """The key of one spread transfer."""
    return own_spread_key(environ).derive("run", run)


def with_job_keys(
    spec: JobSpec, secrets: Secrets, environ: Mapping[str, str], lineage_of: Callable[[str], str]
) -> Secrets:
    """The secrets of a job, with the key of its spread transfer, or the keys of its lineage and of those that it may
    first start from.

    ``lineage_of`` is the lineage of a job.
    """
    env = dict(secrets.env)
    if run := str((spec.spread or {}).get("run") or ""):
        env[SPREAD_KEY] = run_key(environ, run).secret.hex()
    if rules := [folder.checkpoints for folder in spec.folders if folder.checkpoints]:
        keys = own_lineage_keys(environ)
        wanted = {spec.lineage, *(lineage_of_job(lineage_of(rule.restore_from)) for rule in rules if rule.restore_from)}
        env[LINEAGE_KEYS] = json.dumps({lineage: keys(lineage).secret.hex() for lineage in sorted(wanted)})
    return replace(secrets, env=env)
