"""The command line: how a command declares its options, and all commands as Typer's tree, which reads a line, completes
it and shows help.

Global options go before the command word, and for most commands also after it:
``blobsync -c eu -f we3v32 u data/voc20`` and ``blobsync u data/voc20 -c eu -f we3v32`` are the same.
"""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, cached_property
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.models import ParameterInfo

from blobsync.base.errors import UsageError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.lazy_regexes import pattern
from blobsync.base.options import DeclaredOption, options_of
from blobsync.base.records import NamedTuple
from blobsync.base.stopping import was_interrupted
from blobsync.cli.command_words import ENDS_WITH_A_COMMAND, SECTIONS, WORDS, Word
from blobsync.cli.output import Result
from blobsync.cli.session import Session, interrupted, interrupted_looking, looking, with_consent

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


class Command:
    """A command: ``function(session, ...) -> Result``, with the options that its annotations declare."""

    def __init__(self, name: str, function: CommandFunction, takes: Collection[str], *, looks: bool) -> None:
        self.doc = function.__doc__
        self.ends_with_a_command = name in ENDS_WITH_A_COMMAND
        self._name = name
        self._function = function
        self._looks = looks
        self._globals = () if self.ends_with_a_command else _rows(takes)

    @cached_property
    def _own(self) -> Sequence[Parameter]:
        """The function's parameters behind the session."""
        return [*signature(self._function, eval_str=True).parameters.values()][1:]

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
        session.start()
        if any(path.startswith("/") for path in values.get("paths") or ()):
            from blobsync.config.loader import inside_project  # late: most paths are relative

            # Whether the current folder has symlinks ($PWD) or not (Python).
            root = session.root()
            values["paths"] = [inside_project(root, path) for path in values["paths"]]
        try:
            for name, group in self._groups.items():
                values[name] = group.build({each.name: values.pop(each.name) for each in group.rows})
            return with_consent(session, None, lambda: self._carried_out(session, values))
        except KeyboardInterrupt as stop:
            raise interrupted(stop) from stop

    def _carried_out(self, session: Session, values: Mapping[str, Any]) -> Result:
        if not self._looks:
            return self._function(session, **values)
        with looking():
            result = self._function(session, **values)
        # Producing its lines may be the work.
        result.interrupted = result.interrupted or interrupted_looking()
        return result


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


def _rows(takes: Collection[str]) -> tuple[Parameter, ...]:
    """The global options as accepted after a command."""
    return tuple(each if each.name in (*takes, *_FOR_ALL) else _unseen(each) for each in GLOBALS)


def _unseen(parameter: Parameter) -> Parameter:
    kind, declared = get_args(parameter.annotation)
    hidden = copy(declared)
    hidden.hidden = True
    return parameter.replace(annotation=Annotated[kind, hidden])


def registered(word: Word) -> Commands:
    """The commands of the module that has ``word``; the module is imported now."""
    commands: Commands = import_module(f"blobsync.cli.{word.module}").app
    return commands


_SETTINGS: dict[str, Any] = {
    # Rich would add 80 ms to every command, and its tracebacks show local variables.
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "add_completion": False,
    "context_settings": {"help_option_names": ["-h", "--help"], "max_content_width": 100},
}

# The shell sets it when it asks for a completion.
_COMPLETION_VARIABLE = "_BLOBSYNC_COMPLETE"
# More characters than any first sentence.
_WHOLE = 1_000

# Typer exports neither; below this width its pages are wider than the terminal, which then breaks words.
_PARSER_CONTEXT: Any = TyperGroup.context_class
_PARSER_PAGE: Any = _PARSER_CONTEXT.formatter_class
_NARROW = 52
_EXAMPLE = pattern(r"(?m)^( *blobsync .*?\S) {2,}(\S.*)$")


