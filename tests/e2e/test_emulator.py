"""The emulator is real Azurite: it starts, answers, keeps what it should keep, and never lingers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient

from blobsync.base.errors import EmulatorError
from blobsync.base.process import ProcessRunner
from blobsync.base.redaction import Secret
from blobsync.config.model import EMULATOR_ACCOUNT
from blobsync.config.scaffold import EMULATOR_CONTAINER
from blobsync.emulator import Emulator, EmulatorState, make_container, new_key
from blobsync.emulator.nodejs import ensure_node
from blobsync.emulator.server import QUICK_LOOKUPS
from tests.conftest import TOOLS, Azurite
from tests.e2e.world import Project, write_tree
from tests.servers.ports import free_ports

pytestmark = pytest.mark.e2e


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[Emulator]:
    """One with a data directory of its own, where the installed programs are borrowed."""
    for installed in TOOLS.glob("azurite-*"):
        (tmp_path / installed.name).symlink_to(installed)
    emulator = Emulator(tmp_path, environ=dict(os.environ))
    yield emulator
    emulator.stop()


def client(state: EmulatorState, account: str, key: str) -> BlobServiceClient:
    return BlobServiceClient(state.endpoint(account), credential=key, retry_total=0)


def gone(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def await_true(what: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_serves_the_users_own_account_and_keeps_blobs_over_a_restart(emulator: Emulator) -> None:
    state = emulator.start()
    key = emulator.own_account().key.reveal()
    assert emulator.status() == state
    assert state.accounts == (EMULATOR_ACCOUNT,)
    with client(state, EMULATOR_ACCOUNT, key) as service:
        assert [box.name for box in service.list_containers()] == [EMULATOR_CONTAINER]
        service.create_container("box").upload_blob("a", b"kept")
    assert emulator.stop() == state
    assert emulator.status() is None
    await_true(lambda: gone(state.pid))
    again = emulator.start(port=None)
    assert again.port == state.port
    with client(again, EMULATOR_ACCOUNT, key) as service:
        assert service.get_blob_client("box", "a").download_blob().readall() == b"kept"


def test_keys_are_given_by_the_caller_and_written_nowhere_and_open_connections_do_not_hold_up_the_stop(
    emulator: Emulator, tmp_path: Path
) -> None:
    key = new_key()
    state = emulator.start({"mine": key})
    service = client(state, "mine", key.reveal())
    service.create_container("box")
    for file in (tmp_path / "emulator").rglob("*"):
        assert not file.is_file() or key.reveal() not in file.read_text(errors="replace")
    command = Path(f"/proc/{state.pid}/cmdline").read_text()
    assert key.reveal() not in command
    with service:
        emulator.stop()
        # A server that is held up ends with 1 after ten seconds, or is killed.
        assert os.waitstatus_to_exitcode(os.waitpid(state.pid, 0)[1]) == 0


def test_a_stop_before_azurite_handles_signals_waits_for_it_and_keeps_the_blobs(tmp_path: Path) -> None:
    for installed in TOOLS.glob("azurite-*"):
        (tmp_path / installed.name).symlink_to(installed)
    slow = tmp_path / "slow.js"
    # Azurite looks at its folder after it has said that it listens, and handles signals after that.
    slow.write_text(
        "const fs = require('fs'); const access = fs.access;"
        "fs.access = (...given) => setTimeout(() => access.apply(fs, given), 1500);"
    )
    emulator = Emulator(tmp_path, environ=dict(os.environ), preloads=(QUICK_LOOKUPS, slow))
    key = new_key()
    state = emulator.start({"mine": key})
    with client(state, "mine", key.reveal()) as service:
        service.create_container("box").upload_blob("a", b"kept")
    emulator.stop()
    assert os.waitstatus_to_exitcode(os.waitpid(state.pid, 0)[1]) == 0
    emulator = Emulator(tmp_path, environ=dict(os.environ))
    try:
        with client(emulator.start({"mine": key}), "mine", key.reveal()) as service:
            assert service.get_blob_client("box", "a").download_blob().readall() == b"kept"
    finally:
        emulator.stop()


def servers_of(home: Path) -> set[int]:
    """The servers that keep their blobs below this data directory."""
    found = set[int]()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = file.read_text(errors="replace").split("\0")
            found.update({int(file.parent.name)} if str(home / "emulator" / "blobs") in words else ())
    return found


STARTS = (
    "import os, sys\nfrom pathlib import Path\nfrom blobsync.emulator import Emulator\n"
    "print(Emulator(Path(sys.argv[1]), environ=dict(os.environ)).start(port=None))\n"
)


def test_starts_at_once_and_killed_ones_leave_one_server(emulator: Emulator, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", STARTS, str(tmp_path)]
    at_once = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {starting.communicate()[0] for starting in at_once}
    state = emulator.status()
    assert state is not None and said == {f"{state}\n"}
    assert servers_of(tmp_path) == {state.pid}
    emulator.stop()
    with subprocess.Popen(argv) as killed:
        await_true(lambda: bool(servers_of(tmp_path)))
        await_true((tmp_path / "emulator" / "state.json").exists)
        killed.kill()
    (left,) = servers_of(tmp_path)
    assert emulator.status() is None
    again = emulator.start(port=None)
    assert (again.port, servers_of(tmp_path)) == (state.port, {again.pid}) and again.pid != left


# Azurite's own, which everybody knows.
PUBLIC_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def test_its_key_is_its_users_and_nobody_else_is_stopped_in_its_place(emulator: Emulator, tmp_path: Path) -> None:
    state = emulator.start(in_memory=True)
    assert emulator.start(in_memory=True) == state
    assert emulator.start(port=state.port, in_memory=True) == state
    for other in ({}, {"port": state.port + 1, "in_memory": True}, {"accounts": {"a": new_key()}, "in_memory": True}):
        with pytest.raises(EmulatorError, match=f"process {state.pid}, port {state.port}") as caught:
            emulator.start(**other)
        assert caught.value.hint == "blobsync emulator stop, then start it again"
    assert emulator.status() == state
    with client(state, EMULATOR_ACCOUNT, PUBLIC_KEY) as service, pytest.raises(HttpResponseError) as refused:
        list(service.list_containers())
    assert refused.value.status_code == 403
    key = emulator.own_account().key.reveal()
    holding = [file for file in tmp_path.rglob("*") if file.is_file() and "azurite-" not in str(file)
               and key in file.read_text(errors="replace")]  # fmt: skip
    assert [file.name for file in holding] == ["account.json"]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(holding[0].parent.stat().st_mode) == 0o700
    # A process that got the number of a dead server is never signalled.
    os.kill(state.pid, signal.SIGKILL)
    await_true(lambda: gone(state.pid))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as innocent:
        record = tmp_path / "emulator" / "state.json"
        record.write_text(record.read_text().replace(str(state.pid), str(innocent.pid)))
        assert emulator.stop() is None
        assert innocent.poll() is None
        innocent.kill()


def test_a_project_and_the_emulator_agree_on_port_and_key(emulator: Emulator, tmp_path: Path) -> None:
    """Whichever of the two commands comes first."""
    project = Project(tmp_path / "project", {"XDG_DATA_HOME": str(tmp_path / "share")})
    project.root.mkdir()
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "blobsync").symlink_to(tmp_path)
    made = project.run("config", "new", "--emulator")
    assert made.code == 0 and made.out.endswith("next: blobsync emulator start\n"), str(made)
    (project.root / "aux_data" / "configs" / "storage.yaml").unlink()
    started = project.json("emulator", "start", "--port", "0")
    again = project.json("emulator", "start")
    assert (started.code, again.code) == (0, 0), str(again)
    assert (started.data["already_running"], again.data["already_running"]) == (False, True)
    assert again.data["pid"] == started.data["pid"]
    remade = project.run("config", "new", "--emulator")
    # It runs already.
    assert remade.code == 0 and remade.out.endswith("next: put files into data, then: blobsync u data\n"), str(remade)
    (project.root / "data").mkdir()
    (project.root / "data" / "a").write_text("a")
    assert project.run("u", "data").code == 0
    assert project.run("emulator", "stop").code == 0
    stopped = project.run("ls", "data")
    assert (stopped.code, stopped.err) == (
        1,
        (
            f"blobsync: the emulator is not running at 127.0.0.1, port {started.data['port']} (3 tries)\n"
            f"  hint: blobsync emulator start --port {started.data['port']}\n"
        ),
    )
    assert project.json("emulator", "start").data["port"] == started.data["port"]
    assert project.run("ls", "data").out == "data/a\n"


def test_a_damaged_account_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    (tmp_path / "emulator" / "account.json").write_text("{}")
    with pytest.raises(EmulatorError, match="is damaged"):
        Emulator(tmp_path).own_account()


def test_a_port_that_is_taken_is_said_so(emulator: Emulator) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmulatorError, match=f"port {port} of"):
            emulator.start(port=port)
        with pytest.raises(EmulatorError, match=f"port {port} of"), emulator.session({"one": new_key()}, port=port):
            pass
    assert emulator.status() is None


def test_where_another_program_has_the_usual_port_it_takes_another_and_the_project_learns_it(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", {"XDG_DATA_HOME": str(tmp_path / "share")})
    project.root.mkdir()
    home = tmp_path / "share" / "blobsync"
    home.mkdir(parents=True)
    for installed in TOOLS.glob("azurite-*"):
        (home / installed.name).symlink_to(installed)
    assert project.run("config", "new", "--emulator").code == 0
    storage = project.root / "aux_data/configs/storage.yaml"
    first = int(re.findall(r"127\.0\.0\.1:(\d+)/", storage.read_text())[0])
    # Not the usual one itself, which another emulator of this machine may have.
    (port,) = free_ports(1)
    for file in (storage, home / "emulator" / "account.json"):
        file.write_text(file.read_text().replace(str(first), str(port)))
    try:
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            started = project.json("emulator", "start")
        assert started.code == 0 and started.data["port"] != port, started
        assert started.data["written"] == ["aux_data/configs/storage.yaml"]
        assert f"127.0.0.1:{started.data['port']}/" in storage.read_text()
        write_tree(project.data, {"a": b"one"})
        assert project.run("u", "data").code == 0
        assert project.json("emulator", "start").data["written"] == []
        # A container that an account file names is made by the emulator, too.
        storage.write_text(storage.read_text().replace("container_name: demo", "container_name: other"))
        assert "blobsync emulator start" in project.run("u", "data").err
        assert project.json("emulator", "start").data["made"] == ["other"]
        assert project.run("u", "data").code == 0
    finally:
        project.run("emulator", "stop")


def test_a_server_that_crashes_at_the_start_is_quoted(emulator: Emulator, tmp_path: Path) -> None:
    broken = tmp_path / "broken.js"
    broken.write_text("throw new Error('no such luck');\n")
    crashing = Emulator(tmp_path, environ=dict(os.environ), preloads=[broken])
    with pytest.raises(EmulatorError, match="no such luck"):
        crashing.start()
    with pytest.raises(EmulatorError, match="no such luck"), crashing.session({"one": new_key()}):
        pass


def test_an_unreadable_record_means_no_server(emulator: Emulator, tmp_path: Path) -> None:
    (tmp_path / "emulator").mkdir()
    for text in ("", "{}", "[1]", '{"pid": 1}'):
        (tmp_path / "emulator" / "state.json").write_text(text)
        assert emulator.status() is None


def test_a_session_ends_when_its_process_is_killed() -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom blobsync.emulator import Emulator, new_key\n"
        "with Emulator(Path(sys.argv[1])).session({'one': new_key()}) as state:\n"
        "    print(state.pid, flush=True)\n    time.sleep(60)\n"
    )
    argv = [sys.executable, "-c", code, str(TOOLS)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        owner.kill()
    await_true(lambda: not Path(f"/proc/{server}/cmdline").exists() or not Path(f"/proc/{server}/cmdline").read_bytes())


def test_containers_are_made_once_and_found_again(azurite: Azurite) -> None:
    state = EmulatorState(azurite.pid, int(azurite.url.rpartition(":")[2]), ("one",), None, "")
    container, key = state.container("one", "made-here"), Secret(azurite.keys["one"])
    assert (make_container(container, key), make_container(container, key)) == (True, False)
    assert str(container) == f"{azurite.url}/one/made-here"
    with BlobServiceClient(azurite.endpoint("one"), credential=azurite.keys["one"]) as service:
        assert service.get_container_client("made-here").exists()
        service.delete_container("made-here")


def test_quick_lookups_change_no_answer(azurite: Azurite, tmp_path: Path) -> None:
    """Stock Azurite and the one that finds blobs quickly answer the same to the same requests."""
    stock_keys = {"one": new_key()}
    with Emulator(TOOLS, preloads=()).session(stock_keys) as stock:
        answers = []
        for endpoint, key in (
            (stock.endpoint("one"), stock_keys["one"].reveal()),
            (azurite.endpoint("one"), azurite.keys["one"]),
        ):
            with BlobServiceClient(endpoint, credential=key) as service:
                answers.append(_conversation(service))
    assert answers[0] == answers[1]
    assert len(answers[0]) > 20


# A collection like Azurite's of blobs: how often is an index sorted anew while 50 of 400 are deleted, is what is left
# found by each key, and is every index still in order?
_REMOVALS = """
const loki = require("lokijs");
const box = new loki("x").addCollection("blobs", { indices: ["accountName", "name"] });
for (let n = 0; n < 400; n++) box.insert({ accountName: "a", name: "d/" + (n * 7919) % 400 });
let sorted = 0;
const ensure = box.ensureIndex;
box.ensureIndex = function (...given) { sorted += 1; return ensure.apply(this, given); };
for (let n = 0; n < 50; n++) box.findAndRemove({ accountName: "a", name: "d/" + n * 8 });
delete box.ensureIndex;
const left = box.chain().find({ accountName: "a" }).data().map((each) => each.name);
const each = left.filter((name) => box.find({ name }).length === 1).length;
const gone = box.find({ name: "d/8" }).length;
console.log(JSON.stringify([sorted, left.length, each, gone, box.checkAllIndexes()]));
"""


def test_deleting_a_blob_sorts_no_index_anew(azurite: Azurite, tmp_path: Path) -> None:
    (modules,) = TOOLS.glob("azurite-*/node_modules")
    (tmp_path / "node_modules").symlink_to(modules)
    (tmp_path / "removals.js").write_text(_REMOVALS)
    node = ensure_node(TOOLS, environ=os.environ, runner=ProcessRunner(), note=lambda _: None).node

    def said(*words: str) -> list[object]:
        argv = [str(node), *words, str(tmp_path / "removals.js")]
        answer = subprocess.run(argv, capture_output=True, text=True, check=True)
        return list(json.loads(answer.stdout))

    assert said("-r", str(QUICK_LOOKUPS)) == [0, 350, 350, 0, []]
    assert said()[0] != 0


def _conversation(service: BlobServiceClient) -> list[object]:
    heard: list[object] = []
    for container in ("same-a", "same-b"):
        box = service.create_container(container)
        for name in ("x", "x/y", "x.y", "é", "a/b/c", "a/b/d"):
            box.upload_blob(name, f"{container} {name}".encode())
        box.upload_blob("x", b"second", overwrite=True)
    for container in ("same-a", "same-b", "same-missing"):
        box = service.get_container_client(container)
        for prefix in (None, "x", "a/b/", "none"):
            try:
                heard.append([(blob.name, blob.size) for blob in box.list_blobs(name_starts_with=prefix)])
            except HttpResponseError as error:
                heard.append(getattr(error, "error_code", None))
        for name in ("x", "x/y", "a/b", "é"):
            try:
                heard.append(box.download_blob(name).readall())
            except HttpResponseError as error:
                heard.append(getattr(error, "error_code", None))
        with suppress(HttpResponseError):
            box.delete_blob("x")
            heard.append([blob.name for blob in box.list_blobs()])
        with suppress(HttpResponseError):
            snapshot = str(box.get_blob_client("a/b/c").create_snapshot()["snapshot"])
            box.get_blob_client("a/b/c", snapshot=snapshot).delete_blob()
            box.get_blob_client("a/b/c").create_snapshot()
            box.get_blob_client("a/b/c").create_snapshot()
            box.delete_blob("a/b/c", delete_snapshots="include")
            box.upload_blob("a/b/c", b"again")
            heard.append(
                [(blob.name, blob.size, bool(blob.snapshot)) for blob in box.list_blobs(include=["snapshots"])]
            )
            heard.append(box.download_blob("a/b/c").readall())
    for container in ("same-a", "same-b"):
        service.delete_container(container)
    return heard
