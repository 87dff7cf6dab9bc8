"""Projects, containers and runs of blobsync for the end-to-end tests.

Results are checked independently: contents by SHA-256, blobs with the Azure SDK, without proxies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import pytest
import urllib3
import yaml
from azure.storage.blob import (
    AccountSasPermissions,
    BlobClient,
    BlobProperties,
    BlobServiceClient,
    ContainerClient,
    ContainerSasPermissions,
    ContentSettings,
    LinearRetry,
    ResourceTypes,
    generate_account_sas,
    generate_container_sas,
)

from blobsync.jobs.context import JobContext
from blobsync.jobs.states import refresh
from tests.conftest import FOR_INSTALLERS
from tests.documents import check_output
from tests.servers.forked import Forked, can_fork
from tests.waiting import wait_until

_RUN_SECONDS = 120.0
# Whether all tests run on an account with a hierarchical namespace (servers/data_lake.py).
HAS_DIRECTORIES = FOR_INSTALLERS.get("BLOBSYNC_TEST_ACCOUNT") == "hns"
on_flat_accounts = pytest.mark.skipif(HAS_DIRECTORIES, reason="there are directories, and no versions")
# A prefix that changes nothing: the installed program starts afresh.
AS_INSTALLED = ("env",)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write each file below ``folder``, with its folders."""
    for name, data in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def read_tree(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below ``folder``, also of temporary ones."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            file = Path(at, name)
            found[str(file.relative_to(folder))] = sha256(file.read_bytes())
    return found


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """The same for files in memory."""
    return {name: sha256(data) for name, data in files.items()}


@dataclass(frozen=True)
class RandomFiles(Mapping[str, bytes]):
    """Files of random bytes, the same at each run; made when they are read, since every worker imports every module."""

    seed: int
    sizes: Mapping[str, int]

    def __getitem__(self, name: str) -> bytes:
        return random.Random(f"{self.seed}/{name}").randbytes(self.sizes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        return hashes(self)


def random_files(seed: int, small: int, large: Sequence[int] = (), *, folder_of: int = 40) -> RandomFiles:
    """``small`` files of up to 20 kB (a few empty) in folders, and one of each size in ``large`` (bytes)."""
    chance = random.Random(seed)
    sizes = {
        f"part{number // folder_of}/f{number:04}.bin": chance.choice((0, 1, 700, 4096, 20_000))
        for number in range(small)
    }
    sizes.update({f"large{number}.bin": size for number, size in enumerate(large)})
    return RandomFiles(seed, sizes)


@dataclass(frozen=True)
class Container:
    """Direct access to a container with the Azure SDK; ``service`` is ``http://127.0.0.1:port``.

    A connection that the service closes is opened again, since what is asked here may be asked twice: under load, and
    where a test cuts the connections of others, the service closes some that lie idle. Any answer counts at once.
    """

    service: str
    account: str
    key: str
    name: str

    @cached_property
    def client(self) -> ContainerClient:
        again = LinearRetry(backoff=1, retry_total=5, random_jitter_range=0, retry_status=0)
        endpoint = BlobServiceClient(f"{self.service}/{self.account}", credential=self.key, retry_policy=again)
        return endpoint.get_container_client(self.name)

    @property
    def account_file(self) -> dict[str, str]:
        """An account file with its key."""
        return {
            "account_name": self.account,
            "container_name": self.name,
            "blob_endpoint": f"{self.service}/{self.account}",
            "account_key": self.key,
        }

    def create(self) -> None:
        self.client.create_container()

    def put(self, name: str, data: bytes, *, md5: bool = True, **options: Any) -> None:
        """Upload without blobsync."""
        digest = hashlib.md5(data).digest() if md5 else b""
        if options:
            content = ContentSettings(content_md5=bytearray(digest)) if md5 else ContentSettings()
            options.setdefault("content_settings", content)
            self.client.upload_blob(name, data, overwrite=True, **options)
            return
        kept = {"x-ms-blob-content-md5": b64encode(digest).decode()} if md5 else {}
        self._ask("PUT", name, 201, data, {"x-ms-blob-type": "BlockBlob", **kept})

    def _ask(self, method: str, name: str, status: int, body: bytes = b"", headers: Mapping[str, str] = {}) -> bytes:
        """Without the SDK, which takes three times as long, where there are many blobs and nothing special."""
        url = f"{self.service}/{self.account}/{self.name}/{quote(name)}?{self._sas}"
        answer = self._pool.request(method, url, body=body, headers={"x-ms-version": "2021-12-02", **headers})
        assert answer.status == status, f"{method} {name}: {answer.status} {answer.data!r}"
        return answer.data

    @cached_property
    def _sas(self) -> str:
        return self.sas("rwd")

    @cached_property
    def _pool(self) -> urllib3.PoolManager:
        return urllib3.PoolManager(maxsize=8, retries=urllib3.Retry(5, backoff_factor=0.2, allowed_methods=None))

    def blob(self, name: str) -> BlobClient:
        return self.client.get_blob_client(name)

    def get(self, name: str) -> bytes:
        return self.blob(name).download_blob().readall()

    def names(self, prefix: str = "", *, uncommitted: bool = False) -> list[str]:
        """Every blob's name; with ``uncommitted`` also those of uncommitted blocks."""
        return [blob.name for blob in self.listed(prefix, uncommitted=uncommitted)]

    def listed(self, prefix: str = "", *, uncommitted: bool = False) -> Iterator[BlobProperties]:
        """The blobs, directories left out."""
        include = [*(["uncommittedblobs"] if uncommitted else []), *(["metadata"] if HAS_DIRECTORIES else [])]
        blobs = self.client.list_blobs(name_starts_with=prefix, include=include)
        return (blob for blob in blobs if not HAS_DIRECTORIES or "hdi_isfolder" not in (blob.metadata or {}))

    def contents(self, prefix: str = "") -> dict[str, str]:
        """Name below ``prefix`` -> SHA-256 of the blob's content."""
        return {name[len(prefix) :]: sha256(self._ask("GET", name, 200)) for name in self.names(prefix)}

    def sas(self, rights: str = "rwdl", *, hours: float = 2.0) -> str:
        """A service SAS for this container."""
        return generate_container_sas(
            self.account,
            self.name,
            account_key=self.key,
            permission=ContainerSasPermissions.from_string(rights),
            start=datetime.now(timezone.utc) - timedelta(hours=24),
            expiry=datetime.now(timezone.utc) + timedelta(hours=hours),
        )

    def account_sas(self, rights: str = "rwdlac") -> str:
        """A SAS for the whole account."""
        return generate_account_sas(
            self.account,
            self.key,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions.from_string(rights),  # type: ignore[no-untyped-call]
            datetime.now(timezone.utc) + timedelta(hours=2),
        )


@dataclass(frozen=True)
class Done:
    """The result of a run of blobsync."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float

    @cached_property
    def document(self) -> dict[str, Any]:
        """The JSON document of a run with ``--json``."""
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def data(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.document["data"])

    @property
    def errors(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.document["errors"])

    @property
    def codes(self) -> set[str]:
        """The codes of all errors."""
        return {each["code"] for each in self.errors}

    def named(self) -> set[str]:
        """The paths in errors and conflicts."""
        return {each["path"] for each in self.errors if each.get("path")}

    def __str__(self) -> str:
        return f"{' '.join(self.argv)}\n-> {self.code} after {self.seconds:.1f} s\n{self.out}\n{self.err}"


@dataclass
class Project:
    """A directory with ``aux_data/`` in which blobsync runs."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()

    def configure(
        self,
        container: Container,
        *,
        cluster: str = "aml",
        url: str | None = None,
        path: str = "data",
        sas: str | None = None,
        key: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Map ``data`` of a cluster to ``path`` in ``container``, at ``url`` (default: without a proxy)."""
        account: dict[str, Any] = {
            "account_name": container.account,
            "container_name": container.name,
            "blob_endpoint": f"{url or container.service}/{container.account}",
        }
        if sas:
            account["sas_token"] = sas
        elif key:
            account["account_key"] = container.key
        file = f"aux_data/configs/{cluster}.yaml"
        self._write(file, account)
        entries = {"data_folder": {"azure_blob_config_file": file, "path": path}}
        self._write(f"aux_data/aml/{cluster}.yaml", {"config_param": entries, **(extra or {})})

    def _write(self, name: str, value: Mapping[str, Any]) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        # At once: a command that runs may read it at any moment.
        new = file.with_name(f".{file.name}.new")
        new.write_text(yaml.safe_dump(dict(value)))
        new.chmod(0o600)
        new.replace(file)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def state(self) -> Path:
        """blobsync's state folder of this project."""
        (found,) = (self.root / ".blobsync").glob("state-*")
        return found

    def unfinished(self, statement: str) -> list[tuple[Any, ...]]:
        """What is found in ``unfinished.sqlite``, or what a statement does to it; nothing while it is being made."""
        for file in (self.root / ".blobsync").glob("state-*/unfinished.sqlite"):
            with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(file)) as db, db:
                return db.execute(statement).fetchall()
        return []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start blobsync in a session of its own; the caller waits for it.

        With something ``before`` it that is not setpriv, or another Python, linker or locale, the installed program;
        else a fork.
        """
        command = [blobsync_command(), *words]
        environ = {**os.environ, **self.environ}
        if can_fork(environ, self.before):
            return Forked(command, folder=self.root, environ=environ, before=self.before)
        return subprocess.Popen(
            [*self.before, *command],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str], *, seconds: float = _RUN_SECONDS) -> Done:
        """Wait for a started run; fails after ``seconds``."""
        started = time.monotonic()
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            kill_tree(process.pid)
            out, err = process.communicate()
            raise AssertionError(f"{process.args!r} did not end within {seconds} s\n{out}\n{err}") from error
        if process.returncode >= 0:
            # A killed run may have written half a document.
            check_output(out)
        words = cast("Sequence[str]", process.args)
        return Done(tuple(words), process.returncode, out, err, time.monotonic() - started)

    def run(self, *words: str, seconds: float = _RUN_SECONDS) -> Done:
        """Run blobsync."""
        return self.finish(self.start(*words), seconds=seconds)

    def json(self, *words: str, seconds: float = _RUN_SECONDS) -> Done:
        """Run blobsync with ``--json``."""
        return self.run(*words, "--json", seconds=seconds)


@dataclass
class JobLab:
    """A project, and commands about its jobs.

    ``pause`` is between two looks at a job elsewhere (seconds): each may start programs.
    """

    pause = 0.1
    project: Project

    def write(self, name: str, value: Any) -> None:
        """Write a configuration file: a text, or JSON or YAML."""
        file = self.project.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        plain = json.dumps(value, indent=1) if name.endswith(".json") else yaml.safe_dump(value)
        file.write_text(value if isinstance(value, str) else plain)
        file.chmod(0o600)

    def run(self, *words: str, code: int = 0) -> Done:
        done = self.project.run(*words)
        assert done.code == code, str(done)
        return done

    def ask(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The data of a command's JSON; global options are before the command."""
        return self.run("--json", *words, code=code).data

    def job(self, job_id: str) -> dict[str, Any]:
        """One row of the list, without fetching logs."""
        return next(job for job in self.ask("q", "--max", "100")["jobs"] if job["job_id"] == job_id)

    def detail(self, job_id: str) -> dict[str, Any]:
        jobs: list[dict[str, Any]] = self.ask("q", job_id)["jobs"]
        return jobs[0]

    @property
    def board(self) -> JobContext:
        """The library's jobs: faster than a process for each query."""
        return JobContext(self.project.root, {**os.environ, **self.project.environ})

    def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """Wait for one of these states, or the end; returns the job's row."""
        board, wanted = self.board, states or ("Completed", "Failed", "Canceled")
        pause = 0.1 if board.history.find(job_id).backend == "local" else self.pause

        def there() -> bool:
            return refresh(board, [board.history.find(job_id)]).records[0].info.state.value in wanted

        assert wait_until(there, pause=pause), self.run("q", job_id)
        return self.job(job_id)


def as_ordinary_user() -> tuple[str, ...]:
    """A prefix for a command so that permissions apply to it, also if the tests run as root."""
    if os.geteuid() != 0:
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("as root, permissions do not hold without setpriv (util-linux)")
    return ("setpriv", "--bounding-set=-dac_override,-dac_read_search")


def blobsync_command() -> str:
    """The ``blobsync`` installed beside the tests' Python."""
    return str(Path(sys.executable).with_name("blobsync"))


def check_exact_or_honest(
    done: Done,
    expected: Mapping[str, str],
    actual: Mapping[str, str],
    *,
    before: Mapping[str, str] | None = None,
) -> None:
    """Check that a transfer has exit code 0 and all files are equal, or each other file is named and not half there."""
    wrong = {name for name in expected if actual.get(name) != expected[name]}
    strange = set(actual) - set(expected) - set(before or {})
    assert not strange, f"files that nobody asked for: {sorted(strange)[:5]}\n{done}"
    if done.code == 0:
        assert not wrong, f"exit 0, but wrong: {sorted(wrong)[:5]}\n{done}"
        return
    assert done.code in (1, 3), str(done)
    damaged = {name for name in wrong if actual.get(name) not in (None, (before or {}).get(name))}
    assert not damaged, f"damaged under a final name: {sorted(damaged)[:5]}\n{done}"
    unnamed = {name for name in wrong if f"data/{name}" not in done.named()}
    assert not unnamed, f"exit {done.code} without naming {sorted(unnamed)[:5]}\n{done}"


def processes(root: int, name: str = "") -> list[int]:
    """Running descendants of a process whose program is ``name`` (empty: any)."""
    parents: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path("/proc", entry, "stat").read_text()
                program, _, rest = stat.partition("(")[2].rpartition(")")
                fields = rest.split()
                if fields[0] != "Z":
                    parents.setdefault(int(fields[1]), []).append((int(entry), program))
    found: list[int] = []
    below = [root]
    while below:
        for pid, program in parents.get(below.pop(), []):
            below.append(pid)
            if name in program:
                found.append(pid)
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants with SIGKILL."""
    for each in [*processes(pid), pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def command_lines(pid: int) -> set[str]:
    """The command lines of a process and its descendants, which all users can see with ``ps``."""
    found = set()
    for each in [pid, *processes(pid)]:
        with contextlib.suppress(OSError):
            found.add(Path("/proc", str(each), "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


def every_text_below(*folders: Path) -> Iterable[tuple[Path, bytes]]:
    """All files of all folders with their bytes: logs, plans, indexes, receipts."""
    for folder in folders:
        for at, _, names in os.walk(folder):
            for name in names:
                file = Path(at, name)
                with contextlib.suppress(OSError):
                    yield file, file.read_bytes()