class _Page(_PARSER_PAGE):  # type: ignore[misc]
    """A page of help that fits a narrow terminal, too: its second column is most of it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        columns = shutil.get_terminal_size().columns
        self.is_narrow = columns < _NARROW
        if self.is_narrow:
            self.width = max(columns - 2, 20)

    def write_text(self, text: str) -> None:
        """As in the base class; what an example is for stands below it where there is no room beside it."""
        is_wide = any(len(example[0]) > self.width for example in _EXAMPLE.finditer(text))
        add = super().write_text
        add(_EXAMPLE.sub(self._below, text) if is_wide else text)

    def _below(self, example: re.Match[str]) -> str:
        line, meaning = example.groups()
        return "\n      ".join([line, *textwrap.wrap(meaning, self.width - 8)])

    def write_dl(self, rows: Any, col_max: int = 30, col_spacing: int = 2) -> None:
        """As in the base class; what is longer than the first column has its text below it."""
        super().write_dl(rows, min(col_max, self.width // 3) if self.is_narrow else col_max, col_spacing)


class _Context(_PARSER_CONTEXT):  # type: ignore[misc]
    formatter_class = _Page


class _Command(TyperCommand):
    context_class = _Context


def run(words: Sequence[str], session: Session) -> Any:
    """Read a command line and run its command; returns its result, or an exit code.

    Raises ``UsageError`` for what cannot be read.
    """
    try:
        answer = build_app()(words, prog_name="blobsync", standalone_mode=False, obj=session)
    except typer.Abort:
        raise UsageError("nothing was confirmed, nothing was changed") from None
    except _PARSER_ERROR as error:
        raise _usage(error, words) from None
    except SystemExit as ended:
        # So Typer ends once it has completed a word.
        return ended.code
    if answer == ExitCode.INTERRUPTED and was_interrupted():
        # Typer converts Ctrl-C to an exit code without a message.
        raise KeyboardInterrupt
    return answer


class Offered(NamedTuple):
    """A suggestion of the shell completion, with the attributes that the parser's shell classes read."""

    value: str
    help: str
    type: str = "plain"


class _Commands(Mapping[str, Any]):
    """Name -> command; each is built on first use."""

    def __init__(self) -> None:
        self._built = cache(lambda name: _build(WORDS[name]))

    def __getitem__(self, name: str) -> Any:
        return self._built(name)

    def __iter__(self) -> Iterator[str]:
        return iter(WORDS)

    def __len__(self) -> int:
        return len(WORDS)


def _build(word: Word) -> Any:
    """Build the command ``word`` alone, of all commands that its module registers."""
    found, app = registered(word), typer.Typer(**_SETTINGS)
    name = word.names[0]
    if name not in found.groups:
        _add(app, name, found.commands[name])
        return get_command(app)
    app.add_typer(_group(found.groups[name]), name=name)
    return get_command(app).commands[name]  # type: ignore[attr-defined]


def _group(commands: Commands) -> typer.Typer:
    settings: dict[str, Any] = {**_SETTINGS, "help": commands.help, "cls": _Group}
    if commands.else_word is not None:
        # Options before the first word are those of the command that it is for.
        context = {**_SETTINGS["context_settings"], "ignore_unknown_options": True}
        group_class = type("Group", (_Group,), {"else_word": commands.else_word})
        settings |= {"cls": group_class, "context_settings": context}
    group = typer.Typer(**settings)
    for name, each in commands.commands.items():
        _add(group, name, each)
    return group


class _Group(TyperGroup):
    """A group whose help has the first sentence of each command whole; the base class cuts it at the line's end.
    The command ``else_word``, if there is one, is put before a word that is none of its commands."""

    context_class = _Context
    else_word: str | None = None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_WHOLE)) for name, each in self.commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if self.else_word and args and args[0] not in self.commands:
            from blobsync.cli.suggestions import word_of_group

            if word_of_group(args[0], self.commands):
                ctx.fail(f"No such command '{args[0]}'.")
            args = [self.else_word, *args]
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The group's commands, and what may stand there if it is none of them."""
        found = super().shell_complete(ctx, incomplete)
        if self.else_word is None:
            return found
        command = self.commands[self.else_word]
        inner = command.make_context(self.else_word, [], parent=ctx, resilient_parsing=True)
        if incomplete.startswith("-"):
            return command.shell_complete(inner, incomplete)
        first = next(each for each in command.params if each.param_type_name == "argument")
        return [*found, *first.shell_complete(inner, incomplete)]


