"""Rules for prose. A problem is a line and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tools.prose.texts import prose, sentences

WORDS = Path(__file__).with_name("words.txt")

# proselint's checks that are off, each with the reason.
_OFF = {
    # The pages show what terminals and code show: straight quotes, three dots.
    "typography",
    # Of dates; the pages have figures and ranges of versions.
    "dates_times",
}
_LONGEST = 60

# https://www.plainlanguage.gov/guidelines/words/use-simple-words-phrases/ has these and more.
_PLAIN = {
    "accomplish": "do",
    "accordingly": "so",
    "additional": "more",
    "additionally": "also",
    "ascertain": "find out",
    "at the present time": "now",
    "commence": "begin",
    "due to the fact that": "because",
    "endeavor": "try",
    "facilitate": "help",
    "for the purpose of": "for",
    "in accordance with": "by",
    "in addition": "also",
    "in order to": "to",
    "in the event of": "if",
    "initiate": "start",
    "leverage": "use",
    "methodology": "method",
    "note that": "(nothing)",
    "numerous": "many",
    "obtain": "get",
    "please": "(nothing)",
    "prior to": "before",
    "purchase": "buy",
    "simply": "(nothing)",
    "subsequently": "later",
    "sufficient": "enough",
    "terminate": "end",
    "utilize": "use",
    "whereas": "but",
    "with regard to": "about",
}
_WORDY = re.compile(rf"\b({'|'.join(sorted(_PLAIN, key=len, reverse=True))})\b", re.IGNORECASE)
_WORD = re.compile(r"(?<![\w.])[A-Za-z][a-z]{2,}(?:'[a-z]+)?(?!\w)")


class Problem(NamedTuple):
    """One place in a text, and what is wrong with it."""

    line: int
    what: str


def problems(markdown: str) -> list[Problem]:
    """All problems of a page, by line."""
    text = prose(markdown)
    return sorted([*_unknown_words(text), *_found_by_proselint(text), *_long_words(text), *_long_sentences(text)])


def known_words() -> list[str]:
    """Those of ``words.txt``: names and terms that no dictionary has."""
    return WORDS.read_text(encoding="utf-8").split()


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


@lru_cache(maxsize=1)
def _dictionary() -> frozenset[str]:
    from spellchecker import SpellChecker

    return frozenset(SpellChecker().word_frequency.words()) | {word.lower() for word in known_words()}


def _unknown_words(text: str) -> Iterator[Problem]:
    known = _dictionary()
    for found in _WORD.finditer(text):
        word = found[0].lower().removesuffix("'s")
        if word not in known:
            yield Problem(_line(text, found.start()), f"{found[0]}: misspelt, or a word for tools/prose/words.txt")


def _found_by_proselint(text: str) -> Iterator[Problem]:
    from proselint.checks import __register__
    from proselint.config import DEFAULT
    from proselint.registry import CheckRegistry
    from proselint.tools import LintFile

    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(__register__)
    wanted = {name: on and name not in _OFF for name, on in DEFAULT["checks"].items()}
    for result in LintFile("page", text).lint({**DEFAULT, "checks": wanted}):
        found = result.check_result
        yield Problem(result.pos[0], f"{found.message} ({found.check_path})")


def _long_words(text: str) -> Iterator[Problem]:
    for found in _WORDY.finditer(text):
        yield Problem(_line(text, found.start()), f"{found[0]}: {_PLAIN[found[0].lower()]} is plainer")


def _long_sentences(text: str) -> Iterator[Problem]:
    for line, sentence in sentences(text):
        count = len(sentence.split())
        if count > _LONGEST:
            yield Problem(line, f"a sentence of {count} words: {sentence[:60]}...")
