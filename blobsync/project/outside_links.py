"""Adds, removes and lists the links out of the project that the user trusts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import UsageError
from blobsync.config.mapping import project_relative
from blobsync.config.trusted_links import OutsideLink, load_trusted_links, save_trusted_links
from blobsync.local.link_policy import way_to


def agreed(root: Path, environ: Mapping[str, str]) -> tuple[OutsideLink, ...]:
    """The links that the user trusts in this project."""
    return tuple(sorted(load_trusted_links(root, environ)))


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
    kept = {link for link in load_trusted_links(root, environ) if link.link not in places}
    save_trusted_links(root, kept | new, environ)


def forget(root: Path, cwd: Path, paths: Sequence[str], environ: Mapping[str, str]) -> tuple[OutsideLink, ...]:
    """Stop trusting the links at ``paths``. Raises ``UsageError`` for one that was not trusted."""
    trusted = load_trusted_links(root, environ)
    gone: set[OutsideLink] = set()
    for given in paths:
        path = project_relative(given, cwd=cwd, root=root)
        links = {link for link in trusted if link.link == path}
        if not links:
            raise UsageError(f"{path} is not trusted", hint="'blobsync config trust-link' lists the trusted links")
        gone |= links
    save_trusted_links(root, trusted - gone, environ)
    return tuple(sorted(gone))
