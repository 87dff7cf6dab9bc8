"""The folder with blobsync's records of a project, ``<project>/.blobsync/state-<mark>``, and its seal.

A project may come from a stranger, with a forged ``.blobsync``, or be a copy of another project. So a folder counts
only if the file ``seal`` in it proves that this user's blobsync created it for the project that contains it; other
folders are ignored, or the user is asked. The mark tells apart the folders of several keys and users; it differs
from project to project, and contains no host name: home folders are shared.
"""

import atexit
import errno
import hashlib
import hmac
import json
import os
import shlex
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from blobsync.base.errors import LocalFileError, OpenStateError, UntrustedStateError
from blobsync.base.formatting import count_text
from blobsync.base.lazy_regexes import pattern
from blobsync.base.plain_json import parse_object
from blobsync.base.records import NamedTuple
from blobsync.base.seals import KEY_BYTES, SealKey
from blobsync.base.user_folders import config_home, make_private, replace_file, state_home, user_name
from blobsync.config.project_root import STATE_FOLDER

SEAL_FILE = "seal"

_KIND = "state folder"
_ID_BYTES = 16
# In bytes; a path has at most a few thousand.
_MOST = 1_000_000
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StateSeal(NamedTuple):
    """``id`` is random; ``paths`` are the project's paths without links: several if the user said that it is the same
    project under each of them."""

    id: str
    paths: tuple[str, ...]

    @classmethod
    def fresh(cls, project: Path) -> "StateSeal":
        """A new seal with a new ID, for the project at this path alone."""
        return cls(os.urandom(_ID_BYTES).hex(), (os.path.realpath(project),))

    def is_of(self, project: Path) -> bool:
        """Whether it was made for the project at this path, or for the same folder under another path."""
        real = os.path.realpath(project)
        for path in self.paths:
            with suppress(OSError, ValueError):
                if path == real or os.path.samefile(path, project):
                    return True
        return False


def read_seal(folder: int, name: str, key: SealKey) -> StateSeal | None:
    """The seal of the opened state folder ``name``; None if it has none that this user made. Raises ``OSError``."""
    try:
        fd = os.open(SEAL_FILE, _READ, dir_fd=folder)
        try:
            document = os.read(fd, _MOST)
        finally:
            os.close(fd)
    except OSError as error:
        # A link, a folder or a socket in its place is no seal. A disk that does not answer has said nothing about it.
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            return None
        raise
    body = key.opened(_KIND, name, SEAL_FILE, document)
    if body is None:
        return None
    values = parse_object(body.decode("ascii"))
    return StateSeal(str(values["id"]), tuple(map(str, values["paths"])))


def write_seal(folder: Path, seal: StateSeal, key: SealKey, *, replaces: bool) -> None:
    """Seal the state folder. Two processes at once end up with one seal: the first, unless ``replaces``.

    Raises ``OSError``.
    """
    body = json.dumps({"id": seal.id, "paths": seal.paths}).encode("ascii")
    replace_file(folder / SEAL_FILE, key.seal(_KIND, folder.name, SEAL_FILE, body), if_missing=not replaces)


NAME = STATE_FOLDER
KEY_FILE = "state.key"

# The command that accepts a state folder.
TRUST_STATE = "blobsync config trust-state"

_MARK_CHARS = 16
_STATE_NAME = pattern(r"state-[0-9a-f]{16}")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TrustedState(NamedTuple):
    """A state folder in a project, and its seal; ``is_new``: the user's agreement was needed and has been recorded;
    ``closed`` is what others could write to until now."""

    folder: Path
    seal: StateSeal
    is_new: bool
    closed: tuple[Path, ...] = ()


class StateDir(NamedTuple):
    """The folders are created on first use, for the owner only.

    ``lasting`` is False if nothing outlives this process, because blobsync has no writable folder.
    """

    root: Path
    lasting: bool = True

    @property
    def index_file(self) -> Path:
        """The index: what is known to be equal on both sides (SQLite)."""
        return self.root / "index.sqlite"

    @property
    def unfinished_file(self) -> Path:
        """What runs, and how far what was interrupted had come (SQLite)."""
        return self.root / "unfinished.sqlite"

    @property
    def jobs_file(self) -> Path:
        """The jobs and the transfers (SQLite). Raises ``LocalFileError`` if it would not outlive this process."""
        if not self.lasting:
            raise LocalFileError(
                "cannot record jobs: blobsync can write neither to the project nor to your home folder",
                hint="set XDG_STATE_HOME to a writable folder",
            )
        return self.root / "jobs.sqlite"

    def folder(self, name: str) -> Path:
        """A sub-folder, created if missing: ``receipts``, ``transfers``. Raises ``LocalFileError``."""
        path = self.root / name
        try:
            own_folder(path)
        except OSError as error:
            raise LocalFileError(f"{path}: {error.strerror}", path=str(path)) from error
        return path


