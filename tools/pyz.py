"""``python -m tools.pyz [FILE]``: ``blobsync.pyz``, blobsync and what it needs in one file, for login nodes.

Any Python from 3.10 on runs it. It holds no native module, and none of Azure's packages: it logs in with a SAS or a
key. The packages are those of the environment that builds it; the same ones give the same bytes on every machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath

from blobsync.base.process import UNPACKED_MARK
from blobsync.jobspec.node_archive import pack

ROOT = Path(__file__).resolve().parent.parent
# What blobsync imports without Azure's SDK; all of it works without native modules.
PURE = ("annotated-doc", "pathspec", "pyyaml", "shellingham", "tqdm", "typer", "urllib3")
SHEBANG = b"#!/usr/bin/env python3\n"
# Python of any version has to understand it.
MAIN = """\
import sys

if sys.version_info < (3, 10):
    sys.exit("blobsync needs Python 3.10 or newer; this is " + sys.version.split()[0])
from blobsync_pyz_start import start

sys.exit(start(__loader__))
"""
_BUILD = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"
_LICENCE = re.compile(r"(?i)(licen[cs]e|copying|notice)\b.*")


def main(words: list[str]) -> int:
    """Build the file and print its checksum."""
    parser = argparse.ArgumentParser(prog="python -m tools.pyz", description="Build blobsync.pyz.")
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "dist" / "blobsync.pyz")
    parser.add_argument("--wheel", type=Path, help="a wheel of blobsync that is there (default: build one)")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        body = pyz(given.wheel or build_wheel(Path(folder)))
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_bytes(body)
    given.file.chmod(0o755)
    print(f"{hashlib.sha256(body).hexdigest()}  {given.file}")
    return 0


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, in ``folder``."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.split()[-1]


def pyz(wheel: Path) -> bytes:
    """The whole file."""
    with zipfile.ZipFile(wheel) as opened:
        sources = {name: opened.read(name) for name in opened.namelist() if not name.endswith("/RECORD")}
    for name in PURE:
        sources |= package_sources(metadata.distribution(name))
    sources["blobsync_pyz_start.py"] = Path(__file__).with_name("pyz_start.py").read_bytes()
    sources[UNPACKED_MARK] = _digest(sources).encode()
    return SHEBANG + pack(sources, MAIN)


def package_sources(installed: metadata.Distribution) -> Mapping[str, bytes]:
    """The modules of an installed package, its metadata and its licence; what is native stays out."""
    wanted = [file for file in installed.files or () if _travels(PurePosixPath(file))]
    found = {str(file): Path(str(file.locate())).read_bytes() for file in wanted}
    if not any(name.endswith(".py") for name in found):
        raise SystemExit(f"{installed.name} is not installed as files: ./dev setup installs it")
    (about,) = {name.partition("/")[0] for name in found if name.endswith(".dist-info/METADATA")}
    # What the node archive of jobs asks for the licence of a package.
    found[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in sorted(found)).encode()
    return found


def _travels(file: PurePosixPath) -> bool:
    if ".." in file.parts or "__pycache__" in file.parts:
        return False
    if file.parts[0].endswith(".dist-info"):
        return file.name == "METADATA" or bool(_LICENCE.fullmatch(file.name))
    return file.suffix == ".py" or file.name == "py.typed"


def _digest(sources: Mapping[str, bytes]) -> str:
    """Names the folder that the file is unpacked into."""
    whole = hashlib.sha256()
    for name, body in sorted(sources.items()):
        whole.update(f"{name}\0{len(body)}\0".encode() + body)
    return whole.hexdigest()[:32]


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
