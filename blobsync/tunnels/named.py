"""Named tunnels of the user, to a machine behind another one or a bastion.

They are in ``$XDG_CONFIG_HOME/blobsync/tunnels.json``. Each open tunnel has a process, detached from the terminal that
opened it, with its files in ``$XDG_STATE_HOME/blobsync/tunnels/NAME``:

    python -m blobsync.tunnels.named FOLDER

It holds ``lock`` as long as it lives. A file called ``close`` ends it, as does the end of the tunnel's job.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from blobsync.backends.port_forwarding import (
    LOOPBACK,
    SSH_PORT,
    bastion_line,
    demand_key_file,
    forward_line,
    free_local_port,
    read_key_file,
    read_machine,
    read_port,
)
from blobsync.base.errors import (
    BackendUnavailableError,
    BlobsyncError,
    ConfigError,
    NothingMatchedError,
    UsageError,
)
from blobsync.base.exit_codes import shell_code
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.process import ProcessRunner, python_module
from blobsync.base.process_identity import ProcessMark
from blobsync.base.records import dataclass
from blobsync.base.user_folders import (
    config_home,
    environment,
    is_locked,
    locked_own,
    make_private,
    read_own,
    replace_file,
    state_home,
    write_own,
)
from blobsync.local.state_dir import own_folder
from blobsync.tunnels.tunnel_keeper import OPEN_SECONDS, TunnelKeeper

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
# The local port of the first named tunnel; others follow.
FIRST_LOCAL_PORT = 22_222
# How long the process of a tunnel may take to start, and to end (seconds).
_BEGIN_SECONDS, _END_SECONDS = 60.0, 30.0
_POLL_SECONDS = 0.1
# Seconds between two checks of the tunnel, and of its job, in its process.
_KEEP_SECONDS, _LOOK_SECONDS = 0.2, 5.0
# How long a killed process may take to end (seconds).
_GONE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class NamedTunnel:
    """The settings of ``tunnel add``. ``machine`` and ``bastion`` are ``[USER@]HOST[:PORT]``.

    With ``azure_bastion`` the machine is ``target``, a resource id, and ``machine`` its user and a name for it.
    ``port`` of the machine is forwarded to ``local_port`` here.
    """

    name: str
    machine: str
    local_port: int
    port: int = SSH_PORT
    bastion: str = ""
    key: str = ""
    azure_bastion: str = ""
    resource_group: str = ""
    target: str = ""
    subscription: str = ""

    @property
    def leads_to_ssh(self) -> bool:
        """Whether the forwarded port is that of the machine's sshd."""
        return self.port == (read_machine(self.machine, "machine").port or SSH_PORT)

    def check(self) -> None:
        """Raises ``UsageError`` for values that ssh or ``az`` could take as options or commands."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{self.name!a} is not a name for a tunnel", hint="letters, digits, - and _")
        self.argv(self.local_port)

    def argv(self, local: int, *, asks: bool = False) -> tuple[str, ...]:
        """The command that forwards ``local``; with ``asks``, the one for a terminal. Raises ``UsageError``."""
        remote, machine = read_port(self.port, "port"), read_machine(self.machine, "machine")
        read_port(local, "local port")
        key = read_key_file(self.key, Path.home()) if self.key else ""
        if self.azure_bastion:
            if self.bastion:
                raise UsageError("--bastion and --azure-bastion cannot be combined", hint="use only one of them")
            place = (self.azure_bastion, self.resource_group, self.target, self.subscription)
            return bastion_line(*place, local=local, remote=remote)
        jump = read_machine(self.bastion, "bastion") if self.bastion else None
        return forward_line(machine, local=local, remote=remote, jump=jump, key=key, asks=asks)

    def ssh_config(self, local: int) -> tuple[str, ...]:
        """The lines of ``~/.ssh/config`` for ``ssh NAME`` through the open tunnel."""
        machine = read_machine(self.machine, "machine")
        known = self.target.rpartition("/")[2] or machine.host
        lines = [f"Host {self.name}", f"  HostName {LOOPBACK}", f"  Port {local}", f"  HostKeyAlias {known}"]
        lines += [f"  User {machine.user}"] if machine.user else []
        lines += [f"  IdentityFile {read_key_file(self.key, Path.home())}"] if self.key else []
        return tuple(lines)


@dataclass(frozen=True, slots=True)
class TunnelState:
    """The current state of a named tunnel. ``problem`` is the last reason why it was down."""

    tunnel: NamedTunnel
    is_open: bool = False
    local_port: int = 0
    restarts: int = 0
    problem: str = ""
    job_id: str = ""


class TunnelFolder:
    """The files of one open tunnel; ``lock`` is held as long as its process lives."""

    def __init__(self, folder: Path) -> None:
        self.order, self.state, self.lock = folder / "order.json", folder / "state.json", folder / "lock"
        self.close, self.log, self.line = folder / "close", folder / "log", folder / "line.json"

    def is_held(self) -> bool:
        """Whether the tunnel's process runs."""
        return is_locked(self.lock)

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Take the lock as the tunnel's process; False if another one has it."""
        with self.lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def note_line(self, pid: int) -> None:
        """Record the tunnel's command."""
        self.write(self.line, ProcessMark.of(pid)._asdict())

    def end_stray_line(self) -> None:
        """End the command left by a killed process: it would keep the port, out of reach of ``close``."""
        with suppress(OSError, ValueError, TypeError):
            line = ProcessMark(**parse_object(self.line.read_text()))
            # Checked after the file was read: a running process has recorded its own command.
            if self.is_held():
                return
            # Where its birth is not known, it may be another program with the same process id.
            if line.pid > 1 and line.born and line.is_alive:
                os.killpg(line.pid, signal.SIGKILL)
                _wait(lambda: not line.is_alive, _GONE_SECONDS)
            self.line.unlink()

    def read(self) -> dict[str, object]:
        """The last state; empty if there is none."""
        with suppress(OSError, ValueError):
            return parse_object(self.state.read_text())
        return {}

    def write(self, file: Path, values: Mapping[str, object]) -> None:
        """Write a file atomically."""
        replace_file(file, json.dumps(values).encode())


