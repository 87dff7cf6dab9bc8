"""The parameters of a sweep's tasks in the job's command and variables. Pure.

``{NAME}`` of a declared parameter is replaced, once, in each word and in values of ``env``; all other braces stay, and
so does ``${NAME}``. In a shell line a value is quoted as one word. Where quotes of the line itself, or what a shell
reads twice, would undo that, a placeholder is refused: there the variable ``BLOBSYNC_PARAM_<NAME>`` is safe.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from blobsync.base.errors import UsageError
from blobsync.base.lazy_regexes import pattern
from blobsync.jobspec.spec import PARAMETER_VARIABLE, TASK_VARIABLE, JobSpec, TaskArray

_PLACEHOLDER = pattern(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")
# Here-documents, arithmetic and back-quotes, in which a shell expands a quoted value once more.
_READ_TWICE = pattern(r"<<|\(\(|\[\[|\$\[|\$'|`")
# Parts of a shell line: what is quoted or inside of ${...}, a comment, a quote without its end, a placeholder.
_PARTS = pattern(
    r"""(?P<quoted>'[^']*'|"(?:\\.|[^"\\])*"|\$\{[^}]*\})
    |(?P<open>['"])
    |(?P<comment>(?:^|(?<=[\s;&|()]))\#[^\n]*)
    |(?P<placeholder>(?<!\$)\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\})
    |\\.|.""",
    re.VERBOSE | re.DOTALL,
)


def variable_of(name: str) -> str:
    """The variable with a parameter."""
    return f"{PARAMETER_VARIABLE}{name.upper()}"


def is_shell_line(argv: Sequence[str]) -> bool:
    """Whether a command is one line for a shell."""
    return len(argv) == 1 and any(map(str.isspace, argv[0].strip()))


def with_parameters(spec: JobSpec, number: int) -> JobSpec:
    """The specification as one of its tasks has it, with the task's number and parameters as variables.

    Raises ``ValueError`` if the job has no such task.
    """
    tasks = spec.tasks
    if tasks is None or spec.spread is not None:
        return spec
    values = tasks.parameters(number)
    env = {name: _filled(text, values.get) for name, text in spec.env.items()}
    env |= {variable_of(name): value for name, value in values.items()} | {TASK_VARIABLE: str(number)}
    return replace(spec, argv=command_of(spec.argv, values), env=env)


def command_of(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command with these parameters. Raises ``UsageError`` for a program's name that would become a shell line."""
    if is_shell_line(argv):
        return (_shell_filled(argv[0], values),)
    made = tuple(_filled(word, values.get) for word in argv)
    if is_shell_line(made):
        raise UsageError(f"{argv[0]}: a value with a space would make a shell line of the program's name")
    return made


def demand_fillable(argv: Sequence[str], tasks: TaskArray) -> None:
    """Raise ``UsageError`` for a placeholder that cannot stand where it does in a shell line."""
    if is_shell_line(argv):
        _shell_filled(argv[0], dict.fromkeys(tasks.names, ""))
    else:
        for row in tasks.rows:
            command_of(argv, dict(zip(tasks.names, row, strict=True)))


def _filled(text: str, value: Callable[[str], str | None]) -> str:
    def known(match: re.Match[str]) -> str:
        found = value(match[1])
        return match[0] if found is None else found

    return _PLACEHOLDER.sub(known, text)


def _shell_filled(line: str, values: Mapping[str, str]) -> str:
    used = [match[1] for match in _PLACEHOLDER.finditer(line) if match[1] in values]
    if used and _READ_TWICE.search(line):
        raise _unsafe(used[0], "in a line with a here-document, arithmetic, [[ or back-quotes")
    made = []
    for part in _PARTS.finditer(line):
        kind, name = part.lastgroup, part["name"]
        inside = [match[1] for match in _PLACEHOLDER.finditer(part[0]) if match[1] in values]
        if kind == "quoted" and inside:
            raise _unsafe(inside[0], "inside of quotes")
        # The quotes of a command in "$(...)" are not seen as such here.
        if used and (part["open"] or (kind == "quoted" and part[0].startswith('"') and "$(" in part[0])):
            raise _unsafe(used[0], 'in a line with "$(...)", or with quotes inside of quotes')
        made.append(shlex.quote(values[name]) if name in values else part[0])
    return "".join(made)


def _unsafe(name: str, where: str) -> UsageError:
    return UsageError(
        f"{{{name}}} stands {where}, where its value could become a part of the shell's own text",
        hint=f'write "${variable_of(name)}" there',
    )
