"""What a person sees: the main commands on a real pseudo-terminal, on a slow line, at three widths.

Each run is also held to what ``Terminal.finish`` checks: no bar wider than the terminal, none left, a visible cursor.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Iterator

import pytest

from tests.e2e.terminal import CTRL_C, CTRL_D, Terminal, on_terminal, see
from tests.e2e.world import AS_INSTALLED, Container, Project, hashes, read_tree, write_tree
from tests.servers.delay_proxy import delay_proxy

pytestmark = pytest.mark.e2e

_COUNT = 120
_FILES = {f"d{number % 7}/f{number:04}.bin": random.Random(number).randbytes(2000) for number in range(_COUNT)}
# Long enough for the bar to come while a command only looks.
_ROUND_TRIP = 300.0
_TOOK = r"(\d+\.\d\d|\d+) s"


@pytest.fixture
def line(service: str) -> Iterator[str]:
    """The service behind a slow line."""
    with delay_proxy(service, round_trip_ms=_ROUND_TRIP) as proxy:
        yield proxy.url


@pytest.fixture(params=[80, pytest.param(40, marks=pytest.mark.soak), pytest.param(120, marks=pytest.mark.soak)])
def columns(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def _uploaded(terminal: Terminal, what: str) -> bool:
    return bool(re.fullmatch(rf"uploaded {what} in {_TOOK}; \d+ verified", "\n".join(terminal.answer())))


def _first_words(terminal: Terminal) -> set[str]:
    return {bar.split()[0] for bar in terminal.bars()}


def test_there_and_looked_at(project: Project, container: Container, line: str, columns: int) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container, url=line)
    # This one as it is installed, the others as forks.
    project.before = AS_INSTALLED
    up = see(project, "u", "data/v", columns=columns)
    project.before = ()
    assert up.code == 0 and _uploaded(up, "120 files, 240 KB"), str(up)
    assert "uploading" in _first_words(up)
    assert container.contents("data/v/") == hashes(_FILES)
    again = see(project, "u", "data/v", columns=columns)
    assert (again.code, again.answer()) == (0, ["nothing to upload; 120 unchanged; 120 verified"])
    # That nothing moves takes no time to say, but on a loaded machine.
    assert {"listing"} <= _first_words(again) <= {"listing", "uploading"}
    same = see(project, "verify", "data/v", columns=columns)
    assert (same.code, same.answer()) == (0, ["120 equal; 240 KB equal"])
    assert _first_words(same) == {"checking"}
    listed = see(project, "ls", "-r", "data/v", columns=columns)
    assert (listed.code, listed.bars()) == (0, [])
    assert listed.answer() == [f"data/v/{name}" for name in sorted(_FILES)]


@pytest.mark.soak
def test_the_bar_counts_down_to_the_end_with_large_and_small_files(
    project: Project, container: Container, service: str
) -> None:
    """How right it is on the way is shown by simulation (tests/unit/test_remaining_time.py), not by a clock."""
    small = {f"a/{number:04}": bytes([number % 251]) * 2000 for number in range(1500)}
    write_tree(project.data / "v", {**small, **{f"z/{number}": bytes([number]) * 3_000_000 for number in range(4)}})
    seen: list[int] = []
    with delay_proxy(service, round_trip_ms=30.0, mbps=16.0) as proxy:
        project.configure(container, url=proxy.url)
        with on_terminal(project, "u", "data/v", columns=80) as terminal:
            while terminal.process.poll() is None:
                bar = terminal.bars()[-1:]
                if bar and (said := re.search(r"uploading .* (\d+) s left", bar[0])):
                    seen.append(int(said[1]))
                time.sleep(0.1)
            assert terminal.finish().code == 0
    assert len(seen) > 5
    assert max(seen) > 2 and seen[-1] <= 2, str(seen)


def test_plan_and_verify_are_short_unless_asked(
    project: Project, container: Container, line: str, columns: int
) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container, url=line)
    plan = see(project, "plan", "u", "data/v", columns=columns)
    assert plan.code == 0
    assert plan.answer()[0] == "not at the destination yet:"
    assert plan.answer()[11] == "  ... and 110 more, --full shows all"
    assert plan.answer()[12] == "would upload 120 files, 240 KB"
    assert len(plan.answer()) == 14 and "versioning: " in plan.answer()[13]
    # The part that has columns fits into any of the widths.
    assert plan.lines()[:12] == plan.answer()[:12]
    verify = see(project, "verify", "data/v", columns=columns)
    assert (verify.code, len(verify.answer())) == (1, 12), str(verify)
    assert verify.answer()[10:] == ["  ... and 110 more local only, --full shows all", "120 local only; 0 B equal"]


def test_full_lists_everything_and_quiet_only_counts(project: Project, container: Container) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container)
    full = see(project, "plan", "u", "data/v", "--full", columns=40)
    assert len(full.answer()) == 123
    quiet = see(project, "plan", "u", "data/v", "-q", columns=40)
    # The estimated seconds are those of the moment.
    counts = [[re.sub(r"[\d.]+ s\b", "N s", line) for line in each.answer()] for each in (quiet, full)]
    assert (counts[0], quiet.bars()) == (counts[1][-2:-1], [])
    assert len(see(project, "verify", "data/v", "--full", columns=40).answer()) == 121
    assert see(project, "verify", "data/v", "-q", columns=40).answer() == ["120 local only; 0 B equal"]


def test_questions_stand_alone_and_are_answered(
    project: Project, container: Container, line: str, columns: int
) -> None:
    project.configure(container, url=line)
    for name in ("a", "b"):
        container.put(f"data/v/{name}", b"123")
    for keys, code, said in (
        ("n\n", 2, "blobsync: not confirmed, nothing was changed"),
        (CTRL_D, 2, "blobsync: not confirmed, nothing was changed"),
        (CTRL_C, 130, "blobsync: interrupted at the prompt: nothing was changed"),
        ("y\n", 0, "deleted 2 blobs, 6 B"),
    ):
        ended = _answered(project, keys, "rm", "data/v", columns=columns)
        kept, asked, *after = ended.answer()[1:]
        assert "may keep deleted blobs or not" in kept, str(ended)
        assert asked.startswith("delete 2 blobs, 6 B? [y/N]"), str(ended)
        assert (ended.code, after) == (code, [said]), str(ended)
        assert container.names() == ([] if code == 0 else ["data/v/a", "data/v/b"])


def test_a_mirror_asks_and_deletes(project: Project, container: Container, line: str, columns: int) -> None:
    write_tree(project.data / "v", {"a": b"1"})
    for name in ("a", "old1", "old2"):
        container.put(f"data/v/{name}", b"1")
    project.configure(container, url=line)
    words = ("u", "data/v", "--mirror", "--max-delete", "100%")
    kept = _answered(project, "\n", *words, columns=columns)
    assert kept.code == 2 and len(container.names()) == 3, str(kept)
    done = _answered(project, "y\n", *words, columns=columns)
    question = "delete 2 files, 2 B, that the source does not have? [y/N] y"
    assert (done.code, done.answer()[-2]) == (0, question), str(done)
    assert done.answer()[-1].startswith("nothing to upload; deleted 2; 1 unchanged; "), str(done)
    assert container.names() == ["data/v/a"]


def _answered(project: Project, keys: str, *words: str, columns: int) -> Terminal:
    with on_terminal(project, *words, columns=columns) as terminal:
        terminal.wait_for(lambda seen: any("[y/N]" in row for row in seen.answer()))
        drawn = len(terminal.bars())
        terminal.type(keys)
        terminal.finish()
        assert "[y/N]" not in "".join(terminal.bars()[drawn:])
        return terminal


def test_conflicts_and_errors_are_whole(project: Project, container: Container, line: str, columns: int) -> None:
    write_tree(project.data / "v", {f"f{number:02}": b"mine" for number in range(12)})
    for number in range(12):
        container.put(f"data/v/f{number:02}", b"theirs")
    project.configure(container, url=line)
    conflict = see(project, "u", "data/v", "-y", columns=columns)
    assert conflict.code == 3
    said = "both sides exist, differ, and were never verified against each other"
    told = [row for row in conflict.answer() if row.startswith(("blobsync: ", "  data/", "  and "))]
    assert told == [
        f"blobsync: 12 files: left alone: {said}",
        *(f"  data/v/f{number:02}" for number in range(3)),
        "  and 9 more; --json lists them all",
    ]
    missing = see(project, "u", "data/nowhere", columns=columns)
    assert (missing.code, len(missing.answer())) == (4, 2), str(missing)
    assert missing.answer()[0].startswith("blobsync: data/nowhere: no such file or folder at the source, ")
    neither = see(project, "verify", "data/nowhere", columns=columns)
    assert neither.code == 4
    assert neither.answer()[0].startswith(
        "blobsync: data/nowhere: no such file or folder, neither here nor in the container, "
    )
    usage = see(project, "u", "data/v", "-c", "", columns=columns)
    assert usage.code == 2 and usage.answer()[0] == "blobsync: -c '': missing cluster name", str(usage)


def test_json_and_quiet_draw_nothing(project: Project, container: Container, line: str) -> None:
    write_tree(project.data / "v", _FILES)
    project.configure(container, url=line)
    document = see(project, "plan", "u", "data/v", "--json", columns=40)
    assert document.bars() == []
    assert len(json.loads("\n".join(document.answer()))["data"]["actions"]) == 120
    quiet = see(project, "u", "data/v", "-q", columns=40)
    assert (quiet.code, quiet.bars(), len(quiet.answer())) == (0, [], 1), str(quiet)
    assert container.contents("data/v/") == hashes(_FILES)


@pytest.mark.parametrize(
    "words", [("verify",), ("u",), ("d",), ("plan", "d"), ("rm",), ("ls", "-r"), ("du",)], ids=" ".join
)
def test_ctrl_c_while_looking_ends_it_at_once(
    project: Project, container: Container, service: str, words: tuple[str, ...]
) -> None:
    write_tree(project.data / "v", {"a": b"1"})
    container.put("data/v/b", b"2")
    # So far that it ends before anything was answered.
    with delay_proxy(service, round_trip_ms=120_000) as far:
        project.configure(container, url=far.url)
        with on_terminal(project, *words, "data/v", columns=40) as terminal:
            if words[0] == "ls":
                terminal.wait_for(lambda _: far.connections())
            else:
                terminal.wait_for(lambda seen: seen.bars())
            terminal.type(CTRL_C)
            terminal.finish(seconds=30)
    expected = ["blobsync: interrupted: nothing was changed"]
    assert (terminal.code, terminal.answer()) == (130, expected), str(terminal)
    assert container.names() == ["data/v/b"] and set(read_tree(project.data)) == {"v/a"}


def test_ctrl_c_while_moving_says_what_is_done(
    project: Project, container: Container, service: str, columns: int
) -> None:
    write_tree(project.data / "v", _FILES)
    # All of it takes ten seconds.
    with delay_proxy(service, round_trip_ms=50, mbps=0.3) as slow:
        project.configure(container, url=slow.url)
        with on_terminal(project, "u", "data/v", columns=columns) as terminal:
            terminal.wait_for(lambda seen: any(re.match(r"uploading +[1-9]", bar) for bar in seen.bars()))
            terminal.type(CTRL_C)
            terminal.finish()
    said, hint = terminal.answer()
    assert terminal.code == 130, str(terminal)
    done = re.fullmatch(
        r"blobsync: stopped: (\d+) of 120 files (?:is|are) done and verified.*, (\d+) (?:is|are) left(; .* again)?",
        said,
    )
    assert done and 0 < int(done[1]) < 120, str(terminal)
    assert hint == "  hint: run the same command again: verified files are skipped"
    project.configure(container)
    assert see(project, "u", "data/v", columns=columns).code == 0
    assert container.contents("data/v/") == hashes(_FILES)


def test_azcopy_moves_under_the_same_bar(with_azcopy: Project, container: Container, line: str, columns: int) -> None:
    files = {name: data for name, data in _FILES.items() if name.startswith("d1/")}
    write_tree(with_azcopy.data / "v", files)
    with_azcopy.configure(container, url=line)
    up = see(with_azcopy, "u", "data/v", "--engine", "azcopy", columns=columns)
    assert up.code == 0 and _uploaded(up, "17 files, 34 KB"), str(up)
    assert {"uploading", "checking"} <= _first_words(up)
    assert container.contents("data/v/") == hashes(files)
    again = see(with_azcopy, "u", "data/v", "--engine", "azcopy", columns=columns)
    assert (again.code, again.answer()) == (0, ["nothing to upload; 17 unchanged; 17 verified"])


@pytest.mark.soak
@pytest.mark.slow
def test_thousands_of_files_are_looked_at_under_a_bar(project: Project, container: Container, line: str) -> None:
    files = {f"d{number % 50}/{number}": b"%d" % number for number in range(3000)}
    write_tree(project.data / "v", files)
    project.configure(container)
    up = see(project, "u", "data/v", columns=80, seconds=170)
    assert up.code == 0 and up.answer()[-1].endswith("; 3,000 verified"), str(up)
    project.configure(container, url=line)
    bars: list[str] = []
    # A plan also says what the container keeps.
    for words, last, lines in (
        (("u", "data/v"), "nothing to upload; 3,000 unchanged; 3,000 verified", 1),
        (("verify", "data/v"), "3,000 equal; ", 1),
        (("plan", "u", "data/v"), "nothing to upload; 3,000 unchanged", 2),
    ):
        looked = see(project, *words, columns=80)
        assert (looked.code, len(looked.answer())) == (0, lines), str(looked)
        assert looked.answer()[0].startswith(last)
        bars += looked.bars()
    # A command of which all names come at once may never show a part of them.
    assert any("names" in bar for bar in bars), str(bars)
