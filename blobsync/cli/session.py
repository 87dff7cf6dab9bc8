"""The session of a command: the global options, and the project that they choose; the decorator of commands.

The options go before the command word, and for most commands also after it:
``blobsync -c eu -f we3v32 u data/voc20`` and ``blobsync u data/voc20 -c eu -f we3v32`` are the same.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from functools import cached_property, wraps
from importlib import import_module
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import typer
from typer.models import ParameterInfo

from blobsync.base.errors import (
    BlobsyncError,
    StoppedError,
    UntrustedDockerError,
    UntrustedLinkError,
    UntrustedStateError,
    UsageError,
)
from blobsync.base.options import DeclaredOption, options_of
from blobsync.cli.command_words import ENDS_WITH_A_COMMAND
from blobsync.cli.output import CommandInterruptedError, QuietListener, Result

if TYPE_CHECKING:
    from pathlib import Path

    from blobsync.base.events import Listener
    from blobsync.cli.command_words import Word
    from blobsync.cli.progress import Display
    from blobsync.config.model import Cluster
    from blobsync.project.api import Project


_NAMES = "use the name of a file in aux_data/aml/, without .yaml; omit the option for the default"


# Files with secrets that a killed run left on this machine.
SECRETS_PATTERN = ".blobsync/state-*/jobs/*/secrets.json"


class Session:
    """The global options of one command line, before or after the command.

    ``started`` is called with the session once all of them are known; ``display`` shows progress, and is one of those
    that ``listener`` emits to; ``began`` is the monotonic time in seconds at which the command began; ``words`` are the
    command line, without secrets; ``held`` is closed with the command, however that ends.
    """

    # It asks, or raises the error; ``confirm`` has it, which needs this module.
    agree: Callable[[Session, BlobsyncError, Project | None], None]

    # A plain class: every command loads it, and Python takes a twentieth of a short command to make a dataclass of it.
    def __init__(self, words: Sequence[str] = ()) -> None:
        self.cluster: str | None = None
        self.from_cluster: str | None = None
        self.param: str | None = None
        self.num_gpu: int | None = None
        self.json = False
        self.verbose = 0
        self.quiet = False
        self.color: str | None = None
        self.log_file: str | None = None
        self.timings = False
        self.environ: Mapping[str, str] = os.environ
        self.display: Display = QuietListener()
        self.listener: Listener = self.display
        self.started: Callable[[Session], None] = lambda session: None
        self.began = time.monotonic()
        self.words = words
        self.held = ExitStack()

    def merge(self, options: Mapping[str, Any]) -> None:
        """Options after the command override those before it.

        Raises ``UsageError`` for an empty cluster name: an unset variable in a script must not select the default
        cluster. ``-p -`` reads standard input here, once.
        """
        for name, value in options.items():
            # An option that is not given has its default; 0 and the empty text count as given.
            if value != _NOT_GIVEN[name]:
                setattr(self, name, value)
        if self.param == "-":
            self.param = _from_standard_input()
        for given, value in (("-c", self.cluster), ("-f", self.from_cluster)):
            if value is not None and not value.strip():
                raise UsageError(f"{given} '{value}': missing cluster name", hint=_NAMES)

    def note(self, text: str) -> None:
        """Show a note on standard error."""
        from blobsync.base.events import Note  # late: help has no events

        self.listener.emit(Note(text))

    @property
    def seconds(self) -> float:
        """How long this command has taken so far, in seconds."""
        return time.monotonic() - self.began

    def root(self) -> Path:
        """The project that contains the current folder. Raises ``ConfigError``."""
        from blobsync.config.project_root import current_folder, find_project

        return find_project(current_folder(self.environ), self.environ)

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
        found = dict.fromkeys((each.root, warning) for each in clusters if each for warning in each.warnings)
        for root, warning in found:
            self.note_today(warning, root)

    def note_today(self, sentence: str, root: Path) -> None:
        """Show a note about the project ``root``; a daily one only if it was not shown today."""
        if type(sentence) is not str:
            from blobsync.base.daily_warnings import DailyWarning, shown_today  # late: most notes are no such warning

            if isinstance(sentence, DailyWarning) and shown_today(sentence, root, self.environ):
                return
        self.note(sentence)


def _from_standard_input() -> str:
    if sys.stdin.isatty():
        raise UsageError("-p - reads YAML from standard input, which is this terminal", hint="-p - < FILE")
    return sys.stdin.read()


_NOT_GIVEN = vars(Session())

# The keywords of a declaration are Typer's.
option, argument = typer.Option, typer.Argument


def offers(kind: str) -> Callable[[typer.Context, str], list[tuple[str, str]]]:
    """The completion of what has the metavar ``kind``."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        from blobsync.cli.completion import offered  # late: only the shell asks

        return offered(kind, ctx, incomplete)

    return complete


