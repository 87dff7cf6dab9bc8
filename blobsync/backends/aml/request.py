"""Makes Azure ML's requests from a job's specification and its cluster file. Pure; without secrets (``job_secrets``).

Field names and shapes: Microsoft.MachineLearningServices 2024-04-01 (mfe.json of azure-rest-api-specs).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blobsync.backends.aml import datastores as aml_storage
from blobsync.backends.aml import itp_and_singularity as aml_platforms
from blobsync.backends.aml.datastores import Datastore
from blobsync.backends.aml.job_secrets import NOTHING, Opening, secrets_path
from blobsync.backends.aml.replies import spec_tags
from blobsync.backends.aml.sweep_job import COMMAND_WORD, MOST_TRIALS, as_sweep
from blobsync.base.errors import UsageError
from blobsync.base.records import dataclass
from blobsync.config.job_keys import NESTED_HINT, enclosing, nested_sentence
from blobsync.config.model import Cluster, WorkspaceConfig
from blobsync.jobspec.node_archive import travelling_sources
from blobsync.jobspec.spec import FolderLink, JobSpec

ENVIRONMENT = "blobsync"
# In effect all of the machine's memory, as in ACT; PyTorch's data loaders need it.
_SHM_SIZE = "1024g"
_NAME_CHARS = 250
# Linux allows 128 kB in one argument; the bootstrap needs about 12.
_COMMAND_CHARS = 100_000
_PACKED = re.compile(r'(?<=b64decode\(\\")[A-Za-z0-9+/=]+')

_INPUT_MODES = {"download": "Download", "ro_mount": "ReadOnlyMount"}
_KEY_HINT = (
    "write the line of a public key of yours there (ssh-keygen -t ed25519 makes one), or for one command, before submit"
    """: -p "{ssh_public_key: '$(cat ~/.ssh/id_*.pub | head -n 1)'}\""""
)
_NODE_OPTIONS = ("keep_root", "sync_seconds")
_IDENTITIES = {
    "amltoken": "AMLToken",
    "aml_token": "AMLToken",
    "managed": "Managed",
    "user": "UserIdentity",
    "user_identity": "UserIdentity",
    "useridentity": "UserIdentity",
}


@dataclass(frozen=True, slots=True)
class AmlRequest:
    """All requests of a submission, in this order: datastores, environment, job. ``secrets_blob``: a path or empty."""

    job: Mapping[str, Any]
    datastores: tuple[Datastore, ...]
    environment: tuple[str, Mapping[str, Any]] | None
    secrets_blob: str = ""

    def render(self, job_path: str, base: str) -> str:
        """The text that ``--dry-run`` prints."""
        shown: list[tuple[str, Mapping[str, Any]]] = [
            (f"{base}/datastores/{store.name}", store.shown_body()) for store in self.datastores
        ]
        if self.environment:
            shown.append((f"{base}/{self.environment[0]}", self.environment[1]))
        shown.append((job_path, self.job))
        return "\n".join(f"# PUT {path}\n{json.dumps(body, indent=2, sort_keys=True)}" for path, body in shown)


def without_bundle(text: str) -> str:
    """A rendered request without the packed bootstrap, which is unreadable."""
    return _PACKED.sub(lambda packed: f"({len(packed[0])} characters: the bootstrap and the specification)", text)


def workspace_path(workspace: WorkspaceConfig) -> str:
    """The workspace's path below the management endpoint."""
    return (
        f"/subscriptions/{workspace.subscription_id}/resourceGroups/{workspace.resource_group}"
        f"/providers/Microsoft.MachineLearningServices/workspaces/{workspace.workspace_name}"
    )


