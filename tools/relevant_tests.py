"""Which test files have to do with a module: those that import it, at most over one other of ours.

Only tests without servers: a mutant is run hundreds of times.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("tests/unit", "tests/cli")
# Where a statement has others.
_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def relevant(path: Path) -> list[Path]:
    """The test files for the module in ``path``."""
    name = _name(path)
    tests = [test for folder in FOLDERS for test in sorted((ROOT / folder).glob("test_*.py"))]
    return [test for test in tests if any(name == near or name in _imports(near) for near in _reached(test))]


def is_free_of(name: str, paths: Sequence[Path]) -> bool:
    """Whether the module ``name`` can be imported without those in ``paths``."""
    known, waiting = {name}, [name]
    while waiting:
        for other in _imports(waiting.pop()) - known:
            known.add(other)
            waiting += [other] if other.startswith("blobsync") else []
    return known.isdisjoint(_name(path) for path in paths)


def _reached(test: Path) -> set[str]:
    """The modules of ours that a test imports, by itself or through what is shared among the tests."""
    found: set[str] = set()
    waiting = [_name(test)]
    while waiting:
        for name in _imports(waiting.pop()) - found:
            found.add(name)
            if name.startswith("tests."):
                waiting.append(name)
    return {name for name in found if name.startswith("blobsync")}


@cache
def _imports(name: str) -> frozenset[str]:
    path = ROOT / Path(*name.split(".")).with_suffix(".py")
    if not path.is_file():
        path = path.with_suffix("") / "__init__.py"
    if not path.is_file():
        return frozenset()
    return frozenset(_imported(ast.parse(path.read_text(encoding="utf-8")).body))


def _imported(body: Iterable[ast.AST]) -> Iterator[str]:
    """Of these statements; expressions, which are most of a tree, import nothing."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            for below in _BODIES:
                yield from _imported(getattr(node, below, ()))


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)
