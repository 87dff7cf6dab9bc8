"""Installs, starts, finds and stops the blob server that replaces a storage account: Azurite on loopback.

npm installs the pinned Azurite into the user's data directory. Containers are made in the emulator only; in a real
account its owner makes them. The user's account has a secret key, and the port that projects name: the key of Azurite's
well-known account is public, and anyone who can reach the loopback interface could read its data.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from blobsync.base.errors import EmulatorError
from blobsync.base.locations import BlobContainer
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.base.process_identity import ProcessMark
from blobsync.base.records import dataclass
from blobsync.base.redaction import Secret
from blobsync.base.user_folders import data_home, environment, locked, replace_file
from blobsync.config.model import EMULATOR_ACCOUNT
from blobsync.config.scaffold import EMULATOR_CONTAINER, EmulatorAccount
from blobsync.emulator.nodejs import NodeJs, ensure_node, last_lines, whole_folder
from blobsync.store.rest.http import BlobHttp
from blobsync.store.rest.request_signing import SharedKeySigner

_HERE = Path(__file__).parent
_NPM_SECONDS = 900.0
_MAIN = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"


def pinned_version() -> str:
    """The version in ``package.json`` next to this module; the lock file holds its checksums."""
    manifest = json.loads((_HERE / "package.json").read_text(encoding="utf-8"))
    return str(manifest["dependencies"]["azurite"])


def azurite_home(home: Path) -> Path:
    """The folder of the pinned version below blobsync's data directory."""
    return home / f"azurite-{pinned_version()}"


def find_azurite(home: Path, *, environ: Mapping[str, str]) -> Path | None:
    """The server's main script: below ``$BLOBSYNC_AZURITE`` (a folder that npm installed into), or the managed one.

    Raises ``EmulatorError`` if ``BLOBSYNC_AZURITE`` is invalid.
    """
    given = environ.get("BLOBSYNC_AZURITE")
    if given:
        script = Path(given) / _MAIN
        if not script.is_file():
            raise EmulatorError(
                f"BLOBSYNC_AZURITE is {given}, which does not contain {_MAIN}",
                hint=f"run npm install azurite@{pinned_version()} in that folder, or unset BLOBSYNC_AZURITE",
            )
        return script
    script = azurite_home(home) / _MAIN
    return script if script.is_file() else None


def install_azurite(
    home: Path, nodejs: NodeJs, *, environ: Mapping[str, str], runner: ProcessRunner, note: Callable[[str], None]
) -> Path:
    """Install the pinned version with ``npm ci``, which checks each package against the lock file.

    Installs atomically. Returns the main script; raises ``EmulatorError`` with npm's last output.
    """
    target = azurite_home(home)
    note(f"installing Azurite {pinned_version()} with npm into {target}, which may take a minute")
    with whole_folder(target) as partial:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(_HERE / name, partial / name)
        argv = nodejs.npm_in(partial, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
        answer = runner.run(argv, env=nodejs.environ(environ), cwd=partial, timeout=_NPM_SECONDS)
        if answer.returncode != 0:
            raise EmulatorError(
                f"npm could not install Azurite {pinned_version()}: {last_lines(answer)}",
                hint="check that npm ping works; blobsync uses npm's own configuration (proxy, registry)",
            )
    return target / _MAIN


def make_container(container: BlobContainer, key: Secret) -> bool:
    """Create ``container``; False if it is there already. Raises ``StorageError``."""
    from blobsync.store.sdk import SdkContainer

    # No proxy settings: the emulator is on this machine.
    with closing(BlobHttp(container, SharedKeySigner(container.account, key), environ={})) as http:
        return SdkContainer(container, http).create()


DEFAULT_PORT = 10000
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class KeptAccount:
    """The key and port, which stay the same from one start to the next."""

    key: Secret
    port: int = DEFAULT_PORT


def new_key() -> Secret:
    """A random account key."""
    return Secret(b64encode(secrets.token_bytes(64)).decode())


def kept_account(folder: Path) -> KeptAccount:
    """The account stored in ``folder``, created at first use. Raises ``EmulatorError``."""
    file = folder / "account.json"
    try:
        if not file.exists():
            _keep(folder, KeptAccount(new_key(), _first_port()), if_missing=True)
        kept = made_of(KeptAccount, parse_object(file.read_text(encoding="utf-8")))
        if not 0 < kept.port <= _LAST_PORT:
            raise ValueError("not what was kept")
        return kept
    except OSError as error:
        raise EmulatorError(f"{file} cannot be used: {error.strerror}", hint="set XDG_DATA_HOME") from error
    except ValueError as error:
        raise EmulatorError(f"{file} is damaged", hint=f"rm {file}, then create the account files again") from error


def _first_port() -> int:
    """The default port, or a free one if another program, such as another user's emulator, has it."""
    for port in (DEFAULT_PORT, 0):
        with socket.socket() as tried, suppress(OSError):
            # A socket that only waits for its last packets (TIME_WAIT) does not count.
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("127.0.0.1", port))
            found: int = tried.getsockname()[1]
            return found
    return DEFAULT_PORT


