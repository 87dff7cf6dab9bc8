"""``tunnel``: forwards a port of a running job's node, and manages named tunnels to machines behind others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import UsageError
from blobsync.base.formatting import count_text
from blobsync.cli.commands import NO_CLUSTER, Commands, argument, option
from blobsync.cli.jobs import IdArgument, find_jobs
from blobsync.cli.output import Result
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.tunnels.job_tunnel import JobTunnel
    from blobsync.tunnels.named import NamedTunnel, Tunnels, TunnelState

NameArgument = Annotated[str, argument(metavar="NAME", help="The name of the tunnel.")]
LocalPort = Annotated[
    int | None,
    option("--local-port", metavar="PORT", min=1, max=65_535, help="The port to have here, where it is free."),
]


app = Commands()
# A word that is no subcommand is the ID of a job: ``tunnel 3f2a`` is ``tunnel job 3f2a``.
group = app.group(
    "tunnel",
    "Open a port of a running job's node here: tunnel ID --port 8888. Or a tunnel with a name: add, open, ...",
    else_word="job",
)


@group.command("job", takes=NO_CLUSTER)
def tunnel_job(
    session: Session,
    id: IdArgument,
    port: Annotated[int | None, option("--port", metavar="PORT", help="A port that the job listens at.")] = None,
    tensorboard: Annotated[
        str | None, option("--tensorboard", metavar="LOGDIR", help="Start TensorBoard beside the job.")
    ] = None,
    jupyter: Annotated[bool, option("--jupyter", help="Start Jupyter beside the job.")] = False,
    node: Annotated[int, option("--node", min=0, metavar="K", help="Which node of the job.")] = 0,
    local_port: LocalPort = None,
    node_ssh: Annotated[
        bool, option("--node-ssh", help="Slurm: the nodes let you in by ssh; reaches their 127.0.0.1.")
    ] = False,
) -> Result:
    """Open a port of a running job's node at 127.0.0.1, until the job ends or Ctrl-C. A line that is cut comes back.

    'tunnel ID' is short for 'tunnel job ID'. LOGDIR is a folder of the job. A job on this machine needs no tunnel.

    \b
      blobsync tunnel 3f2a --port 8888                 the same as tunnel job 3f2a
      blobsync tunnel 3f2a --tensorboard output/logs
      blobsync tunnel 3f2a --jupyter --node 1
    """
    from blobsync.tunnels.job_tunnel import TunnelRequest

    jobs = find_jobs(session)
    # The tunnel is also closed if Ctrl-C comes while the answer is printed.
    opened = session.held.enter_context(
        jobs.tunnel(id, TunnelRequest(port, tensorboard, jupyter, node, local_port, node_ssh))
    )
    run_id = opened.record.run_id
    session.note(
        f"open until {run_id} ends; Ctrl-C closes it"
        if opened.is_needed
        else f"{run_id} runs on this machine: no tunnel is needed"
    )
    data = {"job_id": run_id, "url": opened.url, "local_port": opened.local_port, "tunnel": opened.is_needed}
    return Result(data, [opened.url], live=True, reveals=True, then=lambda: _hold(session, opened))


def _hold(session: Session, opened: JobTunnel) -> int:
    """Wait until the job has ended."""
    if not opened.is_needed:
        return 0
    try:
        state = opened.keep()
        session.note(f"{opened.record.run_id} is {state}: closed")
    except KeyboardInterrupt:
        session.note("closed")
    return 0


@group.command("add", takes=NO_CLUSTER)
def tunnel_add(
    session: Session,
    name: NameArgument,
    machine: Annotated[str, argument(metavar="[USER@]HOST[:PORT]", help="The machine at the end.")],
    bastion: Annotated[str, option("--bastion", metavar="[USER@]HOST[:PORT]", help="The jump host.")] = "",
    key: Annotated[str, option("--key", metavar="FILE", help="Your private key for both.")] = "",
    port: Annotated[
        int | None,
        option("--port", metavar="PORT", min=1, max=65_535, help="The machine's port. Default: that of its ssh."),
    ] = None,
    local_port: LocalPort = None,
    azure_bastion: Annotated[str, option(metavar="BASTION", help="Azure: the name of the bastion.")] = "",
    resource_group: Annotated[str, option(metavar="GROUP", help="Azure: the bastion's resource group.")] = "",
    target: Annotated[str, option(metavar="ID", help="Azure: the resource id of the machine.")] = "",
    subscription: Annotated[str, option(metavar="ID", help="Azure: the bastion's subscription.")] = "",
) -> Result:
    """Keep a tunnel under a name, and print its entry for ~/.ssh/config.

    \b
      blobsync tunnel add box me@sandbox-12 --bastion me@bastion.example.org --key ~/.ssh/id_ed25519
      blobsync tunnel add gpu me@sandbox-13 --azure-bastion hub --resource-group net --target /subscriptions/.../gpu13
      blobsync tunnel add board me@sandbox-12 --port 6006
    """
    from blobsync.backends.port_forwarding import SSH_PORT, read_key_file, read_machine
    from blobsync.tunnels.named import NamedTunnel

    tunnels = _tunnels(session)
    local = local_port or port or tunnels.next_port()
    port = port or read_machine(machine, "machine").port or SSH_PORT
    azure = (azure_bastion, resource_group, target, subscription)
    given = NamedTunnel(name, machine, local, port, bastion, read_key_file(key, Path.home()) if key else "", *azure)
    tunnels.add(given)
    data = {"tunnel": asdict(given), "ssh_config": _entry(given, local)}
    return Result(data, [*_entry(given, local), f"next: blobsync tunnel open {name}"])


def _entry(tunnel: NamedTunnel, local: int) -> list[str]:
    """The entry for ~/.ssh/config; empty unless the tunnel leads to a machine's ssh."""
    return list(tunnel.ssh_config(local)) if tunnel.leads_to_ssh else []


