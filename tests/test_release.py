"""``./dev release`` on a scratch repository: what it refuses, and what it builds."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source import ROOT, tracked_files
from tools.release import ReleaseError, changes, main

_CHANGES = """\
# Changelog

## [Unreleased]

## [1.2.0] - 2026-11-20

### Added

- All of it.

## [1.1.0] - 2026-01-01
"""
# Tests, pages and measurements are in no wheel and no pyz.
_LEFT_OUT = ("tests/", "docs/", "benchmarks/", "aux_data/")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    for file in tracked_files():
        name = file.relative_to(ROOT).as_posix()
        if not name.startswith(_LEFT_OUT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / name)
    (folder / "CHANGELOG.md").write_text(_CHANGES)
    git(folder, "init", "-q")
    for name, value in (("user.name", "me"), ("user.email", "me@localhost"), ("tag.gpgsign", "false")):
        git(folder, "config", name, value)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--no-gpg-sign", "-m", "all")
    return folder


@pytest.mark.parametrize(
    ("changelog", "said"),
    [
        (_CHANGES.replace("[1.2.0]", "[1.3.0]"), "the second section of CHANGELOG.md must be: ## [1.2.0] - "),
        (_CHANGES.replace("## [1.2.0]", "- A line.\n\n## [1.2.0]"), "what stands below [Unreleased]"),
        (_CHANGES.replace(" - 2026-11-20", ""), "has no day like"),
        (_CHANGES.replace("### Added\n\n- All of it.\n", ""), "the section [1.2.0] of CHANGELOG.md is empty"),
        (_CHANGES.replace("## [Unreleased]", "## Next"), "must begin with the section [Unreleased]"),
    ],
)
def test_a_changelog_that_does_not_fit_is_refused(tmp_path: Path, changelog: str, said: str) -> None:
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    with pytest.raises(ReleaseError) as refused:
        changes(tmp_path, "1.2.0")
    assert said in str(refused.value)


def test_a_bad_version_an_uncommitted_file_and_a_tag_elsewhere_are_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["v1.2"], repository) == 1
    git(repository, "tag", "v1.2.0")
    git(repository, "commit", "-q", "--no-gpg-sign", "--allow-empty", "-m", "more")
    assert main(["1.2.0"], repository) == 1
    git(repository, "tag", "-d", "v1.2.0")
    (repository / "new.txt").write_text("x")
    assert main(["1.2.0"], repository) == 1
    said = capsys.readouterr().err
    assert "not a version" in said and "at another commit" in said and "not committed:\n?? new.txt" in said


def test_a_release_is_built_twice_checked_kept_and_tagged(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("twine", reason="./dev setup installs it")
    pytest.importorskip("hatch_vcs", reason="./dev setup installs it")
    assert main(["1.2.0", "--write"], repository) == 0, capsys.readouterr().err
    kept = repository / "dist"
    names = {"blobsync-1.2.0-py3-none-any.whl", "blobsync-1.2.0.tar.gz", "blobsync.pyz"}
    assert {file.name for file in kept.iterdir()} == {*names, "SHA256SUMS", "notes-1.2.0.md"}
    sums = {f"{hashlib.sha256((kept / name).read_bytes()).hexdigest()}  {name}" for name in names}
    assert set((kept / "SHA256SUMS").read_text().splitlines()) == sums
    assert (kept / "notes-1.2.0.md").read_text() == "### Added\n\n- All of it.\n"
    assert "### Added" in git(repository, "tag", "-l", "--format=%(contents)", "v1.2.0")
    assert git(repository, "describe") == "v1.2.0" and git(repository, "status", "--porcelain") == ""