def keep_port(folder: Path, port: int) -> None:
    """Store ``port``: the emulator starts there from now on."""
    known = kept_account(folder)
    if known.port != port:
        _keep(folder, KeptAccount(known.key, port))


def _keep(folder: Path, account: KeptAccount, *, if_missing: bool = False) -> None:
    content = json.dumps({"key": account.key.reveal(), "port": account.port}).encode()
    replace_file(folder / "account.json", content, if_missing=if_missing)


_GUARD = Path(__file__).with_name("guard.js")
QUICK_LOOKUPS = Path(__file__).with_name("quick_lookups.js")
_READY = re.compile(r"successfully listens on http://127\.0\.0\.1:(\d+)")
_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
# Where there is no /proc, a new process may be shown with the command line of this one for a moment.
_SHOWN_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class EmulatorState:
    """A running emulator. Holds names of accounts, never their keys. ``location`` None: all in memory. ``born`` tells
    its process from a later one with the same ID."""

    pid: int
    port: int
    accounts: tuple[str, ...]
    location: str | None
    version: str
    born: str = ""

    def endpoint(self, account: str) -> str:
        """The blob endpoint of ``account``, as ``blob_endpoint`` of an account file needs it."""
        return f"http://127.0.0.1:{self.port}/{account}"

    def container(self, account: str, name: str) -> BlobContainer:
        """The container ``name`` of ``account``, whether it exists or not."""
        return BlobContainer(account, name, self.endpoint(account))


class _PortTakenError(EmulatorError):
    """Another program uses the port."""


