"""Which files a folder has, and which of them have changed.

The system tells of changes where ``watchfiles`` is installed, the folder is on a disk of this machine and a probe file
that we write there is told of; every few minutes the folder is walked all the same, since events can get lost.
Elsewhere it is walked again and again, as often as that takes no more than a tenth of a core: network file systems
tell nothing of what other machines write, a folder with links does not tell of their targets, and the system limits
how many folders a user may watch. Each reason is told once.

A folder that is made when that limit is reached is not watched, and nobody tells. So the watches of this process are
counted after folders were made; and where a walk finds a change that was not told of, watching begins anew, which fails
if the limit is the cause.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import TypeAlias

from blobsync.base.events import Emit, Note, ignore
from blobsync.base.file_states import LocalState
from blobsync.base.plan_reasons import Reason
from blobsync.keep.keeper import Files, Found
from blobsync.local.names import is_temporary, new_temporary_name
from blobsync.local.state_dir import NAME as STATE_DIR_NAME
from blobsync.local.tree import TreeEntry

# Finds every file at and below a path of the folder, with paths from the folder; the mapping gets the links that count
# as their targets.
Walk: TypeAlias = Callable[[str, dict[str, str]], Iterator[TreeEntry]]
# Yields paths that have changed, some at a time, until the event is set; begins to watch before it yields first.
Listen: TypeAlias = Callable[[Path, threading.Event], Iterator[Iterable[str]]]

# Seconds between two walks; a walk takes at most a tenth of a core, and half of the time where a disk is slow.
_SHORTEST_WALK, _SHARE, _SLOW_SHARE = 1.0, 10.0, 2.0
# Between two walks of a folder that the system tells of; they take at most a fiftieth of a core.
_SELDOM, _SELDOM_SHARE = 60.0, 50.0
# How long an event may take, and how often it is looked for (seconds).
_PROBE_SECONDS, _POLL_SECONDS = 3.0, 0.2
# More events than this and a quarter of the files: a walk costs less.
_MOST_TOLD = 1000
# Seconds until the system watches a new folder, and until a change has surely been told of.
_WATCHED_SOON, _TOLD_SOON = 1.0, 5.0
_MOUNTS = Path("/proc/self/mountinfo")
# They may tell of changes by this machine, and tell nothing of those by others.
_REMOTE = frozenset(
    {
        *("9p", "acfs", "afs", "beegfs", "ceph", "cifs", "fhgfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "panfs"),
        *("pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"),
    }
)


def watched_by_the_system(folder: Path, over: threading.Event) -> Iterator[Iterable[str]]:
    """What ``watchfiles`` tells. Raises ``OSError`` and ``RuntimeError``, as where too many folders are watched."""
    import watchfiles

    for changes in watchfiles.watch(
        folder,
        watch_filter=None,
        debounce=500,
        step=100,
        stop_event=over,
        rust_timeout=1000,
        raise_interrupt=False,
        # True would hide other errors as well, such as a limit that is reached.
        ignore_permission_denied=False,
    ):
        yield [path for _, path in changes]


def installed_listener() -> Listen | None:
    """How the system tells of changes here; None without ``watchfiles``."""
    return watched_by_the_system if util.find_spec("watchfiles") is not None else None


def file_system_of(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The type of the file system that holds the folder; empty if it is unknown."""
    real, best, found = os.path.realpath(folder), "", ""
    with suppress(OSError):
        for line in mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            words = line.split(" ")
            place = words[4].encode("latin-1", "replace").decode("unicode_escape", "replace")
            inside = real == place or real.startswith(place.rstrip("/") + "/")
            if inside and len(place) >= len(best):
                best, found = place, words[words.index("-") + 1]
    return found


def watched_folders(process: Path = Path("/proc/self")) -> int | None:
    """How many folders the system watches for this process; None if it does not say."""
    count = 0
    try:
        for fd in os.listdir(process / "fd"):
            with suppress(OSError):
                if os.readlink(process / "fd" / fd) == "anon_inode:inotify":
                    count += (process / "fdinfo" / fd).read_text(encoding="ascii").count("inotify wd:")
    except OSError:
        return None
    return count


