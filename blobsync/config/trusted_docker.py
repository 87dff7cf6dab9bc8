"""Which options for docker the user has agreed to.

``docker.args`` of a cluster file may come with a project from a stranger. On this machine ``--privileged`` or
``-v /:/host`` would give the image's programs all of root's rights here. So options that reach beyond the project's
folders count only if the user agreed to exactly these words.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from blobsync.base.errors import UntrustedDockerError
from blobsync.base.records import NamedTuple
from blobsync.config.mapping import is_below
from blobsync.config.model import DEFAULT_CLUSTER, Cluster
from blobsync.config.trust_store import TrustStore

Words = tuple[str, ...]


TRUSTED_DOCKER = TrustStore[Words]("docker", tuple, "blobsync config trust-docker")

# https://docs.docker.com/reference/cli/docker/container/run/: what gives a container no more than devices for
# computing, memory and limits. With a value, or without one.
_VALUES = {
    *("--gpus", "--ipc", "--shm-size", "--ulimit", "--env", "-e", "--volume", "-v"),
    *("--memory", "-m", "--memory-swap", "--cpus", "--cpuset-cpus", "--pids-limit", "--workdir", "-w", "--network"),
}
_FLAGS = {"--init", "--rm"}
# Another container's namespace is named after it, and not the job's own.
_IPC = {"", "none", "private", "shareable", "host"}


class DockerArgs(NamedTuple):
    """``docker.args``: the words, the project at ``root``, the cluster and its file, the job's own variables."""

    words: Words
    root: Path
    cluster: str
    file: str
    variables: Collection[str]

    @classmethod
    def of(cls, cluster: Cluster) -> DockerArgs:
        """The arguments of a cluster file."""
        return cls(cluster.docker.args, cluster.root, cluster.name, cluster.file, cluster.env)

    @property
    def reaching(self) -> str | None:
        """The first option that reaches beyond the project, None if none does. Unknown options count as reaching."""
        words = iter(self.words)
        for word in words:
            name, value = _option(word, words)
            if name in _FLAGS and value is None:
                continue
            if name not in _VALUES or value is None or not self._stays(name, value):
                return word if value is None or value in word else f"{word} {value}"
        return None

    def _stays(self, name: str, value: str) -> bool:
        if name in ("--env", "-e"):
            # Without a value, docker passes on the user's own.
            return "=" in value or value in self.variables
        if name == "--ipc":
            return value in _IPC
        if name == "--network":
            return value == "none"
        if name not in ("--volume", "-v"):
            return True
        source, colon, _ = value.partition(":")
        # Without a source it is a folder inside the container; a name is a volume, which others may use.
        return not colon or (source.startswith("/") and is_below(os.path.realpath(source), os.path.realpath(self.root)))


def demand_docker(args: DockerArgs, environ: Mapping[str, str]) -> None:
    """Raise ``UntrustedDockerError`` for options that reach beyond the project, unless the user agreed to all."""
    found = args.reaching
    if found is not None and args.words not in TRUSTED_DOCKER.load(args.root, environ):
        chosen = "" if args.cluster == DEFAULT_CLUSTER else f"-c {shlex.quote(args.cluster)} "
        raise UntrustedDockerError(
            f"docker.args of {args.file} reaches beyond the project, and is not used here until you trust it: {found}",
            options=args.words,
            hint=f"to trust all of {shlex.join(args.words)}: blobsync {chosen}config trust-docker",
        )


def _option(word: str, words: Iterator[str]) -> tuple[str, str | None]:
    """The name of an option and its value, which may be the next word; None if there is none."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
    else:
        name, equals, value = word[:2], word[2:], word[2:].removeprefix("=")
    return name, value if equals else next(words, None) if name in _VALUES else None
