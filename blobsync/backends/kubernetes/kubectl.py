"""Runs kubectl in one namespace of one cluster. kubectl supports every login of a cluster (kubelogin, certificates,
tokens).

Objects are requested by their paths (``--raw``): one request each, without the discovery of ``kubectl get``. Secrets
are passed by standard input only. The user's kubeconfig is not changed. A namespace has a level of Pod Security
(https://kubernetes.io/docs/concepts/security/pod-security-admission/), and queues of Kueue (https://kueue.sigs.k8s.io).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from blobsync.backends.kubernetes.object_names import MANAGED_BY, RUN_LABEL, US
from blobsync.base.errors import (
    BackendDeniedError,
    BackendFailingError,
    BackendUnavailableError,
    BlobsyncError,
    JobError,
    JobNotFoundError,
    LostContactError,
    ProcessError,
    ProcessTimeoutError,
    SubmissionError,
)
from blobsync.base.formatting import quoted
from blobsync.base.plain_json import parse_object
from blobsync.base.process import Completed, ProcessRunner
from blobsync.base.redaction import redact
from blobsync.jobspec.spec import JobRef

_One = TypeVar("_One")
_Made = TypeVar("_Made")

# Resources without a namespace.
CLUSTER_WIDE = frozenset(
    {"csidrivers", "namespaces", "nodes", "persistentvolumes", "priorityclasses", "selfsubjectaccessreviews"}
)
_GROUPS = {
    "CSIDriver": "/apis/storage.k8s.io/v1",
    "Job": "/apis/batch/v1",
    "PriorityClass": "/apis/scheduling.k8s.io/v1",
    "SelfSubjectAccessReview": "/apis/authorization.k8s.io/v1",
}
NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
CONTEXT = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,253}")
_ENFORCED = "pod-security.kubernetes.io/enforce"
_KUEUE = "/apis/kueue.x-k8s.io"
_KUEUE_VERSION = re.compile(r"kueue\.x-k8s\.io/v[0-9a-z]{1,20}")
# Up to so many jobs are requested by their names; for more, all of ours.
_BY_NAME = 50
_AT_A_TIME = 4
# The tested versions of kubectl and of servers: minor numbers of 1.x.
TESTED = (27, 37)
# Elastic Indexed Jobs, success policies and back-off per index are enabled by default from here.
OLDEST_SERVER = 31
# Time limits of a request, and of kubectl itself, which may have to log in first (seconds).
_REQUEST_SECONDS, _PROGRAM_SECONDS = 60, 120.0

# The reason is a word of the server's, or any text or none if an admission webhook refuses.
_REASON = re.compile(r"Error from server(?: \((.*?)\))?: ?(.*)", re.DOTALL)
# kubectl's own message for 401: k8s.io/kubectl/pkg/cmd/util/helpers.go
_LOGGED_OUT = "You must be logged in to the server"
_QUOTA = re.compile(r"exceeded quota: ([a-z0-9.-]+)")
# https://kubernetes.io/docs/reference/access-authn-authz/: validating-admission-policy and the page on webhooks
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([a-z0-9.-]+)'")
_WEBHOOK = re.compile(r'admission webhook "([a-z0-9.-]+)" denied')
_WRAPPED = re.compile(r"^error when (?:creating|retrieving|deleting)[^:]*: ")
# The server may have carried out the request nevertheless.
_DOUBTFUL = frozenset({"InternalError", "Timeout", "ServerTimeout", "ServiceUnavailable"})
_NOT_REACHED = re.compile(
    r"connection refused|was refused|error loading config|no such host|"
    r"no route to host|network is unreachable|x509:|certificate|"
    r"context \"?[^\"]*\"? does not exist|current-context|no configuration has been provided|invalid configuration|"
    r"exec plugin|getting credentials|unable to load|stat .*: no such file",
    re.IGNORECASE,
)
# At most so many characters of kubectl's message are shown: several errors at once are long.
_MOST_SAID = 1000
# A namespace's warning about pods, when it sees only the Job.
_RESTRICTED = re.compile(r'would violate PodSecurity "restricted:')
_INSTALL = "pip install 'blobsync[kubernetes]', or install kubectl as your cluster's provider says"


class KubernetesRefusal(JobError):
    """The server refused a request; ``reason`` is its code (``NotFound``, ``Forbidden``, ``Invalid``)."""

    def __init__(self, reason: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class Kubectl:
    """One namespace of one context of one kubeconfig."""

    def __init__(
        self,
        process: ProcessRunner,
        environ: Mapping[str, str],
        context: str,
        note: Callable[[str], None],
        namespace: str = "",
    ) -> None:
        """``context`` empty: kubectl's current one; ``namespace`` empty: that of the context. ``note`` receives
        warnings, also about untested versions."""
        self._process = process
        self._environ = environ
        self._context = context
        self._namespace = namespace
        self.note = note
        self._program = ""
        self._warned: set[str] = set()
        self._has_context = bool(context)

    # -- words ------------------------------------------------------------------------------------------------------

    def argv(self, *words: str) -> tuple[str, ...]:
        """The command line. Raises ``BackendUnavailableError`` where there is no kubectl."""
        self._program = self._program or find_kubectl(self._environ)
        return (self._program, *([f"--context={self._context}"] if self._context else []), *words)

    def shown(self, *words: str) -> str:
        """The same for people, whether or not kubectl is installed."""
        return shlex.join(["kubectl", *([f"--context={self._context}"] if self._context else []), *words])

    def current_context(self) -> str:
        """The context in use. Raises ``BackendUnavailableError`` if there is none."""
        if self._context:
            return self._context
        done = self._run("config", "current-context")
        if done.returncode or not done.stdout.strip():
            raise self._no_cluster("kubectl has no current context")
        return done.stdout.strip()

    @property
    def namespace(self) -> str:
        """The namespace: the given one, that of the context, or ``default``.

        Raises ``BackendUnavailableError`` without a context; kubectl itself would connect to port 8080 of this machine.
        """
        if not self._namespace:
            done = self._run("config", "view", "--minify", "-o", "jsonpath={..namespace}")
            if done.returncode:
                raise self._no_cluster(f"kubectl has no such context: {_last_line(done.stderr)}")
            self._namespace = done.stdout.strip() or "default"
        return self._namespace

    @property
    def record(self) -> str:
        """The context and namespace in a job's record, for later commands."""
        return f"{self.current_context()}/{self.namespace}"

    # -- requests ---------------------------------------------------------------------------------------------------

    def everywhere(self, kind: str) -> str:
        """The path of all objects of a kind, in all namespaces."""
        return f"{_GROUPS.get(kind, '/api/v1')}/{_plural(kind)}"

    def path(self, kind: str, *names: str, **query: str) -> str:
        """The path of one object, or of all of a kind."""
        base = _GROUPS.get(kind, "/api/v1")
        inside = "" if _plural(kind) in CLUSTER_WIDE else f"/namespaces/{quote(self.namespace, safe='')}"
        parts = "/".join(quote(name, safe="") for name in (_plural(kind), *names))
        words = "&".join(f"{key}={quote(value, safe='/,:.()+=-')}" for key, value in query.items())
        return f"{base}{inside}/{parts}" + (f"?{words}" if words else "")

    def read(self, path: str) -> str:
        """Request the response as text."""
        return self._answered(path, self._ask("get", "--raw", path), warns=False)

    def at(self, path: str) -> dict[str, Any]:
        """Request the object, or the list, at a path."""
        return self._object(self.read(path))

    def get(self, kind: str, *names: str, **query: str) -> dict[str, Any]:
        """Request one object, or all of a kind."""
        return self.at(self.path(kind, *names, **query))

    def ours(self, kind: str, names: Sequence[str] = ()) -> dict[str, Any]:
        """The objects of a kind that belong to these jobs, or, for many, to all of ours."""
        if 0 < len(names) <= _BY_NAME:
            return self.get(kind, labelSelector=f"{RUN_LABEL} in ({','.join(names)})".replace(" ", "+"))
        return self.get(kind, labelSelector=f"{MANAGED_BY}={US}")

    def create(self, body: Mapping[str, Any], *, dry: bool = False) -> dict[str, Any]:
        """Create an object; unknown fields are refused, as for ``kubectl apply``.

        ``dry``: a dry run of the server.
        """
        path = self.path(str(body["kind"]))
        target = f"{path}?fieldManager=blobsync&fieldValidation=Strict{'&dryRun=All' if dry else ''}"
        done = self._ask("create", "--raw", target, "-f", "-", input=json.dumps(body))
        return self._object(self._answered(path, done))

    def replace(self, body: Mapping[str, Any]) -> None:
        """Replace an object of the same name."""
        path = self.path(str(body["kind"]), str(body["metadata"]["name"]))
        self._answered(path, self._ask("replace", "--raw", path, "-f", "-", input=json.dumps(body)))

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and all that it owns, if it exists."""
        path = self.path(kind, name)
        with suppress(JobNotFoundError):
            self._answered(path, self._ask("delete", "--raw", f"{path}?propagationPolicy=Background"))

    def patch_job(self, name: str, change: Mapping[str, Any]) -> None:
        """Send a merge patch of a Job. **No secrets**: it is an argument of kubectl."""
        words = (f"--namespace={self.namespace}", "patch", "job", name, "--type=merge", "-p", json.dumps(change))
        self._answered(self.path("Job", name), self._ask(*words, "-o", "name"))

    def execute(self, pod: str, container: str, *command: str) -> None:
        """Run a program in a container."""
        words = (f"--namespace={self.namespace}", "exec", pod, f"--container={container}", "--", *command)
        self._answered(self.path("Pod", pod, "exec"), self._ask(*words))

    def check_versions(self) -> None:
        """Raises ``BackendUnavailableError`` for a server that is too old."""
        answer = self._object(self._answered("/version", self._ask("version", "-o", "json"), warns=False))
        client, server = _minor(answer.get("clientVersion")), _minor(answer.get("serverVersion"))
        if server is not None and server < OLDEST_SERVER:
            raise BackendUnavailableError(
                f"the cluster runs Kubernetes 1.{server}, and jobs need 1.{OLDEST_SERVER} or newer",
                hint="upgrade the cluster: az aks upgrade, or ask its owner",
            )
        for what, minor in (("kubectl", client), ("the cluster", server)):
            if minor is not None and not TESTED[0] <= minor <= TESTED[1]:
                self.note(f"{what} is version 1.{minor}; blobsync was tested with 1.{TESTED[0]} to 1.{TESTED[1]}")

    # -- private ----------------------------------------------------------------------------------------------------

    def _ask(self, *words: str, input: str | None = None) -> Completed:
        if not self._has_context:
            # Without a context kubectl connects to port 8080 of this machine.
            self.current_context()
            self._has_context = True
        return self._run(f"--request-timeout={_REQUEST_SECONDS}s", *words, input=input)

    def _run(self, *words: str, input: str | None = None) -> Completed:
        try:
            return self._process.run(self.argv(*words), input=input, env=self._environ, timeout=_PROGRAM_SECONDS)
        except ProcessTimeoutError as error:
            raise LostContactError(f"the cluster did not answer: {error.message}") from error
        except ProcessError as error:
            raise BackendUnavailableError(error.message, hint=_INSTALL) from error

    def _answered(self, path: str, done: Completed, *, warns: bool = True) -> str:
        if done.returncode == 0:
            if warns:
                self._pass_warnings_on(done.stderr)
            return done.stdout
        raise self._error(path, redact(done.stderr.strip()))

    def _pass_warnings_on(self, stderr: str) -> None:
        """Report each of the server's warnings once: https://kubernetes.io/blog/2020/09/03/warnings/."""
        for line in stderr.splitlines():
            message = _joined("".join(each if each.isprintable() else " " for each in redact(line)))
            if line.startswith("Warning: ") and message not in self._warned:
                self._warned.add(message)
                asks = _RESTRICTED.search(message)
                hint = "; kubernetes: {security_context: restricted} makes such pods" if asks else ""
                self.note(f"the cluster warns: {message.removeprefix('Warning: ')}{hint}")

    def _error(self, path: str, stderr: str) -> BlobsyncError:
        match = _REASON.search(stderr)
        if not match:
            message = _last_line(stderr)
            if _LOGGED_OUT in stderr:
                return self._denied(path, "Unauthorized", message)
            if re.search(r"is invalid", stderr):
                # kubectl prints the field before each error; a policy's error has none.
                message = _joined(stderr).replace(" is invalid: : ", " is invalid: ")
                hint = self._look_hint(message)
                return KubernetesRefusal("Invalid", f"the cluster refused the request: {message}", hint)
            if _NOT_REACHED.search(stderr):
                return self._no_cluster(f"the cluster cannot be reached: {message}")
            return LostContactError(f"the answer of the cluster got lost: {message}")
        reason, message = match[1] or "", _WRAPPED.sub("", _joined(match[2]))
        if reason in _DOUBTFUL or not (reason or _WEBHOOK.search(message)):
            return BackendFailingError(f"the cluster failed: {message}", hint="try again")
        if reason in ("Forbidden", "Unauthorized"):
            return self._denied(path, reason, message)
        if reason == "NotFound" and "namespaces" in message:
            return KubernetesRefusal(reason, f"there is no such namespace: {message}", self._make_namespace(message))
        if reason == "NotFound":
            return JobNotFoundError(f"the cluster does not know it: {message}")
        hint = "try again in a minute" if reason == "TooManyRequests" else self._look_hint(message)
        return KubernetesRefusal(reason, f"the cluster refused the request: {message}", hint)

    def _denied(self, path: str, reason: str, message: str) -> BackendDeniedError:
        hint = f"see what you may do: {self.shown('auth', 'can-i', '--list', *_in_namespace(path))}"
        if reason == "Unauthorized":
            hint = "log in again: az aks get-credentials, kubelogin, or what your cluster's provider says"
        elif quota := _QUOTA.search(message):
            hint = f"see what is used up: {self.shown('describe', 'quota', quota[1], *_in_namespace(path))}"
        elif _POLICY.search(message) or _WEBHOOK.search(message):
            hint = self._look_hint(message)
        return BackendDeniedError(f"the cluster does not allow it: {message}", hint=hint)

    def _make_namespace(self, message: str) -> str:
        match = re.search(r'namespaces "([a-z0-9-]+)"', message)
        return (
            f"create it: {self.shown('create', 'namespace', match[1])}"
            if match
            else f"see {self.shown('get', 'namespaces')}"
        )

    def _look_hint(self, message: str) -> str:
        """The error for a refused request, with the cluster's rule if one refused it."""
        look = "see the request with blobsync submit --dry-run ..."
        if policy := _POLICY.search(message):
            rule = self.shown("get", "validatingadmissionpolicy", policy[1], "-o", "yaml")
            return f"the cluster has a rule for it: {rule}; {look}"
        if webhook := _WEBHOOK.search(message):
            return f"{webhook[1]} is a rule of the cluster: ask its owner; {look}"
        return look

    def _no_cluster(self, message: str) -> BackendUnavailableError:
        hint = "see kubectl config get-contexts; for AKS: az aks get-credentials --resource-group GROUP --name CLUSTER"
        return BackendUnavailableError(message, hint=hint)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            return parse_object(text)
        except ValueError as error:
            raise LostContactError(f"the cluster's answer cannot be read: {error}") from error


