"""Forwards a port of a running job's node until the job has ended: of the job's own program, or of TensorBoard or
Jupyter, which run beside it on its node as long."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from blobsync.backends.port_forwarding import LOOPBACK, free_local_port, read_port
from blobsync.backends.protocol import Backend, PortForward
from blobsync.base.errors import BlobsyncError, JobError, UsageError
from blobsync.base.plain_json import parse_object
from blobsync.base.process import LineReader, RunningProcess
from blobsync.base.records import dataclass
from blobsync.base.redaction import register_secret
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.states import refresh
from blobsync.jobspec.node_archive import standalone_source
from blobsync.jobspec.spec import State
from blobsync.tunnels.tunnel_keeper import TunnelKeeper

# The default ports of these programs.
_USUAL_PORTS = {"tensorboard": 6006, "jupyter": 8888}
# Ports below this one are for root.
_FIRST_OPEN_PORT = 1024
# Seconds between two checks of the job, and of the tunnel.
_LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.3
# How long a program beside the job may take to report its port (seconds).
_START_SECONDS = 120.0
# Seconds between two of its restarts.
_RETRY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class TunnelRequest:
    """A request for a tunnel: to the job's own program, TensorBoard on a folder of the job, or Jupyter.

    ``local_port`` is the port here (default: the same, if it is free). ``node_ssh`` as in ``PortForward``.
    """

    port: int | None = None
    tensorboard: str | None = None
    jupyter: bool = False
    node: int = 0
    local_port: int | None = None
    node_ssh: bool = False

    @property
    def program(self) -> str:
        """The program to start beside the job; empty for the job's own."""
        return "tensorboard" if self.tensorboard is not None else "jupyter" if self.jupyter else ""


def demand_tunnel(request: TunnelRequest) -> None:
    """Raises ``UsageError`` for an invalid request."""
    if request.tensorboard is not None and request.jupyter:
        raise UsageError("--tensorboard and --jupyter cannot be combined", hint="open them one after the other")
    if request.port is None and not request.program:
        raise UsageError("which port of the job?", hint="--port 8888, --tensorboard LOGDIR or --jupyter")
    if request.tensorboard is not None and (not request.tensorboard or "\0" in request.tensorboard):
        raise UsageError(f"{request.tensorboard!a} is not a folder")
    for port in (request.port, request.local_port):
        if port is not None:
            read_port(port, "port")


class BesideProgram:
    """A program beside the job. ``port`` is its port on the node, once it listens; ``token`` is Jupyter's."""

    def __init__(
        self, context: JobContext, record: JobRecord, request: TunnelRequest, backend: Backend, port: int
    ) -> None:
        """``port`` is the preferred one."""
        self.port = port
        self.token = secrets.token_urlsafe(24) if request.jupyter else ""
        if self.token:
            register_secret(self.token)
        self._record, self._request, self._backend = record, request, backend
        self._process, self._environ, self._note = context.process, context.environ, context.note
        self._child: RunningProcess | None = None
        self._retry_at = 0.0

    def open(self) -> None:
        """Start it, and wait until it reports its port. Raises ``JobError``."""
        source = standalone_source("tensorboard_jupyter.py")
        forward = PortForward(0, self.port, self._request.node, self._request.node_ssh)
        address = self._backend.program_address(self._record.ref, forward)
        argv = list(self._backend.python_beside(self._record.ref, self._request.node, source))
        if address != LOOPBACK:
            self._note(
                f"{self._request.program} listens at {address}, where others on the cluster's network reach it"
                + ("" if self.token else ", without a password")
                + "; with --node-ssh at 127.0.0.1 alone"
            )
        self._child = self._process.start(argv, env=self._environ)
        request = {
            "run_id": self._record.run_id,
            "program": self._request.program,
            "logdir": self._request.tensorboard or "",
            "address": address,
            "port": self.port,
            "token": self.token,
        }
        self._child.send_line(json.dumps(request))
        answer = self._first_answer(self._child)
        if "port" not in answer:
            said = self._child.stderr_tail().splitlines()[-1:]
            self.close()
            why = "; ".join(str(each) for each in (answer.get("error"), *said) if each) or "it printed nothing"
            raise JobError(f"{self._request.program} cannot run beside {self._record.run_id}: {why}")
        self.port = read_port(str(answer["port"]), "port")

    def _first_answer(self, child: RunningProcess) -> dict[str, object]:
        """Its first line of JSON, or empty; a shell's start-up files may print other lines before."""
        lines, until = LineReader(child), time.monotonic() + _START_SECONDS
        while not lines.ended and time.monotonic() < until:
            with suppress(ValueError):
                return parse_object(lines.next(_POLL_SECONDS) or "")
        return {}

    def look(self) -> None:
        """Restart it if it has ended or its connection was lost; a failure is reported, and retried later."""
        if self._child is not None and self._child.wait(0) is None:
            return
        if time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + _RETRY_SECONDS
        self._note(f"{self._request.program} has ended, starting it again")
        try:
            self.open()
        except BlobsyncError as error:
            self._note(error.message)

    def close(self) -> None:
        """End it. Safe to repeat."""
        if self._child is not None:
            self._child.stop()
            self._child = None


