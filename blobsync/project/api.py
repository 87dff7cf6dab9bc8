"""The public face of blobsync: a project, and what can be done with its data.

    from blobsync import Project

    project = Project.open(cluster="eu")
    result = project.upload(["data/voc20"])
    print(result.transferred, result.verified, result.ok)

A plan is made first and is a value; carrying it out is a second step, and ``upload`` is both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blobsync.base.environment import environment
from blobsync.base.errors import UsageError
from blobsync.base.locations import BlobUrl, ContainerUrl
from blobsync.config.loader import load_cluster
from blobsync.config.mapping import Resolution, resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.config.project_root import current_folder, find_project
from blobsync.config.trusted_links import load_trusted_links
from blobsync.local.index import Index
from blobsync.local.state_dir import StateDir, open_state_dir
from blobsync.plan.building import both_ends, live_parts, make_plan
from blobsync.plan.legs import ProjectContext, nested
from blobsync.plan.listener import Listener, SilentListener
from blobsync.plan.transfer_plan import Action, Route, TransferOptions, TransferPlan, TransferResult
from blobsync.store.connections import Connections
from blobsync.store.ends import RemoteEnd
from blobsync.transfer import receipts
from blobsync.transfer.carry_out import Engines, carry_out

if TYPE_CHECKING:
    # Each command loads what it needs itself: modules of ours are a third of a short command's time.
    from blobsync.plan import saved_plan as plan_file
    from blobsync.project import browse, removal, sharing
    from blobsync.project.verify import VerifyReport

_DEFAULTS = TransferOptions()


class Project:
    """A folder with ``aux_data/``, seen through one cluster file. Use :meth:`open`."""

    def __init__(
        self,
        root: Path,
        cwd: Path,
        cluster: Cluster,
        from_cluster: Cluster | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        environ = environment(environ)
        self.root = root
        self.cwd = cwd
        self.cluster = cluster
        self.from_cluster = from_cluster
        self.environ = environ
        self._state: StateDir | None = None
        self._context: ProjectContext | None = None
        self.listener: Listener = SilentListener()

    @classmethod
    def open(
        cls,
        start: str | Path = ".",
        *,
        cluster: str | None = None,
        from_cluster: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Project:
        """The project that holds ``start``, with ``aux_data/aml/<cluster>.yaml`` (default ``aml``).

        ``from_cluster`` is the other cluster of a copy (``-f``), ``overrides`` replace keys of the cluster
        file (``-p``). Raises ``ConfigError``; touches no network.
        """
        environ = environment(environ)
        cwd = current_folder(environ) if start == "." else Path(start).absolute()
        root = find_project(cwd, environ)
        return cls(
            root,
            cwd,
            load_cluster(root, cluster, overrides=overrides, environ=environ),
            load_cluster(root, from_cluster, environ=environ) if from_cluster is not None else None,
            environ=environ,
        )

    # -- where things live ----------------------------------------------------------------------------------

    @property
    def folders(self) -> tuple[FolderEntry, ...]:
        """The cluster's folder entries."""
        return self.cluster.folders

    def resolve(self, path: str) -> Resolution:
        """Where ``path`` lives, here and in the container. Raises ``MappingError``."""
        return resolve(path, cwd=self.cwd, root=self.root, cluster=self.cluster)

    @property
    def state(self) -> StateDir:
        """What blobsync remembers about this project; made on first use."""
        if self._state is None:
            self._state = open_state_dir(self.root, self.environ)
        return self._state

    def trust_links(self, links: Iterable[tuple[str, str]]) -> None:
        """Follow these links out of the project from now on: where each is, from the root, and where it leads.

        Such links come with ``UntrustedLinkError``. A link that leads elsewhere later needs consent anew.
        """
        from blobsync.project.outside_links import trust

        trust(self.root, links, self.environ)
        self._context = None

    @property
    def connections(self) -> Connections:
        """The stores behind the folder entries of both clusters."""
        return self._open_context.connections

    # -- transfers ------------------------------------------------------------------------------------------

    def plan_upload(self, paths: Sequence[str], options: TransferOptions = _DEFAULTS) -> TransferPlan:
        """What ``u`` would do: local to blob, or with a ``from_cluster`` its blob to this cluster's."""
        return self._plan("u", paths, options)

    def plan_download(self, paths: Sequence[str], options: TransferOptions = _DEFAULTS) -> TransferPlan:
        """What ``d`` would do: blob (of ``from_cluster``, if given) to local."""
        return self._plan("d", paths, options)

    def upload(self, paths: Sequence[str], options: TransferOptions = _DEFAULTS) -> TransferResult:
        """Plan and carry out. Raises before anything is touched, or returns what became of each file."""
        return self.carry_out(self.plan_upload(paths, options))

    def download(self, paths: Sequence[str], options: TransferOptions = _DEFAULTS) -> TransferResult:
        """Plan and carry out; see :meth:`upload`."""
        return self.carry_out(self.plan_download(paths, options))

    def carry_out(self, plan: TransferPlan) -> TransferResult:
        """Do what ``plan`` says, look again, and return what is verified and what is not."""
        command = "d" if plan.route is Route.DOWNLOAD else "u"
        parts = live_parts(self._open_context, plan, command)
        result = carry_out(plan, parts, self._engines(plan), self.listener, self.state.folder("receipts"))
        if plan.options.receipt and result.receipt is not None:
            for part in parts:
                if isinstance(part.destination, RemoteEnd):
                    self.listener.note(f"receipt: {receipts.upload_receipt(result.receipt, part.destination)}")
        return result

    def save_plan(self, plan: TransferPlan, file: Path) -> None:
        """Write the plan, without secrets, for :meth:`load_plan`."""
        from blobsync.plan import saved_plan as plan_file

        plan_file.save(plan, "d" if plan.route is Route.DOWNLOAD else "u", file)

    def load_plan(self, saved: plan_file.SavedPlan) -> TransferPlan:
        """Make the saved plan anew; ``PlanFileError`` when it would now do something else."""
        options = saved.options
        if options.from_path is not None:
            options = replace(options, from_path=f"{self.root}/{options.from_path}")
        plan = self._plan(saved.command, [f"{self.root}/{path}" for path in saved.paths], options)
        saved.check(plan)
        return plan

    def _plan(self, command: str, paths: Sequence[str], options: TransferOptions) -> TransferPlan:
        _check(options, self.from_cluster)
        plan = make_plan(self._open_context, command, paths, options, self._azcopy_problem, self.listener)
        emptied = {
            part.destination.container
            for part, action in plan.each()
            if action.action is Action.DELETE and isinstance(part.destination, BlobUrl)
        }
        return replace(plan, warnings=(*plan.warnings, *map(self.recovery, sorted(emptied))))

    def recovery(self, container: ContainerUrl) -> str:
        """Whether what is deleted from a container can be had back, and how: one sentence."""
        from blobsync.store.connect import recovery_sentence

        return recovery_sentence(self.connections.store(container))

    # -- looking --------------------------------------------------------------------------------------------

    def list(self, path: str, *, recursive: bool = False) -> Iterator[browse.ListingEntry]:
        """The blobs at ``path``; streams. Raises ``NothingMatchedError``."""
        from blobsync.project import browse

        place = self.resolve(path)
        return browse.list_path(self.connections, place, self._inner(place), recursive=recursive)

    def usage(self, path: str) -> browse.Usage:
        """Blobs and bytes below ``path``."""
        from blobsync.project import browse

        self.listener.phase("surveying")
        return browse.usage(self.list(path, recursive=True), self.resolve(path).path)

    def status(self, path: str) -> browse.PathStatus:
        """One path as it is here, in the container, and in the index."""
        from blobsync.project import browse

        return browse.path_status(self.connections, self._open_context.index, self.resolve(path))

    def verify(self, path: str, *, deep: bool = False) -> VerifyReport:
        """Compare both sides of ``path`` and the index; with ``deep`` every byte of them."""
        from blobsync.project.verify import verify

        self.listener.phase("verifying")
        return verify(both_ends(self._open_context, path), self.listener.seen, deep=deep)

    def find_removal(self, paths: Sequence[str], *, blob_only: bool = False) -> tuple[removal.Deletion, ...]:
        """What ``rm`` of these paths would delete; with ``blob_only`` the one blob of exactly each name.

        Raises ``CredentialError`` where it plainly may not.
        """
        from blobsync.project import removal

        self.listener.phase("surveying")
        deletions: list[removal.Deletion] = []
        for path in paths:
            place = self.resolve(path)
            self.connections.check(self.connections.end(place.remote), "rld")
            if blob_only:
                deletions.append(removal.find_blob(self.connections, place))
            else:
                deletions += removal.find_deletions(self.connections, place, self._inner(place))
        return tuple(deletions)

    def remove(self, deletions: Sequence[removal.Deletion]) -> removal.Removal:
        """Delete those blobs, and write a receipt that names them."""
        from blobsync.project import removal

        folder = self.state.folder("receipts")
        return removal.remove(
            self.connections, self._open_context.index, deletions, self.listener, folder, self.cluster.name
        )

    def url(self, path: str, *, expiry: timedelta = timedelta(days=7), permission: str = "r") -> str:
        """A URL with a SAS of least rights for one blob, or for a folder where one link can be. It is a secret."""
        (link,) = self.links(path, expiry=expiry, permission=permission)
        return link.url

    def links(
        self,
        path: str,
        *,
        expiry: timedelta = timedelta(days=7),
        permission: str = "r",
        each: bool = False,
        container: bool = False,
    ) -> Iterator[sharing.Link]:
        """Links to give away: one, or with ``each`` one for every blob of a folder; see ``blobsync.project.sharing``.

        ``container`` asks for one that opens the whole container. Raises ``UsageError`` for a folder that no one
        link can be for, unless one of the two is set.
        """
        from blobsync.project import sharing

        place = self.resolve(path)
        request = sharing.LinkRequest(
            permission, int(expiry.total_seconds()), each, container, self.cluster.flag("use_cli_auth")
        )
        return sharing.make_links(self.connections, place, self._inner(place), request, self.environ)

    # -- inside ---------------------------------------------------------------------------------------------

    @property
    def _open_context(self) -> ProjectContext:
        if self._context is None:
            from blobsync.store.connect import check_sas, connect

            cli_login = self.cluster.flag("use_cli_auth")
            clusters = [self.cluster, *([self.from_cluster] if self.from_cluster else [])]
            self._context = ProjectContext(
                root=self.root,
                cwd=self.cwd,
                cluster=self.cluster,
                from_cluster=self.from_cluster,
                connections=Connections(
                    clusters,
                    lambda account: connect(account, environ=self.environ, use_cli_auth=cli_login),
                    lambda account, needs: check_sas(account, needs),
                ),
                index=Index(self.state.index_file, lambda text: self.listener.note(text)),
                trusted=load_trusted_links(self.root, self.environ),
            )
        return self._context

    def _inner(self, place: Resolution) -> tuple[Resolution, ...]:
        return tuple(self.resolve(f"{self.root}/{prefix}/") for prefix in nested(place.path, self.cluster))

    def _azcopy_problem(self, route: Route, files: int, size: int) -> str | None:
        from blobsync.azcopy.binary import problem
        from blobsync.azcopy.carry import unconfined_problem
        from blobsync.azcopy.confine import Landlock

        return problem(self.environ) or unconfined_problem(route, files, size, confined=Landlock().is_possible)

    def _engines(self, plan: TransferPlan) -> Engines:
        from blobsync.project.engine_set import engine_set

        return engine_set(self._open_context, self.state, plan, self.environ)


def _check(options: TransferOptions, from_cluster: Cluster | None) -> None:
    """Options that do not fit together: ``UsageError``."""
    choices = (
        ("--engine", options.engine, {"auto", "azcopy", "direct", "relay"}),
        ("--keep", options.keep, {None, "local", "remote", "both"}),
        ("--links", options.links, {"follow", "skip", "error"}),
    )
    for name, value, known in choices:
        if value not in known:
            words = ", ".join(sorted(word for word in known if word))
            raise UsageError(f"{name} {value}: not one of {words}")
    if options.overwrite and options.keep:
        raise UsageError("--overwrite and --keep exclude each other", hint="--keep both loses nothing")
    if options.engine == "relay" and from_cluster is None:
        raise UsageError("--engine relay is for copies between clusters", hint="pass -f CLUSTER")
