"""Random histories of uploads, downloads, mirrors, removals, locks, undos and kills: no command ever loses a content,
and a locked download brings exactly what was locked."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError
from blobsync.plan.transfer_options import TransferOptions
from blobsync.project.trash import trash_of
from tests.fakes.store import Request
from tests.unit.test_undo import World

_NAMES = [f"f{number}" for number in range(8)]
_ALL = TransferOptions(mirror=True, max_delete_percent=100.0)
_LOCKED = _ALL._replace(overwrite=True, locked=True)
_MOVES = ("u", "u", "d", "mirror u", "mirror d", "overwrite u", "overwrite d")
_WORDS = (*_MOVES, "rm", "undo", "lock", "locked d")


class History:
    """A project in which somebody edits files, here and in the container, between the commands."""

    def __init__(self, root: Path, seed: int) -> None:
        self.chance, self.count = random.Random(seed), 0
        self.world = World(root, "versions" if seed % 2 else "deleted")
        # A lock brings old contents from versions alone.
        self.words = _WORDS if seed % 2 else _WORDS[:-2]
        self.locked: dict[str, str] = {}

    def contents(self) -> set[str]:
        """Everything that could be had back: here, in the container, in what it keeps, in the trash."""
        kept = {file.place.read_text() for run in trash_of(self.world.project.state).runs() for file in run.files}
        past = {blob.body.decode() for _, blob in self.world.store.past}
        return {*self.world.here().values(), *self.world.there().values(), *kept, *past}

    def edit(self) -> None:
        for name in self.chance.sample(_NAMES, self.chance.randint(1, 4)):
            self.count += 1
            file = self.world.root / "data" / name
            if self.chance.random() < 0.2:
                file.unlink(missing_ok=True)
            elif self.chance.random() < 0.3:
                self.world.store.add(f"store/data/{name}", f"theirs {self.count}".encode())
            else:
                file.write_text(f"mine {self.count}")

    def command(self) -> None:
        project, ids = self.world.project, [entry.id for entry in self.world.project.history()]
        word = self.chance.choice(self.words)
        if word == "undo" and ids:
            project.carry_out(project.plan_undo(self.chance.choice(ids[:5])))
        elif word == "lock":
            there = self.world.there()
            project.lock("data")
            self.locked = there
        elif word == "locked d":
            assert project.download("data", _LOCKED).ok
            assert self.world.here() == self.locked and project.verify("data", locked=True).ok
        elif word == "rm":
            project.remove(project.find_removal(f"data/{self.chance.choice(_NAMES)}"))
        else:
            options = _ALL if "mirror" in word else TransferOptions(overwrite="overwrite" in word)
            move = project.upload if word.endswith("u") else project.download
            move("data", options)

    def step(self) -> None:
        self.edit()
        before, left = self.contents(), self.chance.choice([0, *[1000] * 2, 3, 6])

        def count(request: Request) -> None:
            nonlocal left
            left -= request.operation in ("put", "get", "put_from_url", "delete")
            if left == 0:
                raise MemoryError("killed")

        self.world.store.before = count
        with suppress(BlobsyncError, MemoryError):
            self.command()
        self.world.store.before = lambda request: None
        if left <= 0:
            self.world.project.close()
            self.world.project = self.world.open()
        assert before - self.contents() == set()


def _play(tmp_path: Path, seed: int, steps: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(steps):
        history.step()
    history.world.project.close()


@pytest.mark.parametrize("seed", [1, 2])
def test_a_command_loses_nothing(tmp_path: Path, seed: int) -> None:
    _play(tmp_path, seed, steps=8)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_long_histories_lose_nothing(tmp_path: Path, seed: int) -> None:
    _play(tmp_path, 100 + seed, steps=30)
