"""Where a job writes its outputs.

Three kinds of place: the directories that a job names, the folder of this job alone (``output: per_job``), and else the
output folder that all jobs share.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from blobsync.base.errors import UsageError
from blobsync.base.lazy_regexes import pattern
from blobsync.base.locations import below
from blobsync.jobspec.spec import OWN_OUTPUT, FolderLink, JobSpec

_RUN = pattern(r"\$\{?BLOBSYNC_RUN_ID\}?")


@dataclass(frozen=True, slots=True)
class OutputPlace:
    """A place of outputs, ``below`` a folder entry. All of it belongs to the job, unless ``is_shared``."""

    id: str
    folder: FolderLink
    below: str = ""
    is_shared: bool = False

    @property
    def path(self) -> str:
        """As a user would type it, from the project's root."""
        return f"{self.folder.name}/{self.below}".rstrip("/")

    @property
    def in_container(self) -> str:
        """The same in the folder's container."""
        return below(self.folder.path, self.below)

    def part(self, asked: str) -> str:
        """What ``asked`` means below this place: a path of the project, one that begins with the id, or a name."""
        for start in (self.path, self.id):
            if asked == start or asked.startswith(f"{start}/"):
                return asked[len(start) + 1 :]
        return asked


def output_places(spec: JobSpec, task: int | None = None) -> tuple[OutputPlace, ...]:
    """Where the job, or one task of it, writes; empty if nothing of it stays. Pure. Raises ``UsageError`` for a task
    whose outputs are not its own, and for outputs on a disk of somebody else."""
    places = _places_of(spec, task)
    linked = next((place for place in places if place.folder.mode == "link"), None)
    if linked is not None and "recalled" in spec.options:
        raise UsageError(
            f"the outputs of {spec.run_id} are on the disk where it ran; they are seen from here with mode: upload for"
            f" {linked.folder.name}_folder",
            hint=f"blobsync d {shlex.quote(linked.path)} brings what was uploaded since",
        )
    return places


def _places_of(spec: JobSpec, task: int | None) -> tuple[OutputPlace, ...]:
    if task is not None and OWN_OUTPUT not in spec.options:
        raise UsageError(
            f"the tasks of {spec.run_id} share their outputs",
            hint=f"blobsync outputs {spec.run_id} lists them; output: per_job in the cluster file gives each its own",
        )
    if "outputs" in spec.options:
        found = (_named_place(spec, name, path) for name, path in spec.options["outputs"].items())
        return tuple(place for place in found if place)
    own = spec.options.get(OWN_OUTPUT)
    mine = [folder for folder in spec.folders if folder.name == own]
    if mine:
        return (OutputPlace("output", mine[0], spec.run_id if task is None else f"{spec.run_id}/{task}"),)
    written = [folder for folder in spec.folders if folder.mode not in ("download", "ro_mount")]
    named = [folder for folder in written if folder.name.startswith("output")]
    chosen = named or [folder for folder in written if folder.mode == "upload"]
    return tuple(OutputPlace(folder.name, folder, is_shared=True) for folder in chosen)


def _named_place(spec: JobSpec, name: str, path: str) -> OutputPlace | None:
    """None for a directory that lies in no folder of the job: it goes with the node."""
    below = _RUN.sub(spec.run_id, path).strip("/")
    covering = [folder for folder in spec.folders if f"{below}/".startswith(f"{folder.name}/")]
    if not covering:
        return None
    folder = max(covering, key=lambda folder: len(folder.name))
    return OutputPlace(name, folder, below[len(folder.name) + 1 :])
