"""What submit refuses because of a cluster file, config check tells beforehand."""

from __future__ import annotations

import ast
import random
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.base.errors import BlobsyncError
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.preflight import refusals
from blobsync.jobs.submit import submit
from blobsync.jobspec.code_choice import CodeChoice, code_entry
from blobsync.jobspec.make_spec import SubmitRequest
from blobsync.jobspec.spec import CodeRef
from tests.fakes.aml_configs import ENTRY, PLAIN
from tests.source import Module, modules
from tests.unit.project_files import NO_ENVIRON, ProjectFiles
from tests.unit.test_refusals import raised_in

CODE = {"code_path": {**ENTRY, "path": "me/code.zip"}}
SLURM: Mapping[str, Any] = {"platform": "slurm", "config_param": {**CODE, "data_folder": {**ENTRY, "path": "d"}}}
LOCAL: Mapping[str, Any] = {"platform": "local", "config_param": {"data_folder": {**ENTRY, "path": "d"}}}
ITP = {**PLAIN, "platform": "itp"}
SING = {**PLAIN, "platform": "singularity", "singularity_instance_type": "Singularity.ND40_v2"}
KUBE = {**SLURM, "platform": "kubernetes", "kubernetes": {"image": "i", "namespace": "train"}}
NO_DELETE = {"azure_blob_config_file": "aux_data/configs/noright.yaml", "path": "d"}
EMULATED = {"azure_blob_config_file": "aux_data/configs/emulator.yaml", "path": "d"}
PLAIN_HTTP = {"azure_blob_config_file": "aux_data/configs/http.yaml"}
ENDED = {"azure_blob_config_file": "aux_data/configs/ended.yaml"}
WORKSPACE = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
DISPATCH = {"data_folder": {**ENTRY, "path": "d"}, "data/coco_folder": {**ENTRY, "path": "c"}}

# Text that packing does not make small.
HUGE = random.Random(1).randbytes(100_000).hex()

