"""The wheel and the sdist, each installed by pip where nothing else is, and the tutorial run with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FOR_INSTALLERS
from tests.source import ROOT


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_a_package_carries_the_tutorial_without_the_checkout(kind: str) -> None:
    pytest.importorskip("hatch_vcs", reason="./dev setup installs it")
    words = ["--tutorial", *(["--sdist"] if kind == "sdist" else [])]
    done = subprocess.run(
        [sys.executable, "-m", "tools.first_hour", *words],
        cwd=ROOT,
        env=dict(FOR_INSTALLERS),
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the first upload: blobsync u data/notes" in done.stdout and "the tutorial, " in done.stdout


@pytest.mark.soak
def test_a_release_writes_nothing_unless_it_is_told(tmp_path: Path) -> None:
    pytest.importorskip("twine", reason="./dev setup installs it")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(
        changelog.read_text(encoding="utf-8").replace(
            "## [Unreleased]\n", "## [Unreleased]\n\n## [0.1.0] - 2026-11-20\n\n- Anything.\n", 1
        ),
        encoding="utf-8",
    )
    own = ["git", "-c", "user.name=me", "-c", "user.email=me@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run([*own, "commit", "-qam", "Release"], cwd=clone, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tools.release", "0.1.0"], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing was written" in done.stdout and done.stdout.count("built twice") == 3
    assert not (clone / "dist").exists()
    assert subprocess.run(["git", "tag"], cwd=clone, capture_output=True, text=True, check=True).stdout == ""
    print(done.stdout)