@group.command("ls", takes=NO_CLUSTER)
def tunnel_ls(session: Session) -> Result:
    """List the tunnels with a name, and which of them are open.

    \b
      blobsync tunnel ls
    """
    states = _tunnels(session).states()
    lines = [_state_line(state) for state in states] or ["no tunnels; add one with blobsync tunnel add"]
    return Result({"tunnels": [_state_data(state) for state in states]}, lines)


def _state_data(state: TunnelState) -> dict[str, Any]:
    return {
        **asdict(state.tunnel),
        "open": state.is_open,
        "open_at": state.local_port or None,
        "restarts": state.restarts,
        "problem": state.problem or None,
        "job_id": state.job_id or None,
    }


def _state_line(state: TunnelState) -> str:
    tunnel = state.tunnel
    way = tunnel.azure_bastion or tunnel.bastion
    line = f"{tunnel.name}  {tunnel.machine}" + (f" by {way}" if way else "") + f", port {tunnel.port}"
    if state.is_open:
        again = f", started again {count_text(state.restarts, 'time')}" if state.restarts else ""
        return f"{line}: open at 127.0.0.1:{state.local_port}{again}"
    if state.problem:
        return f"{line}: down, trying again: {state.problem}"
    return f"{line}: closed, port {tunnel.local_port} here"


@group.command("open", takes=NO_CLUSTER)
def tunnel_open(
    session: Session,
    name: NameArgument,
    job: Annotated[str | None, option("--job", metavar="ID", help="Close it when this job has ended.")] = None,
) -> Result:
    """Open a tunnel in the background, until it is closed; what drops is started again.

    \b
      blobsync tunnel open box
      blobsync tunnel open box --job 3f2a
    """
    tunnels = _tunnels(session)
    record = find_jobs(session).find(job) if job else None
    if record is not None and record.info.state.is_final:
        raise UsageError(f"{record.run_id} has ended: {record.info.state}")

    root = session.root() if record else None
    state = tunnels.open(name, project=root, job_id=record.run_id if record else "")
    data = {**_state_data(state), "ssh_config": _entry(state.tunnel, state.local_port)}
    return Result(data, [f"open at 127.0.0.1:{state.local_port}", *_entry(state.tunnel, state.local_port)])


@group.command("close", takes=NO_CLUSTER)
def tunnel_close(session: Session, name: NameArgument) -> Result:
    """Close a tunnel.

    \b
      blobsync tunnel close box
    """
    was_open = _tunnels(session).close(name)
    return Result({"name": name, "closed": was_open}, [f"{name}: closed" if was_open else f"{name}: was not open"])


@group.command("rm", takes=NO_CLUSTER)
def tunnel_rm(session: Session, name: NameArgument) -> Result:
    """Forget a tunnel that is closed.

    \b
      blobsync tunnel rm box
    """
    _tunnels(session).remove(name)
    return Result({"name": name}, [f"{name}: forgotten"])


def _tunnels(session: Session) -> Tunnels:
    from blobsync.tunnels.named import Tunnels

    return Tunnels(session.environ, note=session.note)