class FolderWatcher:
    """Watches ``folder``, whose files ``walk`` finds. ``listen`` None: only by walking."""

    def __init__(
        self,
        folder: Path,
        walk: Walk,
        *,
        listen: Listen | None = None,
        emit: Emit = ignore,
        shown: str = "",
        clock: Callable[[], float] = time.monotonic,
        cost: Callable[[], float] = time.thread_time,
        wall: Callable[[], float] = time.time,
        file_system: Callable[[Path], str] = file_system_of,
        watched: Callable[[], int | None] = watched_folders,
    ) -> None:
        self._folder, self._walk, self._listen = folder, walk, listen
        # Where events say that they happened.
        self._lead = ""
        self._emit, self._shown = emit, shown or folder.name
        self._clock, self._cost, self._wall = clock, cost, wall
        self._file_system, self._watched = file_system, watched
        # When to count what is watched, after folders were made.
        self._count_at: float | None = None
        self._files: dict[str, LocalState] = {}
        self._left_out: dict[str, TreeEntry] = {}
        self._folders: set[str] = set()
        self._device = 0
        self._walk_at = 0.0
        # Why changes are found by walking only, in words; empty if the system tells of them.
        self.why = ""
        self._listener: _Listener | None = None
        self._given_up = listen is None
        self._has_walked = False

    @property
    def polls(self) -> bool:
        """Whether changes are found by walking only."""
        return self._listener is None

    def look(self, *, anew: bool = False) -> Found:
        """What there is now; walks if that is due, and if it is to look ``anew``."""
        problem = self._problem()
        if problem:
            self.close()
            self._walk_at = 0.0
            return Found(self._files, left_out=self._left_out, problem=problem)
        if self._listener is None and not self._given_up:
            self._start_listening()
        if self._listener is None:
            is_due = anew or self._clock() >= self._walk_at
            return self._walked() if is_due else Found(self._files, left_out=self._left_out)
        told = self._listener.take()
        if self._listener.failure:
            self._poll(self._listener.failure)
            return self._walked()
        if self._count_at is not None and self._clock() >= self._count_at:
            self._count_at = None
            count = self._watched()
            if count is not None and count <= len(self._folders):
                return self._listen_anew()
        if anew or self._clock() >= self._walk_at:
            found = self._walked()
            return self._listen_anew(found) if self._misses(found, told) else found
        return self._told_of(told)

    def wait(self, seconds: float, stop: threading.Event) -> None:
        """Wait until something may have changed, ``stop`` is set, or the time is over."""
        if self._listener is None:
            stop.wait(max(0.0, min(seconds, self._walk_at - self._clock())))
            return
        until = self._clock() + seconds
        while not stop.is_set() and self._clock() < until and not self._listener.changed.is_set():
            self._listener.changed.wait(_POLL_SECONDS)

    def close(self) -> None:
        """Watch no longer."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _problem(self) -> str:
        """Why the folder cannot be seen. An empty mount point is no folder whose files were all deleted."""
        try:
            found = os.stat(self._folder)
            if not stat.S_ISDIR(found.st_mode):
                return f"{self._folder} is no folder any more"
            if self._device and found.st_dev != self._device and self._files and not os.listdir(self._folder):
                return f"{self._folder} is empty and on another disk: its own is not mounted"
        except (FileNotFoundError, NotADirectoryError):
            return f"{self._folder} is not there: it was moved away or removed"
        except OSError as error:
            return f"{self._folder} cannot be read: {error.strerror}"
        if found.st_dev != self._device:
            # Another disk's events are others.
            self.close()
            self._device = found.st_dev
        return ""

    def _start_listening(self) -> None:
        assert self._listen is not None
        kind = self._file_system(self._folder)
        if kind in _REMOTE or (kind.startswith("fuse.") and kind != "fuse.fuse-overlayfs"):
            self._poll(f"{kind} does not tell what other machines write")
            return
        real = Path(os.path.realpath(self._folder))
        listener, self._lead = _Listener(real, self._listen), f"{real}/"
        why = listener.probed(self._clock)
        if why:
            listener.close()
            self._poll(why)
        else:
            self._listener, self._walk_at, self._has_walked = listener, 0.0, False

    def _misses(self, found: Found, told: Collection[str]) -> bool:
        """Whether a walk found a change that should have been told of."""
        if self._listener is None or not self._has_walked:
            self._has_walked = True
            return False
        long_ago = (self._wall() - _TOLD_SOON) * 1e9
        states = ((path, found.files.get(path)) for path in found.changed)
        return any(
            state is not None and max(state.mtime_ns, state.ctime_ns) < long_ago and f"{self._lead}{path}" not in told
            for path, state in states
        )

    def _listen_anew(self, before: Found | None = None) -> Found:
        self.close()
        self._start_listening()
        found, self._has_walked = self._walked(), True
        return found._replace(changed=found.changed | (before.changed if before is not None else frozenset()))

    def _poll(self, why: str) -> None:
        """From now on by walking alone."""
        self.close()
        self._given_up = True
        self.why = why
        self._walk_at = 0.0
        self._emit(Note(f"{self._shown}: {why}; the folder is looked at again and again instead"))

    def _walked(self) -> Found:
        began, before = self._cost(), self._clock()
        files: dict[str, LocalState] = {}
        left_out: dict[str, TreeEntry] = {}
        followed: dict[str, str] = {}
        for entry in self._walk("", followed):
            if entry.state is None:
                left_out[entry.path] = entry
            else:
                files[entry.path] = entry.state
        known = self._files
        changed = {path for path, state in files.items() if path not in known or not known[path].same_file(state)}
        changed.update(known.keys() - files.keys())
        self._files, self._left_out = files, left_out
        if self._listener is not None:
            self._folders = _folders_of(files)
        if followed and self._listener is not None:
            self._poll("it has links, and the system does not tell of what is behind them")
        cost, seconds = self._cost() - began, self._clock() - before
        pause = (
            max(_SHORTEST_WALK, cost * _SHARE, seconds * _SLOW_SHARE)
            if self._listener is None
            else max(_SELDOM, cost * _SELDOM_SHARE, seconds * _SHARE)
        )
        self._walk_at = self._clock() + pause
        return Found(files, frozenset(changed), left_out)

    def _told_of(self, told: Collection[str]) -> Found:
        changed: set[str] = set()
        if len(told) > _MOST_TOLD + len(self._files) // 4:
            return self._walked()
        # Folders before what is in them.
        for path in sorted(told):
            if path.startswith(self._lead):
                relative = path[len(self._lead) :]
                if not _is_ours(relative) and not self._update(relative, changed):
                    return self._walked()
        return Found(self._files, frozenset(changed), self._left_out)

    def _update(self, path: str, changed: set[str]) -> bool:
        """Look at one path and all below it; False if only a walk of everything shows what it is now.

        A folder is walked: what was made in it before it was watched is not told of.
        """
        found = None
        try:
            found = os.lstat(self._folder / path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._left_out[path] = TreeEntry(path, None, Reason.UNREADABLE, error.strerror or str(error))
            return True
        before, followed = self._forget(path), dict[str, str]()
        for entry in self._entries(path, found, followed) if found is not None else ():
            if entry.state is None:
                self._left_out[entry.path] = entry
                continue
            known = before.pop(entry.path, None)
            if known is None or not known.same_file(entry.state):
                changed.add(entry.path)
            self._files[entry.path] = entry.state
            self._folders.update(_folders_above(entry.path, self._folders))
        changed.update(before)
        return not followed and not (found and stat.S_ISLNK(found.st_mode))

    def _entries(self, path: str, found: os.stat_result, followed: dict[str, str]) -> Iterable[TreeEntry]:
        if stat.S_ISDIR(found.st_mode):
            self._folders.update((path, *_folders_above(path, self._folders)))
            self._count_at = self._clock() + _WATCHED_SOON
            return self._walk(path, followed)
        if stat.S_ISREG(found.st_mode):
            return (TreeEntry(path, LocalState.of(found)),)
        return () if stat.S_ISLNK(found.st_mode) else (TreeEntry(path, None, Reason.NOT_A_FILE),)

    def _forget(self, path: str) -> dict[str, LocalState]:
        """Forget a path, as a file or as a folder; returns the files that were there."""
        self._left_out.pop(path, None)
        known = self._files.pop(path, None)
        gone = {} if known is None else {path: known}
        if path in self._folders:
            lead = f"{path}/"
            gone.update({each: self._files.pop(each) for each in list(self._files) if each.startswith(lead)})
            for each in [each for each in self._left_out if each.startswith(lead)]:
                del self._left_out[each]
            self._folders = {each for each in self._folders if each != path and not each.startswith(lead)}
        return gone


def _is_ours(path: str) -> bool:
    """Whether a path is one of blobsync's own, which no walk yields."""
    return STATE_DIR_NAME in path.split("/") or is_temporary(path.rpartition("/")[2])


