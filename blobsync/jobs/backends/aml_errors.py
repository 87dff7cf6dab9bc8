"""What Azure ML's refusals mean: the service's own sentence and code, and what to do about it. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blobsync.config.model import WorkspaceConfig
from blobsync.errors import (
    BackendUnavailableError,
    ConfigError,
    JobError,
    JobNotFoundError,
    LoginRequiredError,
    SubmissionError,
)

_MAX_CHARS = 600


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no success. ``code`` and ``message`` are the service's; ``request_id`` is for support."""

    status: int
    code: str
    message: str
    request_id: str = ""

    @property
    def sentence(self) -> str:
        """The service's own words, with what support asks for."""
        known = [self.code or "no code", f"HTTP {self.status}"]
        if self.request_id:
            known.append(f"request {self.request_id}")
        return f"{self.message or 'no reason given'} ({', '.join(known)})"

    def says(self, *words: str) -> bool:
        """Whether the code or the message holds one of these, whatever its case."""
        text = f"{self.code} {self.message}".lower()
        return any(word in text for word in words)


def read_refusal(status: int, body: str, headers: Mapping[str, str]) -> Refusal:
    """ARM's and run history's error document; other texts are taken as they are."""
    request_id = headers.get("x-ms-correlation-request-id") or headers.get("x-ms-request-id") or ""
    try:
        document = json.loads(body)
    except ValueError:
        return Refusal(status, "", " ".join(body.split())[:_MAX_CHARS], request_id)
    error = document.get("error") if isinstance(document, Mapping) else None
    if not isinstance(error, Mapping):
        error = document if isinstance(document, Mapping) else {}
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    deepest = _deepest(error)
    if deepest and deepest not in message:
        message = f"{message.rstrip('. ')}: {deepest}" if message else deepest
    return Refusal(status, code, " ".join(message.split())[:_MAX_CHARS], request_id)


def as_error(refusal: Refusal, workspace: WorkspaceConfig, doing: str) -> Exception:
    """The error to raise. ``doing`` is ``submit``, ``look``, ``cancel`` or ``summary``."""
    file, said = workspace.file, refusal.sentence
    code = refusal.code.lower()
    if refusal.status == 401:
        return LoginRequiredError(
            f"Azure does not accept the login: {said}",
            hint="az login, with --tenant where the subscription belongs to another one",
        )
    if "subscription" in code or code == "invalidauthenticationtokentenant":
        return ConfigError(
            f"Azure says: {said}", file=file, key="subscription_id", hint="az account list shows yours; az login"
        )
    if "resourcegroup" in code:
        return ConfigError(f"Azure says: {said}", file=file, key="resource_group", hint="az group list shows them")
    if refusal.status == 403:
        return BackendUnavailableError(
            f"Azure refuses this: {said}", hint="ask for the role AzureML Data Scientist on the workspace"
        )
    if refusal.says("compute") and refusal.status in (400, 404):
        return ConfigError(
            f"Azure ML says: {said}", key="compute_target", hint="az ml compute list shows the workspace's computes"
        )
    if refusal.status == 404 and refusal.says("workspaces/", "workspace "):
        return ConfigError(f"Azure says: {said}", file=file, key="workspace_name", hint="az ml workspace list")
    if doing == "submit":
        return SubmissionError(f"Azure ML does not take the job: {said}", hint=_submission_hint(refusal))
    if refusal.status == 404:
        return JobNotFoundError(f"Azure ML does not know it: {said}")
    if refusal.status in (408, 429) or refusal.status >= 500:
        return BackendUnavailableError(f"Azure ML does not answer as it should: {said}", hint="try again in a while")
    return JobError(f"Azure ML refuses: {said}")


def _submission_hint(refusal: Refusal) -> str:
    if refusal.says("quota", "limitexceeded"):
        return "ask for fewer nodes (-n), wait, or ask for more quota; blobsync summary shows what is used"
    if refusal.says("image", "environment"):
        return "check docker.image in the cluster file: the workspace has to be able to pull it"
    if refusal.says("datastore", "storage", "sas"):
        return "check the storage account file: its key or SAS is what the workspace uses"
    return "blobsync submit --dry-run ... shows what it was given"


def _deepest(error: Mapping[str, Any]) -> str:
    """ARM's general message hides the telling one in ``details``."""
    found = ""
    details = error.get("details")
    while isinstance(details, list) and details and isinstance(details[0], Mapping):
        found = str(details[0].get("message") or found)
        details = details[0].get("details")
    return found
