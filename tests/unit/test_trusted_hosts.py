"""The hosts that may receive a credential."""

from __future__ import annotations

import pytest

from blobsync.base.socket_owners import Listener
from blobsync.base.trusted_hosts import (
    Service,
    host_of,
    is_safe_from_listeners,
    may_get_login,
    may_listen,
    why_not,
)


def nothing() -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize(
    "url",
    [
        "https://acct.blob.core.windows.net",
        "https://ACCT.Blob.Core.Windows.Net:443/",
        "https://acct.privatelink.blob.core.windows.net",
        "https://acct.z07.blob.storage.azure.net",
        "https://acct.blob.core.usgovcloudapi.net",
        "https://acct.blob.core.chinacloudapi.cn",
        "https://acct.blob.core.windows.net.",
        "https://127.0.0.1:10000/acct",
    ],
)
def test_storage_hosts_of_azure_and_this_machine_get_it(url: str) -> None:
    assert may_get_login(url, Service.STORAGE, nothing)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example",
        "https://acct.blob.core.windows.net.evil.example",
        "https://evilblob.core.windows.net",
        "https://blob.core.windows.net.",
        "https://acct.file.core.windows.net",
        "https://acct.cloudapp.azure.com",
        "https://evil.example/acct.blob.core.windows.net",
        "https://evil.example#.blob.core.windows.net",
        "https://evil.example?.blob.core.windows.net",
        "https://evil.example\\.blob.core.windows.net",
        "https://evil.example\\@acct.blob.core.windows.net",
        "https://acct.blob.core.windows.net@evil.example",
        "https://user@acct.blob.core.windows.net",
        "https://evil.example\t.blob.core.windows.net",
        "https://evil.example%2F.blob.core.windows.net",
        "https://evil\uff0eexample\u3002blob.core.windows.net",
        "https://acct.blob.core.windows.net:evil",
        "https://127.0.0.1.evil.example",
        "https://127.1",
        "https://2130706433",
        "https://0.0.0.0",
        "https://10.0.0.1",
        "http://acct.blob.core.windows.net",
        "ftp://acct.blob.core.windows.net",
        "//acct.blob.core.windows.net",
        "",
        "https://[::1",
    ],
)
def test_other_hosts_do_not(url: str) -> None:
    assert not may_get_login(url, Service.STORAGE, nothing)


@pytest.mark.parametrize(
    ("url", "service", "may"),
    [
        ("https://management.azure.com", Service.MANAGEMENT, True),
        ("https://westeurope.management.azure.com", Service.MANAGEMENT, True),
        ("https://management.usgovcloudapi.net", Service.MANAGEMENT, True),
        ("https://management.chinacloudapi.cn", Service.MANAGEMENT, True),
        ("https://evilmanagement.azure.com", Service.MANAGEMENT, False),
        ("https://acct.blob.core.windows.net", Service.MANAGEMENT, False),
        ("https://westus2.api.azureml.ms/discovery", Service.MACHINE_LEARNING, True),
        ("https://id.workspace.westus2.api.azureml.ms", Service.MACHINE_LEARNING, True),
        ("https://usgovvirginia.api.ml.azure.us", Service.MACHINE_LEARNING, True),
        ("https://node.westus2.instances.azureml.ms", Service.MACHINE_LEARNING, False),
        ("https://mine.westus2.inference.ml.azure.com", Service.MACHINE_LEARNING, False),
    ],
)
def test_each_service_has_hosts_of_its_own(url: str, service: Service, may: bool) -> None:
    assert may_get_login(url, service, nothing) is may


@pytest.mark.parametrize(
    ("listed", "host", "may"),
    [
        ("blob.corp.example", "blob.corp.example", True),
        ("BLOB.corp.example.", "blob.corp.example", True),
        ("corp.example", "blob.corp.example", False),
        (".corp.example", "blob.corp.example", True),
        ("*.corp.example", "blob.corp.example", True),
        (".corp.example", "evilcorp.example", False),
        ("*", "evil.example", False),
        (".", "evil.example", False),
        ("", "evil.example", False),
    ],
)
def test_hosts_of_the_user(listed: str, host: str, may: bool) -> None:
    assert may_get_login(f"https://{host}/acct", Service.STORAGE, lambda: [listed]) is may
    assert not may_get_login(f"http://{host}/acct", Service.STORAGE, lambda: [listed])


def test_the_users_list_is_not_read_where_azures_decides() -> None:
    def never() -> tuple[str, ...]:
        raise AssertionError

    assert may_get_login("https://acct.blob.core.windows.net", Service.STORAGE, never)
    assert not may_get_login("http://evil.example", Service.STORAGE, never)


@pytest.mark.parametrize(
    ("whose", "login", "guarded", "own_file"),
    [
        (Listener.OWN, True, True, True),
        (Listener.FOREIGN, False, False, False),
        (Listener.NOBODY, False, True, True),
        (Listener.UNKNOWN, False, False, True),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9"])
def test_over_plain_http_it_depends_on_who_listens(
    host: str, whose: Listener, *, login: bool, guarded: bool, own_file: bool
) -> None:
    url, asked = f"http://{host}:10000/acct", []

    def who(host: str, port: int) -> Listener:
        asked.append((host, port))
        return whose

    assert may_get_login(url, Service.STORAGE, nothing, who=who) is login
    assert may_get_login(url, Service.STORAGE, nothing, guarded=True, who=who) is guarded
    assert set(asked) == {(host.strip("[]"), 10000)}
    assert may_listen(url, whose, nothing, outside=False) is own_file
    assert may_listen(url, whose, nothing, outside=True) is login
    # Allowed by the user's own list, or protected by https.
    assert may_get_login(url, Service.STORAGE, lambda: [host.strip("[]")], who=who)
    assert may_get_login(url.replace("http:", "https:"), Service.STORAGE, nothing, who=who)
    assert f"listens at {host}:10000" in why_not(url, Service.STORAGE, who)


def test_plain_http_is_for_this_machine() -> None:
    assert is_safe_from_listeners("http://127.0.0.1:1") and is_safe_from_listeners("https://evil.example")
    assert not is_safe_from_listeners("http://evil.example")
    assert host_of("HTTPS://Evil.Example:1/x") == "evil.example"