def _add(app: typer.Typer, name: str, command: Command) -> None:
    def run(ctx: typer.Context, **values: Any) -> Any:
        return command.run(ctx.obj, values)

    settings: dict[str, Any] = {}
    if command.ends_with_a_command:
        settings["context_settings"] = {**_SETTINGS["context_settings"], "allow_interspersed_args": False}
    app.command(name, cls=_Command, **settings)(_signed(run, command.rows, command.doc))


_UNKNOWN = pattern(r"No such command '(.+)'")
_LACKING = pattern(r"Option '(.+)' requires an argument")
_CHOICES = pattern(r"[a-z0-9]+(?:\|[a-z0-9]+)+")
_COMPLETED = ("PATH", "ID", "CLUSTER", "PLAN")


def completed_by(parameter: Parameter) -> Callable[[Any, str], Any] | None:
    """The completion of a parameter: its own, or that of its metavar."""
    kind, declared = get_args(parameter.annotation)
    metavar = str(declared.metavar or "").strip("[]").removesuffix("...")
    is_file = metavar == "CLUSTER" and "Path" in str(kind)
    if declared.autocompletion or is_file or not (metavar in _COMPLETED or _CHOICES.fullmatch(metavar)):
        return declared.autocompletion  # type: ignore[no-any-return]
    return offers(metavar)


def _signed(function: Callable[..., Any], rows: Sequence[Parameter], doc: str | None) -> Any:
    """Set what Typer builds a command from: the signature and the docstring. It would evaluate annotations as well."""
    function.__signature__ = Signature([row("ctx", typer.Context), *map(_completed, rows)])  # type: ignore[attr-defined]
    function.__annotations__ = {}
    function.__doc__ = doc
    return function


def _completed(parameter: Parameter) -> Parameter:
    kind, declared = get_args(parameter.annotation)
    # Typer inspects each of these functions, a fiftieth of a short command.
    complete = completed_by(parameter) if _COMPLETION_VARIABLE in os.environ else None
    if complete is declared.autocompletion:
        return parameter
    info = copy(declared)
    info.autocompletion = complete
    return parameter.replace(annotation=Annotated[kind, info])


class CommandTree(TyperGroup):
    """The top level: builds commands lazily and lists them in sections."""

    context_class = _Context

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Commands()  # type: ignore[assignment]  # it is only read

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """The words of the table with their help; builds no command."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [Offered(name, word.help) for name, word in WORDS.items() if name.startswith(incomplete)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As in the base class; the error for an unknown word suggests a command."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            from blobsync.cli.suggestions import command_hint

            known = {name: word.help for name, word in WORDS.items()}
            raise UsageError(f"no such command '{args[0]}'", hint=command_hint(args, known))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The command list of ``--help``, in the order and with the texts of the table above."""
        for title, words in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(", ".join(word.names), word.help) for word in words])


