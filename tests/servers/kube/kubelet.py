"""The kubelets of all nodes: run containers as processes of this machine, with a thread per pod."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

from tests.servers.kube.container_process import ContainerProcess
from tests.servers.kube.defaults import TERMINATION_PATH
from tests.servers.kube.events import tell
from tests.servers.kube.store import TERMINAL, Object, Store, stamp
from tests.servers.kube.users import home_of, user_of
from tests.servers.kube.volumes import NotReady, environment, expanded, prepare_volumes

_BACK_OFF, _LONGEST = 10.0, 300.0
LOG_BYTES = 10 << 20
_OWN_CONDITIONS = ("Initialized", "Ready", "ContainersReady")


class Machine:
    """Resources of the machine for pods: addresses, images, folders, time."""

    def __init__(self, folder: Path, network: int, image_environ: dict[str, str], scale: float) -> None:
        self.folder, self.scale = folder, scale
        self.image_environ = image_environ
        self.refused_images: dict[str, str] = {}
        # containerLogMaxSize of a kubelet's configuration.
        self.log_bytes = LOG_BYTES
        self._network, self._used = network, set[int]()
        self._lock = threading.Lock()

    def address(self) -> str:
        """An unused loopback address; ``network`` is its middle part."""
        with self._lock:
            number = next(each for each in range(1, 255) if each not in self._used)
            self._used.add(number)
        return f"127.{self._network >> 8}.{self._network & 255}.{number}"

    def give_back(self, address: str) -> None:
        with self._lock:
            self._used.discard(int(address.rpartition(".")[2]))


class Kubelet:
    def __init__(self, store: Store, machine: Machine) -> None:
        self._store, self.machine = store, machine
        self._runs: dict[str, PodRun] = {}

    def sync(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._store.list("Pod")}
        nodes = {node["metadata"]["name"] for node in self._store.list("Node")}
        for uid, pod in pods.items():
            on_node = pod["spec"].get("nodeName") in nodes
            if uid not in self._runs and on_node and pod["status"].get("phase") not in TERMINAL:
                self._runs[uid] = PodRun(self._store, self.machine, pod)
            if uid in self._runs and "deletionTimestamp" in pod["metadata"]:
                self._runs[uid].end(pod["metadata"]["deletionGracePeriodSeconds"])
        files = "".join(each["metadata"]["resourceVersion"] for each in self._files())
        for uid, run in list(self._runs.items()):
            if uid not in pods or (pods[uid]["spec"]["nodeName"] not in nodes):
                run.lose()
                if uid not in pods and not run.lives():
                    del self._runs[uid]
            elif run.lives():
                run.refresh(self._hosts(pods[uid], list(pods.values())), files)

    def run_of(self, pod: Object) -> PodRun | None:
        return self._runs.get(pod["metadata"]["uid"])

    def close(self) -> None:
        for run in self._runs.values():
            run.lose()
        for run in self._runs.values():
            run.join()

    def _files(self) -> list[Object]:
        """All objects that a pod may mount."""
        return [*self._store.list("Secret"), *self._store.list("ConfigMap")]

    def _hosts(self, pod: Object, pods: list[Object]) -> str:
        """The names of the cluster's DNS for this pod, without its own."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
        namespace = pod["metadata"]["namespace"]
        for service in self._store.list("Service", namespace):
            selector, name = service["spec"].get("selector") or {}, service["metadata"]["name"]
            for each in pods:
                address, labels = each["status"].get("podIP"), each["metadata"].get("labels", {})
                chosen = selector and selector.items() <= labels.items() and each["metadata"]["namespace"] == namespace
                if not address or not chosen or each["status"]["phase"] in TERMINAL:
                    continue
                short = [name]
                if each["spec"].get("subdomain") == name and each["spec"].get("hostname"):
                    short.insert(0, f"{each['spec']['hostname']}.{name}")
                ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
                lines.append(" ".join([address, *(f"{one}{end}" for one in short for end in ends)]))
        return "\n".join(lines) + "\n"


