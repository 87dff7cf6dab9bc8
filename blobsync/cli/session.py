"""The session of a command: the global options, the project that they choose, and what the user is asked before
anything is changed: for a confirmation, consent to a risk, or a text.

Questions go to standard error. The answer to a question for a secret is not shown. Ctrl-C at a question changes
nothing.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blobsync.base.errors import (
    BlobsyncError,
    OpenStateError,
    StoppedError,
    UntrustedDockerError,
    UntrustedLinkError,
    UntrustedStateError,
    UsageError,
)
from blobsync.base.redaction import redact_answer
from blobsync.cli.output import (
    CommandInterruptedError,
    Console,
    PhaseTimes,
    QuietListener,
    cells,
    columns_of,
    start_logging,
    wrapped,
)

if TYPE_CHECKING:
    from blobsync.base.events import Listener
    from blobsync.cli.progress import Display
    from blobsync.config.model import Cluster
    from blobsync.project.api import Project


_NAMES = "use the name of a file in aux_data/aml/, without .yaml; omit the option for the default"


# Files with secrets that a killed run left on this machine.
SECRETS_PATTERN = ".blobsync/state-*/jobs/*/secrets.json"


class Session:
    """The global options of one command line, before or after the command.

    ``display`` shows progress, and is one of those that ``listener`` emits to; ``began`` is the monotonic time in
    seconds at which the command began; ``held`` is closed with the command, however that ends.
    """

    # A plain class: every command loads it, and Python takes a twentieth of a short command to make a dataclass of it.
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
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
        self.began = time.monotonic()
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

    def start(self) -> None:
        """Apply the options to what is shown, once all of them are known. Raises ``UsageError``."""
        from blobsync.cli.progress import choose_listener  # late: help and completion show no progress

        console = self.console
        console.as_json, console.quiet = self.json, self.quiet
        console.choose_colors(self.color, self.environ)
        self.display = self.listener = choose_listener(console, verbose=self.verbose, environ=self.environ)
        self.held.callback(self.display.close)
        if self.timings:
            from blobsync.base.events import together

            console.timed = PhaseTimes(self.began)
            self.listener = together(self.display, console.timed)
        if self.verbose or self.log_file:
            start_logging(self.verbose, self.log_file, console.command)

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
        project.command_line = shlex.join(["blobsync", *self.console.command])
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
            _agree(session, error, project)


def confirm(
    session: Session, question: str, *, looks: str = "--dry-run shows what would happen", hint: str = ""
) -> None:
    """Ask a question; return if the answer is yes. ``looks``: how to see beforehand what is asked about; ``hint``: what
    to do without a terminal, where no option says yes.

    Raises ``UsageError`` on any other answer, or without a terminal, and ``CommandInterruptedError`` on Ctrl-C.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"not a terminal, cannot ask: {question}", hint=hint or f"add -y to answer yes; {looks}")
    with session.display.paused():
        answer = _ask(question)
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError("not confirmed, nothing was changed")


def _ask(question: str) -> str:
    with _answering():
        sys.stderr.write(wrapped(f"{question} [y/N]", columns_of(sys.stderr)) + " ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
    # After Ctrl-D the cursor is still on the line of the prompt.
    if not answer.endswith("\n"):
        sys.stderr.write("\n")
    return answer


def _agree(session: Session, error: BlobsyncError, project: Project | None) -> None:
    """Ask the user to agree to what ``error`` requires: a state folder, or links and options of ``project``. If the
    answer is yes, the command may go on; without a terminal, raises ``error``, whose hint is the command to agree."""
    if isinstance(error, UntrustedStateError):
        _agree_to_state(session, error)
    elif not sys.stdin.isatty() or project is None:
        raise error
    elif isinstance(error, UntrustedLinkError):
        for link, target in error.links:
            confirm(session, f"{link} points outside the project, to {target}: read and write there from now on?")
        project.trust_links(error.links)
    elif isinstance(error, UntrustedDockerError):
        words = shlex.join(error.options)
        confirm(session, f"docker.args reaches beyond the project: use all of {words} here from now on?")
        project.trust_docker(error.options)


def _agree_to_state(session: Session, error: UntrustedStateError) -> None:
    # The command may start again then, since a state folder is opened before anything is changed.
    if not sys.stdin.isatty():
        raise error
    try:
        confirm(session, error.question)
    except UsageError as refusal:
        raise UsageError(refusal.message, hint=error.hint) from error
    from blobsync.local.state_dir import close_state, trust_state

    settle = close_state if isinstance(error, OpenStateError) else trust_state
    settle(Path(error.root), session.environ)


def show_lines(session: Session, lines: Iterable[str], *, wraps: bool = True) -> None:
    """Show what a question is about."""
    with session.display.paused():
        columns = columns_of(sys.stderr) if wraps else 0
        sys.stderr.write("".join(f"{wrapped(line, columns)}\n" for line in lines))


Answer = TypeVar("Answer")


def can_ask(session: Session) -> bool:
    """Whether a person can be asked: on a terminal, without ``--json`` and ``--quiet``."""
    return sys.stdin.isatty() and sys.stderr.isatty() and not session.json and not session.quiet


def ask_text(session: Session, question: str, default: str = "") -> str:
    """Ask for a text; returns ``default`` if it is empty. Raises ``CommandInterruptedError`` on Ctrl-C and Ctrl-D, and
    ``UsageError`` for a credential, which is taken off the screen."""
    columns = columns_of(sys.stderr)
    with session.display.paused(), _answering():
        asked = wrapped(f"{question} [{default}]:" if default else f"{question}:", columns) + " "
        sys.stderr.write(asked)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        answer = line.strip()
        if redact_answer(answer) != answer:
            if columns:
                rows = -(-cells(asked.rpartition("\n")[2] + line.rstrip("\n")) // columns)
                sys.stderr.write(f"\x1b[{rows}A\x1b[J")
            raise UsageError("that looks like a credential, which is asked for unseen", hint="paste it there")
    return answer or default


def ask_secret(session: Session, question: str) -> str:
    """Ask for a secret, which is not shown; without a terminal, reads standard input."""
    if not sys.stdin.isatty():
        return sys.stdin.read().strip()
    from getpass import getpass

    with session.display.paused(), _answering():
        return getpass(wrapped(f"{question}:", columns_of(sys.stderr)) + " ", stream=sys.stderr).strip()


def ask_until(session: Session, ask: Callable[[], str], read: Callable[[str], Answer]) -> Answer:
    """Ask until ``read`` accepts the answer."""
    while True:
        try:
            return read(ask())
        except CommandInterruptedError:
            raise
        except BlobsyncError as error:
            session.note(error.message + (f" ({error.hint})" if error.hint else ""))


def ask_word(session: Session, question: str, *words: str) -> str:
    """Ask until the answer is one of these words; the first is that of no answer."""

    def read(answer: str) -> str:
        found = [word for word in words if word.lower() == answer.lower()]
        if not found:
            raise UsageError(f"'{answer}' is none of {', '.join(words)}")
        return found[0]

    return ask_until(session, lambda: ask_text(session, question, words[0]), read)


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        sys.stderr.write("\n")
        raise CommandInterruptedError("interrupted at the prompt: nothing was changed") from stop
    except EOFError:
        sys.stderr.write("\n")
        raise CommandInterruptedError("no answer was given: nothing was changed") from None