def build_request(
    cluster: Cluster, workspace: WorkspaceConfig, spec: JobSpec, *, opening: Opening = NOTHING
) -> AmlRequest:
    """Make the requests of a job. Raises ``ConfigError`` for what Azure ML cannot do.

    ``opening`` opens the blob with the job's secrets: nothing before submission."""
    check_request(cluster, spec)
    base = workspace_path(workspace)
    code = aml_storage.for_code(cluster, spec.code.container, spec.run_id) if spec.code else None
    # The nodes upload the others themselves.
    brought = [folder for folder in spec.folders if folder.mode != "upload"]
    folders = [
        aml_storage.for_folder(cluster, folder.name, folder.container, spec.run_id, folder.mode) for folder in brought
    ]
    secrets_blob = secrets_path(cluster, spec)
    home = aml_storage.for_code(cluster, str(cluster.code.account.container), spec.run_id) if cluster.code else None
    inputs, outputs = _data(spec, code or home, list(zip(brought, folders, strict=True)))
    if secrets_blob and home:
        inputs["secrets"] = _input("uri_file", "Download", home.uri(secrets_blob))
    environment_id, environment = _environment(cluster, spec, base)
    used = [store for store in (code, *folders, home if secrets_blob else None) if store]
    scratch = cluster.text("runtime.scratch")
    env = {
        **spec.env,
        **({"BLOBSYNC_SCRATCH": scratch} if scratch else {}),
        **aml_platforms.extra_environment(cluster, spec),
    }
    properties: dict[str, Any] = {
        "jobType": "Command",
        "displayName": (spec.name or shlex.join(spec.argv))[:_NAME_CHARS],
        "experimentName": cluster.experiment_name or spec.run_id.rsplit("_", 2)[0],
        "command": command_line(cluster, spec, inputs, outputs, opening),
        "environmentId": environment_id,
        "computeId": _compute_id(cluster, workspace, base),
        "inputs": inputs,
        "outputs": outputs,
        "distribution": distribution(cluster, spec),
        "resources": _resources(cluster, spec, workspace),
        "limits": {"jobLimitsType": "Command", "timeout": f"PT{spec.timeout_s}S"} if spec.timeout_s else None,
        "environmentVariables": env,
        "tags": spec_tags(spec),
        "identity": identity(cluster, used),
        "services": _services(cluster),
        "queueSettings": aml_platforms.queue_settings(cluster, spec),
    }
    if spec.tasks:
        properties = as_sweep(properties, spec, spec.tasks)
    job = {"properties": {key: value for key, value in properties.items() if value not in (None, {})}}
    return AmlRequest(job, tuple({store.name: store for store in used}.values()), environment, secrets_blob)


def check_request(cluster: Cluster, spec: JobSpec) -> None:
    """Raise errors that would otherwise appear only on a node."""
    if spec.hold and not cluster.text("ssh_public_key"):
        raise cluster.error(
            ("ssh_public_key",), "is missing: a job that waits for you is entered with your key", hint=_KEY_HINT
        )
    if spec.tasks and spec.tasks.count > MOST_TRIALS:
        raise UsageError(f"{spec.tasks.count:,} tasks: a sweep on Azure ML has at most {MOST_TRIALS:,}")
    for folder in spec.folders:
        if folder.checkpoints and spec.nodes > 1:
            raise cluster.error(
                ("config_param", f"{folder.name}_folder", "checkpoints"),
                f"does not work on the {spec.nodes:,} nodes of a job on Azure ML: when it starts such a job again,"
                " nodes are not told, and could go on from different checkpoints",
                hint="use one node, or resume from a mounted folder",
            )
    for name, outer in enclosing({folder.name: folder.mode for folder in spec.folders}).items():
        raise cluster.error(("config_param", f"{name}_folder"), nested_sentence(outer), hint=NESTED_HINT)


