"""The login node: the computer that runs a cluster's commands, this one or one reached over ssh.

Uses the system's ``ssh``, not paramiko, which lacks parts of the user's configuration, agents, jump hosts and second
factors.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from blobsync.base.errors import (
    BackendUnavailableError,
    ConfigError,
    JobError,
    LostContactError,
    ProcessError,
    ProcessTimeoutError,
)
from blobsync.base.exit_codes import KILLED_CODES, shell_code
from blobsync.base.plain_json import parse_object
from blobsync.base.process import Completed, ProcessRunner
from blobsync.config.known_keys import PROGRAM_FORM
from blobsync.jobspec.node_archive import standalone_source
from blobsync.jobspec.spec import LogFile, RunInfo, State

_Answer = TypeVar("_Answer")

LOG_FOLDERS = ("user_logs", "system_logs")

# [USER@]HOST for ssh, or a host of ssh_config; never an option or several words.
_HOST = re.compile(r"(?:ssh://)?(?:[A-Za-z0-9_][A-Za-z0-9_.+-]*@)?\[?[A-Za-z0-9_:][A-Za-z0-9_.:%-]*\]?(?::[0-9]+)?")

# ssh ends with 255 without a connection, a shell with 127 if the program does not exist.
_SSH_FAILED = 255
_NO_PROGRAM = 127
_SHOWN_CHARS = 300
# Slurm's programs end with 255, too, if they do not understand an option: over ssh that becomes 1.
_IN_A_SHELL = ("sh", "-c", f'"$@"; code=$?; [ "$code" -ne {_SSH_FAILED} ] || code=1; exit "$code"', "sh")


class LoginNode:
    """Runs commands and handles job files on a login node. ``ssh`` is ``user@host``, or None for this computer.

    ``python`` is the Python of the other computer. Raises ``ConfigError`` for an invalid host or program.
    """

    def __init__(self, process: ProcessRunner, ssh: str | None, environ: Mapping[str, str], python: str) -> None:
        if ssh is not None and not _HOST.fullmatch(ssh):
            raise ConfigError(f"{ssh!a} is not user@host", key="ssh", hint="ssh: me@login.example.org")
        if ssh is not None and not PROGRAM_FORM.fullmatch(python):
            raise ConfigError(f"{python!a} is neither a program name nor an absolute path", key="interpreter_path")
        self._process = process
        self._ssh = ssh
        self._environ = environ
        # On this machine our own Python does the file work, never a program that a project names.
        self._python = python if ssh else sys.executable

    @property
    def where(self) -> str:
        """The computer's name in messages."""
        return self._ssh or "this machine"

    @property
    def host(self) -> str:
        """The other computer, as an argument of ssh; empty: this one."""
        return self._ssh or ""

    def argv(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line to run the command from here. It cannot ask for a password: there is no terminal."""
        if self._ssh is None:
            return tuple(command)
        # After "--" and the host ssh reads no more options: a second "--" would be the command.
        return ("ssh", "-o", "BatchMode=yes", "--", self._ssh, shlex.join(command))

    def run(self, command: Sequence[str], *, input: str | None = None, timeout: float = 120.0) -> Completed:
        """Run a command; any exit code is returned.

        Raises ``BackendUnavailableError`` if it cannot start, ``LostContactError`` if it may have run.
        """
        argv = self.argv((*_IN_A_SHELL, *command) if self._ssh else command)
        try:
            done = self._process.run(argv, input=input, env=self._environ, timeout=timeout)
        except ProcessTimeoutError as error:
            raise LostContactError(f"{self.where} did not respond: {error.message}", hint="try again later") from error
        except ProcessError as error:
            raise BackendUnavailableError(
                f"{command[0]} cannot be run on {self.where}: {error.message}",
                hint="set ssh: user@login in the cluster file if you use the cluster from another machine",
            ) from error
        if self._ssh and done.returncode == _SSH_FAILED:
            raise LostContactError(
                f"cannot connect to {self._ssh}: {_last_line(done.stderr)}",
                hint=f"this has to work without asking for a password: ssh {self._ssh} true",
            )
        if (code := shell_code(done.returncode)) in KILLED_CODES:
            number = KILLED_CODES.index(code) + 1
            raise LostContactError(f"{command[0]} was killed on {self.where} (signal {number})")
        if done.returncode == _NO_PROGRAM:
            raise BackendUnavailableError(f"{command[0]} is not on {self.where}: {_last_line(done.stderr)}")
        return done

    def write(self, folder: str, files: Mapping[str, str]) -> str:
        """Make a private folder with files; returns its absolute path."""
        return self._ask(str, verb="write", folder=folder, folders=["", *LOG_FOLDERS], files=dict(files))

    def find(self, folder: str) -> tuple[str, str]:
        """The absolute path of a job's folder, and the job number that it recorded when it began."""
        path, number = self._ask(lambda answer: (str(answer[0]), str(answer[1])), verb="find", folder=folder)
        return path, number

    def clear(self, folder: str) -> None:
        """Remove the secrets in a job's folder; safe to repeat."""
        self._ask(lambda answer: None, verb="clear", folder=folder)

    def logs(self, folder: str) -> tuple[LogFile, ...]:
        """The log files below a job's folder, sorted by name."""

        def read(answer: Any) -> list[LogFile]:
            return [LogFile(str(name), int(size), f"{folder}/{name}") for name, size in answer]

        return nonempty_logs(self._ask(read, verb="logs", folder=folder, log_folders=LOG_FOLDERS))

    def read(self, path: str, start: int, end: int | None) -> bytes:
        return self._ask(base64.b64decode, verb="read", path=path, start=start, end=end)

    def exit_codes(
        self, folders: Sequence[str], ended: Sequence[str] = (), listed: Sequence[str] = ()
    ) -> list[RunInfo | None]:
        """The end in each job's ``exit_code`` file, and in those of its tasks: the highest code and the last time;
        removes the secrets of the ``ended`` ones, and of those that seem to have ended, unless Slurm has them
        ``listed``."""

        def end_of(code: Any, at: Any) -> RunInfo:
            state = State.FAILED if int(code) else State.COMPLETED
            return RunInfo("", state, exit_code=int(code), ended=float(at))

        def read(each: Any) -> RunInfo | None:
            if each is None:
                return None
            tasks = [end_of(code, at).of_task(int(number)) for number, code, at in each[2:]]
            return replace(end_of(*each[:2]), tasks=tuple(tasks))

        return self._ask_for_each(read, folders, verb="codes", ended=list(ended), listed=list(listed))

    def last_lines(self, folder: str) -> dict[int, str]:
        """The last line of each task's log, by the task's number."""
        return self._ask(lambda answer: {int(one): str(line) for one, line in answer}, verb="tails", folder=folder)

    def begun(self, folders: Sequence[str]) -> list[bool]:
        """Whether each job's command was started, by what its processes wrote."""
        return self._ask_for_each(bool, folders, verb="begun")

    def _ask_for_each(self, read: Callable[[Any], _Answer], folders: Sequence[str], **request: Any) -> list[_Answer]:
        """Run a request whose response has a value for each folder."""

        def read_all(answers: Any) -> list[_Answer]:
            found = [read(each) for each in answers]
            if len(found) != len(folders):
                raise ValueError("not as many as requested")
            return found

        return self._ask(read_all, folders=list(folders), **request)

    def _ask(self, read: Callable[[Any], _Answer], **request: Any) -> _Answer:
        """Run a request; ``read`` parses the response, or raises."""
        program = standalone_source("login_node_files.py")
        # -I: it starts in the project, whose files must not shadow Python's modules.
        done = self.run((self._python, "-I", "-c", program), input=json.dumps(request))
        if done.returncode:
            raise JobError(f"file access on {self.where} failed: {_last_line(done.stderr)}")
        try:
            answer = parse_object(done.stdout)
            if "error" not in answer:
                return read(answer["answer"])
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise JobError(
                f"file access on {self.where} returned an invalid response: {done.stdout[:80]!a}",
                hint="its shell start-up files must not print anything without a terminal",
            ) from error
        raise JobError(f"on {self.where}: {str(answer['error'])[:_SHOWN_CHARS]}")


def nonempty_logs(logs: Iterable[LogFile]) -> tuple[LogFile, ...]:
    """The logs without empty system logs; a program's empty log shows that it had no output."""
    return tuple(log for log in logs if log.size or "system_logs/" not in log.name)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
