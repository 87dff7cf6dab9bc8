"""The README as a package index shows it: there, links lead only to other hosts, and the files beside it are not there.

Hatchling runs it when it makes the metadata (``tool.hatch.metadata.hooks.custom`` in pyproject.toml). It may import
only hatchling and the standard library, and has to run where only an sdist is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<before>[!(]?)\[(?P<words>[^\]]*)\]\((?P<target>[^)\s]+)\)(?P<after>\)?)")
_NOTE = "The pages in `docs/` come with the source and with the sdist.\n"


class IndexReadme(MetadataHookInterface):
    """Build hook that puts the text into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": without_dead_links(text)}


def without_dead_links(text: str) -> str:
    """Each link to a file becomes its words and the file's name; pictures from files go."""
    shown = _LINK.sub(_alive, text)
    if shown == text:
        return text
    return re.sub(r"\n{3,}", "\n\n", f"{shown.rstrip()}\n\n{_NOTE}")


def _alive(link: re.Match[str]) -> str:
    before, words, target, after = link.group("before", "words", "target", "after")
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    if before == "!":
        return ""
    file = target.partition("#")[0]
    if words == file:
        return f"{before}{words}{after}"
    # What stands in brackets already needs no second pair.
    return f"({words}: `{file}`)" if before and after else f"{before}{words} (`{file}`){after}"
