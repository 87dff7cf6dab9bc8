"""Behaviour of the real azcopy that blobsync relies on, against Azurite; each test runs it once or twice."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob import ContainerClient, ContainerSasPermissions, ContentSettings, generate_container_sas

from blobsync.azcopy.engine import AzcopyEngine, SasForEnd
from blobsync.azcopy.run_folders import prune_workspaces
from blobsync.base.file_states import LocalState, RemoteState
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import StorageAccount
from blobsync.store.connect import connect
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import BlobStore
from blobsync.store.sas import mint_sas
from blobsync.transfer.engines import CollectedReport, MoveTask
from tests.conftest import ROOT, Azurite
from tests.contract.test_engines import LARGE, NAMES, content, run, succeed, write_tree
from tests.fakes.tasks import capped, copy, ctrl_c_after, download, moved_by, upload
from tests.servers.copy_source_proxy import Refusal, copy_source_proxy
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024

# azcopy's temporary names leave no room for the longest names; another engine moves those.
CARRIED = [
    *(name for name in NAMES if len(name.encode()) < 207 or "/" in name),
    "n" * 206,
    "zero",
    "trail.",
    "semi;colon",
]


class Containers:
    """A new container in both accounts; azcopy gets a SAS made with the account's key."""

    def __init__(self, azurite: Azurite, name: str) -> None:
        self._azurite = azurite
        self.name = name
        self._accounts: dict[object, StorageAccount] = {}
        self.clients = {account: self._create(account) for account in ("one", "two")}

    def _create(self, account: str) -> ContainerClient:
        endpoint = self._azurite.endpoint(account)
        client = ContainerClient(endpoint, self.name, credential=self._azurite.keys[account])
        client.create_container()
        return client

    def store(self, account: str, url: str | None = None, container: str | None = None) -> BlobStore:
        endpoint = f"{url or self._azurite.url}/{account}"
        key = Secret(self._azurite.keys[account])
        known = StorageAccount("test.yaml", account, container or self.name, endpoint, account_key=key)
        self._accounts[known.container] = known
        return connect(known)

    def mint(self, end: OpenBlob, rights: str) -> SasToken:
        return mint_sas(self._accounts[end.store.container], rights, 3600)

    def sas(self, rights: str, *, hours: int = 1, signed_by: str = "one") -> SasForEnd:
        """A fixed SAS for account one."""
        text = generate_container_sas(
            "one",
            self.name,
            account_key=self._azurite.keys[signed_by],
            permission=ContainerSasPermissions.from_string(rights),
            expiry=datetime.now(timezone.utc) + timedelta(hours=hours),
        )
        return lambda end, wanted: SasToken.parse(text)

    def md5s(self, account: str, prefix: str) -> dict[str, bytes]:
        """Name below ``prefix`` -> Content-MD5, from the SDK."""
        return {
            blob.name.removeprefix(f"{prefix}/"): bytes(blob.content_settings.content_md5 or b"")
            for blob in self.clients[account].list_blobs(name_starts_with=f"{prefix}/")
        }


class Noting:
    """A process that notes how long it was waited for after it was asked to cancel."""

    def __init__(self, process: RunningProcess, waited: list[float]) -> None:
        self._process, self._waited = process, waited
        self._asked: float | None = None

    def send_line(self, text: str) -> None:
        if text == "cancel":
            self._asked = time.monotonic()
        self._process.send_line(text)

    def stop(self) -> int:
        if self._asked is not None:
            self._waited.append(time.monotonic() - self._asked)
            self._asked = None
        return self._process.stop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


class Recorder(ProcessRunner):
    """The real runner, which records the processes and command lines, and ``waited``: see :class:`Noting`."""

    def __init__(self) -> None:
        super().__init__(terminate_after=0.3, kill_after=0.3)
        self.started: list[RunningProcess] = []
        self.argv: list[Sequence[str]] = []
        self.waited: list[float] = []

    def start(self, argv: Sequence[str], **more: object) -> Any:
        self.argv.append(argv)
        self.started.append(super().start(argv, **more))  # type: ignore[arg-type]
        return Noting(self.started[-1], self.waited)

    def assert_nothing_runs(self) -> None:
        for process in self.started:
            with pytest.raises(ProcessLookupError):
                os.kill(process.pid, 0)


@pytest.fixture
def containers(azurite: Azurite, request: pytest.FixtureRequest) -> Containers:
    digest = hashlib.sha256(f"{request.node.nodeid}{os.getpid()}{time.time()}".encode()).hexdigest()
    return Containers(azurite, f"azcopy{digest[:12]}")


