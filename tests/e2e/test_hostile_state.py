"""A project that was handed over with a ``.blobsync`` in it: links, records and leftovers of somebody else's making."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, hashes, read_tree, write_tree

pytestmark = pytest.mark.e2e


@pytest.fixture
def precious(tmp_path: Path) -> dict[str, bytes]:
    """Files of the user's beside the project, of the kinds that pruning would take for its own."""
    files = {f"wandb/run-1-{number:08x}/lock": b"" for number in range(3)}
    files |= {f"results/{number}.json": b"{}" for number in range(250)}
    files |= {f"logs/{number}-{number:08x}/a.log": b"log" for number in range(9)}
    write_tree(tmp_path, files)
    for name in files:
        (tmp_path / name).parent.chmod(0o700)
    return files


def test_links_in_the_state_folder_lead_nowhere(
    with_azcopy: Project, container: Container, tmp_path: Path, precious: dict[str, bytes]
) -> None:
    write_tree(with_azcopy.data, {"a": b"a", "b": b"b"})
    with_azcopy.configure(container)
    assert with_azcopy.run("u", "data/a").code == 0
    links = {"receipts": "results", "transfers": "wandb", "code": "."}
    # As shipped with the project, and as a pull may bring them into a state folder that is in use already.
    for place in (with_azcopy.root / ".blobsync", with_azcopy.state):
        for name, target in links.items():
            if not (place / name).exists():
                (place / name).symlink_to(tmp_path / target)
    (with_azcopy.state / "transfers").unlink(missing_ok=True)
    (with_azcopy.state / "transfers").symlink_to(tmp_path / "wandb")
    for words in (("u", "data", "--engine", "azcopy"), ("d", "data", "--engine", "azcopy"), ("init",)):
        with_azcopy.run(*words)
    kept = {name: data for name, data in read_tree(tmp_path).items() if not name.startswith(("project", "home"))}
    assert kept == hashes(precious)


def test_a_shipped_state_folder_deletes_and_kills_nothing(
    with_azcopy: Project, container: Container, tmp_path: Path
) -> None:
    staging = tmp_path / ".blobsync-01234567.part"
    write_tree(staging, {"mine": b"mine"})
    run = with_azcopy.root / ".blobsync" / "state-0123456789abcdef" / "transfers" / "azcopy" / "run-1-01234567"
    write_tree(run, {"lock": b"", "owner.json": json.dumps({"staging": str(staging)}).encode()})
    write_tree(with_azcopy.data, {"a": b"a"})
    with_azcopy.configure(container)
    done = with_azcopy.run("u", "data", "--engine", "azcopy")
    assert done.code == 0, str(done)
    assert (staging / "mine").read_bytes() == b"mine"
    assert (run / "owner.json").exists()


def test_a_shipped_index_makes_nothing_look_unchanged(project: Project, container: Container, tmp_path: Path) -> None:
    write_tree(project.data, {"a": b"old"})
    project.configure(container)
    assert project.run("u", "data").code == 0
    index = (project.state / "index.sqlite").read_bytes()
    # Somebody else's, of the very same files: it came along with the project.
    project.environ["HOME"] = str(tmp_path / "another")
    (tmp_path / "another").mkdir()
    for place in (project.root / ".blobsync", project.root / ".blobsync" / "state-0123456789abcdef"):
        place.mkdir(exist_ok=True)
        (place / "index.sqlite").write_bytes(index)
    (project.data / "a").write_bytes(b"new")
    time.sleep(0.05)
    done = project.json("u", "data")
    # Never verified by this user: both sides differ, so it is a conflict and not a silent replacement.
    assert (done.code, done.data["conflicts"]) == (3, 1), str(done)
