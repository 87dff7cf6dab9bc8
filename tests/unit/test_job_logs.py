from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from blobsync.base.errors import BackendUnavailableError, UnsafeNameError
from blobsync.jobs.logs import FetchedLogs, IncompleteLogError, LogSource, fetch_logs, follow, rank_of
from blobsync.jobspec.spec import LogFile
from blobsync.local.os_errors import NotAFileError


@dataclass
class Source:
    """Logs in memory; records the ranges that were read. ``begins`` is the first byte that a log still has."""

    texts: dict[str, bytes]
    reads: list[tuple[str, int]] = field(default_factory=list)
    gone: bool = False
    lags: bool = False
    begins: dict[str, int] = field(default_factory=dict)

    def files(self) -> Sequence[LogFile]:
        if self.gone:
            raise BackendUnavailableError("nobody answers")
        begins = self.begins
        return tuple(LogFile(name, len(text), name, begins.get(name, 0)) for name, text in sorted(self.texts.items()))

    def read(self, log: LogFile, start: int, end: int | None) -> bytes:
        assert start >= self.begins.get(log.name, 0), "what is gone was asked for"
        self.reads.append((log.name, start))
        return self.texts[log.name][start:end]


STD = "user_logs/std_log.txt"


def fetch(folder: Path, *sources: LogSource, over: bool = False) -> FetchedLogs:
    return fetch_logs([lambda source=source: source for source in sources], folder, over=over)  # type: ignore[misc]


def numbered(first: int, last: int) -> bytes:
    return b"".join(b"line %06d\n" % number for number in range(first, last))


def test_only_what_is_new_is_fetched_and_the_end_of_what_is_here(tmp_path: Path) -> None:
    source = Source({STD: numbered(0, 1000)})
    fetch(tmp_path, source)
    source.texts[STD] += b"two\n"
    fetched = fetch(tmp_path, source)
    fetch(tmp_path, source)
    assert source.reads == [(STD, 0), (STD, 12_000 - 4096)]
    assert fetched.path(STD).read_bytes() == source.texts[STD]


# -- a beginning that the cluster deleted, a copy that differs -------------------------------------------------------


def rotated(first: int, last: int) -> Source:
    """A log of which the cluster has only the end, from line ``first`` on."""
    return Source({STD: numbered(0, last)}, begins={STD: 12 * first})


def test_a_gap_is_filled_from_the_container_and_the_newest_lines_come_from_the_cluster(tmp_path: Path) -> None:
    fetch(tmp_path, Source({STD: numbered(0, 100)}))
    fetched = fetch(tmp_path, rotated(300, 900), Source({STD: numbered(0, 700)}, lags=True))
    assert fetched.problem is None and fetched.path(STD).read_bytes() == numbered(0, 900)
    # The copy here reaches to the part that the cluster still has: the container is not needed.
    mirror = Source({STD: b""}, lags=True)
    assert fetch(tmp_path, rotated(900, 950), mirror).path(STD).read_bytes() == numbered(0, 950)
    assert mirror.reads == []


def test_a_gap_stays_open_until_the_container_has_it_and_says_so(tmp_path: Path) -> None:
    fetch(tmp_path, Source({STD: numbered(0, 100)}))
    cluster, mirror = rotated(300, 900), Source({STD: numbered(0, 200)}, lags=True)
    fetched = fetch(tmp_path, cluster, mirror)
    assert fetched.path(STD).read_bytes() == numbered(0, 200) and fetched.names == (STD,)
    assert isinstance(fetched.problem, IncompleteLogError)
    assert fetched.problem.message.startswith(f"not here yet: bytes 2,400 to 3,600 of {STD}")
    mirror.texts[STD] = numbered(0, 400)
    assert fetch(tmp_path, cluster, mirror).path(STD).read_bytes() == numbered(0, 900)


def test_what_follows_on_a_part_that_nobody_has_is_kept_and_shown(tmp_path: Path) -> None:
    cluster, mirror = rotated(300, 900), Source({STD: numbered(0, 200)}, lags=True)
    fetched = fetch(tmp_path, cluster, mirror, over=True)
    later = "user_logs/std_log.from_byte_3600.txt"
    assert fetched.path(STD).read_bytes() == numbered(0, 200)
    assert fetched.path(later).read_bytes() == numbered(300, 900)
    assert fetched.leading == fetched.of_rank(0) == later
    assert isinstance(fetched.problem, IncompleteLogError)
    assert fetched.problem.message.startswith(f"lost: bytes 2,400 to 3,600 of {STD}")
    # Once more, also when the cluster has forgotten it: nothing changes.
    for source in (cluster, Source({}, gone=True)):
        assert fetch(tmp_path, source, mirror, over=True).names == (later, STD)
        assert fetched.path(later).read_bytes() == numbered(300, 900)


