"""Checks the requirements of a submission in advance. Changes nothing on the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blobsync.backends.kubernetes.kubectl import (
    CLUSTER_WIDE,
    Kubectl,
    KubernetesRefusal,
    at_a_time,
    demand_queue,
    enforced_level,
)
from blobsync.backends.kubernetes.request import KubernetesRequest
from blobsync.backends.kubernetes.settings import RESTRICTED, KubernetesSettings
from blobsync.base.check_results import CheckResult, CheckStatus, failed_check
from blobsync.base.errors import BackendDeniedError, BlobsyncError, JobNotFoundError, SubmissionError

OK, UNTRIED, WARN, FAIL = CheckStatus.OK, CheckStatus.UNTRIED, CheckStatus.WARN, CheckStatus.FAIL

_CSI_DRIVER = "blob.csi.azure.com"


# Rights that every job needs, and those that one with mounts needs besides, as in a role.
_ALWAYS = (
    *(f"{verb} jobs.batch" for verb in ("create", "get", "list", "patch", "delete")),
    *(f"{verb} secrets" for verb in ("create", "get", "update", "list", "delete")),
    *("get pods", "list pods", "get pods/log", "list events", "create configmaps", "create services"),
)
_FOR_MOUNTS = (
    "create persistentvolumeclaims",
    *(f"{verb} persistentvolumes" for verb in ("create", "list", "delete")),
)
_ENTER = "create pods/exec"


def examine_cluster(
    kubectl: Kubectl,
    about: str,
    settings: KubernetesSettings,
    request: KubernetesRequest | None,
    notes: list[str],
) -> Iterator[CheckResult]:
    """Check kubectl, its context, the server, the namespace, the rights, and the objects in the cluster file.

    ``request`` None: the objects of a job are not known. ``notes`` collects the notes of ``kubectl``.
    """
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("kubectl", lambda: f"{kubectl.argv()[0]}, context {kubectl.current_context()}, namespace {kubectl.namespace}"),
        ("server", lambda: _server(kubectl)),
    )
    for name, step in steps:
        try:
            detail = step()
        except BlobsyncError as error:
            yield failed_check(about, name, error)
            return
        yield CheckResult(about, name, WARN if notes else OK, "; ".join([detail, *notes]))
    look = _Look(kubectl, about)
    create = f"create it: {kubectl.shown('create', 'namespace', kubectl.namespace)}"
    namespace = look.at("namespace", kubectl.namespace, kubectl.path("Namespace", kubectl.namespace), create)
    yield namespace
    if namespace.status is FAIL:
        return
    yield from look.pod_security(request, notes)
    yield from look.rights(request)
    yield from look.named(settings, request)


def _server(kubectl: Kubectl) -> str:
    kubectl.check_versions()
    return "reachable, and its version is supported"


class _Look:
    """Checks of one namespace; each has a result, also if it could not be made."""

    def __init__(self, place: Kubectl, about: str) -> None:
        self._place = place
        self._about = about

    def at(self, what: str, name: str, path: str, hint: str) -> CheckResult:
        """Check that the object at ``path`` exists."""
        try:
            self._place.at(path)
        except BackendDeniedError as error:
            return failed_check(self._about, what, error, UNTRIED)
        except (JobNotFoundError, KubernetesRefusal):
            return CheckResult(self._about, what, FAIL, f"{name} is not there", hint)
        except BlobsyncError as error:
            return failed_check(self._about, what, error)
        return CheckResult(self._about, what, OK, f"{name} is there")

    def rights(self, request: KubernetesRequest | None) -> Iterator[CheckResult]:
        needed = [*_ALWAYS, *(_FOR_MOUNTS if _mounts(request) else ())]
        try:
            allowed = dict(zip((*needed, _ENTER), at_a_time(self._may, (*needed, _ENTER)), strict=True))
        except BlobsyncError as error:
            yield CheckResult(self._about, "rights", UNTRIED, f"could not be asked: {error.message}", error.hint)
            return
        lacking = [right for right in needed if not allowed[right]]
        if lacking:
            yield CheckResult(self._about, "rights", FAIL, f"you may not {', '.join(lacking)}", self._ask)
        elif request is None:
            yield CheckResult(self._about, "rights", UNTRIED, "not checked: first fix what submit refuses")
        else:
            yield CheckResult(self._about, "rights", OK, f"you have the {len(needed)} rights that a job needs")
        if not allowed[_ENTER]:
            yield CheckResult(self._about, "rights", WARN, f"you may not {_ENTER}: no ssh", self._ask)

    def _may(self, right: str) -> bool:
        verb, _, whole = right.partition(" ")
        name, _, subresource = whole.partition("/")
        resource, _, group = name.partition(".")
        # A role inside the namespace gives no right to cluster-wide objects.
        namespace = "" if resource in CLUSTER_WIDE else self._place.namespace
        known = {"namespace": namespace, "group": group, "subresource": subresource}
        asked = {"verb": verb, "resource": resource, **{key: value for key, value in known.items() if value}}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        status = self._place.create(body).get("status")
        return isinstance(status, dict) and status.get("allowed") is True

    @property
    def _ask(self) -> str:
        words = self._place.shown("auth", "can-i", "--list", "-n", self._place.namespace)
        return f"see what you may do: {words}; ask the cluster's owner for it"

    def named(self, settings: KubernetesSettings, request: KubernetesRequest | None) -> Iterator[CheckResult]:
        """Check the objects that the cluster file names and a submission does not create."""
        for kind, what, name in (
            ("ServiceAccount", "service account", settings.service_account),
            ("Secret", "pull secret", settings.pull_secret),
            ("PriorityClass", "priority class", settings.priority_class),
        ):
            if name:
                plural = self._place.path(kind).rpartition("/")[2]
                inside = () if plural in CLUSTER_WIDE else ("-n", self._place.namespace)
                shown = self._place.shown("get", plural, *inside)
                yield self.at(what, name, self._place.path(kind, name), f"see what there is: {shown}")
        if settings.queue:
            yield self._queue(settings.queue)
        if _mounts(request):
            hint = "az aks update --enable-blob-driver, or mode: download for these folders"
            yield self.at("mounts", f"the driver {_CSI_DRIVER}", self._place.path("CSIDriver", _CSI_DRIVER), hint)

    def _queue(self, queue: str) -> CheckResult:
        try:
            demand_queue(self._place, queue)
        except SubmissionError as error:
            return failed_check(self._about, "queue", error)
        except BlobsyncError as error:
            return failed_check(self._about, "queue", error, UNTRIED)
        return CheckResult(self._about, "queue", OK, f"{queue} is there")

    def pod_security(self, request: KubernetesRequest | None, notes: list[str]) -> Iterator[CheckResult]:
        """Check the Job against the namespace's level, with a dry run."""
        try:
            level = enforced_level(self._place)
            if not level or request is None:
                return
            fitting = request.restricted() if level == RESTRICTED else request
            before = len(notes)
            self._place.create(fitting.suspended_jobs()[0], dry=True)
        except BlobsyncError as error:
            yield failed_check(self._about, "pod security", error, UNTRIED)
            return
        who = f": jobs run as user {fitting.user}" if level == RESTRICTED else ""
        yield CheckResult(
            self._about,
            "pod security",
            WARN if notes[before:] else OK,
            "; ".join([f"the namespace enforces {level}{who}", *notes[before:]]),
        )


def _mounts(request: KubernetesRequest | None) -> bool:
    return request is not None and any(each["kind"] == "PersistentVolume" for each in request.objects)
