"""Ignore patterns (``.gitignore``, ``.amlignore``, ``.blobsyncignore``, ``ignore`` lists), read and matched as by git.

Three kinds of files are read in every folder that is not itself excluded: ``.gitignore``, then
``.amlignore``, then ``.blobsyncignore``; the ``ignore`` list of the cluster file comes last. A later kind
wins over an earlier one, a deeper file over one above it, a later line over an earlier one, and nothing below
an excluded folder can be included again. ``zip_options`` of the cluster file (``-x``, as ACT
passes it to ``zip``) exclude for good.

``.git/info/exclude`` and the user's global excludes are not read: two clones make the same archive.

pathspec translates the patterns. Where its version 1.1 departs from what git 2.39 does, the pattern is
prepared for it here:

=====================  ==================================================================================
``foo/**``             matches what is below ``foo``, not ``foo`` itself, so ``!foo/keep`` can work
``[!a]``               never matches ``/``
``[[:space:]]``        and the other POSIX classes; ``\\`` escapes inside brackets, too
``?``                  is one byte: git compares bytes, so everything here is done on the bytes of a name
trailing tab, CR       belong to the pattern; only unescaped spaces are dropped
``***``                as a whole path part is the same as ``**``
=====================  ==================================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from blobsync.base.errors import ConfigError, IgnorePatternError, LocalFileError
from blobsync.base.records import dataclass
from blobsync.config.model import Cluster
from blobsync.local.globs import MAX_PATTERN_BYTES, bracket, byte_text, first_place, regex_class, zip_excludes

# In rising order of precedence.
IGNORE_FILES = (".gitignore", ".amlignore", ".blobsyncignore")

# In bytes. No real ignore file is this large.
_MAX_IGNORE_FILE = 4 * 1024 * 1024
_MAX_PATTERNS = 20_000

# How pathspec 1.1 translates: a pattern that may match anywhere, "/**/" in the middle, one byte of a name, and the end.
_ANYWHERE = "^(?:.+/)?"
_FOLDERS_BETWEEN = "(?:/.+)?/"
_ANY = "[^/]"
_ENDS = ("(?:(?:/)|$)", "(?:/)")

# Stand-ins for what pathspec must not see; names and patterns hold only U+0000 to U+00FF (one per byte).
_FIRST_STAND_IN = 0xE000
_ANY_STAND_IN = "\U00010000"


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern. ``file`` is as a user would type it; ``line`` counts from 1, 0 for a list in a config."""

    pattern: str
    file: str
    line: int
    takes_in: bool
    by_name: bool
    regex: re.Pattern[str]

    @property
    def is_ours(self) -> bool:
        """Whether it was written for blobsync, and not for git or Azure ML."""
        return self.file.endswith((IGNORE_FILES[-1], ": ignore"))


