"""The secrets of a job's nodes: SAS of containers, and keys that seal what jobs write.

``jobs.states`` sends new SAS before the old ones end. The keys, of each lineage of checkpoints and of each spread
transfer, are derived from the user's, and never enter a container or a command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from blobsync.base.errors import ConfigError, CredentialError, LocalFileError
from blobsync.base.seals import SealKey
from blobsync.config.model import Cluster, StorageAccount
from blobsync.jobspec.spec import LINEAGE_KEYS, SERVICES, SPREAD_KEY, JobSpec, Secrets, lineage_of_job
from blobsync.local.state_dir import user_key
from blobsync.store.sas import JOB_FOLDER, JOB_LOGS, JOB_SECONDS, READ_FOLDER, ROTATED_FOLDER, SasForAccount
from blobsync.store.sas_token import ordered_rights


def is_lapsing(granted: float, now: float) -> bool:
    """Whether half of the lifetime of a job's SAS of that time has passed; False for 0, which is unknown."""
    return bool(granted) and now - granted > JOB_SECONDS / 2


def rights_needed(spec: JobSpec) -> Mapping[str, str]:
    """The letters of rights by container URL, without those for mirrored logs."""
    needed = {spec.code.container: READ_FOLDER} if spec.code else {}
    needed.update((spec.spread or {}).get("rights", {}))
    for folder in spec.folders:
        rotated = folder.checkpoints is not None and folder.checkpoints.rotates
        letters = ROTATED_FOLDER if rotated else JOB_FOLDER[folder.mode]
        needed[folder.container] = needed.get(folder.container, "") + letters
    return {container: ordered_rights(letters) for container, letters in needed.items() if letters}


def reached_by_nodes(spec: JobSpec) -> frozenset[str]:
    """The containers that nodes of a service access themselves: a transfer's, and those of folders that they upload."""
    uploaded = (folder.container for folder in spec.folders if folder.mode == "upload")
    return frozenset({*(spec.spread or {}).get("rights", {}), *uploaded})


def service_rights(spec: JobSpec, cluster: Cluster) -> Mapping[str, str]:
    """The same for a service that mounts and copies data itself: only containers that need a SAS of the job.

    Those are the containers for which the cluster file has a key, and the code in another cluster's account. A SAS in
    the file is passed on, and a container that the job's identity can access needs none. A datastore with a name from
    the file is used by jobs of every mode, so it gets the rights of a mount. What nodes access themselves needs a SAS.
    """
    accounts = known_accounts([cluster])
    shares = {entry.prefix for entry in cluster.folders if entry.storage_type == "file" and entry.file_share}
    blobs = replace(spec, folders=tuple(folder for folder in spec.folders if folder.name not in shares))
    needed = {container: [letters] for container, letters in rights_needed(blobs).items()}
    reached = reached_by_nodes(spec)
    if (spec.secret_env or reached) and cluster.code:
        needed.setdefault(str(cluster.code.account.container), []).append(READ_FOLDER)
    uploaded = {folder.name for folder in spec.folders if folder.mode == "upload"}
    named = [(entry.account, entry.datastore_name) for entry in cluster.folders if entry.prefix not in uploaded]
    named += [(cluster.code.account, cluster.code.datastore_name)] if cluster.code else []
    for account, name in named:
        if name and str(account.container) in needed:
            needed[str(account.container)].append(JOB_FOLDER["mount"])

    def is_minted(container: str) -> bool:
        account = accounts.get(container)
        foreign = account is None and spec.code is not None and container == spec.code.container
        return container in reached or foreign or (account is not None and account.granting_credential == "key")

    return {
        container: ordered_rights("".join(letters)) for container, letters in needed.items() if is_minted(container)
    }


def grant(spec: JobSpec, clusters: Sequence[Cluster], mint: SasForAccount) -> tuple[JobSpec, Secrets, tuple[str, ...]]:
    """Make the SAS tokens that the job needs. Returns the specification, its secrets and warnings.

    ``clusters`` have the accounts: the target cluster and, for a moved job, its previous one.

    Logs are mirrored if a credential allows it; otherwise the specification is returned without them.
    Raises ``CredentialError`` for missing rights that the job requires.
    """
    accounts = known_accounts(clusters)
    env = _secret_env(spec, clusters)
    warnings: tuple[str, ...] = ()
    needed = service_rights(spec, clusters[0]) if spec.platform in SERVICES else rights_needed(spec)
    if spec.logs:
        try:
            mirror = ordered_rights(needed.get(spec.logs.container, "") + JOB_LOGS)
            sas = _mint(accounts, {**needed, spec.logs.container: mirror}, mint)
            return spec, Secrets(sas, env), warnings
        except CredentialError as error:
            warnings = (f"logs will not be kept in the container: {error.message}",)
    secrets = Secrets(_mint(accounts, needed, mint), env)
    return replace(spec, logs=None), secrets, warnings


def known_accounts(clusters: Sequence[Cluster]) -> Mapping[str, StorageAccount]:
    """The accounts by container URL; the first cluster takes precedence, and of its files one with a key."""
    return {str(account.container): account for cluster in reversed(clusters) for account in _accounts(cluster)}


def _mint(accounts: Mapping[str, StorageAccount], needed: Mapping[str, str], mint: SasForAccount) -> dict[str, str]:
    missing = [container for container in needed if container not in accounts]
    if missing:
        raise CredentialError(
            f"the job needs {missing[0]}, which this cluster file does not contain",
            hint="use the cluster file that the job was submitted with",
        )
    return {
        container: mint(accounts[container], letters, JOB_SECONDS).reveal() for container, letters in needed.items()
    }


def _secret_env(spec: JobSpec, clusters: Sequence[Cluster]) -> dict[str, str]:
    known = {name: value for cluster in reversed(clusters) for name, value in cluster.env.items()}
    missing = [name for name in spec.secret_env if name not in known]
    if missing:
        raise ConfigError(
            f"the job needs the secret variable {missing[0]}, which is not recorded with it",
            file=clusters[0].file,
            key="env",
            hint=f"add {missing[0]} to env: in {clusters[0].file}",
        )
    return {name: known[name] for name in spec.secret_env}


def _accounts(cluster: Cluster) -> list[StorageAccount]:
    accounts = [*(entry.account for entry in cluster.folders), *([cluster.code.account] if cluster.code else [])]
    return sorted(accounts, key=lambda account: account.granting_credential == "key")


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
