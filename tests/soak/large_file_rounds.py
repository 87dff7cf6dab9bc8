"""One large file that two projects write and read in turns, with changes of every kind and kill -9 under way."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.world import Container, Done, Project, kill_tree, sha256
from tests.servers.fault_proxy import FaultHandle

_MIB = 1 << 20
# Above 16 MiB a file goes in blocks over a near line.
_LEAST, _MOST = 16 * _MIB + 1, 26 * _MIB
# So slow that a kill finds work under way.
_SLOWLY = ("--cap-mbps", "150")
_LONGEST_LIFE = 1.6
_TRIES = 6
_DOWNLOADS = "SELECT name FROM unfinished WHERE kind = 'downloads'"

Change = Callable[[random.Random, bytes], bytes]


def _edit(chance: random.Random, body: bytes) -> bytes:
    at, size = chance.randrange(len(body)), chance.choice((1, 1000, 3 * _MIB))
    return body[:at] + chance.randbytes(min(size, len(body) - at)) + body[at + size :]


def _insert(chance: random.Random, body: bytes) -> bytes:
    at = chance.randrange(len(body))
    return body[:at] + chance.randbytes(chance.choice((1, 4096, _MIB))) + body[at:]


def _remove(chance: random.Random, body: bytes) -> bytes:
    at = chance.randrange(len(body))
    return body[:at] + body[at + chance.choice((1, 4096, _MIB)) :]


def _truncate(chance: random.Random, body: bytes) -> bytes:
    return body[: chance.randrange(len(body) // 2, len(body) + 1)]


def _append(chance: random.Random, body: bytes) -> bytes:
    return body + chance.randbytes(chance.choice((1, 5000, 4 * _MIB)))


def _zeros(chance: random.Random, body: bytes) -> bytes:
    at = chance.randrange(len(body)) // (2 * _MIB) * 2 * _MIB
    return body[:at] + bytes(min(6 * _MIB, len(body) - at)) + body[at + 6 * _MIB :]


def _turn(chance: random.Random, body: bytes) -> bytes:
    at = chance.randrange(len(body)) // (2 * _MIB) * 2 * _MIB
    return body[at:] + body[:at]


CHANGES: tuple[Change, ...] = (_edit, _edit, _insert, _remove, _truncate, _append, _append, _zeros, _turn)


@dataclass
class Account:
    """What the rounds came to. ``moved`` are the bytes that the proxy saw, ``whole`` those of the files."""

    rounds: int = 0
    kills: int = 0
    moved: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        shares = ", ".join(
            f"{word} {self.moved[word] >> 20:,} of {self.whole[word] >> 20:,} MiB" for word in sorted(self.whole)
        )
        return f"{self.rounds} rounds, {self.kills} kills; {shares}; {len(self.wrong)} wrong"


class Rounds:
    """The two projects, the container between them, and the proxy that counts."""

    def __init__(self, seed: int, projects: tuple[Project, Project], container: Container, line: FaultHandle) -> None:
        self._chance = random.Random(seed)
        self._projects = projects
        self._container = container
        self._line = line
        self.account = Account()
        self._body = self._chance.randbytes(_LEAST + self._chance.randrange(4 * _MIB))
        self._writer = 0

    def go(self) -> None:
        """One round: a change, an upload, a download; each may be killed, and changed again after the kill."""
        if self._chance.random() < 0.3:
            self._writer = 1 - self._writer
        writer, reader = self._projects[self._writer], self._projects[1 - self._writer]
        for _ in range(self._chance.choice((1, 1, 2))):
            self._change()
        self._write(writer)
        self._until_done(writer, "u", lambda: sha256(self._container.get("data/a.bin")))
        if self._chance.random() < 0.1:
            # A reader that has lost its old version, and its record of it.
            (reader.data / "a.bin").unlink(missing_ok=True)
        self._until_done(reader, "d", lambda: sha256((reader.data / "a.bin").read_bytes()))
        self.account.rounds += 1

    def _change(self) -> None:
        body = self._chance.choice(CHANGES)(self._chance, self._body)
        if len(body) < _LEAST:
            body += self._chance.randbytes(_LEAST - len(body) + self._chance.randrange(2 * _MIB))
        self._body = body[:_MOST]

    def _write(self, project: Project) -> None:
        project.data.mkdir(exist_ok=True)
        file = project.data / "a.bin"
        if self._chance.random() < 0.5 and file.exists():
            # In place, as databases do; otherwise as editors do.
            with file.open("r+b") as out:
                out.write(self._body)
                out.truncate()
        else:
            part = Path(f"{file}.new")
            part.write_bytes(self._body)
            part.replace(file)

    def _until_done(self, project: Project, word: str, found: Callable[[], str]) -> None:
        self._line.reset()
        words = (word, "data", "--engine", "direct")
        done: Done | None = None
        for left in reversed(range(_TRIES)):
            if left and self._chance.random() < 0.4 and self._killed(project, *words):
                self.account.kills += 1
                if word == "u" and self._chance.random() < 0.3:
                    self._change()
                    self._write(project)
                elif word == "d" and self._chance.random() < 0.3:
                    self._damage_part(project)
                continue
            done = project.json(*words, seconds=300)
            if done.code == 0:
                break
        self._judge(project, word, done, found)
        stats = self._line.stats()
        self.account.moved[word] += stats.uploaded if word == "u" else stats.downloaded
        self.account.whole[word] += len(self._body)

    def _killed(self, project: Project, *words: str) -> bool:
        """Start, and kill -9 at a random moment; False when it ended before."""
        process = project.start(*words, *_SLOWLY)
        deadline = time.monotonic() + self._chance.uniform(0.3, _LONGEST_LIFE)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        hit = process.poll() is None
        kill_tree(process.pid)
        project.finish(process)
        return hit

    def _damage_part(self, project: Project) -> None:
        """Damages the part file of a download, as a power cut or another program may."""
        for part in project.data.glob(".blobsync-*.part"):
            with part.open("r+b") as out:
                out.seek(self._chance.randrange(max(1, part.stat().st_size)))
                out.write(bytes(self._chance.randrange(1, _MIB)))

    def _judge(self, project: Project, word: str, done: Done | None, found: Callable[[], str]) -> None:
        here = f"round {self.account.rounds + 1}, {word}"
        if done is None or done.code != 0:
            self.account.wrong.append(f"{here}: not done: {done}")
        elif found() != sha256(self._body):
            self.account.wrong.append(f"{here}: exit 0, but other bytes: {done}")
        elif self._container.names("data/", uncommitted=True) != ["data/a.bin"]:
            self.account.wrong.append(f"{here}: blocks are left over")
        elif word == "d" and (left := [*project.data.glob(".*"), *project.unfinished(_DOWNLOADS)]):
            self.account.wrong.append(f"{here}: {left} are left over")
