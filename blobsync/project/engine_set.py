"""Creates the engines for a plan, with their credentials and processes, and the relay if allowed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from blobsync.base.errors import UsageError
from blobsync.base.locations import BlobContainer, BlobLocation, Location, is_source
from blobsync.base.redaction import SasToken
from blobsync.base.stopping import NEVER, StopRequest
from blobsync.base.trusted_hosts import TRUSTED_HOSTS_VARIABLE
from blobsync.config.model import Cluster
from blobsync.config.user_config import load_user_config
from blobsync.local.part_files import left_over
from blobsync.local.resume_records import WriteIntents
from blobsync.local.state_dir import StateDir
from blobsync.plan.engine_model import RequestedEngine, Work, choose_processes, trial_files
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.transfer_options import EngineName, TransferOptions
from blobsync.plan.transfer_plan import TransferPlan
from blobsync.store.open_locations import OpenBlob
from blobsync.store.sas import READ_BLOB, sas_minter, transfer_seconds
from blobsync.transfer.engines import Engine, Engines

if TYPE_CHECKING:
    from blobsync.store.rest.request_signing import Signer

ENGINE_VARIABLE = "BLOBSYNC_ENGINE"
# azcopy's working folder, in the state folder.
_AZCOPYS = "transfers"


def requested_engine(
    options: TransferOptions, environ: Mapping[str, str], cluster: Cluster, *, copying: bool
) -> RequestedEngine:
    """The engine from ``--engine``, the environment or the cluster file, in this order; else ``auto``.

    Several ``processes``, and ``nodes``, select the engine that supports them. The relay in the environment or the
    cluster file applies only to copies between clusters. Raises ``UsageError`` for an unknown engine in the
    environment; those of the file were checked as it was read.
    """
    if options.processes is not None and options.processes > 1:
        return RequestedEngine("direct", f"--processes {options.processes} was given")
    if options.nodes is not None:
        return RequestedEngine("direct", f"--nodes {options.nodes} was given")
    if options.engine is not None:
        return RequestedEngine(options.engine, f"--engine {options.engine} was given")
    name, reason = cluster.text("engine"), f"engine: {cluster.text('engine')} is in {cluster.file}"
    if found := environ.get(ENGINE_VARIABLE):
        name, reason = found, f"{ENGINE_VARIABLE}={found} is set"
        if found not in get_args(EngineName):
            known = ", ".join(get_args(EngineName))
            raise UsageError(f"{ENGINE_VARIABLE}={found}: not one of {known}", hint=f"unset {ENGINE_VARIABLE}")
    if not name or (name == "relay" and not copying):
        return RequestedEngine()
    return RequestedEngine(cast("EngineName", name), reason)


def engine_set(
    context: ProjectContext,
    state: StateDir,
    plan: TransferPlan,
    environ: Mapping[str, str],
    stop: StopRequest = NEVER,
) -> Engines:
    """The engines of a plan; each is created when first needed. ``stop`` ends their work as Ctrl-C does."""
    if (state.root / _AZCOPYS).is_dir():
        from blobsync.azcopy.run_folders import prune_workspaces

        # What a killed azcopy left beside the data goes, whichever engine is used now.
        prune_workspaces(state.root / _AZCOPYS)
    copies = [
        (part.source.container, part.destination.container)
        for part in plan.parts
        if isinstance(part.source, BlobLocation) and isinstance(part.destination, BlobLocation)
    ]

    def mint(end: OpenBlob, rights: str) -> SasToken | None:
        from blobsync.store.connect import check_copy, check_listener

        container = end.in_container().container
        account = context.connections.account(container)
        check_listener(account, environ)
        for source, destination in copies:
            if source == container:
                check_copy(account, context.connections.account(destination), environ)
        return sas_minter(context.cluster, environ)(account, rights, transfer_seconds(plan.bytes_to_transfer))

    intents = WriteIntents(state)

    def direct() -> Engine:
        from blobsync.direct.engine import DirectEngine

        fetches = None
        if state.lasting and copies:
            from blobsync.local.fetch_records import FetchRecords  # late: few commands copy

            fetches = FetchRecords(state)
        alone = DirectEngine(
            source_sas=lambda end: mint(end, READ_BLOB),
            journal=context.journal,
            unfinished=context.unfinished,
            intents=intents,
            comparing=plan.options.compare_content,
            fetches=fetches,
        )
        if plan.processes.count == 1:
            return alone
        return _many_processes(context, state, plan, environ, alone, lambda end: mint(end, READ_BLOB))

    def relay() -> Engine:
        from blobsync.direct.relay import RelayEngine

        return RelayEngine(intents)

    def azcopy() -> Engine:
        from blobsync.azcopy.engine import AzcopyEngine

        return AzcopyEngine(state_dir=state.folder(_AZCOPYS), mint=mint, environ=environ)

    outside = any(is_source(part.source) for part in plan.parts)
    allowed = plan.options.relay or context.cluster.relay == "auto" or outside or _is_emulator(plan)
    makers = {"direct": direct, "relay": relay, "azcopy": azcopy}
    return Engines(makers, relay_allowed=allowed, unfinished=context.unfinished, stop=stop, intents=intents)


def left_over_by(state: StateDir, place: Path) -> int:
    """The bytes that killed runs left at ``place``, which the next run removes before it fetches."""
    from blobsync.azcopy.run_folders import abandoned_staging

    return left_over(place, abandoned_staging(state.root / _AZCOPYS))


def _many_processes(
    context: ProjectContext,
    state: StateDir,
    plan: TransferPlan,
    environ: Mapping[str, str],
    alone: Engine,
    source_sas: Callable[[OpenBlob], SasToken | None],
) -> Engine:
    from blobsync.spread.process_engine import ProcessEngine
    from blobsync.spread.worker_pipe import Credentials
    from blobsync.store.connect import signer_for

    @cache
    def signer(container: BlobContainer) -> Signer:
        account, cli_login = context.connections.account(container), context.cluster.flag("use_cli_auth")
        return signer_for(account, environ=environ, use_cli_auth=cli_login)

    # Workers read no configuration.
    trusted = {TRUSTED_HOSTS_VARIABLE: " ".join(load_user_config(environ).trusted_hosts)}
    credentials = Credentials(signer, source_sas, {**environ, **trusted})
    return ProcessEngine(
        alone,
        lambda files, size: _processes_for(plan, files, size),
        credentials,
        state=state,
        trial=0 if plan.options.processes is not None else trial_files(_work_of(plan, 0, 0)),
    )


def _processes_for(plan: TransferPlan, files: int, size: int) -> int:
    """The number of processes for a share of the plan's work: one of several parts, or a retry."""
    if plan.options.processes is not None:
        return plan.options.processes
    return choose_processes(None, _work_of(plan, files, size), plan.options.cap_mbps).count


def _work_of(plan: TransferPlan, files: int, size: int) -> Work:
    tls = any(str(end).startswith("https:") for end in _ends(plan))
    return Work(plan.route, files, size, largest=0, cores=plan.processes.count, tls=tls)


def _ends(plan: TransferPlan) -> list[Location]:
    return [end for part in plan.parts for end in (part.source, part.destination)]


def _is_emulator(plan: TransferPlan) -> bool:
    """Whether the plan copies within an emulator, which lacks the requests for copies from a URL."""
    return all("//127.0.0.1:" in str(end) or "//localhost:" in str(end) for end in _ends(plan))