def open_state_dir(
    project: Path, environ: Mapping[str, str], say: Callable[[str], None] = lambda text: None
) -> StateDir:
    """The project's own folder; for a project without write access, a folder of the user's state directory.

    If neither is writable, a temporary one, which is removed when this process ends. ``say`` gets a sentence if it is
    not the one in the project though there is a ``.blobsync``. Raises
    ``UntrustedStateError`` for a folder in the project that may be somebody else's (:func:`trust_state` accepts it),
    ``OpenStateError`` for one that others can write to (:func:`close_state`), and ``LocalFileError`` where a disk does
    not answer.
    """
    why = ""
    for opened in (_inside, _outside):
        try:
            root = opened(project, environ)
        except OpenToOthersError as error:
            raise _open_to_others(error, project, environ) from error
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise LocalFileError(_sentence(error, project), path=error.filename) from error
            why = why or _sentence(error, project)
        else:
            if why and os.path.lexists(project / NAME):
                text = f"what blobsync remembers of this project is kept in {root}, not in the project: {why}"
                _say_once(text, say)
            return StateDir(root)
    import shutil  # late, as tempfile: few commands have no state folder
    import tempfile

    folder = tempfile.mkdtemp(prefix="blobsync-state-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _say_once(f"nothing is recorded, here or in your home folder ({why}): set XDG_STATE_HOME to a writable folder", say)
    return StateDir(Path(folder), lasting=False)


# There can be no folder: no right to write, a read-only or full disk, something else in its place.
_NO_PLACE = frozenset(
    (
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.ELOOP,
    )
)
# What this process has said already: a command opens the folder several times.
_said: set[str] = set()


def _sentence(error: OSError, project: Path) -> str:
    return f"{error.filename or project / NAME}: {error.strerror}"


def _say_once(text: str, say: Callable[[str], None]) -> None:
    if text not in _said:
        _said.add(text)
        say(text)


class OpenToOthersError(PermissionError):
    """It is the user's own, and others may write to it; or read it, where it is a key."""


class NotOursError(PermissionError):
    """It belongs to another user, or is a link or not a folder: it is left alone."""


def demand_ours(status: os.stat_result, path: Path, *, is_secret: bool = False) -> None:
    """Raise unless it belongs to this user and only they can change it (``is_secret``: or read it)."""
    if status.st_uid != os.geteuid():
        raise NotOursError(errno.EPERM, f"it belongs to another user, {user_name(status.st_uid)}", str(path))
    if status.st_mode & (_OTHERS if is_secret else _OTHERS_WRITE):
        can = "write to" if status.st_mode & _OTHERS_WRITE else "read"
        raise OpenToOthersError(errno.EPERM, f"other users can {can} it", str(path))


def demand_closed_inside(folder: int, path: Path) -> None:
    """Raise ``OpenToOthersError`` if others can write to a folder in the opened one; only records are in those."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid == os.geteuid():
                    demand_ours(found, path / entry.name)


def own_folder(path: Path) -> None:
    """Create ``path`` if it is missing, for the owner only. Raises ``OSError`` unless only we can change it.

    A link in its place was created by someone else: ``NotOursError``, and its target is not touched.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        with _opened(path) as fd:
            demand_ours(os.fstat(fd), path)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
    except NotADirectoryError as error:
        # O_NOFOLLOW on a link answers so, together with O_DIRECTORY.
        raise NotOursError(errno.EPERM, "it is a link or not a folder: blobsync does not use it", str(path)) from error


def user_key(environ: Mapping[str, str]) -> SealKey:
    """The key of this user's seals, created if missing. Raises ``OSError`` if there is none that only the user
    knows."""
    return SealKey(_key(config_home(environ)))


class OpenState(NamedTuple):
    """What of a project's state others could have changed, and the files in it that others made, in words."""

    places: Mapping[Path, str]
    of_others: str

    def __str__(self) -> str:
        first, *left = self.places.values()
        more = f" and {count_text(len(left), 'folder')} more" if left else ""
        return f"{first}{more}" + (f", in which is {self.of_others}" if self.of_others else "")

    @property
    def question(self) -> str:
        """What the user is asked before it is closed to others."""
        return f"{self}. Do you trust what is there, and shall it be for you alone from now on?"


def open_state(project: Path, environ: Mapping[str, str]) -> OpenState | None:
    """What of the state of the project is the user's own and can be changed by others; None if nothing is."""
    from blobsync.local.private_folders import files_of_others, open_places  # late: few are open to others

    places = open_places((config_home(environ) / KEY_FILE,), _record_folders(project, environ))
    if not places:
        return None
    of_others = filter(None, map(files_of_others, (project / NAME, _outside_name(project, environ))))
    return OpenState(places, ", ".join(of_others))


def close_state(project: Path, environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Take from others every right to what :func:`open_state` finds; returns what was closed, folders as a whole.

    Raises ``LocalFileError``, also where the file system keeps no permissions.
    """
    from blobsync.local.private_folders import close_to_others  # late: few are open to others

    own = _outside_name(project, environ)
    found = open_state(project, environ)
    opened = found.places if found else ()
    tops = (config_home(environ) / KEY_FILE, project / NAME, own.parent, own)
    closed = tuple(top for top in tops if any(top in (path, *path.parents) for path in opened))
    for top in closed:
        try:
            close_to_others(top)
        except OSError as error:
            raise LocalFileError(
                f"{error.filename or top}: {error.strerror}",
                hint=f"rm -r {shlex.quote(str(top))}: then blobsync begins anew, where it can",
                path=str(top),
            ) from error
    return closed


def _record_folders(project: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    """Every folder whose permissions matter."""
    above, own = project / NAME, _outside_name(project, environ)
    yield from (above, own.parent)
    for folder in (*(above / name for name in _names_in(above) if _STATE_NAME.fullmatch(name)), own):
        yield folder
        yield from (folder / name for name in _names_in(folder))


def _names_in(folder: Path) -> list[str]:
    """Its names, sorted; none for a link, or what belongs to others."""
    try:
        with _opened(folder) as opened:
            return sorted(os.listdir(opened))
    except OSError:
        return []


def _open_to_others(error: OSError, project: Path, environ: Mapping[str, str]) -> OpenStateError:
    found = open_state(project, environ)
    what = str(found or _sentence(error, project))
    folder = Path(error.filename or project / NAME)
    tops = (config_home(environ) / KEY_FILE, project / NAME, _outside_name(project, environ))
    anew = next((top for top in tops if top in (folder, *folder.parents)), None)
    remove = f"; to begin anew: rm -r {shlex.quote(str(anew))}" if anew else ""
    return OpenStateError(
        f"{what}: what blobsync remembers of this project may not be yours, so it is not used before you accept it",
        folder=str(folder),
        project=None,
        root=str(project),
        question=found.question if found else what,
        hint=f"to accept it, and close it to others: {TRUST_STATE}{remove}",
    )


def trust_state(project: Path, environ: Mapping[str, str], *, both: bool = False) -> TrustedState:
    """Accept the state folder in the project as the user's own, whoever created it: its records count from now on, and
    others can write to it no longer.

    A folder of the project at another path gets a new ID, because the project may be a copy; with ``both`` it
    is the same project under both paths. Raises ``LocalFileError`` if blobsync cannot use a folder in the project.
    """
    closed = close_state(project, environ)
    try:
        key = user_key(environ)
        above = _above(project)
        found = _look(above, project, key)
        if isinstance(found, _Doubtful):
            own_folder(found.folder)
            known, seal = found.seal, StateSeal.fresh(project)
            if both and known is not None:
                seal = StateSeal(known.id, (*known.paths, *seal.paths))
            write_seal(found.folder, seal, key, replaces=True)
            return TrustedState(found.folder, seal, is_new=True, closed=closed)
        own = found or _make(above, project, key)
        with _opened(own) as folder:
            kept = read_seal(folder, own.name, key)
    except OSError as error:
        if closed and error.errno in _NO_PLACE:
            # What was closed is the folder outside of the project, which has no seal.
            return TrustedState(_outside(project, environ), StateSeal("", (str(project),)), is_new=False, closed=closed)
        place = error.filename or project / NAME
        raise LocalFileError(f"{place}: {error.strerror}", path=str(place)) from error
    return TrustedState(own, kept or StateSeal.fresh(project), is_new=False, closed=closed)


class _Doubtful(NamedTuple):
    """A state folder that may be somebody else's; ``seal``: the user's own, for the project at another path."""

    folder: Path
    seal: StateSeal | None


def _inside(project: Path, environ: Mapping[str, str]) -> Path:
    key = user_key(environ)
    above = _above(project)
    found = _look(above, project, key)
    if isinstance(found, _Doubtful):
        raise _untrusted(found, project)
    return found or _make(above, project, key)


def _above(project: Path) -> Path:
    folder = project / NAME
    try:
        own_folder(folder)
    except OpenToOthersError:
        if any(_STATE_NAME.fullmatch(name) for name in os.listdir(folder)):
            raise
        from blobsync.local.private_folders import close_to_others  # late: few are open to others

        # Nothing in it counts.
        close_to_others(folder)
    _ignore_in_git(folder)
    return folder


def _make(above: Path, project: Path, key: SealKey) -> Path:
    """Create a new one, sealed before anything is in it."""
    own = above / _names(project, key)[0]
    own_folder(own)
    write_seal(own, StateSeal.fresh(project), key, replaces=False)
    with _opened(own) as folder:
        if read_seal(folder, own.name, key) is None:
            # The seal was invalid; the folder is empty otherwise.
            write_seal(own, StateSeal.fresh(project), key, replaces=True)
    return own


def _names(project: Path, key: SealKey) -> tuple[str, str]:
    """The name of a folder for the project at this path, and the name that earlier versions used for any project."""
    own = key.derive("state folder", os.path.realpath(project)).secret
    earlier = hmac.new(key.secret, b"blobsync state 1", hashlib.sha256).digest()
    return f"state-{own.hex()[:_MARK_CHARS]}", f"state-{earlier.hex()[:_MARK_CHARS]}"


def _look(above: Path, project: Path, key: SealKey) -> Path | _Doubtful | None:
    """The project's own state folder, or one that may be; None if there is neither. Raises ``OSError``."""
    expected = _names(project, key)
    others = (each.name for each in os.scandir(above) if _STATE_NAME.fullmatch(each.name))
    doubtful: list[_Doubtful] = []
    for name in dict.fromkeys((*expected, *sorted(others))):
        folder = above / name
        try:
            with _opened(folder) as opened:
                # Checked first: what another process creates at this moment is sealed before it has contents. A killed
                # process may have left a half-written seal.
                filled = name in expected and any(not each.startswith(SEAL_FILE) for each in os.listdir(opened))
                seal = read_seal(opened, name, key)
                if seal is not None or filled:
                    demand_ours(os.fstat(opened), folder)
                    demand_closed_inside(opened, folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            if isinstance(error, OpenToOthersError) or name in expected:
                raise
            # Another user's.
            continue
        if seal is not None and seal.is_of(project):
            return folder
        if seal is not None or filled:
            doubtful.append(_Doubtful(folder, seal))
    # A folder that the user's own key has sealed is more likely the right one.
    return min(doubtful, key=lambda each: each.seal is None, default=None)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    fd = os.open(folder, _FOLDER)
    try:
        yield fd
    finally:
        os.close(fd)


def _untrusted(found: _Doubtful, project: Path) -> UntrustedStateError:
    remove = f"if not, remove it: rm -r {shlex.quote(str(found.folder))}"
    if found.seal is None:
        return UntrustedStateError(
            f"{found.folder} may be yours, from an earlier version of blobsync, or have come with the project from "
            "somebody else; its records would say which files are verified, so it is not used before you accept it",
            folder=str(found.folder),
            project=None,
            root=str(project),
            question=f"{found.folder} is from an earlier version of blobsync, or came with this project from somebody"
            " else. Have you used blobsync here before, and are its records yours?",
            hint=f"if you have used blobsync in this project before: {TRUST_STATE}; {remove}",
        )
    there = " and ".join(found.seal.paths)
    return UntrustedStateError(
        f"{found.folder} was kept for the project at {there}, and this one is at {os.path.realpath(project)}: "
        "it is not used before you accept it",
        folder=str(found.folder),
        project=there,
        root=str(project),
        question=f"{found.folder} was kept for the project at {there}. Did you move or copy that project here?",
        hint=f"if you moved or copied the project: {TRUST_STATE} (with --both if it is one project under two paths); "
        f"{remove}",
    )


def _outside(project: Path, environ: Mapping[str, str]) -> Path:
    own = _outside_name(project, environ)
    make_private(own.parent)
    own_folder(own.parent)
    own_folder(own)
    with _opened(own) as opened:
        demand_closed_inside(opened, own)
    return own


def _outside_name(project: Path, environ: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(str(project).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return state_home(environ) / f"{project.name}-{digest}"


def _ignore_in_git(folder: Path) -> None:
    # Keep the index and receipts out of commits. Never through a link that came with the project.
    with suppress(FileExistsError):
        fd = os.open(folder / ".gitignore", _NEW, 0o644)
        with open(fd, "w", encoding="utf-8") as file:
            file.write("*\n")


def _key(home: Path) -> bytes:
    """The user's key, created if missing. Raises ``OSError`` if there is none that only the user knows."""
    make_private(home)
    file = home / KEY_FILE
    if not file.exists():
        replace_file(file, os.urandom(KEY_BYTES), if_missing=True)
    fd = os.open(file, _READ)
    with open(fd, "rb") as stream:
        demand_ours(os.fstat(fd), file, is_secret=True)
        key = stream.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise OSError(22, "it is not a valid key: remove it, and blobsync creates a new one", str(file))
    return key