class Emulator:
    """The emulator of one user. ``home`` holds the programs, the state file, the log and stored blobs."""

    def __init__(
        self,
        home: Path | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        runner: ProcessRunner | None = None,
        note: Callable[[str], None] = lambda text: None,
        preloads: Sequence[Path] = (QUICK_LOOKUPS,),
    ) -> None:
        """``note`` is called before slow steps; ``preloads`` are scripts that Node.js loads before the server.

        Without the default preload, Azurite gets slower with each blob that it holds (docs/performance.md).
        """
        environ = environment(environ)
        self._home = home or data_home(environ)
        self._environ = environ
        self._runner = runner or ProcessRunner()
        self._note = note
        self._preloads = (_GUARD, *preloads)

    @property
    def log(self) -> Path:
        """The log file of the server that :meth:`start` started."""
        return self._home / "emulator" / "azurite.log"

    def install(self) -> Path:
        """Install Node.js and Azurite if they are missing; returns the server's main script."""
        return self._programs()[1]

    def start(
        self,
        accounts: Mapping[str, Secret] | None = None,
        *,
        port: int | None = 0,
        in_memory: bool = False,
    ) -> EmulatorState:
        """Start a server that outlives this process, and wait until it answers; keep one that already runs as asked.

        ``port`` 0 means a free one; None that of the last start, or a free one if another program uses that.
        ``accounts`` None means the user's own account, with the container that ``config new --emulator`` names. Raises
        ``EmulatorError`` if one runs with other settings, if ``port`` is taken, or if it does not come up.
        """
        with self._alone():
            running = self._recorded()
            if running and running.port:
                return _as_asked(running, accounts, port, in_memory)
            if running:
                # Of a start that was killed.
                self._end(running)
            try:
                state = self._started(accounts, port, None if in_memory else self._folder() / "blobs")
            except BaseException:
                # A start that fails, as in blobsync.pyz without Azure's packages, leaves nothing running.
                if running := self._recorded():
                    self._end(running)
                raise
            self._record(state)
        return state

    def _started(self, accounts: Mapping[str, Secret] | None, port: int | None, location: Path | None) -> EmulatorState:
        kept = kept_account(self._folder())
        served = accounts or {EMULATOR_ACCOUNT: kept.key}
        try:
            state = self._spawn(kept.port if port is None else port, location, served)
        except _PortTakenError as error:
            if port is not None:
                raise
            state = self._spawn(0, location, served)
            self._note(f"{error.message}: the emulator takes port {state.port} from now on")
        if not accounts:
            keep_port(self._folder(), state.port)
            make_container(state.container(EMULATOR_ACCOUNT, EMULATOR_CONTAINER), kept.key)
        return state

    def _spawn(self, port: int, location: Path | None, accounts: Mapping[str, Secret]) -> EmulatorState:
        nodejs, script = self._programs()
        self.log.unlink(missing_ok=True)
        argv, environ = self._argv(nodejs, script, port, location), self._server_environ(accounts)
        pid = self._runner.spawn_detached(argv, log=self.log, env=environ, cwd=self._folder())
        state = _state_of(pid, accounts, location)
        # Without a port until it is ready: the next start or stop ends it if this process is killed before.
        self._record(state)
        return replace(state, port=self._await_port(state, port))

    def own_account(self) -> EmulatorAccount:
        """The account that :meth:`start` serves, at the port where it runs or will run. Holds its key."""
        kept = kept_account(self._folder())
        running = self.status()
        port = running.port if running else kept.port
        return EmulatorAccount(f"http://127.0.0.1:{port}/{EMULATOR_ACCOUNT}", kept.key)

    def status(self) -> EmulatorState | None:
        """The server that :meth:`start` started, if it is alive and ready."""
        state = self._recorded()
        return state if state and state.port else None

    def stop(self) -> EmulatorState | None:
        """Stop the server and wait for its end; None if none runs. Only signals a process that is the server."""
        if not self._state_file().exists():
            return None
        with self._alone():
            state = self._recorded()
            if state:
                self._end(state)
            self._state_file().unlink(missing_ok=True)
        return state

    def _end(self, state: EmulatorState) -> None:
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self._is_alive(state):
                os.kill(state.pid, signum)
            deadline = time.monotonic() + _STOP_SECONDS
            while self._is_alive(state) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

    @contextmanager
    def session(
        self, accounts: Mapping[str, Secret], *, port: int = 0, location: Path | None = None
    ) -> Iterator[EmulatorState]:
        """Run a separate server until the block ends, or this process does, however that happens.

        It is not recorded: ``status`` and ``stop`` do not see it. ``location`` None keeps everything in memory.
        """
        nodejs, script = self._programs()
        environ = self._server_environ(accounts)
        with tempfile.TemporaryDirectory(prefix="blobsync-emulator-") as folder:
            process = self._runner.start(
                self._argv(nodejs, script, port, location),
                env={**environ, "BLOBSYNC_EMULATOR_WITH_PARENT": "1"},
                cwd=Path(folder),
            )
            try:
                yield replace(_state_of(process.pid, accounts, location), port=_read_port(process, port))
            finally:
                process.stop()

    def _programs(self) -> tuple[NodeJs, Path]:
        nodejs = ensure_node(self._home, environ=self._environ, runner=self._runner, note=self._note)
        script = find_azurite(self._home, environ=self._environ) or install_azurite(
            self._home, nodejs, environ=self._environ, runner=self._runner, note=self._note
        )
        return nodejs, script

    def _argv(self, nodejs: NodeJs, script: Path, port: int, location: Path | None) -> list[str]:
        loaded = [word for each in self._preloads for word in ("-r", str(each))]
        # Azurite refuses --location together with --inMemoryPersistence.
        where = ["--location", str(location)] if location else ["--inMemoryPersistence"]
        fixed = ["--blobHost", "127.0.0.1", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return [str(nodejs.node), *loaded, str(script), "--blobPort", str(port), *fixed, *where]

    def _server_environ(self, accounts: Mapping[str, Secret]) -> dict[str, str]:
        # In the environment, not in the arguments, which every user can read.
        known = ";".join(f"{name}:{key.reveal()}" for name, key in accounts.items())
        return {**self._environ, "AZURITE_ACCOUNTS": known}

    def _folder(self) -> Path:
        folder = self._home / "emulator"
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        return folder

    def _state_file(self) -> Path:
        return self._home / "emulator" / "state.json"

    def _alone(self) -> AbstractContextManager[None]:
        """One start or stop at a time: two servers would overwrite each other's blobs."""
        return locked(self._folder() / ".lock")

    def _record(self, state: EmulatorState) -> None:
        replace_file(self._state_file(), json.dumps(asdict(state)).encode())

    def _recorded(self) -> EmulatorState | None:
        """The server that a start left, if it is alive; without a port if that start was killed, or is under way."""
        with suppress(OSError, ValueError):
            state = made_of(EmulatorState, parse_object(self._state_file().read_text(encoding="utf-8")))
            return state if self._is_alive(state) else None
        return None

    def _await_port(self, state: EmulatorState, port: int) -> int:
        started = time.monotonic()
        while True:
            waited = time.monotonic() - started
            # Looked at before its log, which then has its last words.
            ended = waited > _SHOWN_SECONDS and not self._is_alive(state)
            output = self.log.read_text(encoding="utf-8", errors="replace")
            ready = _READY.search(output)
            if ready:
                return int(ready.group(1))
            if ended or waited > _START_SECONDS:
                raise _start_error(output, port)
            time.sleep(_POLL_SECONDS)

    def _is_alive(self, state: EmulatorState) -> bool:
        """Whether the server still runs: IDs of dead processes are reused."""
        is_alive = ProcessMark(state.pid, state.born).is_alive
        if state.born or not is_alive:
            return is_alive
        # There is no /proc.
        return str(_GUARD) in self._runner.run(["ps", "-p", str(state.pid), "-o", "command="]).stdout


def _state_of(pid: int, accounts: Mapping[str, Secret], location: Path | None) -> EmulatorState:
    place, born = str(location) if location else None, ProcessMark.of(pid).born
    return EmulatorState(pid, 0, tuple(accounts), place, pinned_version(), born)


def _as_asked(
    running: EmulatorState, accounts: Mapping[str, Secret] | None, port: int | None, in_memory: bool
) -> EmulatorState:
    """Return ``running`` if it runs as asked for, else raise ``EmulatorError``."""
    other_port = port is not None and port not in (0, running.port)
    if accounts or other_port or in_memory != (running.location is None):
        raise EmulatorError(
            f"the emulator is already running with other settings (process {running.pid}, port {running.port})",
            hint="blobsync emulator stop, then start it again",
        )
    return running


def _read_port(process: RunningProcess, port: int) -> int:
    lines = process.lines()
    output: list[str] = []
    for line in lines:
        output.append(line)
        ready = _READY.search(line)
        if ready:
            # Keep reading its output, or it would block on a full pipe.
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
            return int(ready.group(1))
    raise _start_error("\n".join([*output, process.stderr_tail()]), port)


def _start_error(output: str, port: int) -> EmulatorError:
    if "EADDRINUSE" in output:
        return _PortTakenError(
            f"port {port} of 127.0.0.1 is in use by another program",
            hint="without --port it takes a free one, and writes that into this project's account file",
        )
    # Of a crash, show the error, not the calls that led to it.
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.strip().startswith("at ")]
    return EmulatorError(f"Azurite did not start: {' / '.join(lines[-5:]) or 'no output'}")
