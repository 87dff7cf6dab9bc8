"""The Python in the documentation, as a type checker of a user sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.source import ROOT


def _examples() -> Iterator[tuple[str, str]]:
    for page in ("README.md", "docs/python.md", "docs/concepts.md", "docs/code-archive.md"):
        blocks = (ROOT / page).read_text(encoding="utf-8").split("```python\n")[1:]
        for number, block in enumerate(blocks):
            yield f"{Path(page).stem.lower().replace('-', '_')}_{number}", block.split("```")[0]


def test_the_examples_of_the_documentation_have_types_that_fit(tmp_path: Path) -> None:
    wrong = "from blobsync import Project\n\nProject.open().upload('data', engine='carrier-pigeon', mirrored=True)\n"
    for name, text in (*_examples(), ("wrong", wrong)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--config-file",
                os.devnull,
                "--python-executable",
                sys.executable,
            ),
            *("--cache-dir", ROOT / ".mypy_cache" / "examples", "."),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len([line for line in found if line.startswith("wrong.py:3")]) == 2, done.stdout + done.stderr
    assert not [line for line in found if not line.startswith("wrong.py")]
