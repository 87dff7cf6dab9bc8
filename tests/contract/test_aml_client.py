"""The client of Azure ML on the wire: tokens, pages, throttling, long requests, and refusals."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blobsync.backends.aml.client import AmlClient
from blobsync.backends.aml.transport import MOST_ANSWER
from blobsync.base.errors import (
    BackendBusyError,
    BackendDeniedError,
    BackendFailingError,
    BackendUnavailableError,
    BlobsyncError,
    ConfigError,
    CredentialError,
    JobNotFoundError,
    LoginRequiredError,
    LostContactError,
    SubmissionError,
)
from blobsync.config.model import WorkspaceConfig
from tests.fakes.aml_configs import ask
from tests.servers.aml_stub import SOON, AmlStub, Fault, Login, refusal, serve
from tests.servers.stranger import stranger


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[AmlStub]:
    with serve(tmp_path / "service") as stub:
        stub.held = True
        yield stub
        assert stub.violations == []


def client(stub: AmlStub, login: Any = Login, note: Any = print, **changes: str) -> AmlClient:
    known = {"subscription_id": "sub0", "resource_group": "rg0", "workspace_name": "ws-one"}
    values = {**known, "management_endpoint": stub.url, **changes}
    return AmlClient(WorkspaceConfig(file="aux_data/aml/config.json", **values), login, note=note)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    return ask(tmp_path / "project", docker={"environment": "azureml:pt:1"}).request.job


def submit(client: AmlClient, stub: AmlStub, job: Any, name: str = "me_1_x") -> Any:
    stub.environments["pt/versions/1"] = {}
    return client.call("PUT", f"jobs/{name}", job, doing="submit")


def test_a_list_is_read_page_by_page_and_no_further_than_needed(stub: AmlStub, job: Any) -> None:
    arm = client(stub)
    names = [f"me_{number}_x" for number in range(7)]
    for name in names:
        submit(arm, stub, job, name)
    listing = {"listViewType": "ActiveOnly", "jobType": "Command", "tag": "blobsync"}
    before = len(stub.requests)
    found = arm.pages("jobs", **listing)
    assert [next(found).text("name") for _ in range(2)] == names[::-1][:2]
    assert len(stub.requests) == before + 1
    assert [one.text("name") for one in found] == names[::-1][2:]
    assert len(stub.requests) == before + 4


def test_an_answer_without_end_is_not_kept_in_memory(stub: AmlStub) -> None:
    stub.faults = [Fault("GET .*/jobs", 200, " " * (MOST_ANSWER + 1))]
    with pytest.raises(LostContactError, match=r"^127\.0\.0\.1 sent an answer of more than 64 MiB"):
        list(client(stub).pages("jobs"))


def test_throttling_is_waited_out_and_the_job_is_there_once(stub: AmlStub, job: Any) -> None:
    stub.faults = [Fault("PUT .*/jobs/", status, {}, SOON, times=1) for status in (429, 503, 429)]
    submit(client(stub), stub, job)
    assert len(stub.jobs) == 1
    assert sum(line.startswith("PUT") for line in stub.requests) == 4


def test_a_wait_that_a_user_would_notice_is_reported(stub: AmlStub, job: Any) -> None:
    stub.faults = [
        Fault("PUT .*/jobs/", 503, {}, SOON, times=1),
        Fault("PUT .*/jobs/", 429, {}, {"Retry-After": "2"}, times=1),
    ]
    said: list[str] = []
    submit(client(stub, note=said.append), stub, job)
    assert said == ["Azure is busy (HTTP 429): retrying in 2 s"]


def test_a_service_that_stays_busy_is_reported(stub: AmlStub, job: Any) -> None:
    body = {"error": {"code": "TooManyRequests", "message": "The request is being throttled."}}
    stub.faults = [Fault("GET .*/jobs", 429, body, SOON, times=100)]
    with pytest.raises(BackendUnavailableError, match="being throttled"):
        client(stub).call("GET", "jobs/me_1_x")


def test_cancelling_is_followed_to_its_end(stub: AmlStub, job: Any) -> None:
    arm = client(stub)
    submit(arm, stub, job)
    stub.jobs["me_1_x"].status = "Running"
    stub.faults = [
        Fault("GET /operations/", 202, {}, {"Location": f"{stub.url}/operations/me_1_x", "Retry-After": "0"}, times=2)
    ]
    stub.jobs["me_1_x"].status = "Queued"
    assert arm.cancel("me_1_x") is None
    assert sum("/operations/" in line for line in stub.requests) == 3
    refused = arm.cancel("me_1_x")
    assert refused is not None and "already ended" in refused.sentence


def test_the_token_goes_nowhere_else(stub: AmlStub, job: Any) -> None:
    arm = client(stub)
    submit(arm, stub, job)
    stub.jobs["me_1_x"].folder.joinpath("user_logs").mkdir(parents=True)
    stub.jobs["me_1_x"].folder.joinpath("user_logs/std_log.txt").write_text("0123456789")
    details = arm.history("runs/me_1_x/details")
    assert details is not None
    url = details.texts("logFiles")["user_logs/std_log.txt"]
    assert (arm.read(url, 2, 5), arm.read(url, 8, None), arm.read(url, 10, None)) == (b"234", b"89", b"")
    assert arm.history("runs/nobody/details") is None
    elsewhere = {"Location": "https://elsewhere.example/operations/1", "Retry-After": "0"}
    stub.faults = [Fault("POST .*/cancel", 202, {}, elsewhere)]
    with pytest.raises(BackendUnavailableError, match=r"refers to elsewhere\.example"):
        arm.cancel("me_1_x")
    stub.faults = [Fault("GET .*/jobs", 200, {"value": [], "nextLink": "https://elsewhere.example/jobs"})]
    with pytest.raises(BackendUnavailableError, match=r"elsewhere\.example"):
        list(arm.pages("jobs"))


def test_the_version_of_the_interface_can_be_changed(stub: AmlStub) -> None:
    with pytest.raises(BlobsyncError, match="2030-01-01 is not 2024-04-01"):
        client(stub, api_version="2030-01-01").call("GET", "jobs/x")
    assert "api-version=2030-01-01" in stub.requests[0]
    stub.violations.clear()


@pytest.mark.parametrize(
    "endpoint", ["http://example.org", "http://10.0.0.1", "management.azure.com", "https://h/?x=1", "ftp://127.0.0.1"]
)
def test_tokens_travel_over_https_or_stay_on_this_machine(stub: AmlStub, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="management_endpoint"):
        client(stub, management_endpoint=endpoint)
    client(stub, management_endpoint="https://management.chinacloudapi.cn")


def test_no_token_goes_to_another_user_who_took_the_port(tmp_path: Path) -> None:
    with serve(tmp_path / "service") as stub:
        arm = client(stub)
    with stranger(tmp_path, port=urlsplit(stub.url).port or 0) as other:
        with pytest.raises(CredentialError, match="a program of another user of this machine listens"):
            arm.call("GET", "")
        with pytest.raises(ConfigError, match="your login is not sent there"):
            client(stub)
        assert other.received == b""


_DETAILS = (
    {"code": "MaxValue", "message": "instanceCount must be at most 10.", "target": "resources"},
    {"code": "Inner", "message": "", "details": [{"code": "Pattern", "message": "shmSize has no unit."}]},
)
_FILE, _REJECTED = "aux_data/aml/config.json: ", "Azure ML rejected the job: "
_REFUSED, _BUSY = "Azure refused the request: ", "Azure ML did not complete the request: "
_QUOTA = "ask for fewer nodes (-n), wait, or ask for more quota; blobsync summary shows what is used"
_IMAGE = "check docker.image, or docker.environment, in the cluster file: the workspace must be able to pull it"
_NETWORK = "the workspace accepts requests from certain networks only: use one of them, or its VPN"
_ROLE = "ask for the role AzureML Data Scientist on the workspace; a new role takes some minutes to work"
_LIST = "az ml workspace list --resource-group rg0 --subscription sub0 shows them"


@pytest.mark.parametrize(
    ("change", "kind", "said", "hint"),
    [
        ({"subscription_id": "other"}, ConfigError,
         f"{_FILE}subscription_id: Azure says: The subscription 'other' could not be found. (SubscriptionNotFound, ",
         "to list yours: az account list; if it is in another tenant: az login --tenant"),
        ({"resource_group": "other"}, ConfigError,
         f"{_FILE}resource_group: Azure says: Resource group 'other' could not be found. (ResourceGroupNotFound, ",
         "az group list --subscription sub0 shows them"),
        ({"workspace_name": "other"}, ConfigError,
         f"{_FILE}workspace_name: Azure says: The Resource 'Microsoft.MachineLearningServices/workspaces/other' under",
         _LIST),
        ((404, "ParentResourceNotFound", "the parent is gone"), ConfigError,
         f"{_FILE}workspace_name: Azure says: the parent is gone (Parent", _LIST),
        ((401, "ExpiredAuthenticationToken", "it has ended"), LoginRequiredError,
         "Azure rejected the login: it has ended (ExpiredAuthenticationToken, HTTP 401, request c0ffee)",
         "run az login, with --tenant if the subscription is in another tenant"),
        ((403, "AuthorizationFailed", "no right to write"), BackendDeniedError, f"{_REFUSED}no right to write (",
         _ROLE),
        ((403, "RequestDisallowedByPolicy", "disallowed by policy 'x'"), BackendDeniedError,
         f"{_REFUSED}disallowed by policy 'x' (",
         "a policy of the organisation forbids it: ask the owner of the subscription"),
        ((403, "AccessDenied", "public network access is off"), BackendDeniedError,
         f"{_REFUSED}public network access is off (", _NETWORK),
        ((400, "UserError", "Unknown compute target 'x'."), ConfigError,
         "compute_target: Azure ML says: Unknown compute target 'x'. (",
         "to list them: az ml compute list --resource-group rg0 --workspace-name ws-one --subscription sub0"),
        ((400, "QuotaExceeded", "the quota of NC24 is used"), SubmissionError, f"{_REJECTED}the quota of NC24 is",
         _QUOTA),
        ((400, "QuotaExceeded", "compute c: no quota could be found"), SubmissionError, f"{_REJECTED}compute c: no",
         _QUOTA),
        ((400, "ImageNotFound", "image x does not exist"), SubmissionError, f"{_REJECTED}image x does not exist (",
         _IMAGE),
        ((400, "UserError", "Could not find the environment x"), SubmissionError, f"{_REJECTED}Could not find the env",
         _IMAGE),
        ((400, "UserError", "identity of compute x: image y not found"), SubmissionError, f"{_REJECTED}identity of ",
         _IMAGE),
        ((400, "UserError", "datastore x: AuthenticationFailed"), SubmissionError, f"{_REJECTED}datastore x: Auth",
         "check the storage account file: the workspace uses its key or SAS"),
        ((400, "ValidationError", "The request is invalid.", *_DETAILS), SubmissionError,
         f"{_REJECTED}The request is invalid: resources: instanceCount must be at most 10.; shmSize has no unit. (Val",
         "see the request with blobsync submit --dry-run ..."),
        ((500, "InternalServerError", "received 500"), BackendFailingError, f"{_BUSY}received 500 (",
         "try again later"),
        ((503, "ServiceUnavailable", "it is down"), BackendBusyError, f"{_BUSY}it is down (", "try again later"),
        ((429, "SubscriptionRequestsThrottled", "too many"), BackendBusyError, f"{_BUSY}too many (", "try again later"),
        ((409, "SubscriptionNotRegistered", "not registered"), BackendUnavailableError, f"{_REFUSED}not registered (",
         "az provider register --namespace Microsoft.MachineLearningServices --subscription sub0"),
    ],
)  # fmt: skip
def test_a_refusal_is_reported_in_the_services_words_with_what_to_do(
    stub: AmlStub, job: Any, change: Any, kind: type[BlobsyncError], said: str, hint: str
) -> None:
    changes: dict[str, str] = {}
    if isinstance(change, dict):
        changes = change
    else:
        status, *words = change
        headers = {"x-ms-correlation-request-id": "c0ffee", **SOON}
        stub.faults = [Fault("PUT .*/jobs/", status, refusal(*words), headers, times=99)]
    with pytest.raises(kind) as caught:
        submit(client(stub, **changes), stub, job)
    error = caught.value
    assert error.message.startswith(said) and error.hint == hint, error.message
    assert error.exit_code == (1 if isinstance(error, (SubmissionError, BackendFailingError)) else 2)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("distribution", {"distributionType": "MPI"}, "'MPI' is no known kind"),
        ("command", None, "command: must not be null"),
        ("comand", "x", "comand: is unknown"),
        ("limits", {"jobLimitsType": "Command", "timeout": "5h"}, "is no duration"),
    ],
)
def test_the_stand_in_refuses_what_the_specification_does_not_allow(
    stub: AmlStub, job: Any, field: str, value: Any, said: str
) -> None:
    with pytest.raises(SubmissionError, match=said):
        submit(client(stub), stub, {"properties": {**job["properties"], field: value}})
    assert stub.violations and not stub.jobs
    stub.violations.clear()


def test_looking_for_what_is_not_there(stub: AmlStub) -> None:
    arm = client(stub)
    assert arm.try_call("jobs/nobody") is None
    with pytest.raises(JobNotFoundError, match="Run nobody was not found"):
        arm.call("GET", "jobs/nobody")


def test_a_missing_login(stub: AmlStub) -> None:
    class Nobody:
        def get_token(self, *_: str, **__: Any) -> Any:
            from azure.core.exceptions import ClientAuthenticationError

            raise ClientAuthenticationError("Please run 'az login' to set up an account")

    with pytest.raises(LoginRequiredError, match="Please run 'az login'") as caught:
        client(stub, Nobody).call("GET", "jobs/x")
    assert caught.value.hint == "az login"
    assert stub.requests == []


@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["value", "nextLink", "properties", "discoveryUrl", "api", "tags", "error", "details"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    ),
    status=st.sampled_from([200, 202, 400, 404, 409]),
    headers=st.fixed_dictionaries(
        {},
        optional={
            "Location": st.sampled_from(["http://[", "//", "/x", "https://a:b@c:99999/"]),
            "Content-Type": st.sampled_from(["text/plain; charset=hex", "application/json; charset=none", "x"]),
        },
    ),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_response_ends_in_our_error(stub: AmlStub, body: Any, status: int, headers: dict[str, str]) -> None:
    stub.faults = [Fault(".", status, json.dumps(body), headers, times=10_000)]
    arm = client(stub)
    for ask_it in (
        lambda: arm.call("GET", "jobs/x"),
        lambda: arm.try_call("jobs/x"),
        lambda: list(islice(arm.pages("jobs"), 50)),
        lambda: arm.cancel("x"),
        lambda: arm.history("runs/x/details"),
    ):
        with contextlib.suppress(BlobsyncError):
            ask_it()


@pytest.mark.parametrize("asked", ["soon", "nan", "inf", "Fri, 99 Foo 2026", "-5"])
def test_a_wait_that_is_none_is_not_waited(stub: AmlStub, job: Any, asked: str) -> None:
    stub.faults = [Fault("PUT .*/jobs/", 503, {}, {"Retry-After": asked}), Fault("GET .*/jobs", 200, {})]
    said: list[str] = []
    with contextlib.suppress(BlobsyncError):
        submit(client(stub, note=lambda text: stop(said, text)), stub, job)
    assert asked == "inf" or not said, said


def stop(said: list[str], text: str) -> None:
    """Records the requested pause instead of sleeping."""
    said.append(text)
    assert text.endswith("retrying in 300 s")
    raise BlobsyncError(text)


def test_a_list_that_names_itself_as_its_next_page_ends(stub: AmlStub) -> None:
    stub.faults = [
        Fault("GET .*/jobs", 200, {"value": [], "nextLink": f"{stub.url}/x/jobs"}, times=100),
        Fault("GET .*/children", 200, {"value": [], "continuationToken": "2"}, times=100),
    ]
    with pytest.raises(LostContactError, match="never ends"):
        list(client(stub).pages("jobs"))
    assert len(stub.requests) == 2
    with pytest.raises(LostContactError, match="never ends"):
        list(client(stub).history_pages("runs/me_1/children"))
    assert [request.partition("/children")[2] for request in stub.requests[-2:]] == ["", "?$continuationtoken=2"]
