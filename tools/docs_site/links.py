"""The links of the pages to elsewhere: listed at each build, as no build may ask the network.

Those inside the site are Sphinx's to check, headings included.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

_LINK = re.compile(r"\]\((https?://[^)\s]+)\)|<(https?://[^>\s]+)>")


def external_links(source: Path) -> Mapping[str, Sequence[str]]:
    """Each address outside the site, sorted, with the pages that link to it."""
    found: dict[str, list[str]] = defaultdict(list)
    for page in sorted(source.rglob("*.md")):
        for match in _LINK.finditer(page.read_text(encoding="utf-8")):
            found[match[1] or match[2]].append(page.relative_to(source).as_posix())
    return {address: sorted(set(found[address])) for address in sorted(found)}


def write_external_links(source: Path, file: Path) -> None:
    """The list, one address on a line."""
    lines = [f"{address}  {', '.join(pages)}" for address, pages in external_links(source).items()]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
