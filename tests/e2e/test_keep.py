"""``blobsync keep`` against a blob server: edits and kills, outages, logins, locks, a terminal, the background."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from blobsync.local.names import is_temporary
from tests.e2e.world import (
    Container,
    Project,
    as_ordinary_user,
    blobsync_command,
    every_text_below,
    hashes,
    read_tree,
    sha256,
    write_tree,
)
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import meanwhile, wait_until

pytestmark = [pytest.mark.e2e]

_SEED = int(os.environ.get("FAULTS_SEED", "20261125"))
_QUICKLY = ("--settle", "0.3s")
_PATIENCE = 60.0


@pytest.fixture
def kept(project: Project, container: Container) -> Iterator[Project]:
    """A project with some files; whatever still keeps them at the end is ended."""
    project.configure(container)
    write_tree(project.data, {"a": b"one", "sub/b": b"two" * 1000})
    yield project
    for state in project.json("keep", "ls").data["keepers"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(state["pid"], signal.SIGKILL)


def started(project: Project, *words: str) -> subprocess.Popen[str]:
    """A keeper that has its lock."""
    process = project.start("keep", "data", *_QUICKLY, *words)

    def has_begun() -> bool:
        # A killed one leaves its record.
        return any(record["pid"] == process.pid for record in _records(project))

    assert wait_until(lambda: has_begun() or process.poll() is not None, seconds=_PATIENCE)
    return process


def _records(project: Project) -> list[dict[str, object]]:
    rows = project.unfinished("SELECT record FROM running WHERE kind = 'keepers'")
    return [json.loads(record) for (record,) in rows]


def stopped(project: Project, process: subprocess.Popen[str], number: int = signal.SIGINT) -> str:
    process.send_signal(number)
    done = project.finish(process)
    assert done.code == 130, str(done)
    return done.err


def arrives(container: Container, expected: Callable[[], dict[str, str]], *, seconds: float = _PATIENCE) -> None:
    assert wait_until(lambda: expected().items() <= container.contents("data/").items(), seconds=seconds, pause=0.2), (
        f"{sorted(set(expected().items()) - set(container.contents('data/').items()))[:5]}"
    )


def knows(project: Project, uploaded: int) -> None:
    """Wait until the keeper knows so many files as uploaded: what it sent arrives a moment before that."""
    assert wait_until(lambda: any(record["uploaded"] == uploaded for record in _records(project)), seconds=_PATIENCE)


def write_at_once(project: Project, files: dict[str, bytes]) -> None:
    """Write files that are never seen empty, not even by a keeper to which a moment is long enough."""
    for name, data in files.items():
        (project.data / name).parent.mkdir(parents=True, exist_ok=True)
        beside = project.root / "beside"
        beside.write_bytes(data)
        beside.replace(project.data / name)


def test_what_a_program_writes_arrives_and_what_it_removes_stays(kept: Project, container: Container) -> None:
    process = started(kept)
    arrives(container, lambda: hashes({"a": b"one", "sub/b": b"two" * 1000}))
    knows(kept, 2)
    write_at_once(kept, {"a": b"other", "new/deep/c": b"three"})
    arrives(container, lambda: hashes({"a": b"other", "new/deep/c": b"three"}))
    knows(kept, 4)
    shutil.rmtree(kept.data / "sub")
    (kept.data / "a").rename(kept.data / "renamed")
    arrives(container, lambda: hashes({"renamed": b"other"}))
    knows(kept, 5)
    assert stopped(kept, process).count("stopped: 5 files uploaded and verified") == 1
    # Upload only: nothing was deleted there.
    assert set(container.contents("data/")) == {"a", "sub/b", "new/deep/c", "renamed"}
    shown = kept.json("history").data["transfers"]
    assert {each["kind"] for each in shown} == {"upload"} and all(each["receipt"] for each in shown)
    assert "blobsync keep data" in shown[0]["command"]


def test_until_idle_ends_when_nothing_changes_and_writes_one_line_of_json_a_round(
    kept: Project, container: Container
) -> None:
    done = kept.run("keep", "data", *_QUICKLY, "--until-idle", "--json")
    assert done.code == 0, str(done)
    first, _, document = done.out.partition("\n{\n")
    steps = [json.loads(line) for line in first.splitlines()]
    assert sum(step["uploaded"] for step in steps) == 2 and steps[0]["path"] == "data"
    data = json.loads("{\n" + document)["data"]
    assert (data["uploaded"], data["waiting"], data["idle"]) == (2, 0, True)
    # A round without changes leaves no record.
    before = kept.json("history").data["transfers"]
    again = kept.json("keep", "data", *_QUICKLY, "--until-idle")
    assert again.code == 0 and again.data["uploaded"] == 0
    assert "kept uploaded until nothing has changed for " in again.err
    assert again.err.rstrip().endswith("data: all is uploaded and verified"), "it never ends in silence"
    assert kept.json("history").data["transfers"] == before


def test_a_conflict_is_left_alone_and_told_once(kept: Project, container: Container) -> None:
    container.put("data/a", b"somebody else's")
    done = kept.run("keep", "data", *_QUICKLY, "--until-idle")
    assert done.code == 3, str(done)
    assert done.out.count("conflict data/a") == 1
    assert "all is uploaded" not in done.err
    assert container.get("data/a") == b"somebody else's"
    assert container.get("data/sub/b") == b"two" * 1000
    assert kept.run("u", "data", "--overwrite").code == 0
    assert kept.run("keep", "data", *_QUICKLY, "--until-idle").code == 0


def test_a_blob_that_somebody_else_wrote_meanwhile_is_not_replaced(kept: Project, container: Container) -> None:
    """The keeper presumes that what it verified is still there; the service refuses its write."""
    process = started(kept)
    arrives(container, lambda: hashes({"a": b"one"}))
    knows(kept, 2)
    container.put("data/a", b"theirs")
    container.put("data/new", b"theirs")
    write_tree(kept.data, {"a": b"mine", "new": b"mine", "last": b"mine"})
    arrives(container, lambda: hashes({"last": b"mine"}))

    def both_are_known() -> bool:
        return [state["conflicts"] for state in kept.json("keep", "ls").data["keepers"]] == [2]

    assert wait_until(both_are_known, seconds=_PATIENCE, pause=0.5)
    assert container.get("data/a") == container.get("data/new") == b"theirs"
    assert "2 failures" in stopped(kept, process)


def test_odd_entries_are_named_and_do_not_stop_it(kept: Project, container: Container) -> None:
    os.mkfifo(kept.data / "pipe")
    (kept.data / "bad\x01name").write_bytes(b"x")
    (kept.data / "back\\slash").write_bytes(b"x")
    (kept.data / "gone").symlink_to("/nowhere/at/all")
    (kept.data / "locked").write_bytes(b"x")
    (kept.data / "locked").chmod(0)
    kept.before = as_ordinary_user()
    process = started(kept)
    # What fails is tried again, with longer and longer pauses.
    assert wait_until(lambda: [(each["uploaded"], each["waiting"]) for each in _records(kept)] == [(2, 3)])
    process.send_signal(signal.SIGINT)
    done = kept.finish(process)
    assert done.code == 130, str(done)
    assert "data/pipe: left out, neither a file nor a folder" in done.err
    assert done.out.count("data/bad\\x01name") == 1 and "no blob can have" not in done.err
    assert done.out.count("data/back\\slash") == 1 and "a backslash, which the service takes for '/'" in done.out
    assert done.out.count("FAIL data/locked") == 1
    assert set(container.contents("data/")) == {"a", "sub/b"}


def test_a_second_keeper_says_who_has_the_folder_and_so_does_one_below_or_above(kept: Project) -> None:
    process = started(kept)
    for path in ("data", "data/sub"):
        done = kept.json("keep", path, *_QUICKLY, "--until-idle")
        assert done.code == 2, str(done)
        (error,) = done.errors
        assert f"data is kept already, by process {process.pid} of " in error["message"]
        assert ", for " in error["message"] and "keep stop" in error["hint"]
    stopped(kept, process)
    assert not _records(kept)
    process = kept.start("keep", "data/sub", *_QUICKLY)
    assert wait_until(lambda: _records(kept), seconds=_PATIENCE)
    assert "data/sub is kept already" in kept.json("keep", "data", "--until-idle").errors[0]["message"]
    process.kill()
    process.communicate()
    # A killed keeper holds nothing.
    assert kept.json("keep", "data", *_QUICKLY, "--until-idle").code == 0


def test_one_whose_records_cannot_be_seen_is_found_by_its_lock(kept: Project, tmp_path: Path) -> None:
    process = started(kept)
    other = Project(tmp_path / "other", {"HOME": str(tmp_path / "home of another")})
    shutil.copytree(kept.root, other.root, ignore=shutil.ignore_patterns(".blobsync", "data"))
    other.data.symlink_to(kept.data)
    for path, folder in (("data", kept.data), ("data/sub", kept.data / "sub")):
        assert other.run("config", "trust-link", "data").code == 0
        done = other.json("keep", path, *_QUICKLY, "--until-idle")
        assert done.code == 2, str(done)
        assert f"kept already, by process {process.pid} of " in done.errors[0]["message"], folder
    stopped(kept, process)


def test_ctrl_c_and_sigterm_say_what_is_left(kept: Project, container: Container) -> None:
    process = project_with_long_settle(kept)
    assert "2 files not uploaded yet" in stopped(kept, process, signal.SIGTERM)
    assert container.names() == []
    process = project_with_long_settle(kept)
    assert "2 files not uploaded yet" in stopped(kept, process)


def project_with_long_settle(project: Project) -> subprocess.Popen[str]:
    for file in project.data.rglob("*"):
        os.utime(file)
    process = project.start("keep", "data", "--settle", "1m")

    def has_looked() -> bool:
        return any(record["waiting"] == 2 for record in _records(project))

    assert wait_until(has_looked, seconds=_PATIENCE)
    return process


def test_a_mistake_from_the_beginning_ends_it_at_once(project: Project, container: Container) -> None:
    project.configure(container, sas=container.sas("r"), key=False)
    write_tree(project.data, {"a": b"one"})
    done = project.json("keep", "data", *_QUICKLY)
    assert done.code == 2 and "sas_permission" in done.codes, str(done)
    for words in (("data/a",), ("data/nix",), ("data", "--settle", "soon"), ("data", "--detach", "--until-idle")):
        assert project.run("keep", *words).code in (2, 4), words


def test_it_goes_on_after_an_outage_and_says_since_when(kept: Project, container: Container, service: str) -> None:
    with fault_proxy(service) as proxy:
        kept.configure(container, url=proxy.url)
        kept.environ["BLOBSYNC_OUTAGE_SECONDS"] = "1"
        process = started(kept)
        arrives(container, lambda: hashes({"a": b"one"}))
        knows(kept, 2)
        proxy.inject(Fault("reset_before", rate=1.0))
        write_at_once(kept, {"a": b"written in the dark"})

        def waits() -> bool:
            return any(record["problem"] for record in _records(kept))

        assert wait_until(waits, seconds=120)
        (state,) = kept.json("keep", "ls").data["keepers"]
        assert state["waiting"] == 1 and state["problem_since"]
        failed = len(kept.json("history").data["transfers"])
        asked = proxy.stats().requests
        time.sleep(1)
        # One request asks whether anybody answers; nothing is begun, and nothing spins.
        assert len(kept.json("history").data["transfers"]) == failed
        assert proxy.stats().requests - asked < 15
        proxy.inject()
        arrives(container, lambda: hashes({"a": b"written in the dark"}), seconds=120)
        assert wait_until(lambda: not waits(), seconds=_PATIENCE)
        said = stopped(kept, process)
        assert said.count("it goes on when that is over") == 1 and said.count("it goes on, after ") == 1


def test_a_login_that_was_renewed_is_read_again(kept: Project, container: Container, service: str) -> None:
    with fault_proxy(service) as proxy:
        kept.configure(container, url=proxy.url, sas=container.sas(hours=2), key=False)
        process = started(kept)
        arrives(container, lambda: hashes({"a": b"one"}))
        proxy.inject(Fault("expire", at=(1,)))
        write_tree(kept.data, {"a": b"after the end"})
        assert wait_until(lambda: any(record["problem"] for record in _records(kept)), seconds=120)
        kept.configure(container, url=proxy.url, sas=container.sas(hours=3), key=False)
        arrives(container, lambda: hashes({"a": b"after the end"}), seconds=120)
        stopped(kept, process)


def test_a_folder_that_is_moved_away_is_waited_for(kept: Project, container: Container) -> None:
    process = started(kept)
    arrives(container, lambda: hashes({"a": b"one"}))
    away = kept.root / "away"
    kept.data.rename(away)
    assert wait_until(lambda: any("not there" in str(each["problem"]) for each in _records(kept)), seconds=_PATIENCE)
    write_tree(away, {"later": b"later"})
    away.rename(kept.data)
    arrives(container, lambda: hashes({"a": b"one", "later": b"later"}))
    stopped(kept, process)


def test_in_the_background_it_is_listed_and_stopped(kept: Project, container: Container) -> None:
    begun = kept.json(
        "keep", "data", *_QUICKLY, "--detach", "-p", "{config_param: {data_folder: {ignore: [left-out]}}}"
    )
    assert begun.code == 0, str(begun)
    # It obeys -p, whose value may be a secret, and nobody sees it in the list of processes.
    assert b"left-out" not in Path(f"/proc/{begun.data['pid']}/cmdline").read_bytes()
    write_at_once(kept, {"left-out": b"x"})
    arrives(container, lambda: hashes({"a": b"one"}))
    assert wait_until(lambda: kept.json("keep", "ls").data["keepers"][0]["uploaded"] == 2, seconds=_PATIENCE)
    (state,) = kept.json("keep", "ls").data["keepers"]
    assert (state["paths"], state["pid"], state["waiting"]) == (["data"], begun.data["pid"], 0)
    shown = kept.run("keep", "ls").out
    assert f"data kept by process {state['pid']} of " in shown and "2 files uploaded" in shown
    assert kept.json("status").data["kept"][0]["id"] == state["id"]
    assert "kept by process" in kept.run("status").out
    assert kept.json("keep", "data", "--detach").code == 1
    done = kept.json("keep", "stop", "data")
    assert [each["id"] for each in done.data["stopped"]] == [state["id"]]
    assert not kept.json("keep", "ls").data["keepers"]
    assert kept.json("keep", "stop", "data").code == 4
    assert kept.json("keep", "stop").data["stopped"] == []
    for _, text in every_text_below(kept.root / ".blobsync"):
        assert container.key.encode() not in text


def test_a_terminal_shows_a_line_a_round_and_ctrl_c_ends_it(kept: Project, container: Container) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        [blobsync_command(), "keep", "data", *_QUICKLY],
        cwd=kept.root,
        stdin=side,
        stdout=side,
        stderr=side,
        env={**os.environ, **kept.environ, "TERM": "xterm", "NO_COLOR": "1"},
        start_new_session=True,
        preexec_fn=lambda: _take_terminal(side),
    )
    os.close(side)
    shown = bytearray()
    os.set_blocking(main, False)

    def read() -> str:
        # A terminal gives no more than a part at a time.
        with contextlib.suppress(BlockingIOError, OSError):
            while piece := os.read(main, 65536):
                shown.extend(piece)
        return shown.decode(errors="replace")

    try:
        line = re.compile(r"\d\d:\d\d:\d\d data: 2 files \([\d.]+ KB\) uploaded")
        assert wait_until(lambda: line.search(read()), seconds=_PATIENCE), read()
        write_at_once(kept, {"a": b"again"})
        assert wait_until(lambda: "data: 1 file (5 B) uploaded" in read(), seconds=_PATIENCE), read()
        os.write(main, b"\x03")
        assert process.wait(_PATIENCE) == 130
        assert "stopped: 3 files uploaded and verified in 2 rounds" in read()
        assert "Traceback" not in read()
    finally:
        process.kill()
        process.wait()
        os.close(main)


def _take_terminal(side: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(side, termios.TIOCSCTTY, 0)


class Editor:
    """Changes a folder at random: writes, appends, truncates, renames, deletes, whole folders, too.

    ``had`` is what each file ever was (SHA-256), known before it is. A file that is written in pieces was each of them:
    whoever writes slowly enough cannot be told from one who is done.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._chance = folder, random.Random(seed)
        self.edits = 0
        self.had: dict[str, set[str]] = {}
        for path in self._files():
            self._becomes(path, path.read_bytes())

    def edit(self) -> None:
        self.edits += 1
        kind = self._chance.choice(("new", "new", "write", "append", "truncate", "rename", "delete", "folder", "large"))
        with contextlib.suppress(OSError):
            self._do(kind, self._files())

    def change(self, file: Path) -> None:
        """Give a file other bytes."""
        self._write(file, self._chance.randbytes(1000))

    def _files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file() and not is_temporary(path.name)]

    def _becomes(self, path: Path, body: bytes) -> None:
        self.had.setdefault(str(path.relative_to(self._folder)), set()).add(sha256(body))

    def _write(self, path: Path, *pieces: bytes) -> None:
        for number in range(len(pieces) + 1):
            self._becomes(path, b"".join(pieces[:number]))
        with path.open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                time.sleep(0.01 if len(pieces) > 1 else 0)

    def _do(self, kind: str, files: list[Path]) -> None:
        chance = self._chance
        if kind == "new" or not files:
            # Names of files and of folders are not the same: no container can have both.
            folder = self._folder / f"d{chance.randrange(6)}" / f"e{chance.randrange(3)}"
            folder.mkdir(parents=True, exist_ok=True)
            self._write(folder / f"f{chance.randrange(200)}", chance.randbytes(chance.randrange(30_000)))
            return
        file = chance.choice(files)
        if kind == "write":
            self._write(file, chance.randbytes(chance.randrange(30_000)))
        elif kind == "append":
            more = chance.randbytes(500)
            self._becomes(file, file.read_bytes() + more)
            with file.open("ab", buffering=0) as end:
                end.write(more)
        elif kind == "truncate":
            size = chance.randrange(file.stat().st_size + 1)
            self._becomes(file, file.read_bytes()[:size])
            os.truncate(file, size)
        elif kind == "rename":
            self._rename(file, file.with_name(f"f{chance.randrange(200)}"))
        elif kind == "delete":
            file.unlink()
        elif kind == "folder":
            source = self._folder / f"d{chance.randrange(6)}"
            if chance.random() < 0.5:
                shutil.rmtree(source)
            else:
                self._rename(source, self._folder / f"d{chance.randrange(6, 12)}")
        else:
            self._write(file, *(chance.randbytes(300_000) for _ in range(12)))

    def _rename(self, path: Path, to: Path) -> None:
        for each in self._files():
            if each == path or path in each.parents:
                self._becomes(to / each.relative_to(path), each.read_bytes())
        path.rename(to)


