"""How an option is declared: once, in the annotation of the field or keyword that it sets.

The command line with its help and completion, the form for jobs and the reference are made from these declarations.
"""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from blobsync.base.records import NamedTuple


class Option(NamedTuple):
    """What is said of an option; its type, unless it is a list of words, is that of the field.

    ``metavar`` is the form or unit of its value, ``name`` its spelling where that is not the field's own. ``commands``
    and ``platforms`` (of jobs) are those that have it; empty: all. ``sets`` is what a flag sets the field to.
    """

    help: str
    metavar: str = ""
    name: str = ""
    commands: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    example: str = ""
    least: int | None = None
    repeated: bool = False
    sets: bool = True


class DeclaredOption(NamedTuple):
    """An option as it is typed (``--cap-mbps``), with the type of what it sets, and the default: None for a keyword."""

    flag: str
    kind: Any
    about: Option
    default: Any

    @property
    def is_flag(self) -> bool:
        """Whether no value follows it."""
        return bool in (self.kind, *get_args(self.kind))

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that its value may be; empty: any."""
        literals = (each for each in (self.kind, *get_args(self.kind)) if get_origin(each) is Literal)
        return tuple(word for each in literals for word in get_args(each))


@cache
def options_of(owner: Any) -> Mapping[str, DeclaredOption]:
    """The options among the fields of a ``NamedTuple``, or the keywords of a ``TypedDict``, by the names of these."""
    found = {}
    defaults = getattr(owner, "_field_defaults", {})
    for name, hint in get_type_hints(owner, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, about = get_args(hint)
            flag = about.name or f"--{name.replace('_', '-')}"
            found[name] = DeclaredOption(flag, kind, about, defaults.get(name))
    return found
