"""Says what a job wrote outside of its folders, which is removed with the code, and which sets have no mark."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from blobsync.base.formatting import count_text, printable, size_text
from blobsync.local.names import is_temporary
from blobsync.node.job import NodeJob, write_text

# The log names at most so many files, the largest ones, of at most so many.
_NAMED = 5
_LOOKED_AT = 100_000
# Python's and other programs' own, which nobody misses.
_CACHES = frozenset({"__pycache__", ".cache", ".ipynb_checkpoints", ".triton", ".mypy_cache", ".pytest_cache"})


def say_left_behind(job: NodeJob, code: int) -> None:
    """Say once, before the job's code is removed from this node, what was written beside it since the node was ready.

    ``code`` is what the command ended with.
    """
    said = job.beside("left-behind")
    if not job.removes_root(code) or said.exists():
        return
    with suppress(OSError):
        found = sorted(_written(job), reverse=True)
        if found:
            job.say(_sentence(job, found))
            write_text(said, "")


def say_unmarked(job: NodeJob, names: Collection[str]) -> None:
    """Say at the end which sets got no mark, so that no restart takes them."""
    if names:
        shown = ", ".join([*map(printable, sorted(names)[:_NAMED]), *(["..."] if len(names) > _NAMED else [])])
        job.say(f"left without a mark: {count_text(len(names), 'checkpoint')}: {shown}; blobsync checkpoints says why")


def _written(job: NodeJob) -> Iterator[tuple[int, str]]:
    """Size (bytes) and path of each file that was written since the node was ready."""
    since, root = job.beside("ready").stat().st_mtime_ns, str(job.root)
    own = {os.path.join(root, entry.name) for entry in job.spec.folders}
    left = _LOOKED_AT
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _CACHES and os.path.join(folder, name) not in own]
        for name in names:
            left -= 1
            if left < 0:
                return
            with suppress(OSError):
                file = Path(folder, name)
                found = file.lstat()
                is_data = stat.S_ISREG(found.st_mode) and not is_temporary(name) and file.suffix != ".pyc"
                if is_data and found.st_ctime_ns > since and str(file) not in own:
                    yield found.st_size, file.relative_to(root).as_posix()


def _sentence(job: NodeJob, found: list[tuple[int, str]]) -> str:
    names = [printable(name) for _, name in found[:_NAMED]]
    more = ", ..." if len(found) > _NAMED else ""
    count = f"{count_text(len(found), 'file')}, {size_text(sum(size for size, _ in found))}"
    # What uploads comes first: a linked folder most often holds the data that the job reads.
    entries = [entry for mode in ("upload", "link", "mount") for entry in job.folders(mode)]
    kept = next((entry.name for entry in entries if not entry.read_only), "")
    folder = next((name.partition("/")[0] for _, name in found if "/" in name), "")
    ways = [f"write them below {kept}/"] if kept else []
    ways += [f"add {printable(folder)}_folder with mode: upload to the cluster file"] if folder else []
    hint = f"; to keep such files {', or '.join(ways)}" if ways else ""
    return f"left behind: {count} outside of the job's folders, removed with its code: {', '.join(names)}{more}{hint}"
