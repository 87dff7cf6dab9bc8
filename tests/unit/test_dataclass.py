"""Data classes that are made faster are data classes like any other."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import blobsync
from blobsync.base import dataclass as ours
from blobsync.base.locations import BlobContainer


def _made(decorator: Any, field: Any, **settings: bool) -> Any:
    @decorator(slots=True, **settings)
    class Sample:
        """A sample."""

        a: int
        b: str = "x"
        c: list[int] = field(default_factory=list)
        d: int = field(default=4, repr=False, compare=False)
        e: int = field(init=False, default=5)

        @property
        def twice(self) -> int:
            return 2 * self.a

    return Sample


SETTINGS = [{"frozen": True}, {"frozen": False}, {"frozen": True, "repr": False}]


@pytest.fixture(params=SETTINGS, ids=str)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    plain = _made(dataclasses.dataclass, dataclasses.field, **request.param)
    return _made(ours.dataclass, ours.field, **request.param), plain


def _outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        return type(error)


def _facts(kind: Any) -> object:
    return [(f.name, f.type, f.default, f.repr, f.compare, f.init, f.kw_only) for f in dataclasses.fields(kind)]


LOOKS: list[Callable[[Any], object]] = [
    lambda kind: list(inspect.signature(kind).parameters),
    lambda kind: kind.__init__.__annotations__,
    lambda kind: (kind.__match_args__, kind.__slots__, kind.__doc__, dataclasses.is_dataclass(kind)),
    _facts,
    lambda kind: dataclasses.asdict(kind(1, "y", [2])),
    lambda kind: dataclasses.astuple(dataclasses.replace(kind(1), b="z")),
    lambda kind: dataclasses.replace(kind(1), e=3),
    lambda kind: (kind(1) == kind(1), kind(1) == kind(2), kind(1, d=9) == kind(1), kind(1) == 1, kind(1) != kind(1)),
    lambda kind: hash(kind(1, c=())) == hash(kind(1, c=())),
    lambda kind: hash(kind(1)),
    lambda kind: setattr(kind(1), "a", 2),
    lambda kind: delattr(kind(1), "a"),
    lambda kind: kind(),
    lambda kind: kind(1, e=3),
    lambda kind: kind(1, 2, 3, 4, 5),
    lambda kind: kind(1).c is kind(1).c,
    lambda kind: (kind(1).twice, kind(1).e, kind(1, c=[7]).c),
    lambda kind: copy.copy(kind(1, c=[3])) == kind(1, c=[3]),
    lambda kind: copy.deepcopy(kind(1, c=[3])) == kind(1, c=[3]),
    lambda kind: repr(kind(1)) if "__repr__" in kind.__dict__ else kind.__repr__ is object.__repr__,
]


@pytest.mark.parametrize("look", LOOKS)
def test_it_does_what_the_other_does(both: tuple[Any, Any], look: Callable[[Any], object]) -> None:
    fast, plain = both
    assert _outcome(lambda: look(fast)) == _outcome(lambda: look(plain))


def test_an_attribute_that_is_no_field_cannot_be_set(both: tuple[Any, Any]) -> None:
    with pytest.raises(AttributeError):
        both[0](1).other = 2


def test_it_may_be_pickled_and_matched() -> None:
    one = BlobContainer("acct", "cont", "http://h/a")
    assert pickle.loads(pickle.dumps(one)) == one
    assert BlobContainer.__match_args__[2] == "endpoint"


def test_what_it_does_not_know_is_left_to_dataclasses() -> None:
    @ours.dataclass(frozen=True, slots=True, order=True)
    class Ordered:
        a: int = ours.field(default=1, metadata={"x": 1})

    assert Ordered(1) < Ordered(2) and dataclasses.fields(Ordered)[0].metadata == {"x": 1}

    @ours.dataclass(frozen=True, slots=True)
    class Base:
        a: int

    @ours.dataclass(frozen=True, slots=True)
    class Below(Base):
        b: int = 2

    assert dataclasses.astuple(Below(1)) == (1, 2) and Below(1) == Below(1, 2)


def test_every_data_class_of_the_package_can_be_looked_at() -> None:
    seen = 0
    for module in pkgutil.walk_packages(blobsync.__path__, "blobsync."):
        if ".standalone" in module.name or module.name.endswith("__main__"):
            continue
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and dataclasses.is_dataclass(one) and one.__module__ == module.name:
                seen += 1
                taken = [f.name for f in dataclasses.fields(one) if f.init]
                assert taken == list(inspect.signature(one).parameters), one
    assert seen > 200