class Looker:
    """Looks at the blobs: each has to be, whole, what its file was at a moment."""

    def __init__(self, container: Container, editor: Editor) -> None:
        self._container, self._editor = container, editor
        self._seen: dict[str, str] = {}
        self.looked, self.half = 0, list[str]()

    def look(self) -> None:
        for blob in self._container.listed("data/"):
            if self._seen.get(blob.name) == blob.etag:
                continue
            body, name = self._container.get(blob.name), blob.name.removeprefix("data/")
            self._seen[blob.name] = blob.etag
            self.looked += 1
            if sha256(body) not in self._editor.had.get(name, ()):
                self.half.append(f"{name}: {len(body):,} bytes")

    def has_seen(self, names: Iterable[str]) -> bool:
        return {f"data/{name}" for name in names} <= self._seen.keys()


@pytest.mark.kill
@pytest.mark.parametrize(("edits", "kills"), [(16, 1), pytest.param(1000, 10, marks=pytest.mark.soak)])
@pytest.mark.timeout(1500)
def test_random_edits_and_kills_end_exact(kept: Project, container: Container, edits: int, kills: int) -> None:
    chance, editor = random.Random(_SEED), Editor(kept.data, _SEED)
    at = sorted(chance.sample(range(1, edits), kills))
    process, looker = started(kept), Looker(container, editor)
    with meanwhile(looker.look):
        for number in range(edits):
            editor.edit()
            # Few edits come slowly, so that some of them are uploaded before the next one.
            time.sleep(chance.uniform(0, 0.15 if edits > 100 else 0.3))
            if number in at:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                process = started(kept)
        # A keeper that starts, or was killed while it did, has an empty file of its own there.
        expected = {name: digest for name, digest in read_tree(kept.data).items() if not is_temporary(Path(name).name)}
        arrives(container, lambda: expected, seconds=300)
        # At least one that was looked at gets another version, however slow the looks are.
        assert wait_until(lambda: looker.has_seen(expected), seconds=_PATIENCE)
        editor.change(kept.data / min(expected))
        expected[min(expected)] = sha256((kept.data / min(expected)).read_bytes())
        arrives(container, lambda: expected)
        stopped(kept, process)
    there = container.contents("data/")
    assert {name: there.get(name) for name in expected} == expected
    assert kept.json("keep", "data", *_QUICKLY, "--until-idle").code == 0
    assert kept.json("verify", "data", "--deep").data["counts"].get("differs", 0) == 0
    looker.look()
    assert not looker.half, "half files under their final names"
    # All that is there, also of files that are no longer here, and many of their versions in between.
    assert looker.looked > len(there) and editor.edits == edits
    print(f"{looker.looked} versions looked at, {len(there)} files there, {len(expected)} here")


@pytest.mark.soak
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may lower the limit")
@pytest.mark.parametrize("when", ["from the beginning", "later"])
def test_where_the_real_limit_is_reached_it_says_so_and_goes_on(kept: Project, container: Container, when: str) -> None:
    pytest.importorskip("watchfiles")
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    before = limit.read_text()
    write_tree(kept.data, {f"d{number}/f": b"x" for number in range(40)})
    try:
        process = started(kept) if when == "later" else None
        try:
            limit.write_text("16")
        except OSError:
            pytest.skip("the limit cannot be set here")
        process = process or started(kept)
        arrives(container, lambda: hashes({"d39/f": b"x"}))
        write_tree(kept.data, {"new/deep/f": b"x"})
        arrives(container, lambda: hashes({"new/deep/f": b"x"}))
        time.sleep(3)
        write_tree(kept.data, {"d39/later": b"later", "new/deep/later": b"later"})
        arrives(container, lambda: hashes({"d39/later": b"later", "new/deep/later": b"later"}), seconds=30)
        (state,) = kept.json("keep", "ls").data["keepers"]
        assert "limit of watched folders" in state["polling"]
        assert stopped(kept, process).count("limit of watched folders") == 1
    finally:
        limit.write_text(before)