_PATHS: Any = argument(metavar="PATH...", help="Paths inside the project.")
PathsArgument = Annotated[list[str], _PATHS]
OptionalPaths = Annotated[list[str] | None, _PATHS]


def row(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    """A parameter of a command: its annotation has the option or argument."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _global(
    name: str, kind: Any, flags: str, help: str, metavar: str | None = None, default: Any = None, **more: Any
) -> Parameter:
    return row(name, Annotated[kind, option(*flags.split(), metavar=metavar, help=help, **more)], default)


_OF_PARAM = "Override keys of the cluster file: '{gpu_per_node: 8}'; - reads standard input."
_OF_CLUSTER = "The cluster: aux_data/aml/NAME.yaml. Default: $AML_CONFIG_PATH, else aml."
_OF_FROM = "Copy from this cluster's storage."
_OF_VERBOSE = "Show more; -vv shows everything."
_TEXT, _NAMED = str | None, offers("CLUSTER")
GLOBALS = (
    _global("cluster", _TEXT, "-c --cluster", _OF_CLUSTER, "NAME", autocompletion=_NAMED),
    _global("from_cluster", _TEXT, "-f --from-cluster", _OF_FROM, "NAME", autocompletion=_NAMED),
    _global("param", _TEXT, "-p --param", _OF_PARAM, "YAML"),
    _global("num_gpu", int | None, "-n --num-gpu", "How many GPUs a job gets; 0: none.", "N", min=0),
    _global("json", bool, "--json", "Print one JSON document on standard output.", default=False),
    _global("verbose", int, "-v --verbose", _OF_VERBOSE, default=0, count=True, show_default=False),
    _global("quiet", bool, "-q --quiet", "Show only errors, no progress or notes.", default=False),
    _global("color", _TEXT, "--color", "Colours. [auto: on a terminal, no NO_COLOR]", "auto|always|never"),
    _global("log_file", _TEXT, "--log-file", "Append what -vv shows to FILE, without secrets.", "FILE"),
    _global("timings", bool, "--timings", "Show where the time of the command went.", default=False),
)
CommandFunction = Callable[..., Result]
F = TypeVar("F", bound=CommandFunction)

# Which cluster options have a meaning for a command. All are accepted before and after each command, but help and
# completion show only these.
ONE_CLUSTER = ("cluster", "param")
TWO_CLUSTERS = ("cluster", "from_cluster", "param")
ITS_NAME = ("cluster",)
NO_CLUSTER = ()
_FOR_ALL = ("json", "verbose", "quiet", "color", "log_file", "timings")


def interrupted(stop: KeyboardInterrupt) -> CommandInterruptedError:
    """The error for Ctrl-C during a command that was changing something."""
    if isinstance(stop, StoppedError):
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
    return CommandInterruptedError("interrupted: nothing was changed")


class Command:
    """A command: ``function(session, ...) -> Result``, with the options that its annotations declare."""

    def __init__(self, name: str, function: CommandFunction, takes: Collection[str], *, looks: bool) -> None:
        self.doc = function.__doc__
        self.ends_with_a_command = name in ENDS_WITH_A_COMMAND
        self._name = name
        self._declares = function
        self._function = _only_looking(function) if looks else function
        self._globals = () if self.ends_with_a_command else _rows(takes)

    @cached_property
    def _own(self) -> Sequence[Parameter]:
        """The function's parameters behind the session."""
        return [*signature(self._declares, eval_str=True).parameters.values()][1:]

    @cached_property
    def _groups(self) -> Mapping[str, OptionGroup]:
        """The parameters that stand for several options, by their names."""
        return {
            each.name: OptionGroup(each.annotation, self._name)
            for each in self._own
            if not any(isinstance(part, ParameterInfo) for part in get_args(each.annotation))
        }

    @cached_property
    def rows(self) -> tuple[Parameter, ...]:
        """All parameters: the function's own, those of its groups, and the global options."""
        own = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in self._own if each.name not in self._groups]
        return (*own, *(each for group in self._groups.values() for each in group.rows), *self._globals)

    def run(self, session: Session, values: dict[str, Any]) -> Result:
        """Run it with the values of its parameters."""
        session.merge({each.name: values.pop(each.name) for each in self._globals})
        session.started(session)
        if any(path.startswith("/") for path in values.get("paths") or ()):
            from blobsync.config.loader import inside_project  # late: most paths are relative

            # Whether the current folder has symlinks ($PWD) or not (Python).
            root = session.root()
            values["paths"] = [inside_project(root, path) for path in values["paths"]]
        try:
            for name, group in self._groups.items():
                values[name] = group.build({each.name: values.pop(each.name) for each in group.rows})
            return with_consent(session, None, lambda: self._function(session, **values))
        except KeyboardInterrupt as stop:
            raise interrupted(stop) from stop