@dataclass(frozen=True, slots=True)
class PatternList:
    """The patterns of one file; ``base`` is the length of the folder's path that holds it, with its ``/``."""

    rules: tuple[Rule, ...]
    any_name: re.Pattern[str] | None
    any_path: re.Pattern[str] | None
    base: int = 0

    def last_match(self, path: str, name: str) -> Rule | None:
        """The rule that decides ``path`` (byte text, ``/`` at the end of a folder), None if none matches."""
        path = path[self.base :]
        # Most files match nothing: test all patterns together first.
        by_name = self.any_name is not None and self.any_name.fullmatch(name)
        by_path = self.any_path is not None and self.any_path.fullmatch(path)
        if not by_name and not by_path:
            return None
        for rule in reversed(self.rules):
            if rule.regex.fullmatch(name if rule.by_name else path):
                return rule
        return None


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that apply in one folder: for each kind of file, in rising precedence, the lists from the top down.

    ``above`` is the project's root as byte text, relative to the repository that contains it (``proj/``).
    """

    kinds: tuple[tuple[PatternList, ...], ...] = ((),) * (len(IGNORE_FILES) + 1)
    above: str = ""

    def entering(self, folder: Path, path: str, names: Iterable[str]) -> IgnoreRules:
        """The rules below ``folder``, which contains ``names``; ``path`` is the folder from the root, with ``/``."""
        rules = self
        for kind, name in enumerate(IGNORE_FILES):
            if name in names:
                base = len(self.above + byte_text(path))
                rules = rules._adding(kind, parse_lines(_read(folder / name), f"{path}{name}", base=base))
        return rules

    def decide(self, path: str, *, folder: bool) -> Rule | None:
        """The rule that decides an entry whose parents are all included; None if no pattern matches.

        The rule excludes the entry unless its ``takes_in`` is set.
        """
        subject = self.above + byte_text(path) + ("/" if folder else "")
        name = subject[subject.rfind("/", 0, -1) + 1 :]
        for lists in reversed(self.kinds):
            for patterns in reversed(lists):
                if rule := patterns.last_match(subject, name):
                    return rule
        return None

    def _adding(self, kind: int, patterns: PatternList) -> IgnoreRules:
        if not patterns.rules:
            return self
        kinds = list(self.kinds)
        kinds[kind] = (*kinds[kind], patterns)
        return IgnoreRules(tuple(kinds), self.above)


def project_rules(root: Path, ignore: Sequence[str] = (), config_file: str = "") -> IgnoreRules:
    """The rules that apply at the top of the project at ``root``.

    They are the ``.gitignore`` files of the repository around it and the list ``ignore`` of ``config_file``.
    A project that the repository ignores as a whole gets none of the repository's rules.
    """
    real = Path(os.path.realpath(root))
    top = next((folder for folder in (real, *real.parents) if os.path.lexists(folder / ".git")), real)
    parts = real.relative_to(top).parts
    rules = IgnoreRules()
    for depth, _ in enumerate(parts):
        file = top.joinpath(*parts[:depth]) / IGNORE_FILES[0]
        base = len(byte_text("".join(f"{part}/" for part in parts[:depth])))
        rules = rules._adding(0, parse_lines(_read(file), os.path.relpath(file, real), base=base))
        rule = rules.decide("/".join(parts[: depth + 1]), folder=True)
        if rule is not None and not rule.takes_in:
            rules, parts = IgnoreRules(), ()
            break
    above = byte_text("".join(f"{part}/" for part in parts))
    listed = parse_list(ignore, f"{config_file}: ignore", base=len(above))
    return IgnoreRules(rules.kinds, above)._adding(len(IGNORE_FILES), listed)


def parse_lines(text: str, file: str, *, base: int = 0, numbered: bool = True) -> PatternList:
    """The patterns of an ignore file; ``text`` has one character per byte, ``file`` is for messages.

    Raises ``IgnorePatternError`` for a pattern that could never match anything, which git accepts silently.
    """
    rules: list[Rule] = []
    for number, raw in enumerate(text.removeprefix("\xef\xbb\xbf").split("\n"), start=1):
        line = _without_trailing_spaces(raw.removesuffix("\r"))
        if not line or line.startswith("#"):
            continue
        try:
            if len(rules) == _MAX_PATTERNS:
                raise ValueError(f"more than {_MAX_PATTERNS:,} patterns")
            rule = _rule(line, file, number if numbered else 0)
        except ValueError as error:
            where = f"{file}:{number}" if numbered else file
            raise IgnorePatternError(
                f"bad pattern '{_shown(line[:200])}': {error}",
                where=where,
                hint="put a backslash before a special character to match it literally",
                path=file,
            ) from error
        if rule is not None:
            rules.append(rule)
    names = [rule.regex for rule in rules if rule.by_name]
    paths = [rule.regex for rule in rules if not rule.by_name]
    return PatternList(tuple(rules), _any(names), _any(paths), base)


def parse_list(patterns: Sequence[str], where: str, *, base: int = 0) -> PatternList:
    """The patterns of a list, of a configuration or a command line; see ``parse_lines``."""
    return parse_lines(byte_text("\n".join(patterns)), where, base=base, numbered=False)


def bad_patterns(cluster: Cluster) -> Iterator[ConfigError]:
    """The patterns of a cluster file that ``init`` or a transfer would refuse, each with its line."""
    lists: list[tuple[tuple[str, ...], Sequence[str]]] = [(("ignore",), cluster.ignore)]
    lists += [(("config_param", entry.key, "ignore"), entry.ignore) for entry in cluster.folders]
    looks: list[tuple[tuple[str, ...], Callable[[], object]]] = [
        ((*path, str(number)), partial(parse_list, (pattern,), ""))
        for path, patterns in lists
        for number, pattern in enumerate(patterns)
    ]
    looks.append((("zip_options",), partial(zip_excludes, cluster.zip_options, "")))
    for path, look in looks:
        try:
            look()
        except IgnorePatternError as error:
            yield cluster.error(path, error.detail, hint=error.hint)


def _rule(line: str, file: str, number: int) -> Rule | None:
    takes_in = line.startswith("!")
    body = line[1:] if takes_in else line
    if body in {"", "/"}:
        return None
    if len(body) > MAX_PATTERN_BYTES:
        raise ValueError(f"it is longer than {MAX_PATTERN_BYTES:,} bytes")
    plain, classes = _with_stand_ins(body)
    stem, slash = (plain[:-1], "/") if plain.endswith("/") else (plain, "")
    if "/" in body[:-1] and "/" not in stem:
        # The only slash is inside brackets; git counts it as one that anchors the pattern.
        stem = f"/{stem}"
    by_name = "/" not in stem
    head, separator, last = stem.rpartition("/")
    head = "/".join("**" if len(part) > 1 and not part.strip("*") else part for part in head.split("/"))
    # "?*" is one part that is not empty, as "*" is, but is translated without a short cut that would match
    # whole subtrees; and "foo/**" becomes "foo/**/?*", which is everything below foo and not foo itself.
    if last == "*" or (last and not last.strip("*") and by_name):
        last = "?*"
    elif last and not last.strip("*"):
        last = "**/?*"
    regex, _ = GitIgnoreSpecPattern.pattern_to_regex(f"{'!' * takes_in}{head}{separator}{last}{slash}")
    if regex is None:
        return None
    # The name of pathspec's group would clash when patterns are joined.
    regex = _in_linear_time(regex.replace("?P<ps_d>", "?:"))
    for stand_in, text in classes.items():
        regex = regex.replace(stand_in, text)
    compiled = re.compile(regex, re.DOTALL)
    return Rule(_shown(line), file, number, takes_in, by_name, compiled)


def _in_linear_time(regex: str) -> str:
    """pathspec's expression, with each star matched only at the first place (see ``first_place``).

    Nothing but ``*`` in a name is translated to the texts that are searched for here: brackets are still stand-ins,
    and literal characters are escaped.
    """
    anchor, lead = ("^", "") if not regex.startswith(_ANYWHERE) else (_ANYWHERE, "^")
    end = next(end for end in _ENDS if regex.endswith(end))
    *between, last = regex[len(anchor) : -len(end)].split(_FOLDERS_BETWEEN)
    parts = [_stars(part) for part in between]
    last = _stars(last)
    if not parts:
        return f"{anchor}{last}{end}"
    # "a/**/b": the part before a "**" ends with a slash, so its start determines its end.
    first = first_place("(?:.+?/)??", f"{parts[0]}/") if lead else f"{parts[0]}/"
    middle = "".join(first_place("(?:.+?/)??", f"{part}/") for part in parts[1:])
    return f"^{first}{middle}(?:.+/)?{last}{end}"


def _stars(part: str) -> str:
    """The part of a pattern between two ``**``, with the stars of each folder's or file's name converted."""
    names = []
    for name in part.replace(_ANY, _ANY_STAND_IN).split("/"):
        first, *between = name.split(f"{_ANY_STAND_IN}*")
        if between:
            places = [first_place(f"{_ANY_STAND_IN}*?", piece) for piece in between[:-1] if piece]
            first = f"{first}{''.join(places)}{_ANY_STAND_IN}*{between[-1]}"
        names.append(first)
    return "/".join(names).replace(_ANY_STAND_IN, _ANY)


def _with_stand_ins(body: str) -> tuple[str, dict[str, str]]:
    """The pattern with one character for each bracket and unusual white space, and what each stands for."""
    out: list[str] = []
    classes: dict[str, str] = {}

    def stand_in(regex: str) -> None:
        mark = chr(_FIRST_STAND_IN + len(classes))
        classes[mark] = regex
        out.append(mark)

    at = 0
    while at < len(body):
        character = body[at]
        at += 1
        if character == "[":
            allowed, at = bracket(body, at)
            stand_in(regex_class(allowed - {ord("/")}))
            continue
        escaped = character == "\\"
        if escaped:
            if at == len(body):
                raise ValueError("it ends with a backslash")
            character = body[at]
            at += 1
        if character.isspace() and character != " ":
            stand_in(re.escape(character))
        elif escaped and character != "/":
            out.append(f"\\{character}")
        else:
            out.append(character)
    return "".join(out), classes


def _any(patterns: Sequence[re.Pattern[str]]) -> re.Pattern[str] | None:
    if not patterns:
        return None
    return re.compile("|".join(f"(?:{pattern.pattern})" for pattern in patterns), re.DOTALL)


def _without_trailing_spaces(line: str) -> str:
    """Drop spaces at the end, as git does, unless a backslash precedes them."""
    end = len(line.rstrip(" "))
    backslashes = end - len(line[:end].rstrip("\\"))
    return line[: end + 1] if backslashes % 2 else line[:end]


def _read(file: Path) -> str:
    """Read an ignore file, one character per byte; empty if there is none. As in git, a link is not followed."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            data = stream.read(_MAX_IGNORE_FILE + 1)
    except (FileNotFoundError, IsADirectoryError):
        return ""
    except OSError as error:
        if file.is_symlink():
            return ""
        raise LocalFileError(
            f"{file}: {error.strerror}", hint=f"make it readable: chmod u+r '{file}'", path=str(file)
        ) from error
    if len(data) > _MAX_IGNORE_FILE:
        raise IgnorePatternError(
            f"an ignore file has at most {_MAX_IGNORE_FILE:,} bytes", where=str(file), path=str(file)
        )
    return data.decode("latin-1")


def _shown(line: str) -> str:
    return line.encode("latin-1").decode("utf-8", "replace")
