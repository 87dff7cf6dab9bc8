"""Small changes to a module's source, each of which some test should notice.

Comparisons, numbers, arithmetic, True and False, loops, exceptions: cosmic-ray's operators. It has none for what
matters most here, that a check or a call is simply not there, so those are ours: a condition that is never or always
met, an ``and`` or ``or`` without one operand, a statement left out.

What stands below ``if __name__ == "__main__":`` stays as it is, since only a process of its own runs it.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

# cosmic-ray's names. Left out: what changes the types (every other arithmetic), what makes no sense of one line
# (variables exchanged for others), and decorators.
_COMPARISONS = (
    *(("Eq", "NotEq"), ("NotEq", "Eq"), ("Lt", "LtE"), ("LtE", "Lt"), ("Gt", "GtE"), ("GtE", "Gt")),
    *(("Is", "IsNot"), ("IsNot", "Is")),
)
_ARITHMETIC = (("Add", "Sub"), ("Sub", "Add"), ("Mul", "FloorDiv"), ("FloorDiv", "Mul"), ("Div", "Mul"), ("Mod", "Mul"))
OPERATORS = (
    *(f"ReplaceComparisonOperator_{one}_{other}" for one, other in _COMPARISONS),
    *(f"ReplaceBinaryOperator_{one}_{other}" for one, other in _ARITHMETIC),
    *("ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
    *("NumberReplacer", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ZeroIterationForLoop", "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ExceptionReplacer"),
)


class Mutant(NamedTuple):
    """One changed source. ``where`` is the function or class, ``line`` the first changed line of the original.

    ``lines`` is how many lines change, ``before`` and ``after`` are these lines, stripped.
    """

    line: int
    lines: int
    where: str
    before: str
    after: str
    source: str


class _Edit(NamedTuple):
    """Characters ``start`` to ``end`` of the source become ``text``."""

    start: int
    end: int
    text: str


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines; none twice."""
    texts = dict.fromkeys(mutant.source for mutant in own_mutants(source))
    texts.update(dict.fromkeys(_by_cosmic_ray(source)))
    # Of a hash, this matters only to a Python that forbids MD5 for security (FIPS).
    return [mutant for mutant in _described(source, texts) if "usedforsecurity=True" not in mutant.after]


def own_mutants(source: str) -> list[Mutant]:
    """Those that are made here, without cosmic-ray."""
    places = _Places(source)
    return _described(source, {_apply(source, edit) for edit in _edits(ast.parse(source), places)})


def _described(source: str, texts: Iterable[str]) -> list[Mutant]:
    places = _Places(source)
    made = [mutant for text in texts if (mutant := _describe(source, text, places)) is not None]
    return sorted(
        (mutant for mutant in made if mutant.line not in places.of_program),
        key=lambda mutant: (mutant.line, mutant.after),
    )


def _by_cosmic_ray(source: str) -> Iterator[str]:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    for name in OPERATORS:
        operator, occurrence = provider[name](), 0
        while (changed := mutate_code(source, operator, occurrence)) is not None:
            yield changed
            occurrence += 1


def _edits(tree: ast.Module, places: _Places) -> Iterator[_Edit]:
    for node in ast.walk(tree):
        for test in _conditions(node):
            start, end = places.of(test)
            text = places.source[start:end]
            yield _Edit(start, end, f"(({text}) and False)")
            if not isinstance(node, ast.While):
                yield _Edit(start, end, f"(({text}) or True)")
        if isinstance(node, ast.BoolOp):
            yield from _halves(node, places)
        if isinstance(node, ast.stmt) and _can_go(node):
            yield _Edit(*places.of(node), "pass")


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return [] if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else []


def _halves(node: ast.BoolOp, places: _Places) -> Iterator[_Edit]:
    """An ``and`` or ``or`` without one of its operands."""
    start, end = places.of(node)
    word = " and " if isinstance(node.op, ast.And) else " or "
    texts = [f"({places.source[slice(*places.of(value))]})" for value in node.values]
    for at in range(len(texts)):
        yield _Edit(start, end, f"({word.join(texts[:at] + texts[at + 1 :])})")


def _can_go(node: ast.stmt) -> bool:
    """Statements that the code after them can do without."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, (ast.Constant, ast.Yield, ast.YieldFrom))
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Delete, ast.Raise)) or (
        isinstance(node, ast.Return) and node.value is None
    )


def _apply(source: str, edit: _Edit) -> str:
    return source[: edit.start] + edit.text + source[edit.end :]


class _Places:
    """Where things are in a source, in characters (``ast`` counts the columns in bytes)."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        tree = ast.parse(source)
        self._names = sorted(_names(tree, ""))
        # The lines that run only if the module is the program.
        self.of_program = {
            line
            for node in tree.body
            if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """The first character of a node, and the one after its last."""
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno or 0, node.end_col_offset or 0)

    def owner(self, line: int) -> str:
        """The innermost function or class that a line is in; empty outside of any."""
        inside = [(end - start, name) for start, end, name in self._names if start <= line <= end]
        return min(inside)[1] if inside else ""

    def _at(self, line: int, column: int) -> int:
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)


def _names(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield first, child.end_lineno or child.lineno, prefix + child.name
            yield from _names(child, f"{prefix}{child.name}.")
        else:
            yield from _names(child, prefix)


def _describe(source: str, changed: str, places: _Places) -> Mutant | None:
    try:
        if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source)):
            return None
    except SyntaxError:
        return None
    old, new = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    first, last = blocks[0], blocks[-1]
    before = " ".join(line.strip() for line in old[first[1] : last[2]])
    after = " ".join(line.strip() for line in new[first[3] : last[4]])
    return Mutant(first[1] + 1, last[2] - first[1], places.owner(first[1] + 1), before, after, changed)
