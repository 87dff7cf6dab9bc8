"""The global options, and the decorator that makes a function a command that accepts them.

They go before the command word, and for most commands also after it:
``blobsync -c eu -f we3v32 u data/voc20`` and ``blobsync u data/voc20 -c eu -f we3v32`` are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from blobsync.base.errors import UntrustedStateError
from blobsync.cli.completion import complete_cluster, complete_path, completes
from blobsync.cli.confirm import interrupted, interrupted_looking, looking
from blobsync.cli.output import Result
from blobsync.cli.session import Session

if TYPE_CHECKING:
    pass


SETTINGS: dict[str, Any] = {
    # Rich would add 80 ms to every command, and its tracebacks show local variables.
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--cluster",
        metavar="NAME",
        help="The cluster: aux_data/aml/NAME.yaml. Default: $AML_CONFIG_PATH, else aml.",
        autocompletion=complete_cluster,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--from-cluster",
        metavar="NAME",
        help="Copy from this cluster's storage.",
        autocompletion=complete_cluster,
    ),
]
ParamOption = Annotated[
    str | None,
    typer.Option("-p", "--param", metavar="YAML", help="Override keys of the cluster file: '{gpu_per_node: 8}'."),
]
GpuOption = Annotated[
    int | None, typer.Option("-n", "--num-gpu", metavar="N", help="How many GPUs a job gets; 0: none.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
VerboseOption = Annotated[
    int, typer.Option("-v", "--verbose", count=True, show_default=False, help="Show more; -vv shows everything.")
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Show only errors, no progress or notes.")]

ColorOption = Annotated[
    str | None, typer.Option("--color", metavar="auto|always|never", help="Colours. [auto: on a terminal, no NO_COLOR]")
]
LogOption = Annotated[
    str | None, typer.Option("--log-file", metavar="FILE", help="Append what -vv shows to FILE, without secrets.")
]
TimingsOption = Annotated[bool, typer.Option("--timings", help="Show where the time of the command went.")]

_PATHS: Any = typer.Argument(metavar="PATH", help="Paths inside the project.", autocompletion=complete_path)
PathsArgument = Annotated[list[str], _PATHS]
OptionalPaths = Annotated[list[str] | None, _PATHS]

# Name, annotation with its typer.Option, default.
OptionRow = tuple[str, Any, Any]

_GLOBALS: tuple[OptionRow, ...] = (
    ("cluster", ClusterOption, None),
    ("from_cluster", FromOption, None),
    ("param", ParamOption, None),
    ("num_gpu", GpuOption, None),
    ("json", JsonOption, False),
    ("verbose", VerboseOption, 0),
    ("quiet", QuietOption, False),
    ("color", ColorOption, None),
    ("log_file", LogOption, None),
    ("timings", TimingsOption, False),
)
CommandFunction = Callable[..., Result]

# Which cluster options have a meaning for a command. All are accepted before and after each command, but help and
# completion show only these.
ONE_CLUSTER = ("cluster", "param")
TWO_CLUSTERS = ("cluster", "from_cluster", "param")
ITS_NAME = ("cluster",)
NO_CLUSTER = ()
_FOR_ALL = ("json", "verbose", "quiet", "color", "log_file", "timings")


class Bundle(NamedTuple):
    """Options that several commands share; ``build`` converts them to one value, passed as ``name``."""

    name: str
    rows: tuple[OptionRow, ...]
    build: Callable[..., Any]


def command(
    app: typer.Typer,
    name: str,
    *,
    bundle: Bundle | None = None,
    globals_after: bool = True,
    looks: bool = False,
    takes: Collection[str] = ONE_CLUSTER,
    **settings: Any,
) -> Callable[[CommandFunction], CommandFunction]:
    """Register ``function(session, ...) -> Result`` as the command ``name``.

    ``globals_after`` False accepts the global options only before the command: for commands that end with another
    command line. ``looks``: the command changes nothing, and says so on Ctrl-C. ``takes`` are the global options that
    have a meaning for it, besides those of all commands. The function itself is unchanged.
    """

    def register(function: CommandFunction) -> CommandFunction:
        whole = _only_looking(function) if looks else function
        app.command(name, **settings)(_with_session(whole, bundle, _rows(takes) if globals_after else ()))
        return function

    return register


def _only_looking(function: CommandFunction) -> CommandFunction:
    """Convert Ctrl-C also while the answer is printed, since producing its lines may be the work."""

    @wraps(function)
    def run(session: Session, **values: Any) -> Result:
        with looking():
            result = function(session, **values)
        result.interrupted = result.interrupted or interrupted_looking()
        return result

    return run


def _rows(takes: Collection[str]) -> tuple[OptionRow, ...]:
    """The global options as accepted after a command."""
    return tuple(row if row[0] in (*takes, *_FOR_ALL) else _unseen(row) for row in _GLOBALS)


def _unseen(row: OptionRow) -> OptionRow:
    name, annotation, default = row
    kind, option = get_args(annotation)
    option = copy(option)
    option.hidden = True
    return name, Annotated[kind, option], default


def _with_session(
    function: CommandFunction, bundle: Bundle | None, globals_here: Sequence[OptionRow]
) -> Callable[..., Result]:
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    if bundle:
        own = [each for each in own if each.name != bundle.name]
    own = [each.replace(annotation=completes(each.annotation)) for each in own]
    shared = bundle.rows if bundle else ()

    def run(ctx: typer.Context, **values: Any) -> Result:
        session: Session = ctx.obj
        session.merge({name: values.pop(name) for name, _, _ in globals_here})
        session.started(session)
        if any(path.startswith("/") for path in values.get("paths") or ()):
            values["paths"] = _inside_project(values["paths"])
        try:
            if bundle:
                values[bundle.name] = bundle.build(**{name: values.pop(name) for name, _, _ in shared})
            return _asking(session, lambda: function(session, **values))
        except KeyboardInterrupt as stop:
            raise interrupted(stop) from stop

    extra = [_parameter(name, completes(kind), default) for name, kind, default in (*shared, *globals_here)]
    signed: Callable[..., Result] = _signed(run, [_parameter("ctx", typer.Context), *own, *extra], function.__doc__)
    return signed


def _asking(session: Session, act: Callable[[], Result]) -> Result:
    """Run ``act``; ask if the state folder is not trusted yet. Few commands ever need that code."""
    try:
        return act()
    except UntrustedStateError as error:
        from blobsync.cli.confirm import agree_to_state

        agree_to_state(session, error)
        return act()


def _inside_project(paths: list[str]) -> list[str]:
    """Make paths relative to the project, whether the current folder has symlinks ($PWD) or not (Python)."""
    from blobsync.config.loader import inside_project
    from blobsync.config.project_root import current_folder, find_project

    root = find_project(current_folder())
    return [inside_project(root, path) for path in paths]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _signed(function: Callable[..., Any], parameters: Sequence[inspect.Parameter], doc: str | None) -> Any:
    """Set what Typer builds a command from: the signature, the annotations and the docstring."""
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    function.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in keyword}
    function.__doc__ = doc
    return function


def group_callback(function: Callable[..., None]) -> Callable[..., None]:
    """``function(ctx, **globals)`` as the callback of the top-level group."""
    version = _parameter(
        "version", Annotated[bool, typer.Option("--version", help="Show the version and exit.")], False
    )
    signed: Callable[..., None] = _signed(
        function, [_parameter("ctx", typer.Context), *(_parameter(*row) for row in _GLOBALS), version], function.__doc__
    )
    return signed