def find_kubectl(environ: Mapping[str, str], python: str = sys.executable) -> str:
    """Find kubectl on PATH, or beside this Python, where ``pip install 'blobsync[kubernetes]'`` puts it.

    Raises ``BackendUnavailableError``.
    """
    found = shutil.which("kubectl", path=environ.get("PATH"))
    beside = str(Path(python).parent / "kubectl")
    if not found and os.access(beside, os.X_OK):
        found = beside
    if not found:
        raise BackendUnavailableError("kubectl was not found", hint=_INSTALL)
    return found


def _in_namespace(path: str) -> tuple[str, ...]:
    """kubectl's option for the namespace of a path."""
    match = re.search(r"/namespaces/([^/?]+)", path)
    return ("-n", match[1]) if match else ()


def _minor(version: object) -> int | None:
    """1.36 is 36; providers write ``36+``."""
    text = str(version.get("minor", "")) if isinstance(version, Mapping) else ""
    match = re.match(r"[0-9]{1,4}", text)
    return int(match[0]) if match else None


def _last_line(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return quoted(re.sub(r"^error: ", "", lines[-1]), _MOST_SAID) if lines else "no reason given"


def _joined(text: str) -> str:
    """Join the server's errors, one per line, into one line."""
    return quoted(text, _MOST_SAID)


def at_a_time(call: Callable[[_One], _Made], each: Iterable[_One]) -> list[_Made]:
    """The results of requests, some at a time: each runs kubectl once."""
    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return [*pool.map(call, each)]


def _plural(kind: str) -> str:
    return f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"


def recorded_place(ref: JobRef) -> tuple[str, str] | None:
    """Context and namespace of a job's record; None if it has none."""
    context, _, namespace = ref.place.rpartition("/")
    fine = CONTEXT.fullmatch(context) and NAMESPACE.fullmatch(namespace)
    return (context, namespace) if fine else None


def enforced_level(kubectl: Kubectl) -> str:
    """``restricted``, ``baseline`` or ``privileged``; empty if the namespace has no level, or may not be read."""
    try:
        answer = kubectl.get("Namespace", kubectl.namespace)
    except (BackendDeniedError, JobNotFoundError, KubernetesRefusal):
        return ""
    metadata = answer.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, Mapping) else None
    return str(labels.get(_ENFORCED) or "") if isinstance(labels, Mapping) else ""


def demand_queue(kubectl: Kubectl, queue: str) -> None:
    """Raises ``SubmissionError`` for a queue that would never start a job, and errors of the request.

    https://kubernetes.io/docs/reference/using-api/#api-groups: a group says which version it prefers.
    """
    try:
        preferred = kubectl.at(_KUEUE).get("preferredVersion")
    except JobNotFoundError:
        raise SubmissionError(
            f"the cluster has no Kueue, so a job in queue {queue} would wait forever",
            hint="omit kubernetes.queue, or install Kueue",
        ) from None
    version = str(preferred.get("groupVersion")) if isinstance(preferred, dict) else ""
    if not _KUEUE_VERSION.fullmatch(version):
        raise BackendUnavailableError("cannot find out which version of Kueue the cluster runs")
    namespace = kubectl.namespace
    try:
        kubectl.at(f"/apis/{version}/namespaces/{namespace}/localqueues/{queue}")
    except JobNotFoundError:
        shown = kubectl.shown("get", "localqueues", "-n", namespace)
        raise SubmissionError(
            f"the namespace {namespace} has no queue {queue}, so the job would wait forever",
            hint=f"see what there is: {shown}",
        ) from None