class Tunnels:
    """The user's named tunnels. ``note`` reports progress."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._environ = environment(environ)
        self._note = note
        self._file = config_home(self._environ) / "tunnels.json"

    def __repr__(self) -> str:
        return f"<Tunnels of {str(self._file)!r}>"

    def all(self) -> tuple[NamedTunnel, ...]:
        """The tunnels by name. Raises ``ConfigError`` for an invalid file, or one that others can write."""
        text = read_own(self._file)
        try:
            found = [made_of(NamedTunnel, values) for values in parse_object(text)["tunnels"]] if text else []
            for tunnel in found:
                tunnel.check()
        except (ValueError, TypeError, KeyError, UsageError) as error:
            raise ConfigError(f"is not a file of tunnels: {error}", file=str(self._file)) from error
        return tuple(sorted(found, key=lambda tunnel: tunnel.name))

    def find(self, name: str) -> NamedTunnel:
        """The tunnel of this name. Raises ``NothingMatchedError``."""
        for tunnel in self.all():
            if tunnel.name == name:
                return tunnel
        raise NothingMatchedError(f"there is no tunnel {name!a}", hint="blobsync tunnel ls")

    def next_port(self) -> int:
        """The first local port from 22222 on without a tunnel."""
        taken = {tunnel.local_port for tunnel in self.all()}
        return next(port for port in range(FIRST_LOCAL_PORT, 65_536) if port not in taken)

    def add(self, tunnel: NamedTunnel) -> None:
        """Add or replace a tunnel. Raises ``UsageError``, also for a key that ssh would not use."""
        tunnel.check()
        _demand_key(tunnel)
        self._replace(tunnel.name, tunnel)

    def remove(self, name: str) -> None:
        """Remove a tunnel. Raises ``NothingMatchedError``, and ``UsageError`` while it is open."""
        self.find(name)
        self._replace(name)

    def states(self) -> tuple[TunnelState, ...]:
        """The states of all tunnels."""
        return tuple(self.state(tunnel) for tunnel in self.all())

    def state(self, tunnel: NamedTunnel) -> TunnelState:
        """The state of a tunnel."""
        folder = self._folder(tunnel.name)
        values = folder.read() if folder.is_held() else {}
        port, restarts = values.get("port"), values.get("restarts")
        return TunnelState(
            tunnel,
            values.get("open") is True,
            port if isinstance(port, int) else 0,
            restarts if isinstance(restarts, int) else 0,
            str(values.get("problem") or ""),
            str(values.get("job_id") or ""),
        )

    def open(self, name: str, *, project: Path | None = None, job_id: str = "") -> TunnelState:
        """Open a tunnel in a process that outlives this one, unless it is open.

        With ``job_id``, a job of ``project``, it closes when that has ended. Raises ``BackendUnavailableError``, and
        ``UsageError`` for a key that ssh would not use.
        """
        tunnel = self.find(name)
        folder = self._folder(name)
        if folder.is_held():
            return self.state(tunnel)
        _demand_key(tunnel)
        local = free_local_port(tunnel.local_port)
        if local != tunnel.local_port:
            self._note(f"port {tunnel.local_port} is taken on this machine: {local} is used instead")
        for file in (folder.close, folder.state):
            file.unlink(missing_ok=True)
        order = {"tunnel": asdict(tunnel), "port": local, "project": str(project or ""), "job_id": job_id}
        folder.write(folder.order, order)
        argv = (*python_module("blobsync.tunnels.named"), str(folder.order.parent))
        ProcessRunner().spawn_detached(argv, log=folder.log, env=self._environ)
        if not _wait(lambda: "open" in folder.read(), _BEGIN_SECONDS + OPEN_SECONDS):
            raise BackendUnavailableError(f"the tunnel {name} did not start", hint=f"see {folder.log}")
        if folder.read()["open"] is not True:
            raise BackendUnavailableError(str(folder.read().get("problem")), hint=_trial(tunnel, local))
        return self.state(tunnel)

    def close(self, name: str) -> bool:
        """Close a tunnel; returns whether it was open. Raises ``NothingMatchedError``."""
        self.find(name)
        folder = self._folder(name)
        if not folder.is_held():
            return False
        folder.close.touch()
        if not _wait(lambda: not folder.is_held(), _END_SECONDS):
            raise BackendUnavailableError(f"the tunnel {name} does not close", hint=f"see {folder.log}")
        return True

    def _folder(self, name: str) -> TunnelFolder:
        above = state_home(self._environ)
        make_private(above)
        folder = above / "tunnels"
        own_folder(folder)
        own_folder(folder / name)
        found = TunnelFolder(folder / name)
        found.end_stray_line()
        return found

    def _replace(self, name: str, *new: NamedTunnel) -> None:
        if self._folder(name).is_held():
            raise UsageError(f"the tunnel {name} is open", hint=f"blobsync tunnel close {name}")
        with locked_own(self._file):
            tunnels = [*(other for other in self.all() if other.name != name), *new]
            write_own(self._file, json.dumps({"tunnels": [asdict(tunnel) for tunnel in tunnels]}, indent=1))


def _demand_key(tunnel: NamedTunnel) -> None:
    if tunnel.key:
        demand_key_file(read_key_file(tunnel.key, Path.home()))


def _trial(tunnel: NamedTunnel, local: int) -> str:
    """The command for a terminal, where ssh can ask: usually the host key is still unknown."""
    line = shlex.join(tunnel.argv(local, asks=True))
    return f"try it in a terminal, where it can ask: {line}; Ctrl-C ends it, then blobsync tunnel open {tunnel.name}"


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(_POLL_SECONDS)
    return condition()


def keep_tunnel(
    folder: TunnelFolder,
    process: ProcessRunner,
    environ: Mapping[str, str],
    has_ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Open the tunnel and keep it open until it is closed; the exit code is 1 if it could not be opened."""
    order = parse_object(folder.order.read_text())
    tunnel, port = NamedTunnel(**order["tunnel"]), order["port"]
    keeper = TunnelKeeper(partial(tunnel.argv, port), port, process, environ, started=folder.note_line)
    written: Mapping[str, object] = {}
    try:
        keeper.open()
        look_at = clock() + _LOOK_SECONDS
        while not folder.close.exists():
            now = {
                "open": keeper.reopen_if_lost(),
                "port": keeper.port,
                "restarts": keeper.restarts,
                "problem": keeper.problem,
            }
            if now != written:
                folder.write(folder.state, {**now, "job_id": order["job_id"]})
                written = now
            if order["job_id"] and clock() >= look_at:
                if has_ended():
                    break
                look_at = clock() + _LOOK_SECONDS
            time.sleep(_KEEP_SECONDS)
        return 0
    except BlobsyncError as error:
        folder.write(folder.state, {"open": False, "problem": error.message})
        return 1
    finally:
        keeper.close()


def job_watcher(project: str, job_id: str, environ: Mapping[str, str]) -> Callable[[], bool]:
    """Whether the job has ended; False if its cluster cannot be reached."""
    if not job_id:
        return lambda: False
    from blobsync.jobs.context import JobContext
    from blobsync.jobs.states import refresh

    context = JobContext(Path(project), environ)

    def has_ended() -> bool:
        with suppress(BlobsyncError):
            return refresh(context, [context.history.find(job_id)]).records[0].info.state.is_final
        return False

    return has_ended


def main(path: str) -> int:
    """Keep the tunnel of this folder open; a second process for it exits at once."""
    folder = TunnelFolder(Path(path))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(shell_code(-signal.SIGTERM)))
    with folder.held() as ours:
        if not ours:
            return 0
        order = parse_object(folder.order.read_text())
        watcher = job_watcher(str(order["project"]), str(order["job_id"]), os.environ)
        return keep_tunnel(folder, ProcessRunner(), os.environ, watcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
