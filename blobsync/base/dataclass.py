"""Data classes that are made in a third of the time: ``dataclasses`` writes and compiles eight methods for each.

``dataclass`` and ``field`` mean what they mean there, and ``fields``, ``replace``, ``asdict`` and pickling work. Only
``__init__`` is compiled; the other methods are shared. What these do not know is left to ``dataclasses``.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
else:

    def field(**settings: Any) -> Any:
        """Declare a field; the keywords are those of ``dataclasses.field``."""
        return _Given(settings)

    def dataclass(*, frozen: bool = False, slots: bool = False, repr: bool = True, **others: Any) -> Any:
        """Make a class a data class; the keywords are those of ``dataclasses.dataclass``."""

        def make(cls: type) -> type:
            if others or not slots or not _is_simple(cls):
                return _left_to_dataclasses(cls, frozen=frozen, slots=slots, repr=repr, **others)
            return _made(cls, _fields(cls), frozen=frozen, repr=repr)

        return make


class _Given(NamedTuple):
    settings: dict[str, Any]


class _Missing:
    def __repr__(self) -> str:
        return "<factory>"


_NONE = _Missing()
_KNOWN = frozenset(("default", "default_factory", "repr", "compare", "init"))


class _Parameters(NamedTuple):
    """What ``dataclasses`` asks a base class."""

    repr: bool
    frozen: bool
    init: bool = True
    eq: bool = True
    order: bool = False
    unsafe_hash: bool = False
    match_args: bool = True
    kw_only: bool = False
    slots: bool = True
    weakref_slot: bool = False


class _Field(NamedTuple):
    name: str
    type: Any
    default: Any
    factory: Any
    repr: bool
    compare: bool
    init: bool


def _is_simple(cls: type) -> bool:
    own = cls.__dict__.values()
    texts = cls.__annotations__
    return (
        all(base in (object,) for base in cls.__bases__)
        and bool(texts)
        and all(isinstance(each, str) and "ClassVar" not in each and "InitVar" not in each for each in texts.values())
        and "_" not in texts
        and all(_KNOWN.issuperset(each.settings) for each in own if isinstance(each, _Given))
        # A class that is made again would leave ``super()`` with the old one.
        and not any("__class__" in getattr(getattr(each, "__code__", None), "co_freevars", ()) for each in own)
    )


def _left_to_dataclasses(cls: type, **settings: Any) -> type:
    import dataclasses  # late: with it comes inspect

    for name, each in list(cls.__dict__.items()):
        if isinstance(each, _Given):
            setattr(cls, name, dataclasses.field(**each.settings))
    made: type = dataclasses.dataclass(**settings)(cls)
    return made


def _fields(cls: type) -> tuple[_Field, ...]:
    found = []
    for name, kind in cls.__annotations__.items():
        given = cls.__dict__.get(name, _NONE)
        settings = given.settings if isinstance(given, _Given) else {"default": given}
        default, factory = settings.get("default", _NONE), settings.get("default_factory", _NONE)
        shown, compared, is_given = (settings.get(each, True) for each in ("repr", "compare", "init"))
        found.append(_Field(name, kind, default, factory, shown, compared, is_given))
    return tuple(found)


def _made(cls: type, fields: tuple[_Field, ...], *, frozen: bool, repr: bool) -> type:
    names = tuple(each.name for each in fields)
    body = {name: each for name, each in cls.__dict__.items() if name not in (*names, "__dict__", "__weakref__")}
    compared = _values_of([each.name for each in fields if each.compare])
    body["__slots__"] = names
    body["__init__"] = body.get("__init__") or _init(cls, fields, frozen=frozen)
    body.setdefault("__match_args__", tuple(each.name for each in fields if each.init))
    if repr and "__repr__" not in body:
        body["__repr__"] = _repr(tuple(each.name for each in fields if each.repr))
    if "__eq__" not in body:
        body["__eq__"] = _eq(compared)
    if frozen:
        body.setdefault("__hash__", lambda self: hash(compared(self)))
        if body["__hash__"] is None:
            body["__hash__"] = lambda self: hash(compared(self))
        body |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        body |= {"__getstate__": _state_of, "__setstate__": _set_state}
    elif body.get("__hash__") is None:
        body["__hash__"] = None
    body["__dataclass_fields__"] = _LateFields(fields)
    body["__dataclass_params__"] = _Parameters(repr=repr, frozen=frozen)
    body["__replace__"] = _replace
    made = type(cls)(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _init(cls: type, fields: tuple[_Field, ...], *, frozen: bool) -> Any:
    known: dict[str, Any] = {"_set": object.__setattr__, "_none": _NONE}
    parameters, lines = ["self"], []
    for each in fields:
        name = each.name
        value = name
        if each.factory is not _NONE:
            known[f"_make_{name}"] = each.factory
            value = f"_make_{name}() if {name} is _none else {name}" if each.init else f"_make_{name}()"
        elif not each.init:
            known[f"_default_{name}"] = each.default
            value = f"_default_{name}" if each.default is not _NONE else ""
        elif each.default is not _NONE:
            known[f"_default_{name}"] = each.default
        if each.init:
            has = each.default is not _NONE or each.factory is not _NONE
            default = "_none" if each.factory is not _NONE else f"_default_{name}"
            parameters.append(f"{name}={default}" if has else name)
        if value:
            lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    text = f"def __init__({', '.join(parameters)}):\n" + ("\n".join(lines) or " pass")
    made: dict[str, Any] = {}
    exec(text, known, made)  # noqa: S102 - of the names of a class of ours, as dataclasses does
    init = made["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**{each.name: each.type for each in fields if each.init}, "return": None}
    return init


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    def show(self: Any) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return show


def _eq(compared: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def equals(self: Any, other: object) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    return equals


def _refuse_to_set(self: object, name: str, value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state_of(self: Any) -> list[Any]:
    return [getattr(self, name) for name in type(self).__slots__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(type(self).__slots__, state, strict=True):
        object.__setattr__(self, name, value)


def _replace(self: Any, /, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(self, **changes)


class _LateFields:
    """The fields as ``dataclasses`` knows them, made when it is first asked for them."""

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        self._fields = fields

    def __get__(self, instance: object, owner: type) -> dict[str, Any]:
        import dataclasses

        made = {}
        for each in self._fields:
            default = {} if each.default is _NONE else {"default": each.default}
            factory = {} if each.factory is _NONE else {"default_factory": each.factory}
            one: Any = dataclasses.field(repr=each.repr, compare=each.compare, init=each.init, **default, **factory)
            one.name, one.type, one.kw_only = each.name, each.type, False
            one._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            made[each.name] = one
        type.__setattr__(owner, "__dataclass_fields__", made)
        return made