# Every way in which a cluster file alone makes submit refuse: its values, and words of the sentence.
REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "no platform": ({"config_param": LOCAL["config_param"]}, "platform: is missing"),
    "ACT without compute_target": (
        {"aml_config": "aux_data/aml/config.json", "config_param": LOCAL["config_param"]},
        "platform: is missing",
    ),
    "a Philly file": (
        {"vc": "input", "blob_mount_point": "/blob", **ENTRY, "config_param": {"data_folder": "/blob/d"}},
        "platform: is missing",
    ),
    "an image that is none": ({**LOCAL, "docker": {"image": "--privileged"}}, "is not an image name"),
    "Kubernetes without an image": ({**KUBE, "kubernetes": {"namespace": "train"}}, "a pod needs an image"),
    "Kubernetes with mounts in no namespace": ({**KUBE, "kubernetes": {"image": "i"}}, "finds the secret of a mount"),
    "Kubernetes with a wrong amount": ({**KUBE, "kubernetes": {"image": "i", "memory": "64 GB"}}, "is not an amount"),
    "Kubernetes with an image that is none": ({**KUBE, "kubernetes": {"image": "-i"}}, "is not the name of an image"),
    "Kubernetes with too many days": ({**KUBE, "kubernetes": {"image": "i", "ttl_days": 4000}}, "must be at most 3650"),
    "Kubernetes with half a login": (
        {**KUBE, "docker": {"image": "i", "password": "p", "username": "me"}},
        "needs a password, a username and an address",
    ),
    "Kubernetes with a size that is none": ({**KUBE, "docker": {"image": "i", "shm_size": "64 GB"}}, "is not a size"),
    "Kubernetes with a label that is none": (
        {**KUBE, "kubernetes": {"image": "i", "node_selector": {"a b": "c"}}},
        "is not a label of nodes",
    ),
    "Kubernetes with a toleration of nothing": (
        {**KUBE, "kubernetes": {"image": "i", "tolerations": [{"operator": "Equal"}]}},
        "without a key, it needs operator: Exists",
    ),
    "Kubernetes with a taint that is none": (
        {**KUBE, "kubernetes": {"image": "i", "tolerations": [{"key": "a b"}]}},
        "is not the key of a taint",
    ),
    "Kubernetes with a security context of another word": (
        {**KUBE, "kubernetes": {"image": "i", "security_context": "loose"}},
        "is not restricted, or a mapping",
    ),
    "Kubernetes with a misspelt field of a security context": (
        {**KUBE, "kubernetes": {"image": "i", "security_context": {"runAsUsr": 1}}},
        "is not a field of a security context",
    ),
    "Kubernetes with a mount of an emulator": (
        {**KUBE, "config_param": {**CODE, "data_folder": EMULATED}},
        "the Blob CSI driver takes accounts of Azure only",
    ),
    "outputs of jobs without a folder": ({**SLURM, "output": "per_job"}, "there is no output folder"),
    "a setup line with an open quote": ({**SLURM, "setup": "echo 'a"}, "a quote is opened and not closed"),
    "no code": ({**SLURM, "config_param": {}}, "does not say where the code is"),
    "Slurm without shared_root": ({**SLURM, "ssh": "me@login"}, "mode link needs slurm.shared_root"),
    "a misspelt section": ({**SLURM, "ssh": "me@login", "slrum": {"shared_root": "/x"}}, "needs slurm.shared_root"),
    "a share on Slurm": (
        {
            **SLURM,
            "config_param": {
                **CODE,
                "a_folder": {**ENTRY, "path": "d", "storage_type": "file", "file_share": "s", "mode": "mount"},
            },
        },
        "cannot use an Azure file share",
    ),
    "a time that is none": ({**LOCAL, "timeout": "soon"}, "'soon' is not a duration"),
    "GPUs that do not fill nodes": ({**SLURM, "num_gpu": 6, "gpu_per_node": 4}, "do not fill whole nodes"),
    "no GPUs, and a gres of some": ({**SLURM, "num_gpu": 0, "slurm": {"gres": "gpu:4"}}, "-n 0 requests no GPU"),
    "GPUs that do not divide": (
        {**SLURM, "min_nodes": 2, "max_nodes": 3, "num_gpu": 5},
        "5 GPUs cannot be divided evenly among 2 nodes",
    ),
    "more GPUs than the bounds allow": (
        {**SLURM, "min_nodes": 1, "max_nodes": 2, "num_gpu": 16, "gpu_per_node": 4},
        "the job may have 1 to 2 nodes, and cannot begin with 4",
    ),
    "more GPUs than this machine": ({**LOCAL, "num_gpu": 4, "local": {"gpus": 2}}, "this machine has 2 GPUs"),
    "more slots than a machine": ({**LOCAL, "local": {"slots": 2000}}, "must be a whole number up to 1024"),
    "too many nodes here": ({**LOCAL, "min_nodes": 1, "max_nodes": 90}, "this machine takes at most 64 nodes"),
    "a login node that is none": (
        {**SLURM, "ssh": "-oProxyCommand=x", "slurm": {"shared_root": "/x"}},
        "is not user@host",
    ),
    "several nodes here": ({**LOCAL, "nodes": 2}, "this machine is one node"),
    "an elastic job by mpirun": (
        {**SLURM, "min_nodes": 1, "max_nodes": 2, "slurm": {"launcher": "mpirun"}},
        "mpirun ends when a node is lost",
    ),
    "an array without numbers": ({**SLURM, "slurm": {"array": "3-1"}}, "'3-1' are not numbers of tasks"),
    "an array that is elastic": (
        {**SLURM, "min_nodes": 1, "max_nodes": 2, "slurm": {"array": "0-3"}},
        "an elastic job cannot have tasks",
    ),
    "Azure ML with checkpoints on several nodes": (
        {
            **PLAIN,
            "nodes": 2,
            "config_param": {**CODE, "d_folder": {**ENTRY, "path": "d", "mode": "upload", "checkpoints": "step-*"}},
        },
        "does not work on the 2 nodes of a job on Azure ML",
    ),
    "Azure ML with bounds": ({**PLAIN, "min_nodes": 1, "max_nodes": 2}, "a job on aml has a fixed number of nodes"),
    "bounds without a node": ({**LOCAL, "min_nodes": 0, "max_nodes": 2}, "an elastic job has at least one node"),
    "a directive with a line break": ({**SLURM, "slurm": {"qos": "a\nb"}}, "contains a line break"),
    "a variable with a blank": ({**SLURM, "slurm": {"export": ["A B"]}}, "is not a variable name"),
    "a mount that the SAS does not allow": (
        {**SLURM, "config_param": {**CODE, "a_folder": {**NO_DELETE, "mode": "mount"}}},
        "delete",
    ),
    "a workspace at a host of nobody": (
        {**PLAIN, "aml_config": {**WORKSPACE, "management_endpoint": "https://elsewhere.example"}},
        "your login is not sent there",
    ),
    "the estimator of ACT": ({**PLAIN, "use_custom_docker": False}, "false is ACT's PyTorch estimator"),
    "code at a host that may listen": (
        {**SLURM, "config_param": {"code_path": {**PLAIN_HTTP, "path": "me/code.zip"}}},
        "blob_endpoint is plain http",
    ),
    "code with a SAS that ended": (
        {**SLURM, "config_param": {"code_path": {**ENDED, "path": "me/code.zip"}}},
        "expired at 2020-01-01",
    ),
    "a workspace file that is not there": ({**PLAIN, "aml_config": "aux_data/aml/no.json"}, "does not exist"),
    "Azure ML with mode link": (
        {**PLAIN, "config_param": {**CODE, "d_folder": {**ENTRY, "path": "d", "mode": "link"}}},
        "mode link needs a file system that this machine and the nodes of aml share",
    ),
    "Azure ML with a folder in another": ({**PLAIN, "config_param": {**CODE, **DISPATCH}}, "is inside data_folder"),
    "Azure ML without an image": ({**PLAIN, "docker": {}}, "does not name an image"),
    "Azure ML with an environment that is none": ({**PLAIN, "docker": {"environment": "a b"}}, "is not an environment"),
    "Azure ML without compute": ({**PLAIN, "compute_target": None}, "does not name a compute"),
    "Azure ML with an identity that is none": ({**PLAIN, "identity": "me"}, "is not one of user, managed"),
    "Azure ML without a launcher": ({**PLAIN, "launcher": "none"}, "need launcher mpi or pytorch"),
    "Azure ML with too large an environment": ({**PLAIN, "env": {"A": HUGE}}, "more than a node can start"),
    "a tier that is none": ({**PLAIN, "queue_settings": {"job_tier": "Gold"}}, "'Gold' is not one of"),
    "ITP with a priority that is no number": ({**ITP, "priority": "High"}, "is not a number, which ITP requires"),
    "ITP with half a pair": ({**ITP, "min_nodes": 2}, "needs max_nodes beside it"),
    "ITP with uneven steps": ({**ITP, "elastic_num_gpu": [6]}, "do not fill whole nodes"),
    "Singularity without a machine": ({**SING, "singularity_instance_type": None}, "does not name a machine type"),
    "Singularity without a cluster": ({**SING, "compute_target": None}, "does not name a virtual cluster"),
}

