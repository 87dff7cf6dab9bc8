"""The server process: API server, controllers, scheduler and kubelets of one small cluster.

It prints one JSON line when it listens, answers one JSON line for each command on standard input, and ends with its
pods when that ends.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.kube.access import Access
from tests.servers.kube.api import Api
from tests.servers.kube.errors import Refused
from tests.servers.kube.job_controller import JobController
from tests.servers.kube.kubelet import Kubelet, Machine
from tests.servers.kube.requests import Request
from tests.servers.kube.scheduler import Scheduler
from tests.servers.kube.store import Object, Store, stamp

# Errors of a controller or a command, which are printed; the cluster goes on.
_FAULTS = (Refused, LookupError, TypeError, ValueError, AttributeError, AssertionError, OSError)
_IMAGE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class _Listener(ThreadingHTTPServer):
    """A TLS server with a thread per connection; can close all connections at once."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, context: ssl.SSLContext, cluster: Cluster) -> None:
        self.open: set[socket.socket] = set()
        self._context = context

        class Handler(_Handler):
            owner = cluster

        super().__init__(("127.0.0.1", port), Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        plain, address = super().get_request()
        wrapped = self._context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        self.open.add(wrapped)
        return wrapped, address

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()

    def cut(self) -> None:
        self.shutdown()
        self.server_close()
        for each in list(self.open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    owner: Cluster

    def serve(self) -> None:
        request = Request(self)
        self.owner.requests.append(f"{self.command} {self.path}")
        self.owner.api.serve(request)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Does nothing: requests are recorded elsewhere."""


class Cluster:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.requests: list[str] = []
        self._store = Store()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        self._access = Access((folder / "token").read_text(encoding="ascii"))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        environ = {"PATH": f"{options.path}:{_IMAGE_PATH}".strip(":"), "HOME": "/root", "LANG": "C.UTF-8"}
        self._machine = Machine(folder / "pods", self.port, environ, options.scale)
        self._kubelet = Kubelet(self._store, self._machine)
        self.api = Api(self._store, self._kubelet, self._access, options.scale)
        self._controllers = (
            Scheduler(self._store, options.scale),
            JobController(self._store, options.scale),
            self._kubelet,
        )
        for name in ("default", "kube-system"):
            self._store.create(_namespace(name))
        for node in json.loads(options.nodes):
            self._store.create(_node(**node))
        self._over = threading.Event()
        self._listener = self._listen()
        threading.Thread(target=self._control, daemon=True).start()

    def command(self, name: str, values: dict[str, Any]) -> Any:
        return getattr(self, f"do_{name}")(**values)

    def close(self) -> None:
        self._over.set()
        self._kubelet.close()

    def do_restart(self, down: float) -> None:
        """Close every connection, and after ``down`` seconds listen again on the same port with the same objects."""
        self._listener.cut()
        time.sleep(down)
        self._listener = self._listen()

    def do_refuse_image(self, image: str, why: str) -> None:
        if why:
            self._machine.refused_images[image] = why
        else:
            self._machine.refused_images.pop(image, None)

    def do_rotate_logs(self, size: int) -> None:
        self._machine.log_bytes = size

    def do_kill(self, pod: str, namespace: str, reason: str, number: int) -> None:
        run = self._kubelet.run_of(self._store.get("Pod", namespace, pod))
        assert run is not None, f"{pod} does not run"
        run.kill(reason, number)

    def do_add_node(self, **node: Any) -> None:
        self._store.create(_node(**node))

    def do_remove_node(self, name: str) -> None:
        self._store.delete(self._store.get("Node", "", name))

    def do_deny(self, verb: str, resource: str) -> None:
        self._access.denied.add((verb, resource))

    def do_allow_all(self) -> None:
        self._access.denied.clear()

    def do_forget_history(self) -> None:
        self._store.compact()

    def do_requests(self, clear: bool) -> list[str]:
        found = list(self.requests)
        if clear:
            self.requests.clear()
        return found

    def _listen(self) -> _Listener:
        listener = _Listener(self.port, self._context, self)
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return listener

    def _control(self) -> None:
        """Run all controllers at each change, and four times a second."""
        seen = -1
        while not self._over.is_set():
            with self._store.changed:
                if self._store.version == seen:
                    self._store.changed.wait(0.25)
                seen = self._store.version
            time.sleep(0.02)
            for each in self._controllers:
                try:
                    each.sync()
                except _FAULTS:
                    traceback.print_exc()


def _namespace(name: str) -> Object:
    meta = {"name": name, "labels": {"kubernetes.io/metadata.name": name}}
    status = {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}
    return {"kind": "Namespace", "apiVersion": "v1", "metadata": meta, **status}


def _node(
    name: str,
    gpus: int = 8,
    cpu: str = "16",
    memory: str = "64Gi",
    labels: dict[str, str] | None = None,
    taints: Sequence[dict[str, str]] = (),
) -> Object:
    amounts = {"cpu": cpu, "memory": memory, "pods": "50", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
    times = {"lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
    meta = {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name, **(labels or {})}}
    status = {"capacity": amounts, "allocatable": dict(amounts), "conditions": [{**times, **ready}]}
    spec = {"taints": list(taints)} if taints else {}
    return {"kind": "Node", "apiVersion": "v1", "metadata": meta, "spec": spec, "status": status}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--folder", required=True, help="has cert.pem, key.pem and token")
    options.add_argument("--scale", type=float, default=1.0, help="of time: 0.1 makes a back-off of ten seconds one")
    options.add_argument("--nodes", required=True, help="JSON: a list of the nodes' names, gpus, labels, taints")
    options.add_argument("--path", default="", help="before the image's own PATH")
    given = options.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cluster = Cluster(given, Path(given.folder))
    print(json.dumps({"host": "127.0.0.1", "port": cluster.port}), flush=True)
    for line in sys.stdin:
        values = json.loads(line)
        try:
            answer = {"answer": cluster.command(values.pop("command"), values)}
        except _FAULTS as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    cluster.close()
    os._exit(0)


if __name__ == "__main__":
    main()
