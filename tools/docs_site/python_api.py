"""The reference of the Python API, from the public names of ``blobsync``, their signatures and their docstrings.

Signatures are the text of the source: so defaults and types are shown as they were written, whatever Python builds
the site.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import blobsync
from tools.docs_site.markdown import from_docstring, plain, table

# Page -> its title, and the beginnings of the modules whose names it holds; the first that fits has a name.
PAGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "python-errors": ("Python: errors and codes", ("blobsync.base.errors", "blobsync.base.exit_codes")),
    "python-jobs": (
        "Python: jobs",
        ("blobsync.jobs", "blobsync.jobspec", "blobsync.backends", "blobsync.tunnels", "blobsync.project.jobs"),
    ),
    "python-code": ("Python: code archives", ("blobsync.code",)),
    "python-transfers": (
        "Python: plans and transfers",
        ("blobsync.plan", "blobsync.base.plan_reasons", "blobsync.local"),
    ),
    "python-projects": ("Python: projects, paths and storage", ("blobsync",)),
}
# Classes that a caller creates, other than dataclasses; calls return the others.
_MADE_BY_CALLERS = ("Code", "Tunnels")
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclasses.dataclass(frozen=True)
class PublicName:
    """One name of ``dir(blobsync)``: its module, and its name there."""

    name: str
    module: str
    at_home: str

    @cached_property
    def value(self) -> Any:
        return getattr(blobsync, self.name)

    @property
    def page(self) -> str:
        """The page that has it."""
        return next(page for page, (_, homes) in PAGES.items() if self.module.startswith(homes))

    @cached_property
    def node(self) -> ast.stmt:
        """Its definition in the source."""
        return next(each for each in _source(self.module).body if self.at_home in _defines(each))

    @property
    def docstring(self) -> str:
        """Docstring of the class itself, not inherited."""
        node = self.node
        return (ast.get_docstring(node) or "") if isinstance(node, (ast.ClassDef, *_Function)) else ""


@cache
def _source(module: str) -> ast.Module:
    file = importlib.import_module(module).__file__ or ""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    # Some types are written as texts, which is nothing to a reader.
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            written = getattr(node, name, None)
            if isinstance(written, ast.Constant) and isinstance(written.value, str):
                setattr(node, name, ast.parse(written.value, mode="eval").body)
    return tree


@cache
def _imports(module: str) -> Mapping[str, str]:
    """Names that ``module`` imports, each with the module that it is from."""
    nodes = [node for node in ast.walk(_source(module)) if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in nodes for alias in node.names}


def _defines(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, (ast.ClassDef, *_Function)):
        return (node.name,)
    if isinstance(node, ast.AnnAssign):
        return (ast.unparse(node.target),)
    return tuple(ast.unparse(each) for each in node.targets) if isinstance(node, ast.Assign) else ()


def public_names() -> list[PublicName]:
    """All of them, sorted, but the version."""
    return [PublicName(name, *home) for name, home in sorted(blobsync._homes().items()) if name != "__version__"]


def anchor(title: str) -> str:
    """What a link to the heading of ``title`` names, as GitHub makes it."""
    return re.sub(r"[^\w-]", "", title).lower()


class Writer:
    """The pages; it knows the public names, so that each mention of one is a link."""

    def __init__(self) -> None:
        self.names = {each.name: each for each in public_names()}
        # At home some have a shorter name, which signatures use.
        self._called = {(each.module, each.at_home): each.name for each in self.names.values()}

    def pages(self) -> Iterator[tuple[str, str]]:
        """Each page's name and text; the first is the list of all names."""
        yield "python-api", self._index()
        for page, (title, _) in PAGES.items():
            lines = [f"# {title}", "", "How these work together is told in [from Python](../python.md).", ""]
            for each in self.names.values():
                if each.page == page:
                    lines += self._entry(each)
            yield page, "\n".join(lines)

    def _index(self) -> str:
        intro = "Every public name of `blobsync`, made from the code. [From Python](../python.md) shows their use."
        rows = [(self._link(name), self._first_sentence(each)) for name, each in self.names.items()]
        listed = "\n".join(sorted(PAGES, key=lambda page: PAGES[page][0]))
        toc = f"```{{toctree}}\n:hidden:\n\n{listed}\n```"
        return "\n".join(["# Python API", "", intro, "", toc, "", *table(("name", "what it is"), rows), ""])

    def _first_sentence(self, each: PublicName) -> str:
        if isinstance(each.value, type) and issubclass(each.value, blobsync.BlobsyncError):
            return plain(each.value.code.sentence)
        if not each.docstring:
            return f"`{_assigned(each)}`"
        whole = from_docstring(each.docstring.split("\n\n")[0], lambda name: f"`{name}`")
        return re.split(r"(?<=[.;:])\s", whole, maxsplit=1)[0].rstrip(";:")

    def _link(self, name: str, page: str = "") -> str:
        target = self.names[name]
        return f"[`{name}`]({'' if target.page == page else f'{target.page}.md'}#{anchor(name)})"

    def _entry(self, each: PublicName) -> list[str]:
        lines = [f"## {each.name}", ""]
        node = each.node
        if isinstance(node, _Function):
            return [*lines, *self._callable(each, node, each.name)]
        if not isinstance(node, ast.ClassDef):
            return [*lines, *_code(f"{each.name} = {_assigned(each)}"), *self._types(each, node)]
        lines += [*self._class_line(each, node), *self._text(each, each.docstring)]
        if issubclass(each.value, blobsync.BlobsyncError):
            lines += _error_lines(each.value, node)
        elif issubclass(each.value, enum.Enum):
            lines += _members(each.value)
        lines += self._fields(each)
        for owner, method in self._functions(each):
            lines += [f"### {each.name}.{method.name}", ""]
            lines += self._callable(dataclasses.replace(each, module=owner), method, method.name)
        return lines

    def _class_line(self, each: PublicName, node: ast.ClassDef) -> list[str]:
        made = next((one for one in node.body if isinstance(one, _Function) and one.name == "__init__"), None)
        if each.name in _MADE_BY_CALLERS and made is not None:
            return [*_code(f"{each.name}({_arguments(made)})"), *self._types(each, made)]
        above = [base.__name__ for base in each.value.__bases__ if base.__name__ in self.names]
        return [f"A kind of {', '.join(self._link(name, each.page) for name in above)}.", ""] if above else []

    def _text(self, each: PublicName, docstring: str) -> list[str]:
        if not docstring:
            return []
        return [from_docstring(docstring, lambda name: self._mention(each, name)), ""]

    def _mention(self, each: PublicName, code: str) -> str:
        known = code in self.names and code != each.name
        return self._link(code, each.page) if known else f"`{code}`"

    def _callable(self, each: PublicName, node: Any, name: str) -> list[str]:
        decorators = {ast.unparse(one) for one in node.decorator_list}
        kind = "" if "property" not in decorators and "cached_property" not in decorators else "property "
        given = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        shown = f"{kind}{name}{given}" if kind else f"{name}({_arguments(node)}){given}"
        return [*_code(shown), *self._text(each, ast.get_docstring(node) or ""), *self._types(each, node)]

    def _types(self, each: PublicName, node: ast.AST) -> list[str]:
        """Links to the types of a signature, since code blocks cannot contain links."""
        found = []
        for annotation in _annotations(node):
            for part in ast.walk(annotation):
                word = part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
                name = self._called.get((_imports(each.module).get(word, each.module), word), word)
                if name in self.names and name != each.name and name not in found:
                    found.append(name)
        return [f"Types: {', '.join(self._link(name, each.page) for name in found)}", ""] if found else []

    def _owned(self, each: PublicName) -> list[tuple[str, ast.ClassDef]]:
        """The class, and those above it that are ours and have no entry of their own, with their modules."""
        above = [one.value for one in self.names.values() if one is not each and one.value in each.value.__mro__]
        elsewhere = {one for public in above for one in public.__mro__}
        return [
            (one.__module__, node)
            for one in each.value.__mro__
            if one.__module__.startswith("blobsync") and one not in elsewhere
            for node in _source(one.__module__).body
            if isinstance(node, ast.ClassDef) and node.name == one.__name__
        ]

    def _fields(self, each: PublicName) -> list[str]:
        rows = [
            (
                f"`{ast.unparse(item.target)}`",
                f"`{ast.unparse(_declared(item)[0])}`",
                _default(item),
                _declared(item)[1],
            )
            for _, owner in self._owned(each)
            for item in owner.body
            if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
            if not ast.unparse(item.annotation).startswith("ClassVar")
            for kind, said in [_declared(item)]
        ]
        enums = issubclass(each.value, (enum.Enum, blobsync.BlobsyncError))
        if not rows or enums:
            return []
        items = [item for _, owner in self._owned(each) for item in owner.body if isinstance(item, ast.AnnAssign)]
        types = self._types(each, ast.Module(body=list(items), type_ignores=[]))
        heads = ("field", "type", "default", "as an option")
        shown = 4 if any(row[3] for row in rows) else 3
        return [*table(heads[:shown], [row[:shown] for row in rows]), "", *types]

    def _functions(self, each: PublicName) -> Iterator[tuple[str, Any]]:
        seen: set[str] = set()
        for module, owner in self._owned(each):
            for item in owner.body:
                if isinstance(item, _Function) and not item.name.startswith("_") and item.name not in seen:
                    seen.add(item.name)
                    yield module, item


