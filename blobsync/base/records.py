"""``NamedTuple`` and ``dataclass`` of the standard library, whose methods are not compiled anew for each class.

The standard library writes a record's methods as text and compiles them when its module loads. A short command loads
some 130 records, which took a fifth of its time. Here a constructor is compiled once for all records of its form and
gets the names of their fields afterwards; the other methods are ordinary functions. Meaning and types are those of
https://docs.python.org/3/library/typing.html#typing.NamedTuple and https://docs.python.org/3/library/dataclasses.html,
without what no record here needs: ``order``, ``unsafe_hash``, ``InitVar``, ``hash=`` of a field, and fields that are
given by keyword alone.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

_FROM_FACTORY = object()  # the default of a parameter whose field has a factory


@cache
def _code(text: str) -> CodeType:
    """Compile a function."""
    known: dict[str, Any] = {}
    exec(text, known)  # noqa: S102 - it holds no words but this module's
    return known["function"].__code__  # type: ignore[no-any-return]


def _function(
    text: str,
    qualname: str,
    fields: Sequence[str],
    types: dict[str, Any],
    defaults: Mapping[str, Any],
    known: dict[str, Any],
) -> FunctionType:
    """Return the function of a text that calls the fields field0, field1, ..., with their real names.

    ``types`` are those of its parameters, ``defaults`` of the last of these, ``known`` what it knows besides.
    """
    if list(defaults) != list(types)[len(types) - len(defaults) :]:
        raise TypeError(f"{qualname}: a field without a default follows one with a default")
    code = _code(text)
    own = {f"field{index}": field for index, field in enumerate(fields)}
    variables = tuple(own.get(variable, variable) for variable in code.co_varnames)
    constants = tuple(own.get(constant, constant) for constant in code.co_consts)
    name = qualname.rpartition(".")[2]
    made = code.replace(co_name=name, co_varnames=variables, co_consts=constants)
    function = FunctionType(made, known, name, tuple(defaults.values()))
    function.__qualname__ = qualname
    function.__annotations__ = types
    return function


class _TupleRecord(tuple[Any, ...]):
    """What all named tuples have in common."""

    __slots__ = ()
    _fields = tuple[str, ...]()

    @classmethod
    def _make(cls, values: Iterable[Any]) -> _TupleRecord:
        made = tuple.__new__(cls, values)
        if len(made) != len(cls._fields):
            raise TypeError(f"Expected {len(cls._fields)} arguments, got {len(made)}")
        return made

    def _replace(self, /, **changes: Any) -> _TupleRecord:
        made = self._make(map(changes.pop, self._fields, self))
        if changes:
            raise ValueError(f"Got unexpected field names: {list(changes)!r}")
        return made

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self._asdict().items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)


@cache
def _readers(places: int) -> list[Any]:
    """Return the standard library's readers of a named tuple's fields, by their places."""
    make: Any = namedtuple
    model = make("model", [f"field{index}" for index in range(places)])
    return [vars(model)[name] for name in model._fields]


class _NamedTupleMeta(type):
    """Turns a class body into a named tuple."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        types = body.get("__annotations__", {})
        fields = tuple(types)
        defaults = {field: body.pop(field) for field in fields if field in body}
        generic = "".join(f"field{index}," for index in range(len(fields)))
        text = f"def function(_cls, {generic}): return _new(_cls, ({generic}))"
        body["__new__"] = _function(text, f"{name}.__new__", fields, types, defaults, {"_new": tuple.__new__})
        body |= zip(fields, _readers(-(-len(fields) // 32) * 32), strict=False)
        body |= {"__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
        return type(name, (_TupleRecord,), body)


def _values(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what reads the fields of these names."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)


def _init(cls: Any) -> FunctionType:
    """Return the constructor of a dataclass."""
    fields = dataclasses.fields(cls)
    known: dict[str, Any] = {"_set": object.__setattr__, "_FROM_FACTORY": _FROM_FACTORY}
    parameters, lines = ["self"], []
    defaults: dict[str, Any] = {}
    for index, field in enumerate(fields):
        known |= {f"make{index}": field.default_factory, f"default{index}": field.default}
        from_factory = field.default_factory is not dataclasses.MISSING
        default = _FROM_FACTORY if from_factory else field.default
        value = name = f"field{index}"
        if field.init:
            parameters.append(name)
            defaults |= {} if default is dataclasses.MISSING else {field.name: default}
            value = f"make{index}() if {name} is _FROM_FACTORY else {name}" if from_factory else name
        elif default is not dataclasses.MISSING:
            value = f"make{index}()" if from_factory else f"default{index}"
        else:
            continue
        lines.append(f" _set(self, {name!r}, {value})\n")
    lines.append(" self.__post_init__()" if hasattr(cls, "__post_init__") else " return")
    text = f"def function({', '.join(parameters)}):\n{''.join(lines)}"
    types = {field.name: field.type for field in fields if field.init}
    made = _function(text, f"{cls.__qualname__}.__init__", [field.name for field in fields], types, defaults, known)
    made.__annotations__["return"] = None
    return made


def _frozen(cls: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the methods that keep a record's fields as they are, and let it be copied and pickled nevertheless."""

    def refuse(record: object, name: str, doing: str) -> None:
        if type(record) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {doing} field {name!r}")

    def set_attribute(self: Any, name: str, value: object) -> None:
        refuse(self, name, "assign to")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        refuse(self, name, "delete")
        super(cls, self).__delattr__(name)

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def set_state(self: Any, state: Iterable[Any]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    methods: dict[str, Any] = {"__setattr__": set_attribute, "__delattr__": delete_attribute}
    return methods | ({"__getstate__": state, "__setstate__": set_state} if "__slots__" in vars(cls) else {})


def _dataclass(
    cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Any:
    """The decorator."""
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, slots=slots, eq=eq, repr=repr)
    # Without a docstring the standard library writes one, from a signature that it has to inspect.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(made)
    shown = [field.name for field in fields if field.repr]
    values = _values([field.name for field in fields if field.compare])

    @recursive_repr()
    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def equals(self: Any, other: object) -> Any:
        return values(self) == values(other) if type(other) is type(self) else NotImplemented

    def hash_of(self: Any) -> int:
        return hash(values(self))

    methods: Mapping[str, Any] = {
        "__init__": _init(made),
        **({"__repr__": text} if repr else {}),
        **({"__eq__": equals, "__hash__": hash_of if frozen else None} if eq else {}),
        **(_frozen(made, [field.name for field in fields]) if frozen else {}),
    }
    for name, method in methods.items():
        # A class body with an __eq__ of its own has an empty __hash__.
        if vars(made).get(name) is None:
            setattr(made, name, method)
    return made


# Since 3.14 a class body keeps the types of its fields as a function; and the standard library is quicker.
if TYPE_CHECKING or sys.version_info >= (3, 14):
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:
    dataclass = _dataclass
    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})
