"""Runs one case: prepares it, runs the tools in turn, and checks after each run that all files arrived."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cases import FAST, Case
from benchmarks.emulator import ACCOUNT, Emulator, emulator
from benchmarks.fast_server import fast_server
from benchmarks.measure import Series, run
from benchmarks.tools import Blobsync, Command, Place, Tool
from benchmarks.trees import change, count_files, put_aside
from tests.servers.delay_proxy import delay_proxy

_OF_SYNC = {"sync-up": "up", "delta": "up", "sync-down": "down"}


@dataclass
class Side:
    """One tool's project and current container in a case."""

    tool: Tool
    local: Path
    container: str = ""


class CaseRun:
    """A case with its servers."""

    def __init__(self, case: Case, tools: Mapping[str, Tool], scratch: Path) -> None:
        self.case = case
        self._tools = {name: tools[name] for name in case.tools if name in tools}
        self._ours = tools["blobsync"]
        self._scratch = scratch
        self._log = scratch / "output.log"
        self.series = {name: Series(name) for name in self._tools}
        if case.action == "start":
            self.series["python"] = Series("python")

    def work(self, rounds: int) -> list[Series]:
        """All rounds; every tool once in each."""
        if self.case.action == "start":
            self._start_ups(rounds)
        elif self.case.fresh_server:
            for number in range(rounds):
                for name in self._tools:
                    with self._server() as (server, endpoint):
                        self._prepare(server, endpoint, [name])
                        self._round(server, endpoint, number, [name])
        else:
            with self._server() as (server, endpoint):
                self._prepare(server, endpoint, list(self._tools))
                for number in range(rounds):
                    self._round(server, endpoint, number, list(self._tools))
        return list(self.series.values())

    @contextmanager
    def _server(self) -> Iterator[tuple[Emulator, str]]:
        with ExitStack() as held:
            start = fast_server if self.case.server == FAST else emulator
            server = held.enter_context(start(tls=self.case.tls))
            base = server.url
            if self.case.round_trip_ms:
                base = held.enter_context(delay_proxy(server.url, round_trip_ms=self.case.round_trip_ms)).url
            yield server, f"{base}/{ACCOUNT}"

    def _prepare(self, server: Emulator, endpoint: str, names: list[str]) -> None:
        self._sides = {name: Side(self._tools[name], self._local(name)) for name in names}
        if self.case.action in {"down", "list", "sync-down"}:
            container = self._filled(server)
            for side in self._sides.values():
                side.container = container
        # All links first: each moves the change time of the files that the others share, which blobsync looks at.
        for side in self._sides.values():
            self._clear(side)
            if self.case.action in {"up", "sync-up", "delta"}:
                self.case.tree.link(self._scratch / "trees", side.local)
        for side in self._sides.values():
            if self.case.action in {"sync-up", "delta"}:
                side.container = server.new_container()
            if self.case.action in _OF_SYNC:
                self._call(side, _OF_SYNC[self.case.action], endpoint, server)

    def _round(self, server: Emulator, endpoint: str, number: int, names: list[str]) -> None:
        # Another order each round: no tool always runs on what another left in the caches.
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            side = self._sides[name]
            if self.case.action == "up":
                side.container = server.new_container()
                shutil.rmtree(_project(side) / ".blobsync", ignore_errors=True)
            elif self.case.action == "down":
                self._clear(side)
            elif self.case.action == "delta":
                change(side.local, self.case.tree, self.case.changed, number)
            action = "sync-up" if self.case.action == "delta" else self.case.action
            sample = self._call(side, action, endpoint, server)
            self._check(side, server)
            self.series[name].samples.append(sample)

    def _call(self, side: Side, action: str, endpoint: str, server: Emulator):  # type: ignore[no-untyped-def]
        place = Place(endpoint, side.container, f"base/{side.local.name}", side.local, self.case.tree.single)
        command = side.tool.command(action, place)
        if side.tool is self._ours:
            command = replace(command, argv=[*command.argv, *self.case.words])
        # What the last run wrote goes to the disk now, and not while the next one is timed.
        os.sync()
        env, cwd = {**command.env, **server.environ}, command.cwd or side.local.parent
        sample = run(command.argv, env=env, cwd=cwd, log=self._log, server=server)
        if sample.exit_code:
            tail = self._log.read_text(errors="replace")[-2000:]
            sys.exit(f"{side.tool.name} failed in {self.case.key} with exit code {sample.exit_code}:\n{tail}")
        return sample

    def _check(self, side: Side, server: Emulator) -> None:
        tree = self.case.tree
        if self.case.action == "up":
            found = server.count(side.container)
        elif self.case.action == "down":
            found = (1, side.local.stat().st_size) if tree.single else count_files(side.local)
        else:
            return
        if found != (tree.files, tree.files * tree.size):
            sys.exit(f"{side.tool.name} in {self.case.key}: {found[0]} files, {found[1]} bytes arrived")

    def _filled(self, server: Emulator) -> str:
        """A container with the tree, MD5 properties included, put there by blobsync itself."""
        container = server.new_container()
        filler = Side(self._ours, self._local("filler"), container)
        self._clear(filler)
        self.case.tree.link(self._scratch / "trees", filler.local)
        self._call(filler, "up", f"{server.url}/{ACCOUNT}", server)
        return container

    def _local(self, name: str) -> Path:
        leaf = "file.bin" if self.case.tree.single else "tree"
        return self._scratch / "work" / name / "data" / leaf

    def _clear(self, side: Side) -> None:
        put_aside(_project(side), self._scratch / "aside", self.case.tree.files)
        side.local.parent.mkdir(parents=True)

    def _start_ups(self, rounds: int) -> None:
        ours = self._ours
        assert isinstance(ours, Blobsync)
        local = self._scratch / "work" / "start" / "data" / "x"
        local.parent.mkdir(parents=True, exist_ok=True)
        project = ours.project(Place(f"http://127.0.0.1:1/{ACCOUNT}", "container", "base/x", local, single=True))
        python = Command([sys.executable, "-c", "pass"])
        for _ in range(rounds * 3):
            for name, command in (("blobsync", ours.bare(*self.case.words)), ("python", python)):
                sample = run(command.argv, env=command.env, cwd=project, log=self._log, server=None)
                if sample.exit_code:
                    sys.exit(f"{command.argv} ended with {sample.exit_code}")
                self.series[name].samples.append(sample)


def _project(side: Side) -> Path:
    return side.local.parent.parent
