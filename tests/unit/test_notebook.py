"""The progress bar in notebooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from blobsync.plan.progress import Progress
from blobsync.project.progress_listeners import NotebookBar, in_notebook


class Bar:
    """Stands in for tqdm: records what was drawn at the last refresh."""

    def __init__(self, **options: Any) -> None:
        self.n, self.total = 0, options["total"]
        self.unit, self.unit_scale = options["unit"], options["unit_scale"]
        self.phase, self.beside = options["desc"], ""
        self.drawn: list[tuple[str, int, int | None, str, str]] = []
        self.closed = False

    def set_description_str(self, text: str, *, refresh: bool) -> None:
        self.phase = text

    def set_postfix_str(self, text: str, *, refresh: bool) -> None:
        self.beside = text

    def refresh(self) -> None:
        self.drawn.append((self.phase, self.n, self.total, self.unit, self.beside))

    def close(self) -> None:
        self.closed = True


def _drawn(*told: Progress) -> list[Bar]:
    bars: list[Bar] = []

    def make(**options: Any) -> Bar:
        bars.append(Bar(**options))
        return bars[-1]

    bar = NotebookBar(make)
    for progress in told:
        bar(progress)
    bar.close()
    return bars


def test_a_transfer_has_one_bar_from_its_first_file_to_its_end() -> None:
    (bar,) = _drawn(
        Progress("surveying", 0.1, looked=3),
        Progress("moving", 0.5, files=1, files_expected=2, bytes=40, bytes_expected=100),
        Progress("moving", 0.9, files=2, files_expected=2, bytes=130, bytes_expected=100, failures=1),
    )
    assert bar.drawn == [
        ("moving", 40, 100, "B", "1 of 2 files"),
        ("moving", 100, 100, "B", "2 of 2 files, 1 failed"),
    ]
    assert bar.closed


def test_a_plan_without_bytes_counts_files_and_a_long_survey_is_shown() -> None:
    (bar,) = _drawn(
        Progress("surveying", 1.5, looked=30_000),
        Progress("deleting", 0.1, files=3, files_expected=9, bytes_expected=0),
    )
    assert bar.drawn == [
        ("surveying", 0, None, "B", "30,000 names"),
        ("deleting", 3, 9, " files", "3 of 9 files"),
    ]


def test_a_short_transfer_draws_nothing() -> None:
    assert _drawn(Progress("surveying", 0.1, looked=3), Progress("verifying", 0.2, looked=3)) == []


def test_only_a_kernel_is_a_notebook() -> None:
    def python(shell: object) -> dict[str, Any]:
        return {"IPython": SimpleNamespace(get_ipython=lambda: shell)}

    assert in_notebook(python(SimpleNamespace(kernel=object())))
    assert not in_notebook(python(SimpleNamespace())) and not in_notebook(python(None)) and not in_notebook({})
