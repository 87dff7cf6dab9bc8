"""A quick look for blobs of which nothing is committed: an ordinary listing does not have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from blobsync.base.errors import StorageError
from blobsync.store.rest.xml import BadAnswerError, names_without_content, next_marker


def blobs_without_content(
    list_page: Callable[[Mapping[str, str], str], bytes], prefix: str, pages: int
) -> Iterator[str]:
    """Names below ``prefix`` that have no bytes, among them those with uncommitted blocks only; of the first pages.

    https://learn.microsoft.com/rest/api/storageservices/list-blobs: of the latter the service tells next to nothing.
    """
    query = {"restype": "container", "comp": "list", "include": "uncommittedblobs", "prefix": prefix}
    marker = ""
    for _ in range(pages):
        page = list_page(query, marker)
        try:
            yield from names_without_content(page)
            marker = next_marker(page)
        except BadAnswerError as error:
            raise StorageError(f"cannot parse the listing below {prefix!a}: {error}") from error
        if not marker:
            return
