"""Dataclasses that are read back from JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict

import pytest

from blobsync.base.plain_json import made_of, parse_json
from blobsync.base.redaction import Secret


class Colour(str, Enum):
    RED = "red"


class Free(TypedDict, total=False):
    known: int


class Place(NamedTuple):
    folder: Path
    key: Secret | None = None


@dataclass(frozen=True)
class Part:
    name: str
    at: tuple[float, int] = (0.0, 0)


@dataclass(frozen=True)
class Whole:
    count: int
    colour: Colour
    word: Literal["a", "b"] = "a"
    parts: tuple[Part, ...] = ()
    one: Part | None = None
    flag: bool | None = None
    share: float = 0.5
    texts: Mapping[str, str] = field(default_factory=dict)
    free: Free = field(default_factory=Free)
    anything: Any = None
    place: Place | None = None


FULL = Whole(1, Colour.RED, "b", (Part("x", (1.5, 2)),), Part("y"), True, 2.0, {"a": "b"}, {"known": 3}, [1, {}])


def test_what_was_written_comes_back() -> None:
    assert made_of(Whole, parse_json(json.dumps(asdict(FULL)))) == FULL
    assert made_of(Part, json.loads(json.dumps(astuple(Part("x", (1.5, 2)))))) == Part("x", (1.5, 2))
    assert made_of(Whole, {"count": 1, "colour": "red"}) == Whole(1, Colour.RED)
    assert made_of(Place, ["/x", "sesame-of-a-place"]) == made_of(Place, {"folder": "/x", "key": "sesame-of-a-place"})
    assert made_of(Place, ["/x", "sesame-of-a-place"]) == Place(Path("/x"), Secret("sesame-of-a-place"))
    assert made_of(Whole, {"count": 1, "colour": "red", "free": {"of_a_newer_version": []}}).free


@pytest.mark.parametrize(
    "change",
    [
        {"count": True},
        {"count": 1.5},
        {"count": "1"},
        {"count": None},
        {"colour": "green"},
        {"colour": []},
        {"word": "c"},
        {"parts": {"name": "x"}},
        {"parts": ["x"]},
        {"parts": [{"name": "x", "at": [1.5]}]},
        {"parts": [{"name": "x", "at": [1.5, 2, 3]}]},
        {"parts": [{"at": [1.5, 2]}]},
        {"parts": [["x", [1.5, 2], "more"]]},
        {"one": {"name": "x", "more": 1}},
        {"one": 5},
        {"flag": 1},
        {"share": "0.5"},
        {"share": float("inf")},
        {"texts": {"a": 1}},
        {"texts": []},
        {"free": []},
        {"place": [5]},
        {"place": ["/x", 5]},
        {"place": ["/x", "sesame-of-a-place", None]},
        {"more": 1},
    ],
)
def test_what_no_field_can_be_is_refused(change: dict[str, object]) -> None:
    values = {"count": 1, "colour": "red"}
    with pytest.raises(ValueError, match=r"wrong type|no field|missing|it is no|not a valid|longer|shorter"):
        made_of(Whole, {**values, **change})
    others: tuple[object, ...] = (None, "text", [], {}, {"count": 1})
    for other in others:
        with pytest.raises(ValueError, match=r"it is no Whole|fields of a Whole are missing"):
            made_of(Whole, other)


def test_fields_of_a_newer_version_can_be_left_out() -> None:
    values = {"count": 1, "colour": "red", "one": {"name": "x", "more": 1}, "more": 2}
    assert made_of(Whole, values, newer=True) == Whole(1, Colour.RED, one=Part("x"))
