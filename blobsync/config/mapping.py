"""Maps a path of the project to its blob. Does no I/O.

The folder entry with the longest prefix wins, and a prefix covers whole names only: ``data`` covers
``data/voc`` but not ``data2``. Paths are used as written; symlinks are not resolved. Azure file shares are mapped to
nothing: jobs of Azure ML mount them, no transfer reaches one, and the error names the tool that does.
"""

import os
import posixpath
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote, urlsplit

from blobsync.base.errors import MappingError, OutsideProjectError, UnmappedPathError, UsageError
from blobsync.base.locations import MAX_NAME_CHARS, BlobLocation, reaches_another
from blobsync.base.records import NamedTuple
from blobsync.config.known_keys import did_you_mean, nearest
from blobsync.config.model import Cluster, FolderEntry

_BLOB, _FILE = ".blob.", ".file."

# As callers of the API give them.
PathName = str | os.PathLike[str]
Paths = PathName | Iterable[PathName]


def share_url(entry: FolderEntry, relative: str = "") -> str:
    """The URL of ``relative`` in an entry's file share, at the account's file endpoint."""
    account = entry.account
    host = urlsplit(account.blob_endpoint).netloc
    host = host.replace(_BLOB, _FILE, 1) if _BLOB in host else f"{account.account_name}.file.core.windows.net"
    return f"https://{host}/{quote(posixpath.join(entry.file_share or '', entry.path, relative).rstrip('/'))}"


def entry_url(entry: FolderEntry) -> str:
    """The URL of a folder entry: a share, or a folder of a container."""
    return share_url(entry) if entry.storage_type == "file" else str(entry.remote)


def share_error(entry: FolderEntry, path: str, local: Path, given: str, *, uploads: bool) -> MappingError:
    """The error for a transfer or a listing of ``path`` in a share; ``uploads`` reverses the azcopy command in it.

    azcopy takes a login or a SAS for a share, no account key:
    https://learn.microsoft.com/azure/storage/common/storage-use-azcopy-authorize-azure-active-directory
    """
    relative = path[len(entry.prefix) + 1 :]
    there, here = shlex.quote(share_url(entry, relative)), shlex.quote(str(local))
    ends = f"{here} {there} --from-to LocalFile" if uploads else f"{there} {here} --from-to FileLocal"
    copy = f'AZCOPY_AUTO_LOGIN_TYPE=AZCLI "$(blobsync azcopy path)" copy {ends} --recursive --as-subdir=false'
    return MappingError(
        f"{path} belongs to {entry.key}, an Azure file share (storage_type: file), which only jobs can use",
        path=given,
        hint=f"after az login: {copy}; or mount the share, make {entry.prefix} a link to it, and use mode: link",
    )


class Resolution(NamedTuple):
    """Both ends of one path.

    ``given`` is what the user typed, ``path`` the same from the project's root, without ``./`` or a slash at
    its end. ``relative`` is the part below ``entry``'s prefix. ``folder_only``: the user ended it
    with a slash and means the folder, never a blob of that name. ``nested`` are entries with a mapping of their own
    below this path. ``why`` is a sentence for the user.
    """

    given: str
    path: str
    entry: FolderEntry
    relative: str
    local: Path
    remote: BlobLocation
    folder_only: bool
    nested: tuple[FolderEntry, ...]
    why: str

    def __repr__(self) -> str:
        return f"<Resolution {self.path!r}: {self.remote}>"


def resolve(given: str, *, cwd: Path, root: Path, cluster: Cluster, uploads: bool = False) -> Resolution:
    """Find the folder entry of ``given``, a path relative to ``cwd`` or absolute; both folders are absolute.

    ``uploads``: local files go to the container, which matters only to the error about a file share.

    Raises ``MappingError``, ``OutsideProjectError`` or ``UnmappedPathError``.
    """
    path = project_relative(given, cwd=cwd, root=root)
    if why := reaches_another(path):
        plain = path.replace("\\", "/")
        raise MappingError(
            f"{path} {why}",
            path=given,
            hint=f"for the folder or blob {plain} write '/'; a local file with such a name has to be renamed",
        )
    covering = [entry for entry in cluster.folders if is_below(path, entry.prefix)]
    if not covering:
        raise _unmapped(path, cluster)
    entry = max(covering, key=lambda entry: len(entry.prefix))
    if entry.storage_type == "file":
        raise share_error(entry, path, root / path, given, uploads=uploads)
    relative = path[len(entry.prefix) + 1 :]
    remote = entry.remote.child(relative)
    if len(remote.name) > MAX_NAME_CHARS:
        raise MappingError(f"the blob's name would be longer than {MAX_NAME_CHARS} characters", path=given)
    return Resolution(
        given=given,
        path=path,
        entry=entry,
        relative=relative,
        local=root / path,
        remote=remote,
        folder_only=given.endswith(("/", "/.", "/..")) or given in (".", ".."),
        nested=tuple(other for other in cluster.folders if other.prefix != path and is_below(other.prefix, path)),
        why=_why(path, entry, covering, cluster),
    )