def test_without_copies_the_pieces_that_there_are_go_on(tmp_path: Path) -> None:
    fetch(tmp_path, Source({STD: numbered(0, 100)}))
    for first, last in ((300, 400), (350, 500), (600, 700)):
        fetched = fetch(tmp_path, rotated(first, last))
    assert {name: fetched.path(name).read_bytes() for name in fetched.names} == {
        STD: numbered(0, 100),
        "user_logs/std_log.from_byte_3600.txt": numbered(300, 500),
        "user_logs/std_log.from_byte_7200.txt": numbered(600, 700),
    }


def test_a_copy_with_a_gap_is_replaced_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "user_logs").mkdir()
    copy = tmp_path / STD
    copy.write_bytes(numbered(0, 500) + numbered(700, 800))
    with copy.open("rb") as before:
        fetched = fetch(tmp_path, rotated(550, 900), Source({STD: numbered(0, 880)}, lags=True))
        assert fetched.problem is None and copy.read_bytes() == numbered(0, 900)
        # Readers of the old one continue with it.
        assert before.read() == numbered(0, 500) + numbered(700, 800)


def test_copies_that_are_behind_do_not_shorten_what_is_here(tmp_path: Path) -> None:
    fetch(tmp_path, Source({STD: numbered(0, 900)}))
    gone = Source({}, gone=True)
    assert fetch(tmp_path, gone, Source({STD: numbered(0, 700)}, lags=True)).path(STD).read_bytes() == numbered(0, 900)
    other = numbered(5000, 5300)
    assert fetch(tmp_path, gone, Source({STD: other}, lags=True)).path(STD).read_bytes() == other


def test_following_waits_for_a_gap_and_gives_each_line_once(tmp_path: Path) -> None:
    cluster, mirror = Source({STD: numbered(0, 100)}), Source({STD: b""}, lags=True)
    steps = iter([(300, 400, 200), (600, 700, 350), (650, 800, 650)])

    def rotate() -> None:
        first, last, copied = next(steps)
        cluster.texts[STD], cluster.begins[STD] = numbered(0, last), 12 * first
        mirror.texts[STD] = numbered(0, copied)

    endings = iter([False, False, False, True])
    told = follow(lambda: fetch(tmp_path, cluster, mirror), lambda: next(endings), rotate)
    assert [line for _, line in told] == numbered(0, 800).decode().splitlines()