def _start(ctx: typer.Context, version: bool, **options: Any) -> None:
    """Data, code and jobs between a project and its clusters.

    Start with 'blobsync config new', then 'blobsync u data/voc20' here and 'blobsync d data/voc20' there.
    'blobsync COMMAND --help' explains each command with examples.
    """
    session: Session = ctx.obj
    session.merge(options)
    if version:
        from blobsync import __version__

        typer.echo(f"blobsync {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        if session.json:
            raise UsageError("no command given", hint="'blobsync --help' lists them")
        typer.echo(ctx.get_help())
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line as one Typer app."""
    app = typer.Typer(
        cls=CommandTree, invoke_without_command=True, **{**_SETTINGS, "add_completion": True}, epilog=_EPILOG
    )
    version = Annotated[bool, option("--version", help="Show the version and exit.")]
    app.callback()(_signed(_start, (*GLOBALS, row("version", version, False)), _start.__doc__))
    return app


_EPILOG = f"Exit codes: {', '.join(f'{int(code)} {code.sentence}' for code in ExitCode)}."


# Typer exports only the most specific parser errors; their base class covers all of them.
_PARSER_ERROR: Any = next(base for base in typer.BadParameter.__mro__ if base.__base__ is Exception)

# What the parser says of numbers, and what users read.
_SAID = (
    (r"is not a valid int(?:eger| range)?\b", "is not a whole number"),
    (r"is not a valid float\b", "is not a number"),
    (r"is not in the range x>=(\d+)", r"is less than \1"),
    (r"is not in the range (\d+)<=x<=(\d+)", r"is not a number from \1 to \2"),
)


def _usage(error: Any, words: Sequence[str]) -> UsageError:
    """Convert the parser's error to ours."""
    ctx = getattr(error, "ctx", None)
    path, command = (ctx.command_path, ctx.command) if ctx else _typed(words)
    message = error.format_message().rstrip(".")
    if lacking := _LACKING.fullmatch(message):
        metavar = next((each.metavar for each in command.params if lacking[1] in each.opts), None)
        message = f"{lacking[1]} needs {metavar or 'a value'} after it"
    for form, said in _SAID:
        message = re.sub(form, said, message)
    word, option = path.rpartition(" ")[2], getattr(error, "option_name", "")
    if word == "submit" and option == "-f":
        return UsageError(
            "-f names a cluster to copy from, and submit copies nothing",
            hint="a job file is given by --file: blobsync submit --file job.json",
        )
    if ctx and word in ENDS_WITH_A_COMMAND and any(option in each.opts for each in ctx.find_root().command.params):
        return UsageError(
            f"{option} must come before {word}: later options belong to {word} or to your command",
            hint=f"blobsync {option} ... {word} ...",
        )
    takes = f"'{path} --help' shows what it takes"
    if ctx and isinstance(ctx.command, _Group) and message == "Missing command":
        short: Any = ctx.command.commands.get(ctx.command.else_word or "")
        first = f"{short.params[0].metavar.removesuffix('...')}, or " if short else ""
        known = [*ctx.command.commands]
        which = f"one of {', '.join(known)}" if len(known) > 1 else f"the word {known[0]} after it"
        example = _EXAMPLE.search(short.help) if short else None
        takes = f"for example: {example[1].strip()}; {takes}" if example else takes
        return UsageError(f"{word} needs {first}{which}", hint=takes)
    if ctx and isinstance(ctx.command, _Group) and (unknown := _UNKNOWN.fullmatch(message)):
        from blobsync.cli.suggestions import word_of_group

        meant = word_of_group(unknown[1], ctx.command.commands)
        named = ctx.command.else_word
        # A folder may have that name.
        other = f" or '{path} {named} {unknown[1]}'" if named else ""
        takes = f"did you mean '{path} {meant}'{other}? {takes}" if meant else takes
    if ctx and option:
        from blobsync.cli.suggestions import option_hint

        near = getattr(error, "possibilities", None) or ()
        hint = option_hint(option, near, ctx.command.params, ctx.find_root())
        message, takes = message.partition(" (Possible options")[0], f"{hint}{takes}"
    return UsageError(message[:1].lower() + message[1:], hint=takes)


def _typed(words: Sequence[str]) -> tuple[str, Any]:
    """The command of a line in which an option lacks its value, with its words: the parser does not name it."""
    path, known = "blobsync", get_command(build_app())
    for word in words:
        commands = getattr(known, "commands", {})
        if word in commands:
            path, known = f"{path} {word}", commands[word]
    return path, known