def one_or_many(paths: Paths, *, or_none: bool = False) -> list[str]:
    """The paths as texts. Raises ``UsageError`` if there is none, ``TypeError`` for other objects."""
    if isinstance(paths, (str, os.PathLike)):
        return [path_text(paths)]
    found = [path_text(path) for path in paths]
    if not found and not or_none:
        raise UsageError("no path given", hint="a path inside the project, such as data/voc20")
    return found


def path_text(path: PathName) -> str:
    """A path as a text. Raises ``TypeError`` for other objects, including bytes."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"a path is a str or a pathlib.Path, not {type(text).__name__}")
    return text


_INSIDE = (
    "give a path inside it, such as data/voc20; what is elsewhere can be linked there: ln -s TARGET data/NAME, then"
    " blobsync config trust-link data/NAME"
)


def project_relative(given: str, *, cwd: Path, root: Path) -> str:
    """``given`` from the project's root, ``.`` for the root itself. Raises ``MappingError``."""
    if not given or "\0" in given:
        raise MappingError("a path must not be empty" if not given else "a path must not contain a NUL", path=given)
    try:
        given.encode()
    except UnicodeEncodeError as error:
        shown = given.encode("utf-8", "backslashreplace").decode()
        raise MappingError(f"{shown} is not UTF-8, and blob names must be", path=shown) from error
    absolute = posixpath.normpath(posixpath.join(str(cwd), given))
    if absolute.startswith("//"):
        # In POSIX, two leading slashes may have another meaning, and normpath keeps them.
        absolute = absolute[1:]
    if not is_below(absolute, str(root)):
        raise OutsideProjectError(f"{given} is outside the project {root}", path=given, hint=_INSIDE)
    return posixpath.relpath(absolute, str(root))


def is_below(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or is inside it, by whole names."""
    return path == folder or folder == "." or path.startswith(folder if folder.endswith("/") else f"{folder}/")


def entries_within(cluster: Cluster, path: str, folder: BlobLocation) -> Iterator[tuple[FolderEntry, str]]:
    """Entries whose blobs are in ``folder``, the blobs of ``path``, but not its files; each with where in it."""
    for entry in cluster.folders:
        is_blob = entry.storage_type == "blob" and not entry.account.is_source
        if is_blob and entry.account.container == folder.container and is_below(entry.path, folder.name or "."):
            relative = entry.path[len(folder.name) :].strip("/")
            if entry.prefix != posixpath.join(path, relative).rstrip("/"):
                yield entry, relative


def _unmapped(path: str, cluster: Cluster) -> UnmappedPathError:
    known = ", ".join(cluster.prefixes) or "none"
    below = [entry.prefix for entry in cluster.folders if is_below(entry.prefix, path)]
    if path == ".":
        message = f"the project root has no blob folder, only these folders have one ({known})"
        return UnmappedPathError(message, path=path, hint=f"name one: {below[0]}" if below else None)
    message = f"{path} is not covered by any folder entry of {cluster.file}; entries: {known}"
    first, slash, rest = path.partition("/")
    guess = nearest(first, cluster.prefixes)
    if below:
        hint = f"entries below it: {', '.join(below)}"
    elif guess:
        hint = f"did you mean {guess}{slash}{rest}?"
    elif not rest and PurePosixPath(first).suffix:
        # A file beside the folders, most often of the project's code.
        hint = "put it into one of these folders; code goes to jobs with blobsync init"
    else:
        hint = did_you_mean(path, cluster.prefixes) or f"add {first}_folder under config_param"
    return UnmappedPathError(message, path=path, hint=hint)


def _why(path: str, entry: FolderEntry, covering: list[FolderEntry], cluster: Cluster) -> str:
    container = entry.account.container
    there = f"{entry.path or 'the top'} in container {container.name} of account {container.account}"
    lead = f"{entry.key} in {cluster.file} maps {entry.prefix} to {there}"
    others = [other.prefix for other in covering if other is not entry]
    if others:
        lead += f"; it is the longest prefix of {path} (also: {', '.join(others)})"
    return lead
