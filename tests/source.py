"""The project's source code, for tests that read it."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Module:
    """One module of the package; ``name`` is ``blobsync.azcopy.engine``."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=str(self.path))

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        """All of the tree: to walk over the package again takes a second, more than what a test does with it."""
        return list(ast.walk(self.tree))

    @property
    def file(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    def imports(self) -> Iterator[tuple[int, str]]:
        """All imports, also in functions: line and module; ``from blobsync import x`` imports ``blobsync.x``."""
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom) and node.module == "blobsync":
                for alias in node.names:
                    yield node.lineno, f"blobsync.{alias.name}"
            elif isinstance(node, ast.ImportFrom):
                yield node.lineno, "." * node.level + (node.module or "")
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node


@cache
def modules() -> Sequence[Module]:
    """All modules of the package; each is parsed once."""
    found = []
    for path in sorted((ROOT / "blobsync").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append(Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def tracked_files() -> list[Path]:
    """All files of the repository; without a repository, of the source tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    hidden = {".git", ".venv", ".tools", "__pycache__"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not hidden & set(path.relative_to(ROOT).parts)]
