"""Containers of a job on its node: fetches the image, runs ``setup`` in it, starts each process in it.

Containers are stopped and removed by name, through their runtime.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from blobsync.base.errors import JobError, ProcessError
from blobsync.base.process import ProcessRunner
from blobsync.base.records import dataclass
from blobsync.jobspec.containers import (
    Inside,
    Runtime,
    WantedImage,
    find_runtime,
    given_names,
    is_for_files,
    pull_words,
    run_words,
    script_text,
    source_of,
    wanted_image,
)
from blobsync.jobspec.spec import is_variable_name
from blobsync.node.job import NodeJob, image_shell_line, read_text, write_text
from blobsync.node.machine import run_into_log
from blobsync.node.ranks import NotReadyError

_REMOVE_SECONDS = 60.0
# docker's -v and Apptainer's --bind do not accept a path with one of these.
_DIVIDERS = re.compile(r"[:,]")
_NVIDIA = "/dev/nvidia0"


@dataclass(frozen=True, slots=True)
class JobImage:
    """The job's image on this node, fetched and set up."""

    job: NodeJob
    wanted: WantedImage
    runtime: Runtime
    image: str

    @classmethod
    def of(cls, job: NodeJob) -> JobImage | None:
        """The image of :func:`fetch_image`; None for a job without one."""
        text = read_text(_folder(job) / "image.json") if job.in_image else ""
        wanted = wanted_image(job.spec)
        if not text or wanted is None:
            return None
        made = json.loads(text)
        return cls(job, wanted, Runtime(made["runtime"]), made["image"])

    def started(
        self, name: str, command: Sequence[str], env: Mapping[str, str], *, keeps: bool = False
    ) -> tuple[str, ...]:
        """The command that runs ``command`` in the image, with these variables, in the job's folder."""
        job, gpus = self.job, _gpus(self.job)
        env = dict(env)
        if gpus not in ("", "all") and self.runtime.has_containers:
            # Only these are visible in the container, which numbers them from 0.
            env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(len(gpus.split(",")))))
        env |= self._home()
        names = given_names(env, job.environ, (*job.spec.env, *job.spec.secret_env, *self._home()), is_variable_name)
        folder = job.work_dir if job.work_dir.is_dir() else job.root
        script = _folder(job) / f"{name}.sh"
        script.touch(mode=0o600)
        script.write_text(script_text(command, env, names, str(folder)), encoding="utf-8", errors="surrogateescape")
        user = "" if os.getuid() == 0 else f"{os.getuid()}:{os.getgid()}"
        inside = Inside(
            name,
            places_of(job),
            user,
            tuple(map(str, os.getgroups())),
            gpus,
            shares_memory=job.spec.procs_per_node > 1,
            keeps=keeps,
        )
        return run_words(self.runtime, self.image, self.wanted, inside, str(script))

    def _home(self) -> dict[str, str]:
        """The home of the program and of ``setup``: a user without a name has none."""
        folder = _folder(self.job)
        if not self.runtime.has_containers:
            return {"PYTHONUSERBASE": str(folder / "python")}
        return {"HOME": str(folder / "home")} if os.getuid() else {}

    def run_setup(self, line: str, number: int, env: Mapping[str, str]) -> tuple[int, JobImage]:
        """Run one line of ``setup`` in the image; returns its exit code and the changed image."""
        job, name = self.job, f"{container_name(self.job)}-setup"
        self.remove(name)
        argv = self.started(name, image_shell_line(line), env, keeps=self.runtime.has_containers)
        code = run_into_log(argv, job.root, job.environ, job.node_log)
        if code or not self.runtime.has_containers:
            self.remove(name)
            return code, self
        changed = f"blobsync-job:{container_name(job)}-{number}"
        done = ProcessRunner().run((self.runtime.name, "commit", name, changed))
        self.remove(name)
        if done.returncode:
            why = done.stderr.strip()
            raise NotReadyError(f"{self.runtime.name} cannot keep what setup changed in the image: {why}")
        made = JobImage(job, self.wanted, self.runtime, changed)
        made.write()
        return 0, made

    def write(self) -> None:
        """Save the image's name for later processes of this node."""
        write_text(_folder(self.job) / "image.json", json.dumps({"runtime": self.runtime.name, "image": self.image}))

    def remove(self, name: str) -> None:
        """Stop and remove the container of this name, if it exists, and the file of its environment."""
        (_folder(self.job) / f"{name}.sh").unlink(missing_ok=True)
        if self.runtime.has_containers:
            with suppress(ProcessError):
                ProcessRunner().run((self.runtime.name, "rm", "-f", name), timeout=_REMOVE_SECONDS)


