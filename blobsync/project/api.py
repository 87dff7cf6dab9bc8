"""The public API: a project, and the operations on its data.

    from blobsync import Project

    with Project.open(cluster="eu") as project:
        result = project.upload("data/voc20")
        print(result.transferred, result.verified, result.ok)

A plan is a value that is made first and carried out in a second step; ``upload`` does both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import BlobsyncError, FileFailure, StorageError, UndoImpossibleError, UsageError
from blobsync.base.events import Listener, LoggingListener, Note, Phase, SilentListener, notes_to, together
from blobsync.base.locations import BlobContainer, BlobLocation
from blobsync.base.redaction import redact
from blobsync.base.stopping import StopRequest
from blobsync.base.user_folders import environment
from blobsync.config.loader import load_cluster
from blobsync.config.mapping import PathName, Paths, Resolution, one_or_many, path_text, project_relative, resolve
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.config.project_root import current_folder, find_project
from blobsync.config.trust_store import TRUSTED_LINKS
from blobsync.local.disks import LocalDisks
from blobsync.local.index import Index
from blobsync.local.resume_records import BlockJournal, RangeRecords, has_intents
from blobsync.local.sorted_runs import MOST_IN_MEMORY, Spill
from blobsync.local.state_databases import has_jobs
from blobsync.local.state_dir import StateDir, open_state_dir, trust_state
from blobsync.plan.project_context import ProjectContext
from blobsync.plan.transfer_options import (
    Keep,
    TransferOptions,
    check_options,
    chosen_options,
    from_root,
    replaces_unverified,
)
from blobsync.plan.transfer_plan import Action, Direction, Route, TransferPlan
from blobsync.plan.transfer_result import TransferResult
from blobsync.store.open_locations import Connections
from blobsync.store.sas import LINK_LIFETIME, READ_BLOB, REMOVE

if TYPE_CHECKING:
    # Imports are local: blobsync's modules take a third of a short command's time.
    from typing_extensions import Self, Unpack

    from blobsync.jobs.record import JobRecord
    from blobsync.plan.decisions import Settlement
    from blobsync.plan.engine_model import EngineRules
    from blobsync.plan.saved_plan import SavedPlan
    from blobsync.plan.transfer_keywords import TransferKeywords
    from blobsync.project import browse, content, removal, sharing, status
    from blobsync.project.checkpoints import Checkpoint
    from blobsync.project.folders import FolderStatus
    from blobsync.project.job_writes import WritingJob
    from blobsync.project.jobs import Jobs
    from blobsync.project.keep import Keeping, KeepResult, KeptRound, Uploads
    from blobsync.project.keeper_records import Keepers, KeeperState
    from blobsync.project.locks import LockComparison, LockReport
    from blobsync.project.progress_listeners import OnProgress
    from blobsync.project.spreading import Spreading
    from blobsync.project.transfer import Transfer
    from blobsync.project.transfer_history import LogBook, RunningTransfer, TransferEntry
    from blobsync.project.trash import Restored
    from blobsync.project.verify import VerifyReport
    from blobsync.store.account_features import AccountFeatures
    from blobsync.store.protocol import BlobStore
    from blobsync.transfer.engines import Engines

# Seconds.
_LONGEST_SETTLE = 3600.0
LARGE_PLAN_VARIABLE = "BLOBSYNC_LARGE_PLAN"


class Project:
    """A folder with ``aux_data/``, seen through one cluster file. Use :meth:`open`, best in a ``with`` statement.

    A path is a ``str`` or a ``pathlib.Path``: relative to where the project was opened, or absolute. ``on_progress`` is
    called with a ``Progress`` a few times a second, from one thread at a time; it should be quick.
    """

    def __init__(
        self,
        root: Path,
        cwd: Path,
        cluster: Cluster,
        from_cluster: Cluster | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        connect: Callable[[StorageAccount], BlobStore] | None = None,
    ) -> None:
        """``connect`` opens containers in place of the REST client."""
        self.root = root
        self.cwd = cwd
        self.cluster = cluster
        self.from_cluster = from_cluster
        self.environ = environment(environ)
        self.listener: Listener = LoggingListener()
        # The command in the log of transfers; empty: made from the plan.
        self.command_line = ""
        self._connect = connect
        self._state: StateDir | None = None
        self._context: ProjectContext | None = None
        self._jobs: Jobs | None = None
        self._closed = False
        # Set by other processes, or through the handle of a transfer that this project carries out in a thread.
        self._stop = StopRequest()
        self._has_handle = False
        # The requests of earlier results.
        self._counted: Counter[str] = Counter()
        # Reads the cluster file again, with the logins of now.
        self._reload: Callable[[], Cluster] = lambda: cluster
        self._transfers: Sequence[Transfer] = ()

    @classmethod
    def open(
        cls,
        start: PathName = ".",
        *,
        cluster: str | None = None,
        from_cluster: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """Open the project that contains ``start``, with ``aux_data/aml/<cluster>.yaml`` (default ``aml``).

        ``from_cluster`` is the other cluster of a copy (``-f``), ``overrides`` replace keys of the cluster
        file (``-p``), ``environ`` replaces ``os.environ``. Raises ``ConfigError``; uses no network.
        """
        environ = environment(environ)
        start = path_text(start)
        cwd = current_folder(environ) if start == "." else Path(start).absolute()
        root = find_project(cwd, environ)

        def load() -> Cluster:
            return load_cluster(root, cluster, overrides=overrides, environ=environ)

        project = cls(
            root,
            cwd,
            load(),
            load_cluster(root, from_cluster, environ=environ) if from_cluster is not None else None,
            environ=environ,
        )
        project._reload = load
        return project

    def with_cluster(self, cluster: Cluster) -> Self:
        """The same project with another cluster, from its root; close it separately."""
        self._demand_open()
        other = self._another(cluster)
        other.cwd, other.command_line = self.root, ""
        return other

    def _another(self, cluster: Cluster, from_cluster: Cluster | None = None) -> Self:
        """The same project with these clusters, and connections and files of its own."""
        other = type(self)(self.root, self.cwd, cluster, from_cluster, environ=self.environ, connect=self._connect)
        other.listener, other.command_line = self.listener, self.command_line
        return other

    def with_source(
        self,
        source: str,
        path: PathName,
        *,
        endpoint_url: str | None = None,
        anonymous: bool = False,
        looks: bool = False,
    ) -> Self:
        """The same project, where copies and downloads of ``path`` come from ``source``: ``s3://BUCKET/PREFIX``,
        ``https://HOST/FILE``, or a list of URLs (``*.tsv``); close it separately.

        ``endpoint_url`` is the bucket's service, if that is not Amazon; ``anonymous`` uses no credential. ``looks``:
        the source takes the place of the cluster, so that ``list`` shows it. Raises ``UsageError`` and
        ``MappingError``.
        """
        from blobsync.config.source_option import GivenSource, cluster_of

        self._demand_open()
        place = project_relative(path_text(path), cwd=self.cwd, root=self.root)
        given = cluster_of(GivenSource(source, endpoint_url, anonymous), place, self.root, self.cwd, self.environ)
        clusters = (given, None) if looks else (self.cluster, given)
        return self._another(*clusters)

    def close(self) -> None:
        """Wait for the transfers that it started, and close connections and files. Safe to repeat; any other use
        afterwards raises ``UsageError``. Ctrl-C during the wait stops the transfers."""
        self._closed = True
        running = [transfer for transfer in self._transfers if transfer.running()]
        if running:
            from blobsync.project.transfer import wait_for

            wait_for(running)
        context, self._context = self._context, None
        if context is not None:
            context.connections.close()
            context.index.close()
            context.journal.close()

    def __enter__(self) -> Self:
        self._demand_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the project; after an exception in the block, stop the transfers that it started first."""
        for transfer in self._transfers if error is not None else ():
            transfer.cancel()
        self.close()

    def __repr__(self) -> str:
        other = f", from_cluster={self.from_cluster.name!r}" if self.from_cluster else ""
        return f"<Project {str(self.root)!r}, cluster={self.cluster.name!r}{other}{', closed' if self._closed else ''}>"

    # -- where things live ----------------------------------------------------------------------------------

    @property
    def folders(self) -> tuple[FolderEntry, ...]:
        """The cluster's folder entries."""
        return self.cluster.folders

    def resolve(self, path: PathName) -> Resolution:
        """The local path and the blob of ``path``. Raises ``MappingError``."""
        self._demand_open()
        return resolve(path_text(path), cwd=self.cwd, root=self.root, cluster=self.cluster)

    @property
    def state(self) -> StateDir:
        """The state folder of this project; created on first use. Raises ``UntrustedStateError``."""
        self._demand_open()
        if self._state is None:
            self._state = open_state_dir(self.root, self.environ, self._note)
        return self._state

    def trust_links(self, links: Iterable[tuple[str, str]]) -> None:
        """Trust these links out of the project from now on: the path of each, from the root, and its target.

        Such links come with ``UntrustedLinkError``. A link whose target changes must be trusted again.
        """
        from blobsync.local.link_policy import trust

        self._demand_open()
        trust(self.root, links, self.environ)
        self._context = None

    def trust_state(self, *, both: bool = False) -> None:
        """Accept the state folder in the project, which may have come from somebody else (``UntrustedStateError``).

        ``both``: it is one project with several paths, this one and the earlier ones; otherwise it counts as moved or
        copied. Raises ``LocalFileError``.
        """
        self._demand_open()
        trust_state(self.root, self.environ, both=both)

    def trust_code(self, digests: Iterable[str]) -> None:
        """Let jobs of the project run the code of these digests, though it was not published from here.

        ``UntrustedCodeError`` has the ``digest``. Raises ``UsageError`` for an invalid one.
        """
        from blobsync.config.trusted_code import demand_digest, trust_code

        self._demand_open()
        trust_code(self.root, [demand_digest(digest, "trust_code") for digest in digests], self.environ)

    def trust_docker(self, options: Iterable[str]) -> None:
        """Allow exactly these options for docker on this machine, although they reach beyond the project.

        ``UntrustedDockerError`` has the ``options``.
        """
        from blobsync.config.trusted_docker import TRUSTED_DOCKER

        self._demand_open()
        new = {tuple(options)}
        TRUSTED_DOCKER.change(self.root, self.environ, lambda known: known | new)

    @property
    def connections(self) -> Connections:
        """The stores behind the folder entries of both clusters."""
        return self._open_context.connections

    # -- transfers ------------------------------------------------------------------------------------------

    def plan_upload(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> TransferPlan:
        """What :meth:`upload` would do with each file, and why; touches nothing."""
        with self._reporting(on_progress):
            return self._plan(Direction.UP, paths, chosen_options(options, keywords))

    def plan_download(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> TransferPlan:
        """What :meth:`download` would do with each file, and why; touches nothing."""
        with self._reporting(on_progress):
            return self._plan(Direction.DOWN, paths, chosen_options(options, keywords))

    def upload(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> TransferResult:
        """Local to blob, or with a ``from_cluster`` its blob to this cluster's; one path or many, or ``all_entries``.

        The keywords are the fields of ``TransferOptions``; they win over ``options``. Raises ``BlobsyncError``
        before anything is changed, or returns the result of each file: check ``ok``, or call
        ``raise_for_failures()``.
        """
        return self._moved(Direction.UP, paths, chosen_options(options, keywords), on_progress)

    def download(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> TransferResult:
        """Blob (of ``from_cluster``, if given) to local; otherwise as :meth:`upload`."""
        return self._moved(Direction.DOWN, paths, chosen_options(options, keywords), on_progress)

    def start_upload(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> Transfer:
        """Begin :meth:`upload` in a thread of its own, with connections of its own; returns at once. The result of the
        ``Transfer`` is what ``upload`` returns or raises.

        ``on_progress`` is called in other threads; a notebook shows no bar by itself.
        """
        given, chosen = one_or_many(paths, or_none=True), chosen_options(options, keywords)
        return self._start(lambda project: project._moved(Direction.UP, given, chosen, on_progress))

    def start_download(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> Transfer:
        """Begin :meth:`download` in a thread of its own, as :meth:`start_upload` does."""
        given, chosen = one_or_many(paths, or_none=True), chosen_options(options, keywords)
        return self._start(lambda project: project._moved(Direction.DOWN, given, chosen, on_progress))

    def start(self, plan: TransferPlan, *, on_progress: OnProgress | None = None) -> Transfer:
        """Begin :meth:`carry_out` of a plan in a thread of its own, as :meth:`start_upload` does."""
        return self._start(lambda project: project.carry_out(plan, on_progress=on_progress))

    def carry_out(self, plan: TransferPlan, *, on_progress: OnProgress | None = None) -> TransferResult:
        """Carry out ``plan``, verify the result, and return it."""
        with self._reporting(on_progress):
            return self._carry_out(plan)

    def _moved(
        self, direction: Direction, paths: Paths, options: TransferOptions, on_progress: OnProgress | None
    ) -> TransferResult:
        given = one_or_many(paths, or_none=True)
        with self._reporting(on_progress):
            with self.planning(direction, given):
                plan = self._plan(direction, given, options)
            return self.carry_out(plan)

    def _carry_out(self, plan: TransferPlan) -> TransferResult:
        from blobsync.project.transfer_history import (
            entry_of,
            is_worth_logging,
            logged,
            transfer_begun,
            upload_receipts,
        )
        from blobsync.transfer.ledger import remove_begun

        if not is_worth_logging(plan):
            return self._move(plan)
        entry, begun = transfer_begun(plan, self.command_line), self._begun(plan)
        if begun is not None:
            entry = replace(entry, receipt=begun.name)
        with logged(self._logbook.log, entry) as end, self._recorded(entry):
            result = self._move(plan, self._keeping(plan, entry.id))
            end(entry_of(entry, result))
        if result.receipt is not None:
            remove_begun(begun)
        upload_receipts(result, self.connections, notes_to(self.listener))
        return result

    def _recoveries(self, plan: TransferPlan, changed: Mapping[BlobContainer, bool]) -> Iterator[str]:
        """What could be undone of what the plan replaces or deletes in containers; of what it only replaces, where that
        is known. ``changed`` are these containers."""
        ends = {part.destination for part in plan.parts_with(Action.DELETE)}
        emptied = {end.container for end in ends if isinstance(end, BlobLocation)}
        for container in sorted(changed, key=str):
            if container in emptied:
                yield self.recovery(container)
            elif (found := self.features(container)).tells_recovery:
                yield f"{container} {found.recovery}"

    def _not_undone(self, changed: Mapping[BlobContainer, bool]) -> Iterator[FileFailure]:
        """Refusals by ``undo: required``, of containers where something is to be deleted, or (True) replaced."""
        if self.cluster.text("undo") != "required":
            return
        from blobsync.project.undo import not_undone

        for container, replaces in changed.items():
            yield from not_undone(container, self.features(container, afresh=True), replaces=replaces)

    def _begun(self, plan: TransferPlan) -> Path | None:
        """A record of what the plan replaces and deletes, for who undoes a run that is killed; None if none is written:
        of a large plan, which would take long, and where nothing outlives this process."""
        if plan.is_large or not self.state.lasting:
            return None
        from blobsync.transfer.ledger import write_begun

        try:
            return write_begun(self.state.folder("receipts"), plan)
        except OSError as error:
            self._note(f"this run cannot be undone if it is killed: {error.strerror}")
            return None

    def _keeping(self, plan: TransferPlan, id: str) -> Path | None:
        """The folder of the trash for the local files that the plan replaces and deletes; None if there are none."""
        if not replaces_unverified(plan.options) or not self.state.lasting:
            return None
        from blobsync.project.trash import going, limits_of, trash_of

        size, trash = sum(going(plan)), trash_of(self.state)
        if not size:
            return None if plan.options.no_trash else trash.of_run(id)
        trash.make_room(limits_of(self.cluster), size, spared=plan.undoes)
        return trash.of_run(id)

    def plan_undo(self, id: str, paths: Paths = ()) -> TransferPlan:
        """What takes the run ``id`` of the history back: what it replaced or deleted comes back, what it created goes.

        All of it, or what is at or below ``paths``; a file that was changed since is left alone, as a conflict. Carry
        it out with :meth:`carry_out`. Raises ``NothingMatchedError``, and ``UsageError`` if its receipt is gone.
        """
        from blobsync.plan.undoing import touched_files
        from blobsync.project.trash import limits_of, too_much, trash_of
        from blobsync.project.undo import Undoing, plan_undo

        self.listener.emit(Phase("surveying"))
        entry = self.find_transfer(id)
        if entry.cluster != self.cluster.name:
            raise UsageError(f"{entry.id} was a run with the cluster {entry.cluster}", hint=f"-c {entry.cluster}")
        receipt = self.receipt(entry)
        if receipt is None:
            raise UsageError(
                f"what {entry.id} did is not on record any more, or it had not begun to move files",
                hint=f"'blobsync history {entry.id}' shows what is known",
            )
        try:
            touched = list(touched_files(receipt))
        except (ValueError, TypeError, LookupError) as error:
            raise UsageError(f"the receipt of {entry.id} is damaged: {error}") from error
        chosen = [self._from_root(path) for path in one_or_many(paths, or_none=True)]
        run = Undoing(
            entry.id,
            replace(self._open_context, stop=self._stop),
            trash_of(self.state).of_run(entry.id),
            lambda path: self.resolve(f"{self.root}/{path}"),
            lambda end: self.features(end.in_container().container, afresh=True),
            self.listener.emit,
        )
        plan = plan_undo(run, touched, chosen)
        return replace(plan, refusals=too_much(plan, limits_of(self.cluster)))

    def restore(self, id: str, paths: Paths = (), *, overwrite: bool = False) -> Restored:
        """Put local files that the run ``id`` replaced or deleted back in their places, from the trash: all, or those
        of ``paths``.

        A file that is there again is left alone, or with ``overwrite`` put into the trash. Raises
        ``NothingMatchedError``.
        """
        from blobsync.project import trash

        there, chosen = trash.trash_of(self.state), [self._from_root(path) for path in one_or_many(paths, or_none=True)]
        replacing = there.of_run(new_id()) if overwrite else None
        trusted = self._open_context.trusted
        return trash.restore(there, there.find(id), chosen, self.root, trusted, replacing=replacing)

    def _move(self, plan: TransferPlan, kept: Path | None = None) -> TransferResult:
        if plan.spread is None:
            return self._move_with(plan, self._engines(plan), kept)
        with self._spreading(plan, kept) as spreading:
            if spreading.merge():
                plan = self._plan_anew(plan.route.direction, plan.paths, plan.options)
            return self._move_with(plan, spreading.engines(plan, self._engines(plan)), kept)

    def detach(self, plan: TransferPlan) -> JobRecord:
        """Let nodes of the cluster carry out a plan that was made with ``detach``, on their own; returns their job."""
        with self._spreading(plan) as spreading:
            merged = spreading.merge()
        if merged:
            plan = self._plan_anew(plan.route.direction, plan.paths, plan.options)
        with self._spreading(plan, self._keeping(plan, new_id())) as spreading:
            return spreading.submit(plan)

    def _spreading(self, plan: TransferPlan, kept: Path | None = None) -> Spreading:
        from blobsync.project.spreading import Spreading

        return Spreading(replace(self._open_context, kept=kept), self.state, plan, self.environ, self.listener)

    def _move_with(self, plan: TransferPlan, engines: Engines, kept: Path | None) -> TransferResult:
        from blobsync.transfer.carry_out import carry_out

        context, folder = replace(self._open_context, kept=kept), self.state.folder("receipts")
        try:
            result = carry_out(plan, context, engines, self.listener, folder, context.spill)
        finally:
            if plan.options.locked:
                from blobsync.plan.locked_files import remember_present

                remember_present(context, plan)
        if any(part.route not in (Route.UPLOAD, Route.DOWNLOAD) for part in plan.parts):
            from blobsync.project.status import remember_copied

            remember_copied(context, result)
        counted = self.connections.requests()
        result = result._replace(requests=counted - self._counted)
        self._counted = counted
        if not result.failures and has_intents(self.state):
            from blobsync.project.killed_runs import forget_killed_runs

            forget_killed_runs(plan, self.state)
        return result

    def write_records(self, plan: TransferPlan) -> Path:
        """Every file of ``plan`` as one line of JSON, in a new file of the project's state folder.

        The newest ten of these files stay. Raises ``LocalFileError``.
        """
        from blobsync.plan.saved_plan import write_plan_records

        return write_plan_records(plan, self.state.folder("plans"))

    def save_plan(self, plan: TransferPlan, file: PathName) -> None:
        """Write the plan, without secrets, for :meth:`load_plan`. Raises ``PlanFileError``."""
        from blobsync.plan import saved_plan as plan_file

        plan_file.save(plan, Path(path_text(file)))

    def load_plan(self, saved: PathName | SavedPlan) -> TransferPlan:
        """Make a saved plan again; raises ``PlanFileError`` if it would now do something else."""
        from blobsync.plan import saved_plan as plan_file

        if not isinstance(saved, plan_file.SavedPlan):
            saved = plan_file.load(Path(path_text(saved)))
        saved.demand_clusters(self.cluster.name, self.from_cluster.name if self.from_cluster else None)
        plan = self._plan_anew(saved.direction, saved.paths, saved.options)
        saved.check(plan)
        return plan

    def settle(self, plan: TransferPlan, keep: Mapping[str, Keep]) -> TransferPlan:
        """The plan made again, with these conflicts resolved: ``local``, ``remote`` or ``both`` by the path of each.

        One of which either side is no longer as ``plan`` saw it stays a conflict.
        """
        from blobsync.plan.decisions import Settlement

        settlements = {
            part.shown(action): Settlement(keep[part.shown(action)], action.source, action.destination)
            for part, action in plan.each()
            if action.action is Action.CONFLICT and part.shown(action) in keep
            if action.source is not None and action.destination is not None
        }
        return self._plan(plan.route.direction, *from_root(self.root, plan.paths, plan.options), settlements)

    def _plan_anew(self, direction: Direction, paths: Sequence[str], options: TransferOptions) -> TransferPlan:
        """Make a plan again, whose paths are from the root."""
        return self._plan(direction, *from_root(self.root, paths, options))

    def _plan(
        self,
        direction: Direction,
        paths: Paths,
        options: TransferOptions,
        settlements: Mapping[str, Settlement] = MappingProxyType({}),
    ) -> TransferPlan:
        from blobsync.plan.planner import make_plan

        check_options(options, self.from_cluster, uploads=direction is Direction.UP)
        copies = self.from_cluster is not None and direction is Direction.UP
        if options.nodes is not None:
            from blobsync.plan.spreading import choose_spread

            # Refused before anything is listed.
            choose_spread(options, self.cluster.platform, self.cluster.name, copies=copies)
        given = one_or_many(paths, or_none=True)
        context, rules = replace(self._open_context, stop=self._stop), self._engine_rules(options)
        if direction is Direction.DOWN and not options.incomplete:
            self._demand_complete(given)
        with self._stop.waking(self._hang_up):
            try:
                plan = make_plan(context, direction, given, options, rules, self.listener, settlements)
                if has_intents(self.state):
                    from blobsync.project.killed_runs import record_killed_runs

                    if record_killed_runs(plan, self._open_context, self.state):
                        plan = make_plan(context, direction, given, options, rules, self.listener, settlements)
            except BlobsyncError:
                self._stop.check()
                raise
        # Reads all actions, once.
        changed = plan.written_over
        plan = replace(plan, warnings=(*plan.warnings, *self._recoveries(plan, changed)))
        plan = replace(plan, refusals=(*plan.refusals, *self._not_undone(changed)))
        if replaces_unverified(options) and not options.no_trash:
            from blobsync.project.trash import limits_of, too_much

            plan = replace(plan, refusals=(*plan.refusals, *too_much(plan, limits_of(self.cluster))))
        if options.nodes is None:
            return plan
        from blobsync.project.spreading import with_spread

        return with_spread(plan, self.cluster, copies=copies)

    def _demand_complete(self, paths: Sequence[str]) -> None:
        """Refuse a path that is half a checkpoint, or in one."""
        cluster = self.from_cluster or self.cluster
        if not any(entry.checkpoints for entry in cluster.folders):
            return
        from blobsync.project.checkpoints import CheckpointFolders

        for path in paths:
            try:
                place = resolve(path, cwd=self.cwd, root=self.root, cluster=cluster)
            except BlobsyncError:
                # The plan says so.
                continue
            CheckpointFolders(cluster, self._open_context, self.environ, self._note).demand_complete(place)

    def _note(self, text: str) -> None:
        self.listener.emit(Note(text))

    def features(self, container: BlobContainer, *, afresh: bool = False) -> AccountFeatures:
        """What the account of a container keeps of what is deleted, and whether it has directories.

        As it was remembered, if it was; with ``afresh``, and else, the service is asked. Unknown if it does not answer.
        """
        from blobsync.store.account_features import UNKNOWN, AccountFeatures

        index, key = self._open_context.index, str(container)
        if not afresh and (known := index.features(key)) is not None:
            return AccountFeatures.from_text(known)
        try:
            found = self.connections.store(container).features()
        except StorageError:
            return UNKNOWN
        index.remember_features(key, found.to_text())
        return found

    def features_in(self, plan: TransferPlan) -> dict[BlobContainer, AccountFeatures]:
        """:meth:`features` of each container that ``plan`` reads or writes, sources outside Azure left out."""
        ends = (end for part in plan.parts for end in (part.source, part.destination) if isinstance(end, BlobLocation))
        account = self.connections.account
        containers = {end.container for end in ends if not account(end.container).is_source}
        return {each: self.features(each) for each in sorted(containers, key=str)}

    def recovery(self, container: BlobContainer) -> str:
        """Whether what is deleted from a container can be had back, and how: one sentence."""
        return f"{container} {self.features(container, afresh=True).recovery}"

    @property
    def jobs(self) -> Jobs:
        """The jobs of this project; what it submits goes to its cluster."""
        self._demand_open()
        if self._jobs is None:
            from blobsync.jobs.context import JobContext
            from blobsync.project.jobs import Jobs

            context = JobContext(self.root, self.environ, self.cluster, note=self._note)
            self._jobs = Jobs(context, self.with_cluster)
        return self._jobs

    # -- looking --------------------------------------------------------------------------------------------

    def list(self, path: PathName, *, recursive: bool = False, at: str | None = None) -> Iterator[browse.ListingEntry]:
        """The blobs at ``path``; streams. With ``at``, those of its lock in that git revision, or in that lock file.

        Raises ``NothingMatchedError``, and with ``at`` also what :meth:`compare_locks` raises.
        """
        from blobsync.project import browse

        place, context = self.resolve(path), self._open_context
        if at is not None:
            from blobsync.project import locks

            locked = locks.lock_at(context, self.environ, at, place.path)
            return locks.entries(locked, place.path, recursive=recursive)

        def remembering(where: Resolution) -> browse.Listing:
            records = context.index.pair(where.entry.prefix, str(where.entry.remote))
            return browse.Listing(records, where.relative, context.spill, recursive=recursive)

        inner = self._inner(place)
        return browse.list_path(
            context.connections, place, inner, recursive=recursive, remembering=remembering, spill=context.spill
        )

    def checkpoints(self, path: PathName | None = None, *, job: str | None = None) -> tuple[Checkpoint, ...]:
        """The sets of files here and in the container, the last one first; which are complete, and which one a restart
        takes.

        Those below ``path``, or of all folder entries with ``checkpoints``; ``job``: only those that it can go on from.
        Raises ``NothingMatchedError``.
        """
        from blobsync.project.checkpoints import CheckpointFolders

        place = self.resolve(path) if path is not None else None
        spec = self.jobs.find(job).spec if job is not None else None
        return CheckpointFolders(self.cluster, self._open_context, self.environ, self._note).list(place, job=spec)

    def usage(self, path: PathName) -> browse.Usage:
        """Blobs and bytes below ``path``."""
        from blobsync.project import browse

        self.listener.emit(Phase("surveying"))
        return browse.usage(self.list(path, recursive=True), self.resolve(path).path)

    def stat(self, path: PathName) -> browse.PathStatus:
        """The state of a path here, in the container, and in the index.

        Raises ``UntrustedLinkError`` if it would be read through an untrusted link.
        """
        from blobsync.project import browse

        place = self.resolve(path)
        self._open_context.demand_trust([place.path])
        return browse.path_status(self.connections, self._open_context.index, place)

    def beginning(self, path: PathName, most: int, *, local: bool = False) -> browse.Beginning:
        """The first ``most`` bytes of the blob at ``path``, or with ``local`` of the file.

        Raises ``NothingMatchedError``, ``LocalFileError``, and ``UntrustedLinkError`` as :meth:`stat` does.
        """
        from blobsync.project import browse

        place = self.resolve(path)
        if not local:
            return browse.blob_beginning(self.connections, place, most)
        self._open_context.demand_trust([place.path])
        return browse.file_beginning(place, most)

    def read(self, path: PathName) -> Iterator[bytes]:
        """The bytes of the blob at ``path``, piece by piece, of one version of it.

        Raises ``NothingMatchedError``, ``ShapeConflictError`` for a folder, and at the end ``ChecksumError`` if the
        bytes do not match the blob's MD5.
        """
        from blobsync.project import content

        return content.read_blob(self.connections, self.resolve(path))

    def diff(self, path: PathName) -> content.FileDifference:
        """How the local file at ``path`` differs from its blob.

        Raises ``NothingMatchedError``, ``ShapeConflictError`` for a folder, ``LocalFileError``, and
        ``UntrustedLinkError`` as :meth:`stat` does.
        """
        from blobsync.project import content

        place = self.resolve(path)
        self._open_context.demand_trust([place.path])
        return content.difference(self.connections, self._open_context.index, place)

    def lock(
        self, path: PathName, *, compare_content: bool = False, on_progress: OnProgress | None = None
    ) -> LockReport:
        """Write down which files the container holds at ``path``, in ``aux_data/locks``, to be committed.

        ``compare_content``: blobs without an MD5 are read. Raises ``NothingMatchedError``, and ``UnsafeNamesError`` for
        blobs that cannot be locked.
        """
        from blobsync.plan.path_mapping import both_ends
        from blobsync.project import locks

        with self._reporting(on_progress):
            self.listener.emit(Phase("surveying"))
            given = path_text(path)
            request = locks.demand_one(both_ends(self._open_context, given), given)
            return locks.lock(self.root, request, self.listener.emit, compare_content=compare_content)

    def compare_locks(self, path: PathName, before: str, after: str | None = None) -> LockComparison:
        """Which files differ between two locks of ``path``: of git revisions, of lock files (``*.lock``), or (None) of
        the working tree.

        Raises ``LockError`` for a missing or changed lock, ``UsageError`` for an unknown revision.
        """
        from blobsync.project import locks

        place = self.resolve(path)
        old, new = (locks.lock_at(self._open_context, self.environ, one, place.path) for one in (before, after))
        return locks.compare(place.path, old, new)

    def status(
        self, paths: Paths = (), *, fresh: bool = False, on_progress: OnProgress | None = None
    ) -> status.ProjectStatus:
        """The status of the folder entries, or of these paths: their files here and in their containers.

        The last listing of each container is used, unless ``fresh``, which lists them.
        """
        from blobsync.project import status

        chosen = self.chosen_paths(paths, all_entries=not paths)
        with self._reporting(on_progress):
            self.listener.emit(Phase("surveying"))
            return status.project_status(
                self._open_context,
                chosen,
                self.listener.emit,
                fresh=fresh,
                connect=self._impatient,
                writing=self._writing_jobs,
            )

    def _writing_jobs(self, since: float) -> Sequence[WritingJob]:
        if not has_jobs(jobs := self.state.jobs_file):
            return ()
        from blobsync.project.job_writes import writing_jobs

        return writing_jobs(self.root, self.environ, jobs, since)

    def folder(
        self, path: PathName, *, fresh: bool = False, on_progress: OnProgress | None = None
    ) -> Iterator[FolderStatus]:
        """The names in a folder, here and in its container: what is known so far, repeatedly, at last everything.

        The last listing of the container is used; it is listed if there is none, and with ``fresh``.
        """
        from blobsync.project import folders

        with self._reporting(on_progress):
            self.listener.emit(Phase("surveying"))
            yield from folders.look_into(self._open_context, path_text(path), self.listener.emit, fresh=fresh)

    def chosen_paths(self, paths: Paths = (), *, all_entries: bool = False) -> Sequence[str]:
        """``paths`` as texts, or with ``all_entries`` one for each folder entry. Raises ``UsageError``."""
        from blobsync.plan.path_mapping import chosen_paths

        return chosen_paths(self._open_context, one_or_many(paths, or_none=True), all_entries=all_entries)

    def verify(
        self,
        path: PathName,
        *,
        deep: bool = False,
        wildcards: bool = False,
        locked: bool = False,
        on_progress: OnProgress | None = None,
    ) -> VerifyReport:
        """Compare both sides of ``path`` and the index; with ``deep`` every byte of them. ``locked``: compare the local
        files with the lock of ``path``, not with the container.

        ``wildcards``: a path that neither side has may be a pattern with ``*``, ``?`` and ``[ab]``. Raises
        ``NothingMatchedError`` if neither side has the name, ``LockError`` without a lock.
        """
        from blobsync.plan.path_mapping import both_ends
        from blobsync.project.verify import verify

        with self._reporting(on_progress):
            self.listener.emit(Phase("verifying"))
            ends = both_ends(self._open_context, path_text(path), wildcards=wildcards)
            if locked:
                from blobsync.plan.locked_files import as_locked

                ends = tuple(as_locked(self.root, each, each.part.destination) for each in ends)
            return verify(ends, self.listener.emit, deep=deep)

    def find_removal(
        self, paths: Paths, *, blob_only: bool = False, wildcards: bool = False
    ) -> tuple[removal.Deletion, ...]:
        """What ``rm`` of these paths would delete; with ``blob_only`` the one blob of exactly each name.

        ``wildcards``: a path that the container does not have may be a pattern with ``*``, ``?`` and ``[ab]``. Raises
        ``CredentialError`` if the credential clearly does not allow it.
        """
        from blobsync.project import removal

        self.listener.emit(Phase("surveying"))
        deletions: list[removal.Deletion] = []
        for path in one_or_many(paths):
            place = self.resolve(path)
            self.connections.check(place.remote, REMOVE)
            if blob_only:
                deletions.append(removal.find_blob(self.connections, place))
            elif wildcards and (matches := removal.pattern_of(self.connections, place)):
                folder = self.resolve(f"{self.root}/{matches.folder}/")
                deletions += removal.find_matches(self.connections, folder, self._inner(folder), matches)
            else:
                deletions += removal.find_deletions(self.connections, place, self._inner(place))
        return removal.without_repeats(deletions)

    def remove(
        self, deletions: Sequence[removal.Deletion], *, on_progress: OnProgress | None = None
    ) -> removal.Removal:
        """Delete these blobs, and write a receipt that names them."""
        from blobsync.project import removal
        from blobsync.project.transfer_history import logged
        from blobsync.transfer.ledger import remove_begun

        folder = self.state.folder("receipts")
        for refusal in self._not_undone(dict.fromkeys((each.place.remote.container for each in deletions), False)):
            raise UndoImpossibleError(refusal.message, hint=refusal.hint, path=refusal.path)
        entry = removal.removal_begun(deletions, self.cluster.name, self.command_line)
        begun = removal.write_begun(deletions, folder, self.cluster.name)
        if begun is not None:
            entry = replace(entry, receipt=begun.name)
        with self._reporting(on_progress), logged(self._logbook.log, entry) as end, self._recorded(entry):
            index, name = self._open_context.index, self.cluster.name
            done = removal.remove(self.connections, index, deletions, self.listener, folder, name, self._stop)
            end(done.entry(entry))
            if done.receipt is not None:
                remove_begun(begun)
            return done

    # -- links ----------------------------------------------------------------------------------------------

    def url(self, path: PathName, *, expiry: timedelta = LINK_LIFETIME, permission: str = READ_BLOB) -> str:
        """A URL with a SAS of least rights for one blob, or for a folder if the account supports that. It is a
        secret."""
        (link,) = self.links(path, expiry=expiry, permission=permission)
        return link.url

    def links(
        self,
        path: PathName,
        *,
        expiry: timedelta = LINK_LIFETIME,
        permission: str = READ_BLOB,
        each: bool = False,
        container: bool = False,
    ) -> Iterator[sharing.Link]:
        """Links for others: one, or with ``each`` one for every blob of a folder; see ``blobsync.project.sharing``.

        ``container`` requests one that opens the whole container. Raises ``UsageError`` for a folder that one
        link cannot cover, unless one of the two is set.
        """
        from blobsync.project import sharing
        from blobsync.store.sas import sas_url

        place, seconds = self.resolve(path), int(expiry.total_seconds())
        cli_auth = self.cluster.flag("use_cli_auth")

        def sign(one: Resolution, scope: str) -> str:
            account, environ = one.entry.account, self.environ
            return sas_url(
                account, one.remote, permission, seconds, scope=scope, environ=environ, use_cli_auth=cli_auth
            )

        return sharing.make_links(
            self.connections, place, self._inner(place), each=each, container=container, sign=sign
        )

    def _impatient(self, account: StorageAccount) -> BlobStore:
        """A store that fails soon if the account does not answer."""
        from blobsync.store.connect import impatient

        if self._connect is not None:
            return self._connect(account)
        return impatient(account, environ=self.environ, use_cli_auth=self.cluster.flag("use_cli_auth"))

    # -- the log of transfers ------------------------------------------------------------------------------

    def history(
        self, *, since: float | None = None, path: PathName | None = None, limit: int | None = None
    ) -> tuple[TransferEntry, ...]:
        """Transfers, copies and removals, newest first, that began after ``since`` (seconds since 1970) and that
        concern ``path``. Raises ``LocalFileError`` if the log cannot be read.
        """
        return self._logbook.recent(since=since, path=path, limit=limit)

    def find_transfer(self, wanted: str) -> TransferEntry:
        """The transfer of that id, or of an id that begins or ends so. Raises ``NothingMatchedError``, or
        ``UsageError`` if there are several."""
        return self._logbook.log.find(wanted)

    def receipt(self, entry: TransferEntry) -> Mapping[str, Any] | None:
        """The content of the receipt: the result of each file. None if it was removed (the newest 1,000 stay)."""
        return self._logbook.receipt(entry)

    def running(self, paths: Paths = ()) -> Mapping[str, RunningTransfer]:
        """The running transfers and removals of all processes with their progress, by their ids in the history, and
        those that are being planned. Each reports twice a second, first after half a second.

        Those that concern one of ``paths``, if some are given. Raises ``LocalFileError``.
        """
        found = self._logbook.running.all()
        given = [self._from_root(path) for path in one_or_many(paths, or_none=True)]
        return {id: one for id, one in found.items() if not given or any(map(one.concerns, given))}

    def stop(self, id: str) -> None:
        """Ask a transfer of :meth:`running`, in any process, to stop as by Ctrl-C; returns at once.

        The transfer sees the request within half a second. Raises ``NothingMatchedError`` if it has ended,
        ``UsageError`` if it would not see the request: a program waits for it in ``upload``, or its blobsync is older.
        """
        self._logbook.running.stop(id)

    # -- keeping folders uploaded ----------------------------------------------------------------------------

    def keep(
        self,
        paths: Paths,
        *,
        settle: float = 5.0,
        until_idle: bool = False,
        on_round: Callable[[KeptRound], None] | None = None,
    ) -> KeepResult:
        """Upload folders while programs write them, until Ctrl-C: each file that has not changed for ``settle``
        seconds. Deletes nothing, and leaves conflicts alone, as :meth:`upload` does.

        ``until_idle``: return when nothing has changed for that time and all is tried. ``on_round`` gets each round.
        Raises ``BlobsyncError`` before anything is changed, ``UsageError`` for a folder that is kept already, and
        ``TransferCancelledError`` on Ctrl-C, whose ``result`` says what was done.
        """
        with self.keeping(paths, settle=settle, until_idle=until_idle) as kept:
            for made in kept.rounds():
                if on_round is not None:
                    on_round(made)
            return kept.result

    @contextmanager
    def keeping(self, paths: Paths, *, settle: float = 5.0, until_idle: bool = False) -> Iterator[Keeping]:
        """As :meth:`keep`; the rounds are iterated in the block."""
        from blobsync.project import keep

        if not 0 < settle <= _LONGEST_SETTLE:
            raise UsageError(f"{settle:g} seconds is no time to settle", hint="a number above 0, up to an hour")
        chosen = keep.kept_legs(self._open_context, one_or_many(paths))
        for note in keep.marked_in_jobs_only(self.cluster.folders, chosen):
            self._note(note)
        known = {"cluster": self.cluster.name, "command": redact(self.command_line)}
        keeper = keep.keeping(
            chosen,
            self._for_keeper,
            self._keepers,
            self.listener.emit,
            settle=settle,
            until_idle=until_idle,
            known=known,
            stop=self._stop,
        )
        with keeper as kept:
            yield kept

    def keepers(self) -> Mapping[str, KeeperState]:
        """The keepers of this project in all processes, by their ids."""
        return self._keepers.all()

    def stop_keeper(self, id_or_path: PathName) -> tuple[KeeperState, ...]:
        """Stop the keepers of a path, or one by its id or the end of it, and wait until they have stopped.

        Raises ``NothingMatchedError``, and ``UsageError`` for one of another machine.
        """
        from blobsync.project.keeper_records import find_keepers

        chosen = find_keepers(self.keepers(), path_text(id_or_path), self._from_root(path_text(id_or_path)))
        self._keepers.stop(chosen)
        return chosen

    def demand_keepable(self, paths: Paths) -> None:
        """Raise what :meth:`keeping` raises for these folders, except that they are kept already."""
        from blobsync.project.keep import kept_legs

        kept_legs(self._open_context, one_or_many(paths))

    def _for_keeper(self) -> Uploads:
        """The same project with the logins of now and connections of its own, for a thread."""
        from blobsync.project.keep import Uploads

        other = self._another(self._reload())
        other._has_handle, other.listener = True, SilentListener()
        return Uploads(other._open_context, other.carry_out, lambda: other._stop.make(), other.close)

    @property
    def _keepers(self) -> Keepers:
        from blobsync.project.keeper_records import Keepers

        return Keepers(self.state)

    @contextmanager
    def planning(self, direction: Direction, paths: Paths) -> Iterator[None]:
        """A context in which other processes see that this transfer is being planned; for a plan that is then carried
        out."""
        from blobsync.project.transfer_history import TransferEntry, transfer_kind

        kind = transfer_kind(direction, copies=self.from_cluster is not None)
        given = tuple(map(self._from_root, one_or_many(paths, or_none=True)))
        with self._recorded(TransferEntry(kind, given, self.command_line, self.cluster.name), planning=True):
            yield

    # -- inside ---------------------------------------------------------------------------------------------

    def _engine_rules(self, options: TransferOptions) -> EngineRules:
        from blobsync.base.background_calls import usable_cores
        from blobsync.plan.engine_model import EngineRules
        from blobsync.project.engine_set import requested_engine

        requested = requested_engine(options, self.environ, self.cluster, copying=self.from_cluster is not None)
        return EngineRules(self._azcopy_problem, requested, usable_cores())

    def _azcopy_problem(self, route: Route, files: int, size: int) -> str | None:
        from blobsync.azcopy.binary import problem
        from blobsync.azcopy.eligible_files import unconfined_problem
        from blobsync.azcopy.sandbox import Landlock

        return problem(self.environ) or unconfined_problem(route, files, size, confined=Landlock().is_possible)

    def _engines(self, plan: TransferPlan) -> Engines:
        from blobsync.project.engine_set import engine_set

        return engine_set(self._open_context, self.state, plan, self.environ, self._stop)

    @property
    def _logbook(self) -> LogBook:
        from blobsync.project.transfer_history import LogBook

        return LogBook(self.root, self.cwd, self.state, self._note)

    def _start(self, call: Callable[[Project], TransferResult]) -> Transfer:
        """Run ``call`` in a thread of its own, with separate connections and files."""
        from blobsync.plan.progress import ProgressCounter
        from blobsync.project.transfer import Transfer

        self._demand_open()
        other, counter = self._another(self.cluster, self.from_cluster), ProgressCounter()
        other._has_handle, other._state, other.listener = True, self.state, together(self.listener, counter)

        def work() -> TransferResult:
            with other:
                return call(other)

        transfer = Transfer(work, other._stop, counter)
        self._transfers = (*(each for each in self._transfers if not each.done()), transfer)
        return transfer

    def _hang_up(self) -> None:
        """Let the requests of a stopped planning fail soon."""
        if self._context is not None:
            self._context.connections.close()

    def _from_root(self, path: str) -> str:
        """The path from the root, or as typed if it is not in the project, which planning reports."""
        try:
            return project_relative(path, cwd=self.cwd, root=self.root)
        except BlobsyncError:
            return path

    @contextmanager
    def _recorded(self, entry: TransferEntry, *, planning: bool = False) -> Iterator[None]:
        """Let other processes see the progress of this transfer while the block runs, and stop it."""
        from blobsync.project.transfer_history import recorded_while_running

        before, stop = self.listener, self._stop
        # Stopping a transfer must not end a program that waits for it.
        stoppable = bool(self.command_line) or self._has_handle
        try:
            with recorded_while_running(
                self.state, entry, before, stoppable=stoppable, planning=planning, stop=stop
            ) as self.listener:
                try:
                    yield
                finally:
                    self.listener = before
        except KeyboardInterrupt:
            self._stop = StopRequest()
            raise
        # A request that is too late to stop the planning stops the planned transfer.
        if stop.made and not planning:
            self._stop = StopRequest()

    @contextmanager
    def _reporting(self, on_progress: OnProgress | None) -> Iterator[None]:
        """Call ``on_progress`` while the block runs, beside the listener; a notebook has a bar by default."""
        before, bar = self.listener, None
        if on_progress is None and not isinstance(before, LoggingListener):
            yield
            return
        from blobsync.project.progress_listeners import CallbackListener, NotebookBar, in_notebook

        if on_progress is None and in_notebook():
            bar = on_progress = NotebookBar()
        if on_progress is None:
            yield
            return
        callback = CallbackListener(on_progress)
        self.listener = together(before, callback)
        try:
            yield
        finally:
            self.listener = before
            callback.close()
            if bar is not None:
                bar.close()

    def _demand_open(self) -> None:
        if self._closed:
            raise UsageError(f"the project {self.root} was closed", hint="Project.open() opens it again")

    @property
    def _open_context(self) -> ProjectContext:
        self._demand_open()
        if self._context is None:
            clusters = [self.cluster, *([self.from_cluster] if self.from_cluster else [])]
            self._context = ProjectContext(
                root=self.root,
                cwd=self.cwd,
                cluster=self.cluster,
                from_cluster=self.from_cluster,
                connections=self._open_connections(clusters),
                index=Index(self.state.index_file, self._note),
                journal=BlockJournal(self.state.unfinished_file, self._note),
                trusted=TRUSTED_LINKS.load(self.root, self.environ),
                unfinished=RangeRecords(self.state) if self.state.lasting else None,
                spill=spill_of(self.state, self.environ),
                disks=LocalDisks(left_over=self._left_over),
            )
        return self._context

    def _left_over(self, place: Path) -> int:
        from blobsync.project.engine_set import left_over_by

        return left_over_by(self.state, place)

    def _open_connections(self, clusters: Sequence[Cluster]) -> Connections:
        from blobsync.store.connect import connect

        cli_login = self.cluster.flag("use_cli_auth")

        def connected(account: StorageAccount) -> BlobStore:
            if account.web is not None:
                from blobsync.store.url_list import open_urls

                return open_urls(account, self.environ)
            if account.bucket is not None:
                from blobsync.store.s3 import open_bucket

                return open_bucket(account, self.environ)
            # The listener of the present call.
            return connect(
                account, environ=self.environ, use_cli_auth=cli_login, emit=lambda event: self.listener.emit(event)
            )

        return Connections(clusters, self._connect or connected)

    def _inner(self, place: Resolution) -> tuple[Resolution, ...]:
        return tuple(self.resolve(f"{self.root}/{prefix}/") for prefix in sorted(each.prefix for each in place.nested))


def new_id() -> str:
    """The id of a run that the history does not have."""
    return os.urandom(4).hex()


def spill_of(state: StateDir, environ: Mapping[str, str]) -> Spill:
    """The number of files above which a plan is on the disk: in the state folder, since the system's temporary folder
    is often in memory.

    Raises ``UsageError`` if the variable is not a number.
    """
    said = environ.get(LARGE_PLAN_VARIABLE) or str(MOST_IN_MEMORY)
    if not (said.isascii() and said.isdigit() and 0 < int(said) <= 10**9):
        raise UsageError(
            f"{LARGE_PLAN_VARIABLE}={said[:40]!a} is not a number of files", hint=f"unset {LARGE_PLAN_VARIABLE}"
        )
    return Spill(lambda: state.folder("plans"), int(said))