def _annotations(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and not isinstance(node, ast.AnnAssign):
        yield node.value
    for part in ast.walk(node):
        if isinstance(part, (ast.arg, ast.AnnAssign)) and part.annotation is not None:
            yield part.annotation
        elif isinstance(part, _Function) and part.returns is not None:
            yield part.returns


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Arguments without ``self``, one on each line if there are many."""
    bare = ast.parse(f"def f({ast.unparse(node.args)}): ...").body[0]
    assert isinstance(bare, ast.FunctionDef)
    first = bare.args.args[:1]
    if first and first[0].arg in ("self", "cls"):
        bare.args.args = bare.args.args[1:]
    # As it is usually written: spaces around the default of what has a type.
    inner = [
        re.sub(r"^(\**\w+: [^=]+)=", r"\1 = ", one) for one in re.split(r", (?![^\[(]*[\])])", ast.unparse(bare.args))
    ]
    short = ", ".join(inner)
    return short if len(short) <= 80 else "\n    " + ",\n    ".join(inner) + ",\n"


def _assigned(each: PublicName) -> str:
    node = each.node
    assert isinstance(node, (ast.Assign, ast.AnnAssign))
    assert node.value is not None
    return ast.unparse(node.value)


def _declared(item: ast.AnnAssign) -> tuple[ast.expr, str]:
    """The type of a field, and what is said of the option that sets it."""
    match item.annotation:
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([kind, ast.Call(args=[ast.Constant(str(said)), *_])])):
            return kind, said
    return item.annotation, ""


def _default(item: ast.AnnAssign) -> str:
    if item.value is None:
        return ""
    text = ast.unparse(item.value)
    made = re.fullmatch(r"field\((.*)\)", text)
    if made is None:
        return f"`{text}`"
    default = re.search(r"default=([^,]+)|default_factory=([\w.]+)", made[1])
    return f"`{default[1] or f'{default[2]}()'}`" if default else ""


def _members(value: type[enum.Enum]) -> list[str]:
    if issubclass(value, blobsync.FailureCode):
        return ["All of them are in [failure codes](../failure-codes.md).", ""]
    return [*table(("member", "value"), [(f"`{one.name}`", f"`{one.value!r}`") for one in value]), ""]


def _error_lines(value: type[blobsync.BlobsyncError], node: ast.ClassDef) -> list[str]:
    code = value.code
    said = f"Code [`{code}`](../failure-codes.md), exit code {int(code.exit_code)}: {plain(code.sentence)}."
    kept = [
        target.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Assign)
        for target in part.targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self" and not target.attr.startswith("_")
    ]
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(kept))
    return [said, "", *([f"Attributes of its own: {names}.", ""] if names else [])]


def _code(text: str) -> list[str]:
    return ["```python", inspect.cleandoc(text) if "\n" not in text else text, "```", ""]
