"""The version of the installed package: that of the git tag, as it was when the package was built."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("blobsync")
except metadata.PackageNotFoundError:
    # From files alone, as on a node, it is not known.
    __version__ = "0.0.0"
