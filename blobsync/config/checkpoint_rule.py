"""The sets of files of a folder entry that go up as one: which, when, how long each stays, and what a rule must say."""

from __future__ import annotations

from collections.abc import Iterator

from blobsync.base.lazy_regexes import pattern
from blobsync.base.records import dataclass
from blobsync.config.known_keys import RESTORE_CHOICES

_KEEP_BEST = pattern(r"[^:/][^:]*:[^:]+(:(min|max))?")
_STEP = pattern(r"[0-9]{1,18}")
_JOB_ID = pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointRule:
    """Which sets of files below a folder are uploaded as one, when each is complete, and how long it stays there.

    ``sets`` is a pattern on folders or single files (``run-*/checkpoint-*``). ``complete`` are the files whose presence
    says that the program is done with a set, or ``still``; empty: by kind of framework. ``settle_seconds`` is how long
    nothing may change in it (None: by ``complete``). ``restore`` is ``latest``, ``best``, ``own``, ``none`` or a step,
    ``restore_from`` the job whose sets a first start takes. ``keep_best`` is ``FILE:FIELD`` or ``FILE:FIELD:max``.
    ``upload_cores`` and ``cap_mbps`` (megabits, 10^6, a second) limit the uploads of sets.
    """

    sets: str
    complete: tuple[str, ...] = ()
    settle_seconds: int | None = None
    restore: str = "latest"
    restore_from: str = ""
    keep_last: int | None = None
    keep_every: int | None = None
    keep_best: str = ""
    upload_cores: int = 1
    cap_mbps: int | None = None

    def __repr__(self) -> str:
        return f"<CheckpointRule {self.sets!r}, restore {self.restore}>"

    @property
    def rotates(self) -> bool:
        """Whether sets are ever deleted from the container; only then a job gets the right to."""
        return bool(self.keep_last or self.keep_every or self.keep_best)


def wrong_in(rule: CheckpointRule, path: str) -> Iterator[tuple[str, str]]:
    """The keys of a rule that have no meaning, each with the reason."""
    if not path:
        yield "checkpoints", "needs an entry with a path: the container's root also holds the marks of the sets"
    if not _is_plain(rule.sets) or "**" in rule.sets:
        yield (
            "checkpoints",
            f"{rule.sets!a} is no pattern of folders or files below this one, such as run-*/checkpoint-*",
        )
    for text in rule.complete:
        if not _is_plain(text.removeprefix("../")):
            yield "complete", f"{text!a} names no file: write one of a set, ../NAME for one beside it, or still"
    if "still" in rule.complete and len(rule.complete) > 1:
        yield "complete", "still cannot be combined with names of files"
    if rule.restore == "best" and not rule.keep_best:
        yield "restore", "best needs keep_best, which says what is best"
    yield from _misshaped_in(rule)


def _misshaped_in(rule: CheckpointRule) -> Iterator[tuple[str, str]]:
    """The keys of a rule whose values do not have their form."""
    if rule.restore not in RESTORE_CHOICES and not _STEP.fullmatch(rule.restore):
        yield "restore", f"{rule.restore!a} is none of {', '.join(RESTORE_CHOICES)}, and no step"
    for key, form, example in (
        ("restore_from", _JOB_ID, "the whole id of a job"),
        ("keep_best", _KEEP_BEST, "FILE:FIELD or FILE:FIELD:max, such as trainer_state.json:best_metric"),
    ):
        given = getattr(rule, key)
        if given and not form.fullmatch(given):
            yield key, f"{given!a} is not {example}"
    for key in ("keep_last", "keep_every", "upload_cores", "cap_mbps"):
        if getattr(rule, key) == 0:
            yield key, "must be at least 1"


def _is_plain(text: str) -> bool:
    return not any(part in ("", ".", "..") for part in text.split("/"))
