"""``--mirror`` in random projects: files that only the destination has are deleted, or the command says why not.

The worlds have two clusters whose folder entries lie in each other, patterns, links, and a history of transfers.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress
from pathlib import Path

import pytest

from blobsync.base.errors import BlobsyncError
from blobsync.base.locations import BlobLocation
from blobsync.config.mapping import resolve
from blobsync.config.model import Cluster, FolderEntry
from blobsync.plan.path_mapping import legs
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action, Direction, TransferPlan
from tests.fakes.project_context import World, account, cluster

NAMES = ("x", "y", "k", "t.tmp", "n", "n/x", "n/z", "n/deep/x", "s", "s/x", "s/n/x", "s/t.tmp", "l/x")
NESTED = ("data/W", "data/W/n", "data/W/n/deep", "data/W/s")
MIRROR = TransferOptions(mirror=True, max_delete_files=10**6, max_delete_percent=100.0)
ROUNDS, WORLDS = 5, 40


def entries(name: str, chance: random.Random) -> Cluster:
    """A cluster with ``data`` and some of the folders below it, each at its own path or below that of ``data``."""
    found = [FolderEntry("data", account(name), f"{name}/d", ignore=("*.tmp",) if chance.random() < 0.3 else ())]
    for prefix in NESTED:
        if chance.random() < 0.3:
            path = chance.choice([f"{name}/own/{prefix}", f"{name}/d/{prefix[5:]}"])
            ignore = ("*.tmp",) if chance.random() < 0.2 else ()
            found.append(FolderEntry(prefix, account(chance.choice([name, "third"])), path, ignore=ignore))
    return Cluster(name, f"aux_data/aml/{name}.yaml", Path("/nowhere"), folders=tuple(found))


def random_world(chance: random.Random, root: Path) -> World:
    world = World(root, entries("a", chance), entries("b", chance))
    folder = root / "data/W"
    folder.mkdir(parents=True)
    for name in chance.sample(NAMES, chance.randint(1, 6)):
        # ``n`` is a file or a folder, whichever comes first.
        with suppress(OSError):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(chance.randbytes(1))
    if chance.random() < 0.3:
        with suppress(OSError):
            (folder / "l").symlink_to(chance.choice(["s", "/etc/hostname", "/etc"]))
    assert world.there is not None
    for each in (world.here, world.there):
        for name in chance.sample(NAMES, chance.randint(0, 5)):
            found = resolve(f"data/W/{name}", cwd=root, root=root, cluster=each)
            world.store(found.remote.container.account).add(found.remote.name, chance.randbytes(1))
            if chance.random() < 0.3:
                # Where the outer entry would have it without the inner one.
                world.store(each.name).add(f"{each.name}/d/W/{name}", b"covered")
    for _ in range(chance.randint(0, 3)):
        turn(world, chance)
        options = TransferOptions(overwrite=chance.random() < 0.5)
        with suppress(BlobsyncError):
            world.run("u" if chance.random() < 0.7 else "d", "data/W/", options=options, copy=chance.random() < 0.4)
    turn(world, chance)
    return world


def turn(world: World, chance: random.Random) -> None:
    assert world.there is not None
    if chance.random() < 0.5:
        world.here, world.there = world.there, world.here


def only_there(world: World, *, copy: bool) -> set[str]:
    """Paths from the root of files at the destination that the source does not have."""
    context = world.context(copy=copy)
    found = set()
    for leg in legs(context, Direction.UP, ["data/W/"], MIRROR):
        end = leg.part.destination
        assert isinstance(end, BlobLocation)
        for name in world.store(end.container.account).blobs:
            if name.startswith(f"{end.name}/"):
                found.add(leg.part.path + name[len(end.name) :])
    return {path for path in found if not _is_at_source(world, path, copy=copy)}


def _is_at_source(world: World, path: str, *, copy: bool) -> bool:
    if not copy:
        return (world.root / path).is_file()
    assert world.there is not None
    found = resolve(path, cwd=world.root, root=world.root, cluster=world.there)
    return found.remote.name in world.store(found.remote.container.account).blobs


def is_reported(plan: TransferPlan, path: str) -> bool:
    """Whether a row of the plan, a line about its folder or the list of ignored files names it."""
    rows = {part.shown(action) for part, action in plan.each() if action.action is Action.SKIP}
    empty = [
        text.partition(": the source has nothing there")[0] for text in plan.warnings if "has nothing there" in text
    ]
    if path in rows or any(f"{path}/".startswith(f"{folder}/") for folder in empty):
        return True
    for text in plan.warnings:
        folder, excluded, reasons = text.partition(": --mirror keeps ")
        named = re.findall(r"[(,] ?([^ (),;]+)(?=[,)])", reasons)
        if excluded and path.startswith(f"{folder}/") and (path[len(folder) + 1 :] in named or "more)" in reasons):
            return True
    return False


@pytest.mark.parametrize("number", range(ROUNDS))
def test_files_only_at_the_destination_are_deleted_or_reported(number: int, tmp_path: Path) -> None:
    ran = left = 0
    for seed in range(number * WORLDS, (number + 1) * WORLDS):
        chance = random.Random(seed)
        world = random_world(chance, tmp_path / str(seed))
        copy = chance.random() < 0.5
        options = MIRROR._replace(overwrite=True)
        chosen = [options] * 3 + [options._replace(exclude=("x",)), options._replace(include=("x",))]
        try:
            plan = world.plan(
                "u", "data/W/", options=chance.choice([*chosen, options._replace(links="skip")]), copy=copy
            )
            result = world.carry_out(plan)
        except BlobsyncError:
            continue
        if result.ok:
            ran += 1
            there = only_there(world, copy=copy)
            left += len(there)
            assert [path for path in sorted(there) if not is_reported(plan, path)] == [], (
                f"seed {seed}: {plan.warnings}"
            )
    assert ran >= WORLDS / 4 and left, "these worlds show nothing"


def test_a_copy_from_a_folder_with_only_nested_entries_reports_what_it_leaves_out(tmp_path: Path) -> None:
    there = cluster("src", data=account("src"), data__W__n=account("third"))
    world = World(tmp_path, cluster("dst", data=account("dst")), there)
    world.store("third").add("store/data/W/n/a", b"1")
    world.store("dst").add("store/data/W/kept", b"2")
    result = world.run("u", "data/W/", options=MIRROR, copy=True)
    assert (result.ok, result.transferred, result.deleted) == (True, 1, 0)
    assert "data/W: the source has nothing there, so --mirror deletes nothing there" in result.plan.warnings


def test_each_reason_names_its_files(tmp_path: Path) -> None:
    ignoring = cluster("eu", data=account("eu"), data__n=account("third"))._replace()
    first, *others = ignoring.folders
    world = World(tmp_path, ignoring._replace(folders=(first._replace(ignore=("*.tmp",)), *others)))
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / name).write_bytes(b"1")
    for name in ("gone", "1.tmp", "2.tmp", "3.tmp", "4.tmp", "n/hidden", "big.bin"):
        world.store("eu").add(f"store/data/{name}", b"2")
    result = world.run("u", "data", options=MIRROR._replace(exclude=("*.bin",)))
    assert (result.ok, result.deleted) == (True, 1)
    (said,) = [text for text in result.plan.warnings if "excluded" in text]
    assert said == (
        "data: --mirror keeps 6 excluded files at the destination: 4 ignored by the folder entry"
        " (1.tmp, 2.tmp, 3.tmp, and 1 more); 1 not chosen by --include and --exclude (big.bin); 1 below a folder that"
        " another entry maps elsewhere (n/hidden)"
    )
    assert not any("excluded" in text for text in world.plan("u", "data").warnings)
