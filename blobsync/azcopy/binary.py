"""Finds azcopy and checks it: version 10, not older than what is tested, and able to start."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from blobsync.base.errors import AzcopyError, AzcopyNotFoundError, AzcopyVersionError, ProcessError
from blobsync.base.process import Completed, ProcessRunner
from blobsync.base.records import dataclass
from blobsync.base.user_folders import data_home, environment

Version = tuple[int, int, int]

# What `blobsync azcopy install` installs and the test suite runs.
PINNED = "10.32.2"
# Older ones lack the answer to "cancel" (broken in 10.32.0 and .1), and names with "%" (10.31).
OLDEST: Version = (10, 32, 2)

VARIABLE = "BLOBSYNC_AZCOPY"
_INSTALL_HINT = f"run 'blobsync azcopy install', or set {VARIABLE} to an azcopy {OLDEST[0]}.{OLDEST[1]} program"

_VERSION = re.compile(r"azcopy version (\d+)\.(\d+)\.(\d+)")
# glibc's and musl's loaders, then the macOS one.
_MISSING_LIBRARY = re.compile(r"(?:shared library |shared libraries: |Library not loaded: )(?:\S*/)?([\w.+-]+)")


@dataclass(frozen=True, slots=True)
class Found:
    """``origin`` says where it was found, in words."""

    path: Path
    version: Version
    origin: str

    @property
    def version_text(self) -> str:
        """``10.32.2``."""
        return ".".join(str(number) for number in self.version)


def managed_path(environ: Mapping[str, str]) -> Path:
    """The path of the managed copy, whether it exists or not."""
    return data_home(environ) / "azcopy" / PINNED / "azcopy"


def find_azcopy(environ: Mapping[str, str] | None = None, *, runner: ProcessRunner | None = None) -> Found:
    """The azcopy to use, its version checked.

    The first place that has one decides, in the order of ``BLOBSYNC_AZCOPY``, the managed copy, ``PATH``,
    ``~/code/azcopy/azcopy``. Raises ``AzcopyNotFoundError``, ``AzcopyVersionError``, or ``AzcopyError`` when it is
    there and does not start.
    """
    environ = environment(environ)
    places = _places(environ)
    for origin, path in places:
        if _is_program(path):
            return Found(path, check_version(path, runner or ProcessRunner(), environ), origin)
        if origin == VARIABLE:
            raise AzcopyNotFoundError(
                f"{VARIABLE} is {path}, which is not a program", hint=_INSTALL_HINT, path=str(path)
            )
    searched = ", ".join(origin if origin == "PATH" else str(path) for origin, path in places)
    raise AzcopyNotFoundError(f"azcopy was not found; searched: {searched}", hint=_INSTALL_HINT)


def problem(environ: Mapping[str, str], *, runner: ProcessRunner | None = None) -> str | None:
    """Why azcopy cannot be used, as half a sentence; None if it can."""
    try:
        find_azcopy(environ, runner=runner)
    except AzcopyError as error:
        return error.message
    return None


def check_version(path: Path, runner: ProcessRunner, environ: Mapping[str, str]) -> Version:
    """The version of the program ``path``. Raises ``AzcopyVersionError`` for one we do not support."""
    version = _read_version(path, runner, environ)
    text = ".".join(str(number) for number in version)
    wanted = ".".join(str(number) for number in OLDEST)
    if version[0] != OLDEST[0]:
        raise AzcopyVersionError(
            f"{path} is azcopy {text}, and blobsync works with version {OLDEST[0]}", hint=_INSTALL_HINT, path=str(path)
        )
    if version < OLDEST:
        raise AzcopyVersionError(
            f"{path} is azcopy {text}, older than {wanted}, the oldest that blobsync is tested with",
            hint=_INSTALL_HINT,
            path=str(path),
        )
    return version


def _read_version(path: Path, runner: ProcessRunner, environ: Mapping[str, str]) -> Version:
    # Any call makes azcopy create its folders, which HOME may not be writable for.
    with tempfile.TemporaryDirectory(prefix="blobsync-") as home:
        env = {
            **{name: value for name, value in environ.items() if not name.startswith("AZCOPY_")},
            "HOME": home,
            "AZCOPY_LOG_LOCATION": home,
            "AZCOPY_JOB_PLAN_LOCATION": home,
            "AZCOPY_DISABLE_SYSLOG": "true",
        }
        try:
            answer = runner.run([str(path), "--version"], env=env, timeout=30.0)
        except ProcessError as error:
            raise AzcopyError(
                f"{path} does not start: {error.message}",
                hint=f"is it a program for this machine? {_INSTALL_HINT}",
                path=str(path),
            ) from error
    if found := _VERSION.search(answer.stdout):
        return int(found[1]), int(found[2]), int(found[3])
    raise _no_version(path, answer)


def _no_version(path: Path, answer: Completed) -> AzcopyError:
    said = f"{answer.stderr}\n{answer.stdout}".strip()
    if library := _MISSING_LIBRARY.search(said):
        return AzcopyError(
            f"{path} does not start: the library {library[1]} is missing", hint=remedy(library[1]), path=str(path)
        )
    last = said.splitlines()[-1] if said else "no output"
    return AzcopyError(
        f"{path} does not report its version (exit code {answer.returncode}): {last[:200]}",
        hint=_INSTALL_HINT,
        path=str(path),
    )


def remedy(library: str) -> str:
    """How to install a library that azcopy lacks, as root and without root."""
    if "libsecret" not in library:
        return f"install the package of your system that holds {library}"
    return (
        "as root: 'apt-get install libsecret-1-0' (Debian, Ubuntu) or 'dnf install libsecret' (Fedora, Red Hat); "
        "without root: 'conda install -c conda-forge libsecret' and add $CONDA_PREFIX/lib to LD_LIBRARY_PATH, or "
        "'apt-get download libsecret-1-0 && dpkg -x libsecret-1-0_*.deb ~/.local/libsecret' and add its "
        "usr/lib/<architecture> folder to LD_LIBRARY_PATH"
    )


def _places(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    places = []
    if given := environ.get(VARIABLE):
        places.append((VARIABLE, Path(given).expanduser()))
    places.append(("the managed copy", managed_path(environ)))
    folders = os.pathsep.join(filter(os.path.isabs, environ.get("PATH", "").split(os.pathsep)))
    places.append(("PATH", Path(shutil.which("azcopy", path=folders) or "azcopy")))
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    places.append(("the folder of older set-ups", home / "code" / "azcopy" / "azcopy"))
    return places


def _is_program(path: Path) -> bool:
    return path.is_absolute() and path.is_file() and os.access(path, os.X_OK)
