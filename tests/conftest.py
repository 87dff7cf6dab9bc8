"""Fixtures of all tests: a clean environment, a blob server, azcopy."""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import signal
import stat
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

from blobsync.emulator import Emulator, new_key
from tests.servers.s3 import S3Server, moto_server

# A slow machine is not a failure.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
# Where ./dev installs the tests' programs; BLOBSYNC_TEST_HOME names another place.
TOOLS = Path(os.environ.get("BLOBSYNC_TEST_HOME") or ROOT / ".tools" / "blobsync")

# Removes a developer's accounts, proxies and clusters from the environment, but not the paths of programs.
_STRIPPED = (
    "AZURE_",
    "AZCOPY_",
    "SLURM_",
    "AML_",
    "BLOBSYNC_",
    "OMPI_",
    "PMIX_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
)
_KEPT = ("BLOBSYNC_AZCOPY", "BLOBSYNC_AZURITE", "BLOBSYNC_TEST_HOME", "BLOBSYNC_TEST_KUBECONFIG", "BLOBSYNC_TEST_IMAGE")

# Some thousand requests' worth of processor time; it starts in less than one second of it.
_WORN_SECONDS = 15.0
_WORN_BYTES = 1 << 30

FOR_INSTALLERS = dict(os.environ)


def _is_stripped(name: str) -> bool:
    return name.upper().startswith(_STRIPPED) and name not in _KEPT


def _hear_signals() -> None:
    """Reset ignored signals: nohup and a shell's ``&`` start programs that ignore them, which children inherit."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def _return_freed_memory() -> None:
    """Let glibc give each freed block of a megabyte back to the system.

    Otherwise it raises that limit as blocks are freed and keeps them, up to 64 MB for each of many heaps, since tests
    start many threads: a worker grew by gigabytes.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        m_mmap_threshold = -3
        libc.mallopt(m_mmap_threshold, 1 << 20)


def pytest_configure(config: pytest.Config) -> None:
    _hear_signals()
    _return_freed_memory()
    for name in [name for name in os.environ if _is_stripped(name)]:
        del os.environ[name]


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty HOME for this process and its children."""
    folder = tmp_path_factory.mktemp("home")
    before = {name: os.environ.get(name) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")}
    for name in before:
        os.environ.pop(name, None)
    os.environ["HOME"] = str(folder)
    yield folder
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@dataclass(frozen=True)
class Azurite:
    """A running blob server; ``keys`` by account: ``one`` and ``two``."""

    url: str
    keys: Mapping[str, str]
    pid: int

    def endpoint(self, account: str) -> str:
        return f"{self.url}/{account}"


@contextmanager
def azurite_at(location: Path | None) -> Iterator[Azurite]:
    """Run Azurite with two accounts; it ends with the test process in any case. ``location`` None: in memory."""
    keys = {"one": new_key(), "two": new_key()}
    with Emulator(TOOLS, environ=FOR_INSTALLERS).session(keys, location=location) as state:
        yield Azurite(f"http://127.0.0.1:{state.port}", {name: key.reveal() for name, key in keys.items()}, state.pid)


@pytest.fixture(scope="session")
def fresh_azurite() -> Iterator[Callable[[], Azurite]]:
    """Gives a blob server in memory that is not worn: the last one, or a new one."""
    with ExitStack() as running:
        found: list[Azurite] = []

        def give() -> Azurite:
            if not found or _is_worn(found[-1].pid):
                running.close()
                found.append(running.enter_context(azurite_at(None)))
            return found[-1]

        yield give


@pytest.fixture(scope="module")
def azurite(fresh_azurite: Callable[[], Azurite]) -> Azurite:
    """A blob server in memory, where modules that follow each other keep apart by their containers."""
    return fresh_azurite()


def _is_worn(pid: int) -> bool:
    """Whether a blob server did much: sometimes Azurite hangs after tens of thousands of requests, many of them broken
    off, and what is deleted stays in its memory for minutes."""
    try:
        used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return True
    seconds = sum(map(int, used)) / os.sysconf("SC_CLK_TCK")
    return seconds > _WORN_SECONDS or pages * os.sysconf("SC_PAGE_SIZE") > _WORN_BYTES


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    """moto's server, where tests keep apart by their buckets: it takes seconds to start."""
    with moto_server() as server:
        yield server


@pytest.fixture
def bucket(moto: S3Server) -> str:
    """A new bucket."""
    name = f"b{uuid.uuid4().hex[:20]}"
    moto.make_bucket(name)
    return name


@pytest.fixture(scope="session")
def azcopy_path() -> Path:
    """azcopy: ``BLOBSYNC_AZCOPY``, the one that ./dev installed, or the machine's."""
    places = [os.environ.get("BLOBSYNC_AZCOPY"), *sorted(TOOLS.glob("azcopy*/**/azcopy*")), shutil.which("azcopy")]
    for place in places:
        if place and Path(place).is_file() and Path(place).stat().st_mode & stat.S_IXUSR:
            return Path(place)
    pytest.skip("no azcopy: run ./dev setup, or set BLOBSYNC_AZCOPY")


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """Let the garbage collector pass by the tests themselves: they stay to the end, and to walk over all of them takes
    it longer than most tests take."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Not by an option in pyproject.toml: another -m on the command line would replace it.
    if "soak" in str(config.getoption("markexpr")):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
