"""A saved plan is applied as it was made, with all its options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from blobsync.base.errors import PlanFileError
from blobsync.cli.commands import OptionGroup
from blobsync.cli.transfer import TransferWords
from blobsync.plan.saved_plan import load, save
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Direction, EngineChoice, Route, TransferPlan

_HINTS = get_type_hints(TransferOptions)


def _values(hint: Any) -> Iterator[Any]:
    """Values of every form that an option of this type can have, with the smallest and the largest."""
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _values(each)
    elif get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_origin(hint) is tuple:
        yield from ((), ("*.jpg",), ("a\n", "!b c", "\u00e4 \U0001f600", 'it\'s "x"'))
    else:
        yield from {
            bool: (True, False),
            int: (0, 1, 10**12, 2**63 - 1),
            float: (0.5, 25.0, 100.0, 1e15),
            str: ("data/a b", "d\u00e4ta/\U0001f600"),
            NoneType: (None,),
        }[hint]


CASES = [(name, value) for name in TransferOptions._fields for value in _values(_HINTS[name])]


def _plan(options: TransferOptions) -> TransferPlan:
    return TransferPlan(Route.UPLOAD, "eu", None, ("data",), options, (), EngineChoice("direct", "a test"))


def _saved(options: TransferOptions, file: Path) -> TransferOptions:
    save(_plan(options), file)
    return load(file).options


@pytest.mark.parametrize(("name", "value"), CASES, ids=[f"{name}={value!r}"[:40] for name, value in CASES])
def test_every_option_survives_saving(name: str, value: Any, tmp_path: Path) -> None:
    options = TransferOptions()._replace(**{name: value})
    assert _saved(options, tmp_path / "plan.json") == options


# What a command line can say of each option of `u`, `d` and `plan`, as typer passes it on.
_WORDS: dict[str, list[Any]] = {
    "max_delete_files": [["25%"], ["3"], ["3", "50%"], ["0"], ["250%"], ["9" * 200], ["9" * 300 + "%"]],
    "engine": ["azcopy", "relay"],
    "keep": ["both"],
    "links": ["skip"],
    "include": [["*.jpg", "a b/"]],
    "exclude": [["*.tmp"]],
    "cap_mbps": [0.25, 40_000.0],
    "from_path": ["data/other"],
    "processes": [4],
    "nodes": [2],
}
_PLAN = OptionGroup(TransferWords, "plan")
_DEFAULTS = {each.name: each.default for each in _PLAN.rows}
_COMMANDS = [(name, word) for name, default in _DEFAULTS.items() for word in _WORDS.get(name, [default is False])]


@pytest.mark.parametrize(("name", "word"), _COMMANDS, ids=[f"{name}={word!r}"[:40] for name, word in _COMMANDS])
def test_every_option_of_a_command_line_survives_saving(name: str, word: Any, tmp_path: Path) -> None:
    options = _PLAN.build({**_DEFAULTS, name: word})
    assert options != _PLAN.build(_DEFAULTS), "the case has to differ from the default"
    assert _saved(options, tmp_path / "plan.json") == options


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_option_that_could_not_be_read_again_is_refused_when_it_is_saved(value: float, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with pytest.raises(PlanFileError, match="cap_mbps"):
        save(_plan(TransferOptions(cap_mbps=value)), file)
    assert not file.exists()


def test_a_saved_plan_keeps_its_messages(tmp_path: Path) -> None:
    save(_plan(TransferOptions(mirror=True, max_delete_percent=25.0)), tmp_path / "plan.json")
    saved = load(tmp_path / "plan.json")
    assert (saved.direction, saved.cluster, saved.paths) == (Direction.UP, "eu", ("data",))