def _folders_above(path: str, known: set[str]) -> Iterator[str]:
    above = path.rpartition("/")[0]
    while above and above not in known:
        yield above
        above = above.rpartition("/")[0]


def _folders_of(files: Files) -> set[str]:
    found: set[str] = set()
    for path in files:
        found.update(_folders_above(path, found))
    return found


class _Listener:
    """Collects what the system tells, in a thread of its own. ``failure`` says why it tells nothing any more."""

    def __init__(self, folder: Path, listen: Listen) -> None:
        self._folder, self._listen = folder, listen
        self.changed = threading.Event()
        self.failure = ""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._paths: set[str] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> set[str]:
        """The paths since the last call."""
        with self._lock:
            self.changed.clear()
            paths, self._paths = self._paths, set()
        return paths

    def close(self) -> None:
        """End the thread soon."""
        self._over.set()

    def probed(self, clock: Callable[[], float]) -> str:
        """Write a probe file until the system tells of a change; why it does not, else nothing."""
        probe = self._folder / new_temporary_name()
        until = clock() + _PROBE_SECONDS
        try:
            while clock() < until and not self.failure:
                # Removed before the wait: a keeper that is killed meanwhile leaves nothing.
                try:
                    probe.touch()
                finally:
                    probe.unlink(missing_ok=True)
                self.changed.wait(_POLL_SECONDS)
                if self.take():
                    return ""
        except OSError:
            # It is not ours to write in: it is believed what the system tells, and walked now and then.
            return self.failure
        return self.failure or "its file system does not tell of changes"

    def _run(self) -> None:
        try:
            for paths in self._listen(self._folder, self._over):
                with self._lock:
                    self._paths.update(paths)
                    self.changed.set()
        except Exception as error:  # noqa: BLE001 - whatever it is, walking goes on
            self.failure = _reason(error)
        else:
            self.failure = self.failure or ("" if self._over.is_set() else "the system tells of changes no longer")
        self.changed.set()


def _reason(error: Exception) -> str:
    said = str(error)
    if "limit" in said or "No space" in said or getattr(error, "errno", 0) in (24, 28):
        return (
            "the system's limit of watched folders is reached (sysctl fs.inotify.max_user_watches and"
            " max_user_instances raise it)"
        )
    return f"changes cannot be watched: {said}"
