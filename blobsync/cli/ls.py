"""``ls``, ``du``, ``stat``, ``resolve`` and ``url``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.base.formatting import count_text, seconds_of, size_text, zulu_text
from blobsync.cli.commands import Commands, OptionalPaths, PathsArgument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session
from blobsync.cli.transfer import Far
from blobsync.config.loader import load_cluster
from blobsync.config.mapping import Resolution, entry_url
from blobsync.config.mapping import resolve as find_place
from blobsync.config.project_root import current_folder, find_project
from blobsync.store.sas import LINK, LINK_LIFETIME, READ_BLOB

if TYPE_CHECKING:
    from blobsync.project.api import Project
    from blobsync.project.browse import ListingEntry, PathStatus, Usage


app = Commands()


@app.command("ls", looks=True)
def ls(
    session: Session,
    far: Far,
    paths: OptionalPaths = None,
    recursive: Annotated[bool, option("-r", "--recursive", help="List everything below.")] = False,
    long: Annotated[bool, option("-l", "--long", help="Show size, time and tier.")] = False,
    sizes: Annotated[bool, option("--du", help="Show the blobs and bytes below each folder.")] = False,
    jsonl: Annotated[bool, option("--jsonl", help="Print one JSON object per line.")] = False,
    at: Annotated[str | None, option("--at", metavar="REV", help="List the lock of a git revision.")] = None,
) -> Result:
    """List blobs; without a PATH, the folder entries of the cluster.

    A path means that blob, or what is below that folder: data/voc never shows data/voc20.

    \b
      blobsync ls                       the mapped folders, and where they are
      blobsync ls data/voc20 -l         one folder
      blobsync ls 'data/voc*'           blobs and folders by pattern, in quotes
      blobsync ls data -r --jsonl       everything, in bounded memory
      blobsync ls data/x --source s3://b/x    a bucket, as it would be copied
      blobsync ls data/voc20 --at v1    what was locked in that revision
    """
    if jsonl and session.json:
        raise UsageError("--json and --jsonl cannot be combined")
    if at is not None and (sizes or not paths or far.source):
        raise UsageError("--at lists the lock of a PATH: not with --du or --source")
    project = far.of(session.project(), paths or [], looks=True)
    if not paths:
        return _usages(project, list(project.cluster.prefixes)) if sizes else _folders(project, jsonl=jsonl)
    if sizes:
        return _usages(project, [entry.path for entry in _entries(project, paths, recursive=False)])
    entries = _entries(project, paths, recursive=recursive, at=at)
    if jsonl:
        return Result(lines=(json.dumps(entry_data(entry)) for entry in entries))
    return _listing(entries, long=long) if session.json else Result(lines=_entry_lines(entries, long=long))


@app.command("du", looks=True)
def du(session: Session, paths: OptionalPaths = None) -> Result:
    """Count the blobs and bytes below each path; without a PATH, of every folder entry.

    \b
      blobsync du data/voc20
    """
    project = session.project()
    return _usages(project, _matching(project, paths) if paths else list(project.cluster.prefixes))


def _matching(project: Project, paths: Iterable[str]) -> list[str]:
    """The paths, with each pattern replaced by its matches."""
    from blobsync.plan.wildcards import is_pattern
    from blobsync.project.browse import pattern_matches

    found: list[str] = []
    for path in paths:
        if is_pattern(path):
            try:
                next(project.list(path))
            except NothingMatchedError:
                matches = pattern_matches(project.list, path)
                found += [f"{name}/" if entry.is_folder else name for name, entry in matches]
                continue
        found.append(path)
    return found


@app.command("stat", looks=True)
def stat(session: Session, paths: PathsArgument) -> Result:
    """Show each path as it is here, in the container, and as it was when both were last verified.

    \b
      blobsync stat data/voc20/a.jpg
    """
    project = session.project()
    found = [(project.resolve(path), project.stat(path)) for path in paths]
    data = {"paths": [_status_data(place, status) for place, status in found]}
    return Result(data, [line for place, status in found for line in _status_lines(place, status)], wraps=True)


@app.command("resolve", looks=True)
def resolve(session: Session, paths: PathsArgument) -> Result:
    """Show where each path lives in the container, and which key of the cluster file says so.

    Uses neither the network nor the disk.

    \b
      blobsync resolve data/voc20
    """
    places = _places(session, paths)
    lines: list[str] = []
    for place in places:
        lines += [place.path, f"  blob:  {place.remote}", f"  local: {place.local}", f"  why:   {place.why}"]
        lines += [f"  but:   {inner.prefix} has an entry of its own, {inner.remote}" for inner in place.nested]
    return Result({"paths": [_place_data(place) for place in places]}, lines, wraps=True)


def _places(session: Session, paths: list[str]) -> list[Resolution]:
    """Resolve paths without ``Project``, which imports all of the transfer code: scripts run this command often."""
    if session.from_cluster:
        raise UsageError("-f works with u, d and plan only", hint="to choose the cluster, use -c")
    cwd = current_folder(session.environ)
    root = find_project(cwd, session.environ)
    cluster = load_cluster(root, session.cluster, overrides=session.overrides(), environ=session.environ)
    session.warn(cluster)
    return [find_place(path, cwd=cwd, root=root, cluster=cluster) for path in paths]


@app.command("url", looks=True)
def url(
    session: Session,
    paths: PathsArgument,
    expiry: Annotated[
        str, option(metavar="7d", help="How long the URL is valid: 30m, 12h, 7d, 2w.")
    ] = f"{LINK_LIFETIME.days}d",
    permission: Annotated[
        str, option(metavar="r", help="What the URL allows: r read, l list, w write, c create, a add, d delete.")
    ] = READ_BLOB,
    each: Annotated[bool, option("--each", help="For a folder: make one URL per blob.")] = False,
    container: Annotated[bool, option("--container", help="Make one URL that opens the whole container.")] = False,
) -> Result:
    """Make a URL that opens a blob for a limited time. Whoever has it can use it: treat it as a password.

    A folder has one URL only in an account with a hierarchical namespace; elsewhere, use --each or --container.

    \b
      blobsync url output/run7/model.pt
      blobsync url output/run7/model.pt --expiry 12h
      blobsync url output/run7 --each
    """
    if not permission or set(permission) - set(LINK):
        raise UsageError(f"--permission {permission}: use only the letters {', '.join(LINK[:-1])} and {LINK[-1]}")
    valid = duration(expiry)
    project = session.project()
    links = [
        link
        for path in paths
        for link in project.links(path, expiry=valid, permission=permission, each=each, container=container)
    ]
    warnings = list(dict.fromkeys(link.warning for link in links if link.warning))
    for warning in warnings:
        session.note(warning)
    rest = {"seconds": int(valid.total_seconds()), "permission": permission}
    data = {"urls": [{"path": link.path, "url": link.url, "scope": link.scope, **rest} for link in links]}
    return Result({**data, "warnings": warnings}, [link.url for link in links], reveals=True)


def duration(text: str) -> timedelta:
    """Parse the value of ``--expiry``. Raises ``UsageError``."""
    seconds = seconds_of(text)
    if not seconds:
        raise UsageError(f"--expiry {text}: not a duration", hint="write 30m, 12h, 7d or 2w")
    return timedelta(seconds=seconds)


def _entries(
    project: Project, paths: Iterable[str], *, recursive: bool, at: str | None = None
) -> Iterator[ListingEntry]:
    from blobsync.project.browse import list_matching

    for path in paths:
        if at is not None:
            yield from project.list(path, recursive=recursive, at=at)
            continue
        found = list_matching(project.list, path, recursive=recursive)
        # Services differ in whether a level's folders come before its blobs; recursive listings are streamed unsorted.
        yield from found if recursive else sorted(found, key=lambda entry: entry.path)


def _listing(entries: Iterator[ListingEntry], *, long: bool) -> Result:
    found = list(entries)
    data = {
        "entries": [entry_data(entry) for entry in found],
        "count": len(found),
        "bytes": sum(entry.size or 0 for entry in found),
    }
    return Result(data, _entry_lines(iter(found), long=long))


def entry_data(entry: ListingEntry) -> dict[str, Any]:
    """One line of ``ls --jsonl`` or item of ``ls --json``. ``md5`` in hexadecimal, times in UTC."""
    return {
        "path": entry.path,
        "size": entry.size,
        "last_modified": None if entry.last_modified is None else zulu_text(entry.last_modified),
        "md5": entry.md5.hex() if entry.md5 else None,
        "tier": entry.tier,
        "etag": entry.etag,
    }


def _entry_lines(entries: Iterator[ListingEntry], *, long: bool) -> Iterator[str]:
    for entry in entries:
        if not long:
            yield entry.path
        elif entry.is_folder:
            yield f"{'folder':>10}  {'':20}  {'':8}  {entry.path}"
        else:
            # A lock has no times.
            modified = "" if entry.last_modified is None else zulu_text(entry.last_modified)
            yield f"{size_text(entry.size or 0):>10}  {modified:20}  {entry.tier or '':8}  {entry.path}"


def _folders(project: Project, *, jsonl: bool) -> Result:
    unknown = dict.fromkeys(("size", "last_modified", "md5", "tier", "etag"))
    entries = [{"path": f"{entry.prefix}/", **unknown, "url": entry_url(entry)} for entry in project.cluster.folders]
    if jsonl:
        return Result(lines=[json.dumps(entry) for entry in entries])
    width = max((len(str(entry["path"])) for entry in entries), default=0)
    lines = [f"{entry['path']:<{width}}  {entry['url']}" for entry in entries]
    if not lines:
        lines = [f"{project.cluster.file} has no folder entries"]
    return Result({"entries": entries, "count": len(entries), "bytes": 0}, lines)


def _usages(project: Project, paths: list[str]) -> Result:
    found = [_usage(project, path) for path in paths]
    count, size = sum(each.count for each in found), sum(each.size for each in found)
    lines = [f"{size_text(each.size):>10}  {count_text(each.count, 'blob'):>14}  {each.path}" for each in found]
    if len(found) != 1:
        lines.append(f"{size_text(size):>10}  {count_text(count, 'blob'):>14}  in all")
    return Result({"entries": list(map(asdict, found)), "count": count, "bytes": size}, lines)


def _usage(project: Project, path: str) -> Usage:
    from blobsync.project.browse import Usage

    try:
        return replace(project.usage(path), path=path)
    except NothingMatchedError:
        # A folder entry that is still empty.
        if path.rstrip("/") in project.cluster.prefixes:
            return Usage(path, 0, 0)
        raise


def _place_data(place: Resolution) -> dict[str, Any]:
    return {
        "path": place.path,
        "url": str(place.remote),
        "local": str(place.local),
        "folder": place.entry.prefix,
        "account": place.entry.account.account_name,
        "container": place.entry.account.container_name,
        "blob": place.remote.name,
        "why": place.why,
    }


def _status_data(place: Resolution, status: PathStatus) -> dict[str, Any]:
    local = status.local
    return {
        "path": status.path,
        "local": {"size": local.size, "md5": local.md5.hex() if local.md5 else None} if local else None,
        "local_is_folder": status.local_is_folder,
        "remote": entry_data(status.remote) if status.remote else None,
        "remote_is_folder": status.remote_is_folder,
        "verified_md5": status.verified_md5.hex() if status.verified_md5 else None,
        "equal": status.equal,
        "url": str(place.remote),
    }


def _status_lines(place: Resolution, status: PathStatus) -> Iterator[str]:
    yield status.path
    local, remote = status.local, status.remote
    here = "a folder" if status.local_is_folder else "nothing"
    if local:
        here = f"{size_text(local.size)}, MD5 {local.md5.hex() if local.md5 else 'unknown: it could not be read'}"
    there = "a folder" if status.remote_is_folder else "nothing"
    if remote:
        md5 = remote.md5.hex() if remote.md5 else "unknown"
        there = f"{size_text(remote.size or 0)}, MD5 {md5}, {zulu_text(remote.last_modified or 0)}, {remote.tier or ''}"
    yield f"  here:      {here}"
    yield f"  container: {there.rstrip(', ')} ({place.remote})"
    if status.local_is_folder or status.remote_is_folder:
        return
    record = f"last verified with MD5 {status.verified_md5.hex()}" if status.verified_md5 else "never verified"
    equal = {True: "equal", False: "they differ", None: ""}[status.equal]
    yield f"  record:    {record}" + (f"; {equal}" if equal else "")
