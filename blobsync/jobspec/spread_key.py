"""The key of a spread transfer: derived from the user's, and sent to its nodes with the job's other secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from blobsync.base.errors import LocalFileError
from blobsync.base.seals import SealKey
from blobsync.jobspec.spec import SPREAD_KEY, JobSpec, Secrets
from blobsync.local.state_dir import user_key


def own_key(environ: Mapping[str, str]) -> SealKey:
    """The user's key for transfers. Raises ``LocalFileError`` if it cannot be kept private."""
    try:
        return user_key(environ).derive("spread")
    except OSError as error:
        raise LocalFileError(
            f"--nodes: {error.filename or 'the folder of your configuration'}: {error.strerror}",
            hint="what workers say is sealed with a key that is kept there: you alone must be able to write there",
        ) from error


def run_key(environ: Mapping[str, str], run: str) -> SealKey:
    """The key of one transfer."""
    return own_key(environ).derive("run", run)


def with_run_key(spec: JobSpec, secrets: Secrets, environ: Mapping[str, str]) -> Secrets:
    """The secrets of a job, with the key of its transfer if it has one."""
    run = str((spec.spread or {}).get("run") or "")
    if not run:
        return secrets
    return replace(secrets, env={**secrets.env, SPREAD_KEY: run_key(environ, run).secret.hex()})
