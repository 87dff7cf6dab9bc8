"""A fake of Azure Resource Manager and Azure ML's run history that validates requests by the specification.

It stores datastores, environments and jobs, responds as in the published examples, and runs each job's command: inputs
are fetched from, and outputs uploaded to, the blob server of the datastores. ``faults`` makes it fail. Invalid requests
are in ``violations``, which tests expect to be empty.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError
from azure.storage.blob import ContainerClient

from tests.servers.openapi import azure_ml, example, refusal_problems

ARM_TOKEN = "token-for-management"
ML_TOKEN = "token-for-run-history"
PROVIDER = "/providers/Microsoft.MachineLearningServices"
PAGE = 2


class Login:
    """An identity whose tokens the service accepts."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken(ML_TOKEN if "ml.azure" in scopes[0] else ARM_TOKEN, 4_102_444_800)


@dataclass
class Fault:
    """A response instead of the real one, ``times`` times, for requests whose line matches.

    With ``after``, the request is carried out before, and only its response is lost.
    """

    pattern: str
    status: int
    body: Mapping[str, Any] | str = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 1
    after: bool = False


# azure-core waits so many milliseconds before a retry; "Retry-After: 0" means its own pause.
SOON = {"retry-after-ms": "5"}


def refusal(code: str, message: str, *details: Mapping[str, Any]) -> dict[str, Any]:
    """ARM's ErrorResponse, as the specification has it."""
    more = {"details": list(details)} if details else {}
    return {"error": {"code": code, "message": message, **more}}


@dataclass
class Job:
    """A job of the service, and its processes on the node."""

    name: str
    body: dict[str, Any]
    folder: Path
    status: str = "Queued"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    cancelled: bool = False
    error: dict[str, Any] | None = None
    definition: dict[str, Any] = field(default_factory=dict)
    starts: int = 0
    # Of a sweep, whose trials are jobs, too; of a trial, its hyperparameters.
    trials: list[Job] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def was_cancelled(self) -> bool:
        return self.cancelled

    def run(self) -> dict[str, Any]:
        """Its run in run history."""
        ended = self.status in ("Completed", "Failed", "Canceled")
        return {
            "runId": self.name,
            "status": self.status,
            "startTimeUtc": "2026-11-20T10:00:00.1234567Z",
            "endTimeUtc": "2026-11-20T10:05:00.1234567Z" if ended else None,
            "error": self.error,
            "tags": {f"_aml_system_{trial.name}": json.dumps(trial.values) for trial in self.trials},
        }

    def resource(self, base: str) -> dict[str, Any]:
        made: dict[str, Any] = copy.deepcopy(example("Job/CommandJob/get.json"))
        studio = {"jobServiceType": "Studio", "endpoint": f"https://ml.azure.com/runs/{self.name}?wsid={base}"}
        properties = {**self.body["properties"], "status": self.status, "services": {"Studio": studio}}
        return {**made, "id": f"{base}/jobs/{self.name}", "name": self.name, "properties": properties}


def _pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").glob("[0-9]*")]


def _has_in_environment(pid: int, entry: bytes) -> bool:
    # One that has ended has no environment.
    with suppress(OSError):
        return entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


