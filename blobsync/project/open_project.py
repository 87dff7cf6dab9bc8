"""An open project: where it is, which clusters it is seen through, and the connections and files that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from blobsync.base.environment import environment
from blobsync.base.errors import UsageError
from blobsync.config.loader import load_cluster
from blobsync.config.mapping import Resolution, resolve
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from blobsync.config.project_root import current_folder, find_project
from blobsync.config.trusted_links import load_trusted_links
from blobsync.local.block_journal import BlockJournal
from blobsync.local.free_space import LocalDisks
from blobsync.local.index import Index
from blobsync.local.range_records import RangeRecords
from blobsync.local.state_dir import StateDir, open_state_dir, trust_state
from blobsync.plan.listener import Listener
from blobsync.plan.path_mapping import nested
from blobsync.plan.project_context import ProjectContext
from blobsync.project.notebook import NotebookBar, in_notebook
from blobsync.project.paths import PathName, path_text
from blobsync.project.plan_memory import spill_of
from blobsync.project.progress_listeners import CallbackListener, LoggingListener, OnProgress
from blobsync.store.connections import Connections

if TYPE_CHECKING:
    from blobsync.store.protocol import BlobStore

_Self = TypeVar("_Self", bound="OpenProject")


class OpenProject:
    """What every call on a project needs; ``Project`` adds the calls. Not for several threads at a time."""

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
        # What the log of transfers calls the command; empty: made from the plan.
        self.command_line = ""
        self._connect = connect
        self._state: StateDir | None = None
        self._context: ProjectContext | None = None
        self._closed = False

    @classmethod
    def open(
        cls: type[_Self],
        start: PathName = ".",
        *,
        cluster: str | None = None,
        from_cluster: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> _Self:
        """The project that holds ``start``, with ``aux_data/aml/<cluster>.yaml`` (default ``aml``).

        ``from_cluster`` is the other cluster of a copy (``-f``), ``overrides`` replace keys of the cluster
        file (``-p``), ``environ`` replaces ``os.environ``. Raises ``ConfigError``; uses no network.
        """
        environ = environment(environ)
        start = path_text(start)
        cwd = current_folder(environ) if start == "." else Path(start).absolute()
        root = find_project(cwd, environ)
        return cls(
            root,
            cwd,
            load_cluster(root, cluster, overrides=overrides, environ=environ),
            load_cluster(root, from_cluster, environ=environ) if from_cluster is not None else None,
            environ=environ,
        )

    def with_cluster(self: _Self, cluster: Cluster) -> _Self:
        """The same project through another cluster, from its root; it is closed for itself."""
        self._demand_open()
        other = type(self)(self.root, self.root, cluster, environ=self.environ, connect=self._connect)
        other.listener = self.listener
        return other

    def close(self) -> None:
        """Let go of connections and files. Safe to repeat; any other use after it raises ``UsageError``."""
        self._closed = True
        context, self._context = self._context, None
        if context is not None:
            context.connections.close()
            context.index.close()
            context.journal.close()

    def __enter__(self: _Self) -> _Self:
        self._demand_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Where ``path`` lives, here and in the container. Raises ``MappingError``."""
        self._demand_open()
        return resolve(path_text(path), cwd=self.cwd, root=self.root, cluster=self.cluster)

    @property
    def state(self) -> StateDir:
        """What blobsync remembers about this project; made on first use. Raises ``UntrustedStateError``."""
        self._demand_open()
        if self._state is None:
            self._state = open_state_dir(self.root, self.environ)
        return self._state

    def trust_links(self, links: Iterable[tuple[str, str]]) -> None:
        """Follow these links out of the project from now on: where each is, from the root, and where it leads.

        Such links come with ``UntrustedLinkError``. A link whose target changes must be trusted again.
        """
        from blobsync.project.outside_links import trust

        self._demand_open()
        trust(self.root, links, self.environ)
        self._context = None

    def trust_state(self, *, both: bool = False) -> None:
        """Accept the state folder in the project, which may have come from somebody else (``UntrustedStateError``).

        ``both``: it is one project, seen under this path and under those that the folder was kept for; otherwise it
        counts as moved or copied. Raises ``LocalFileError``.
        """
        self._demand_open()
        trust_state(self.root, self.environ, both=both)

    def trust_code(self, digests: Iterable[str]) -> None:
        """Let jobs of the project run the code of these digests, though it was not published from here.

        ``UntrustedCodeError`` has the ``digest``. Raises ``UsageError`` for what is none.
        """
        from blobsync.config.trusted_code import demand_digest, trust_code

        self._demand_open()
        trust_code(self.root, [demand_digest(digest, "trust_code") for digest in digests], self.environ)

    def trust_docker(self, options: Iterable[str]) -> None:
        """Use these options for docker on this machine: exactly these, though they reach beyond the project.

        ``UntrustedDockerError`` has the ``options``.
        """
        from blobsync.config.trusted_docker import load_trusted_docker, save_trusted_docker

        self._demand_open()
        known = load_trusted_docker(self.root, self.environ)
        save_trusted_docker(self.root, known | {tuple(options)}, self.environ)

    @property
    def connections(self) -> Connections:
        """The stores behind the folder entries of both clusters."""
        return self._open_context.connections

    # -- for the calls that are built on it -------------------------------------------------------------------

    @contextmanager
    def _telling(self, on_progress: OnProgress | None) -> Iterator[None]:
        """While it lasts ``on_progress`` is told how it goes, as is the listener; a notebook has a bar by default."""
        before, bar = self.listener, None
        if on_progress is None and isinstance(before, LoggingListener) and in_notebook():
            bar = on_progress = NotebookBar()
        if on_progress is None:
            yield
            return
        teller = CallbackListener(on_progress, before)
        self.listener = teller
        try:
            yield
        finally:
            self.listener = before
            teller.close()
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
                index=Index(self.state.index_file, lambda text: self.listener.note(text)),
                journal=BlockJournal(self.state.blocks_file, lambda text: self.listener.note(text)),
                trusted=load_trusted_links(self.root, self.environ),
                unfinished=RangeRecords(self.state) if self.state.lasting else None,
                spill=spill_of(self.state, self.environ),
                disks=LocalDisks(left_over=self._left_over),
            )
        return self._context

    def _left_over(self, place: Path) -> int:
        from blobsync.project.engine_set import left_over_by

        return left_over_by(self.state, place)

    def _open_connections(self, clusters: list[Cluster]) -> Connections:
        from blobsync.store.connect import check_sas, connect

        cli_login = self.cluster.flag("use_cli_auth")

        def told(account: StorageAccount) -> BlobStore:
            # The listener of the call that is under way then.
            return connect(
                account, environ=self.environ, use_cli_auth=cli_login, emit=lambda event: self.listener.emit(event)
            )

        return Connections(
            clusters,
            self._connect or told,
            lambda account, needs: check_sas(account, needs),
        )

    def _inner(self, place: Resolution) -> tuple[Resolution, ...]:
        return tuple(self.resolve(f"{self.root}/{prefix}/") for prefix in nested(place.path, self.cluster))