# What refuses, by module: each place that raises one of these has refused a file above, or says why none can make it.
RAISED = r"ConfigError|UsageError|SubmissionError|CredentialError|(given|self|cluster)\.error"
# Rooms and modules of jobs that are not on the road of submit, or come after what can be told without asking.
ELSEWHERE: Mapping[str, str] = {
    "ancestors": "convert reads and writes files of Batch AI",
    "jobs.form": "submit --file and the web page fill a form, which is checked by preflight",
    "jobs.foreground": "blobsync local",
    "jobs.spread_job": "--nodes of a transfer",
    "jobs.task_table": "a job that is known",
    "jobspec.sweep": "--sweep, --array and the command; that of the file is refused with its line",
    "jobs.service": "options of a command, and a job that runs is scaled",
    "jobs.detached": "what a transfer has left",
    "jobs.shared_records": "a job of somebody else is submitted again",
    "jobs.states": "a job that runs is stopped",
    "jobs.outputs": "a job has ended",
    "jobs.logs": "a job that is known",
    "jobs.queries": "a job that is known",
    "backends.port_forwarding": "tunnels come after the job",
    "backends.aml.computes": "compute create and scale",
    "backends.kubernetes.submission": "the cluster is asked",
}
NOT_THE_FILES_FAULT: Mapping[str, str] = {
    "your login was not sent there": "whose program listens on this machine",
    "no command given": "the command is missing",
    "no shell can run the command": "the command",
    "--{option} is for Slurm": "an option of the command line",
    "{option} is for Slurm and Kubernetes": "an option of the command line",
    "--after is for": "an option of the command line",
    "--env": "an option of the command line",
    "is not a Slurm job number": "the job that comes first is one of blobsync's own",
    "--elastic {": "an option of the command line",
    "a job that waits for you": "only a job that waits for its user, which is asked for on the command line",
    "cannot be combined": "options of the command line",
    "has no code_path: its jobs": "an option of the command line",
    "--hold": "an option of the command line",
    "--array and --sweep": "options of the command line",
    "--parallel is for": "an option of the command line",
    "--sweep is for": "an option of the command line",
    "--parallel: on Kubernetes": "an option of the command line",
    "tasks of several nodes: Kubernetes": "--sweep",
    "tasks: a sweep on Azure ML has at most": "--sweep",
    "but a task requests {spec.nodes}": "the shape of the job is refused before",
    "cannot be scaled": "a job that runs is scaled",
    "opens no port of a job": "a tunnel to a job that runs",
    "may have {bounds}, not {nodes}": "a job that runs is scaled",
    "has ended: {state}": "a job that runs is scaled",
    "starts it again with as many as are free": "a job that runs is scaled",
    "per node requested, but": "without --nodes, more GPUs than a node has take more nodes",
    "the job needs {missing[0]}": "a job that moves from another cluster",
    "the job needs the secret variable": "a job that moves from another cluster",
    "the job needs {container}": "a job that moves from another cluster",
    "but no such credential": "an account file with auth and without what it names is a mistake of its own",
    "{what} need a code_path": "without code_path the job is refused for that",
    "{value!a} is not a whole number": "the type of the key is checked when the file is read",
    "is neither a program name": "the form of the key is checked when the file is read",
    "tasks of a job at a time": "--nodes of a transfer",
    "this machine is one node, but the job requests {spec.nodes}": "the shape of the job is refused before",
    "only Azure ML has computes": "compute on another platform",
    "the cluster has no Kueue": "the cluster is asked",
    "has no queue {queue}": "the cluster is asked",
}


