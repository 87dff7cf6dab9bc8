"""Records behave as those of the standard library do: each class body is made with both, and they are compared."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable
from dataclasses import field
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobsync.base.records import NamedTuple, dataclass


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int = 2

    @property
    def both(self) -> int:
        return self.x + self.y


@dataclass(frozen=True, slots=True)
class Frozen:
    """A frozen dataclass."""

    a: int
    b: list[int] = field(default_factory=list)


@dataclass
class Open:
    a: int = 1
    b: list[int] = field(default_factory=list, init=False)


def _outcome(do: Callable[..., object], *args: Any, **values: Any) -> object:
    """What a call returns, or its error; of a record only that there is one."""
    try:
        made = do(*args, **values)
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)
    return "a record" if dataclasses.is_dataclass(made) else made


def _both(body: str, name: str, given: str = "") -> list[Any]:
    """The class of this body, of the standard library and of this project."""
    made = []
    for known in (
        {"dataclass": dataclasses.dataclass, "NamedTuple": typing.NamedTuple},
        {"dataclass": dataclass, "NamedTuple": NamedTuple},
    ):
        space: dict[str, Any] = {**known, "field": field, "__name__": "anywhere"}
        exec(compile(f"{given}\n{body}", "body", "exec", dont_inherit=True), space)
        made.append(space[name])
    return made


# What stands behind a field's type, and whether a value has to be given.
_FORMS = ("", "= 7", "= None", "= field(default_factory=list)", "= field(repr=False, default=3)")
_LATER = ("= field(default=5, compare=False)", "= field(default_factory=dict, init=False)", "= field(init=False)")
_OPTIONS = st.fixed_dictionaries({name: st.booleans() for name in ("frozen", "slots", "eq", "repr")})


def _seen(cls: Any, options: dict[str, bool], given: tuple[Any, ...]) -> list[object]:
    """What a program can see of a dataclass."""

    def same(make: Callable[[Any], Any]) -> object:
        return options["eq"] and make(cls(*given)) == cls(*given)

    fields = dataclasses.fields(cls)
    unset = any(not each.init and each.default_factory is dataclasses.MISSING for each in fields)
    seen: list[object] = [
        [(each.name, each.init, each.repr, each.compare, each.default) for each in fields],
        str(inspect.signature(cls)),
        cls.__match_args__,
        cls.__hash__ is None,
        "__slots__" in vars(cls),
        [getattr(cls.__dataclass_params__, name) for name in ("init", "repr", "eq", "order", "unsafe_hash", "frozen")],
        _outcome(cls),
        _outcome(cls, *given, 1, 2, 3, 4, 5, 6),
        _outcome(cls, *given, unknown=1),
    ]
    if unset:
        return seen
    made = cls(*given)
    seen += [
        options["repr"] and repr(made),
        options["eq"] and [made == cls(*given), made != cls(*given), made == given],
        options["eq"] and options["frozen"] and _outcome(hash, made),
        options["eq"] and made == type("Child", (cls,), {})(*given),
        _outcome(setattr, made, "other", 1),
        [_outcome(setattr, made, each.name, 1) for each in fields],
        [_outcome(delattr, made, each.name) for each in fields],
        _outcome(dataclasses.asdict, cls(*given)),
        same(copy.copy),
        same(copy.deepcopy),
        _outcome(lambda: same(dataclasses.replace)),
        dataclasses.is_dataclass(cls),
    ]
    return seen


@given(
    st.lists(st.sampled_from(_FORMS), max_size=5).map(lambda forms: sorted(forms, key=bool)),
    st.lists(st.sampled_from(_LATER), max_size=2),
    _OPTIONS,
    st.booleans(),
)
def test_a_dataclass_is_that_of_the_standard_library(
    forms: list[str], later: list[str], options: dict[str, bool], after: bool
) -> None:
    lines = [f"    f{index}: int {form}" for index, form in enumerate([*forms, *later])]
    hook = "    def __post_init__(self): object.__setattr__(self, 'f0', 'set afterwards')" if lines and after else ""
    arguments = ", ".join(f"{name}={value}" for name, value in options.items())
    body = f'@dataclass({arguments})\nclass Body:\n    "Some text."\n' + "\n".join([*lines, hook])
    theirs, ours = _both(body, "Body")
    values = tuple(range(sum(not form for form in forms)))
    assert _seen(ours, options, values) == _seen(theirs, options, values)
    assert (ours.__doc__, ours.__init__.__qualname__) == ("Some text.", "Body.__init__")


@pytest.mark.parametrize("head", ["", "frozen=True", "frozen=True, slots=True", "eq=False", "repr=False"])
@pytest.mark.parametrize(
    "own",
    [
        "def __eq__(self, other): return 'own'",
        "def __hash__(self): return 42",
        "def __repr__(self): return 'own'",
        "def __init__(self): object.__setattr__(self, 'a', 5)",
    ],
)
def test_a_method_of_the_class_body_stays(head: str, own: str) -> None:
    body = f"@dataclass({head})\nclass Body:\n    a: int = 5\n    {own}"
    seen = []
    for cls in _both(body, "Body"):
        made = cls()
        own_repr = "repr" not in head or "__repr__" in own
        seen.append(
            [
                "eq" not in head and _outcome(hash, made),
                made == made,
                made == cls(),
                own_repr and repr(made),
                made.a,
            ]
        )
    assert seen[0] == seen[1]


def test_a_subclass_has_the_fields_and_methods_of_both() -> None:
    body = """
@dataclass(frozen=True, repr=False)
class Child(Base):
    c: int = 3
