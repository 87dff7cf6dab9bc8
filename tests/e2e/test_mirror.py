"""--mirror deletes what is extra, and nothing else, and never on a mistake."""

from __future__ import annotations

import random
import re
import signal
import time
from dataclasses import replace

import pytest

from tests.e2e.terminal import on_terminal
from tests.e2e.world import Container, Project, as_ordinary_user, hashes, kill_tree, read_tree, write_tree
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

_FILES = {f"d{number // 10}/f{number}.txt": f"{number}".encode() for number in range(40)}
_EXTRA = {"extra/x.txt": b"x", "d0/y.txt": b"y"}


@pytest.fixture
def synced(project: Project, container: Container) -> Project:
    """40 files on both sides, and two more at the container only."""
    write_tree(project.data, _FILES)
    project.configure(container)
    assert project.json("u", "data").code == 0
    for name, data in _EXTRA.items():
        container.put(f"data/{name}", data)
    container.put("data2/other.txt", b"not ours")
    return project


def test_mirror_deletes_the_extras_and_nothing_beside_them_once_it_is_told_to(
    synced: Project, container: Container
) -> None:
    kept = synced.json("u", "data")
    assert (kept.code, kept.data["deleted"]) == (0, 0), "without --mirror"
    asked = synced.run("u", "data", "--mirror")
    assert asked.code in (1, 2) and "-y" in asked.err, str(asked)
    planned = synced.json("plan", "u", "data", "--mirror")
    deletions = {each["path"] for each in planned.data["actions"] if each["action"] == "delete"}
    assert planned.code == 0 and deletions == {f"data/{name}" for name in _EXTRA}, str(planned)
    assert set(container.contents("data/")) == {*_FILES, *_EXTRA}
    done = synced.json("u", "data", "--mirror", "-y")
    assert (done.code, done.data["deleted"]) == (0, 2), str(done)
    assert container.contents("data/") == hashes(_FILES)
    assert container.contents("data2/") == hashes({"other.txt": b"not ours"})


def test_a_source_that_is_missing_empty_or_not_read_whole_deletes_nothing(
    synced: Project, container: Container
) -> None:
    synced.configure(container, path="dat")
    mistyped = synced.json("d", "data", "--mirror", "-y")
    assert mistyped.code in (2, 4), str(mistyped)
    assert read_tree(synced.data) == hashes(_FILES)
    synced.configure(container)
    (synced.data / "d1").chmod(0)
    try:
        unread = replace(synced, before=as_ordinary_user()).json("u", "data", "--mirror", "-y")
    finally:
        (synced.data / "d1").chmod(0o755)
    assert unread.code in (2, 3), str(unread)
    synced.data.rename(synced.root / "elsewhere")
    missing = synced.json("u", "data", "--mirror", "-y")
    assert missing.code in (2, 4), str(missing)
    synced.data.mkdir()
    empty = synced.json("u", "data", "--mirror", "-y")
    assert (empty.code, empty.codes) == (2, {"mirror_refused"}), str(empty)
    assert set(container.contents("data/")) == {*_FILES, *_EXTRA}


def test_mirror_down_deletes_local_extras(synced: Project, container: Container) -> None:
    write_tree(synced.data, {"local/extra.txt": b"e"})
    done = synced.json("d", "data", "--mirror", "-y")
    assert (done.code, done.data["deleted"]) == (0, 1), str(done)
    assert read_tree(synced.data) == hashes({**_FILES, **_EXTRA})
    assert not (synced.data / "local").exists()


def _named(text: str) -> list[str]:
    """The files of the lines that say what would be deleted."""
    return re.findall(r"\bdelete +[\d.]+ K?B +(\S+)", text)


def test_one_of_seven_files_is_asked_about_and_named(project: Project, container: Container) -> None:
    files = {f"f{number}.txt": b"x" for number in range(7)}
    write_tree(project.data, files)
    project.configure(container)
    assert project.json("u", "data").code == 0
    (project.data / "f3.txt").unlink()
    asked = project.run("u", "data", "--mirror")
    assert asked.code == 2 and "cannot ask: delete 1 file" in asked.err, str(asked)
    assert _named(asked.err) == ["data/f3.txt"], str(asked)
    with on_terminal(project, "u", "data", "--mirror") as terminal:
        terminal.wait_for(lambda seen: "does not have? [y/N]" in " ".join(seen.lines()))
        assert _named("\n".join(terminal.lines())) == ["data/f3.txt"], str(terminal)
        terminal.type("y\n")
        assert terminal.finish().code == 0
    assert set(container.contents("data/")) == {*files} - {"f3.txt"}


def test_what_would_be_deleted_is_listed_ten_or_all(synced: Project, container: Container) -> None:
    for number in range(12):
        (synced.data / f"d1/f1{number}.txt").unlink(missing_ok=True)
    refused = synced.run("u", "data", "--mirror", "-y")
    assert refused.code == 2 and len(_named(refused.err)) == 10, str(refused)
    assert "... and 2 more, --full shows all" in refused.err
    assert "12 of 42 files (29 %), more than the limit of 1,000 files or 10 %: data/d0/y.txt, data/d1/f10.txt" in (
        " ".join(refused.err.split())
    )
    for words in (("--mirror", "-y", "--full"), ("--mirror", "--max-delete", "50%", "--full")):
        full = synced.run("u", "data", *words)
        assert len(_named(full.err)) == 12, str(full)
    dry = synced.run("u", "data", "--mirror", "--dry-run", "--full")
    assert len(_named(dry.out)) == 12, str(dry)
    assert len(container.contents("data/")) == 42


