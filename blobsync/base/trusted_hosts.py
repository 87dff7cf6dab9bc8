"""Which hosts may get a credential that is not from the file that names the host.

A project file says where its data is, and a project may come from a stranger. A login, or a key in the environment or
in one of the user's files, opens far more than one container, so it is sent only to Azure's own hosts, to hosts that
the user listed outside all projects, and to this machine. A credential in the same file as its address may be sent
there: the same person wrote both.

This machine has other users, who can read what is sent over plain http to a port that they opened first. So nothing
is sent to a program that is known to be another user's, and a credential from outside the project only to one that
is known to be this user's or root's (``socket_owners``). https to this machine is protected by its certificate.

Only Azure operates hosts below these suffixes. Azure's other domains are left out on purpose, because
customers' own programs run there (``cloudapp.azure.com``, ``instances.azureml.ms``, ``inference.ml.azure.com``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from blobsync.base.lazy_regexes import pattern
from blobsync.base.socket_owners import Endpoint, Listener, listener_at


class Service(enum.Enum):
    """The service whose hosts are meant; the value is what messages call one."""

    STORAGE = "a blob endpoint of Azure"
    MANAGEMENT = "a management endpoint of Azure"
    MACHINE_LEARNING = "a host of Azure Machine Learning"


# A leading dot matches every host below it; a name without one matches only that host.
#
# Storage: https://learn.microsoft.com/azure/storage/common/storage-account-overview#storage-account-endpoints (with
# the endpoints of DNS zones), and for the other clouds
# https://learn.microsoft.com/azure/azure-government/compare-azure-government-global-azure and
# https://learn.microsoft.com/azure/china/resources-developer-guide. Private endpoints keep these names:
# https://learn.microsoft.com/azure/private-link/private-endpoint-dns.
# Management: https://learn.microsoft.com/azure/azure-resource-manager/management/control-plane-and-data-plane.
# Azure ML: https://learn.microsoft.com/azure/machine-learning/how-to-access-azureml-behind-firewall and
# https://learn.microsoft.com/azure/machine-learning/reference-machine-learning-cloud-parity.
# The closed cloud of Germany is left out: its names may change owner.
_AZURE: dict[Service, tuple[str, ...]] = {
    Service.STORAGE: (
        ".blob.core.windows.net",
        ".blob.storage.azure.net",
        ".blob.core.usgovcloudapi.net",
        ".blob.core.chinacloudapi.cn",
    ),
    Service.MANAGEMENT: (
        "management.azure.com",
        ".management.azure.com",
        "management.usgovcloudapi.net",
        "management.chinacloudapi.cn",
    ),
    Service.MACHINE_LEARNING: (
        ".api.azureml.ms",
        ".experiments.azureml.net",
        ".api.ml.azure.us",
        ".api.ml.azure.cn",
    ),
}

# All URL parsers agree on these hosts; other forms may mean different hosts to different parsers.
_AUTHORITY = pattern(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9.])?|\[[0-9A-Fa-f:.]{2,45}\])(?::(\d{1,5}))?")
_LAST_PORT = 65535
_HTTP_PORT = 80

# The user's own list; read only if the host is not one of Azure's.
Trusted = Callable[[], Sequence[str]]
# Whose program listens at the host and the port.
WhoListens = Callable[[str, int], Listener]

TRUSTED_HOSTS_VARIABLE = "BLOBSYNC_TRUSTED_HOSTS"


def host_of(url: str) -> str | None:
    """The host in lower case; None for a URL that programs could read in different ways."""
    if not url.isascii() or not url.isprintable() or "\\" in url:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    found = _AUTHORITY.fullmatch(parts.netloc)
    if parts.scheme not in ("http", "https") or not found or int(found[2] or 0) > _LAST_PORT:
        return None
    return found[1].lower().strip("[]").removesuffix(".")


def is_loopback(url: str) -> bool:
    """Whether the host is this machine, by address or as ``localhost``."""
    host = host_of(url) or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Python knows what IANA registered as not global, later versions more of it. Besides that: Azure's own service for
# each machine (https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16), and what is for
# protocols (RFC 6890, RFC 7526), where other clouds have theirs.
_INSIDE = tuple(map(ip_network, ("168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24")))
# All of IPv6 that reaches another network (RFC 4291, 2.4), without what is for examples (RFC 9637). Outside of it are
# the forms of IPv4 addresses: compatible, mapped, translated (RFC 2765), and by a translator of one's own (RFC 8215).
_GLOBAL, _EXAMPLES = IPv6Network("2000::/3"), IPv6Network("3fff::/20")
# Translators that everybody has (RFC 6052, RFC 3056), and where in the 128 bits the IPv4 address begins.
_TRANSLATED = ((IPv6Network("64:ff9b::/96"), 96), (IPv6Network("2002::/16"), 16))


def is_private(host: str) -> bool:
    """Whether ``host`` is an address that only this machine or its network reaches; False for a name.

    An IPv6 address by which a translator reaches an IPv4 address counts as that one. Which prefix the translator of
    a network has, if not the common one, is not known here.
    """
    try:
        found = Endpoint.of(host, 0).address
    except ValueError:
        return host == "localhost"
    return not _reaches_outside(found)


def _reaches_outside(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        for network, start in _TRANSLATED:
            if address in network:
                return _reaches_outside(IPv4Address(int(address) >> (96 - start) & 0xFFFF_FFFF))
        if address not in _GLOBAL or address in _EXAMPLES:
            return False
    elif any(address in network for network in _INSIDE):
        return False
    return address.is_global and not address.is_multicast


def is_safe_from_listeners(url: str) -> bool:
    """Whether nobody can read on the way what is sent there: https, or this machine."""
    return host_of(url) is not None and (url.lower().startswith("https:") or is_loopback(url))


def is_plain_loopback(url: str) -> bool:
    """Whether whoever listens at that port of this machine can read what is sent there."""
    return is_loopback(url) and url.lower().startswith("http:")


def listener_of(url: str, who: WhoListens = listener_at) -> Listener:
    """Whose program listens now at the host and port of ``url`` on this machine."""
    return who(host_of(url) or "", urlsplit(url).port or _HTTP_PORT)


def may_listen(url: str, found: Listener, trusted: Trusted, *, outside: bool) -> bool:
    """Whether a program with the owner ``found`` may receive what is sent to ``url``; ``outside``: with a credential
    that is not from the file that names the host."""
    if found is Listener.OWN or (found is not Listener.FOREIGN and not outside):
        return True
    return _listed(host_of(url) or "", trusted())


def may_get_login(
    url: str, service: Service, trusted: Trusted, *, guarded: bool = False, who: WhoListens = listener_at
) -> bool:
    """Whether a credential from outside the project may be sent to ``url`` now.

    ``guarded``: the sender checks each connection to this machine, so it does not matter yet that no program listens
    there.
    """
    host = host_of(url)
    if host is None or not is_safe_from_listeners(url):
        return False
    if is_plain_loopback(url):
        found = listener_of(url, who)
        return (guarded and found is Listener.NOBODY) or may_listen(url, found, trusted, outside=True)
    return is_loopback(url) or _listed(host, _AZURE[service]) or _listed(host, trusted())


def why_not(url: str, service: Service, who: WhoListens = listener_at) -> str:
    """Why :func:`may_get_login` returned False: a clause that follows the host's name."""
    return (
        f"but {listener_text(url, listener_of(url, who))}"
        if is_plain_loopback(url)
        else f"which is not {service.value}"
    )


def listener_text(url: str, found: Listener) -> str:
    """What is wrong with the program that listens at the host and port of ``url`` on this machine."""
    place = urlsplit(url).netloc
    if found is Listener.FOREIGN:
        return f"a program of another user of this machine listens at {place}"
    return f"nothing says whose program listens at {place}, on this machine"


def how_to_trust(url: str, file: str) -> str:
    """What the user can do for a host that is right but unknown; ``file`` is the user's own configuration file."""
    host = host_of(url) or "HOST"
    return f"if you trust that host, list it under trusted_hosts in {file}, or export {TRUSTED_HOSTS_VARIABLE}={host}"


def _listed(host: str, names: Sequence[str]) -> bool:
    for name in names:
        plain = name.lower().removeprefix("*").removesuffix(".")
        if host == plain or (len(plain) > 1 and plain.startswith(".") and host.endswith(plain)):
            return True
    return False
