"""The session of a command: the global options, and the project that they choose."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from blobsync.base.errors import UntrustedStateError, UsageError
from blobsync.base.events import Note
from blobsync.cli.progress import QuietListener

if TYPE_CHECKING:
    from blobsync.base.events import Listener
    from blobsync.cli.progress import ClosingListener
    from blobsync.config.model import Cluster
    from blobsync.project.api import Project

_NAMES = "use the name of a file in aux_data/aml/, without .yaml; omit the option for the default"


# Files with secrets that a killed run left on this machine.
SECRETS_PATTERN = ".blobsync/state-*/jobs/*/secrets.json"


@dataclass(slots=True)
class Session:
    """The global options of one command line, before or after the command.

    ``started`` is called with the session once all of them are known; ``display`` shows
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
        from blobsync.base.daily_warnings import DailyWarning, shown_today

        seen: set[str] = set()
        for cluster in clusters:
            for warning in cluster.warnings if cluster else ():
                daily = isinstance(warning, DailyWarning)
                if warning in seen or (daily and cluster and shown_today(warning, cluster.root, self.environ)):
                    continue
                seen.add(warning)
                self.note(warning)


_NOT_GIVEN = {each.name: each.default for each in fields(Session)}
