"""Interprets Azure ML's error responses: message, code, and a hint. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from blobsync.base.errors import (
    BackendBusyError,
    BackendDeniedError,
    BackendFailingError,
    BackendUnavailableError,
    BlobsyncError,
    ConfigError,
    JobError,
    JobNotFoundError,
    LoginRequiredError,
    SubmissionError,
)
from blobsync.base.formatting import quoted
from blobsync.base.plain_json import parse_json
from blobsync.base.records import dataclass
from blobsync.config.model import WorkspaceConfig

# At most so many characters of the service's message are shown.
MOST_SAID = 600
_MAX_DETAILS = 5
_MAX_PAGE = 100_000
# Real ones have two levels.
_MAX_DEPTH = 20
_QUOTA = ("quota", "limitexceeded")
_GONE = ("unknown", "not found", "notfound", "could not find", "be found", "not exist", "no such")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that is not a success. ``code`` and ``message`` are the service's; ``request_id`` is for support."""

    status: int
    code: str
    message: str
    request_id: str = ""

    @property
    def sentence(self) -> str:
        """The service's message, with the details that Azure support needs."""
        known = [self.code or "no code", f"HTTP {self.status}"]
        if self.request_id:
            known.append(f"request {self.request_id}")
        return f"{self.message or 'no reason given'} ({', '.join(known)})"

    def says(self, *words: str) -> bool:
        """Whether the code or the message contains one of these, in any case."""
        text = f"{self.code} {self.message}".lower()
        return any(word in text for word in words)


def read_refusal(status: int, body: str, headers: Mapping[str, str]) -> Refusal:
    """Parse ARM's or run history's error document; other texts are used as they are."""
    request_id = headers.get("x-ms-correlation-request-id") or headers.get("x-ms-request-id") or ""
    try:
        document = parse_json(body)
    except ValueError:
        # Gateways return HTML pages.
        return Refusal(status, "", quoted(re.sub(r"<[^<>]*>", " ", body[:_MAX_PAGE]), MOST_SAID), request_id)
    error = document.get("error") if isinstance(document, Mapping) else None
    if not isinstance(error, Mapping):
        error = document if isinstance(document, Mapping) else {}
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    details = [text for text in _details(error) if text not in message][:_MAX_DETAILS]
    if details:
        message = f"{message.rstrip('. ')}: {'; '.join(details)}" if message else "; ".join(details)
    return Refusal(status, code, quoted(message, MOST_SAID), request_id)


def as_error(refusal: Refusal, workspace: WorkspaceConfig, doing: str, cluster_file: str = "") -> BlobsyncError:
    """The error to raise. ``doing`` is ``submit``, ``look``, ``cancel``, ``summary`` or ``compute``."""
    message = refusal.sentence
    if refusal.status == 401:
        return LoginRequiredError(
            f"Azure rejected the login: {message}",
            hint="run az login, with --tenant if the subscription is in another tenant",
        )
    if "notregistered" in refusal.code.lower() or "subscriptionregistration" in refusal.code.lower():
        return BackendUnavailableError(
            f"Azure refused the request: {message}",
            hint=az(workspace, "provider", "register", "--namespace", "Microsoft.MachineLearningServices"),
        )
    wrong = wrong_place(refusal, workspace)
    if wrong:
        return wrong
    if refusal.status == 403:
        return BackendDeniedError(f"Azure refused the request: {message}", hint=_forbidden_hint(refusal))
    if refusal.status in (408, 429) or refusal.status >= 500:
        kind = BackendBusyError if refusal.status in (429, 503) else BackendFailingError
        return kind(f"Azure ML did not complete the request: {message}", hint="try again later")
    if doing == "compute":
        return JobError(f"Azure ML refused it: {message}", hint=compute_hint(message, workspace))
    if _lacks_compute(refusal):
        return ConfigError(
            f"Azure ML says: {message}",
            file=cluster_file or None,
            key="compute_target",
            hint=f"to list them: {az_ml(workspace, 'compute', 'list')}",
        )
    if doing == "submit":
        return SubmissionError(f"Azure ML rejected the job: {message}", hint=_submission_hint(refusal))
    if refusal.status == 404:
        return JobNotFoundError(f"Azure ML does not know it: {message}")
    return JobError(f"Azure ML refused: {message}")


