"""Reads jobs of the workspace that blobsync did not submit. Pure.

Fields: Microsoft.MachineLearningServices 2024-04-01 (mfe.json, CommandJob). Jobs of ACT have their command in the
arguments of the run's definition in run history: ``--command`` (act/aml_client.py, update_by_run_details).
"""

from __future__ import annotations

import re
from typing import Any

from blobsync.backends.aml.replies import AmlReply, read_duration
from blobsync.base.redaction import is_secret_name
from blobsync.config.model import Cluster
from blobsync.jobspec.spec import JobSpec

_ACTS_COMMAND = "--command"
# The service's own variables.
_OF_THE_SERVICE = re.compile(r"(?:AZUREML|AZ_BATCH)\w*", re.IGNORECASE)


def read_foreign(body: AmlReply, details: AmlReply, cluster: Cluster) -> JobSpec:
    """The job as a specification for ``cluster``; ``unread`` lists what it does not contain.

    ``details`` are those of run history, empty if they were not requested.
    """
    properties, name = body.inner("properties"), body.text("name")
    acts = _command_of_act(details)
    command = acts or properties.text("command")
    nodes, each = _size(properties, details)
    given = properties.texts("environmentVariables")
    own = {key: value for key, value in given.items() if not _OF_THE_SERVICE.fullmatch(key)}
    env = {key: value for key, value in own.items() if not is_secret_name(key)}
    unread = [f"the variable {key}" for key in sorted(own.keys() - env.keys())]
    limit = properties.inner("limits").text("timeout")
    seconds = read_duration(limit) or None
    unread += [f"the limit {limit}"] if limit and not seconds else []
    if not acts:
        unread += _places(properties)
    return JobSpec(
        run_id=name,
        argv=(command,),
        cluster=cluster.name,
        platform=cluster.platform,
        name=properties.text("displayName"),
        nodes=nodes,
        procs_per_node=each,
        # With one process per node the service does not report a machine's GPUs.
        gpus_per_node=each if each > 1 else (cluster.gpu_per_node or 1),
        env=env,
        timeout_s=seconds,
        options={"foreign": True, "unread": [text[:200] for text in unread]},
    )


def _command_of_act(details: AmlReply) -> str:
    arguments: Any = details.inner("runDefinition").values.get("arguments")
    if not isinstance(arguments, list) or arguments.count(_ACTS_COMMAND) != 1:
        return ""
    found = arguments[arguments.index(_ACTS_COMMAND) + 1 :]
    return str(found[0]) if found and isinstance(found[0], str) else ""


def _size(properties: AmlReply, details: AmlReply) -> tuple[int, int]:
    """The number of nodes, and of processes on each."""
    run = details.inner("runDefinition")
    nodes = properties.inner("resources").count("instanceCount") or run.count("nodeCount") or 1
    each = properties.inner("distribution").count("processCountPerInstance")
    return nodes, each or run.inner("mpi").count("processCountPerNode") or 1


def _places(properties: AmlReply) -> list[str]:
    """The job's code, environment, inputs and outputs, which a cluster file has in another form."""
    found = [f"its code {code}" for code in [properties.text("codeId")] if code]
    found += [f"its environment {place}" for place in [properties.text("environmentId")] if place]
    for kind in ("inputs", "outputs"):
        found += [f"the {kind[:-1]} {name}" for name in sorted(properties.members(kind))]
    return found
