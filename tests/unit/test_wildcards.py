"""Patterns in PATHs: which files they choose, with names and with each other, and what they are refused with."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blobsync.base.errors import NothingMatchedError, UsageError
from blobsync.plan.saved_plan import SavedPlan, plan_document
from blobsync.plan.transfer_options import TransferOptions
from blobsync.plan.transfer_plan import Action
from blobsync.plan.wildcards import PathPattern
from blobsync.project.api import Project
from tests.fakes.opened_project import Opened
from tests.fakes.project_context import World, account, cluster

WILD = TransferOptions(wildcards=True)
FILES = ("data/x/a.py", "data/x/b.py", "data/x/c.txt", "data/x/sub/d.py", "data/x/sub/e.txt", "data/coco/f.py")


@pytest.fixture
def world(tmp_path: Path) -> World:
    here = cluster("eu", data=account("eu"), data__coco=account("coco"))
    return World(tmp_path / "project", here, cluster("us", data=account("us")))


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def moved(world: World, command: str, *paths: str, options: TransferOptions = WILD, copy: bool = False) -> list[str]:
    plan = world.plan(command, *paths, options=options, copy=copy)
    return [part.shown(action) for part, action in plan.each() if action.action is Action.TRANSFER]


@pytest.mark.parametrize("command", ["u", "d", "copy"])
@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["data/x/*.py"], ["data/x/a.py", "data/x/b.py"]),
        (["data/x/[bc].*"], ["data/x/b.py", "data/x/c.txt"]),
        (["data/x/?.txt"], ["data/x/c.txt"]),
        (["data/x/s*"], ["data/x/sub/d.py", "data/x/sub/e.txt"]),
        (["data/x/*/"], ["data/x/sub/d.py", "data/x/sub/e.txt"]),
        (["data/*/sub/d*"], ["data/x/sub/d.py"]),
        # Two patterns of one folder, and a name that a pattern has already.
        (["data/x/*.py", "data/x/*.txt"], ["data/x/a.py", "data/x/b.py", "data/x/c.txt"]),
        (["data/x/*.py", "data/x/a.py"], ["data/x/a.py", "data/x/b.py"]),
        (["data/x/*.txt", "data/x/sub"], ["data/x/c.txt", "data/x/sub/d.py", "data/x/sub/e.txt"]),
        (["data/x/*.py", "data/x/sub/*", "data/*/sub/d.py"], [*FILES[:2], *FILES[3:5]]),
    ],
)
def test_a_pattern_chooses_what_it_matches_and_what_is_below(
    world: World, command: str, paths: list[str], expected: list[str]
) -> None:
    if command == "u":
        write(world.root, *FILES)
    else:
        for name in FILES[:5]:
            world.store("us" if command == "copy" else "eu").add(f"store/{name}", name.encode())
    word = "u" if command == "copy" else command
    assert sorted(moved(world, word, *paths, copy=command == "copy")) == expected


def test_a_pattern_reaches_nested_folder_entries(world: World) -> None:
    write(world.root, *FILES)
    assert sorted(moved(world, "u", "data/*/?.py")) == ["data/coco/f.py", "data/x/a.py", "data/x/b.py"]
    assert sorted(moved(world, "u", "data/c*")) == ["data/coco/f.py"]
    assert sorted(moved(world, "u", "data/*/a.py", "data/coco/*.py")) == ["data/coco/f.py", "data/x/a.py"]


def test_a_pattern_matches_a_folder_entry_that_is_a_file(world: World) -> None:
    write(world.root, "data/coco")
    assert moved(world, "u", "data/c*") == ["data/coco"]
    # Of a name beside a pattern nothing is left to the pattern.
    assert moved(world, "u", "data/coco", "data/c*") == ["data/coco"]


@pytest.mark.parametrize("command", ["u", "d"])
def test_a_name_that_is_there_comes_first(world: World, command: str) -> None:
    names = ("data/x/a[1].py", "data/x/a1.py")
    if command == "u":
        write(world.root, *names)
    else:
        for name in names:
            world.store("eu").add(f"store/{name}", b"1")
    assert moved(world, command, "data/x/a[1].py") == ["data/x/a[1].py"]
    assert moved(world, command, "data/x/a[12].py") == ["data/x/a1.py"]


def test_a_program_gives_names(world: World) -> None:
    write(world.root, *FILES)
    with pytest.raises(NothingMatchedError):
        world.plan("u", "data/x/*.py")


@pytest.mark.parametrize(
    ("paths", "options", "said"),
    [
        (["data/x/*.jpeg"], WILD, "data/x/*.jpeg: no file at the source matches"),
        (["data/x/*.py", "data/x/*.jpeg"], WILD, "data/x/*.jpeg: no file at the source matches"),
        (["data/x/*.py", "data/x/*.js", "data/x/c*"], WILD, "data/x/*.js: no file at the source matches"),
        (
            ["data/x/*.py"],
            WILD._replace(include=("*.txt",)),
            "data/x/*.py: no file at the source matches, of those that --include '*.txt' chooses",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_is_named(
    world: World, paths: list[str], options: TransferOptions, said: str
) -> None:
    write(world.root, *FILES)
    with pytest.raises(NothingMatchedError) as nothing:
        world.plan("u", *paths, options=options)
    assert (nothing.value.message, nothing.value.exit_code) == (said, 4)


@pytest.mark.parametrize("option", ["--mirror", "--from-path"])
def test_options_that_need_a_name_refuse_a_pattern(world: World, option: str) -> None:
    write(world.root, *FILES)
    options = WILD._replace(mirror=True) if option == "--mirror" else WILD._replace(from_path="data/y")
    with pytest.raises(UsageError, match=rf"{option} needs the name .* and data/x/\*.py is a pattern"):
        world.plan("u", "data/x/*.py", options=options, copy=option == "--from-path")
    # The name of a file may look like a pattern.
    write(world.root, "data/x/*.py")
    assert world.plan("u", "data/x/*.py", options=WILD._replace(mirror=True)).files_to_transfer == 1


def test_a_saved_plan_keeps_its_pattern(world: World) -> None:
    write(world.root, *FILES)
    plan = world.plan("u", "data/x/*.py", options=WILD)
    assert plan.paths == ("data/x/*.py",)
    saved = SavedPlan(json.loads(json.dumps(plan_document(plan))), Path("p.plan"))
    saved.check(world.plan("u", *saved.paths, options=saved.options))


def test_what_a_pattern_sees_is_no_listing_of_the_folder(world: World) -> None:
    write(world.root, *FILES)
    assert world.run("u", "data/x/*.py", options=WILD).ok
    part = world.plan("u", "data/x").parts[0]
    assert world.context().records(part.key).listed_at("data/x") is None


_NAMES = st.sampled_from(["a", "ab", "b.x"])
_WORDS = st.sampled_from(["a", "ab", "*", "a*", "?", "*.x", "[ab]"])


@example({"a/a"}, ["a/*", "*/a"])
@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.lists(_NAMES, min_size=1, max_size=3).map("/".join), min_size=1, max_size=6),
    st.lists(st.lists(_WORDS, min_size=1, max_size=3).map("/".join), min_size=1, max_size=3),
)
def test_each_file_moves_once_whatever_paths_choose_it(files: set[str], paths: Sequence[str]) -> None:
    files = {name for name in files if not any(other.startswith(f"{name}/") for other in files)}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder), cluster("eu", data=account("eu"), data__ab=account("two")))
        write(world.root, *(f"data/{name}" for name in files))
        expected, missing = set[str](), False
        for path in paths:
            words = path.split("/")
            found = {name for name in files if _is_chosen(name.split("/"), words)}
            expected |= found
            missing = missing or not found
        try:
            assert sorted(moved(world, "u", *(f"data/{path}" for path in paths))) == sorted(
                f"data/{name}" for name in expected
            )
        except NothingMatchedError:
            assert missing


def _is_chosen(names: list[str], words: list[str]) -> bool:
    pairs = zip(names, words, strict=False)
    return len(names) >= len(words) and all(PurePosixPath(name).match(word) for name, word in pairs)


def test_a_pattern_matches_whole_names_of_its_folder() -> None:
    matches = PathPattern("data/x/*.py")
    assert matches("data/x/a.py") and matches("data/x/a.py/below")
    assert not matches("data/x2/a.py") and not matches("data/x/sub/a.py") and not matches("data/x")
    assert not PathPattern("data/x/*/")("data/x/a") and PathPattern("data/x/*/")("data/x/a/b")
    assert PathPattern("data/[x]/*")("data/[x]/a")


@pytest.fixture
def removing(opened: Opened) -> Project:
    for name in (*FILES[:5], "data/x/old[1].txt", "data/x/old1.txt"):
        opened.store.add(f"store/{name}", name.encode())
    return opened.project


def test_rm_of_patterns_deletes_each_match_once(removing: Project) -> None:
    found = removing.find_removal(["data/x/*.py", "data/x/[ab]*", "data/x/s*/d.py"], wildcards=True)
    assert [each.shown for each in found] == ["data/x/*.py", "data/x/s*/d.py"]
    assert [each.names(9) for each in found] == [["data/x/a.py", "data/x/b.py"], ["data/x/sub/d.py"]]
    assert [name for name, _ in removing.remove(found).gone] == [*FILES[:2], FILES[3]]
    assert {entry.path for entry in removing.list("data/x")} == {
        "data/x/c.txt",
        "data/x/old1.txt",
        "data/x/old[1].txt",
        "data/x/sub/",
    }


def test_rm_takes_a_name_that_is_there_before_a_pattern(removing: Project) -> None:
    (found,) = removing.find_removal("data/x/old[1].txt", wildcards=True)
    assert (found.pattern, found.names(9)) == ("", ["data/x/old[1].txt"])
    with pytest.raises(NothingMatchedError, match=r"data/x/\*.jpeg: no blob matches"):
        removing.find_removal("data/x/*.jpeg", wildcards=True)
    with pytest.raises(NothingMatchedError, match="no blob or folder has that name"):
        removing.find_removal("data/x/*.py")


def test_verify_of_a_pattern_compares_the_matches_of_both_sides(removing: Project) -> None:
    write(removing.root, "data/x/a.py", "data/x/new.py", "data/x/other.txt")
    report = removing.verify("data/x/*.py", wildcards=True)
    assert report.counts == {"equal": 1, "local_only": 1, "remote_only": 1}
    assert removing.verify("data/x/s*", wildcards=True).counts == {"remote_only": 2}
    with pytest.raises(NothingMatchedError, match=r"data/x/\*.jpeg: no file matches, neither here nor"):
        removing.verify("data/x/*.jpeg", wildcards=True)
