"""What ``config new`` writes for somebody's own storage: the answers, and the files that follow from them. Pure.

The account file holds no secret, so it belongs in git: a colleague's clone needs only ``blobsync login``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from blobsync.base.errors import UsageError
from blobsync.base.trusted_hosts import host_of
from blobsync.config.model import DEFAULT_CLUSTER
from blobsync.config.new_cluster import NewFile

# The file's name is the cluster's, and stands on command lines.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FOLDER_NAME = re.compile(r"[^/\x00-\x1f\x7f]+(?:/[^/\x00-\x1f\x7f]+)*")
_NOT_FOLDERS = (".git", ".blobsync", "aux_data")
_BLOB_HOST = ".blob."


@dataclass(frozen=True, slots=True)
class StorageAnswers:
    """Where the data is to live. ``auth`` is ``sas``, ``key`` or ``identity``; ``endpoint`` None is Azure's own;
    ``base`` is the folder of the container that holds ``folders`` and the code, empty for the container itself."""

    account: str
    container: str
    auth: str
    endpoint: str | None = None
    folders: tuple[str, ...] = ("data", "output")
    base: str = ""
    cluster: str = DEFAULT_CLUSTER


def split_account(given: str) -> tuple[str, str | None, str | None]:
    """Account name, endpoint (None: Azure's own) and container of a name or of a URL that was pasted.

    Raises ``UsageError`` for a URL with a SAS, which would be on the screen, and for one without an account.
    """
    given = given.strip()
    if "sig=" in given or "?" in given:
        raise UsageError("that contains a SAS, which is asked for later, unseen", hint="give the part before the ?")
    if "://" not in given:
        return given.lower(), None, None
    host, parts = host_of(given), urlsplit(given)
    words = [word for word in parts.path.split("/") if word]
    if host is None:
        raise UsageError(f"{given} is not a URL of a storage account", hint="https://<account>.blob.core.windows.net")
    if _BLOB_HOST in host:
        endpoint = None if host.endswith(".blob.core.windows.net") else f"{parts.scheme}://{parts.netloc}"
        return host.partition(".")[0], endpoint, words[0] if words else None
    if not words:
        raise UsageError(f"{given} does not name the account", hint=f"{given.rstrip('/')}/<account>")
    endpoint = f"{parts.scheme}://{parts.netloc}/{words[0]}"
    return words[0], endpoint, words[1] if len(words) > 1 else None


def account_file(cluster: str) -> str:
    """The name of the account file that goes with a cluster."""
    return f"aux_data/configs/{'storage' if cluster == DEFAULT_CLUSTER else cluster}.yaml"


def cluster_file(cluster: str) -> str:
    """The name of the cluster file. Raises ``UsageError`` for a name that cannot be one."""
    if not _CLUSTER_NAME.fullmatch(cluster):
        raise UsageError(f"'{cluster}' cannot be the name of a cluster", hint="letters, digits, '-', '_' and '.'")
    return f"aux_data/aml/{cluster}.yaml"


def folder_names(given: str) -> tuple[str, ...]:
    """``data, output`` as a list. Raises ``UsageError`` for what cannot be a folder entry."""
    names = tuple(dict.fromkeys(word.strip().strip("/").removeprefix("./") for word in given.split(",")))
    for name in filter(None, names):
        parts = PurePosixPath(name).parts
        if not _FOLDER_NAME.fullmatch(name) or ".." in parts or parts[0] in _NOT_FOLDERS:
            raise UsageError(f"'{name}' cannot be a folder entry", hint="folders of the project: data, output")
    if not any(names):
        raise UsageError("name at least one folder", hint="folders of the project: data, output")
    return tuple(filter(None, names))


def base_folder(given: str) -> str:
    """A folder of the container, empty for the container itself. Raises ``UsageError`` for what cannot be one."""
    path = given.strip().strip("/")
    hint = "a folder such as segmentation or teams/vision; / is the container itself"
    if path and not _FOLDER_NAME.fullmatch(path):
        raise UsageError(f"'{given}' cannot be a folder of the container", hint=hint)
    if "\\" in path or {".", ".."} & set(path.split("/")):
        raise UsageError(f"'{given}' has a part that is no name: '\\', '.' or '..'", hint=hint)
    return path


def account_values(answers: StorageAnswers) -> dict[str, Any]:
    """The account file, without any secret."""
    values = {"account_name": answers.account, "container_name": answers.container}
    if answers.endpoint:
        values["blob_endpoint"] = answers.endpoint
    return {**values, "auth": answers.auth}


def first_files(answers: StorageAnswers) -> tuple[NewFile, NewFile]:
    """The cluster file and the account file. Raises ``UsageError``."""
    account = account_file(answers.cluster)
    lead = f"{answers.base.strip('/')}/" if answers.base.strip("/") else ""

    def entry(path: str) -> dict[str, str]:
        return {"azure_blob_config_file": account, "path": f"{lead}{path}"}

    folders = {f"{name}_folder": entry(name) for name in answers.folders}
    cluster = {
        "config_param": {"code_path": entry("code/project.zip"), **folders},
        "platform": "local",
        "gpu_per_node": 1,
    }
    return (
        NewFile(
            cluster_file(answers.cluster),
            "Which blob folders belong to this project's folders, and where jobs run (platform).\n"
            "Every key: docs/configuration.md. Another cluster is another file beside this one, chosen with -c NAME.",
            cluster,
        ),
        NewFile(
            account,
            "A storage account and one container in it. No secret is here, so this file belongs in git:\n"
            f"everyone who uses it runs once: {'az login' if answers.auth == 'identity' else 'blobsync login'}",
            account_values(answers),
        ),
    )