def command_line(
    cluster: Cluster,
    spec: JobSpec,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    opening: Opening,
) -> str:
    """A Python command with the bootstrap and the specification as one literal; Azure ML fills in the paths."""
    from blobsync.backends.aml import node_start as aml_start

    options = [
        f"--{name.replace('_', '-')}={cluster.text('runtime.' + name)}"
        for name in _NODE_OPTIONS
        if cluster.text(f"runtime.{name}")
    ]
    bundle = {
        "files": travelling_sources(spec),
        "start": Path(aml_start.__file__).read_text(encoding="utf-8"),
        "job": json.loads(spec.to_json()),
        "options": options,
        "secrets": opening.digest,
        "pad": opening.pad,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(bundle, sort_keys=True).encode(), 9)).decode()
    program = (
        f'import base64,json,sys,zlib;b=json.loads(zlib.decompress(base64.b64decode("{packed}")));'
        'exec(b["start"]);main(b,sys.argv[1:])'
    )
    words = [f'"{name}=${{{{inputs.{name}}}}}"' for name in ("code", "node", "secrets") if name in inputs]
    for number, folder in enumerate(spec.folders):
        name = folder_key(folder)
        kinds = [kind for kind, known in (("inputs", inputs), ("outputs", outputs)) if name in known]
        words += [f'"folder.{number}=${{{{{kind}.{name}}}}}"' for kind in kinds]
    words += [COMMAND_WORD] if spec.tasks else []
    python = cluster.text("interpreter_path") or cluster.text("runtime.python") or "python"
    line = " ".join([shlex.quote(python), "-c", f"'{program}'", *words])
    if len(line) > _COMMAND_CHARS:
        raise cluster.error(
            ("env",), f"the command with its environment takes {len(line)} characters, more than a node can start"
        )
    return line


def folder_key(folder: FolderLink) -> str:
    """The name of a folder's input or output."""
    return re.sub(r"\W", "_", folder.name, flags=re.ASCII) + "_folder"


def distribution(cluster: Cluster, spec: JobSpec) -> dict[str, Any] | None:
    """The launcher of the processes; empty for one process."""
    if spec.world_size == 1:
        return None
    launcher = cluster.text("launcher") or "mpi"
    kinds = {"mpi": "Mpi", "pytorch": "PyTorch"}
    if launcher not in kinds:
        raise cluster.error(("launcher",), f"{spec.world_size:,} processes need launcher mpi or pytorch")
    return {"distributionType": kinds[launcher], "processCountPerInstance": spec.procs_per_node}


def identity(cluster: Cluster, stores: list[Datastore]) -> dict[str, Any] | None:
    """The job's identity: the cluster file's, else the user's if a container has neither key nor SAS."""
    given = cluster.value("identity")
    if isinstance(given, Mapping):
        given_values = {str(key): value for key, value in given.items()}
        kind = str(given_values.pop("type", given_values.pop("identityType", "managed")))
        names = {"client_id": "clientId", "object_id": "objectId", "resource_id": "resourceId"}
        more = {names.get(key, key): value for key, value in given_values.items()}
    elif given:
        kind, more = str(given), {}
        if kind.startswith("/subscriptions/"):
            kind, more = "managed", {"resourceId": kind}
    elif cluster.platform == "aml" and any(store.credential == "identity" for store in stores):
        kind, more = "user", {}
    else:
        return None
    if cluster.platform == "singularity":
        # It takes an identity only from a variable.
        return None
    if kind.lower() not in _IDENTITIES:
        raise cluster.error(("identity",), f"{kind!r} is not one of user, managed, aml_token")
    return {"identityType": _IDENTITIES[kind.lower()], **more}