"""
    given = "@dataclass(frozen=True)\nclass Base:\n    a: int\n    b: int = 2"
    theirs, ours = _both(body, "Child", given)
    assert inspect.signature(ours) == inspect.signature(theirs)
    # The method of the base class does not know the child's fields: a secret among them stays hidden.
    assert repr(ours(1)) == repr(theirs(1)) == "Child(a=1, b=2)"
    assert ours(1, 2, 3) == ours(1)
    assert ours(1, 2, 3) != ours(1, 2, 4)


def test_a_plain_subclass_of_a_frozen_record_has_attributes_of_its_own() -> None:
    body = "class Child(Base):\n    pass"
    given = "@dataclass(frozen=True)\nclass Base:\n    a: int"
    for cls in _both(body, "Child", given):
        made = cls(1)
        made.more = 5
        assert made.more == 5
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.a = 2
        del made.more
        with pytest.raises(dataclasses.FrozenInstanceError):
            del made.a


def test_each_record_gets_a_new_value_of_a_factory() -> None:
    first, second = Frozen(1), Frozen(1)
    assert first.b is not second.b
    mine: list[int] = []
    assert Frozen(1, mine).b is mine
    assert Open().b is not Open().b


def test_a_record_that_holds_itself_is_printed() -> None:
    made = Open()
    made.b.append(made)  # type: ignore[arg-type]
    assert repr(made) == "Open(a=1, b=[...])"


def test_a_field_of_a_type_of_classes_is_none() -> None:
    body = "import typing\n@dataclass\nclass Body:\n    a: int\n    b: typing.ClassVar[int] = 3"
    theirs, ours = _both(body, "Body")
    assert (
        [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)] == ["a"]
    )


def test_a_default_before_a_field_without_one_is_refused() -> None:
    for cls in (dataclasses.dataclass, dataclass):
        space: dict[str, Any] = {"dataclass": cls}
        with pytest.raises(TypeError):
            exec("@dataclass\nclass Body:\n    a: int = 1\n    b: int", space)


@pytest.mark.parametrize("kept", [Frozen(1, [2]), Point(1), Open(3)])
def test_a_record_is_pickled(kept: object) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(kept, protocol)) == kept
    assert copy.deepcopy(kept) == kept


@given(st.integers(0, 40), st.integers(0, 40))
def test_a_named_tuple_is_that_of_the_standard_library(required: int, more: int) -> None:
    lines = [f"    f{index}: int" for index in range(required)] + [
        f"    g{index}: int = {index}" for index in range(more)
    ]
    body = 'class Body(NamedTuple):\n    "Some text."\n' + "\n".join(lines)
    seen = []
    for cls in _both(body, "Body"):
        made = cls(*range(required))
        first = next(iter(cls._fields), "")
        seen.append(
            [
                inspect.signature(cls),
                (cls._fields, cls._field_defaults, cls.__match_args__, cls.__doc__, cls.__name__, cls.__module__),
                (tuple(made), repr(made), made._asdict(), hash(made), cls._make(made) == made),
                [getattr(made, name) for name in cls._fields],
                first and tuple(made._replace(**{first: "new"})),
                (made == tuple(made), copy.copy(made) == made, hasattr(made, "__dict__"), isinstance(made, tuple)),
                _outcome(cls),
                _outcome(cls, *range(100)),
                _outcome(cls, unknown=1),
                _outcome(cls._make, range(100)),
                [_outcome(setattr, made, name, 1) for name in (*cls._fields, "other")],
            ]
        )
    assert seen[0] == seen[1]


def test_a_named_tuple_has_methods_and_types() -> None:
    assert Point(1).both == 3
    assert get_type_hints(Point) == {"x": int, "y": int}
    with pytest.raises((TypeError, ValueError), match="unknown"):
        Point(1)._replace(unknown=1)  # type: ignore[call-arg]
    match Point(1, 5):
        case Point(x, y):
            assert (x, y) == (1, 5)


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_records_and_others_are_no_base_classes_of_each_other(frozen: bool) -> None:
    for make in (dataclasses.dataclass, dataclass):
        for make_child in (dataclasses.dataclass, dataclass):
            base: type = make(frozen=frozen)(type("Base", (), {"__annotations__": {"a": int}}))
            child: type = make_child(frozen=frozen)(type("Child", (base,), {"__annotations__": {"b": int}}))
            assert repr(child(1, 2)) == "Child(a=1, b=2)"
            with pytest.raises(TypeError, match="frozen"):
                make_child(frozen=not frozen)(type("Other", (base,), {}))


def test_what_is_not_taken_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Body.a: a record's fields are not by keyword alone"):
        dataclass(type("Body", (), {"__annotations__": {"a": int}, "a": field(kw_only=True)}))
    with pytest.raises(TypeError, match="Body: NamedTuple is the only base class"):
        exec("class Body(NamedTuple, Exception):\n    a: int", {"NamedTuple": NamedTuple, "__name__": "anywhere"})


_COMPILING = """
import sys
from blobsync.base.records import NamedTuple, dataclass
compiled = 0
def listen(event, args):
    global compiled
    compiled += event == "compile"
def declare(index):
    class Point(NamedTuple):
        x: int
        y: int = index
    @dataclass(slots=True)
    class Place:
        x: int
        y: list = index
    return Point(index), Place(index)
declare(0)
sys.addaudithook(listen)
for index in range(20):
    assert declare(index)[0].y == declare(index)[1].y == index
print(compiled)
"""


def test_records_of_a_form_are_compiled_once() -> None:
    done = subprocess.run([sys.executable, "-c", _COMPILING], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
