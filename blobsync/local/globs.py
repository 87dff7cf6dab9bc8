"""Glob patterns: the parts that git and zip have in common, and zip's own patterns.

Both compare bytes. Strings here have one character (U+0000 to U+00FF) for each byte of a name, so that
regular expressions on them count as git and zip do.

``fnmatch`` and ``glob`` of the standard library differ (``*`` always or never matches a slash, no ``**`` of
git's, no classes by name), and no package has zip's; pathspec has git's and is what ``local.ignore_patterns`` uses.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import string
from collections.abc import Sequence

from blobsync.base.errors import IgnorePatternError
from blobsync.base.records import dataclass

# Group names are unique across all patterns, which are joined to one expression.
_GROUPS = itertools.count()

# No path is longer; compiling an expression takes time.
MAX_PATTERN_BYTES = 4096

_ALL_BYTES = frozenset(range(1, 256))


def _ascii(characters: str) -> frozenset[int]:
    return frozenset(characters.encode())


# git's wildmatch.c with git's own, locale-free ctype table.
_POSIX_CLASSES = {
    "alnum": _ascii(string.ascii_letters + string.digits),
    "alpha": _ascii(string.ascii_letters),
    "blank": _ascii(" \t"),
    "cntrl": frozenset((*range(1, 32), 127)),
    "digit": _ascii(string.digits),
    "graph": frozenset(range(33, 127)),
    "lower": _ascii(string.ascii_lowercase),
    "print": frozenset(range(32, 127)),
    "punct": _ascii(string.punctuation),
    "space": _ascii(" \t\n\r"),
    "upper": _ascii(string.ascii_uppercase),
    "xdigit": _ascii(string.hexdigits),
}


@dataclass(frozen=True, slots=True)
class ZipExclude:
    """One ``-x`` pattern of ``zip``: ``*`` and ``?`` match ``/`` as well, and the whole path must match."""

    pattern: str
    regex: re.Pattern[str]

    def leaves_out(self, path: str, *, folder: bool) -> bool:
        """Whether a file, or everything below a folder, is excluded."""
        if folder:
            # A pattern that ends in a star and matches the folder's name matches all that begins with it.
            open_ended = self.pattern.endswith("*") and not self.pattern.endswith("\\*")
            return open_ended and self._matches(f"{path}/")
        return self._matches(path)

    def _matches(self, path: str) -> bool:
        return self.regex.fullmatch(byte_text(path)) is not None


def zip_excludes(options: Sequence[str], config_file: str) -> tuple[tuple[ZipExclude, ...], tuple[str, ...]]:
    """The ``-x`` patterns of ``zip_options``, and the options that have no effect here.

    ACT pastes the list into a shell line, so the backslashes of ``\\*src/CMC/\\*`` are the shell's.
    """
    where = f"{config_file}: zip_options"
    try:
        words = shlex.split(" ".join(options))
    except ValueError as error:
        raise IgnorePatternError(str(error), where=where) from error
    found: list[ZipExclude] = []
    others: list[str] = []
    excluding = False
    for word in words:
        if word.startswith("-") or word == "@":
            excluding = word in {"-x", "--exclude"}
            if not excluding and word != "@":
                others.append(word)
        elif excluding:
            try:
                found.append(ZipExclude(word, re.compile(_zip_regex(byte_text(word)), re.DOTALL)))
            except ValueError as error:
                raise IgnorePatternError(f"bad pattern '{word}': {error}", where=where) from error
        else:
            others.append(word)
    return tuple(found), tuple(others)


def byte_text(text: str) -> str:
    """One character (U+0000 to U+00FF) for each byte that the file system has for ``text``."""
    return os.fsencode(text).decode("latin-1")


def bracket(text: str, at: int) -> tuple[frozenset[int], int]:
    """The bytes that a bracket expression matches; ``at`` is after its ``[``, the answer's after its ``]``."""
    unclosed = ValueError("'[' without a closing ']'")
    negated = text[at : at + 1] in {"!", "^"}
    at += negated
    allowed: set[int] = set()
    previous: int | None = None
    first = True
    while first or text[at : at + 1] != "]":
        first = False
        character = text[at : at + 1]
        if not character:
            raise unclosed
        named = re.compile(r"\[:([^\]]*):\]").match(text, at)
        if named:
            if named[1] not in _POSIX_CLASSES:
                raise ValueError(f"unknown character class '[:{named[1]}:]'")
            allowed |= _POSIX_CLASSES[named[1]]
            previous, at = None, named.end()
            continue
        is_range = character == "-" and previous is not None and text[at + 1 : at + 2] not in {"", "]"}
        at += is_range
        at += text[at : at + 1] == "\\"
        if at >= len(text):
            raise unclosed
        code = ord(text[at])
        at += 1
        if is_range and previous is not None:
            allowed.update(range(previous, code + 1))
            previous = None
        else:
            allowed.add(code)
            previous = code
    return frozenset(_ALL_BYTES - allowed if negated else allowed), at + 1


def regex_class(codes: frozenset[int]) -> str:
    """A regular expression for one of these bytes; if there are none, one that never matches."""
    starts = [code for code in sorted(codes) if code - 1 not in codes]
    ends = [code for code in sorted(codes) if code + 1 not in codes]
    # As ranges: one by one, hundreds of brackets in a pattern take seconds to compile.
    return "[" + "".join(f"\\x{a:02x}-\\x{b:02x}" for a, b in zip(starts, ends, strict=True)) + "]" if codes else "(?!)"


def first_place(star: str, regex: str) -> str:
    """``star`` and then ``regex``, matched only at the first place where it fits.

    For every star but the last one, the first match is as good as any other. So matching takes time
    proportional to pattern and name; with backtracking, ``*a*a*a*b`` takes the fourth power of the name's length.
    A group in a lookahead that is then referred to is tried once (``(?>...)`` needs Python 3.11).
    """
    name = f"_{next(_GROUPS)}"
    return f"(?=(?P<{name}>{star}{regex}))(?P={name})"


def _zip_regex(pattern: str) -> str:
    if len(pattern) > MAX_PATTERN_BYTES:
        raise ValueError(f"it is longer than {MAX_PATTERN_BYTES:,} bytes")
    parts: list[str] = [""]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == "[":
            allowed, at = bracket(pattern, at)
            parts[-1] += regex_class(allowed)
        elif character == "\\" and at < len(pattern):
            parts[-1] += re.escape(pattern[at])
            at += 1
        elif character == "*":
            parts.append("")
        else:
            parts[-1] += "." if character == "?" else re.escape(character)
    first, *between = parts
    if not between:
        return first
    return first + "".join(first_place(".*?", part) for part in between[:-1] if part) + ".*" + between[-1]
