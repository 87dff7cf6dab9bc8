"""``config new``: writes the first files of a project, with every line explained.

The files either work at once (``emulator``: with ``blobsync emulator start``; or with the answers about the user's own
storage) or contain placeholders in angle brackets, which ``config check`` reports. An account file holds no secret, so
it belongs in git: a colleague's clone needs only ``blobsync login``. ``convert`` writes its files through this module.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import yaml

from blobsync.base.errors import LocalFileError, UsageError
from blobsync.base.plain_json import plain
from blobsync.base.records import dataclass
from blobsync.base.redaction import Secret, redact_answer
from blobsync.base.trusted_hosts import host_of
from blobsync.base.user_folders import environment, replace_file
from blobsync.config.model import DEFAULT_CLUSTER, EMULATOR_ACCOUNT
from blobsync.config.project_root import PROJECT_MARK, demand_own


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file of the project to write; with ``is_private`` only its owner can read it."""

    name: str
    comment: str
    values: Mapping[str, Any] = field(repr=False)
    is_private: bool = False

    @property
    def text(self) -> str:
        """The whole content."""
        body = yaml.safe_dump(plain(self.values), sort_keys=False, allow_unicode=True, width=110)
        return "".join(f"# {line}\n" for line in self.comment.splitlines()) + body


EMULATOR_CONTAINER = "demo"
# An endpoint of the emulator, with the rest of its line before and after it.
_ENDPOINT = re.compile(rf"(?m)^(blob_endpoint:[ \t]*['\"]?)http://127\.0\.0\.1:\d+/{EMULATOR_ACCOUNT}(?![^\s'\"])(.*)$")

_CLUSTER = """\
# One cluster: which blob folders belong to this project's folders, and where jobs run.
# Every key: docs/configuration.md. Another cluster is another file beside this one, chosen with -c NAME.
config_param:
  # where `blobsync init` puts the code
  code_path:
    azure_blob_config_file: {account}
    path: {code}
  # data/... here is {base}/data/... in the container: `blobsync u data/voc20`, `blobsync d data/voc20`
  data_folder:
    azure_blob_config_file: {account}
    path: {data}
  output_folder:
    azure_blob_config_file: {account}
    path: {output}

# where `blobsync submit` runs a command: local, slurm, kubernetes, aml, itp or singularity
platform: local
gpu_per_node: 1
# true: once per GPU; false: once per node
multi_process: true
# environment variables of every job
env:
  NCCL_IB_DISABLE: '0'
# what `blobsync init` leaves out, besides what .gitignore names
ignore:
  - '*.ckpt'
"""

_ACCOUNT = """\
# A storage account and one container in it. This file may hold a key: keep it out of git (see .gitignore)
# and readable for you alone (chmod 600).
account_name: <your storage account>
container_name: <your container>
# One of the two, or neither to sign in with your Azure login (az login, managed identity):
# sas_token: '?sv=...'
# account_key: ${AZURE_STORAGE_KEY}
"""

_EMULATOR_ACCOUNT = """\
# The emulator of `blobsync emulator start` on this machine. The key is your own emulator's and opens nothing else.
account_name: {name}
container_name: {container}
account_key: {key}
blob_endpoint: {endpoint}
"""

_RECORDS = """\
# blobsync's records of this machine
.blobsync/
"""
_DATA = """\
# data, results and job logs are stored in blobs
"""
_ACCOUNTS = "aux_data/configs/"


@dataclass(frozen=True, slots=True)
class EmulatorAccount:
    """The endpoint of the account in the user's emulator, and the account's key."""

    endpoint: str
    key: Secret


@dataclass(frozen=True, slots=True)
class NewFiles:
    """What ``config new`` did, as paths relative to the project."""

    written: tuple[str, ...]
    kept: tuple[str, ...]


