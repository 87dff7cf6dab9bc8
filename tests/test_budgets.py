"""How long a command may be."""

from __future__ import annotations

import ast
from importlib import import_module

import pytest

from blobsync.cli.commands import Commands
from tests.source import Module, modules

COMMAND_LINES = 25

MODULES = modules()


def _body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return ((body[-1].end_lineno or 0) - body[0].lineno + 1) if body else 0


@pytest.mark.parametrize(
    "module", [module for module in MODULES if module.name.startswith("blobsync.cli.")], ids=lambda module: module.name
)
def test_commands_parse_call_and_return(module: Module) -> None:
    """A command is a function that ``command`` of an ``app`` or of a group of it decorates."""
    registered = [
        each
        for each in module.functions()
        for one in each.decorator_list
        if isinstance(one, ast.Call) and ast.unparse(one.func).endswith(".command")
    ]
    lines = {each.name: _body_lines(each) for each in registered}
    assert {name: count for name, count in lines.items() if count > COMMAND_LINES} == {}
    # None escapes, and what --help prints of each is a docstring.
    assert len(registered) == _commands_of(getattr(import_module(module.name), "app", Commands()))
    assert [each.name for each in registered if ast.get_docstring(each) is None] == []


def _commands_of(app: Commands) -> int:
    return len(app.commands) + sum(map(_commands_of, app.groups.values()))
