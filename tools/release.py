"""``./dev release VERSION``: everything that has to be right before a version is published.

It checks and builds in a temporary folder and changes nothing. ``--write`` keeps what it built in ``dist/`` and makes
the tag; nothing is pushed or uploaded by it in any case. CONTRIBUTING.md has the whole checklist.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_HEADING = re.compile(r"^## \[(?P<name>[^\]]+)\](?: - (?P<day>\S+))?\s*$", re.MULTILINE)
_BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]))
print(build_sdist(sys.argv[1]))
"""


class ReleaseError(Exception):
    """A problem that must be solved before the release."""


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Check the release of ``root``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./dev release", description="Check a release, and build it twice.")
    parser.add_argument("version", help="1.2.3, without v")
    parser.add_argument("--write", action="store_true", help="keep the files in dist/, and make the tag")
    given = parser.parse_args(words)
    try:
        with tempfile.TemporaryDirectory() as folder:
            release(root, given.version, Path(folder), write=given.write)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def release(root: Path, version: str, scratch: Path, *, write: bool) -> None:
    """All steps, each printed; raises ``ReleaseError`` at the first that finds something."""
    _check_version(root, version)
    _check_tree(root)
    say(f"no file differs from commit {_git(root, 'rev-parse', '--short', 'HEAD')}")
    notes = changes(root, version)
    say(f"CHANGELOG.md has {len(notes.splitlines())} lines about {version}")
    files = _built_twice(root, version, scratch)
    for file in files:
        say(f"built twice, the same bytes: {hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}")
    _check_metadata([file for file in files if file.suffix != ".pyz"])
    say("the metadata is what an index takes, and the README can be shown")
    if not write:
        say("nothing was written; --write keeps the files and makes the tag")
        return
    target = _kept(root, version, files, notes)
    _tag(root, version, notes)
    say(f"{target} has the files, their checksums and the notes; the tag v{version} is made")
    say(f"next: git push origin v{version}, then upload dist/*.whl and dist/*.tar.gz to the index")


def _check_version(root: Path, version: str) -> None:
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version} is not a version like 1.2.3 or 1.2.3rc1")
    tags = _git(root, "tag", "--list", f"v{version}")
    if tags and _git(root, "rev-list", "-n1", f"v{version}") != _git(root, "rev-parse", "HEAD"):
        raise ReleaseError(f"the tag v{version} is at another commit")


def _check_tree(root: Path) -> None:
    changed = _git(root, "status", "--porcelain")
    if changed:
        raise ReleaseError(f"these files are not committed:\n{changed}")


def changes(root: Path, version: str) -> str:
    """The section of the changelog. Raises ``ReleaseError`` where it is not as a release needs it."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = list(_HEADING.finditer(text))
    names = [head["name"] for head in heads]
    if names[:1] != ["Unreleased"]:
        raise ReleaseError("CHANGELOG.md must begin with the section [Unreleased]")
    if names[1:2] != [version]:
        raise ReleaseError(f"the second section of CHANGELOG.md must be: ## [{version}] - {date.today().isoformat()}")
    if text[heads[0].end() : heads[1].start()].strip():
        raise ReleaseError(f"what stands below [Unreleased] in CHANGELOG.md belongs below [{version}]")
    try:
        date.fromisoformat(heads[1]["day"] or "")
    except ValueError:
        raise ReleaseError(f"the section [{version}] of CHANGELOG.md has no day like 2026-11-20") from None
    end = heads[2].start() if heads[2:] else len(text)
    notes = text[heads[1].end() : end].strip()
    if not notes:
        raise ReleaseError(f"the section [{version}] of CHANGELOG.md is empty")
    return notes + "\n"


def _built_twice(root: Path, version: str, scratch: Path) -> list[Path]:
    """The wheel, the sdist and blobsync.pyz, from two clones, without uncommitted changes."""
    both = [_build(root, version, scratch / name) for name in ("one", "two")]
    for one, two in zip(*both, strict=True):
        if one.name != two.name or one.read_bytes() != two.read_bytes():
            raise ReleaseError(f"two builds of {one.name} differ")
    return both[0]


def _build(root: Path, version: str, folder: Path) -> list[Path]:
    clone, out = folder / "clone", folder / "out"
    out.mkdir(parents=True)
    _git(root, "clone", "--quiet", "--no-hardlinks", str(root), str(clone))
    # The tag of the clone alone: the one that counts is made when everything is right.
    _git(clone, "tag", "--force", f"v{version}")
    environ = {**os.environ, "SOURCE_DATE_EPOCH": _git(root, "log", "-1", "--format=%ct")}
    built = _run([sys.executable, "-c", _BUILD, str(out)], clone, environ).split()[-2:]
    wheel, sdist = (out / name for name in built)
    if sdist.name != f"blobsync-{version}.tar.gz":
        raise ReleaseError(f"the build made {sdist.name}, not version {version}")
    pyz = out / "blobsync.pyz"
    _run([sys.executable, "-m", "tools.pyz", "--wheel", str(wheel), str(pyz)], clone, environ)
    return [wheel, sdist, pyz]


def _check_metadata(files: Sequence[Path]) -> None:
    environ = {**os.environ, "NO_COLOR": "1"}
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, files)], files[0].parent, environ)


def _kept(root: Path, version: str, files: Sequence[Path], notes: str) -> Path:
    target = root / "dist"
    target.mkdir(exist_ok=True)
    for file in files:
        shutil.copy2(file, target / file.name)
    sums = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (target / "SHA256SUMS").write_text(sums, encoding="utf-8")
    (target / f"notes-{version}.md").write_text(notes, encoding="utf-8")
    return target


def _tag(root: Path, version: str, notes: str) -> None:
    if not _git(root, "tag", "--list", f"v{version}"):
        # Headings of the notes begin with the sign of git's comments.
        _git(root, "tag", "--annotate", "--cleanup=verbatim", f"v{version}", "--message", f"{version}\n\n{notes}")


def _git(root: Path, *words: str) -> str:
    return _run(["git", *words], root, dict(os.environ)).strip()


def _run(argv: Sequence[str], folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(argv[:4])} failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
