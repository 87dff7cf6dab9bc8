"""Rounds in which a job that trains is killed and started elsewhere, and what has to hold in each."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from azure.core.exceptions import ResourceNotFoundError

from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobspec.spec import CodeRef, FolderLink, JobSpec
from tests.e2e.world import Container, sha256
from tests.fakes.jobs import zip_of
from tests.fakes.lineages import content, sent
from tests.servers.forked import start_module
from tests.waiting import wait_until

TRAINERS = Path(__file__).with_name("trainers")


@dataclass
class Tally:
    """What the rounds of a test came to."""

    rounds: int = 0
    restores: int = 0
    lost: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        lost = f"{sum(self.lost)} in all, {max(self.lost, default=0)} at most"
        return f"{self.rounds} rounds, {self.restores} restores, steps lost: {lost}"


@dataclass
class Training:
    """A job whose program is killed; ``folder`` is the test's, in which each start has a node of its own."""

    folder: Path
    container: Container
    sas: str
    argv: tuple[str, ...]
    rule: CheckpointRule
    tally: Tally = field(default_factory=Tally)
    seed: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        body, digest = zip_of({"here.txt": ""})
        self.container.put("code/project.zip", body)
        url = f"{self.container.service}/{self.container.account}/{self.container.name}"
        entry = FolderLink("output", url, "mine/output", "upload", checkpoints=self.rule)
        self.spec = JobSpec(
            "me_1_0badcafe",
            self.argv,
            "here",
            "slurm",
            code=CodeRef(url, "code/project.zip", digest),
            folders=(entry,),
        )
        self.url = url
        self.starts = 0

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    def told(self) -> list[dict[str, Any]]:
        """What the programs told, past blobsync; see ``trainers/ledger.py``."""
        found: list[dict[str, Any]] = []
        for line in self.ledger.read_text().splitlines() if self.ledger.exists() else ():
            # One that is being written, or was cut off by a kill, is none.
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def start(self) -> Node:
        """Start the job on another node."""
        place = self.folder / f"node{self.starts}"
        (place / "run").mkdir(parents=True)
        (place / "run/job.json").write_text(self.spec.to_json())
        (place / "run/secrets.json").write_text(json.dumps({"sas": {self.url: self.sas}, "env": sent(self.spec)}))
        words = (
            *("node", "--job", str(place / "run/job.json")),
            *("--secrets", str(place / "run/secrets.json"), "--run-dir", str(place / "run")),
            *("--root", str(place / "root"), "--keep-root", "always", "--sync-seconds", "0.3"),
        )
        environ = {**os.environ, "BLOBSYNC_ATTEMPT": str(self.starts), "LEDGER": str(self.ledger)}
        with (place / "out.txt").open("wb") as file:
            out = file.fileno()
            process = start_module("blobsync.node", words, folder=place, environ=environ, stdout=out, stderr=out)
        self.starts += 1
        return Node(place, process)

    def marks(self) -> dict[str, dict[str, Any]]:
        """The marks in the container by their stored names, read past blobsync."""
        names = self.container.names(".blobsync/checkpoints/")
        # What nodes say to each other lies deeper.
        sets = [name for name in names if name.count("/") == 4]
        found = []
        for name in sets:
            # Rotation may have let one go since the listing.
            with suppress(ResourceNotFoundError):
                found.append(content(self.container.get(name)))
        return {each["stored"]: each for each in found}

    def last_step(self) -> int:
        """The last step whose mark stands, by what the files of the sets say."""
        return max((self.step_of(each) for each in self.marks().values()), default=0)

    def step_of(self, mark: Mapping[str, Any]) -> int:
        if mark["step"] is not None:
            return int(mark["step"])
        there = sha256(self.container.get(f"mine/output/{mark['stored']}"))
        saved = [each["saved"] for each in self.told() if "saved" in each and each["files"].get("") == there]
        return int(saved[0]) if saved else 0

    def round(self, how: str, seconds: tuple[float, float], *, after_mark: bool = False) -> None:
        """Start elsewhere, check what came back, kill at a random moment, and check what the container has.

        ``after_mark``: not before a set is marked, so that the next start has one to go on from.
        """
        before, known = self.last_step(), len([each for each in self.told() if "started" in each])
        reached = max((each["saved"] for each in self.told() if "saved" in each), default=0)
        node = self.start()
        try:
            started = self.wait_for_start(node, known)
            step = started["started"]
            assert step >= before, f"went back to {step}, although {before} was marked\n{node.log()}"
            self.tally.rounds += 1
            if started["restored"]:
                self.tally.restores += 1
                assert self.was_written(started["restored"], started["files"]), f"{started}\n{node.log()}"
            self.tally.lost.append(max(0, reached - step))
            if after_mark:
                marks = len(self.marks())
                assert wait_until(lambda: len(self.marks()) != marks or self.last_step() > before, seconds=120), (
                    node.log()
                )
            time.sleep(self.chance.uniform(*seconds))
            node.kill(how)
        finally:
            node.end()
        self.check_marks(node)

    def wait_for_start(self, node: Node, known: int) -> dict[str, Any]:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            starts = [each for each in self.told() if "started" in each]
            if len(starts) > known:
                return starts[-1]
            assert node.process.poll() is None, node.log()
            time.sleep(0.02)
        raise AssertionError(f"the program did not start\n{node.log()}")

    def was_written(self, name: str, files: Mapping[str, str]) -> bool:
        """Whether a program wrote a set of these very files (SHA-256) and no others under this name, whole."""
        return any(each.get("set") == name and each["files"] == dict(files) for each in self.told())

    def check_marks(self, node: Node) -> None:
        """Every marked set is in the container as it was written, whole."""
        for stored, mark in self.marks().items():
            lead = f"mine/output/{stored}"
            there = {
                each["path"]: sha256(self.container.get(f"{lead}/{each['path']}" if each["path"] else lead))
                for each in mark["files"]
            }
            assert self.was_written(mark["set"], there), f"{stored} is not what was written\n{node.log()}"


@dataclass
class Node:
    """One start: its files, and the process of blobsync."""

    place: Path
    process: subprocess.Popen[str]

    def log(self) -> str:
        files = (self.place / "out.txt", *self.place.glob("run/*_logs/*"))
        return "\n".join(path.read_text(errors="replace") for path in files)[-6000:]

    def programs(self) -> list[int]:
        """The processes below blobsync's."""
        found, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    below = [int(word) for word in tasks.read_text().split()]
                    found += below
                    waiting += below
        return found

    def kill(self, how: str) -> None:
        """Kill the ``program``, blobsync's ``runner``, or ``both``."""
        programs = self.programs()
        if how in ("runner", "both"):
            self.process.kill()
        for pid in programs if how in ("program", "both") else ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if how == "runner":
            # The program goes on for a moment without blobsync, as it does on a node.
            time.sleep(0.2)
            for pid in programs:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Wait for blobsync's last round, and let nothing of this start run on."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        for pid in (*self.programs(), self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