def test_above_the_limit_nothing_is_deleted(synced: Project, container: Container) -> None:
    for number in range(20):
        (synced.data / f"d{number // 10}/f{number}.txt").unlink()
    done = synced.json("u", "data", "--mirror", "-y")
    assert (done.code, done.codes) == (2, {"mirror_refused"}), str(done)
    assert len(container.contents("data/")) == 42
    for words in (("plan", "u", "data", "--mirror"), ("u", "data", "--mirror", "--dry-run"), ("u", "data", "--mirror")):
        shown = synced.json(*words)
        assert (shown.code, shown.codes) == (2, {"mirror_refused"}), str(shown)
        deletions = [each for each in shown.data.get("actions", []) if each["action"] == "delete"]
        assert len(deletions) == (22 if "actions" in shown.data else 0)
        assert ("actions" in shown.data) == (words[0] == "plan" or "--dry-run" in words)
    told = synced.json("u", "data", "--mirror", "-y", "--max-delete", "100")
    assert (told.code, told.data["deleted"]) == (0, 22), str(told)
    assert container.contents("data/") == {name: each for name, each in hashes(_FILES).items() if int(name[4:-4]) >= 20}


def test_extras_changed_since_the_plan_stay(synced: Project, container: Container) -> None:
    """A saved plan deletes only what it saw."""
    plan = synced.root / "mirror.plan"
    assert synced.json("plan", "u", "data", "--mirror", "--save", str(plan)).code == 0
    container.put("data/extra/x.txt", b"somebody needs this now")
    done = synced.json("apply", str(plan), "-y")
    assert container.get("data/extra/x.txt") == b"somebody needs this now", str(done)
    assert done.code != 0


def test_a_saved_plan_with_a_limit_is_carried_out(synced: Project, container: Container) -> None:
    for limit in ("50%", "2", "999999999999999"):
        for name, data in _EXTRA.items():
            container.put(f"data/{name}", data)
        planned = synced.json("plan", "u", "data", "--mirror", "--max-delete", limit, "--save", "mirror.plan")
        assert planned.code == 0, str(planned)
        done = synced.json("apply", "mirror.plan", "-y")
        assert (done.code, done.data["deleted"]) == (0, 2), str(done)
        assert container.contents("data/") == hashes(_FILES)


@pytest.mark.kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moments", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_saved_plan_that_is_killed_at_a_random_moment_deletes_no_more_and_is_finished(
    synced: Project, container: Container, service: str, moments: int
) -> None:
    """What is left is carried out as it is, or made a plan again, as the message says."""
    words = ("u", "data", "--mirror", "--max-delete", "50%")

    def plan() -> set[str]:
        """Save it; the names that it deletes."""
        planned = synced.json("plan", *words, "--save", "mirror.plan")
        assert planned.code == 0, str(planned)
        return {each["path"] for each in planned.data["actions"] if each["action"] == "delete"}

    def begin(number: int) -> set[str]:
        """Files to send, and blobs to delete."""
        extra = [f"data/extra{number}/{each}" for each in range(30)]
        for name in extra:
            container.put(name, b"extra")
        write_tree(synced.data, {f"new/{each}": f"{number} {each}".encode() for each in range(20)})
        names = plan()
        assert names == set(extra)
        return names

    assert synced.json(*words, "-y").code == 0
    killed = refused = 0
    with fault_proxy(service, Fault("stall", rate=0.3, operations=("put blob", "delete blob"), seconds=0.05)) as line:
        synced.configure(container, url=line.url)
        begin(-1)
        whole = synced.json("apply", "mirror.plan", "-y")
        assert (whole.code, whole.data["deleted"]) == (0, 30), str(whole)
        for number in range(moments):
            moment = random.Random(number).uniform(0, whole.seconds)
            names = begin(number)
            there = set(container.names("data/"))
            process = synced.start("apply", "mirror.plan", "-y", "--json")
            time.sleep(moment)
            kill_tree(process.pid)
            killed += synced.finish(process).code == -signal.SIGKILL
            assert there - names <= set(container.names("data/")), moment
            if number % 2:
                # No blob of that plan.
                container.put("data/later", b"of somebody else")
            done = synced.json("apply", "mirror.plan", "-y")
            where = f"killed after {moment:.2f} of {whole.seconds:.2f} s: {done}"
            if done.code == 2:
                refused += 1
                assert done.codes == {"plan_file_invalid"} and "save the plan again" in str(done), where
                assert ("data/later" in container.names("data/")) == bool(number % 2), where
                there = set(container.names("data/"))
                names = plan()
                done = synced.json("apply", "mirror.plan", "-y")
            else:
                assert not number % 2, where
            assert (done.code, done.errors) == (0, []), where
            assert there - names <= set(container.names("data/")), where
            assert container.contents("data/") == read_tree(synced.data), where
    assert killed >= moments // 2 and refused >= moments // 2


def test_an_extra_that_is_rewritten_during_the_transfer_stays(
    synced: Project, container: Container, service: str
) -> None:
    (synced.data / "new.txt").write_bytes(b"new")
    with fault_proxy(service, Fault("hold", at=(1,), operations=("put blob",))) as line:
        synced.configure(container, url=line.url)
        process = synced.start("u", "data", "--mirror", "-y", "--json")
        assert wait_until(line.is_holding)
        container.put("data/extra/x.txt", b"somebody needs this now")
        line.release()
        done = synced.finish(process)
    assert (done.code, done.data["deleted"]) == (3, 1), str(done)
    assert done.named() == {"data/extra/x.txt"}
    assert container.get("data/extra/x.txt") == b"somebody needs this now"
