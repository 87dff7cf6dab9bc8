"""Cost of a changed file with fixed and content-defined block edges: ``python -m benchmarks.edges [--mib N]``.

Each case makes two versions of a file of a real kind; the table shows the bytes of the second that no block of the
first holds, as a share of the file: what an upload has to send. Kinds whose package is not installed (lmdb, pyarrow,
safetensors with numpy) are left out, and so are content-defined edges without ``pyfastcdc``.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import io
import random
import shutil
import sqlite3
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

_MIB = 1 << 20
_FIXED = (8, 4, 2, 1)
_CONTENT = (4, 1)


class Case(NamedTuple):
    """Writes the first version to the file, and changes it to the second; ``needs`` are packages."""

    title: str
    first: Callable[[Path, int], None]
    second: Callable[[Path, int], None]
    needs: tuple[str, ...] = ()


def _members(size: int) -> Iterator[tuple[str, bytes]]:
    chance = random.Random(1)
    number = 0
    while size > 0:
        length = chance.randrange(20_000, 2 * _MIB)
        yield f"d/{number:05}.bin", chance.randbytes(length)
        number += 1
        size -= length


def _tar(file: Path, members: Sequence[tuple[str, bytes]], mode: Any = "w") -> None:
    with tarfile.open(file, mode) as archive:
        for name, body in members:
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))


def _zip(file: Path, members: Sequence[tuple[str, bytes]], how: int) -> None:
    with zipfile.ZipFile(file, "w", how) as archive:
        for name, body in members:
            archive.writestr(zipfile.ZipInfo(name), body, how)


def _with_one_more(size: int) -> list[tuple[str, bytes]]:
    members = list(_members(size))
    members.insert(len(members) // 3, ("d/new.bin", random.Random(2).randbytes(300_000)))
    return members


def _rows(size: int) -> Iterator[tuple[int, str, float]]:
    chance = random.Random(3)
    for number in range(size // 220):
        yield number, chance.randbytes(100).hex(), chance.random()


def _sqlite(file: Path, size: int) -> None:
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b REAL)")
        db.executemany("INSERT INTO t VALUES (?, ?, ?)", _rows(size))
    db.close()


def _sql(*statements: str) -> Callable[[Path, int], None]:
    def run(file: Path, size: int) -> None:
        db = sqlite3.connect(file)
        for statement in statements:
            db.execute(statement)
            db.commit()
        db.close()

    return run


def _lmdb(file: Path, size: int, seed: int, count: int) -> None:
    lmdb = importlib.import_module("lmdb")
    chance = random.Random(seed)
    records = size // 1200
    with (
        lmdb.open(str(file), subdir=False, map_size=8 * size, lock=False, sync=False) as db,
        db.begin(write=True) as write,
    ):
        for number in chance.sample(range(records), count) if count else range(records):
            write.put(f"{number:08}".encode(), chance.randbytes(1000))


def _parquet(file: Path, size: int, change: Callable[[list[int]], list[int]]) -> None:
    arrow, parquet = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    chance = random.Random(4)
    numbers = change([chance.randrange(1 << 60) for _ in range(size // 9)])
    parquet.write_table(arrow.table({"n": numbers}), file, row_group_size=1 << 18, use_dictionary=False)


def _safetensors(file: Path, size: int, changed: Callable[[int], bool]) -> None:
    numpy, save = importlib.import_module("numpy"), importlib.import_module("safetensors.numpy").save_file
    layers = size // (4 * _MIB)
    tensors = {}
    for layer in range(layers):
        seed = layer + (1000 if changed(layer) else 0)
        tensors[f"layer.{layer:03}.weight"] = numpy.random.default_rng(seed).random((1024, 1024), dtype="float32")
    save(tensors, file)


def _lines(first: int, size: int) -> bytes:
    chance = random.Random(5)
    text = io.StringIO()
    for number in range(first, first + size // 80):
        text.write(f"2026-11-{number % 28 + 1:02}T10:00:00 INFO worker {number:09} took {chance.random():.9f} s ok\n")
    return text.getvalue().encode()


def _log(file: Path, size: int) -> None:
    file.write_bytes(_lines(0, size))


def _table(file: Path, size: int, *, extra: bool) -> None:
    with file.open("w", newline="") as out:
        writer = csv.writer(out)
        for row in _rows(size):
            if extra and row[0] == 1000:
                writer.writerow(("new", "row", 1))
            writer.writerow(row)


def _append(body: bytes) -> Callable[[Path, int], None]:
    def run(file: Path, size: int) -> None:
        with file.open("ab") as out:
            out.write(body)

    return run


def _cut_head(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[size // 10 :])


def _as_it_was(values: list[int]) -> list[int]:
    return values


def _last(size: int) -> Callable[[int], bool]:
    return lambda layer: layer >= size // (4 * _MIB) - 1


_SCATTERED = "UPDATE t SET b = 1 WHERE id IN (SELECT id FROM t ORDER BY a LIMIT 200)"
_MORE_ROWS = "INSERT INTO t (a, b) SELECT a, b FROM t WHERE id % 100 = 0"
_NUMPY = ("safetensors", "numpy")

CASES = (
    Case(
        "tar, a file appended",
        lambda file, size: _tar(file, list(_members(size))),
        lambda file, size: _tar(file, [("e", b"x" * _MIB)], "a"),
    ),
    Case(
        "tar, a file more in the middle",
        lambda file, size: _tar(file, list(_members(size))),
        lambda file, size: _tar(file, _with_one_more(size)),
    ),
    Case(
        "zip (stored), a file more in the middle",
        lambda file, size: _zip(file, list(_members(size)), zipfile.ZIP_STORED),
        lambda file, size: _zip(file, _with_one_more(size), zipfile.ZIP_STORED),
    ),
    Case("SQLite, 200 rows updated all over", _sqlite, _sql(_SCATTERED)),
    Case("SQLite, 200 neighbouring rows updated", _sqlite, _sql("UPDATE t SET b = 1 WHERE id BETWEEN 5000 AND 5200")),
    Case("SQLite, 1 % more rows", _sqlite, _sql(_MORE_ROWS)),
    Case("SQLite, rows deleted and VACUUM", _sqlite, _sql("DELETE FROM t WHERE id < 1000", "VACUUM")),
    Case(
        "LMDB, 200 records updated all over",
        lambda file, size: _lmdb(file, size, 1, 0),
        lambda file, size: _lmdb(file, size, 2, 200),
        ("lmdb",),
    ),
    Case(
        "Parquet, rows appended",
        lambda file, size: _parquet(file, size, _as_it_was),
        lambda file, size: _parquet(file, size, lambda values: [*values, *range(10_000)]),
        ("pyarrow",),
    ),
    Case(
        "Parquet, a row inserted",
        lambda file, size: _parquet(file, size, _as_it_was),
        lambda file, size: _parquet(file, size, lambda values: [*values[:1000], 1, *values[1000:]]),
        ("pyarrow",),
    ),
    Case(
        "safetensors, one training step",
        lambda file, size: _safetensors(file, size, lambda _: False),
        lambda file, size: _safetensors(file, size, lambda _: True),
        _NUMPY,
    ),
    Case(
        "safetensors, only the last layer trained",
        lambda file, size: _safetensors(file, size, lambda _: False),
        lambda file, size: _safetensors(file, size, _last(size)),
        _NUMPY,
    ),
    Case("log, appended", _log, _append(_lines(10**8, _MIB))),
    Case("log, its first tenth removed", _log, _cut_head),
    Case(
        "CSV, a row inserted",
        lambda file, size: _table(file, size, extra=False),
        lambda file, size: _table(file, size, extra=True),
    ),
)


def _fixed(size: int, body: bytes) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def _by_content(size: int, body: bytes) -> Iterator[bytes]:
    for chunk in importlib.import_module("pyfastcdc").FastCDC(size).cut_buf(body):
        yield body[chunk.offset : chunk.offset + chunk.length]


def _share(before: bytes, after: bytes, cut: Callable[[bytes], Iterator[bytes]]) -> float:
    known = {hashlib.sha256(block).digest() for block in cut(before)}
    new = 0
    for block in cut(after):
        digest = hashlib.sha256(block).digest()
        new += len(block) if digest not in known else 0
        known.add(digest)
    return new / len(after)


def _is_there(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edges", description=__doc__)
    parser.add_argument("--mib", type=int, default=128, help="about how large the files are (128)")
    size = parser.parse_args(argv).mib * _MIB
    ways = [(f"fixed {each} MiB", partial(_fixed, each * _MIB)) for each in _FIXED]
    if _is_there("pyfastcdc"):
        ways += [(f"FastCDC {each} MiB", partial(_by_content, each * _MIB)) for each in _CONTENT]
    title_row = " | ".join(title for title, _ in ways)
    print(f"| what changed | MiB | {title_row} |\n|---|---|{'---|' * len(ways)}", flush=True)
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-edges-"))
    spent = dict.fromkeys((title for title, _ in ways), 0.0)
    for case in CASES:
        if not all(map(_is_there, case.needs)):
            print(f"left out: {case.title}", file=sys.stderr)
            continue
        file = scratch / "file"
        file.unlink(missing_ok=True)
        case.first(file, size)
        before = file.read_bytes()
        case.second(file, size)
        after = file.read_bytes()
        cells = []
        for title, cut in ways:
            began = time.process_time()
            cells.append(f"{100 * _share(before, after, cut):.1f} %")
            spent[title] += time.process_time() - began
        print(f"| {case.title} | {len(after) >> 20} | {' | '.join(cells)} |", flush=True)
    shutil.rmtree(scratch)
    print("CPU seconds: " + ", ".join(f"{title} {seconds:.1f}" for title, seconds in spent.items()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
