"""``compute``: the compute clusters of an Azure ML workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import LoginRequiredError, UsageError
from blobsync.base.formatting import seconds_of
from blobsync.cli.commands import Commands, argument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session, confirm

if TYPE_CHECKING:
    from blobsync.backends.aml.computes import Compute, ComputeRequest, Computes, NodeBounds


NameArgument = Annotated[str, argument(metavar="NAME", help="The compute's name in the workspace.")]
MinOption = Annotated[int | None, option("--min", min=0, metavar="N", help="Nodes that are always there.")]
MaxOption = Annotated[int | None, option("--max", min=0, metavar="N", help="The most nodes.")]
IdleOption = Annotated[
    str | None, option("--idle", metavar="10m", help="How long a node stays without a job: 120s, 10m, 2h.")
]
DryRunOption = Annotated[bool, option("--dry-run", help="Print the request, send nothing.")]
NoWaitOption = Annotated[bool, option("--no-wait", help="Do not wait until the service is done.")]


app = Commands()
group = app.group("compute", "List, create, scale and remove compute clusters of Azure ML.")


@group.command("ls")
def compute_ls(session: Session) -> Result:
    """List the computes of the cluster's workspace, with their sizes and how many nodes they have.

    \b
      blobsync compute ls
    """
    from blobsync.cli.tables import table

    found = _computes(session).list()
    rows: list[tuple[str, ...]] = [("NAME", "TYPE", "SIZE", "PRIORITY", "MIN", "MAX", "NODES", "BUSY", "STATE")]
    rows += [tuple(_text(value) for value in _cells(one)) for one in found]
    if not found:
        session.note("the workspace has no computes")
    lines = [*table(rows), *(f"{one.name}: {problem}" for one in found for problem in one.problems)] if found else ()
    return Result({"computes": [_data(one) for one in found]}, lines)


@group.command("create")
def compute_create(
    session: Session,
    name: NameArgument,
    vm_size: Annotated[str, option("--vm-size", metavar="SIZE", help="The size of a node: Standard_NC24rs_v3.")],
    most: MaxOption = 1,
    least: MinOption = 0,
    idle: IdleOption = None,
    priority: Annotated[
        str, option("--vm-priority", metavar="dedicated", help="dedicated, or low: cheap, may be taken away.")
    ] = "dedicated",
    location: Annotated[str, option("--location", help="Another region than the workspace's.")] = "",
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
) -> Result:
    """Make a compute cluster. It costs nothing while it has no nodes; they come when a job waits for them.

    \b
      blobsync compute create gpu --vm-size Standard_NC24rs_v3 --max 4 --idle 10m
      blobsync compute create cheap --vm-size Standard_NC6s_v3 --vm-priority low --max 8
    """
    from blobsync.backends.aml.computes import PRIORITIES

    if priority not in PRIORITIES:
        raise UsageError(f"--vm-priority {priority!a} is not one of {', '.join(PRIORITIES)}")
    computes = _computes(session)
    asked = (name, vm_size, priority, _bounds(least, most, idle), location)
    try:
        request = computes.plan_create(*asked)
    except LoginRequiredError as error:
        if not dry_run:
            raise
        session.note(f"not asked whether there is a compute {name} already: {error.message}")
        request = computes.sketch_create(*asked)
    return _carried_out(computes, name, request, dry_run=dry_run, wait=not no_wait)


@group.command("scale")
def compute_scale(
    session: Session,
    name: NameArgument,
    nodes: Annotated[int | None, argument(metavar="[N]", min=0, help="A fixed number of nodes.")] = None,
    least: MinOption = None,
    most: MaxOption = None,
    idle: IdleOption = None,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
) -> Result:
    """Change the bounds of a compute cluster; what is not given stays. N alone is a fixed number of nodes.

    \b
      blobsync compute scale gpu --max 8
      blobsync compute scale gpu 2            always two nodes
      blobsync compute scale gpu --min 0 --idle 2m
    """
    if nodes is not None and (least, most) != (None, None):
        raise UsageError(f"{nodes} cannot be combined with --min or --max", hint="use only one of them")
    if nodes is None and (least, most, idle) == (None, None, None):
        raise UsageError("no size given", hint=f"blobsync compute scale {name} --max 4")
    computes = _computes(session)
    wanted = _bounds(least if nodes is None else nodes, most if nodes is None else nodes, idle)
    request = computes.plan_scale(name, wanted)
    return _carried_out(computes, name, request, dry_run=dry_run, wait=not no_wait)


@group.command("rm")
def compute_rm(
    session: Session,
    name: NameArgument,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask.")] = False,
    dry_run: DryRunOption = False,
    no_wait: NoWaitOption = False,
) -> Result:
    """Delete a compute cluster with its nodes, after asking. Jobs that run there end.

    \b
      blobsync compute rm gpu
    """
    computes = _computes(session)
    request = computes.plan_remove(name)
    if not (yes or dry_run):
        busy = computes.find(name).busy or 0
        confirm(session, f"delete the compute {name} with its nodes ({busy} in use)?")
    return _carried_out(computes, name, request, dry_run=dry_run, wait=not no_wait)


def _computes(session: Session) -> Computes:
    return session.project().jobs.computes()


def _bounds(least: int | None, most: int | None, idle: str | None) -> NodeBounds:
    from blobsync.backends.aml.computes import NodeBounds

    if idle is None:
        return NodeBounds(least, most)
    seconds = seconds_of(idle)
    if seconds is None:
        raise UsageError(f"--idle {idle!a}: not a duration", hint="write 120s, 10m or 2h")
    return NodeBounds(least, most, seconds)


def _carried_out(computes: Computes, name: str, request: ComputeRequest, *, dry_run: bool, wait: bool) -> Result:
    if dry_run:
        return Result({"plan": request.text}, request.text.splitlines(), texts=True)
    found = computes.send(name, request, wait=wait)
    if found is None:
        return Result({"compute": None}, [f"{name}: deleted"])
    bounds = found.bounds
    line = f"{name}: {found.state}, {found.vm_size}, {bounds.least or 0} to {bounds.most:,} nodes"
    return Result({"compute": _data(found)}, [line])


def _cells(one: Compute) -> tuple[Any, ...]:
    bounds = one.bounds
    size = (one.name, one.kind, one.vm_size, one.vm_priority, bounds.least, bounds.most)
    return (*size, one.nodes, one.busy, one.state)


def _text(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _data(one: Compute) -> dict[str, Any]:
    keys = ("name", "type", "vm_size", "vm_priority", "min_nodes", "max_nodes", "nodes", "busy_nodes", "state")
    more = {"idle_seconds": one.bounds.idle_seconds, "location": one.location or None, "problems": list(one.problems)}
    return {**dict(zip(keys, (None if value == "" else value for value in _cells(one)), strict=True)), **more}
