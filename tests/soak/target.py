"""What one fuzzing target is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A reader of input from outside.

    ``make`` gets an empty folder and answers the function that takes one input. It may raise ``BlobsyncError`` and
    ``documented``; anything else is a fault. ``samples`` are valid inputs, ``words`` pieces of
    such inputs. ``tree`` says that inputs are JSON, of which single values are replaced as well.
    """

    name: str
    make: Callable[[Path], Callable[[bytes], None]]
    samples: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()
    documented: tuple[type[Exception], ...] = ()
    tree: bool = False


def ignoring(read: Callable[[bytes], object]) -> Callable[[Path], Callable[[bytes], None]]:
    """For a reader that needs no folder, and whose answer does not matter."""

    def make(_: Path) -> Callable[[bytes], None]:
        def run(data: bytes) -> None:
            read(data)

        return run

    return make


def text(data: bytes) -> str:
    """What a pipe or a file read as text gives."""
    return data.decode("utf-8", "replace")