@pytest.fixture
def runner() -> Iterator[Recorder]:
    recorder = Recorder()
    yield recorder
    recorder.assert_nothing_runs()


@pytest.fixture
def engine(containers: Containers, azcopy_path: Path, tmp_path: Path, runner: ProcessRunner) -> AzcopyEngine:
    return AzcopyEngine(tmp_path / "state", containers.mint, os.environ, runner, azcopy_path)


def whole(task: MoveTask) -> MoveTask:
    return task._replace(whole_folder=True)


def tree(root: Path, names: Sequence[str]) -> dict[str, bytes]:
    files = {name: b"" if name == "zero" else content(1000 + number) for number, name in enumerate(names)}
    write_tree(root, files)
    return files


def files_below(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def codes(report: CollectedReport) -> set[str]:
    assert not report.moved
    return {failure.code for _, failure in report.failed}


def assert_state_is_clean(engine: AzcopyEngine, *, logs: bool = False) -> None:
    left = {path.name for path in (engine.state_dir / "azcopy").glob("*")}
    assert left == ({"logs"} if logs else set())


def test_every_name_goes_there_and_back(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    source = tmp_path / "so*urce dir"
    files = tree(source, CARRIED)
    write_tree(source, {"not in the plan": b"stays here", "sub/neither": b"stays here"})
    store = containers.store("one")
    report = succeed(engine, upload(source, store, "up/x", CARRIED))
    assert containers.md5s("one", "up/x") == {name: hashlib.md5(body).digest() for name, body in files.items()}
    for moved in report.moved:
        assert isinstance(moved.source, LocalState)
        assert moved.source.md5 == hashlib.md5(files[moved.action.path]).digest()
        assert moved.destination is None
    assert len(report.azcopy_job_ids) == 1

    target = tmp_path / "target"
    containers.clients["one"].upload_blob("up/x2/sibling", b"not asked for")
    containers.clients["one"].upload_blob("up/x/stub", b"", metadata={"hdi_isfolder": "true"})
    report = succeed(engine, whole(download(store, "up/x", target, CARRIED)))
    assert files_below(target) == files
    for moved in report.moved:
        assert isinstance(moved.destination, LocalState)
        assert moved.destination.same_file(LocalState.of((target / moved.action.path).stat()))
        assert isinstance(moved.source, RemoteState)
        assert moved.source.md5 == moved.destination.md5
    assert_state_is_clean(engine)


def test_sizes_and_single_files(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    sizes = (0, 1, 4 * MIB, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, LARGE)
    files = {f"s{size}": content(size) for size in sizes}
    write_tree(tmp_path / "source", files)
    store = containers.store("one")
    succeed(engine, upload(tmp_path / "source", store, "sizes"))
    assert containers.md5s("one", "sizes") == {name: hashlib.md5(body).digest() for name, body in files.items()}
    succeed(engine, whole(download(store, "sizes", tmp_path / "target", sorted(files))))
    assert files_below(tmp_path / "target") == files

    succeed(engine, upload(tmp_path / "source" / f"s{LARGE}", store, "one/file*?.bin", [""]))
    assert containers.clients["one"].download_blob("one/file*?.bin").readall() == files[f"s{LARGE}"]
    succeed(engine, download(store, "one/file*?.bin", tmp_path / "back.bin", [""]))
    assert (tmp_path / "back.bin").read_bytes() == files[f"s{LARGE}"]
    assert_state_is_clean(engine)


def test_part_of_a_folder(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    """A list of files, for few and large ones; small ones are left to another engine."""
    files = {"a/large*;": content(9 * MIB), "é #?%41": content(8 * MIB), "small": b"small"}
    write_tree(tmp_path / "source", files)
    store = containers.store("one")
    succeed(engine, upload(tmp_path / "source", store, "x"))
    large = [name for name in files if name != "small"]
    succeed(engine, download(store, "x", tmp_path / "target", large))
    assert files_below(tmp_path / "target") == {name: files[name] for name in large}
    assert codes(run(engine, download(store, "x", tmp_path / "target", ["small"]))) == {"azcopy_cannot_carry"}
    assert not (tmp_path / "target" / "small").exists()


def test_targets_and_present_files(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    """--keep both writes under another name; a file that changed since it was checked is left alone."""
    store = containers.store("one")
    for name in ("both", "changed", "good"):
        containers.clients["one"].upload_blob(
            f"x/{name}", f"remote {name}".encode(), content_settings=ContentSettings()
        )
    target = tmp_path / "target"
    write_tree(target, {"both": b"mine", "changed": b"as planned", "good": b"old"})
    (target / "good").chmod(0o600)
    task = whole(download(store, "x", target, ["both", "changed", "good"]))
    actions = [each._replace(target="both.remote") if each.path == "both" else each for each in task.actions]
    (target / "changed").write_bytes(b"edited meanwhile")
    report = run(engine, task._replace(actions=actions))
    assert [(action.path, failure.code) for action, failure in report.failed] == [("changed", "changed_meanwhile")]
    assert files_below(target) == {
        "both": b"mine",
        "both.remote": b"remote both",
        "changed": b"edited meanwhile",
        "good": b"remote good",
    }
    assert (target / "good").stat().st_mode & 0o777 == 0o600


def test_what_is_not_as_planned_never_gets_its_name(
    engine: AzcopyEngine, containers: Containers, tmp_path: Path
) -> None:
    """A blob with a wrong MD5, one that changed after the survey, and one that is gone."""
    client, store = containers.clients["one"], containers.store("one")
    for name in ("damaged", "replaced", "gone", "good"):
        client.upload_blob(f"x/{name}", f"first {name}".encode())
    client.get_blob_client("x/damaged").set_http_headers(ContentSettings(content_md5=bytearray(16)))
    target = tmp_path / "target"
    write_tree(target, {"damaged": b"mine"})
    task = whole(download(store, "x", target, ["damaged", "replaced", "gone", "good"]))
    client.upload_blob("x/replaced", b"other replaced"[:14], overwrite=True)
    client.delete_blob("x/gone")
    report = run(engine, task)
    assert {action.path: failure.code for action, failure in report.failed} == {
        "damaged": "checksum_mismatch",
        "replaced": "changed_while_read",
        "gone": "changed_while_read",
    }
    assert files_below(target) == {"damaged": b"mine", "good": b"first good"}
    assert_state_is_clean(engine, logs=True)


def test_sources_that_changed(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    files = tree(tmp_path / "source", ["edited", "gone", "locked", "good"])
    task = upload(tmp_path / "source", containers.store("one"), "x", sorted(files))
    (tmp_path / "source" / "edited").write_bytes(b"longer than before" * 100)
    (tmp_path / "source" / "gone").unlink()
    report = run(engine, task)
    found = {action.path: failure.code for action, failure in report.failed}
    assert found == {"edited": "changed_while_read", "gone": "local_file"}


@pytest.mark.parametrize(
    ("refused", "code"),
    [("expired", "sas_expired"), ("rights", "access_denied"), ("container", "container_not_found")],
)
def test_refused_uploads(engine: AzcopyEngine, containers: Containers, tmp_path: Path, refused: str, code: str) -> None:
    tree(tmp_path / "source", ["a", "b"])
    task = upload(tmp_path / "source", containers.store("one"), "x")
    if refused == "expired":
        engine.mint = containers.sas("rw", hours=-1)
    elif refused == "rights":
        engine.mint = containers.sas("r")
    else:
        missing = containers.store("one", container=f"{containers.name}-missing")
        task = task._replace(part=replace(task.part, destination=OpenBlob(missing, "x")))
    assert codes(run(engine, task)) == {code}
    logs = "".join(path.read_text() for path in (engine.state_dir / "azcopy" / "logs").rglob("*.log"))
    assert "FAILED" in logs
    assert "sig=" not in logs.replace("sig=***", "")


def test_an_expired_sas_and_a_download(engine: AzcopyEngine, containers: Containers, tmp_path: Path) -> None:
    containers.clients["one"].upload_blob("x/a", b"a")
    task = whole(download(containers.store("one"), "x", tmp_path / "target", ["a"]))
    engine.mint = containers.sas("rl", hours=-1)
    assert codes(run(engine, task)) == {"sas_expired"}
    assert not (tmp_path / "target").exists()


def test_copies_between_accounts(engine: AzcopyEngine, containers: Containers, azurite: Azurite) -> None:
    names = ["é #1", "%41", "a b/c", "zero", "*", "large"]
    client = containers.clients["one"]
    for name in names:
        body = {"zero": b"", "large": content(LARGE)}.get(name, name.encode())
        settings = ContentSettings(content_type="text/x-test", content_md5=bytearray(hashlib.md5(body).digest()))
        client.upload_blob(f"x/{name}", body, metadata={"k": "v"}, content_settings=settings)
    with copy_source_proxy(azurite.url) as proxy:
        here, there = containers.store("one", proxy.url), containers.store("two", proxy.url)
        succeed(engine, whole(copy(here, "x", there, "y", names)))
        succeed(engine, copy(here, "x/large", there, "single", [""]))
        succeed(engine, copy(here, "x", there, "listed", ["large"]))
        stats = proxy.stats()
        assert stats.uploaded < MIB
        assert stats.downloaded < MIB
    assert containers.md5s("two", "y") == containers.md5s("one", "x")
    assert set(containers.md5s("two", "listed")) == {"large"}
    properties = containers.clients["two"].get_blob_client("y/é #1").get_blob_properties()
    assert (properties.content_settings.content_type, properties.metadata) == ("text/x-test", {"k": "v"})
    assert containers.clients["two"].get_blob_client("single").get_blob_properties().size == LARGE


@pytest.mark.parametrize("kind", ["cannot_verify", "not_implemented"])
def test_refused_copies(engine: AzcopyEngine, containers: Containers, azurite: Azurite, kind: str) -> None:
    names = [f"n{number}" for number in range(5)]
    for name in names:
        containers.clients["one"].upload_blob(f"x/{name}", name.encode())
    with copy_source_proxy(azurite.url, Refusal(kind)) as proxy:
        here, there = containers.store("one", proxy.url), containers.store("two", proxy.url)
        assert codes(run(engine, whole(copy(here, "x", there, "y", names)))) == {"copy_source_refused"}


def test_a_block_that_is_damaged_on_a_line_without_tls(
    engine: AzcopyEngine, containers: Containers, azurite: Azurite, tmp_path: Path
) -> None:
    """azcopy stores the MD5 of the file, but the service has other bytes, which would go unnoticed."""
    files = {"large": content(LARGE), "small": b"small"}
    write_tree(tmp_path / "source", files)
    with fault_proxy(azurite.url, Fault("flip_up", at=(2,), operations=("put block",), limit=1)) as proxy:
        succeed(engine, upload(tmp_path / "source", containers.store("one", proxy.url), "x"))
        assert proxy.stats().injected == {"flip_up": 1}
    for name, body in files.items():
        assert containers.clients["one"].download_blob(f"x/{name}").readall() == body

    always = Fault("flip_up", rate=1.0, operations=("put block",))
    with fault_proxy(azurite.url, always) as proxy:
        report = run(engine, upload(tmp_path / "source", containers.store("one", proxy.url), "y"))
    assert [(action.path, failure.code) for action, failure in report.failed] == [("large", "checksum_mismatch")]
    assert set(containers.md5s("one", "y")) == {"small"}


def test_bad_weather_for_uploads(
    engine: AzcopyEngine, containers: Containers, azurite: Azurite, tmp_path: Path
) -> None:
    files = tree(tmp_path / "source", [f"n{number}" for number in range(40)])
    kinds = ("reset_before", "reset_upload", "reset_after", "status")
    faults = [Fault(kind, at=(9 * number,), operations=("put blob",)) for number, kind in enumerate(kinds, 1)]
    with fault_proxy(azurite.url, *faults) as proxy:
        succeed(engine, upload(tmp_path / "source", containers.store("one", proxy.url), "x"))
        assert sum(proxy.stats().injected.values()) == len(kinds)
    assert containers.md5s("one", "x") == {name: hashlib.md5(body).digest() for name, body in files.items()}


def test_bad_weather_for_downloads(
    engine: AzcopyEngine, containers: Containers, azurite: Azurite, tmp_path: Path
) -> None:
    """Damaged files are reported, and never get a final name."""
    files = {f"n{number}": content(1000 + number) for number in range(40)}
    for name, body in files.items():
        containers.clients["one"].upload_blob(f"x/{name}", body)
    task = whole(download(containers.store("one"), "x", tmp_path / "target", sorted(files)))
    kinds = ("flip_down", "truncate", "truncate_lying", "reset_download")
    with fault_proxy(azurite.url, *[Fault(kind, at=(9 * number,)) for number, kind in enumerate(kinds, 1)]) as proxy:
        report = run(
            engine, task._replace(part=replace(task.part, source=OpenBlob(containers.store("one", proxy.url), "x")))
        )
        assert sum(proxy.stats().injected.values()) == len(kinds)
    failed = {action.path for action, _ in report.failed}
    assert len(failed) <= len(kinds)
    assert files_below(tmp_path / "target") == {name: body for name, body in files.items() if name not in failed}


def test_the_job_is_left_as_soon_as_azcopy_has_confirmed_its_end(
    engine: AzcopyEngine, containers: Containers, tmp_path: Path, runner: Recorder
) -> None:
    """Before azcopy's next two-second step, and not after the three seconds in which azcopy may confirm it."""
    tree(tmp_path / "source", ["a", "b"])
    store = containers.store("one")
    for _ in range(3):
        succeed(engine, upload(tmp_path / "source", store, "x"))
        succeed(engine, whole(download(store, "x", tmp_path / "target", ["a", "b"])))
        (tmp_path / "target" / "a").unlink()
        (tmp_path / "target" / "b").unlink()
    # On a busy machine some of the six may be late: asked after azcopy's own step, or confirmed after seconds.
    assert runner.waited and min(runner.waited) < 2.0


def slow_upload(containers: Containers, tmp_path: Path) -> MoveTask:
    write_tree(tmp_path / "source", {"large": content(LARGE)})
    return capped(upload(tmp_path / "source", containers.store("one"), "x"), 4.0)


def slow_download(containers: Containers, tmp_path: Path) -> MoveTask:
    containers.clients["one"].upload_blob("x/large", content(LARGE))
    return whole(capped(download(containers.store("one"), "x", tmp_path / "target", ["large"]), 4.0))


@pytest.mark.parametrize("slow", [slow_upload, slow_download])
def test_ctrl_c_leaves_no_process_and_no_file(
    engine: AzcopyEngine, containers: Containers, tmp_path: Path, slow: Callable[[Containers, Path], MoveTask]
) -> None:
    task = slow(containers, tmp_path)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), ctrl_c_after(1.0):
        moved_by(engine, task)
    # The transfer would take 40.
    assert time.monotonic() - began < 30.0
    assert_state_is_clean(engine, logs=True)
    assert not (tmp_path / "target").exists()
    assert not containers.md5s("one", "x") or slow is slow_download


_CHILD = """
    import os, sys
    from pathlib import Path
    from blobsync.azcopy.engine import AzcopyEngine
    from blobsync.config.model import StorageAccount
    from blobsync.store.connect import connect
    from blobsync.store.sas import mint_sas
    from blobsync.base.redaction import Secret
    from tests.fakes.tasks import capped, download, moved_by
    from dataclasses import replace
    endpoint, key, container, azcopy, folder = sys.argv[1:]
    account = StorageAccount("t.yaml", "one", container, endpoint, account_key=Secret(key))
    engine = AzcopyEngine(
        Path(folder) / "state", lambda end, rights: mint_sas(account, rights, 3600), binary=Path(azcopy)
    )
    task = capped(download(connect(account), "x", Path(folder) / "target", ["large"]), 4.0)
    moved_by(engine, task._replace(whole_folder=True))
"""


@pytest.mark.kill
def test_kill_9_leaves_no_azcopy_and_what_it_left_is_removed(
    engine: AzcopyEngine, containers: Containers, azurite: Azurite, azcopy_path: Path, tmp_path: Path
) -> None:
    containers.clients["one"].upload_blob("x/large", content(LARGE))
    arguments = [azurite.endpoint("one"), azurite.keys["one"], containers.name, str(azcopy_path), str(tmp_path)]
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_CHILD), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert wait_until(lambda: azcopies(tmp_path) != [] and any((tmp_path / "target").rglob(".azDownload-*")))
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert prune_workspaces(tmp_path / "state") == 1
    assert wait_until(lambda: azcopies(tmp_path) == [])
    assert_state_is_clean(engine)
    assert list((tmp_path / "target").iterdir()) == []
    succeed(engine, whole(download(containers.store("one"), "x", tmp_path / "target", ["large"])))


def azcopies(folder: Path) -> list[int]:
    """The processes whose azcopy works below ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"AZCOPY_LOG_LOCATION={folder}".encode() in environ:
                found.append(int(entry.name))
    return found


def test_what_ps_shows_is_narrow(
    engine: AzcopyEngine, containers: Containers, tmp_path: Path, runner: Recorder
) -> None:
    """A SAS for the one container, for writing only or for reading only, and never the key."""
    tree(tmp_path / "source", ["a"])
    store = containers.store("one")
    succeed(engine, upload(tmp_path / "source", store, "x"))
    succeed(engine, whole(download(store, "x", tmp_path / "target", ["a"])))
    tokens = [
        SasToken.parse(word.partition("?")[2]) for argv in runner.argv for word in argv if word.startswith("http")
    ]
    assert [(token.permissions, token.field("sr"), token.field("ss")) for token in tokens] == [
        ("w", "c", None),
        ("rl", "c", None),
    ]
