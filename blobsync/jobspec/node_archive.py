"""The node archive: the part of blobsync that runs on compute nodes, as one zip of pure Python.

It contains the rooms that ``blobsync.node`` may call, and the installed urllib3. The same sources give the same bytes
on every machine, and its name is its SHA-256. It is made once per version, cached in the user's state folder, and
uploaded beside the code archive by the first job that needs it.
"""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field
from importlib import util
from pathlib import Path, PurePosixPath

from blobsync.base.errors import AccessDeniedError, ArchiveError, PreconditionFailedError
from blobsync.base.records import dataclass
from blobsync.base.user_folders import make_private, replace_file, state_home
from blobsync.jobspec.interactive import HOLDER
from blobsync.jobspec.spec import CodeRef, JobSpec, NodeArchiveRef
from blobsync.local.state_dir import user_key
from blobsync.store.protocol import ANYTHING, BlobProperties, BlobStore, Precondition

_PACKAGE = Path(__file__).parent.parent
ENTRY = "blobsync.node.__main__"
# The command line, and rooms that only it needs: none of the others imports them.
NOT_ON_NODES = ("__main__.py", "azcopy", "backends", "cli", "emulator", "jobs", "project", "tunnels", "web")
# The only dependency, which itself has none.
OUTSIDE = "urllib3"
MAIN = f"""\
import sys

if sys.version_info < (3, 10):
    sys.exit("blobsync needs Python 3.10 or newer; this is " + sys.version.split()[0])
from {ENTRY} import main

sys.exit(main(sys.argv[1:]))
"""

# The bootstrap of a node, and its helper for an old Python.
TRAVELLING = ("bootstrap.py", "old_python.py")
# The kind of the cached archive's seal.
_SEALED = "node archive"
# The earliest date of a zip: the bytes must not depend on dates.
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o100644 << 16
_KEPT_CODE = re.compile(r"(.+\.d)/[0-9a-f]{64}\.zip")
_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice)\b.*")
_NATIVE = re.compile(r".*\.(so|pyd|dll|dylib|a|o)(\.[0-9.]+)?")


@dataclass(frozen=True, slots=True)
class NodeArchive:
    """The zip and its SHA-256 (hexadecimal)."""

    body: bytes = field(repr=False)
    digest: str

    def beside(self, code: CodeRef) -> NodeArchiveRef:
        """Its blob for a job that runs this code: in the same container, next to the code archives."""
        kept = _KEPT_CODE.fullmatch(code.blob)
        folder = kept[1] if kept else f"{code.blob}.d"
        return NodeArchiveRef(code.container, f"{folder}/node/{self.digest}.zip", self.digest, len(self.body))


def node_archive(environ: Mapping[str, str]) -> NodeArchive:
    """The archive of this version of blobsync, from the user's state folder or made now.

    Raises ``ArchiveError`` where the installed urllib3 is not pure Python.
    """
    outside = _outside_folder()
    version = _key(_PACKAGE, outside)
    kept = state_home(environ) / "node" / f"{version}.zip"
    # Nodes run it, so a file without our seal is ignored. Without a cache it is made again.
    with suppress(OSError):
        body = user_key(environ).opened(_SEALED, "", version, kept.read_bytes())
        if body is not None:
            return NodeArchive(body, hashlib.sha256(body).hexdigest())
    body = pack({**blobsync_sources(), **outside_sources(outside)})
    with suppress(OSError):
        _keep(kept, user_key(environ).seal(_SEALED, "", version, body))
    return NodeArchive(body, hashlib.sha256(body).hexdigest())


def travelling_sources(spec: JobSpec) -> dict[str, str]:
    """The files sent with a job, by name: the bootstrap, which fetches the archive, and the program of a hold."""
    return {**{name: standalone_source(name) for name in TRAVELLING}, **holder_source(spec)}


def holder_source(spec: JobSpec) -> dict[str, str]:
    """The program of an interactive job, by name; empty for other jobs."""
    return {HOLDER: standalone_source(HOLDER)} if spec.hold else {}


def standalone_source(name: str) -> str:
    """The text of a file of ``node/standalone``."""
    return (_PACKAGE / "node" / "standalone" / name).read_text(encoding="utf-8")


def publish(archive: NodeArchive, ref: NodeArchiveRef, store: BlobStore) -> None:
    """Upload the archive to ``ref`` unless it exists. Raises errors of the store, with a hint."""
    there = store.head(ref.path)
    if there is not None and there.size == ref.size:
        return
    properties = BlobProperties(content_type="application/zip")
    condition = Precondition(absent=True) if there is None else ANYTHING
    md5 = hashlib.md5(archive.body).digest()
    try:
        store.put(ref.path, archive.body, md5=md5, properties=properties, condition=condition)
    except PreconditionFailedError:
        # Another process has just uploaded the same.
        pass
    except AccessDeniedError as error:
        error.hint = (
            f"the part of blobsync that runs on nodes belongs at {ref.path}: use a credential for code_path that may "
            "write, or let somebody who has one submit a job with this version of blobsync"
        )
        raise


def pack(sources: Mapping[str, bytes], main: str = MAIN) -> bytes:
    """A zip of these files and ``__main__.py``. Not compressed, since versions of zlib differ."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, body in sorted({**sources, "__main__.py": main.encode()}.items()):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system, entry.external_attr = 3, _MODE
            archive.writestr(entry, body)
    return buffer.getvalue()


def blobsync_sources() -> dict[str, bytes]:
    """All modules of ours but those of ``NOT_ON_NODES``, by name in the archive."""
    return {
        file.relative_to(_PACKAGE.parent).as_posix(): file.read_bytes()
        for file in _PACKAGE.rglob("*.py")
        if file.relative_to(_PACKAGE).parts[0] not in NOT_ON_NODES
    }


def _outside_folder() -> Path:
    found = util.find_spec(OUTSIDE)
    if found is None or not found.origin:
        raise ArchiveError(f"{OUTSIDE} is not installed as files", hint=f"pip install --force-reinstall {OUTSIDE}")
    return Path(found.origin).parent


def outside_sources(folder: Path) -> dict[str, bytes]:
    """The package's modules and its licence. Raises ``ArchiveError`` for native code."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    native = next((path for path in files if _NATIVE.fullmatch(path.name)), None)
    if native:
        raise ArchiveError(
            f"{native} is a native module, and nodes take pure Python only",
            hint=f"pip install --force-reinstall {OUTSIDE}",
        )
    found = {path.relative_to(folder.parent).as_posix(): path.read_bytes() for path in files if path.suffix == ".py"}
    return {**found, **_licence()}


def _licence() -> dict[str, bytes]:
    # Slow to import, and not needed for a cached archive.
    from importlib import metadata

    installed = metadata.distribution(OUTSIDE)
    licences = [file for file in installed.files or () if _LICENCE.fullmatch(PurePosixPath(file).name)]
    if licences:
        return {f"{OUTSIDE}/{file.name}": Path(str(file.locate())).read_bytes() for file in licences}
    return {f"{OUTSIDE}/METADATA": (installed.read_text("METADATA") or "").encode()}


def _key(*folders: Path) -> str:
    """A key of the files' names, sizes and times; faster than reading them."""
    facts = [f"{MAIN}\0"]
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in (".pyc", "") and path.is_file():
                found = path.stat()
                facts.append(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0")
    return hashlib.sha256("".join(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _keep(kept: Path, sealed: bytes) -> None:
    make_private(kept.parent)
    replace_file(kept, sealed)
    # One version is enough: running jobs have their own.
    for path in kept.parent.glob("*.zip"):
        if path != kept:
            path.unlink(missing_ok=True)
