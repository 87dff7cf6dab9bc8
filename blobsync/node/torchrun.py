"""What torchrun needs on a node of an elastic job, as variables, so that the command stays ``torchrun train.py``. Pure.

torchrun reads every option from ``PET_<OPTION>``; an option on its command line wins. Seen with torchrun 2.13 and its
c10d rendezvous:

* Without ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` on every node, a node that joins hangs for 60 seconds; then all end.
* ``max_restarts`` counts the times that a node goes, so it has to be large.
* The rendezvous is on one node; when that goes, the others end within two seconds (pytorch/pytorch#67742).
* ``is_host`` says who that is. Otherwise each node compares the name of the endpoint with its own, and on one machine
  whoever comes first is the host.
"""

from __future__ import annotations

from collections.abc import Mapping

from blobsync.jobspec.spec import JobSpec
from blobsync.node.ranks import Ranks, master_address, master_port

# How long a rendezvous that has enough nodes waits for one more, and how long a node waits to be let in (seconds).
_CONF = "last_call_timeout=3,join_timeout=300"
# As in the examples of PyTorch and Kubeflow.
_MAX_RESTARTS = 100
_MONITOR_SECONDS = 0.5


def elastic_variables(
    spec: JobSpec, ranks: Ranks, environ: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """What is added to the environment of an elastic job's command.

    ``environ`` is the launcher's environment, ``given`` the one that the command would have otherwise: what the user
    has set there stays.
    """
    address = master_address(spec, environ)
    host = f"[{address}]" if ":" in address else address
    settings = {
        "PET_NNODES": f"{spec.min_nodes}:{spec.max_nodes}",
        "PET_NPROC_PER_NODE": str(spec.workers_per_node),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{master_port(spec, environ)}",
        "PET_RDZV_ID": spec.run_id,
        "PET_MAX_RESTARTS": str(_MAX_RESTARTS),
        "PET_MONITOR_INTERVAL": str(_MONITOR_SECONDS),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    own = {name: value for name, value in settings.items() if name not in given}
    conf = given.get("PET_RDZV_CONF", _CONF)
    if "is_host" not in conf and given.get("PET_RDZV_BACKEND", "c10d") == "c10d":
        conf = f"is_host={int(ranks.node_rank == 0)},{conf}".rstrip(",")
    bounds = {"BLOBSYNC_MIN_NODES": str(spec.min_nodes), "BLOBSYNC_MAX_NODES": str(spec.max_nodes)}
    return {**own, "PET_RDZV_CONF": conf, **bounds}
