"""Adds, removes and lists the links out of the project that the user trusts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import UsageError
from blobsync.config.mapping import project_relative
from blobsync.config.trusted_links import TRUSTED_LINKS, OutsideLink
from blobsync.local.link_policy import way_to


def agreed(root: Path, environ: Mapping[str, str]) -> tuple[OutsideLink, ...]:
    """The links that the user trusts in this project."""
    return tuple(sorted(TRUSTED_LINKS.load(root, environ)))


def agree(root: Path, cwd: Path, paths: Sequence[str], environ: Mapping[str, str]) -> tuple[OutsideLink, ...]:
    """Trust each link out of the project on the way to ``paths``, with its present target.

    Raises ``UsageError`` for a path without one.
    """
    found: list[OutsideLink] = []
    for given in paths:
        path = project_relative(given, cwd=cwd, root=root)
        links = way_to(root, path, frozenset()).untrusted
        if not links:
            raise UsageError(
                f"{path}: no symlink points outside the project there", hint="'ls -l' shows where links lead"
            )
        found += links
    trust(root, found, environ)
    return tuple(dict.fromkeys(found))


def trust(root: Path, links: Iterable[tuple[str, str]], environ: Mapping[str, str]) -> None:
    """Trust exactly these links; each replaces a trusted one of the same path."""
    new = {OutsideLink(*link) for link in links}
    places = {link.link for link in new}
    TRUSTED_LINKS.change(root, environ, lambda known: {link for link in known if link.link not in places} | new)


def forget(root: Path, cwd: Path, paths: Sequence[str], environ: Mapping[str, str]) -> tuple[OutsideLink, ...]:
    """Stop trusting the links at ``paths``. Raises ``UsageError`` for one that was not trusted."""
    places = {project_relative(given, cwd=cwd, root=root) for given in paths}
    gone: set[OutsideLink] = set()

    def without(known: frozenset[OutsideLink]) -> frozenset[OutsideLink]:
        gone.update(link for link in known if link.link in places)
        for path in sorted(places - {link.link for link in gone}):
            raise UsageError(f"{path} is not trusted", hint="'blobsync config trust-link' lists the trusted links")
        return known - gone

    TRUSTED_LINKS.change(root, environ, without)
    return tuple(sorted(gone))
