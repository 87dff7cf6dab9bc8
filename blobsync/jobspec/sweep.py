"""The tasks that ``--sweep``, ``--sweep-file`` and ``--array`` ask for, and their parameters in the job's command.

``{NAME}`` of a declared parameter is replaced, once, in each word and in values of ``env``; all other braces stay, and
so does ``${NAME}``. In a shell line a value is quoted as one word. Where quotes of the line itself, or what a shell
reads twice, would undo that, a placeholder is refused: there the variable ``BLOBSYNC_PARAM_<NAME>`` is safe.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import UsageError
from blobsync.base.file_states import regular_only
from blobsync.base.formatting import count_text
from blobsync.base.lazy_regexes import pattern
from blobsync.jobspec.spec import PARAMETER_VARIABLE, TASK_VARIABLE, JobSpec, TaskArray, is_variable_name

# Slurm's default for the tasks of one job is 1,001; no platform takes many more.
MOST_TASKS = 10_000
# How many numbers the ranges of an array may name, with repeats: each costs time, and a cluster may tell any number.
_MOST_NAMED = 10 * MOST_TASKS
# Every node gets all values, and each is one variable; the file may say more around them (characters). A megabyte of
# YAML takes ten seconds to read.
_MOST_TEXT, _MOST_VALUE, _MOST_FILE, _MOST_YAML = 500_000, 100_000, 4_000_000, 200_000
_TAG_CHARS = 200
_RANGE = re.compile(r"(-?[0-9]{1,15})\.\.(-?[0-9]{1,15})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# https://slurm.schedmd.com/job_array.html
_ARGUMENT = re.compile(r"-*array[= ]\s*(\S+)")
_NUMBERS = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([1-9][0-9]{0,6}))?)?")

# Sets of parameters that vary together: all have the same names.
Group = Sequence[Mapping[str, str]]


def sweep(
    given: Sequence[str] | Mapping[str, Iterable[object]], file: str | Path | None = None, *, zipped: bool = False
) -> TaskArray:
    """The tasks of all combinations of ``NAME=VALUES`` (or lists of values) and of a file's lines; ``zipped``: the
    first of each, then the second of each. Raises ``UsageError``.
    """
    groups: list[Group] = [_read_file(Path(file))] if file else []
    if isinstance(given, Mapping):
        groups += [[{str(name): str(value)} for value in _listed(name, values)] for name, values in given.items()]
    else:
        groups += [_read_words(word) for word in given]
    _demand_fitting(groups, zipped=zipped)
    chosen = zip(*groups, strict=True) if zipped else itertools.product(*groups)
    rows = [{name: value for part in parts for name, value in part.items()} for parts in chosen]
    names = tuple(rows[0])
    for value in (value for row in rows for value in row.values()):
        if _CONTROL.search(value):
            raise UsageError(f"--sweep: {value[:60]!a} contains a line break or another control character")
        if len(value) > _MOST_VALUE:
            raise UsageError(f"--sweep: {value[:60]!a}... has more than {_MOST_VALUE:,} characters")
    if sum(map(len, names)) + sum(len(value) for row in rows for value in row.values()) > _MOST_TEXT:
        raise UsageError(f"--sweep: the names and values have more than {_MOST_TEXT:,} characters in all")
    return TaskArray(len(rows), 0, names=names, rows=tuple(tuple(row[name] for name in names) for row in rows))


def read_array(text: str) -> TaskArray:
    """The tasks of Slurm's ``--array``: ``0-9%2``, ``1,3,5``, ``0-15:4``; a number that several parts name is one task.

    Raises ``UsageError``.
    """
    listed, sign, most = text.partition("%")
    wrong = UsageError(f"--array {text}: not numbers of tasks", hint="--array 0-9, 1,3,5, 0-15:4 or 0-9%2")
    if sign and not (most.isascii() and most.isdigit() and 0 < int(most) < 10**7):
        raise wrong
    numbers: set[int] = set()
    named = 0
    for part in listed.split(","):
        found = _NUMBERS.fullmatch(part)
        if not found:
            raise wrong
        some = range(int(found[1]), int(found[2] or found[1]) + 1, int(found[3] or 1))
        _demand_count(len(some))
        named += len(some)
        if not some or named > _MOST_NAMED:
            raise wrong
        numbers.update(some)
        _demand_count(len(numbers))
    ordered = tuple(sorted(numbers))
    plain = ordered == tuple(range(len(ordered)))
    return TaskArray(len(ordered), min(int(most or 0), len(ordered)), numbers=() if plain else ordered)


def array_argument(arguments: Iterable[str]) -> str:
    """The array among further words for ``sbatch``: that of ``--array=0-9``; empty if there is none."""
    found = (_ARGUMENT.fullmatch(argument.strip()) for argument in arguments)
    return next((match[1] for match in found if match), "")


def sweep_tags(tasks: TaskArray) -> dict[str, str]:
    """The parameters as tags of the job, which some platforms show."""
    return {f"sweep.{name}": ",".join(dict.fromkeys(values))[:_TAG_CHARS] for name, values in tasks.columns.items()}


def array_text(tasks: TaskArray) -> str:
    """The inverse: ``0-9%2``."""
    parts: list[str] = []
    for _, run in itertools.groupby(enumerate(tasks.all_numbers), lambda each: each[1] - each[0]):
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts) + (f"%{tasks.parallel}" if tasks.parallel else "")


def _demand_fitting(groups: Sequence[Group], *, zipped: bool) -> None:
    lengths = [len(group) for group in groups]
    if zipped and len(set(lengths)) > 1:
        told = ", ".join(f"{'+'.join(group[0])} has {len(group):,}" for group in groups)
        raise UsageError(f"--zip: not as many values of each: {told}")
    _demand_count(lengths[0] if zipped else math.prod(lengths))
    known: dict[str, str] = {}
    for name in (name for group in groups for name in group[0]):
        if not is_variable_name(name):
            raise UsageError(f"--sweep: {name[:60]!a} is not the name of a parameter", hint="letters, digits and _")
        if name.upper() in known:
            both = f"{known[name.upper()]} and {name}"
            raise UsageError(f"--sweep: {both} are one name, {variable_of(name)}", hint="rename one of them")
        known[name.upper()] = name


def _demand_count(count: int) -> None:
    if count > MOST_TASKS:
        raise UsageError(f"{count_text(count, 'task')}: a job has at most {MOST_TASKS:,}")


def _listed(name: str, values: Iterable[object]) -> list[object]:
    found = list(itertools.islice((values,) if isinstance(values, (str, bytes)) else values, MOST_TASKS + 1))
    if not found:
        raise UsageError(f"the sweep has no value of {name}")
    return found


def _read_words(word: str) -> Group:
    """``lr=0.1,0.01``, or ``seed=0..4``."""
    name, sign, text = word.partition("=")
    parts = text.split(",")
    if not sign or not all(parts):
        hint = "--sweep 'lr=0.1,0.01' --sweep 'seed=0..4'; empty values, and values with commas, come from --sweep-file"
        raise UsageError(f"--sweep {word[:60]!a} is not NAME=VALUE,VALUE", hint=hint)
    return [{name: value} for part in parts for value in _values(word, part)]


def _values(word: str, part: str) -> Iterable[str]:
    found = _RANGE.fullmatch(part)
    if not found:
        return (part,)
    some = range(int(found[1]), int(found[2]) + 1)
    if not some:
        raise UsageError(f"--sweep {word}: {part} begins after its end", hint=f"{found[2]}..{found[1]}")
    _demand_count(len(some))
    return map(str, some)


def _read_file(path: Path) -> Group:
    """The lines of a CSV file with a heading, the objects of a JSONL file, or the list of a YAML file."""
    import csv  # late: commands that look at jobs read no such file

    reader = {".csv": _csv, ".jsonl": _jsonl, ".yaml": _yaml, ".yml": _yaml}.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"--sweep-file {path}: neither .csv nor .jsonl nor .yaml", path=str(path))
    try:
        with open(path, encoding="utf-8-sig", newline="", opener=regular_only) as source:
            text = source.read(_MOST_FILE + 1)
        if len(text) > _MOST_FILE:
            raise UsageError(f"--sweep-file {path}: more than {_MOST_FILE:,} characters", path=str(path))
        rows = list(itertools.islice(reader(text), MOST_TASKS + 1))
    except OSError as error:
        raise UsageError(f"--sweep-file {path}: {error.strerror}", path=str(path)) from error
    except (ValueError, RecursionError, csv.Error) as error:
        raise UsageError(
            f"--sweep-file {path}: {str(error).partition(chr(10))[0] or 'it cannot be read'}", path=str(path)
        ) from error
    if not rows or not rows[0]:
        raise UsageError(f"--sweep-file {path}: it has no parameters", path=str(path))
    for number, row in enumerate(rows, 1):
        if row.keys() != rows[0].keys() or not all(isinstance(value, str) for value in row.values()):
            wanted = ", ".join(map(str, rows[0]))
            raise UsageError(f"--sweep-file {path}: entry {number} lacks one value each of {wanted}", path=str(path))
    return rows


def _csv(text: str) -> Iterator[dict[str, Any]]:
    import csv

    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    heading = next(lines, [])
    if len(set(heading)) < len(heading):
        raise ValueError("its heading has a name twice")
    for line in lines:
        if line:
            # Too many or too few values are seen by their names.
            yield dict(itertools.zip_longest(heading, line)) if len(line) <= len(heading) else {}


def _jsonl(text: str) -> Iterator[dict[str, Any]]:
    # Numbers stay as they are written.
    kept = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=_once)
    for line in text.split("\n"):
        if line.strip():
            yield _plain(kept.decode(line))


def _yaml(text: str) -> Iterator[dict[str, Any]]:
    from blobsync.config.yaml_document import parse_texts

    if len(text) > _MOST_YAML:
        raise ValueError(f"more than {_MOST_YAML:,} characters of YAML: write it as .jsonl or .csv")
    found = parse_texts(text)
    if not isinstance(found, list):
        raise ValueError("it is not a list of parameters")
    yield from map(_plain, found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def _plain(row: object) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError("a line is not a mapping of names to values")
    words = {True: "true", False: "false"}
    return {str(name): words[value] if isinstance(value, bool) else value for name, value in row.items()}


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
    env = {name: _filled(text, values) for name, text in spec.env.items()}
    env |= {variable_of(name): value for name, value in values.items()} | {TASK_VARIABLE: str(number)}
    return replace(spec, argv=command_of(spec.argv, values), env=env)


def command_of(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """The command with these parameters. Raises ``UsageError`` for a program's name that would become a shell line."""
    if is_shell_line(argv):
        return (_shell_filled(argv[0], values),)
    made = tuple(_filled(word, values) for word in argv)
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


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


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
