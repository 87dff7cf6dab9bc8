"""Forwards a port of a running job's node until the job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from blobsync.backends.port_forwarding import LOOPBACK
from blobsync.backends.protocol import PortForward, Tunnelling
from blobsync.backends.ssh_arguments import free_local_port
from blobsync.base.errors import BlobsyncError, JobError, UsageError
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.states import refresh
from blobsync.jobspec.spec import State
from blobsync.tunnels.node_apps import BesideProgram, TunnelRequest, demand_tunnel
from blobsync.tunnels.tunnel_keeper import TunnelKeeper

# The default ports of these programs.
_USUAL_PORTS = {"tensorboard": 6006, "jupyter": 8888}
# Ports below this one are for root.
_FIRST_OPEN_PORT = 1024
# Seconds between two checks of the job, and of the tunnel.
_LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.3


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
    tunnelling = backend if isinstance(backend, Tunnelling) else None
    if tunnelling is None and record.spec.platform != "local":
        raise UsageError(f"{backend.name} opens no port of a job", hint=f"blobsync ssh {record.run_id}")

    def state() -> State:
        return refresh(context, [context.history.find(record.run_id)]).records[0].info.state

    found = state()
    if found is not State.RUNNING:
        raise JobError(f"{record.run_id} is {found}: only a running job has ports to open")
    remote = request.port or _USUAL_PORTS[request.program]
    program = BesideProgram(context, record, request, tunnelling, remote) if request.program else None
    keeper = None
    try:
        if program:
            program.open()
        if tunnelling:
            keeper = _keeper(context, record, request, tunnelling, lambda: program.port if program else remote)
            keeper.open()
        return JobTunnel(record, state, keeper, program, program.port if program else remote)
    except BaseException:
        for part in (keeper, program):
            if part:
                part.close()
        raise


def _keeper(
    context: JobContext, record: JobRecord, request: TunnelRequest, backend: Tunnelling, remote: Callable[[], int]
) -> TunnelKeeper:
    wanted = request.local_port or (remote() if remote() >= _FIRST_OPEN_PORT else None)
    local = free_local_port(wanted)
    if wanted and local != wanted:
        context.note(f"port {wanted} is taken on this machine: {local} is used instead")

    def make() -> Sequence[str]:
        return backend.forward_argv(record.ref, PortForward(local, remote(), request.node, request.node_ssh))

    return TunnelKeeper(make, local, context.process, context.environ, note=context.note)
