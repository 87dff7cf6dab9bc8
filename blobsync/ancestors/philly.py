"""Philly's files below ``aux_data/configs``: which exist, and the command that converts them to clusters.

``multi_philly_vc.yaml`` names Philly's clusters, whose common file is ``philly_vc.yaml`` in the same folder:

    clusters: [wu1, sc2]            or, each with a file of its own:   clusters: {wu1: philly_wu1.yaml}
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from blobsync.base.errors import ConfigError
from blobsync.config.known_keys import GONE_PLATFORMS, PHILLY_MARKS
from blobsync.config.model import Cluster
from blobsync.config.yaml_document import read_document

_FOLDER = "aux_data/configs"
_COMMON = "philly_vc.yaml"
_CLUSTERS = "clusters"


def philly_names(path: Path, shown: str) -> Mapping[str, str]:
    """The clusters that ``multi_philly_vc.yaml`` names, each with its file; empty for another file.

    A file without a slash lies beside it, others are relative to the project. Raises ``ConfigError``.
    """
    document = read_document(path, shown)
    given = document.values.get(_CLUSTERS)
    if given is None:
        return {}
    for key in document.values:
        if key != _CLUSTERS:
            raise document.error((key,), f"is not a key of a file that names Philly's {_CLUSTERS}")
    named = dict.fromkeys(map(str, given), _COMMON) if isinstance(given, list) else given
    if not named or not isinstance(named, Mapping) or not all(isinstance(file, str) for file in named.values()):
        raise document.error((_CLUSTERS,), "must be a list of names, or a mapping of names to files")
    return {str(name): file.removeprefix("./") for name, file in named.items()}


def philly_road(root: Path, name: str) -> str:
    """The command that converts Philly's cluster ``name``; empty if no file names it."""
    folder = root / _FOLDER
    for path in sorted(folder.glob("*.y*ml")) if folder.is_dir() else ():
        shown = f"{_FOLDER}/{path.name}"
        try:
            if path.stem == name and PHILLY_MARKS & read_document(path, shown).values.keys():
                return f"blobsync convert philly {shlex.quote(shown)} --name {name} --platform slurm"
            if name in philly_names(path, shown):
                return f"blobsync convert philly {shlex.quote(shown)} --platform slurm"
        except ConfigError:
            continue
    return ""


def gone_platform(cluster: Cluster) -> ConfigError | None:
    """Why no job can run with a cluster file of a service that is gone, and what to do instead; None for others."""
    named = cluster.text("platform")
    if named not in GONE_PLATFORMS and not cluster.values.keys() & PHILLY_MARKS:
        return None
    what = f"names {named}, a job platform that" if named else "is missing, and Philly, which this file is for,"
    word = "batchai JOB" if named == "batchai" else f"philly {shlex.quote(cluster.file)}"
    hint = f"blobsync convert {word} --platform slurm writes a file for Slurm; or kubernetes, aml, local, ..."
    return ConfigError(f"{what} is gone", file=cluster.file, key="platform", hint=hint)


def philly_variables(cluster: Cluster) -> dict[str, str]:
    """The variables that jobs got from Philly's keys."""
    options = {"PHILLY_VC": cluster.text("vc"), "PHILLY_USER": cluster.text("user_name")}
    return {name: text for name, text in options.items() if text}
