"""The demo's data set: files that nobody here made, found on this machine, and the project around them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from blobsync.base.azure_urls import ContainerUrl, Secret

MAX_FILES = 2400
MAX_BYTES = 60_000_000
# A few libraries are large enough for a separate demo.
_MAX_FILE_BYTES = 4_000_000
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages"}


@dataclass(frozen=True, slots=True)
class DataSet:
    """What was copied: files, bytes, and where they are from."""

    files: int
    size: int
    sources: tuple[str, ...]


def copy_data_set(target: Path, max_files: int = MAX_FILES) -> DataSet:
    """Copy Python's standard library and installed packages below ``target``, up to the limits."""
    files = size = 0
    sources: list[str] = []
    for label, folder in _sources():
        before = files
        for relative in _files_below(folder):
            source = folder / relative
            length = source.stat().st_size
            if length > _MAX_FILE_BYTES:
                continue
            if files >= max_files or size + length > MAX_BYTES:
                break
            copy = target / folder.name / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            files, size = files + 1, size + length
        if files > before:
            sources.append(label)
    return DataSet(files, size, tuple(sources))


def _sources() -> Iterator[tuple[str, Path]]:
    paths = sysconfig.get_paths()
    yield "Python's standard library", Path(paths["stdlib"])
    for package in sorted(Path(paths["purelib"]).iterdir()):
        if package.is_dir() and package.name not in _LEFT_OUT and not package.name.endswith("-info"):
            yield package.name, package


def _files_below(folder: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(at, name)
            if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                yield path.relative_to(folder)


def change_some(folder: Path) -> tuple[str, ...]:
    """Change files in three ways, and touch a fourth; returns what changed, as paths below ``folder``."""
    small = [path for path in sorted(folder.rglob("*.py")) if 1000 < path.stat().st_size < 100_000]
    grown, swapped, touched = small[0], small[len(small) // 2], small[-1]
    with grown.open("ab") as file:
        file.write(b"\n# one more line\n")
    old = swapped.stat()
    content = swapped.read_bytes()
    swapped.write_bytes(content[::-1])
    # New content with the same size and an older time: clocks and sizes do not show the change.
    os.utime(swapped, ns=(old.st_atime_ns, old.st_mtime_ns - 10**15))
    touched.touch()
    added = folder / "added in the demo.txt"
    added.write_text("a new file\n", encoding="utf-8")
    return tuple(path.relative_to(folder).as_posix() for path in (grown, swapped, added))


def checksums(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write_project(root: Path, clusters: Mapping[str, tuple[ContainerUrl, Secret]]) -> None:
    """``aux_data/`` of a project whose ``data`` lives in one container per cluster."""
    for cluster, (container, key) in clusters.items():
        account_file = f"aux_data/configs/{cluster}.yaml"
        _write(
            root / account_file,
            f"account_name: {container.account}\ncontainer_name: {container.container}\n"
            f"account_key: {key.reveal()}\nblob_endpoint: {container.endpoint}\n",
        )
        _write(
            root / "aux_data" / "aml" / f"{cluster}.yaml",
            "config_param:\n  data_folder:\n"
            f"    azure_blob_config_file: {account_file}\n    path: projects/demo/data\n"
            "platform: local\n",
        )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")