class PodRun:
    """One pod on its node, from start to end."""

    def __init__(self, store: Store, machine: Machine, pod: Object) -> None:
        self._store, self._machine, self._pod = store, machine, pod
        self._folder = machine.folder / pod["metadata"]["uid"]
        self._folder.mkdir(parents=True)
        self.address = machine.address()
        self._hosts = self._folder / "hosts"
        # Written before the containers start: a program may look up its own name at once.
        self._own_name = f"{self.address} {pod['spec'].get('hostname', pod['metadata']['name'])}\n"
        self._hosts.write_text(f"127.0.0.1 localhost\n{self._own_name}", encoding="utf-8")
        self._stop, self._lost = threading.Event(), threading.Event()
        self._grace = 0.0
        self._waiting: dict[str, dict[str, str]] = {}
        self._started = stamp()
        self.attempts: dict[str, list[ContainerProcess]] = {}
        self._mounted = False
        self._known_hosts = self._known_files = ""
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def end(self, grace: float) -> None:
        """Terminate: SIGTERM now, SIGKILL after ``grace`` seconds; may be repeated with a shorter time."""
        self._grace = grace if not self._stop.is_set() else min(self._grace, grace)
        self._stop.set()

    def lose(self) -> None:
        """End like a node that is switched off: nothing is reported."""
        if not self._lost.is_set():
            self._lost.set()
            self._stop.set()
            for each in self._running():
                each.kill()
            if not self._thread.is_alive():
                shutil.rmtree(self._folder, ignore_errors=True)

    def join(self) -> None:
        self._thread.join(5.0)

    def kill(self, reason: str = "", number: int = signal.SIGKILL) -> None:
        """Send a signal to its containers; ``reason`` is that of their end."""
        for each in self._running():
            each.reason = reason
            each.signal(number)

    def lives(self) -> bool:
        """Whether it has something left to report."""
        return self._thread.is_alive() and not self._lost.is_set()

    def refresh(self, hosts: str, files: str) -> None:
        """Update the hosts file, and the mounted Secrets if ``files`` has changed."""
        hosts += self._own_name
        if self._known_hosts != hosts:
            # In place, since it is mounted; padded first, so that readers never see a part.
            with open(self._hosts, "r+b") as file:
                os.pwrite(file.fileno(), hosts.encode(), 0)
                os.ftruncate(file.fileno(), len(hosts.encode()))
            self._known_hosts = hosts
        if self._mounted and self._known_files != files:
            self._known_files = files
            try:
                prepare_volumes(self._store, self._pod, self._folder / "volumes")
            except NotReady:
                pass  # what was mounted stays

    def _running(self) -> list[ContainerProcess]:
        return [tries[-1] for tries in self.attempts.values() if tries and tries[-1].exit_code is None]

    def _live(self) -> None:
        spec = self._pod["spec"]
        try:
            good = all(self._run_until_done([each], init=True) for each in spec.get("initContainers") or [])
            if good:
                self._run_until_done(spec["containers"], init=False)
            self._report(final=True)
        finally:
            self._machine.give_back(self.address)
        if self._lost.is_set():
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        found = self._store.find("Pod", self._pod["metadata"]["namespace"], self._pod["metadata"]["name"])
        if self._stop.is_set() and found and found["metadata"]["uid"] == self._pod["metadata"]["uid"]:
            self._store.delete(found, 0)

    def _run_until_done(self, containers: list[dict[str, Any]], *, init: bool) -> bool:
        """Run containers in parallel, with restarts by the policy; returns whether all succeeded."""
        threads = []
        results: dict[str, bool] = {}
        for each in containers:
            thread = threading.Thread(target=self._keep, args=(each, results, init), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        return all(results.get(each["name"]) for each in containers)

    def _keep(self, container: dict[str, Any], results: dict[str, bool], init: bool) -> None:
        name, policy = container["name"], self._pod["spec"]["restartPolicy"]
        for count in range(1_000_000):
            process = self._await_start(container)
            if process is None:
                return
            self._report()
            process.is_told = True
            self._await_end(process)
            code = process.exit_code
            results[name] = code == 0
            again = (policy == "Always" and not init) or (policy != "Never" and code != 0)
            if not again or self._stop.is_set():
                return
            wait = min(_BACK_OFF * 2**count, _LONGEST) * self._machine.scale
            text = f"back-off restarting failed container={name}"
            self._wait(container, "CrashLoopBackOff", text)
            tell(self._store, self._pod, "BackOff", f"B{text[1:]}", by="kubelet", warning=True)
            if self._stop.wait(wait):
                return

    def _await_end(self, process: ContainerProcess) -> None:
        while not process.wait(0.1):
            if self._stop.is_set():
                process.signal(signal.SIGTERM)
                waited = 0.0
                while not process.wait(0.1) and waited < self._grace and not self._lost.is_set():
                    waited += 0.1
                process.kill()
                process.wait(10.0)
                return

    def _await_start(self, container: dict[str, Any]) -> ContainerProcess | None:
        """Start a container once its image, volumes and variables are available; None if the pod ends before."""
        wait = 0.0
        while not self._stop.wait(wait):
            try:
                self._pull(container)
                places = prepare_volumes(self._store, self._pod, self._folder / "volumes")
                self._mounted = True
                return self._start(container, places)
            except NotReady as fault:
                tell(self._store, self._pod, fault.reason, str(fault), by="kubelet", warning=True)
                self._wait(container, fault.state, str(fault).removeprefix("Error: "))
                if fault.state == "ErrImagePull":
                    tell(self._store, self._pod, "Failed", "Error: ErrImagePull", by="kubelet", warning=True)
                    if self._stop.wait(self._machine.scale):
                        return None
                    text = f'Back-off pulling image "{container["image"]}"'
                    tell(self._store, self._pod, "BackOff", text, by="kubelet")
                    self._wait(container, "ImagePullBackOff", f"{text}: ErrImagePull: {fault}")
                wait = min(max(wait * 2, _BACK_OFF * self._machine.scale), _LONGEST * self._machine.scale)
        return None

    def _pull(self, container: dict[str, Any]) -> None:
        image = container["image"]
        if image in self._machine.refused_images:
            tell(self._store, self._pod, "Pulling", f'Pulling image "{image}"', by="kubelet")
            why = f'failed to resolve reference "{image}": {image}: {self._machine.refused_images[image]}'
            text = f'failed to pull and unpack image "{image}": {why}'
            raise NotReady("Failed", f'Failed to pull image "{image}": {text}', "ErrImagePull")
        tell(self._store, self._pod, "Pulled", f'Container image "{image}" already present on machine', by="kubelet")

    def _start(self, container: dict[str, Any], places: dict[str, Path]) -> ContainerProcess:
        name = container["name"]
        pod = self._store.find("Pod", self._pod["metadata"]["namespace"], self._pod["metadata"]["name"]) or self._pod
        pod["status"] = {**pod["status"], "podIP": self.address, "hostIP": "127.0.0.1"}
        user, group = user_of(pod, container)
        image = self._machine.image_environ
        environ = environment(self._store, pod, container, {**image, **({"HOME": home_of(user)} if user else {})})
        mounts: list[tuple[str, str, bool]] = [(str(self._hosts), "/etc/hosts", False)]
        for mount in sorted(container.get("volumeMounts") or [], key=lambda each: str(each["mountPath"])):
            source = places[mount["name"]] / mount.get("subPath", "")
            if mount.get("subPath") and not source.exists():
                source.mkdir(parents=True)
            mounts.append((str(source), mount["mountPath"], bool(mount.get("readOnly"))))
        last_words = self._folder / f"{name}-last-words"
        last_words.touch()
        # A program of any user may write it, whatever the umask here.
        last_words.chmod(0o666)
        if (path := container["terminationMessagePath"]) != TERMINATION_PATH:
            mounts.append((str(last_words), path, False))
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        spec = {
            "argv": [expanded(word, environ) for word in words] or ["sh"],
            "environ": environ,
            "mounts": mounts,
            "hostname": environ["HOSTNAME"],
            "folder_in": container.get("workingDir") or "/",
            "user": user,
            "group": group,
        }
        tries = self.attempts.setdefault(name, [])
        process = ContainerProcess(self._folder / f"{name}-{len(tries)}", spec, lambda: self._machine.log_bytes)
        process.last_words = last_words
        process.tells_end = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        tries.append(process)
        self._waiting.pop(name, None)
        tell(self._store, self._pod, "Created", f"Container created: {name}", by="kubelet")
        tell(self._store, self._pod, "Started", f"Container started: {name}", by="kubelet")
        if self._lost.is_set():
            process.kill()
        return process

    def _wait(self, container: dict[str, Any], reason: str, message: str) -> None:
        self._waiting[container["name"]] = {"reason": reason, "message": message}
        self._report()

    def _report(self, *, final: bool = False) -> None:
        if not self._lost.is_set():
            self._store.modify(self._pod, lambda pod: self._write_status(pod, final))

    def _write_status(self, pod: Object, final: bool) -> None:
        spec, status = pod["spec"], pod["status"]
        states = self._statuses(spec["containers"], final)
        if spec.get("initContainers"):
            status["initContainerStatuses"] = self._statuses(spec["initContainers"], final)
        status["containerStatuses"] = states
        status |= {"hostIP": "127.0.0.1", "startTime": self._started}
        status |= {"podIP": self.address, "podIPs": [{"ip": self.address}]}
        every = [*status.get("initContainerStatuses", []), *states]
        if final:
            good = all(each["state"].get("terminated", {}).get("exitCode") == 0 for each in every)
            status["phase"] = "Succeeded" if good else "Failed"
        elif any("running" in each["state"] or "terminated" in each["state"] or each["lastState"] for each in states):
            status["phase"] = "Running"
        ready = not final and all(each["ready"] for each in states)
        begun = not spec.get("initContainers") or any("waiting" not in each["state"] for each in states)
        truths: dict[str, bool] = dict(zip(_OWN_CONDITIONS, (begun, ready, ready), strict=True))
        status["conditions"] = _conditions(status.get("conditions", []), truths)

    def _statuses(self, containers: list[dict[str, Any]], final: bool) -> list[dict[str, Any]]:
        return [self._status_of(each, final) for each in containers]

    def _status_of(self, container: dict[str, Any], final: bool) -> dict[str, Any]:
        name = container["name"]
        tries, waiting = self.attempts.get(name, []), self._waiting.get(name)
        state: dict[str, Any] = {"waiting": waiting or {"reason": "ContainerCreating"}}
        last = tries[-1].state() if waiting and tries else tries[-2].state() if len(tries) > 1 else {}
        if tries and (final or not waiting):
            state = tries[-1].state()
        number = f"kube://{self._pod['metadata']['uid']}/{name}/{len(tries)}"
        running = "running" in state
        found = {"name": name, "state": state, "lastState": last, "ready": running, "started": running}
        found |= {"restartCount": max(0, len(tries) - 1), "image": container["image"], "imageID": ""}
        return {**found, **({"containerID": number} if tries else {})}


def _conditions(before: list[dict[str, Any]], truths: dict[str, bool]) -> list[dict[str, Any]]:
    """Update the kubelet's own conditions; others, and the times of unchanged ones, are kept."""
    known = {each["type"]: each for each in before}
    for kind, true in truths.items():
        value = "True" if true else "False"
        if known.get(kind, {}).get("status") != value:
            known[kind] = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": stamp()}
    return list(known.values())
