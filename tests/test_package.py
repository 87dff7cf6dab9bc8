"""The wheel and the sdist: what they hold, and that two builds of the same files are the same bytes."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.source import ROOT, tracked_files
from tools.index_readme import without_dead_links

# A moment for all files, as packagers set it: https://reproducible-builds.org/specs/source-date-epoch/
_MOMENT = "1700000000"
_BUILD = """
import sys
from hatchling.build import build_sdist, build_wheel
print(build_wheel(sys.argv[1]))
print(build_sdist(sys.argv[1]))
"""


def _build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    pytest.importorskip("hatch_vcs", reason="./dev setup installs it")
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)],
        cwd=ROOT,
        env={**os.environ, "SOURCE_DATE_EPOCH": _MOMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    wheel, sdist = done.stdout.split()[-2:]
    return folder / wheel, folder / sdist


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return _build(tmp_path_factory.mktemp("packages") / "one")


def _tracked() -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in tracked_files()}


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        version = built[0].name.split("-")[1]
        metadata = Parser().parsestr(wheel.read(f"blobsync-{version}.dist-info/METADATA").decode())
        scripts = wheel.read(f"blobsync-{version}.dist-info/entry_points.txt").decode()
    assert names == {name for name in _tracked() if name.startswith("blobsync/")}
    assert (metadata["Name"], metadata["Version"]) == ("blobsync", version)
    assert "blobsync = blobsync.__main__:main" in scripts
    assert {"web", "kubernetes", "docs"} <= set(metadata.get_all("Provides-Extra") or ())


def test_the_metadata_says_what_is_known_and_nothing_more(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(wheel.read(name).decode())
    # The project has no public home yet.
    assert metadata.get_all("Project-URL") is None and metadata["Home-page"] is None
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("MIT", ["LICENSE"])
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (metadata["Requires-Python"], metadata["Keywords"]) == (">=3.10", "aml,azcopy,azure,blob,data,slurm")
    pythons = [each for each in metadata.get_all("Classifier") or () if each.startswith("Programming Language")]
    assert pythons == [f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)]
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], capture_output=True, text=True
    )
    if "No module named twine" in done.stderr:
        pytest.skip("./dev setup installs twine")
    assert done.returncode == 0 and done.stdout.count("PASSED") == 2, done.stdout + done.stderr


def _addresses(text: str) -> list[tuple[str, ...]]:
    """Where the links and pictures of a Markdown page lead."""
    return re.findall(r"\]\(([^)]*)\)|^\[[^\]]+\]: (\S+)|(?:href|src)=\"([^\"]*)", text, re.MULTILINE)


def test_no_link_of_the_readme_is_dead_on_an_index(built: tuple[Path, Path]) -> None:
    """Beside it, there, is no file: neither docs/ nor a picture."""
    with zipfile.ZipFile(built[0]) as wheel, tarfile.open(built[1]) as sdist:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        (about,) = (name for name in sdist.getnames() if name.endswith("/PKG-INFO"))
        packed = sdist.extractfile(about)
        assert packed is not None
        texts = [Parser().parsestr(each.decode()).get_payload() for each in (wheel.read(name), packed.read())]
    for text in map(str, texts):
        found = {address for each in _addresses(text) for address in each if address}
        assert [address for address in found if not re.match(r"https?://|#", address)] == []
        assert "`blobsync u data/voc20` here" in text and "Tutorial (`docs/tutorial.md`)" in text
    assert len(_addresses((ROOT / "README.md").read_text(encoding="utf-8"))) > 20


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("see [a page](docs/a.md#part).", "see a page (`docs/a.md`)."),
        ("fast ([how](docs/a.md))", "fast (how: `docs/a.md`)"),
        ("[LICENSE](LICENSE) (MIT)", "LICENSE (MIT)"),
        ("![a picture](docs/a.svg)\n", ""),
        ("[a site](https://example.org/a) and [below](#more)", "[a site](https://example.org/a) and [below](#more)"),
    ],
)
def test_a_link_to_a_file_becomes_its_words_and_the_name_of_the_file(written: str, shown: str) -> None:
    assert without_dead_links(written).partition("\n\nThe pages in")[0].strip() == shown


def test_the_sdist_holds_what_its_tests_and_pages_need(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    hidden = {name for name in _tracked() if name.startswith(".")}
    assert _tracked() - hidden <= names
    assert names - _tracked() == {"PKG-INFO"}


def test_two_builds_of_the_same_files_are_the_same_bytes(built: tuple[Path, Path], tmp_path: Path) -> None:
    again = _build(tmp_path / "two")
    assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in again] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in built
    ]