def new_project(
    root: Path,
    *,
    emulator: EmulatorAccount | None = None,
    cluster: str = DEFAULT_CLUSTER,
    environ: Mapping[str, str] | None = None,
) -> NewFiles:
    """Write the example files of a cluster that are missing; never changes an existing one.

    Raises ``UsageError`` for a name that no cluster can have, ``LocalFileError``, and ``ForeignProjectError`` if
    ``aux_data/`` belongs to another user.
    """
    examples = example_files(emulator, _blob_folder(root), cluster)
    for name, *_ in examples:
        _refuse_link(root, name)
    secret = _secret_lines(root, cluster)
    ignores = ignore_data(root, ("data", "output"), environment(environ), secret)
    written: list[str] = []
    kept: list[str] = []
    for name, text, mode in examples:
        if os.path.lexists(root / name):
            kept.append(name)
        else:
            _write_new(root, name, text, mode)
            written.append(name)
    (written if ignores else kept).append(".gitignore")
    return NewFiles(tuple(written), tuple(kept))


def _secret_lines(root: Path, cluster: str) -> str:
    """What git must not take: the account files, or only the new one beside such as hold no secret and are in git."""
    from blobsync.config.account_files import account_file_names, files_for_login  # late: they read files

    there = set(account_file_names(root))
    if there - set(files_for_login(root, {})) or not there:
        return f"# keys and passwords\n{_ACCOUNTS}\n"
    new = account_file(cluster)
    return "" if new in there or leaves_out_accounts(root) else f"# a key or password\n/{new}\n"


def leaves_out_accounts(root: Path) -> bool:
    """Whether the project's ``.gitignore`` has the line for all account files."""
    try:
        return _ACCOUNTS in (root / ".gitignore").read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return False


def demand_new(root: Path, names: Iterable[str], hint: str) -> None:
    """Raise ``UsageError`` if one of them exists, ``LocalFileError`` for one behind a link out of the project."""
    for name in names:
        _refuse_link(root, name)
        if os.path.lexists(root / name):
            raise UsageError(f"{name} exists already", hint=hint)


def ignore_data(root: Path, folders: Sequence[str], environ: Mapping[str, str], secret: str = "") -> bool:
    """Add the data, blobsync's records and the lines ``secret`` to the project's ``.gitignore``; True if that changed.

    Raises ``LocalFileError``, and ``ForeignProjectError`` if ``aux_data/`` belongs to another user.
    """
    if (root / PROJECT_MARK).is_dir():
        demand_own(root, environ)
    _refuse_link(root, ".gitignore")
    names = "".join(f"/{name}/\n" for name in (*folders, "assets"))
    try:
        return _add_ignore_lines(root / ".gitignore", secret + _RECORDS + _DATA + names)
    except OSError as error:
        raise LocalFileError(f"cannot write {error.filename}: {error.strerror}") from error


def write_files(root: Path, files: Sequence[NewFile]) -> None:
    """Write all of them. Raises ``UsageError`` before anything is written if one exists, ``LocalFileError`` later."""
    demand_new(root, [file.name for file in files], "choose another name: --name NAME")
    for file in files:
        _write_new(root, file.name, file.text, 0o600 if file.is_private else 0o644)


