"""The public face of blobsync: a project, and what can be done with its data.

    from blobsync import Project

    with Project.open(cluster="eu") as project:
        result = project.upload("data/voc20")
        print(result.transferred, result.verified, result.ok)

A plan is a value that is made first and carried out in a second step; ``upload`` does both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.azure_urls import BlobUrl, ContainerUrl
from blobsync.plan.engine_model import EngineRules
from blobsync.plan.large_plan import LargePlan
from blobsync.plan.path_mapping import chosen_paths
from blobsync.plan.planner import both_ends, make_plan
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, Direction, Route, TransferPlan, TransferResult
from blobsync.project.logbook import entry_of, is_worth_logging, logged, transfer_begun, upload_receipts
from blobsync.project.logged_project import LoggedProject
from blobsync.project.options import check_options, chosen_options
from blobsync.project.paths import from_root, one_or_many, path_text
from blobsync.project.spread_choice import demand_spreadable, with_spread
from blobsync.store.grants import LINK_LIFETIME, READ_BLOB, REMOVE
from blobsync.transfer.carry_out import Engines, carry_out

if TYPE_CHECKING:
    # Imports are local: our own modules take a third of a short command's time.
    from typing_extensions import Unpack

    from blobsync.config.mapping import Resolution
    from blobsync.config.model import StorageAccount
    from blobsync.jobs.history import JobRecord
    from blobsync.jobs.project_jobs import Jobs
    from blobsync.plan.saved_plan import SavedPlan
    from blobsync.project import browse, content, folders, removal, sharing, status
    from blobsync.project.options import TransferKeywords
    from blobsync.project.paths import PathName, Paths
    from blobsync.project.progress_listeners import OnProgress
    from blobsync.project.spreading import Spreading
    from blobsync.project.verify import VerifyReport
    from blobsync.store.protocol import BlobStore


class Project(LoggedProject):
    """A folder with ``aux_data/``, seen through one cluster file. Use :meth:`open`, best in a ``with`` statement.

    A path is a ``str`` or a ``pathlib.Path``: relative to where the project was opened, or absolute. ``on_progress`` is
    called with a ``Progress`` a few times a second, from one thread at a time; it should be quick.
    """

    _jobs: Jobs | None = None

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
        with self._telling(on_progress):
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
        with self._telling(on_progress):
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
        paths = one_or_many(paths, or_none=True)
        with self._telling(on_progress):
            with self.planning(Direction.UP, paths):
                plan = self.plan_upload(paths, options, **keywords)
            return self.carry_out(plan)

    def download(
        self,
        paths: Paths = (),
        options: TransferOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **keywords: Unpack[TransferKeywords],
    ) -> TransferResult:
        """Blob (of ``from_cluster``, if given) to local; otherwise as :meth:`upload`."""
        paths = one_or_many(paths, or_none=True)
        with self._telling(on_progress):
            with self.planning(Direction.DOWN, paths):
                plan = self.plan_download(paths, options, **keywords)
            return self.carry_out(plan)

    def carry_out(self, plan: TransferPlan, *, on_progress: OnProgress | None = None) -> TransferResult:
        """Do what ``plan`` says, look again, and return what is verified and what is not."""
        with self._telling(on_progress):
            return self._carry_out(plan)

    def _carry_out(self, plan: TransferPlan) -> TransferResult:
        if not is_worth_logging(plan):
            return self._move(plan)
        entry = transfer_begun(plan, self.command_line)
        with logged(self._logbook.log, entry) as end, self._told_of(entry):
            result = self._move(plan)
            end(entry_of(entry, result))
        upload_receipts(result, self.connections, self.listener.note)
        return result

    def _move(self, plan: TransferPlan) -> TransferResult:
        if plan.spread is None:
            return self._move_with(plan, self._engines(plan))
        with self._spreading(plan) as spreading:
            if spreading.merge():
                plan = self._plan_anew(plan.route.direction, plan.paths, plan.options)
            return self._move_with(plan, spreading.engines(plan, self._engines(plan)))

    def detach(self, plan: TransferPlan) -> JobRecord:
        """Let nodes of the cluster carry out a plan that was made with ``detach``, on their own; returns their job."""
        with self._spreading(plan) as spreading:
            merged = spreading.merge()
        if merged:
            plan = self._plan_anew(plan.route.direction, plan.paths, plan.options)
        with self._spreading(plan) as spreading:
            return spreading.submit(plan)

    def _spreading(self, plan: TransferPlan) -> Spreading:
        from blobsync.project.spreading import Spreading

        return Spreading(self._open_context, self.state, plan, self.environ, self.listener.note)

    def _move_with(self, plan: TransferPlan, engines: Engines) -> TransferResult:
        context, folder = self._open_context, self.state.folder("receipts")
        if not isinstance(plan, LargePlan):
            return carry_out(plan, context, engines, self.listener, folder)
        from blobsync.transfer.in_batches import carry_out_in_batches

        return carry_out_in_batches(plan, context, engines, self.listener, folder, context.spill)

    def write_records(self, plan: TransferPlan) -> Path:
        """Every file of ``plan`` as one line of JSON, in a new file of the project's state folder.

        The newest ten of these files stay. Raises ``LocalFileError``.
        """
        from blobsync.plan.plan_records import write_plan_records

        return write_plan_records(plan, self.state.folder("plans"))

    def save_plan(self, plan: TransferPlan, file: PathName) -> None:
        """Write the plan, without secrets, for :meth:`load_plan`. Raises ``PlanFileError``."""
        from blobsync.plan import saved_plan as plan_file

        plan_file.save(plan, Path(path_text(file)))

    def load_plan(self, saved: PathName | SavedPlan) -> TransferPlan:
        """Make the saved plan anew, from its file; ``PlanFileError`` when it would now do something else."""
        from blobsync.plan import saved_plan as plan_file

        if not isinstance(saved, plan_file.SavedPlan):
            saved = plan_file.load(Path(path_text(saved)))
        plan = self._plan_anew(saved.direction, saved.paths, saved.options)
        saved.check(plan)
        return plan

    def _plan_anew(self, direction: Direction, paths: Sequence[str], options: TransferOptions) -> TransferPlan:
        """As a plan was made before, whose paths are from the root."""
        return self._plan(direction, *from_root(self.root, paths, options))

    def _plan(self, direction: Direction, paths: Paths, options: TransferOptions) -> TransferPlan:
        check_options(options, self.from_cluster, direction)
        copies = self.from_cluster is not None and direction is Direction.UP
        demand_spreadable(options, self.cluster, copies=copies)
        given = one_or_many(paths, or_none=options.all_entries)
        plan = make_plan(self._open_context, direction, given, options, self._engine_rules(options), self.listener)
        ends = [part.destination for part in plan.parts_with(Action.DELETE)]
        emptied = {end.container for end in ends if isinstance(end, BlobUrl)}
        plan = replace(plan, warnings=(*plan.warnings, *map(self.recovery, sorted(emptied))))
        return with_spread(plan, self.cluster, self.environ, copies=copies)

    def recovery(self, container: ContainerUrl) -> str:
        """Whether what is deleted from a container can be had back, and how: one sentence."""
        from blobsync.store.connect import recovery_sentence

        return recovery_sentence(self.connections.store(container))

    @property
    def jobs(self) -> Jobs:
        """The jobs of this project; what it submits goes to its cluster."""
        self._demand_open()
        if self._jobs is None:
            from blobsync.jobs.job_service import Board
            from blobsync.jobs.project_jobs import Jobs

            board = Board(self.root, self.environ, self.cluster, note=lambda text: self.listener.note(text))
            self._jobs = Jobs(board, self.with_cluster)
        return self._jobs

    # -- looking --------------------------------------------------------------------------------------------

    def list(self, path: PathName, *, recursive: bool = False) -> Iterator[browse.ListingEntry]:
        """The blobs at ``path``; streams. Raises ``NothingMatchedError``."""
        from blobsync.plan.remembering import Listing
        from blobsync.project import browse

        place, context = self.resolve(path), self._open_context

        def remembering(where: Resolution) -> Listing:
            records = context.index.pair(where.entry.prefix, str(where.entry.remote))
            return Listing(records, where.relative, context.spill, recursive=recursive)

        inner = self._inner(place)
        return browse.list_path(context.connections, place, inner, recursive=recursive, remembering=remembering)

    def usage(self, path: PathName) -> browse.Usage:
        """Blobs and bytes below ``path``."""
        from blobsync.project import browse

        self.listener.phase("surveying")
        return browse.usage(self.list(path, recursive=True), self.resolve(path).path)

    def stat(self, path: PathName) -> browse.PathStatus:
        """One path as it is here, in the container, and in the index.

        Raises ``UntrustedLinkError`` if it would be read through an untrusted link.
        """
        from blobsync.plan.planner import demand_consent
        from blobsync.project import browse

        place = self.resolve(path)
        demand_consent(self._open_context, [place.path])
        return browse.path_status(self.connections, self._open_context.index, place)

    def beginning(self, path: PathName, most: int, *, local: bool = False) -> browse.Beginning:
        """The first ``most`` bytes of the blob at ``path``, or with ``local`` of the file.

        Raises ``NothingMatchedError``, ``LocalFileError``, and ``UntrustedLinkError`` as :meth:`stat` does.
        """
        from blobsync.plan.planner import demand_consent
        from blobsync.project import browse

        place = self.resolve(path)
        if not local:
            return browse.blob_beginning(self.connections, place, most)
        demand_consent(self._open_context, [place.path])
        return browse.file_beginning(place, most)

    def read(self, path: PathName) -> Iterator[bytes]:
        """The bytes of the blob at ``path``, piece by piece, of one version of it.

        Raises ``NothingMatchedError``, ``ShapeConflictError`` for a folder, and once all was read ``ChecksumError``
        where that is not what the blob's MD5 says.
        """
        from blobsync.project import content

        return content.read_blob(self.connections, self.resolve(path))

    def diff(self, path: PathName) -> content.FileDifference:
        """How the local file at ``path`` differs from its blob.

        Raises ``NothingMatchedError``, ``ShapeConflictError`` for a folder, ``LocalFileError``, and
        ``UntrustedLinkError`` as :meth:`stat` does.
        """
        from blobsync.plan.planner import demand_consent
        from blobsync.project import content

        place = self.resolve(path)
        demand_consent(self._open_context, [place.path])
        return content.difference(self.connections, self._open_context.index, place)

    def status(
        self, paths: Paths = (), *, fresh: bool = False, on_progress: OnProgress | None = None
    ) -> status.ProjectStatus:
        """How the folder entries (or these paths) stand, here and in their containers.

        The containers are not listed, unless ``fresh``: what each held when it was last listed counts.
        """
        from blobsync.project import status

        chosen = self.chosen_paths(paths, all_entries=not paths)
        with self._telling(on_progress):
            self.listener.phase("surveying")
            return status.project_status(
                self._open_context, chosen, self.listener.seen, fresh=fresh, connect=self._impatient
            )

    def folder(
        self, path: PathName, *, fresh: bool = False, on_progress: OnProgress | None = None
    ) -> Iterator[folders.FolderStatus]:
        """One folder, name by name, here and in its container: as it is known so far, the last time as a whole.

        The container is listed where it never was, and with ``fresh``; else what it held at the last listing counts.
        """
        from blobsync.project import folders

        with self._telling(on_progress):
            self.listener.phase("surveying")
            yield from folders.look_into(self._open_context, path_text(path), self.listener.seen, fresh=fresh)

    def chosen_paths(self, paths: Paths = (), *, all_entries: bool = False) -> Sequence[str]:
        """``paths`` as texts, or with ``all_entries`` one for each folder entry. Raises ``UsageError``."""
        return chosen_paths(self._open_context, one_or_many(paths, or_none=all_entries), all_entries=all_entries)

    def verify(self, path: PathName, *, deep: bool = False, on_progress: OnProgress | None = None) -> VerifyReport:
        """Compare both sides of ``path`` and the index; with ``deep`` every byte of them.

        Raises ``NothingMatchedError`` if neither side has the name.
        """
        from blobsync.project.verify import verify

        with self._telling(on_progress):
            self.listener.phase("verifying")
            return verify(both_ends(self._open_context, path_text(path)), self.listener.seen, deep=deep)

    def find_removal(self, paths: Paths, *, blob_only: bool = False) -> tuple[removal.Deletion, ...]:
        """What ``rm`` of these paths would delete; with ``blob_only`` the one blob of exactly each name.

        Raises ``CredentialError`` if the credential clearly does not allow it.
        """
        from blobsync.project import removal

        self.listener.phase("surveying")
        deletions: list[removal.Deletion] = []
        for path in one_or_many(paths):
            place = self.resolve(path)
            self.connections.check(self.connections.end(place.remote), REMOVE)
            if blob_only:
                deletions.append(removal.find_blob(self.connections, place))
            else:
                deletions += removal.find_deletions(self.connections, place, self._inner(place))
        return tuple(deletions)

    def remove(
        self, deletions: Sequence[removal.Deletion], *, on_progress: OnProgress | None = None
    ) -> removal.Removal:
        """Delete those blobs, and write a receipt that names them."""
        from blobsync.project import removal

        folder = self.state.folder("receipts")
        entry = removal.removal_begun(deletions, self.cluster.name, self.command_line)
        with self._telling(on_progress), logged(self._logbook.log, entry) as end, self._told_of(entry):
            index, name = self._open_context.index, self.cluster.name
            done = removal.remove(self.connections, index, deletions, self.listener, folder, name)
            end(done.entry(entry))
            return done

    # -- links ----------------------------------------------------------------------------------------------

    def url(self, path: PathName, *, expiry: timedelta = LINK_LIFETIME, permission: str = READ_BLOB) -> str:
        """A URL with a SAS of least rights for one blob, or for a folder where one link can be. It is a secret."""
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
        """Links to give away: one, or with ``each`` one for every blob of a folder; see ``blobsync.project.sharing``.

        ``container`` requests one that opens the whole container. Raises ``UsageError`` for a folder that one
        link cannot cover, unless one of the two is set.
        """
        from blobsync.project import sharing

        place = self.resolve(path)
        request = sharing.LinkRequest(
            permission, int(expiry.total_seconds()), each, container, self.cluster.flag("use_cli_auth")
        )
        return sharing.make_links(self.connections, place, self._inner(place), request, self.environ)

    def _impatient(self, account: StorageAccount) -> BlobStore:
        """A store that soon says that an account does not answer."""
        from blobsync.store.connect import impatient

        if self._connect is not None:
            return self._connect(account)
        return impatient(account, environ=self.environ, use_cli_auth=self.cluster.flag("use_cli_auth"))

    # -- inside ---------------------------------------------------------------------------------------------

    def _engine_rules(self, options: TransferOptions) -> EngineRules:
        from blobsync.plan.processes import usable_cores
        from blobsync.project.engine_set import engine_wish

        copying = self.from_cluster is not None
        count, nodes = options.processes, options.nodes
        wish = engine_wish(options.engine, self.environ, self.cluster, copying=copying, processes=count, nodes=nodes)
        return EngineRules(self._azcopy_problem, wish, usable_cores())

    def _azcopy_problem(self, route: Route, files: int, size: int) -> str | None:
        from blobsync.azcopy.binary import problem
        from blobsync.azcopy.carry import unconfined_problem
        from blobsync.azcopy.confine import Landlock

        return problem(self.environ) or unconfined_problem(route, files, size, confined=Landlock().is_possible)

    def _engines(self, plan: TransferPlan) -> Engines:
        from blobsync.project.engine_set import engine_set

        return engine_set(self._open_context, self.state, plan, self.environ)