class OptionGroup:
    """The options that the fields of one class declare, as ``command`` has them; together they make one value.

    ``kind`` is the class, or an ``Annotated`` of it with the function that makes the value of what was typed.
    """

    def __init__(self, kind: Any, command: str) -> None:
        owner, self._make = get_args(kind) or (kind, kind)
        declared = options_of(owner).items()
        self._options = {name: one for name, one in declared if command in (one.about.commands or (command,))}

    @property
    def rows(self) -> tuple[Parameter, ...]:
        """The options as parameters of the command."""
        return tuple(_row(name, one) for name, one in self._options.items())

    def build(self, values: Mapping[str, Any]) -> Any:
        """The value of these options; what is not given has the class's own default."""
        given = {name: value for name, value in values.items() if value is not None and value is not False}
        for name in given:
            if self._options[name].is_flag:
                given[name] = self._options[name].about.sets
        return self._make(**given)


# As users call the platforms.
_PLATFORMS = {"slurm": "Slurm", "kubernetes": "Kubernetes"}


def _row(name: str, one: DeclaredOption) -> Parameter:
    about = one.about
    kind: Any = list[str] if about.repeated else bool if one.is_flag else str if one.choices else one.kind
    default = False if one.is_flag else None if about.repeated else one.default
    said = f"{about.help.rstrip('.')}, such as {about.example}." if about.example else about.help
    if about.platforms:
        said = f"{', '.join(_PLATFORMS.get(each, each) for each in about.platforms)}: {said[0].lower()}{said[1:]}"
    settings: dict[str, Any] = {"help": said, "metavar": about.metavar or "|".join(one.choices) or None}
    if about.least is not None:
        settings["min"] = about.least
    return row(name, Annotated[kind if default is not None else kind | None, option(one.flag, **settings)], default)


class Commands:
    """Commands by name, and groups of them; ``else_word`` is the command of a group for an unknown first word."""

    def __init__(self, help: str = "", else_word: str | None = None) -> None:
        self.help = help
        self.else_word = else_word
        self.commands: dict[str, Command] = {}
        self.groups: dict[str, Commands] = {}

    def group(self, name: str, help: str, *, else_word: str | None = None) -> Commands:
        """Add a group."""
        self.groups[name] = Commands(help, else_word)
        return self.groups[name]

    def command(self, name: str, *, looks: bool = False, takes: Collection[str] = ONE_CLUSTER) -> Callable[[F], F]:
        """Add ``function(session, ...) -> Result``, which itself is unchanged, as the command ``name``.

        ``looks``: the command changes nothing, and says so on Ctrl-C. ``takes`` are the global options that have a
        meaning for it, besides those of all commands. Where everything from the first word on that is no option belongs
        to the user's command, global options are accepted only before the command word.
        """

        def add(function: F) -> F:
            self.commands[name] = Command(name, function, takes, looks=looks)
            return function

        return add


def registered(word: Word) -> Commands:
    """The commands of the module that has ``word``; the module is imported now."""
    commands: Commands = import_module(f"blobsync.cli.{word.module}").app
    return commands


def _only_looking(function: CommandFunction) -> CommandFunction:
    """Convert Ctrl-C also while the answer is printed, since producing its lines may be the work."""

    @wraps(function)
    def run(session: Session, **values: Any) -> Result:
        with looking():
            result = function(session, **values)
        result.interrupted = result.interrupted or interrupted_looking()
        return result

    return run


def _rows(takes: Collection[str]) -> tuple[Parameter, ...]:
    """The global options as accepted after a command."""
    return tuple(each if each.name in (*takes, *_FOR_ALL) else _unseen(each) for each in GLOBALS)


def _unseen(parameter: Parameter) -> Parameter:
    kind, declared = get_args(parameter.annotation)
    hidden = copy(declared)
    hidden.hidden = True
    return parameter.replace(annotation=Annotated[kind, hidden])


T = TypeVar("T")


def with_consent(session: Session, project: Project | None, act: Callable[[], T]) -> T:
    """Return the result of ``act``, after asking the user to trust each link and option that requires it, or the state
    folder.

    Without a terminal, or for links and options without a project, raises the error, whose hint is the command to trust
    it. ``act`` is called again after each answer; it raises these errors before anything is changed.
    """
    while True:
        try:
            return act()
        except (UntrustedLinkError, UntrustedDockerError, UntrustedStateError) as error:
            session.agree(session, error, project)
