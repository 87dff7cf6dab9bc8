"""User and group of a container: from ``securityContext`` of pod or container, else root."""

from __future__ import annotations

import pwd
from typing import Any

from tests.servers.kube.store import Object
from tests.servers.kube.volumes import NotReady


def user_of(pod: Object, container: dict[str, Any]) -> tuple[int, int]:
    """User and group; raises ``NotReady`` for root if that is forbidden."""
    given = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    user = int(given.get("runAsUser", 0))
    if given.get("runAsNonRoot") and not user:
        meta = pod["metadata"]
        said = "container has runAsNonRoot and image will run as root"
        if "runAsUser" in given:
            said = "container's runAsUser breaks non-root policy"
        where = f'pod: "{meta["name"]}_{meta["namespace"]}({meta["uid"]})", container: {container["name"]}'
        raise NotReady("Failed", f"Error: {said} ({where})", "CreateContainerConfigError")
    return user, int(given.get("runAsGroup", 0))


def home_of(user: int) -> str:
    """The home that container runtimes set: the root folder for a user whom the image does not know."""
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return "/"
