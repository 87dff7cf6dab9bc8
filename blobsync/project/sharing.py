"""Links for others: to a blob, or to a folder in the ways that the service supports.

A link contains a signature, and anyone who has it has its rights until it expires. Only an account with a hierarchical
namespace can sign for one folder (``sr=d``); elsewhere a folder is one link for each of its blobs, or a link that opens
the whole container, which must be requested explicitly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from blobsync.base.errors import UnsafeNameError, UsageError
from blobsync.base.locations import reaches_another
from blobsync.base.records import dataclass
from blobsync.config.mapping import Resolution
from blobsync.project.browse import blob_at, list_path
from blobsync.store.open_locations import Connections


@dataclass(frozen=True, slots=True, repr=False)
class Link:
    """``scope`` is what the link opens: ``blob``, ``folder`` or ``container``. ``url`` is a secret."""

    path: str
    url: str
    scope: str
    warning: str | None = None

    def __repr__(self) -> str:
        return f"Link({self.path!r}, {self.scope})"


def make_links(
    connections: Connections,
    place: Resolution,
    inner: Sequence[Resolution],
    *,
    each: bool,
    container: bool,
    sign: Callable[[Resolution, str], str],
) -> Iterator[Link]:
    """The links for one path; ``inner`` are nested folder entries.

    ``each``: one link per blob of a folder; ``container``: one that opens the whole container. ``sign`` makes the URL
    of a place with that scope. Raises ``NothingMatchedError``, ``CredentialError``, and ``UsageError`` for a folder
    that one link cannot cover.
    """
    if each and container:
        raise UsageError("--each and --container cannot be combined")
    end = connections.open(place.remote)
    is_blob = blob_at(end, place) is not None
    entries = list_path(connections, place, inner, recursive=True)
    first = next(entries)
    account = place.entry.account
    if container:
        warning = (
            f"this link opens everything in the container {account.container_name} of {account.account_name}, "
            f"not only {place.path}"
        )
        yield Link(place.path, sign(place, "container"), "container", warning)
    elif is_blob:
        yield Link(place.path, sign(place, "blob"), "blob")
    elif each:
        for entry in chain([first], entries):
            if why := reaches_another(entry.path):
                raise UnsafeNameError(f"{entry.path}: no link for it, its name {why}", path=entry.path)
            yield Link(entry.path, sign(_place_of(entry.path, place, inner), "blob"), "blob")
    elif end.name and end.store.features().hns:
        yield Link(place.path, sign(place, "folder"), "folder", _warn_of_nested(inner))
    else:
        raise UsageError(
            f"{place.path} is a folder, and {account.account_name} can sign for one blob or the whole container "
            f"{account.container_name}, not for a folder",
            hint="--each makes a link for each blob; --container makes one that opens everything in the container",
        )


def _place_of(path: str, place: Resolution, inner: Sequence[Resolution]) -> Resolution:
    """A listed blob by its exact name: ``..`` in a name has no meaning for the service."""
    owner = next((other for other in inner if path.startswith(f"{other.path}/")), place)
    return owner._replace(path=path, remote=owner.remote.child(path[len(owner.path) + 1 :]))


def _warn_of_nested(inner: Sequence[Resolution]) -> str | None:
    if not inner:
        return None
    named = ", ".join(other.path for other in inner)
    return f"this link does not open {named}: that folder entry is stored elsewhere and needs a separate link"