def _data(
    spec: JobSpec, code: Datastore | None, folders: Sequence[tuple[FolderLink, Datastore]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs: dict[str, Any] = {}
    outputs: dict[str, Any] = {}
    if spec.code and code:
        kind = "uri_file" if spec.code.blob.endswith(".zip") else "uri_folder"
        inputs["code"] = _input(kind, "Download", code.uri(spec.code.blob))
    if spec.node_archive and code:
        # It is beside the code, in the same container.
        inputs["node"] = _input("uri_file", "Download", code.uri(spec.node_archive.path))
    for folder, store in folders:
        name, uri = folder_key(folder), store.uri(folder.path)
        if folder.mode in _INPUT_MODES:
            # Only parts are needed: they are copied from a mount, so that the rest is not downloaded.
            mode = "ReadOnlyMount" if folder.include else _INPUT_MODES[folder.mode]
            inputs[name] = _input("uri_folder", mode, uri)
        else:
            outputs[name] = {"jobOutputType": "uri_folder", "mode": "ReadWriteMount", "uri": uri}
    return inputs, outputs


def _input(kind: str, mode: str, uri: str) -> dict[str, Any]:
    return {"jobInputType": kind, "mode": mode, "uri": uri}


def _environment(cluster: Cluster, spec: JobSpec, base: str) -> tuple[str, tuple[str, Mapping[str, Any]] | None]:
    named = cluster.docker.environment
    if named:
        return environment_id(cluster, named, base), None
    if cluster.value("use_custom_docker") is False:
        raise cluster.error(
            ("use_custom_docker",),
            "false is ACT's PyTorch estimator, which took no docker.image and no longer exists",
            hint="docker: {environment: 'azureml:NAME:VERSION'} for one with PyTorch; true runs docker.image",
        )
    if not spec.image:
        raise cluster.error(
            ("docker",),
            "does not name an image to run in",
            hint="docker: {image: REGISTRY/NAME:TAG}, or docker: {environment: 'azureml:NAME:VERSION'}",
        )
    image = cluster.docker.at_registry(spec.image)
    version = hashlib.sha256(image.encode()).hexdigest()[:16]
    place = f"environments/{ENVIRONMENT}/versions/{version}"
    return f"{base}/{place}", (place, {"properties": {"image": image, "isAnonymous": True}})


def environment_id(cluster: Cluster, text: str, base: str) -> str:
    """``azureml:NAME:VERSION``, ``azureml:NAME@LABEL``, a registry's ``azureml://`` id, or an ARM id."""
    if text.startswith(("/subscriptions/", "azureml://")):
        return text
    match = re.fullmatch(r"(?:azureml:)?([\w.-]+)(?::([\w.-]+)|@([\w.-]+))", text, flags=re.ASCII)
    if not match:
        raise cluster.error(("docker", "environment"), f"{text!r} is not an environment", hint="azureml:NAME:VERSION")
    name, version, label = match.groups()
    return f"{base}/environments/{name}/" + (f"versions/{version}" if version else f"labels/{label}")


def _compute_id(cluster: Cluster, workspace: WorkspaceConfig, base: str) -> str | None:
    if cluster.platform == "singularity":
        return aml_platforms.virtual_cluster_id(cluster, workspace)
    target = cluster.compute_target
    if target:
        return target if target.startswith("/") else f"{base}/computes/{target}"
    if cluster.platform == "itp" or not cluster.text("instance_type"):
        raise cluster.error(
            ("compute_target",),
            "does not name a compute",
            hint="the compute's name in the workspace; or instance_type: Standard_NC24rs_v3 for serverless",
        )
    return None


def _resources(cluster: Cluster, spec: JobSpec, workspace: WorkspaceConfig) -> dict[str, Any]:
    docker = cluster.docker
    found: dict[str, Any] = {
        "instanceCount": spec.nodes,
        "instanceType": cluster.text("instance_type") if cluster.platform != "singularity" else None,
        "shmSize": docker.shm_size or (_SHM_SIZE if cluster.platform == "aml" else None),
        "dockerArgs": shlex.join(docker.args) if docker.args else None,
        "properties": aml_platforms.resource_properties(cluster, spec, workspace),
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def _services(cluster: Cluster) -> dict[str, Any] | None:
    key = cluster.text("ssh_public_key")
    if not key or cluster.platform != "aml":
        return None
    nodes = {"nodesValueType": "All"}
    return {"ssh": {"jobServiceType": "SSH", "nodes": nodes, "properties": {"sshPublicKeys": key}}}
