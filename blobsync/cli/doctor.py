"""``doctor`` and ``azcopy``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from blobsync.base.errors import BlobsyncError
from blobsync.base.events import Phase
from blobsync.base.exit_codes import ExitCode
from blobsync.cli.commands import NO_CLUSTER, Commands, option
from blobsync.cli.output import Result, fields_of
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from blobsync.base.check_results import CheckResult

_FACTS = ("about", "detail", "hint")
_MARKS = {"ok": "ok  ", "untried": "?   ", "warn": "warn", "fail": "FAIL"}


app = Commands()
azcopy_group = app.group("azcopy", "Install azcopy, or show which one is used.")


@app.command("doctor")
def doctor(session: Session) -> Result:
    """Try everything that transfers and jobs need, and say how to fix what does not work.

    For each cluster (with -c: for that one) and each of its storage accounts: the credential, where it comes from,
    its expiry and rights, the clock, whether listing, reading and writing work (a probe blob, removed again); whether
    the place where its jobs run answers and would take one; and azcopy.
    It names what transfers that were killed left, with its size.
    A question mark marks what could not be tried.

    \b
      blobsync doctor
      blobsync doctor -c eu
    """
    session.listener.emit(Phase("trying"))
    found = list(_findings(session))
    data = {
        "findings": [
            {"cluster": cluster, "status": each.status.value, "check": each.name, **fields_of(each, *_FACTS)}
            for cluster, each in found
        ]
    }
    failed = any(each.status.value == "fail" for _, each in found)
    return Result(data, _finding_lines(found), exit_code=ExitCode.FAILED if failed else ExitCode.DONE, wraps=True)


def _findings(session: Session) -> Iterator[tuple[str, CheckResult]]:
    """The findings of each cluster; a finding of several clusters is listed once."""
    from blobsync.base.check_results import failed_check
    from blobsync.config.loader import cluster_names, load_cluster
    from blobsync.config.project_root import CLUSTER_VARIABLE
    from blobsync.project.doctor import diagnose, examine_downloads

    root = session.root()
    names: tuple[str | None, ...] = cluster_names(root)
    if session.cluster or session.environ.get(CLUSTER_VARIABLE) or not names:
        names = (session.cluster,)
    seen: set[CheckResult] = set()
    for name in names:
        try:
            cluster = load_cluster(root, name, overrides=session.overrides(), environ=session.environ)
        except BlobsyncError as error:
            yield name or "", failed_check("configuration", "config", error)
            continue
        session.warn(cluster)
        for each in diagnose(cluster, session.environ):
            if each not in seen:
                seen.add(each)
                yield cluster.name, each
    for each in examine_downloads(root, session.environ):
        yield "", each


def _finding_lines(found: list[tuple[str, CheckResult]]) -> Iterator[str]:
    before = None
    for cluster, each in found:
        if (cluster, each.about) != before:
            before = (cluster, each.about)
            yield f"{each.about} (cluster {cluster})" if cluster and each.about != "azcopy" else each.about
        yield f"  {_MARKS[each.status.value]}  {each.name}: {each.detail}"
        if each.hint:
            yield f"        -> {each.hint}"


@azcopy_group.command("install", takes=NO_CLUSTER)
def azcopy_install(
    session: Session,
    source: Annotated[
        str | None, option("--from", metavar="FILE|URL", help="The release archive or program to install.")
    ] = None,
    sha256: Annotated[str | None, option(metavar="HEX", help="The program's checksum.")] = None,
) -> Result:
    """Fetch the azcopy that blobsync was tested with into your own data folder, its checksum checked; needs no root.

    \b
      blobsync azcopy install
      blobsync azcopy install --from azcopy_linux_amd64.tar.gz   no internet
    """
    from blobsync.azcopy.install import install

    done = install(session.environ, source=source, sha256=sha256, note=session.note)
    data = {"path": str(done.path), "version": done.version_text, "origin": done.origin}
    return Result(data, [f"azcopy {done.version_text} at {done.path}, from {done.origin}"], wraps=True)


@azcopy_group.command("path", takes=NO_CLUSTER)
def azcopy_path(session: Session) -> Result:
    """Show which azcopy is used, its version, and where it was found.

    \b
      blobsync azcopy path
    """
    from blobsync.azcopy.binary import find_azcopy

    found = find_azcopy(session.environ)
    session.note(f"version {found.version_text}, found by {found.origin}")
    data = {"path": str(found.path), "version": found.version_text, "origin": found.origin}
    return Result(data, [str(found.path)])