def test_following_begins_again_with_a_log_that_was_begun_anew(tmp_path: Path) -> None:
    source, endings = Source({STD: b"a long first attempt\n"}), iter([False, True])

    def restart() -> None:
        source.texts[STD] = b"short\n"

    told = follow(lambda: fetch(tmp_path, source), lambda: next(endings), restart)
    assert [line for _, line in told] == ["a long first attempt", "short"]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_log_that_cannot_be_a_file_here_is_reported_and_the_others_are_fetched(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "user_logs" / "std_log.txt"
    place.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(place)
    else:
        os.mknod(place, stat.S_IFSOCK | 0o600)
    fetched = fetch(tmp_path, Source({"user_logs/std_log.txt": b"one\n", "user_logs/std_log_process_01.txt": b"two\n"}))
    assert isinstance(fetched.problem, NotAFileError) and str(place) in fetched.problem.message
    assert fetched.names == ("user_logs/std_log_process_01.txt",)


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_the_last_lines_of_a_log_of_a_terabyte_come_at_once(tmp_path: Path, end: str) -> None:
    with open(tmp_path / "a.txt", "wb") as log:
        log.truncate(1 << 40)
        log.seek(0, 2)
        log.write("".join(f"{end}line {number}" for number in range(99_999)).encode())
    lines = FetchedLogs(tmp_path, ("a.txt",)).tail("a.txt", 20_000)
    assert lines == [f"line {number}" for number in range(79_999, 99_999)]


def test_fetched_logs_are_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "assets/job"
    modes: dict[str, str] = {}

    class Looking(Source):
        def read(self, log: LogFile, start: int, end: int | None) -> bytes:
            # While it is written, too.
            look()
            return super().read(log, start, end)

    def look() -> None:
        for path in (folder, *folder.rglob("*")):
            modes[path.name] = f"{stat.S_IMODE(path.stat().st_mode):o}"

    before = os.umask(0o022)
    try:
        for text in (b"a long first attempt\n", b"short\n", b"short\nand more\n"):
            fetch(folder, Looking({"user_logs/std_log.txt": text, "system_logs/node_0.txt": b"n\n"}))
            look()
            assert modes == {
                "job": "700",
                "user_logs": "700",
                "std_log.txt": "600",
                "system_logs": "700",
                "node_0.txt": "600",
            }
        # Permissions for colleagues are kept.
        folder.chmod(0o750)
        fetch(folder, Source({"user_logs/std_log.txt": b"again\n"}))
        assert stat.S_IMODE(folder.stat().st_mode) == 0o750
    finally:
        os.umask(before)


def test_the_copies_are_read_when_the_cluster_is_gone_and_continue_what_is_here(tmp_path: Path) -> None:
    cluster = Source({"user_logs/std_log.txt": b"one\n"})
    mirror = Source({"user_logs/std_log.txt": b"one\ntwo\n", "system_logs/node_0.txt": b"n\n"})
    fetch(tmp_path, cluster, mirror)
    assert mirror.reads == []
    cluster.gone = True
    fetched = fetch(tmp_path, cluster, mirror)
    assert (STD, 0) in mirror.reads
    assert fetched.tail("user_logs/std_log.txt", 1) == ["two"] and fetched.problem is None


def test_why_logs_may_be_old_is_kept_when_nobody_could_be_asked(tmp_path: Path) -> None:
    cluster = Source({"user_logs/std_log.txt": b"one\n"})
    assert fetch(tmp_path, cluster, Source({})).problem is None
    cluster.gone = True
    fetched = fetch(tmp_path, cluster, Source({}))
    assert fetched.names == ("user_logs/std_log.txt",)
    assert isinstance(fetched.problem, BackendUnavailableError)


HOSTILE = (
    "/{outside}/x.txt",
    "../../outside/x.txt",
    "user_logs/../../../outside/x.txt",
    "../x.txt",
    ".bashrc",
    ".ssh/authorized_keys",
    "user_logs/.hidden.txt",
    "user_logs/\x1b[2J.txt",
    "user_logs/a\nb.txt",
    "-rf.txt",
    "a//b.txt",
    "x" * 300 + ".txt",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_log_cannot_choose_where_it_is_written(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "project" / "assets" / "me_1_a"
    outside.mkdir()
    (outside / "x.txt").write_text("mine")
    name = name.replace("{outside}", str(outside).strip("/"))
    fetched = fetch(folder, Source({name: b"theirs, and longer than mine", "user_logs/std_log.txt": b"fine\n"}))
    assert fetched.names == ("user_logs/std_log.txt",)
    assert isinstance(fetched.problem, UnsafeNameError) and fetched.problem.message.isascii()
    written = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert written == ["outside/x.txt", "project/assets/me_1_a/user_logs/std_log.txt"]
    assert (outside / "x.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["assets", "assets/me_1_a", "assets/me_1_a/user_logs"])
def test_logs_are_not_written_through_a_link_that_leaves_the_project(tmp_path: Path, place: str) -> None:
    outside, project = tmp_path / "outside", tmp_path / "project"
    outside.mkdir()
    (project / place).parent.mkdir(parents=True)
    (project / place).symlink_to(outside)
    source = Source({"user_logs/std_log.txt": b"theirs"})
    fetched = fetch_logs([lambda: source], project / "assets" / "me_1_a", project)
    assert fetched.problem and "leads to" in fetched.problem.message
    assert list(outside.iterdir()) == []


def test_a_link_among_the_logs_is_no_log(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hush")
    (tmp_path / "logs" / "user_logs").mkdir(parents=True)
    (tmp_path / "logs" / "user_logs" / "std_log.txt").symlink_to(secret)
    assert fetch(tmp_path / "logs", Source({})).names == ()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("user_logs/std_log.txt", (0, 0)),
        ("user_logs/std_log_process_12.txt", (0, 12)),
        ("user_logs/std_log_process_0_ps.txt", (0, 0)),
        ("azureml-logs/70_driver_log_3.txt", (0, 3)),
        ("azureml-logs/70_driver_log.txt", (0, 0)),
        ("azureml-logs/00_stdout.txt", (0, 0)),
        ("azureml-logs/ps-1_stdout.txt", (0, 1)),
        ("task_7/user_logs/std_log_process_2.txt", (7, 2)),
        ("attempt_2/user_logs/std_log.from_byte_77.txt", (0, 0)),
        ("system_logs/node_0.txt", None),
        ("user_logs/mine.txt", None),
        # Python makes no number of so many digits.
        (f"user_logs/std_log_process_{'9' * 5000}.txt", None),
        (f"task_{'9' * 5000}/user_logs/std_log.txt", None),
    ],
)
def test_which_rank_a_log_is_of(name: str, rank: tuple[int, int] | None) -> None:
    assert rank_of(name) == rank


def test_the_leading_log_is_rank_0s_or_the_nodes() -> None:
    names = ("system_logs/node_0.txt", "system_logs/prepare.txt", "user_logs/std_log_process_10.txt")
    assert FetchedLogs(Path(), (*names, "user_logs/std_log_process_2.txt")).leading == "user_logs/std_log_process_2.txt"
    assert FetchedLogs(Path(), names[:2]).leading == "system_logs/node_0.txt"
    assert FetchedLogs(Path(), ("system_logs/prepare.txt",)).leading == "system_logs/prepare.txt"
    assert FetchedLogs(Path(), ()).leading is None


def test_where_no_rank_has_said_anything_its_launcher_speaks(tmp_path: Path) -> None:
    silent = {"user_logs/std_log.txt": b"", "system_logs/node_0.txt": b"ready\n", "system_logs/prepare.txt": b""}
    said = {**silent, "system_logs/batch.txt": b"mpirun refuses\n"}
    assert fetch(tmp_path / "a", Source(said)).leading == "system_logs/batch.txt"
    assert fetch(tmp_path / "b", Source(silent)).leading == "user_logs/std_log.txt"
    spoken = {**said, "user_logs/std_log.txt": b"here\n"}
    assert fetch(tmp_path / "c", Source(spoken)).leading == "user_logs/std_log.txt"
    # Of a node that could not be prepared, srun reports only the exit code.
    failed = {"system_logs/node_0.txt": b"setup failed\n", "system_logs/prepare.txt": b"not ready\n"}
    assert (
        fetch(tmp_path / "d", Source({**failed, "system_logs/batch.txt": b"72\n"})).leading == "system_logs/node_0.txt"
    )


def test_following_gives_whole_lines_once_and_the_unfinished_one_at_the_end(tmp_path: Path) -> None:
    source = Source({"user_logs/std_log.txt": b"one\ntw"})
    later = iter([b"o\nthree\n", b"the end without a line end"])
    seen: list[tuple[str, str]] = []

    def grow() -> None:
        source.texts["user_logs/std_log.txt"] += next(later)

    endings = iter([False, False, True])
    for name, line in follow(lambda: fetch(tmp_path, source), lambda: next(endings), grow):
        seen.append((name, line))
    assert [line for _, line in seen] == ["one", "two", "three", "the end without a line end"]
    assert {name for name, _ in seen} == {"user_logs/std_log.txt"}


def test_following_a_job_whose_setup_failed_shows_what_the_node_said(tmp_path: Path) -> None:
    source = Source({"system_logs/node_0.txt": b"setup failed: x\n"})
    lines = list(follow(lambda: fetch(tmp_path, source), lambda: True, lambda: None))
    assert lines == [("system_logs/node_0.txt", "setup failed: x")]


def test_the_latest_attempt_of_a_rank_speaks_for_it_and_earlier_ones_come_from_the_container(tmp_path: Path) -> None:
    late = {"attempt_2/user_logs/std_log.txt": b"third\n", "attempt_2/system_logs/node_0.txt": b"n\n"}
    kept = {"user_logs/std_log.txt": b"first\n", "attempt_1/user_logs/std_log.txt": b"second\n", **late}
    fetched = fetch(tmp_path, Source(late), Source(kept))
    assert fetched.leading == fetched.of_rank(0) == "attempt_2/user_logs/std_log.txt"
    assert {name for name in fetched.names if "user_logs" in name} == {name for name in kept if "user_logs" in name}
    assert rank_of("attempt_2/user_logs/std_log_process_3.txt") == (0, 3)