def wrong_place(refusal: Refusal, workspace: WorkspaceConfig) -> ConfigError | None:
    """The error for a 404 that is about the workspace, not about the requested object."""
    message, file, code = f"Azure says: {refusal.sentence}", workspace.file, refusal.code.lower()
    if refusal.status not in (400, 403, 404, 409):
        # Not SubscriptionRequestsThrottled, for example, for which the file is not the cause.
        return None
    if "subscription" in code:
        hint = "to list yours: az account list; if it is in another tenant: az login --tenant"
        return ConfigError(message, file=file, key="subscription_id", hint=hint)
    if "resourcegroup" in code:
        hint = f"{az(workspace, 'group', 'list')} shows them"
        return ConfigError(message, file=file, key="resource_group", hint=hint)
    missing = code in ("parentresourcenotfound", "workspacenotfound")
    if refusal.status == 404 and (missing or refusal.says(f"workspaces/{workspace.workspace_name.lower()}'")):
        group = ("--resource-group", workspace.resource_group)
        hint = f"{az(workspace, 'ml', 'workspace', 'list', *group)} shows them"
        return ConfigError(message, file=file, key="workspace_name", hint=hint)
    return None


def _lacks_compute(refusal: Refusal) -> bool:
    # Not a compute's quota, or an image that its identity cannot pull.
    other = refusal.says(*_QUOTA, "image", "environment", "identity")
    return refusal.status in (400, 404) and refusal.says("compute") and refusal.says(*_GONE) and not other


def _forbidden_hint(refusal: Refusal) -> str:
    if refusal.says("policy"):
        return "a policy of the organisation forbids it: ask the owner of the subscription"
    if refusal.says("network", "firewall", "private endpoint"):
        return "the workspace accepts requests from certain networks only: use one of them, or its VPN"
    return "ask for the role AzureML Data Scientist on the workspace; a new role takes some minutes to work"


def _submission_hint(refusal: Refusal) -> str:
    if refusal.says(*_QUOTA):
        return "ask for fewer nodes (-n), wait, or ask for more quota; blobsync summary shows what is used"
    if refusal.says("image", "environment"):
        return "check docker.image, or docker.environment, in the cluster file: the workspace must be able to pull it"
    if refusal.says("datastore", "storage", "sas"):
        return "check the storage account file: the workspace uses its key or SAS"
    return "see the request with blobsync submit --dry-run ..."


def compute_hint(message: str, workspace: WorkspaceConfig) -> str:
    """The hint for a refused compute, by the service's message."""
    text = message.lower()
    if any(word in text for word in _QUOTA):
        usage = az_ml(workspace, "compute", "list-usage")
        return f"{usage} shows the quota; lower --max, or ask for more in the portal"
    if "size" in text or "sku" in text:
        return f"{az_ml(workspace, 'compute', 'list-sizes')} shows the sizes of the region"
    return "see the request with --dry-run"


def az(workspace: WorkspaceConfig, *words: str) -> str:
    """A command line of the Azure CLI, with the subscription: its default may be another one."""
    return shlex.join(["az", *words, "--subscription", workspace.subscription_id])


def az_ml(workspace: WorkspaceConfig, *words: str) -> str:
    """A command line of ``az ml`` for the workspace."""
    where = ("--resource-group", workspace.resource_group, "--workspace-name", workspace.workspace_name)
    return az(workspace, "ml", *words, *where)


def _details(error: Mapping[str, Any], depth: int = 0) -> list[str]:
    """ARM's general message wraps the specific one, innermost in ``details``."""
    found: list[str] = []
    inner = error.get("details") if depth < _MAX_DEPTH else None
    for detail in inner if isinstance(inner, list) else ():
        if not isinstance(detail, Mapping):
            continue
        message, target = str(detail.get("message") or ""), str(detail.get("target") or "")
        named = f"{target}: {message}" if target and message and target not in message else message
        found += _details(detail, depth + 1) or ([named] if named else [])
    return list(dict.fromkeys(found))
