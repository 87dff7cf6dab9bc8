"""The version of the installed package, from the git tag at build time."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("blobsync")
except metadata.PackageNotFoundError:
    # Without package metadata, as on a node, it is unknown.
    __version__ = "0.0.0"
