"""Which symlinks are followed: those within the project, and those out of it that are trusted with this very target;
and how the user trusts one, or does so no longer."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import LocalFileError, UntrustedLinkError, UsageError
from blobsync.base.plan_reasons import Reason
from blobsync.base.records import NamedTuple
from blobsync.config.mapping import is_below, project_relative
from blobsync.config.project_root import PROJECT_MARK
from blobsync.config.trust_store import TRUSTED_LINKS, OutsideLink, trust_command
from blobsync.local.state_dir import NAME as STATE_DIR_NAME


class LinkPolicy(NamedTuple):
    """What to do about symlinks: ``follow``, ``skip`` or ``error``.

    ``project`` is its real path, ``shown`` the walked folder from the project's root. ``entered`` are the real paths
    outside the project to which links on the way to this folder lead, and ``trusted`` the links out of the project
    that the user has agreed to.
    """

    mode: str
    project: str
    shown: str = ""
    entered: tuple[str, ...] = ()
    trusted: frozenset[OutsideLink] = frozenset()

    def refusal(self, path: str, real: str, chain: tuple[str, ...]) -> Reason | None:
        """Why the link ``path`` (below the walked folder) to ``real`` is not followed; None if it is.

        ``chain`` are the real paths of the linked folders that the walk went through.
        """
        if self.mode == "skip":
            return Reason.SYMLINK_SKIPPED
        if self.mode == "error":
            return Reason.SYMLINK_REFUSED
        if is_below(real, self.project):
            return Reason.SYMLINK_PROTECTED if is_protected(real, self.project) else None
        if OutsideLink(f"{self.shown}/{path}", real) in self.trusted:
            return None
        # Links inside a trusted link's target may lead anywhere in that target.
        places = (*self.entered, *(place for place in chain if not is_below(place, self.project)))
        return None if any(is_below(real, place) for place in places) else Reason.SYMLINK_OUTSIDE


class Way(NamedTuple):
    """The links on the way to a path: ``entered`` are the targets of trusted ones outside the project."""

    entered: tuple[str, ...]
    untrusted: tuple[OutsideLink, ...]


def way_to(root: Path, path: str, trusted: frozenset[OutsideLink]) -> Way:
    """Check each part of ``path`` (from the project's root, ``root``).

    Raises ``LocalFileError`` for a link into a folder of the project that holds no data.
    """
    project = os.path.realpath(root)
    entered: list[str] = []
    untrusted: list[OutsideLink] = []
    # Trusting a link means trusting the links in its target.
    opened: list[str] = []
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        link = "/".join(parts[:count])
        if not os.path.islink(root / link):
            continue
        real = os.path.realpath(root / link)
        if is_below(real, project):
            if real == project or is_protected(real, project):
                raise LocalFileError(
                    f"{link} is {Reason.SYMLINK_PROTECTED.value}, which cannot hold data",
                    hint=f"remove {link}",
                    path=link,
                )
            continue
        if OutsideLink(link, real) in trusted or any(is_below(real, place) for place in entered):
            entered.append(real)
        elif not any(is_below(real, place) for place in opened):
            untrusted.append(OutsideLink(link, real))
        opened.append(real)
    return Way(tuple(entered), tuple(untrusted))


def demand_trust(root: Path, paths: Iterable[str], trusted: frozenset[OutsideLink]) -> None:
    """Raise ``UntrustedLinkError`` if a link on the way to ``paths``, from the project's root, is not trusted."""
    links = dict.fromkeys(link for path in paths for link in way_to(root, path, trusted).untrusted)
    if links:
        where = "; ".join(f"{link.link} points to {link.target}" for link in links)
        raise UntrustedLinkError(
            f"a symlink points outside the project, and blobsync does not follow it until you trust it: {where}",
            links=tuple(links),
            hint=f"to trust it: {' && '.join(trust_command(link.link) for link in links)}",
        )


def is_protected(real: str, project: str) -> bool:
    """Whether a link to ``real``, inside the project, would open its configuration, its state or its repository."""
    parts = Path(real).relative_to(project).parts
    return ".git" in parts or STATE_DIR_NAME in parts or parts[:1] == (PROJECT_MARK,)


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