class JobTunnel:
    """A forwarded port of a job's node. ``url`` is its address here; ``local_port`` is the port in it.

    A context manager: leaving it closes the port, and ends a program that was started beside the job.
    """

    def __init__(
        self,
        record: JobRecord,
        state: Callable[[], State],
        keeper: TunnelKeeper | None,
        program: BesideProgram | None,
        remote: int,
    ) -> None:
        """``keeper`` is None for a job on this machine, ``program`` None if the job's own listens at ``remote``."""
        self.record = record
        self.local_port = keeper.port if keeper else remote
        query = f"?token={program.token}" if program and program.token else ""
        self.url = f"http://{LOOPBACK}:{self.local_port}/{query}"
        self._state, self._keeper, self._program = state, keeper, program

    def __repr__(self) -> str:
        return f"<JobTunnel of {self.record.run_id}: 127.0.0.1:{self.local_port}>"

    def __enter__(self) -> JobTunnel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_needed(self) -> bool:
        """Whether there are processes to keep running; a job on this machine may need none."""
        return self._keeper is not None or self._program is not None

    def keep(self) -> State:
        """Keep the tunnel open until the job has ended, then close it. Returns the job's state."""
        try:
            look_at = time.monotonic() + _LOOK_SECONDS
            while self.is_needed:
                if self._program:
                    self._program.look()
                if self._keeper:
                    self._keeper.reopen_if_lost()
                if time.monotonic() >= look_at:
                    # An unreachable cluster does not mean that the job has ended.
                    with suppress(BlobsyncError):
                        state = self._state()
                        if state.is_final:
                            return state
                    look_at = time.monotonic() + _LOOK_SECONDS
                time.sleep(_POLL_SECONDS)
            return self._state()
        finally:
            self.close()

    def close(self) -> None:
        """Safe to repeat."""
        for part in (self._keeper, self._program):
            if part:
                part.close()


def open_tunnel(context: JobContext, record: JobRecord, request: TunnelRequest) -> JobTunnel:
    """Open a tunnel, and wait until its port answers.

    Raises ``UsageError``, ``JobError`` if the job does not run, ``BackendUnavailableError`` if the tunnel cannot open.
    """
    demand_tunnel(request)
    backend = context.backend_of(record)

    def state() -> State:
        return refresh(context, [context.history.find(record.run_id)]).records[0].info.state

    found = state()
    if found is not State.RUNNING:
        raise JobError(f"{record.run_id} is {found}: only a running job has ports to open")
    remote = request.port or _USUAL_PORTS[request.program]
    program = BesideProgram(context, record, request, backend, remote) if request.program else None
    keeper = None
    try:
        if program:
            program.open()
        # Ports of jobs on this machine are open already.
        if record.spec.platform != "local":
            keeper = _keeper(context, record, request, backend, lambda: program.port if program else remote)
            keeper.open()
        return JobTunnel(record, state, keeper, program, program.port if program else remote)
    except BaseException:
        for part in (keeper, program):
            if part:
                part.close()
        raise


def _keeper(
    context: JobContext, record: JobRecord, request: TunnelRequest, backend: Backend, remote: Callable[[], int]
) -> TunnelKeeper:
    wanted = request.local_port or (remote() if remote() >= _FIRST_OPEN_PORT else None)
    local = free_local_port(wanted)
    if wanted and local != wanted:
        context.note(f"port {wanted} is taken on this machine: {local} is used instead")

    def make() -> Sequence[str]:
        return backend.forward_argv(record.ref, PortForward(local, remote(), request.node, request.node_ssh))

    return TunnelKeeper(make, local, context.process, context.environ, note=context.note)
