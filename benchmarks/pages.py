"""Speed of the web page, ``history`` and ``status`` with much data: ``python -m benchmarks.pages``.

CPU time is that of blobsync alone: the service that it lists is another process, which makes its answers up. Pages are
asked for in this process, without a browser. Seconds on the clock count only on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import yaml

from benchmarks.measure import run
from benchmarks.tools import Blobsync
from blobsync.jobs.history import History
from blobsync.jobspec.spec import JobRef, JobSpec
from blobsync.local.state_dir import open_state_dir
from blobsync.project.transfer_history import TransferEntry, TransferLog
from blobsync.web.open_project import Source
from tests.fakes.web_pages import WebPages
from tests.servers.listing_server import listing_server, name_of

_ENTRIES = 5


def _serve(total: int, per_folder: int, told: Connection) -> None:
    with listing_server(total, per_folder) as url:
        told.send(url)
        told.recv()


@contextmanager
def service(total: int, per_folder: int) -> Iterator[str]:
    """A service that lists ``total`` blobs, in a process of its own."""
    ours, its = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(total, per_folder, its))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send("stop")
        process.join()


class Pages:
    """One scratch folder with a project for each figure."""

    def __init__(self, scratch: Path, rounds: int) -> None:
        self._scratch = scratch
        self._rounds = rounds
        self._environ = {**os.environ, "HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch / "config")}
        self._ours = Blobsync(scratch)

    def browse(self, blobs: int) -> None:
        with service(blobs, blobs) as url:
            pages = self._pages(self._project("browse", url, {"data": "base/tree"}))
            address = "/browse?path=data/f00000"

            def listed() -> None:
                while f"{blobs:,} names" not in pages.get(address).text:
                    time.sleep(0.5)

            first = _cpu(listed)
            renewed = self._median(lambda: pages.get(address))
            last = self._median(lambda: pages.get(f"{address}&sort=-there&page={(blobs - 1) // 200}"))
            pages.close()
        _tell(f"a container folder of {blobs:,} blobs: listed, compared and shown", first)
        _tell("the same: its page once more", renewed)
        _tell("the same: its last page, sorted by size", last)

    def jobs(self, count: int) -> None:
        root = self._project("jobs", "http://127.0.0.1:9", {"data": "base"})
        history = History(open_state_dir(root, self._environ).jobs_file)
        for number in range(count):
            spec = JobSpec(f"me_{number}_0badcafe", ("python", "train.py", str(number)), "aml", "local")
            history.add(spec, JobRef(spec.run_id, str(number), "/x"), "local")
        pages = self._pages(root)
        for title, address in (
            ("first page", "/jobs"),
            ("last page", f"/jobs?page={count // 50}"),
            ("one word of the command", f"/jobs?text={count - 7}"),
        ):
            assert pages.get(address).status == 200
            _tell(f"{count:,} jobs: {title}", self._median(partial(pages.get, address)))
        pages.close()

    def transfers(self, count: int, before: int) -> None:
        root = self._project("transfers", "http://127.0.0.1:9", {"data": "base"})
        state = open_state_dir(root, self._environ)
        log, now = TransferLog(state.root / "jobs.sqlite"), time.time()
        for number in range(count + before):
            began = now - number * (86000 / count if number < count else 600)
            entry = TransferEntry("upload", ("data",), bytes=10**6, receipt=f"{number}.json", began=began)
            log.write(entry.ended("done", transferred=10))
            (state.folder("receipts") / f"{number}.json").write_text("{}")
        pages = self._pages(root)
        pages.get("/transfers")
        _tell(
            f"{count} transfers of a day, {before:,} before: their page", self._median(lambda: pages.get("/transfers"))
        )
        pages.close()
        self._command(root, "history --since 1d", "history", "--since", "1d")

    def status(self, files: int) -> None:
        each = files // _ENTRIES
        folders = {f"set{number}": f"base/tree/f{number:05}" for number in range(_ENTRIES)}
        with service(files, each) as url:
            root = self._project("status", url, folders)
            for number in range(files):
                name = name_of(number, each)
                file = root / f"set{int(name[1:6])}" / name[7:]
                file.parent.mkdir(exist_ok=True)
                file.touch()
            # They are there already: each gets its record, and none moves.
            title = f"u --all, {_ENTRIES} folder entries, {files:,} files"
            self._command(root, title, "u", "--all", rounds=1)
            self._command(root, "status, nothing changed", "status")
            for index, number in enumerate(range(0, files, max(1, files // 100))):
                file = root / f"set{number // each}" / name_of(number, each)[7:]
                file.write_text("changed") if index % 2 else file.unlink()
                file.with_name(f"new{number}").touch()
            self._command(root, "status, 100 files changed or gone and 100 new here", "status", code=3)
            self._command(root, "status --fresh", "status", "--fresh", code=3)
            pages = self._pages(root)
            began, cpu = time.perf_counter(), _cpu(lambda: pages.get("/"))
            _tell("the Project page, opened for the first time", cpu, time.perf_counter() - began)
            pages.close()

    def _command(self, root: Path, title: str, *words: str, rounds: int = 0, code: int = 0) -> None:
        samples = [
            run([*self._ours.program, *words], env=self._environ, cwd=root, log=self._scratch / "output", server=None)
            for _ in range(rounds or self._rounds)
        ]
        if {sample.exit_code for sample in samples} != {code}:
            sys.exit((self._scratch / "output").read_text(errors="replace")[-2000:])
        cpu, wall = (statistics.median(getattr(each, name) for each in samples) for name in ("cpu", "wall"))
        _tell(f"blobsync {title}", cpu, wall)

    def _median(self, work: Callable[[], object]) -> float:
        return statistics.median(_cpu(work) for _ in range(self._rounds))

    def _project(self, name: str, url: str, folders: Mapping[str, str]) -> Path:
        root = self._scratch / name
        account = {"account_name": "bench", "container_name": "box", "account_key": "YmVuY2htYXJr"}
        entries = {
            f"{prefix}_folder": {"azure_blob_config_file": "aux_data/configs/store.yaml", "path": path}
            for prefix, path in folders.items()
        }
        for file, value in (
            ("configs/store.yaml", {**account, "blob_endpoint": f"{url}/bench"}),
            ("aml/aml.yaml", {"config_param": entries}),
        ):
            path = root / "aux_data" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(value))
            path.chmod(0o600)
        return root

    def _pages(self, root: Path) -> WebPages:
        return WebPages(Source(root, root, None, "aml", {}, self._environ), self._scratch)


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _tell(title: str, cpu: float, wall: float | None = None) -> None:
    clock = "" if wall is None else f", {wall:5.2f} s on the clock"
    print(f"{title:<68} {cpu * 1e3:8.1f} ms CPU{clock}", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__)
    parser.add_argument("--blobs", type=int, default=100_000, help="in one folder of the container")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--transfers", type=int, default=200, help="of one day")
    parser.add_argument("--before", type=int, default=5_000, help="transfers of earlier days")
    parser.add_argument("--files", type=int, default=20_000, help=f"in {_ENTRIES} folder entries")
    parser.add_argument("--rounds", type=int, default=7, help="of which the median counts")
    options = parser.parse_args(argv)
    scratch = Path(tempfile.mkdtemp(prefix="blobsync-pages-"))
    try:
        pages = Pages(scratch, options.rounds)
        pages.browse(options.blobs)
        pages.jobs(options.jobs)
        pages.transfers(options.transfers, options.before)
        pages.status(options.files)
    finally:
        shutil.rmtree(scratch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
