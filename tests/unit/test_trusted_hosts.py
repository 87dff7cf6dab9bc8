"""The hosts that may receive a credential."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from blobsync.base.socket_owners import Listener
from blobsync.base.trusted_hosts import (
    Service,
    host_of,
    is_private,
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


# How an IPv4 address is written for IPv6: mapped, compatible, translated, by NAT64, by a NAT64 of one's own, by 6to4.
FORMS = ("{0}", "::ffff:{0}", "::{0}", "::ffff:0:{0}", "64:ff9b::{0}", "64:ff9b:1::{0}", "2002:{1}::", "2002:{1}:1::7")
PRIVATE = (
    *("10.0.0.1", "172.16.0.1", "192.168.1.1", "127.0.0.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"),
    *("168.63.129.16", "192.0.0.192", "192.0.0.9", "192.88.99.1", "198.18.0.1", "224.0.0.1", "255.255.255.255"),
)


def forms(address: str) -> dict[str, str]:
    number = int(IPv4Address(address))
    return {form: form.format(address, f"{number >> 16:x}:{number & 0xFFFF:x}") for form in FORMS}


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_inside_the_network_is_one_in_each_form(address: str) -> None:
    assert {form: is_private(text) for form, text in forms(address).items()} == dict.fromkeys(FORMS, True)


@pytest.mark.parametrize("address", ["8.8.8.8", "20.150.0.1", "168.63.129.17", "192.0.1.0"])
def test_an_address_of_the_internet_is_reached_by_the_common_translators(address: str) -> None:
    outside = {"{0}", "::ffff:{0}", "64:ff9b::{0}", "2002:{1}::", "2002:{1}:1::7"}
    assert {form for form, text in forms(address).items() if not is_private(text)} == outside


@pytest.mark.parametrize(
    "address",
    [
        "::",
        "::1",
        "fe80::1%eth0",
        "fec0::1",
        "fd00:ec2::254",
        "ff02::1",
        "2001:0:1::1",
        "2001:db8::1",
        "3fff::1",
        "5f00::1",
    ],
)
def test_addresses_of_ipv6_that_reach_no_other_network(address: str) -> None:
    assert is_private(address)


def test_addresses_of_ipv6_that_reach_others_and_names() -> None:
    assert not any(map(is_private, ("2606:4700::1111", "2a00:1450:4001::1", "example.org", "10.0.0.1.example.org")))
    assert is_private("localhost")


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