def project(root: Path, values: Mapping[str, Any]) -> Cluster:
    files = ProjectFiles(root)
    files.account(
        "noright", "account_name: reader\ncontainer_name: cont\nsas_token: 'sv=1&sr=c&sp=rl&se=2099-01-01&sig=x'\n"
    )
    files.account(
        "ended", "account_name: ended\ncontainer_name: cont\nsas_token: 'sp=rwdl&sr=c&se=2020-01-01T00:00:00Z&sig=x'\n"
    )
    for name, host in (("emulator", "127.0.0.1:10000"), ("http", "192.0.2.1")):
        endpoint = f"blob_endpoint: http://{host}/{name}\n"
        files.account(name, f"account_name: {name}\ncontainer_name: cont\naccount_key: a2V5\n{endpoint}")
    files.write("aux_data/aml/config.json", yaml.safe_dump(WORKSPACE))
    files.cluster(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
    return load_cluster(root, environ=NO_ENVIRON)


def code_there(cluster: Cluster) -> CodeChoice:
    """As if the container held the code of the last init."""
    entry = code_entry(cluster)
    return CodeChoice(CodeRef(str(entry.account.container), f"{entry.path}.d/1.zip", "1") if entry else None)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's state folder: what travels to nodes is packed once."""
    return tmp_path_factory.mktemp("state")


def refused_by_submit(root: Path, cluster: Cluster, kept: Path) -> BlobsyncError:
    context = JobContext(
        root, {"USER": "me", "HOME": str(root), "XDG_STATE_HOME": str(kept), "XDG_CONFIG_HOME": str(kept)}, cluster
    )
    with pytest.raises(BlobsyncError) as caught:
        submit(context, cluster, SubmitRequest(("true",)), code_there)
    assert not context.history.page()
    return caught.value


@pytest.mark.parametrize(("values", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_what_submit_refuses_is_told_beforehand(
    tmp_path: Path, kept: Path, values: Mapping[str, Any], says: str
) -> None:
    cluster = project(tmp_path, values)
    error = refused_by_submit(tmp_path, cluster, kept)
    assert says in error.message
    told = refusals(cluster, NO_ENVIRON)
    # Two runs differ in their ids, and so in a length.
    assert re.sub(r"\d+", "N", error.message) in [re.sub(r"\d+", "N", each.message) for each in told]
    assert error.hint in [each.hint for each in told]


@pytest.mark.parametrize(
    "values",
    [LOCAL, SLURM, KUBE, PLAIN, ITP, SING],
    ids=["local", "slurm", "kubernetes", "aml", "itp", "singularity"],
)
def test_a_sound_file_is_not_refused(tmp_path: Path, values: Mapping[str, Any]) -> None:
    assert refusals(project(tmp_path, values), NO_ENVIRON) == ()


def test_nothing_is_written_for_it(tmp_path: Path) -> None:
    cluster = project(tmp_path, PLAIN)
    before = sorted(tmp_path.rglob("*"))
    refusals(cluster, NO_ENVIRON)
    assert sorted(tmp_path.rglob("*")) == before


def test_no_refusal_is_missing_above(tmp_path: Path) -> None:
    seen: set[tuple[str, int]] = set()
    for number, (values, _) in enumerate(REFUSED.values()):
        cluster = project(tmp_path / str(number), values)
        for error in refusals(cluster, NO_ENVIRON):
            # One that got its line in the file later has the place that raised it as its cause.
            for each in (error, error.__cause__):
                frames = traceback.extract_tb(each.__traceback__) if each is not None else []
                seen |= {(frame.filename, frame.lineno or 0) for frame in frames[-1:]}
    left = [
        f"{module.name}:{node.lineno}: {ast.unparse(node)}"
        for module, node in refusing()
        if not seen & {(str(module.path), line) for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    ]
    assert [each for each in left if not any(words in each for words in NOT_THE_FILES_FAULT)] == []
    assert [words for words in NOT_THE_FILES_FAULT if not any(words in each for each in left)] == []


def refusing() -> Iterator[tuple[Module, ast.Raise]]:
    for module in modules():
        inside = module.name.removeprefix("blobsync.")
        before_the_job = inside.partition(".")[0] in ("jobspec", "backends", "jobs")
        if before_the_job and not any(inside == each or inside.startswith(f"{each}.") for each in ELSEWHERE):
            yield from ((module, node) for node, _ in raised_in(module.path, RAISED))
