"""Azure Resource Manager and Azure ML's run history over REST, on azure-core.

Three kinds of requests: to the management endpoint with its token; to run history with its own token; and to SAS URLs
of logs and the workspace's discovery URL, with none. Retries, including ``Retry-After``, are azure-core's.

azure-ai-ml makes the same requests with 60 packages (111 MB); the tests compare our requests with it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from blobsync.backends.aml.error_responses import Refusal, as_error, read_refusal, wrong_place
from blobsync.backends.aml.replies import AmlReply
from blobsync.backends.aml.request import workspace_path
from blobsync.base.errors import (
    BackendFailingError,
    BackendUnavailableError,
    ConfigError,
    LoginRequiredError,
    LostContactError,
)
from blobsync.base.plain_json import parse_json
from blobsync.base.trusted_hosts import (
    Service,
    Trusted,
    host_of,
    how_to_trust,
    is_loopback,
    is_plain_loopback,
    is_safe_from_listeners,
    may_get_login,
    why_not,
)
from blobsync.base.version import __version__
from blobsync.config.model import WorkspaceConfig

if TYPE_CHECKING:
    from azure.core import PipelineClient
    from azure.core.credentials import TokenCredential

API_VERSION = "2024-04-01"
# Virtual clusters have never had a stable version; azure-ai-ml uses this one too.
VIRTUAL_CLUSTER_VERSION = "2021-03-01-preview"

# https://learn.microsoft.com/azure/machine-learning/reference-machine-learning-cloud-parity
_ML_SCOPES = {
    "management.azure.com": "https://ml.azure.com/.default",
    "management.usgovcloudapi.net": "https://ml.azure.us/.default",
    "management.chinacloudapi.cn": "https://ml.azure.cn/.default",
}
_RETRIES = 6
_BACKOFF_SECONDS = 0.8
_CONNECT_SECONDS, _READ_SECONDS = 20, 120
_CANCEL_SECONDS = 60.0
_NOTICED_SECONDS = 2.0
_MOST_PAGES = 10_000
# The maximum, whatever a server requests.
_LONGEST_SECONDS = 300.0
_LONGEST_POLL_SECONDS = 10.0
_WITHOUT_CLI = "install the Azure CLI, then az login; or use_cli_auth: false in the cluster file"
# Refusals for a job that has ended or was deleted.
_NO_SUCH_STATE = (400, 404, 409)


class AmlClient:
    """Requests to one workspace. ``make_credential`` is called when the first token is needed.

    ``cluster_file`` is for messages; ``note`` reports waits that a user would notice; ``trusted`` are hosts besides
    Azure's that may receive the user's token.
    """

    def __init__(
        self,
        workspace: WorkspaceConfig,
        make_credential: Callable[[], TokenCredential],
        cluster_file: str = "",
        note: Callable[[str], None] = lambda text: None,
        trusted: Trusted = tuple,
    ) -> None:
        self.workspace = workspace
        self._cluster_file = cluster_file
        self._note = note
        self.base = workspace.management_endpoint.rstrip("/")
        self.path = workspace_path(workspace)
        self.api_version = workspace.api_version or API_VERSION
        self._make_credential = make_credential
        self._trusted = trusted
        check_endpoint(self.base, workspace, trusted)

    # -- Azure Resource Manager ---------------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, *, doing: str = "look", **params: str) -> AmlReply:
        """Send a request; returns the response. ``path`` is below the workspace, or begins with ``/subscriptions``."""
        sent = {"api-version": self.api_version, **{name.replace("_", "-"): value for name, value in params.items()}}
        return self._json(self._checked(self._send(self._arm, method, self._url(path), params=sent, json=body), doing))

    def try_call(self, path: str, *, patient: bool = True) -> AmlReply | None:
        """The same for GET, None if not found; without patience there is at most one retry."""
        more = {} if patient else {"retry_total": 1}
        answer = self._send(self._arm, "GET", self._url(path), more, params={"api-version": self.api_version})
        if answer.status_code == 404:
            wrong = wrong_place(_refusal(answer), self.workspace)
            if wrong:
                raise wrong
            return None
        return self._json(self._checked(answer, "look"))

    def pages(self, path: str, **params: str) -> Iterator[AmlReply]:
        """The items of a list; pages are read as needed."""

        def following(link: str) -> AmlReply:
            return self._json(self._checked(self._send(self._arm, "GET", self._own(link)), "look"))

        yield from _items(self.call("GET", path, **params), "nextLink", following)

    def cancel(self, run_id: str) -> Refusal | None:
        """Request a job's cancellation and wait until the service accepts it; returns a refusal of this job."""
        url = self._url(f"jobs/{run_id}/cancel")
        answer = self._send(self._arm, "POST", url, params={"api-version": self.api_version})
        until = time.monotonic() + _CANCEL_SECONDS
        while answer.status_code == 202 and answer.headers.get("Location") and time.monotonic() < until:
            time.sleep(_seconds(answer.headers.get("Retry-After")))
            answer = self._send(self._arm, "GET", self._own(answer.headers["Location"]))
        if answer.status_code in _NO_SUCH_STATE:
            return _refusal(answer)
        self._checked(answer, "cancel")
        return None

    # -- run history --------------------------------------------------------------------------------------------

    def history(self, path: str, /, service: str = "history/v1.0", **params: str) -> AmlReply | None:
        """The response of the workspace's own service; None if it does not know the run."""
        url = f"{self._api}/{service}{self.path}/{path}"
        answer = self._send(self._ml, "GET", url, params=params)
        if answer.status_code == 404:
            return None
        return self._json(self._checked(answer, "look"))

    def history_pages(self, path: str) -> Iterator[AmlReply]:
        """The items of a list of run history; pages are read as needed."""
        return _items(
            self.history(path), "continuationToken", lambda token: self.history(path, **{"$continuationtoken": token})
        )

    def read(self, url: str, start: int, end: int | None) -> bytes:
        """Bytes of a log behind a SAS URL; no token goes there."""
        self._check_foreign(url, Service.STORAGE)
        last = "" if end is None else str(end - 1)
        answer = self._send(self._plain, "GET", url, headers={"Range": f"bytes={start}-{last}"})
        if answer.status_code == 416:
            return b""
        body: bytes = self._checked(answer, "log").content
        # A server without range support sends the whole file.
        return body[start:end] if answer.status_code == 200 else body

    @cached_property
    def _api(self) -> str:
        url = self.call("GET", "").inner("properties").text("discoveryUrl")
        self._check_foreign(url, Service.MACHINE_LEARNING)
        answer = self._json(self._checked(self._send(self._plain, "GET", url), "look"))
        api = answer.text("api").rstrip("/")
        self._check_foreign(api, Service.MACHINE_LEARNING)
        return api

    # -- plumbing -----------------------------------------------------------------------------------------------

    @cached_property
    def _credential(self) -> TokenCredential:
        return self._make_credential()

    @cached_property
    def _arm(self) -> PipelineClient[Any, Any]:
        return self._client(f"{self.base}/.default")

    @cached_property
    def _ml(self) -> PipelineClient[Any, Any]:
        host = urlsplit(self.base).hostname or ""
        return self._client(_ML_SCOPES.get(host, _ML_SCOPES["management.azure.com"]))

    @cached_property
    def _plain(self) -> PipelineClient[Any, Any]:
        return self._client(None)

    def _client(self, scope: str | None) -> PipelineClient[Any, Any]:
        from azure.core import PipelineClient
        from azure.core.pipeline import policies

        from blobsync.backends.aml.transport import guarded_transport, limited_transport

        note = self._note

        class Retries(policies.RetryPolicy[Any, Any]):
            """azure-core's policy, which reports its waits and limits them."""

            def get_retry_after(self, response: Any) -> float | None:
                try:
                    asked = super().get_retry_after(response)
                except (ValueError, TypeError, OverflowError):
                    # It is neither a number nor a date.
                    return None
                return None if asked is None else min(asked, _LONGEST_SECONDS)

            def sleep(self, settings: dict[str, Any], transport: Any, response: Any = None) -> None:
                asked = self.get_retry_after(response) if response else None
                seconds = asked or self.get_backoff_time(settings)
                if seconds >= _NOTICED_SECONDS:
                    why = f"HTTP {response.http_response.status_code}" if response else "no answer"
                    note(f"Azure is busy ({why}): retrying in {seconds:.0f} s")
                super().sleep(settings, transport, response)

        chain: list[Any] = [
            policies.RequestIdPolicy(),
            policies.UserAgentPolicy(f"blobsync/{__version__}"),
            Retries(retry_total=_RETRIES, retry_backoff_factor=_BACKOFF_SECONDS),
        ]
        if scope:
            chain.append(policies.BearerTokenCredentialPolicy(self._credential, scope))
        is_guarded = is_plain_loopback(self.base)
        transport = guarded_transport(self.base, self._trusted) if is_guarded else limited_transport()
        return PipelineClient(self.base, policies=chain, transport=transport)

    def _send(
        self, client: PipelineClient[Any, Any], method: str, url: str, how: Mapping[str, Any] | None = None, **more: Any
    ) -> Any:
        from azure.core.exceptions import AzureError, ClientAuthenticationError
        from azure.core.rest import HttpRequest

        options: dict[str, Any] = {"connection_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, **(how or {})}
        if client is not self._plain and url.startswith("http:"):
            options["enforce_https"] = False
        if more.get("json") is None:
            more.pop("json", None)
        try:
            return client.send_request(HttpRequest(method, url, **more), **options)
        except ClientAuthenticationError as error:
            raise LoginRequiredError(
                f"no Azure identity is signed in for the workspace: {_first_line(error)}",
                hint=_WITHOUT_CLI if "not found on path" in str(error) else "az login",
            ) from error
        except AzureError as error:
            host = urlsplit(url).netloc
            raise BackendFailingError(
                f"cannot connect to {host} ({_cause(error)})",
                hint="check the network, and management_endpoint in the workspace file",
            ) from error

    def _checked(self, answer: Any, doing: str) -> Any:
        if answer.status_code < 300:
            return answer
        raise as_error(_refusal(answer), self.workspace, doing, self._cluster_file)

    def _json(self, answer: Any) -> AmlReply:
        host = urlsplit(answer.request.url).netloc
        problem = "invalid JSON"
        try:
            found = parse_json(answer.content or b"{}")
            if isinstance(found, dict):
                return AmlReply(found, host)
            problem = "JSON that is not an object"
            cause: Exception | None = None
        except ValueError as error:
            cause = error
        raise LostContactError(
            f"{host} returned {problem}", hint="check management_endpoint in the workspace file"
        ) from cause

    def _url(self, path: str) -> str:
        if path.startswith("/subscriptions"):
            return f"{self.base}{path}"
        return f"{self.base}{self.path}/{path}".rstrip("/")

    def _own(self, url: str) -> str:
        """Check a link from a response: the token is sent to the management endpoint only."""
        host = host_of(url)
        if host is None or urlsplit(url)[:2] != urlsplit(self.base)[:2]:
            raise BackendUnavailableError(f"Azure refers to {host or 'no host'}, which is not {self.base}")
        return url

    def _check_foreign(self, url: str, service: Service) -> None:
        """Check a URL from a response to which a token is sent, or whose content is trusted."""
        host = host_of(url) or "none"
        if not is_safe_from_listeners(url):
            raise BackendUnavailableError(f"Azure returned an address that is not https: {host}")
        if is_loopback(url) and not is_loopback(self.base):
            raise BackendUnavailableError(f"Azure returned an address on this machine: {host}")
        if not may_get_login(url, service, self._trusted, guarded=True):
            raise BackendUnavailableError(
                f"Azure refers to {host}, {why_not(url, service)}: no request was sent",
                hint=how_to_trust(url, "your own configuration file"),
            )


def _items(answer: AmlReply | None, key: str, following: Callable[[str], AmlReply | None]) -> Iterator[AmlReply]:
    """The items of a list whose pages name the next one under ``key``. Raises ``LostContactError`` if it never ends."""
    seen: set[str] = set()
    while answer is not None:
        yield from answer.objects("value")
        page = answer.text(key)
        if not page:
            return
        if page in seen or len(seen) >= _MOST_PAGES:
            raise LostContactError(f"{answer.host} returned a list that never ends", hint="try again later")
        seen.add(page)
        answer = following(page)


def check_endpoint(endpoint: str, workspace: WorkspaceConfig, trusted: Trusted = tuple) -> None:
    """Raise ``ConfigError`` for a host that must not receive tokens: only Azure's and the user's, over https.

    Over http, this machine only.
    """
    parts = urlsplit(endpoint)
    hint = None
    if host_of(endpoint) is None or parts.query or parts.username:
        problem = "is not a URL such as https://management.azure.com"
    elif not is_safe_from_listeners(endpoint):
        problem = "must be https; http is allowed for this machine only"
    elif not may_get_login(endpoint, Service.MANAGEMENT, trusted, guarded=True):
        why = why_not(endpoint, Service.MANAGEMENT)
        problem = f"names {host_of(endpoint)}, {why}: your login is not sent there"
        hint = how_to_trust(endpoint, "your own configuration file")
    else:
        return
    raise ConfigError(problem, file=workspace.file, key="management_endpoint", hint=hint)


def _refusal(answer: Any) -> Refusal:
    # Not in the encoding that the response names, which may not exist.
    return read_refusal(answer.status_code, answer.content.decode("utf-8", "replace"), answer.headers)


def _seconds(asked: str | None) -> float:
    """Seconds until the next poll; ``asked`` is an untrusted header."""
    found = re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", asked or "")
    return min(float(found[0]), _LONGEST_POLL_SECONDS) if found else 1.0


def _cause(error: Exception) -> str:
    """The operating system's message; azure-core wraps it in the names of classes and addresses of objects."""
    found = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(error))
    if found:
        return found[1].strip().lower()
    return "no answer in time" if "timed out" in str(error) else type(error).__name__


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