class AmlStub(ThreadingHTTPServer):
    """The service; ``url`` is its management endpoint. ``held`` keeps new jobs in the queue.

    ``services`` are those of each node of every job, in run history.
    """

    daemon_threads = True

    def __init__(self, folder: Path, subscription: str = "sub0", group: str = "rg0", workspace: str = "ws-one") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.subscription, self.group, self.workspace = subscription, group, workspace
        self.base = f"/subscriptions/{subscription}/resourceGroups/{group}{PROVIDER}/workspaces/{workspace}"
        self.specification = azure_ml()
        self.datastores: dict[str, dict[str, Any]] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        self.computes = {"NC24RSV3", "itp-one"}
        self.made: dict[str, dict[str, Any]] = {}
        self.provisioning: dict[str, list[dict[str, Any]]] = {}
        self.jobs: dict[str, Job] = {}
        self.faults: list[Fault] = []
        self.violations: list[str] = []
        self.requests: list[str] = []
        self.held = False
        self.services: dict[int, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._runs: list[threading.Thread] = []
        self._over = False

    # -- running jobs -------------------------------------------------------------------------------------------

    def accept(self, name: str, body: dict[str, Any]) -> Job:
        with self._lock:
            if name not in self.jobs:
                job = Job(name, body, self.folder / name)
                self.jobs[name] = job
                if not self.held:
                    self.release(job)
            return self.jobs[name]

    def find(self, name: str) -> Job | None:
        """A job or a trial."""
        every = (each for job in self.jobs.values() for each in (job, *job.trials))
        return next((each for each in every if each.name == name), None)

    def release(self, job: Job) -> None:
        self._runs.append(threading.Thread(target=self._run, args=(job,), daemon=True))
        self._runs[-1].start()

    def cancel(self, job: Job) -> None:
        for trial in job.trials:
            self.cancel(trial)
        # Not while its processes are being started.
        with self._lock:
            job.cancelled = True
            if job.status in ("Queued", "Preparing"):
                job.status = "Canceled"
            elif job.status == "Running":
                job.status = "CancelRequested"
                for process in job.processes:
                    with suppress(ProcessLookupError):
                        process.send_signal(signal.SIGTERM)

    def preempt(self, job: Job) -> None:
        """Take the node away, with all that runs and lies there, and start the job on another one. As with VMs of low
        priority (https://hi-ml.readthedocs.io/en/latest/lowpriority.html), no variable says which start it is."""
        self.take_away(job)
        self.release(job)

    def take_away(self, job: Job) -> None:
        """The first half of :meth:`preempt`: nothing of the job runs until it is released."""
        job.starts += 1
        mark = f"BLOBSYNC_SCRATCH={job.folder / 'scratch'}".encode()
        # Again until there is none: one may have begun after the look at its parent, and a killed one ends a bit later.
        while found := [pid for pid in _pids() if _has_in_environment(pid, mark)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for ended in job.processes:
            ended.wait()
        job.processes.clear()
        shutil.rmtree(job.folder)

    def _sweep(self, job: Job) -> None:
        """The trials of a sweep job, so many at a time, as HyperDrive names them."""
        properties, limits = job.body["properties"], job.body["properties"]["limits"]
        [(name, (_, [values]))] = properties["searchSpace"].items()
        job.status = "Running"

        def run(number: int) -> None:
            if job.was_cancelled() or self._over:
                return
            own = {"inputs": properties.get("inputs", {}), "outputs": properties.get("outputs", {})}
            own = {"jobType": "Command", **own, **copy.deepcopy(properties["trial"])}
            variable = f"AZUREML_SWEEP_{name}"
            own["command"] = own["command"].replace(f"${{{{search_space.{name}}}}}", f"${variable}")
            own.setdefault("environmentVariables", {})[variable] = str(values[number])
            trial = Job(f"{job.name}_{number}", {"properties": own}, self.folder / f"{job.name}_{number}")
            trial.values = {name: values[number]}
            with self._lock:
                job.trials.append(trial)
            self._run(trial)

        with ThreadPoolExecutor(limits["maxConcurrentTrials"]) as pool:
            list(pool.map(run, range(min(limits["maxTotalTrials"], len(values)))))
        if job.cancelled:
            job.status = "Canceled"
        elif any(trial.status == "Failed" for trial in job.trials):
            said = "User errors were found in at least one of the child runs."
            job.error = {"error": {"code": "UserError", "message": said}}
            job.status = "Failed"
        else:
            job.status = "Completed"

    def _run(self, job: Job) -> None:
        if job.body["properties"].get("jobType") == "Sweep":
            self._sweep(job)
            return
        start = job.starts
        with self._lock:
            if job.was_cancelled():
                return
            job.status = "Preparing"
        try:
            line, outputs = self._place_data(job)
        except (KeyError, ValueError, OSError, AzureError) as error:
            job.error = {"error": {"code": "UserError", "message": f"data could not be mounted: {error}"}}
            job.status = "Failed"
            return
        with self._lock:
            if job.was_cancelled() or self._over:
                return
            self._start(job, line)
        codes = [process.wait() for process in job.processes]
        if job.starts != start or self._over:
            return
        for uri, folder in outputs:
            self._bring_out(uri, folder)
        if job.cancelled:
            job.status = "Canceled"
        elif any(codes):
            code = next(code for code in codes if code)
            said = f"Execution failed. User process 'python' exited with status code {code}. Please check log file."
            job.error = {"error": {"code": "UserError", "message": said}}
            job.status = "Failed"
        else:
            job.status = "Completed"

    def _start(self, job: Job, line: str) -> None:
        properties = job.body["properties"]
        resources, distribution = properties.get("resources", {}), properties.get("distribution") or {}
        nodes = resources.get("instanceCount", 1)
        each = distribution.get("processCountPerInstance", 1) if distribution else 1
        logs = job.folder / "user_logs"
        logs.mkdir(parents=True)
        total = nodes * each
        for rank in range(total):
            env = {"PATH": f"{self._image()}:/usr/bin:/bin", "HOME": str(job.folder)}
            env.update(properties.get("environmentVariables", {}), BLOBSYNC_SCRATCH=str(job.folder / "scratch"))
            env["TMPDIR"] = str(job.folder / "tmp")
            if distribution.get("distributionType") == "Mpi":
                env.update(OMPI_COMM_WORLD_RANK=str(rank), OMPI_COMM_WORLD_LOCAL_RANK=str(rank % each))
                env.update(OMPI_COMM_WORLD_SIZE=str(total), AZ_BATCH_MASTER_NODE="127.0.0.1:6000")
            elif distribution:
                env.update(RANK=str(rank), LOCAL_RANK=str(rank % each), NODE_RANK=str(rank // each))
            for own in ("scratch", "tmp"):
                (job.folder / own).mkdir(exist_ok=True, mode=0o700)
            name = "std_log.txt" if total == 1 else f"std_log_process_{rank}.txt"
            with open(logs / name, "wb") as log:
                job.processes.append(
                    subprocess.Popen(["bash", "-c", line], cwd=job.folder, env=env, stdout=log, stderr=log)
                )
        job.status = "Running"

    def _image(self) -> Path:
        """A folder with the image's Python."""
        folder = self.folder / "image"
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / "python").symlink_to(sys.executable)
        return folder

    def _place_data(self, job: Job) -> tuple[str, list[tuple[str, Path]]]:
        properties, outputs = job.body["properties"], []
        job.folder.mkdir(parents=True)
        line: str = properties["command"]
        for name, given in properties.get("inputs", {}).items():
            place = job.folder / "inputs" / name
            place.mkdir(parents=True)
            if given["jobInputType"] == "uri_file":
                place = place / given["uri"].rpartition("/")[2]
            self._bring_in(given["uri"], place, single=given["jobInputType"] == "uri_file")
            line = line.replace(f"${{{{inputs.{name}}}}}", str(place))
        for name, given in properties.get("outputs", {}).items():
            place = job.folder / "outputs" / name
            place.mkdir(parents=True)
            if given["mode"] == "ReadWriteMount":
                self._bring_in(given["uri"], place, single=False)
            outputs.append((given["uri"], place))
            line = line.replace(f"${{{{outputs.{name}}}}}", str(place))
        if "${{" in line:
            raise ValueError("the command names data that the job does not have")
        return line, outputs

    def _container(self, uri: str) -> tuple[ContainerClient, str]:
        match = re.fullmatch(r"azureml://datastores/(\w+)/paths/(.*)", uri)
        if not match:
            raise ValueError(f"{uri} is no datastore path")
        store = self.datastores[match[1]]["properties"]
        secrets = store["credentials"].get("secrets", {})
        place = f"{store['protocol']}://{store['endpoint']}/{store['accountName']}"
        credential = secrets.get("key") or secrets.get("sasToken")
        return ContainerClient(place, store["containerName"], credential=credential), match[2]

    def _bring_in(self, uri: str, place: Path, *, single: bool) -> None:
        client, path = self._container(uri)
        with client:
            if single:
                # A plain GET, since not every blob server in the tests supports ranges.
                blob = client.get_blob_client(path)
                if "sig=" in blob.url:
                    with urllib.request.urlopen(blob.url) as answer:
                        place.write_bytes(answer.read())
                else:
                    place.write_bytes(blob.download_blob().readall())
                return
            for name in client.list_blob_names(name_starts_with=f"{path}/"):
                file = place / name[len(path) + 1 :]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(client.download_blob(name).readall())

    def _bring_out(self, uri: str, place: Path) -> None:
        client, path = self._container(uri)
        with client:
            # The program may still change the files.
            for folder, _, names in os.walk(place):
                for file in (Path(folder, name) for name in names):
                    with suppress(FileNotFoundError):
                        name = file.relative_to(place).as_posix()
                        client.upload_blob(f"{path}/{name}", file.read_bytes(), overwrite=True)

    def logs(self, job: Job) -> dict[str, str]:
        files = list(job.folder.glob("user_logs/*.txt"))
        files += list(job.folder.glob("logs/**/*.txt"))
        names = [file.relative_to(job.folder).as_posix() for file in files]
        return {name: f"{self.url}/logs/{job.name}/{name}?sv=1&sig=abc" for name in names}

    def end(self) -> None:
        with self._lock:
            self._over = True
            for job in [each for one in self.jobs.values() for each in (one, *one.trials)]:
                for process in job.processes:
                    with suppress(ProcessLookupError):
                        process.kill()
        self.shutdown()
        self.server_close()
        # None of them may meet a folder that has been removed.
        for run in self._runs:
            run.join(30)


@contextmanager
def serve(folder: Path) -> Iterator[AmlStub]:
    """Run a service until the block ends."""
    stub = AmlStub(folder)
    thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        stub.end()
        thread.join(10)
        shutil.rmtree(folder, ignore_errors=True)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: AmlStub

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at ``requests`` instead."""

    def do_GET(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_PATCH(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        body: Any = json.loads(raw) if raw else None
        parts = urlsplit(self.path)
        path, query = unquote(parts.path), dict(parse_qsl(parts.query))
        self.server.requests.append(f"{self.command} {self.path}")
        for fault in self.server.faults:
            if fault.times and re.search(fault.pattern, f"{self.command} {self.path}"):
                fault.times -= 1
                if fault.after and path.startswith(f"{self.server.base}/jobs/"):
                    self.server.accept(path.rpartition("/")[2], body)
                self._answer(fault.status, fault.body, fault.headers)
                return
        if path.startswith("/logs/"):
            self._log(path)
        elif path == "/discovery":
            self._without_token()
            self._answer(200, {"api": self.server.url, "history": "unused"})
        elif path.startswith(("/history/", "/artifact/")):
            self._with_token(ML_TOKEN)
            self._history(path, query)
        elif path.startswith("/operations/"):
            self._with_token(ARM_TOKEN)
            self._operation(path)
        else:
            self._arm(path, query, body)

    # -- Azure Resource Manager ---------------------------------------------------------------------------------

    def _arm(self, path: str, query: dict[str, str], body: Any) -> None:
        stub = self.server
        if not self._with_token(ARM_TOKEN):
            said = "The access token is missing or expired."
            self._refuse(401, "InvalidAuthenticationToken", said)
            return
        if "/virtualclusters/" in path:
            self._virtual_cluster(query)
            return
        problems = stub.specification.problems(self.command, path, query, body)
        if problems:
            stub.violations += problems
            self._refuse(400, "ValidationError", "; ".join(problems))
            return
        subscription, group, workspace = re.findall(
            r"/subscriptions/([^/]+)/resourceGroups/([^/]+)/.*?/workspaces/([^/]+)", path
        )[0]
        if subscription != stub.subscription:
            self._refuse(404, "SubscriptionNotFound", f"The subscription '{subscription}' could not be found.")
        elif group != stub.group:
            self._refuse(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        elif workspace != stub.workspace:
            what = f"Microsoft.MachineLearningServices/workspaces/{workspace}"
            self._refuse(
                404, "ResourceNotFound", f"The Resource '{what}' under resource group '{group}' was not found."
            )
        else:
            self._workspace(path[len(stub.base) :].strip("/"), query, body)

    def _workspace(self, rest: str, query: dict[str, str], body: Any) -> None:
        stub = self.server
        kind, _, name = rest.partition("/")
        if not kind:
            properties = {"discoveryUrl": f"{stub.url}/discovery"}
            self._answer(200, {"name": stub.workspace, "location": "westeurope", "properties": properties})
        elif kind == "datastores":
            self._keep(stub.datastores, name, body)
        elif kind == "environments":
            self._keep(stub.environments, name, body)
        elif kind == "computes":
            self._compute(name, body)
        elif name.endswith("/cancel"):
            self._cancel(name.partition("/")[0])
        elif not name:
            self._list(query)
        elif self.command == "PUT":
            self._submit(name, body)
        elif name in stub.jobs:
            self._answer(200, stub.jobs[name].resource(stub.base))
        else:
            self._refuse(404, "UserError", f"Run {name} was not found.")

    def _keep(self, shelf: dict[str, dict[str, Any]], name: str, body: Any) -> None:
        if self.command == "PUT":
            known = name in shelf
            shelf[name] = body
            self._answer(200 if known else 201, {"name": name, **_without_secrets(body)})
        elif name in shelf:
            self._answer(200, {"name": name, **_without_secrets(shelf[name])})
        else:
            self._refuse(404, "UserError", f"Could not find {name}.")

    def _submit(self, name: str, body: dict[str, Any]) -> None:
        stub, properties = self.server, body["properties"]
        compute = properties.get("computeId", "")
        if f"{stub.base}/computes/" in compute and compute.rpartition("/")[2] not in stub.computes:
            self._refuse(400, "UserError", f"Unknown compute target '{compute.rpartition('/')[2]}'.")
            return
        environment = properties.get("trial", properties)["environmentId"]
        place = environment.partition(f"{stub.base}/environments/")[2]
        if place and place not in stub.environments:
            self._refuse(400, "UserError", f"Could not find the environment {place}.")
            return
        known = name in stub.jobs
        job = stub.accept(name, body)
        self._answer(200 if known else 201, job.resource(stub.base))

    def _list(self, query: dict[str, str]) -> None:
        stub = self.server
        start = int(query.get("$skip", 0))
        newest = [job for job in reversed(stub.jobs.values()) if not query.get("tag") or
                  query["tag"] in job.body["properties"].get("tags", {})]  # fmt: skip
        answer: dict[str, Any] = {"value": [job.resource(stub.base) for job in newest[start : start + PAGE]]}
        if start + PAGE < len(newest):
            following = re.sub(r"&\$skip=\d+", "", self.path.replace("%24", "$")) + f"&$skip={start + PAGE}"
            answer["nextLink"] = stub.url + following
        self._answer(200, answer)

    def _cancel(self, name: str) -> None:
        stub = self.server
        job = stub.find(name)
        if job is None:
            self._refuse(404, "UserError", f"Run {name} was not found.")
        elif job.status in ("Completed", "Failed", "Canceled"):
            self._refuse(400, "UserError", f"Run {name} has already ended.")
        else:
            stub.cancel(job)
            headers = {"Location": f"{stub.url}/operations/{name}", "Retry-After": "0"}
            self._answer(202, None, headers)

    def _operation(self, path: str) -> None:
        job = self.server.find(path.rpartition("/")[2])
        assert job is not None
        still = job.status == "CancelRequested"
        headers = {"Location": f"{self.server.url}{path}", "Retry-After": "0"} if still else {}
        self._answer(202 if still else 200, None, headers)

    def _compute(self, name: str, body: Any) -> None:
        """A new cluster passes through the states of ``provisioning``, one per request."""
        stub = self.server
        if not name:
            listed = [example("Compute/get/KubernetesCompute.json") | {"name": "itp-one"}]
            self._answer(200, {"value": [*listed, *stub.made.values()]})
            return
        if self.command == "PUT":
            stub.made[name] = {**copy.deepcopy(body), "name": name}
            stub.made[name]["properties"]["provisioningState"] = "Creating"
            self._answer(201, stub.made[name])
            return
        if name in stub.made and self.command == "GET":
            states = stub.provisioning.get(name) or [{"provisioningState": "Succeeded"}]
            stub.made[name]["properties"].update(states.pop(0) if len(states) > 1 else states[0])
            if stub.made[name]["properties"]["provisioningState"] == "Gone":
                del stub.made[name]
            else:
                self._answer(200, stub.made[name])
                return
        elif name in stub.made and self.command == "PATCH":
            given = body["properties"]["properties"]
            stub.made[name]["properties"]["properties"].update(given)
            self._answer(200, stub.made[name])
            return
        elif name in stub.made and self.command == "DELETE":
            stub.provisioning[name] = [{"provisioningState": "Deleting"}, {"provisioningState": "Gone"}]
            self._answer(202, None)
            return
        if name not in self.server.computes:
            self._refuse(404, "ResourceNotFound", f"Compute {name} was not found.")
            return
        found = copy.deepcopy(example("Compute/get/AmlCompute.json"))
        inner = found["properties"]["properties"]
        inner["scaleSettings"]["maxNodeCount"] = 10
        inner["nodeStateCounts"].update(runningNodeCount=3, unusableNodeCount=1)
        self._answer(200, {**found, "name": name})

    def _virtual_cluster(self, query: dict[str, str]) -> None:
        if query.get("api-version") != "2021-03-01-preview":
            self.server.violations.append(f"virtual cluster with {query}")
        limits = {"limits": [{"slaTier": "Premium", "used": 24, "limit": 64}]}
        self._answer(200, {"properties": {"managed": {"quotas": {"ND40_v2": limits}}}})

    # -- run history --------------------------------------------------------------------------------------------

    def _history(self, path: str, query: dict[str, str]) -> None:
        stub = self.server
        swept = re.fullmatch(rf"/history/v1\.0{re.escape(stub.base)}/runs/([^/]+)(/children)?", path)
        if swept and (job := stub.find(swept[1])):
            if not swept[2]:
                self._answer(200, job.run())
                return
            start = int(query.get("$continuationtoken", 0))
            runs = [trial.run() for trial in job.trials[start : start + PAGE]]
            more = str(start + PAGE) if start + PAGE < len(job.trials) else None
            self._answer(200, {"value": runs, "continuationToken": more})
            return
        run = re.fullmatch(rf"/history/v1\.0{re.escape(stub.base)}/runs/([^/]+)/details", path)
        compute = re.fullmatch(rf"/history/v1\.0{re.escape(stub.base)}/computes/([^/]+)/runs", path)
        node = re.fullmatch(rf"/history/v1\.0{re.escape(stub.base)}/runs/([^/]+)/serviceinstances/(\d+)", path)
        if run and (job := stub.find(run[1])):
            found = {**job.run(), "logFiles": stub.logs(job)}
            if job.definition:
                found["runDefinition"] = job.definition
            self._answer(200, found)
        elif node and node[1] in stub.jobs:
            self._answer(200, {"instances": stub.services.get(int(node[2]), {})})
        elif compute:
            runs = [
                {"runId": job.name, "status": job.status, "createdBy": {"userName": "Somebody Else"},
                 "displayName": job.body["properties"].get("displayName")}
                for job in stub.jobs.values()
            ]  # fmt: skip
            self._answer(200, {"value": runs})
        else:
            self._refuse(404, "UserError", "there is no such run")

    def _log(self, path: str) -> None:
        self._without_token()
        file = self.server.folder / path[len("/logs/") :]
        body = file.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        status = 200
        if match:
            start = int(match[1])
            if start >= len(body):
                self._bytes(416, b"", {})
                return
            body, status = body[start : int(match[2]) + 1 if match[2] else None], 206
        self._bytes(status, body, {"Content-Type": "text/plain"})

    # -- plumbing -----------------------------------------------------------------------------------------------

    def _with_token(self, token: str) -> bool:
        given = self.headers.get("Authorization")
        if given not in (None, f"Bearer {token}"):
            self.server.violations.append(f"{self.path}: another service's token")
        return given == f"Bearer {token}"

    def _without_token(self) -> None:
        if self.headers.get("Authorization"):
            self.server.violations.append(f"{self.path}: a token was sent")

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, refusal(code, message))

    def _answer(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        if status >= 400 and isinstance(body, Mapping):
            self.server.violations += refusal_problems(body)
        kind = "text/html" if isinstance(body, str) else "application/json"
        known = {"x-ms-correlation-request-id": str(uuid.uuid4()), "Content-Type": kind}
        text = "" if body is None else body if isinstance(body, str) else json.dumps(body)
        self._bytes(status, text.encode(), {**known, **(headers or {})})

    def _bytes(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _without_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(body))
    found["properties"].get("credentials", {}).pop("secrets", None)
    return found
