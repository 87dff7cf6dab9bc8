"""A pod's volumes as folders, and its containers' environment."""

from __future__ import annotations

import base64
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from tests.servers.kube.store import Object, Store


class NotReady(Exception):
    """A resource of a pod is missing. ``reason`` is that of the event; ``state`` that of the container."""

    def __init__(self, reason: str, message: str, state: str) -> None:
        super().__init__(message)
        self.reason, self.state = reason, state


def prepare_volumes(store: Store, pod: Object, folder: Path) -> dict[str, Path]:
    """The folder of each volume, with current Secrets and ConfigMaps."""
    places = {}
    for volume in pod["spec"].get("volumes") or []:
        name = volume["name"]
        place = folder / name
        if "hostPath" in volume:
            places[name] = Path(volume["hostPath"]["path"])
            continue
        if "secret" in volume:
            _write_files(place, _files_of(store, pod, volume["secret"], "Secret", "secretName", name))
        elif "configMap" in volume:
            _write_files(place, _files_of(store, pod, volume["configMap"], "ConfigMap", "name", name))
        elif "emptyDir" not in volume:
            driver = (volume.get("csi") or {}).get("driver", "of its claim")
            text = f"driver name {driver} not found in the list of registered CSI drivers"
            raise NotReady("FailedMount", f'MountVolume.SetUp failed for volume "{name}" : {text}', "ContainerCreating")
        place.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            place.chmod(0o777)
        places[name] = place
    return places


def _files_of(
    store: Store, pod: Object, source: dict[str, Any], kind: str, key: str, volume: str
) -> dict[str, tuple[bytes, int]]:
    found = store.find(kind, pod["metadata"]["namespace"], source[key])
    if found is None:
        if source.get("optional"):
            return {}
        text = f'MountVolume.SetUp failed for volume "{volume}" : {kind.lower()} "{source[key]}" not found'
        raise NotReady("FailedMount", text, "ContainerCreating")
    data = {name: content_of(found, name) for name in found.get("data") or {}}
    mode = source["defaultMode"]
    if not source.get("items"):
        return {name: (content, mode) for name, content in data.items()}
    chosen = {}
    for item in source["items"]:
        if item["key"] not in data:
            text = f'MountVolume.SetUp failed for volume "{volume}" : references non-existent secret key: {item["key"]}'
            raise NotReady("FailedMount", text, "ContainerCreating")
        chosen[item["path"]] = (data[item["key"]], item.get("mode", mode))
    return chosen


def content_of(obj: Object, key: str) -> bytes:
    text = obj["data"][key]
    return base64.b64decode(text) if obj["kind"] == "Secret" else text.encode()


def _write_files(place: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Replace all files atomically, like a kubelet: a new folder, and a link that is moved to it."""
    link = place / "..data"
    if link.exists() and _same(link, files):
        return
    folder = place / f"..{time.time_ns()}"
    folder.mkdir(parents=True)
    for name, (content, mode) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
    before = link.resolve() if link.exists() else None
    (place / "..new").symlink_to(folder.name)
    os.replace(place / "..new", link)
    tops = {name.split("/")[0] for name in files}
    for old in [each for each in place.iterdir() if not each.name.startswith("..") and each.name not in tops]:
        old.unlink()
    for top in tops:
        if not (place / top).is_symlink():
            (place / top).symlink_to(f"..data/{top}")
    if before:
        shutil.rmtree(before)


def _same(folder: Path, files: dict[str, tuple[bytes, int]]) -> bool:
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return set(there) == set(files) and all(there[name].read_bytes() == content for name, (content, _) in files.items())


def environment(store: Store, pod: Object, container: dict[str, Any], image: dict[str, str]) -> dict[str, str]:
    """The image's variables, then the container's."""
    namespace = pod["metadata"]["namespace"]
    found = {**image, "HOSTNAME": pod["spec"].get("hostname", pod["metadata"]["name"])[:63]}
    for source in container.get("envFrom") or []:
        for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
            if key in source:
                obj = _needed(store, kind, namespace, source[key]["name"])
                prefix = source.get("prefix", "")
                found |= {f"{prefix}{name}": content_of(obj, name).decode() for name in obj.get("data") or {}}
    for each in container.get("env") or []:
        origin = each.get("valueFrom")
        if origin is None:
            found[each["name"]] = expanded(each.get("value", ""), found)
        elif "fieldRef" in origin:
            found[each["name"]] = _field(pod, origin["fieldRef"]["fieldPath"])
        else:
            key, kind = ("secretKeyRef", "Secret") if "secretKeyRef" in origin else ("configMapKeyRef", "ConfigMap")
            reference = origin[key]
            if reference.get("optional") and store.find(kind, namespace, reference["name"]) is None:
                continue
            obj = _needed(store, kind, namespace, reference["name"])
            if reference["key"] not in (obj.get("data") or {}):
                text = f"couldn't find key {reference['key']} in {kind} {namespace}/{reference['name']}"
                raise NotReady("Failed", f"Error: {text}", "CreateContainerConfigError")
            found[each["name"]] = content_of(obj, reference["key"]).decode()
    return found


def _needed(store: Store, kind: str, namespace: str, name: str) -> Object:
    found = store.find(kind, namespace, name)
    if found is None:
        raise NotReady("Failed", f'Error: {kind.lower()} "{name}" not found', "CreateContainerConfigError")
    return found


def expanded(text: str, variables: dict[str, str]) -> str:
    """Replace ``$(NAME)`` like Kubernetes: only known names; ``$$`` is a dollar sign before a bracket."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^()]*)\)", one, text)


def _field(pod: Object, path: str) -> str:
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if match:
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, "")
    return str(found)