def container_name(job: NodeJob, rank: int | None = None) -> str:
    """The name of a process's container; without a rank, the prefix of this node's."""
    name = "-".join(filter(None, ("blobsync", job.spec.run_id, job.task, f"node{job.node_rank}")))
    return name if rank is None else f"{name}-rank{rank}"


def fetch_image(job: NodeJob) -> JobImage | None:
    """Find a container runtime and fetch the image. Raises ``NotReadyError``."""
    wanted = wanted_image(job.spec)
    if wanted is None or not job.in_image:
        return None
    process = ProcessRunner()
    try:
        runtime = find_runtime(wanted, job.spec.platform, process)
    except JobError as error:
        raise NotReadyError(f"docker.image of {wanted.file} {error.message}", hint=error.hint) from error
    folder = _folder(job)
    for each in (folder, folder / "home"):
        each.mkdir(mode=0o700, exist_ok=True)
    source, image = source_of(wanted.image, runtime), str(folder / "image.sif")
    if runtime.has_containers:
        image = source
    elif is_for_files(source) and "://" not in source:
        image, source = source, ""
    is_here = runtime.has_containers and not process.run((runtime.name, "image", "inspect", source)).returncode
    if source and not is_here:
        job.say(f"fetching the image {source} with {runtime.name}")
        if run_into_log(pull_words(runtime, source, image), folder, job.environ, job.node_log):
            raise NotReadyError(
                f"{runtime.name} cannot fetch {source}, docker.image of {wanted.file}: {job.node_log.name} says why",
                hint=f"try it on the node: {runtime.name} pull {source}",
            )
    found = JobImage(job, wanted, runtime, image)
    found.write()
    job.say(f"the command runs in {wanted.image}, with {runtime.name}")
    return found


def places_of(job: NodeJob) -> tuple[str, ...]:
    """The folders to mount: the job's own, and the targets of its links. Raises ``NotReadyError``."""
    links = [job.root / entry.name for entry in job.spec.folders]
    real = [Path(entry.source) for entry in job.spec.folders if entry.mode == "link"]
    own = (job.root, job.run_dir, _folder(job), job.temp, job.set_requests)
    found = dict.fromkeys(str(path) for path in (*own, *real, *(link.resolve() for link in links)) if path.is_dir())
    bad = [path for path in found if _DIVIDERS.search(path)]
    if bad:
        raise NotReadyError(f"{bad[0]} cannot be shown to a program in an image: its name holds ':' or ','")
    return tuple(found)


def remove_image(job: NodeJob) -> None:
    """Remove the job's containers, the images that ``setup`` made, and our files."""
    found = JobImage.of(job)
    if found is not None:
        for local_rank in range(job.spec.procs_per_node):
            found.remove(container_name(job, job.node_rank * job.spec.procs_per_node + local_rank))
        if found.image.startswith("blobsync-job:"):
            with suppress(ProcessError):
                ProcessRunner().run((found.runtime.name, "rmi", "-f", *_layers(found)), timeout=_REMOVE_SECONDS)
    if job.in_image:
        shutil.rmtree(_folder(job), ignore_errors=True)


def _layers(found: JobImage) -> list[str]:
    """The image after each line of ``setup``, the last first."""
    name, _, last = found.image.rpartition("-")
    return [f"{name}-{number}" for number in reversed(range(int(last) + 1))]


def _gpus(job: NodeJob) -> str:
    """The job's GPUs: Slurm's numbers, else all (CUDA_VISIBLE_DEVICES then selects the job's)."""
    if not job.spec.gpus_per_node or not os.path.exists(_NVIDIA):
        return ""
    given = job.environ.get("SLURM_STEP_GPUS") or job.environ.get("SLURM_JOB_GPUS") or ""
    return given if re.fullmatch(r"\d+(,\d+)*", given) else "all"


def _folder(job: NodeJob) -> Path:
    return job.beside("image")
