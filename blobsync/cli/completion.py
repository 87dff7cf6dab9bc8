"""Shell completion, with descriptions in shells that show them.

The metavar of a parameter selects its completion (``completes`` in ``session``), so that a new command needs no
line here: ``PATH``, ``ID``, ``CLUSTER``, ``PLAN``, and values such as ``skip|error``. Shells put the result on the
command line, some through ``eval``: only names that need no quoting are offered, and descriptions without
characters that are special to shells.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from blobsync.base.errors import BlobsyncError
from blobsync.config.loader import cluster_names, load_cluster
from blobsync.config.project_root import CLUSTER_FOLDER, current_folder, find_project

if TYPE_CHECKING:
    import typer

Offers = list[tuple[str, str]]

_UNSAFE_WORD = re.compile(r"[^\w@%+=:,./-]")
_UNSAFE_TEXT = re.compile(r"[^\w@%+=,./ *-]+")
_DESCRIBED = 60
_JOBS = 30
# The first bytes of a saved plan.
_PLAN_MARK = b'"blobsync_plan"'
# These commands read local files only; all others look in the container as well.
_LOCAL_ONLY = ("u", "upload", "init", "submit", "start")


def offered(metavar: str, ctx: typer.Context, incomplete: str) -> Offers:
    """What completes ``incomplete`` for a parameter with this metavar, or with these choices."""
    return (
        _BY_METAVAR[metavar](ctx, incomplete) if metavar in _BY_METAVAR else [(each, "") for each in metavar.split("|")]
    )


def complete_cluster(ctx: typer.Context, incomplete: str) -> Offers:
    """The cluster files of the project that contains the current folder."""
    try:
        names = cluster_names(find_project(current_folder()))
    except BlobsyncError:
        return []
    return _offered((name, f"{CLUSTER_FOLDER}/{name}.yaml") for name in names)


def complete_path(ctx: typer.Context, incomplete: str) -> Offers:
    """Local names and blob names that complete the typed path.

    A folder that is the only result is returned with its content, so that the shell does not end the word there.
    """
    found = _paths(ctx, incomplete)
    if len(found) == 1 and found[0][0].endswith("/"):
        below = _paths(ctx, found[0][0])
        return below if len(below) > 1 else [*found, *below]
    return found


def _paths(ctx: typer.Context, incomplete: str) -> Offers:
    folder, slash, start = incomplete.rpartition("/")
    lead = f"{folder}{slash}"
    found = dict.fromkeys(_local_names(Path(lead or "."), start), "here")
    for name in _names_of_the_cluster(ctx, folder or (slash or "."), start):
        if name.startswith(start):
            found[name] = "here and in the container" if name in found else "in the container"
    return _offered((f"{lead}{name}", said) for name, said in sorted(found.items()))


def _local_names(folder: Path, start: str) -> Iterator[str]:
    hidden = start.startswith(".")
    with suppress(OSError):
        for item in folder.iterdir():
            if item.name.startswith(start) and (hidden or not item.name.startswith(".")):
                yield f"{item.name}/" if item.is_dir() else item.name


def _names_of_the_cluster(ctx: typer.Context, folder: str, start: str) -> Iterable[str]:
    from blobsync.project.completion_names import names_below

    try:
        cwd = current_folder()
        root = find_project(cwd)
        cluster = load_cluster(root, _chosen_cluster(ctx))
        return names_below(cluster, folder, start, cwd=cwd, remote=ctx.info_name not in _LOCAL_ONLY)
    except (BlobsyncError, OSError):
        return ()


def _chosen_cluster(ctx: typer.Context) -> str | None:
    """The cluster of ``-f`` or ``-c``, before or after the command."""
    for name in ("from_cluster", "cluster"):
        for each in (ctx, ctx.parent):
            given = each.params.get(name) if each else None
            if isinstance(given, str) and given:
                return given
    return None


def complete_job(ctx: typer.Context, incomplete: str) -> Offers:
    """The newest jobs, by the ends of their ids, each with its state and command; behind a slash the tasks of one.
    Contacts no cluster."""
    from blobsync.project.open_jobs import open_jobs

    try:
        jobs = open_jobs().history(limit=_JOBS)
    except (BlobsyncError, OSError):
        return []
    head, slash, _ = incomplete.partition("/")
    if slash:
        tasks = [task for job in jobs if job.run_id.endswith(head) for task in job.tasks]
        return _offered((f"{head}/{task.number}", f"{task.state}, {_words(task.parameters)}") for task in tasks)
    whole = any(job.run_id.startswith(incomplete) for job in jobs) and bool(incomplete)
    return _offered(
        (job.run_id if whole else job.run_id.rpartition("_")[2], f"{job.state}, {' '.join(job.spec.argv)}")
        for job in jobs
    )


def _words(parameters: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def complete_history(ctx: typer.Context, incomplete: str) -> Offers:
    """The newest transfers, by their ids, each with its result and paths; then jobs."""
    from blobsync.project.transfer_history import open_logbook

    try:
        recent = open_logbook(os.environ, lambda text: None).recent(limit=_JOBS)
    except (BlobsyncError, OSError):
        recent = ()
    transfers = _offered((entry.id, f"{entry.kind} {entry.result}, {' '.join(entry.paths)}") for entry in recent)
    return [*transfers, *complete_job(ctx, incomplete)]


def complete_plan(ctx: typer.Context, incomplete: str) -> Offers:
    """Saved plans in the typed folder, and its subfolders."""
    folder, slash, start = incomplete.rpartition("/")
    lead = f"{folder}{slash}"
    found = []
    for name in sorted(_local_names(Path(lead or "."), start)):
        if name.endswith("/"):
            found.append((f"{lead}{name}", "folder"))
            continue
        with suppress(OSError), Path(lead, name).open("rb") as stream:
            if _PLAN_MARK in stream.read(100):
                found.append((f"{lead}{name}", "saved plan"))
    return _offered(found)


def _offered(found: Iterable[tuple[str, str]]) -> Offers:
    usable = ((word, said) for word, said in found if word and not _UNSAFE_WORD.search(word) and word[0] != "-")
    return [(word, " ".join(_UNSAFE_TEXT.sub(" ", said).split())[:_DESCRIBED]) for word, said in islice(usable, 1000)]


_BY_METAVAR: dict[str, Callable[..., Offers]] = {
    "PATH": complete_path,
    "ID": complete_job,
    "HISTORY": complete_history,
    "CLUSTER": complete_cluster,
    "PLAN": complete_plan,
}
