"""``convert batchai`` and ``convert philly``: files of discontinued services become a cluster file and a command."""

from __future__ import annotations

import shlex
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from blobsync.base.errors import UsageError
from blobsync.cli.commands import Commands, argument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session
from blobsync.config.known_keys import PLATFORMS
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.config.scaffold import write_files

if TYPE_CHECKING:
    from blobsync.ancestors.convert import Conversion

NameOption = Annotated[str | None, option("--name", metavar="NAME", help="The new cluster. Default: the name of FILE.")]
PlatformOption = Annotated[
    str, option("--platform", metavar="PLATFORM", help="Where its jobs run: local, slurm, kubernetes, aml, ...")
]
DryRunOption = Annotated[bool, option("--dry-run", help="Print the files, write none.")]


app = Commands()
group = app.group("convert", "Write files of services that are gone as a cluster file and a command.")


@group.command("batchai")
def convert_batch_ai(
    session: Session,
    job: Annotated[Path, argument(metavar="JOB", help="A job file of Batch AI, API 2018-05-01.")],
    cluster_file: Annotated[Path | None, argument(metavar="CLUSTER", help="The cluster's file.")] = None,
    name: NameOption = None,
    platform: PlatformOption = "slurm",
    dry_run: DryRunOption = False,
) -> Result:
    """Write a job file of Azure Batch AI as a cluster file, account files and a command.

    With -c, the new cluster file is that cluster's with the job's keys on top. What has no effect is named, with its
    line; what cannot be honoured is refused. 'blobsync submit --file JOB' runs such a file without writing anything.

    \b
      blobsync convert batchai job.json
      blobsync -c uni convert batchai job.json cluster.json --name mnist
    """
    from blobsync.ancestors.convert import convert_batchai

    root = session.root()
    base = _base(session, root, platform)
    found = convert_batchai(base, name or job.stem, job, cluster_file, session.environ)
    return _written(session, root, found, dry_run=dry_run)


@group.command("philly")
def convert_philly_file(
    session: Session,
    file: Annotated[Path, argument(metavar="FILE", help="A cluster file of Philly, or the one that names them.")],
    name: NameOption = None,
    platform: PlatformOption = "slurm",
    dry_run: DryRunOption = False,
) -> Result:
    """Write a cluster file of Philly as one of blobsync: account files in place of mount points, modes, and a platform.

    multi_philly_vc.yaml, which names Philly's clusters, becomes one cluster for each name. What jobs on the platform do
    not have is left out, and named with its line.

    \b
      blobsync convert philly aux_data/aml/philly.yaml --name uni --platform slurm
      blobsync convert philly aux_data/configs/multi_philly_vc.yaml     wu1, sc2
    """
    from blobsync.ancestors.convert import convert_philly

    root = session.root()
    found = convert_philly(root, file, name, _known(platform), session.environ)
    return _written(session, root, found, dry_run=dry_run)


def _known(platform: str) -> str:
    if platform not in PLATFORMS:
        raise UsageError(f"--platform {platform!a} is not one of {', '.join(PLATFORMS)}")
    return platform


def _base(session: Session, root: Path, platform: str) -> Cluster:
    """The cluster of ``-c``; without it, a cluster that has only a platform."""
    if session.cluster is None:
        return Cluster("new", "the new cluster file", root, platform=_known(platform))
    return load_cluster(root, session.cluster, overrides=session.overrides(), environ=session.environ)


def _written(session: Session, root: Path, found: Conversion, *, dry_run: bool) -> Result:
    for note in found.notes:
        session.note(note)
    if not dry_run:
        write_files(root, found.files)
    line = shlex.join(found.command)
    names = [file.name for file in found.files]
    # Of one that may contain a key only the name.
    texts = ((f"# {file.name}", *([] if file.is_private else file.text.splitlines())) for file in found.files)
    data = {"files": names, "command": list(found.command), "notes": list(found.notes), "written": not dry_run}
    lines = chain.from_iterable(texts) if dry_run else (f"wrote {name}" for name in names)
    return Result(data, [*lines, f"next: {line}"])
