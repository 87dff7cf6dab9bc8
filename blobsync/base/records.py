"""``NamedTuple`` and ``dataclass`` of the standard library, whose methods are not compiled anew for each class.

The standard library writes a record's methods as text and compiles them when its module loads. A short command loads
some 130 records, which took an eighth of its time. Here a method is compiled once for all records of a form, and then
gets the names of their fields. Meaning and types are those of
https://docs.python.org/3/library/typing.html#typing.NamedTuple and https://docs.python.org/3/library/dataclasses.html,
without what no record here needs: generic named tuples, ``order``, ``unsafe_hash``, ``InitVar``, and fields of a
dataclass that are given by keyword alone.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

# The default of a parameter whose field has a factory.
_FROM_FACTORY = type("FromFactory", (), {"__repr__": lambda self: "<factory>"})()


@cache
def _code(text: str) -> CodeType:
    """Compile a function."""
    known: dict[str, Any] = {}
    exec(text, known)  # noqa: S102 - it holds no words but this module's
    return known["function"].__code__  # type: ignore[no-any-return]


def _function(owner: str, name: str, text: str, fields: Sequence[str], known: dict[str, Any]) -> FunctionType:
    """Return the method of a text that calls the fields field0, field1, ..., with their real names.

    ``owner`` is the class's name, ``known`` what the method knows besides builtins.
    """
    code = _code(text)
    own = {f"field{index}": field for index, field in enumerate(fields)}
    words = (tuple(own.get(word, word) for word in each) for each in (code.co_varnames, code.co_names, code.co_consts))
    variables, names, constants = words
    code = code.replace(co_name=name, co_varnames=variables, co_names=names, co_consts=constants)
    function = FunctionType(code, known, name)
    function.__qualname__ = f"{owner}.{name}"
    return function


def _take(function: FunctionType, types: dict[str, Any], defaults: Mapping[str, Any]) -> FunctionType:
    """Give a constructor the types of its parameters, and the defaults of those that have one."""
    if list(defaults) != list(types)[len(types) - len(defaults) :]:
        raise TypeError(f"{function.__qualname__}: a field without a default follows one with a default")
    function.__annotations__, function.__defaults__ = types, tuple(defaults.values())
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

    # What copy.replace calls, from 3.13 on.
    __replace__ = _replace

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
        if len(bases) > 1:
            raise TypeError(f"{name}: NamedTuple is the only base class of a named tuple")
        types = body.get("__annotations__", {})
        fields = tuple(types)
        defaults = {field: body.pop(field) for field in fields if field in body}
        generic = "".join(f"field{index}," for index in range(len(fields)))
        text = f"def function(_cls, {generic}): return _new(_cls, ({generic}))"
        known = {"_new": tuple.__new__, "__name__": body["__module__"]}
        body["__new__"] = _take(_function(name, "__new__", text, fields, known), types, defaults)
        body |= zip(fields, _readers(-(-len(fields) // 32) * 32), strict=False)
        body |= {"__slots__": (), "__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
        return type(name, (_TupleRecord,), body)


def _init(cls: Any, *, frozen: bool, slots: bool) -> FunctionType:
    """Return the constructor of a dataclass."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_FROM_FACTORY": _FROM_FACTORY, "__name__": cls.__module__}
    fields = dataclasses.fields(cls)
    parameters, lines = ["self"], []
    defaults: dict[str, Any] = {}
    for index, field in enumerate(fields):
        if field.kw_only:
            raise TypeError(f"{cls.__qualname__}.{field.name}: a record's fields are not by keyword alone")
        known |= {f"make{index}": field.default_factory, f"default{index}": field.default}
        from_factory = field.default_factory is not dataclasses.MISSING
        default = _FROM_FACTORY if from_factory else field.default
        value = name = f"field{index}"
        if field.init:
            parameters.append(name)
            defaults |= {} if default is dataclasses.MISSING else {field.name: default}
            value = f"make{index}() if {name} is _FROM_FACTORY else {name}" if from_factory else name
        elif from_factory or (slots and default is not dataclasses.MISSING):
            value = f"make{index}()" if from_factory else f"default{index}"
        else:
            continue
        lines.append(f" _set(self, {name!r}, {value})\n" if frozen else f" self.{name} = {value}\n")
    lines.append(" self.__post_init__()" if hasattr(cls, "__post_init__") else " return")
    text = f"def function({', '.join(parameters)}):\n{''.join(lines)}"
    made = _function(cls.__qualname__, "__init__", text, [field.name for field in fields], known)
    _take(made, {field.name: field.type for field in fields if field.init}, defaults)
    made.__annotations__["return"] = None
    return made


def _eq_and_hash(cls: Any, *, frozen: bool) -> dict[str, Any]:
    """Return how dataclasses are compared, and the hash of those that do not change."""
    fields = dataclasses.fields(cls)
    compared = [field.name for field in fields if field.compare]
    hashed = [field.name for field in fields if (field.compare if field.hash is None else field.hash)]

    def values(record: str, names: list[str]) -> str:
        return f"({''.join(f'{record}.field{index},' for index in range(len(names)))})"

    same = f"{values('self', compared)} == {values('other', compared)}"
    text = f"def function(self, other): return {same} if other.__class__ is self.__class__ else NotImplemented"
    hash_text = f"def function(self): return hash({values('self', hashed)})"
    return {
        "__eq__": _function(cls.__qualname__, "__eq__", text, compared, {}),
        "__hash__": _function(cls.__qualname__, "__hash__", hash_text, hashed, {}) if frozen else None,
    }


def _dataclass(
    cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Any:
    """The decorator."""
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, slots=slots, eq=eq, repr=repr)
    # A class body with an __eq__ of its own has an empty __hash__.
    own = {name for name in vars(cls) if name != "__hash__" or vars(cls)[name] or "__eq__" not in vars(cls)}
    # Without a docstring the standard library writes one, from a signature that it has to inspect.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen, slots=slots)(cls)
    parameters = made.__dataclass_params__
    parameters.init, parameters.repr, parameters.eq = True, repr, eq
    shown = [field.name for field in dataclasses.fields(made) if field.repr]

    @recursive_repr()
    def text(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    methods: dict[str, Any] = {"__init__": _init(made, frozen=frozen, slots=slots)}
    methods |= {"__repr__": text} if repr else {}
    methods |= _eq_and_hash(made, frozen=frozen) if eq else {}
    for name in methods.keys() - own:
        setattr(made, name, methods[name])
    return made


# Since 3.14 a class body keeps the types of its fields as a function; and the standard library is quicker.
if TYPE_CHECKING or sys.version_info >= (3, 14):
    from dataclasses import dataclass as dataclass
    from typing import NamedTuple as NamedTuple
else:
    dataclass = _dataclass
    NamedTuple = type.__new__(_NamedTupleMeta, "NamedTuple", (), {})