def _write_new(root: Path, name: str, text: str, mode: int) -> None:
    path = root / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with open(os.open(path, flags, mode), "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise LocalFileError(f"cannot write {name}: {error.strerror}", path=name) from error


def _refuse_link(root: Path, name: str) -> None:
    """Refuse a link: a project from elsewhere may have one to any of the user's files in place of one of these."""
    real, inside = os.path.realpath(root / name), os.path.realpath(root)
    if not real.startswith(inside.rstrip("/") + "/"):
        raise LocalFileError(
            f"{name} would be written through a link that points outside the project, to {real}",
            hint=f"remove the link: {root / name}, or the folder above it that is one",
            path=name,
        )


def example_files(
    emulator: EmulatorAccount | None = None, folder: str = "demo", cluster: str = DEFAULT_CLUSTER
) -> tuple[tuple[str, str, int], ...]:
    """Name, text and permissions of each example, without ``.gitignore``.

    ``folder`` is where the project lives in the emulator's container, which all projects of the user share; another
    cluster of the project has a folder of its own beside it.
    """
    beside = folder if cluster == DEFAULT_CLUSTER else f"{folder}-{cluster}"
    base = beside if emulator else "<your folder in the container>"
    account = _ACCOUNT
    if emulator:
        account = _EMULATOR_ACCOUNT.format(
            name=EMULATOR_ACCOUNT,
            container=EMULATOR_CONTAINER,
            key=emulator.key.reveal(),
            endpoint=emulator.endpoint,
        )
    paths = {"code": "code/project.zip", "data": "data", "output": "output"}
    places = {name: _yaml_text(f"{base}/{path}") for name, path in paths.items()}
    return (
        (cluster_file(cluster), _CLUSTER.format(base=base, account=account_file(cluster), **places), 0o644),
        (account_file(cluster), account, 0o600),
    )


def _blob_folder(root: Path) -> str:
    """The name of the project's folder, as far as it can be one in a container."""
    name = re.sub(r"[\x00-\x1f\x7f\\<>\ud800-\udfff]", "_", root.resolve().name).strip()
    return name.rstrip(".") or "demo"


def _yaml_text(text: str) -> str:
    """Format a YAML value; quoted if it would be something other than a string."""
    return text if re.fullmatch(r"[\w<][\w .>/-]*", text) else json.dumps(text, ensure_ascii=False)


def follow_emulator(root: Path, emulator: EmulatorAccount, names: Iterable[str]) -> tuple[str, ...]:
    """Write the emulator's endpoint into those account files ``names`` that hold its key and name another port.

    Returns their names. Raises ``LocalFileError``.
    """
    changed = []
    for name in names:
        path = root / name
        try:
            text = path.read_text(encoding="utf-8")
            new = _ENDPOINT.sub(lambda found: found[1] + emulator.endpoint + found[2], text)
            if emulator.key.reveal() not in text or new == text:
                continue
            _refuse_link(root, name)
            replace_file(path, new.encode(), path.stat().st_mode & 0o777)
        except (OSError, UnicodeDecodeError) as error:
            raise LocalFileError(f"cannot write the emulator's port into {name}: {error}", path=name) from error
        changed.append(name)
    return tuple(changed)


def _add_ignore_lines(path: Path, wanted_lines: str) -> bool:
    """Append the missing lines; True if the file changed."""
    old = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    present = set(old.splitlines())
    wanted = [line for line in wanted_lines.splitlines() if not line.startswith("#")]
    if present.issuperset(wanted):
        return False
    lines = [line for line in wanted_lines.splitlines() if line not in present]
    gap = "" if not old or old.endswith("\n") else "\n"
    path.write_text(old + gap + "\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    return True


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


def _demand_no_secret(given: str) -> None:
    """Raise ``UsageError`` for a credential that was pasted too early: these files are for git."""
    if redact_answer(given) != given:
        raise UsageError("that looks like a credential, which is asked for later, unseen", hint="paste it there")


def folder_names(given: str) -> tuple[str, ...]:
    """``data, output`` as a list. Raises ``UsageError`` for what cannot be a folder entry."""
    _demand_no_secret(given)
    names = tuple(dict.fromkeys(word.strip().rstrip("/").removeprefix("./") for word in given.split(",")))
    for name in filter(None, names):
        if name[0] in "/~":
            raise UsageError(f"'{name}' is not a path inside the project", hint="folders of the project: data, output")
        parts = PurePosixPath(name).parts
        if not _FOLDER_NAME.fullmatch(name) or ".." in parts or "\\" in name or parts[0] in _NOT_FOLDERS:
            raise UsageError(f"'{name}' cannot be a folder entry", hint="folders of the project: data, output")
    if not any(names):
        raise UsageError("name at least one folder", hint="folders of the project: data, output")
    return tuple(filter(None, names))


def base_folder(given: str) -> str:
    """A folder of the container, empty for the container itself. Raises ``UsageError`` for what cannot be one."""
    _demand_no_secret(given)
    path = given.strip().strip("/")
    hint = "a folder such as segmentation or teams/vision; / is the container itself"
    if path and not _FOLDER_NAME.fullmatch(path):
        raise UsageError(f"'{given}' cannot be a folder of the container", hint=hint)
    if "\\" in path or {".", ".."} & set(path.split("/")):
        raise UsageError(f"'{given}' has a part that is not a name: '\\', '.' or '..'", hint=hint)
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
            "Which blob folders belong to this project's folders, and where jobs run.\n"
            "Every key: docs/configuration.md. Another cluster is another file beside\n"
            "this one, chosen with -c NAME.",
            cluster,
        ),
        NewFile(
            account,
            "A storage account and one container in it. No secret is here, so this file\n"
            "belongs in git. Everyone who uses it runs once: "
            + ("az login" if answers.auth == "identity" else "blobsync login"),
            account_values(answers),
        ),
    )
