"""The keepers of a project: which folders are kept uploaded, by whom, and how they stand; and their locks.

Each keeper writes a record in the state folder, and looks there for a request to stop, as running transfers do. One
folder of a machine has one keeper: nothing at, below or above a kept folder gets a second one. The records tell whose;
for keepers of other users, whose records cannot be seen, each kept folder is locked itself (``flock``). Of other users
only the folder's owner and root are obeyed: everybody who can read a folder can lock it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.base.formatting import count_text, duration_text
from blobsync.base.process_identity import ProcessMark
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.stopping import StopRequest
from blobsync.base.user_folders import locked, user_name
from blobsync.config.mapping import is_below
from blobsync.local.running_records import Reporter, Running, RunningRecords
from blobsync.local.state_dir import StateDir

_FOLDER = "keepers"
# How long a keeper may take to stop: it finishes what is on its way (seconds).
_STOP_SECONDS, _POLL_SECONDS = 60.0, 0.1
# Logs of detached keepers that stay.
_LOGS = 10
_LOCKS = Path("/proc/locks")


@dataclass(frozen=True, slots=True, repr=False)
class KeeperState(Running):
    """A keeper under way. Times in seconds since 1970; ``roots`` are the real paths of its folders.

    ``waiting``: files that wait until they are still, or for another try; ``failing``: files that failed, of which
    ``conflicts`` are in conflict. ``problem`` says why nothing works, since ``problem_since``. ``polling`` says why
    changes are found by walking, empty if the system tells of them.
    """

    user: str
    began: float
    paths: tuple[str, ...]
    roots: tuple[str, ...]
    cluster: str = ""
    command: str = ""
    settle: float = 5.0
    rounds: int = 0
    last_round: float = 0.0
    uploaded: int = 0
    bytes: int = 0
    waiting: int = 0
    failing: int = 0
    conflicts: int = 0
    problem: str = ""
    problem_since: float = 0.0
    polling: str = ""

    def __repr__(self) -> str:
        return f"<KeeperState {self.id}: {' '.join(self.paths)}, process {self.pid}>"

    @property
    def who(self) -> str:
        """Its process, user and age, in words."""
        place = "" if self.is_here else f" on {self.host}"
        return f"process {self.pid} of {self.user}{place}, for {duration_text(max(0.0, time.time() - self.began))}"

    @property
    def standing(self) -> str:
        """How far it is, in words."""
        now = time.time()
        words = [f"{count_text(self.uploaded, 'file')} uploaded"]
        words += [f"last round {duration_text(max(0.0, now - self.last_round))} ago"] if self.last_round else []
        words += [f"{count_text(self.waiting, 'file')} waiting"] if self.waiting else []
        words += [count_text(self.conflicts, "conflict")] if self.conflicts else []
        failed = self.failing - self.conflicts
        words += [count_text(failed, "failure")] if failed > 0 else []
        if self.problem:
            lasted = duration_text(max(0.0, now - self.problem_since))
            words.append(f"nothing works for {lasted}: {self.problem}")
        return ", ".join(words)


class Keepers:
    """The keepers of a project, from their records."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._records = RunningRecords(state, "keepers")

    def all(self) -> Mapping[str, KeeperState]:
        """The keepers by their ids, the oldest first. Records of those that are gone are removed.

        Raises ``LocalFileError``.
        """
        return dict(sorted(self._records.alive(KeeperState).items(), key=lambda each: each[1].began))

    def stop(self, chosen: Sequence[KeeperState]) -> None:
        """Ask these keepers to stop, and wait until they have.

        Raises ``UsageError`` for one of another machine, or one that does not stop.
        """
        for one in chosen:
            if not one.is_here:
                raise UsageError(f"the keeper {one.id} runs on {one.host}", hint="run the same command there")
            self._records.request_stop(one.id)
        until = time.monotonic() + _STOP_SECONDS
        while left := [one for one in chosen if ProcessMark(one.pid, one.born).is_alive and one.id in self.all()]:
            if time.monotonic() > until:
                raise UsageError(
                    f"the keeper {left[0].id} has not stopped within {_STOP_SECONDS:g} seconds",
                    hint=f"it may be finishing a large file; 'kill {left[0].pid}' asks it once more",
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def held(self, state: KeeperState, stop: StopRequest) -> Iterator[KeeperRecord]:
        """Be the one keeper of the folders of ``state`` while the block runs; ``stop`` is made when somebody asks.

        Raises ``UsageError`` if one of them is kept, or is in or above a folder that is.
        """
        with ExitStack() as held:
            record = KeeperRecord(self._records if self._state.lasting else None, state, stop)
            if record.reporter is not None:
                # Two that begin at once look at the records one after the other. Without locks the folder's is left.
                with locked(self._state.folder(_FOLDER) / ".lock"):
                    self._demand_free(state)
                    record.reporter.tell()
                held.callback(record.reporter.end)
            for root in state.roots:
                _lock_folder(Path(root), frozenset(state.roots), held)
            if record.reporter is not None:
                record.reporter.begin()
            yield record

    def _demand_free(self, state: KeeperState) -> None:
        for other in self.all().values():
            for path, root in zip(other.paths, other.roots, strict=False):
                for mine in state.roots if other.is_here else ():
                    if is_below(mine, root) or is_below(root, mine):
                        raise UsageError(
                            f"{path} is kept already, by {other.who}",
                            hint=f"one folder has one keeper; 'blobsync keep stop {other.id}' stops that one",
                        )


class KeeperRecord:
    """The record of this process's keeper."""

    def __init__(self, records: RunningRecords | None, state: KeeperState, stop: StopRequest) -> None:
        self.state = state
        self._told: KeeperState | None = None
        self._lock = threading.Lock()
        self.reporter = None if records is None else Reporter(records, state.id, self._news, stop)

    def change(self, make: Callable[[KeeperState], KeeperState]) -> None:
        """Change the state; it is written soon."""
        with self._lock:
            self.state = make(self.state)

    def _news(self) -> Mapping[str, Any] | None:
        with self._lock:
            if self.state is self._told:
                return None
            self.state = self._told = replace(self.state, told=time.time())
        return asdict(self._told)


def new_log(state: StateDir) -> Path:
    """The file for what a detached keeper says; the newest of these files stay. Raises ``LocalFileError``."""
    folder = state.folder(_FOLDER)
    with suppress(OSError):
        for old in sorted(folder.glob("log-*"), key=lambda file: file.stat().st_mtime)[: -_LOGS + 1]:
            old.unlink()
    return folder / f"log-{os.urandom(4).hex()}"


def keeper_state(paths: Sequence[str], roots: Sequence[str], **known: Any) -> KeeperState:
    """The state of a keeper of this process that begins now."""
    pid = os.getpid()
    return KeeperState(
        id=os.urandom(4).hex(),
        pid=pid,
        born=ProcessMark.of(pid).born,
        host=os.uname().nodename,
        user=user_name(os.getuid()),
        told=0.0,
        began=time.time(),
        paths=tuple(paths),
        roots=tuple(roots),
        **known,
    )


def find_keepers(keepers: Mapping[str, KeeperState], chosen: str, path: str | None) -> tuple[KeeperState, ...]:
    """The keepers that ``chosen`` means: an id, its end, or a path (``path``, from the root).

    Raises ``NothingMatchedError``.
    """
    found = [
        one
        for one in keepers.values()
        if (chosen and one.id.endswith(chosen))
        or (path is not None and any(is_below(each, path) for each in one.paths))
    ]
    if not found:
        raise NothingMatchedError(f"nothing keeps {chosen!a}", hint="'blobsync keep ls' lists the keepers")
    return tuple(found)


def _lock_folder(folder: Path, own: frozenset[str], held: ExitStack) -> None:
    """Lock the folder itself, also against keepers whose records cannot be seen, and look at those above it.

    Raises ``UsageError``.
    """
    for place in folder.parents:
        # A folder entry inside another one is kept by itself.
        fd = None if str(place) in own else _opened(place)
        if fd is not None:
            try:
                _demand_lock(fd, fcntl.LOCK_SH, place)
            finally:
                os.close(fd)
    fd = _opened(folder)
    if fd is not None:
        held.callback(os.close, fd)
        _demand_lock(fd, fcntl.LOCK_EX, folder)


def _opened(folder: Path) -> int | None:
    with suppress(OSError):
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return None


def _demand_lock(fd: int, how: int, folder: Path) -> None:
    """Take the lock where the file system has such locks. Raises ``UsageError`` if somebody has it who counts.

    Whoever can read a folder can lock it, so only its owner, root and this user count.
    """
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        found = os.fstat(fd)
        holders = _holders(found)
        obeyed = [each for each in holders or () if each.uid in (found.st_uid, 0, os.geteuid())]
        if obeyed or holders is None:
            by = f", by {obeyed[0].words}" if obeyed else ""
            raise UsageError(
                f"{folder} is kept already{by}",
                hint="one folder has one keeper; that user's 'blobsync keep ls' shows it",
            ) from None
    except OSError:
        return


class _Holder(NamedTuple):
    """A process that holds a lock, and the user who started it."""

    process: ProcessMark
    uid: int

    @property
    def words(self) -> str:
        return f"process {self.process.pid} of {user_name(self.uid)}, for {duration_text(self.process.age)}"


def _holders(folder: os.stat_result) -> list[_Holder] | None:
    """The processes that hold a lock of the folder, by the kernel's list; None if there is no such list."""
    try:
        lines = _LOCKS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    place = f"{os.major(folder.st_dev):02x}:{os.minor(folder.st_dev):02x}:{folder.st_ino}"
    found = []
    for line in lines:
        with suppress(OSError, ValueError, IndexError):
            words = line.split()
            if words[1] == "FLOCK" and words[5] == place:
                # The folder in /proc is root's for a process that hides its memory.
                status = Path("/proc", words[4], "status").read_text(encoding="utf-8", errors="replace")
                uid = status.split("\nUid:")[1].split()[0]
                found.append(_Holder(ProcessMark.of(int(words[4])), int(uid)))
    return found
