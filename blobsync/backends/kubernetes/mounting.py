"""Folders that the cluster's Blob CSI driver mounts. Pure. Checked against the schemas only, never against a driver.

https://github.com/kubernetes-sigs/blob-csi-driver
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from blobsync.base.errors import ConfigError
from blobsync.jobspec.spec import FolderLink, JobSpec

_MODES = ("mount", "ro_mount")
MOUNTED_AT = "/blobsync/mounts"
_PUBLIC_SUFFIX = "core.windows.net"


@dataclass(frozen=True, slots=True)
class Mount:
    """One container: the name of its objects, the account, the container's own name, and where pods see it."""

    name: str
    container: str
    account: str
    box: str
    path: str
    read_only: bool
    options: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)


def find_mounts(spec: JobSpec, name: str, namespace: str) -> tuple[Mount, ...]:
    """One for each container with folders to mount. Raises ``ConfigError`` for what the driver cannot mount."""
    containers = _containers(spec)
    if containers and not namespace:
        raise ConfigError(
            "is missing: the driver finds the secret of a mount by its namespace",
            key="kubernetes.namespace",
            hint="kubernetes: {namespace: default}, or mode: download",
        )
    names = mount_names(spec, name)
    return tuple(_mount(spec, names[number], number, container) for number, container in enumerate(containers))


def mount_names(spec: JobSpec, name: str) -> tuple[str, ...]:
    """What the volume, claim and Secret of each mount are called; ``name`` is that of the job's other objects."""
    return tuple(f"{name}-{number}" for number in range(len(_containers(spec))))


def _containers(spec: JobSpec) -> tuple[str, ...]:
    """Those with folders to mount, each with a volume of its own."""
    return tuple(dict.fromkeys(folder.container for folder in spec.folders if folder.mode in _MODES))


def _mount(spec: JobSpec, name: str, number: int, container: str) -> Mount:
    folders = [folder for folder in spec.folders if folder.container == container and folder.mode in _MODES]
    host, _, box = (urlsplit(container).hostname or ""), "", urlsplit(container).path.strip("/")
    account, dot, suffix = host.partition(".blob.")
    if not dot or "/" in box:
        raise ConfigError(
            f"{container} cannot be mounted: the Blob CSI driver takes accounts of Azure only",
            key=f"config_param.{folders[0].name}_folder",
            hint="mode: download, or mode: upload",
        )
    seconds = next((folder.cache_seconds for folder in folders if folder.cache_seconds is not None), None)
    options = ["-o allow_other", "--virtual-directory=true"]
    options += [f"--file-cache-timeout-in-seconds={seconds}"] if seconds is not None else []
    options += [word for folder in folders for word in folder.fuse_options if word not in options]
    read_only = all(folder.mode == "ro_mount" for folder in folders)
    options += ["-o ro"] if read_only else []
    other = {"storageEndpointSuffix": suffix} if suffix != _PUBLIC_SUFFIX else {}
    attributes = {"storageAccount": account, **other}
    return Mount(name, container, account, box, f"{MOUNTED_AT}/{number}", read_only, tuple(options), attributes)


def on_node(spec: JobSpec, mounts: Sequence[Mount]) -> JobSpec:
    """The specification as the node sees it: what is mounted is there already."""
    places = {mount.container: mount.path for mount in mounts}

    def placed(folder: FolderLink) -> FolderLink:
        if folder.mode not in _MODES:
            return folder
        path = f"{places[folder.container]}/{folder.path}".rstrip("/")
        if folder.include:
            return replace(folder, mode="download", container=f"mounted:{path}", path="")
        return replace(folder, mode="link", source=path, read_only=folder.mode == "ro_mount")

    return replace(spec, folders=tuple(map(placed, spec.folders)))
