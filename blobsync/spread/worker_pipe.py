"""The coordinator's end of one worker process: starts it, sends it orders and shards, reads its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from blobsync.base.errors import CredentialError, ProcessError
from blobsync.base.locations import BlobContainer, LocalLocation
from blobsync.base.process import ProcessRunner, RunningProcess, python_module
from blobsync.base.records import NamedTuple
from blobsync.base.redaction import SasToken, Secret, redact
from blobsync.base.user_folders import environment
from blobsync.local.state_dir import StateDir
from blobsync.plan.project_context import LivePart
from blobsync.plan.transfer_plan import Route
from blobsync.spread import orders
from blobsync.spread.file_json import LONGEST_TEXT, FormatError
from blobsync.spread.record import Answer, Ask, Ready, ShardDone, read_answer
from blobsync.spread.shard import Shard, shard_lines
from blobsync.store.open_locations import OpenBlob, OpenLocation
from blobsync.store.rest.request_signing import BearerSigner, Signer

_MODULE = "blobsync.spread.worker_process"
# The rest of the environment may contain secrets, and a worker needs none of it.
_KEPT = frozenset({"PATH", "HOME", "LANG", "TMPDIR", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV"})
_KEPT_PREFIXES = ("PYTHON", "LC_")
_LINES = 500
# Seconds that workers get to end after they were asked to stop.
END_PATIENCE = 2.0


class Credentials(NamedTuple):
    """The sources of the workers' credentials: the signer of requests to a container, and the SAS to read a copy's
    source with. ``environ`` is read for proxies and CA bundles."""

    signer: Callable[[BlobContainer], Signer]
    source_sas: Callable[[OpenBlob], SasToken | None]
    environ: Mapping[str, str]


class WorkerLostError(Exception):
    """The worker has ended, or its output is invalid; the text says how, for the user."""


class WorkerPipe:
    """One worker. Used by one thread, except for :meth:`ask_to_stop` and :meth:`end`."""

    def __init__(
        self,
        runner: ProcessRunner,
        part: LivePart,
        credentials: Credentials,
        *,
        processes: int,
        cap_mbps: float | None = None,
        state: StateDir | None = None,
        patience: float = END_PATIENCE,
    ) -> None:
        """``patience`` is how long (seconds) the worker gets to end after it was asked to stop; the other keywords are
        those of ``WorkerOrders``. Raises ``ProcessError`` if no worker can be started,
        ``CredentialError`` if it would have no credential."""
        self._part = part
        self._credentials = credentials
        self._patience = patience
        blobs = [end.in_container() for end in (part.source, part.destination) if isinstance(end, OpenBlob)]
        self._signers = {blob.container: credentials.signer(blob.container) for blob in blobs}
        ends = self._orders(part.source), self._orders(part.destination)
        environ = orders.transport_environment(credentials.environ)
        sent = orders.WorkerOrders(*ends, processes, cap_mbps, environ, state)
        self._process: RunningProcess = runner.start(python_module(_MODULE), env=worker_environment(environment(None)))
        self.pid = self._process.pid
        self._process.send_line(orders.orders_line(sent))
        self._answers = self._heard(part.route)
        try:
            ready = next(self._answers)
        except WorkerLostError as error:
            raise ProcessError(f"a worker process cannot work here: {error}") from error
        if not isinstance(ready, Ready):
            self.end()
            raise ProcessError("a worker process does not answer as it should")

    def carry(self, shard: Shard) -> Iterator[Answer]:
        """Send a shard; yields the worker's answers until it is finished. Raises ``WorkerLostError`` if it does not
        finish it."""
        # Many lines at once: each write wakes the worker.
        lines = shard_lines(shard)
        while some := list(islice(lines, _LINES)):
            self._process.send_line("\n".join(some))
        for answer in self._answers:
            if isinstance(answer, ShardDone):
                return
            if isinstance(answer, Ask):
                self._process.send_line(orders.handed_line(self._hand(answer)))
            else:
                yield answer

    def ask_to_stop(self) -> None:
        """Ask the worker to clean up and end."""
        self._process.send_line(orders.STOP_LINE)

    def end(self) -> None:
        """Wait for the worker to end; kills it if it does not end by itself."""
        if self._process.wait(self._patience) is None:
            self._process.stop()

    def _heard(self, route: Route) -> Iterator[Answer]:
        try:
            for line in self._process.lines():
                yield read_answer(line, route)
        except (FormatError, ValueError) as error:
            # ValueError: the thread that ends all workers has closed the pipe.
            self._process.stop()
            raise WorkerLostError(f"it sent what is no record: {error}") from error
        raise WorkerLostError(self._how_it_ended())

    def _how_it_ended(self) -> str:
        code = self._process.stop()
        said = self._process.stderr_tail().splitlines()
        how = f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        return f"{how}: {redact(said[-1])[:LONGEST_TEXT]}" if said and code > 0 else how

    def _orders(self, end: OpenLocation) -> orders.EndOrders:
        if isinstance(end, LocalLocation):
            return end
        location = end.in_container()
        return orders.remote_orders(location, self._signers[location.container])

    def _hand(self, asked: Ask) -> orders.Handed:
        end = self._part.source if asked.end == "source" else self._part.destination
        if not isinstance(end, OpenBlob):
            return orders.Handed(problem=CredentialError("a folder of this machine needs no credential"))
        try:
            if asked.what == "source_sas":
                sas = self._credentials.source_sas(end)
                return orders.Handed(Secret(sas.reveal()) if sas else None)
            signer = self._signers[end.in_container().container]
            if not isinstance(signer, BearerSigner):
                return orders.Handed(problem=CredentialError("this credential cannot be renewed"))
            if asked.what == "renewed":
                signer.renew()
            return orders.Handed(*signer.current())
        except CredentialError as error:
            return orders.Handed(problem=error)


def worker_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker's process: what Python needs to start."""
    return {name: value for name, value in environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
