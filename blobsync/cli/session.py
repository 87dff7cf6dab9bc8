"""The session of a command: the global options, and the project that they choose; and the decorator that makes a
function a command that accepts them.

The options go before the command word, and for most commands also after it:
``blobsync -c eu -f we3v32 u data/voc20`` and ``blobsync u data/voc20 -c eu -f we3v32`` are the same.
"""

from __future__ import annotations

import inspect
import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

import typer

from blobsync.base.errors import (
    BlobsyncError,
    FailureCode,
    TransferCancelledError,
    UntrustedDockerError,
    UntrustedLinkError,
    UntrustedStateError,
    UsageError,
)
from blobsync.base.events import Note
from blobsync.cli.output import QuietListener, Result

if TYPE_CHECKING:
    from blobsync.base.events import Listener
    from blobsync.cli.progress import ClosingListener
    from blobsync.config.model import Cluster
    from blobsync.project.api import Project


_NAMES = "use the name of a file in aux_data/aml/, without .yaml; omit the option for the default"


# Files with secrets that a killed run left on this machine.
SECRETS_PATTERN = ".blobsync/state-*/jobs/*/secrets.json"


def _refuse(session: Session, error: BlobsyncError, project: Project | None) -> None:
    raise error


@dataclass(slots=True)
class Session:
    """The global options of one command line, before or after the command.

    ``started`` is called with the session once all of them are known; ``agree`` asks the user to trust
    what an error is about (``confirm.agree``), or raises it; ``display`` shows
    progress, and is one of those that ``listener`` emits to; ``began`` is the monotonic time in
    seconds at which the command began; ``words`` are the command line, without secrets; ``held`` is closed with the
    command, however that ends.
    """

    cluster: str | None = None
    from_cluster: str | None = None
    param: str | None = None
    num_gpu: int | None = None
    json: bool = False
    verbose: int = 0
    quiet: bool = False
    color: str | None = None
    log_file: str | None = None
    timings: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    display: ClosingListener = field(default_factory=QuietListener)
    listener: Listener = field(default_factory=QuietListener)
    started: Callable[[Session], None] = field(default=lambda session: None, repr=False)
    began: float = field(default_factory=time.monotonic)
    agree: Callable[[Session, BlobsyncError, Project | None], None] = field(default=_refuse, repr=False)
    words: Sequence[str] = ()
    held: ExitStack = field(default_factory=ExitStack, repr=False)

    def merge(self, options: Mapping[str, Any]) -> None:
        """Options after the command override those before it.

        Raises ``UsageError`` for an empty cluster name: an unset variable in a script must not select the default
        cluster.
        """
        for name, value in options.items():
            # An option that is not given has its default; 0 and the empty text count as given.
            if value != _NOT_GIVEN[name]:
                setattr(self, name, value)
        for option, value in (("-c", self.cluster), ("-f", self.from_cluster)):
            if value is not None and not value.strip():
                raise UsageError(f"{option} '{value}': missing cluster name", hint=_NAMES)

    def note(self, text: str) -> None:
        """Show a note on standard error."""
        self.listener.emit(Note(text))

    @property
    def seconds(self) -> float:
        """How long this command has taken so far, in seconds."""
        return time.monotonic() - self.began

    def overrides(self) -> Mapping[str, Any]:
        """What ``-p`` and ``-n`` change in the cluster file. Raises ``ConfigError``."""
        from blobsync.config.loader import parse_overrides

        merged = dict(parse_overrides(self.param)) if self.param else {}
        return {**merged, "num_gpu": self.num_gpu} if self.num_gpu is not None else merged

    def project(
        self, *, copies: bool = False, cluster: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> Project:
        """The project that contains the current folder, with the chosen cluster.

        ``copies``: the command accepts ``-f``; ``cluster`` replaces the one of ``-c``; ``changes`` are applied
        to its file before those of ``-p``. Raises ``ConfigError`` and ``UsageError``; warnings of the files go to the
        listener.
        """
        from blobsync.project.api import Project

        if self.from_cluster is not None and not copies:
            raise UsageError("-f works with u, d and plan only", hint="to choose the cluster, use -c")
        project = Project.open(
            cluster=cluster or self.cluster,
            from_cluster=self.from_cluster,
            overrides={**(changes or {}), **self.overrides()},
            environ=self.environ,
        )
        project.listener = self.listener
        project.command_line = shlex.join(["blobsync", *self.words])
        if any(project.root.glob(SECRETS_PATTERN)):
            from blobsync.backends.local.run_files import remove_dead_secrets

            # Commands that need the state folder report its problems; the others do without it.
            with suppress(UntrustedStateError):
                remove_dead_secrets(project.state.root / "jobs")
        self.warn(project.cluster, project.from_cluster)
        return project

    def warn(self, *clusters: Cluster | None) -> None:
        """Show the warnings of the configuration files: each once per command, some at most once a day."""
        found = [(cluster.root, warning) for cluster in clusters if cluster for warning in cluster.warnings]
        if not found:
            return
        from blobsync.base.daily_warnings import DailyWarning, shown_today  # late: most files have no warning

        seen: set[str] = set()
        for root, warning in found:
            if warning in seen or (isinstance(warning, DailyWarning) and shown_today(warning, root, self.environ)):
                continue
            seen.add(warning)
            self.note(warning)


_NOT_GIVEN = {each.name: each.default for each in fields(Session)}


SETTINGS: dict[str, Any] = {
    # Rich would add 80 ms to every command, and its tracebacks show local variables.
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}


_CHOICES = re.compile(r"[a-z0-9]+(?:\|[a-z0-9]+)+")
_COMPLETED = ("PATH", "ID", "CLUSTER", "PLAN")


def completes(annotation: Any) -> Any:
    """Add to the ``annotation`` of a parameter the completion for its metavar."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, option = get_args(annotation)
    metavar = str(getattr(option, "metavar", "") or "").strip("[]").removesuffix("...")
    is_file = metavar == "CLUSTER" and "Path" in str(kind)
    if option.autocompletion is not None or is_file or not (metavar in _COMPLETED or _CHOICES.fullmatch(metavar)):
        return annotation
    option = copy(option)
    option.autocompletion = _completion(metavar)
    return Annotated[kind, option]


def _completion(metavar: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from blobsync.cli.completion import offered  # late: only the shell asks

        return offered(metavar, ctx, incomplete)

    return complete


ClusterOption = Annotated[
    str | None,
    typer.Option(
        "-c",
        "--cluster",
        metavar="NAME",
        help="The cluster: aux_data/aml/NAME.yaml. Default: $AML_CONFIG_PATH, else aml.",
        autocompletion=_completion("CLUSTER"),
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--from-cluster",
        metavar="NAME",
        help="Copy from this cluster's storage.",
        autocompletion=_completion("CLUSTER"),
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

_PATHS: Any = typer.Argument(metavar="PATH", help="Paths inside the project.")
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


class CommandInterruptedError(BlobsyncError):
    """Ctrl-C during a command. The parser would convert a ``KeyboardInterrupt`` into an error of its own."""

    code = FailureCode.CANCELLED


def interrupted(stop: KeyboardInterrupt) -> CommandInterruptedError:
    """The error for Ctrl-C during a command that was changing something."""
    if isinstance(stop, TransferCancelledError):
        return CommandInterruptedError(stop.message, hint=stop.hint)
    return CommandInterruptedError("interrupted", hint="run the same command again to finish")


@contextmanager
def looking() -> Iterator[None]:
    """For commands that change nothing: converts Ctrl-C to a ``CommandInterruptedError`` that says so."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise interrupted_looking() from stop


def interrupted_looking() -> CommandInterruptedError:
    """The error for Ctrl-C before anything was changed."""
    return CommandInterruptedError("interrupted before the transfer: nothing was changed")


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


T = TypeVar("T")


def with_consent(session: Session, project: Project, act: Callable[[], T]) -> T:
    """Return the result of ``act``, after asking the user to trust each link and option that requires it.

    Without a terminal, raises ``UntrustedLinkError`` or ``UntrustedDockerError``, whose hint is the command to trust
    it. ``act`` is called again after each answer; it raises these errors before anything is changed.
    """
    while True:
        try:
            return act()
        except (UntrustedLinkError, UntrustedDockerError) as error:
            session.agree(session, error, project)


def _asking(session: Session, act: Callable[[], Result]) -> Result:
    """Run ``act``; ask if the state folder is not trusted yet. Few commands ever need that code."""
    try:
        return act()
    except UntrustedStateError as error:
        session.agree(session, error, None)
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
