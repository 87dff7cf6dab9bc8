"""The user's own folders outside all projects: installed programs, remembered state, user configuration.

``os.environ`` is used where a caller passes none. It must not be a parameter default: ``help()`` and editors print
defaults, and so every secret in it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from blobsync.base.errors import ConfigError


def environment(given: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return ``given``, even if it is empty; the process's own environment if it is None."""
    return os.environ if given is None else given


def listed_in(environ: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Split a variable that holds several words, separated by commas or blanks."""
    return tuple(environ.get(name, "").replace(",", " ").split())


# In bytes; a list of hosts and names is far smaller.
_MAX_SIZE = 1_000_000
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def data_home(environ: Mapping[str, str] | None = None) -> Path:
    """``$XDG_DATA_HOME/blobsync``, by default ``~/.local/share/blobsync``; does not create it."""
    return _own_folder(environment(environ), "XDG_DATA_HOME", ".local/share")


def state_home(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/blobsync``, by default ``~/.local/state/blobsync``; does not create it."""
    return _own_folder(environ, "XDG_STATE_HOME", ".local/state")


def config_home(environ: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/blobsync``, by default ``~/.config/blobsync``; does not create it."""
    return _own_folder(environ, "XDG_CONFIG_HOME", ".config")


def _own_folder(environ: Mapping[str, str], variable: str, default: str) -> Path:
    """https://specifications.freedesktop.org/basedir-spec/latest/: relative values must be ignored."""
    given = Path(environ.get(variable, ""))
    return (given if given.is_absolute() else Path(environ.get("HOME") or Path.home(), default)) / "blobsync"


def make_private(folder: Path) -> None:
    """Create the folder if it is missing, and those above it that are, all for the user alone.

    ``mkdir(parents=True)`` leaves the ones above to the umask, which on many systems lets a group write.
    """
    if not folder.is_dir():
        make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def is_own(owner: int, user: int, environ: Mapping[str, str]) -> bool:
    """Whether a file of ``owner`` counts as ``user``'s own (both are numbers); under sudo, so do the caller's files."""
    return owner == user or (user == 0 and environ.get("SUDO_UID") == str(owner))


def user_name(uid: int) -> str:
    """The name of a user; the number if a container runs under one that has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def read_own(file: Path) -> str | None:
    """Read a file that only the user can have written; None if there is none. Raises ``ConfigError``."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            _refuse_other_users(os.fstat(stream.fileno()), file)
            # A link is followed, since dot files often are links; anyone who can write to its folder could replace it.
            _refuse_other_users(os.stat(file.resolve().parent), file.resolve().parent)
            _refuse_other_users(os.stat(file.parent), file.parent)
            data = stream.read(_MAX_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(file)) from error
    if len(data) > _MAX_SIZE:
        raise ConfigError(f"is larger than {_MAX_SIZE:,} bytes", file=str(file))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=str(file)) from error


@contextmanager
def naming_damage(file: Path, way_out: str) -> Iterator[None]:
    """Convert what a damaged file raises while its text is read to ``ConfigError``; ``way_out`` is the hint."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ConfigError("is damaged, or was not written by blobsync", file=str(file), hint=way_out) from error


def replace_file(file: Path, content: bytes, mode: int = 0o600, *, if_missing: bool = False) -> None:
    """Write a file that has all its content from the start; what is in its place is replaced, and no link followed.

    ``if_missing``: it stays, also if another process puts it there at this moment. Raises ``OSError``.
    """
    part = file.with_name(f"{file.name}.{os.urandom(4).hex()}")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with open(fd, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(fd)
        if not if_missing or not _linked(part, file):
            part.replace(file)
    finally:
        with suppress(OSError):
            part.unlink()


def _linked(part: Path, file: Path) -> bool:
    """Whether ``file`` is there, if need be as another name of ``part``; False if there can be no such names."""
    try:
        os.link(part, file)
    except FileExistsError:
        return True
    except OSError:
        return False
    return True


def write_own(file: Path, text: str) -> None:
    """Replace the file, readable for the user alone; creates its folder. Raises ``ConfigError``."""
    try:
        make_private(file.parent)
        replace_file(file, text.encode("ascii"))
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(file)) from error


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold the lock of ``file``, which is made if it is missing; nothing on a file system without locks.

    Raises ``OSError`` if it cannot be opened.
    """
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def is_locked(file: Path) -> bool:
    """Whether another process holds the lock of ``file``; nobody does if it is missing."""
    with suppress(FileNotFoundError), file.open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def locked_own(file: Path) -> Iterator[None]:
    """Hold a lock so that no other process reads and replaces the file meanwhile.

    There is no lock in a folder that cannot be written: writing reports the error.
    """
    with ExitStack() as held:
        with suppress(OSError):
            make_private(file.parent)
            held.enter_context(locked(file.with_name(f"{file.name}.lock")))
        yield


def remove_own(folder: Path, suffix: str, *, before: float) -> None:
    """Remove files of one of the user's own folders that were last written ``before`` (seconds since 1970)."""
    with suppress(OSError):
        for file in folder.iterdir():
            if file.suffix == suffix and file.lstat().st_mtime < before:
                file.unlink()


def _refuse_other_users(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            "belongs to another user, so blobsync does not use it",
            file=str(path),
            hint=f"remove {path}, or change its owner",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & _WRITABLE_BY_OTHERS:
        raise ConfigError(
            f"is writable by other users (mode {mode:o}), so blobsync does not use it",
            file=str(path),
            hint=f"chmod go-w '{path}'",
        )
