"""Which code this user's jobs may run without a question: ``$XDG_CONFIG_HOME/blobsync/trusted-code/``.

Anyone who can write to the container of ``code_path`` can put other code there, with a matching digest. So the digests
of what ``init`` published from here, and of others' code that the user trusts, are recorded outside the project and the
container, which cannot grant trust themselves. A digest means one content; no container or person is trusted. Each
project, by its path, has a file of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from blobsync.base.errors import UsageError
from blobsync.base.plain_json import made_of, parse_object
from blobsync.base.records import NamedTuple, dataclass
from blobsync.base.user_folders import config_home, locked_own, naming_damage, read_own, write_own

# How many uploads of a project are remembered; the last one of each code_path always is.
_KEPT = 100
_DIGEST = re.compile(r"[0-9a-f]{64}")


class PublishedCode(NamedTuple):
    """``place`` is the URL of a ``code_path``; ``at`` is in seconds since 1970."""

    place: str
    digest: str
    at: float


@dataclass(frozen=True, slots=True)
class KnownCode:
    """What is recorded for one project: what was published from here, oldest first, and the trusted digests."""

    published: tuple[PublishedCode, ...] = ()
    trusted: tuple[str, ...] = ()

    def last(self, place: str) -> PublishedCode | None:
        """The last upload to this ``code_path``; if there was none, the last one of the project."""
        there = [one for one in self.published if one.place == place] or self.published
        return there[-1] if there else None

    def find(self, digest: str) -> PublishedCode | None:
        """The last upload of this digest from here."""
        return next((one for one in reversed(self.published) if one.digest == digest), None)


def is_digest(text: str) -> bool:
    """Whether it has the form of a code archive's digest."""
    return _DIGEST.fullmatch(text) is not None


def demand_digest(text: str, what: str) -> str:
    """The digest, in lower case. Raises ``UsageError``; its sentence starts with ``what``."""
    digest = text.strip().lower()
    if not is_digest(digest):
        raise UsageError(
            f"{what} {text!r}: not a digest of code, which has 64 hexadecimal digits",
            hint="the error that refused the code shows it, as does code_digest of 'blobsync init --json'",
        )
    return digest


def trust_code_command(digest: str) -> str:
    """The command that trusts code."""
    return f"blobsync config trust-code {digest}"


def trusted_code_file(project: Path, environ: Mapping[str, str]) -> Path:
    """Where it is kept for the project at ``project``."""
    name = hashlib.sha256(_name(project).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return config_home(environ) / "trusted-code" / f"{name}.json"


def load_known_code(project: Path, environ: Mapping[str, str]) -> KnownCode:
    """What is known of the project at ``project``. Raises ``ConfigError``."""
    file = trusted_code_file(project, environ)
    text = read_own(file)
    if text is None:
        return KnownCode()
    with naming_damage(file, f"remove {file}; 'blobsync init' records the project's code again"):
        entry = parse_object(text)
        if entry["project"] != _name(project):
            raise ValueError("of another project")
        return made_of(KnownCode, entry, newer=True)


def record_published(project: Path, place: str, digest: str, environ: Mapping[str, str]) -> None:
    """``digest`` is what this user has just put at ``place``. Raises ``ConfigError``."""
    before = load_known_code(project, environ).last(place)
    if before is None or (before.place, before.digest) != (place, digest):
        new = PublishedCode(place, digest, time.time())
        _change(project, environ, lambda known: replace(known, published=_newest((*known.published, new))))


def trust_code(project: Path, digests: Iterable[str], environ: Mapping[str, str]) -> None:
    """Trust these digests for jobs of the project from now on. Raises ``ConfigError``."""
    new = tuple(digests)
    _change(project, environ, lambda known: replace(known, trusted=tuple(dict.fromkeys((*known.trusted, *new)))))


def forget_code(project: Path, digests: Iterable[str], environ: Mapping[str, str]) -> None:
    """Stop trusting these digests. Raises ``UsageError`` for one that was not trusted, and ``ConfigError``."""
    gone = tuple(digests)

    def change(known: KnownCode) -> KnownCode:
        strange = [digest for digest in gone if digest not in known.trusted]
        if strange:
            raise UsageError(
                f"{strange[0]} is not trusted", hint="'blobsync config trust-code' lists what jobs may run"
            )
        return replace(known, trusted=tuple(digest for digest in known.trusted if digest not in gone))

    _change(project, environ, change)


def _newest(published: tuple[PublishedCode, ...]) -> tuple[PublishedCode, ...]:
    last = {one.place: one for one in published}
    return tuple(
        one for number, one in enumerate(published, _KEPT - len(published)) if number >= 0 or one in last.values()
    )


def _change(project: Path, environ: Mapping[str, str], change: Callable[[KnownCode], KnownCode]) -> None:
    """Read, change and write in one step: two commands at once must not undo each other."""
    file = trusted_code_file(project, environ)
    with locked_own(file):
        known = change(load_known_code(project, environ))
        published = [list(one) for one in known.published]
        document = {"blobsync_trusted_code": 1, "project": _name(project), "published": published}
        write_own(file, json.dumps({**document, "trusted": known.trusted}, indent=1))


def _name(project: Path) -> str:
    return os.path.realpath(project)
