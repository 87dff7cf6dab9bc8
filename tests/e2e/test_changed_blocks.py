"""Large files on real Azurite: what a killed or a second upload sends, and all that it must not take for there."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.storage.blob._generated.models import BlobHTTPHeaders, BlockLookupList

from blobsync.base.file_states import LocalState
from blobsync.base.redaction import Secret
from blobsync.config.model import StorageAccount
from blobsync.direct.engine import DirectEngine
from blobsync.local.resume_records import BlockJournal
from blobsync.plan.blocks import block_size
from blobsync.store.connect import connect
from blobsync.store.open_locations import OpenBlob
from blobsync.store.protocol import block_id_of
from blobsync.store.sas import mint_sas
from tests.e2e.world import Container, Project, blobsync_command, sha256
from tests.fakes.tasks import RecordingListener, moved_by, upload
from tests.servers.fault_proxy import Fault, FaultHandle
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MIB = 1 << 20
SIZE = 18 * MIB
BLOCK = block_size(SIZE)
BODY = random.Random(5).randbytes(SIZE)
CHANGED = BODY[: 9 * MIB] + b"changed" + BODY[9 * MIB + 7 :]
UP = ("u", "data", "--engine", "direct")


@pytest.fixture
def large(project: Project, container: Container, counting: FaultHandle) -> Project:
    """A project whose one file is large."""
    project.configure(container, url=counting.url)
    project.data.mkdir()
    (project.data / "a.bin").write_bytes(BODY)
    return project


def sent(project: Project, counting: FaultHandle, *words: str) -> int:
    """Upload until done; how many bytes of content that sent."""
    counting.reset()
    done = project.json(*UP, *words)
    assert done.code == 0, str(done)
    size = counting.stats().uploaded
    assert done.data["bytes_transferred"] == size, str(done)
    return size


def in_journal(project: Project) -> int:
    """How many bytes the journal of blocks knows as sent."""
    return int(sum(size for (size,) in project.unfinished("SELECT size FROM pieces")))


def killed_at(project: Project, counting: FaultHandle, size: int) -> None:
    """kill -9 as soon as so many bytes are known as sent."""
    # However late the kill comes, it is not after the commit.
    counting.inject(Fault("hold", rate=1, operations=("put block list",)))
    process = project.start(*UP, "--cap-mbps", "60")
    assert wait_until(lambda: in_journal(project) >= size, seconds=60, pause=0.005)
    os.kill(process.pid, signal.SIGKILL)
    project.finish(process)
    counting.inject()
    counting.drop()
    counting.reset()


def hold_the_last_blocks(counting: FaultHandle, sent: int = 6) -> None:
    """Hold all but so many of nine: however late a change of the file comes, it is not after its upload."""
    counting.inject(Fault("hold", at=tuple(range(sent + 1, 1000)), operations=("put block",)))


def pass_the_last_blocks(counting: FaultHandle) -> None:
    counting.inject()
    counting.release()


def demand(container: Container, body: bytes) -> None:
    assert container.contents("data/") == {"a.bin": sha256(body)}
    found = container.blob("data/a.bin").get_blob_properties().content_settings.content_md5
    assert found is not None and bytes(found) == hashlib.md5(body).digest()


@pytest.mark.kill
def test_after_a_kill_at_half_the_rest_is_sent(large: Project, container: Container, counting: FaultHandle) -> None:
    killed_at(large, counting, SIZE // 2)
    assert container.names() == []
    plan = large.json("plan", *UP)
    assert plan.data["actions"][0]["on_record"] == plan.data["bytes_on_record"] >= SIZE // 2, str(plan)
    assert sent(large, counting) <= SIZE // 2
    demand(container, BODY)
    assert container.names(uncommitted=True) == container.names()


def test_a_changed_file_sends_what_changed(large: Project, container: Container, counting: FaultHandle) -> None:
    assert sent(large, counting) == SIZE
    (large.data / "a.bin").write_bytes(CHANGED)
    plan = large.run("plan", *UP)
    assert "a.bin, only the blocks that changed" in plan.out, str(plan)
    assert sent(large, counting) == BLOCK
    assert large.json("history").data["transfers"][0]["bytes"] == BLOCK
    demand(container, CHANGED)
    (large.data / "a.bin").write_bytes(CHANGED + b"more")
    assert sent(large, counting) == 4
    demand(container, CHANGED + b"more")
    assert large.json(*UP).data["unchanged"] == 1


def test_a_commit_sends_the_content_type_again(large: Project, container: Container, counting: FaultHandle) -> None:
    (large.data / "a.bin").rename(large.data / "a.json")
    for body in (BODY, CHANGED):
        (large.data / "a.json").write_bytes(body)
        sent(large, counting)
        kept = container.blob("data/a.json").get_blob_properties()
        assert (kept.content_settings.content_type, kept.metadata) == ("application/json", {})


def test_a_blob_that_azcopy_replaced_is_sent_whole(
    large: Project, with_azcopy: Project, container: Container, counting: FaultHandle
) -> None:
    sent(large, counting)
    (large.data / "a.bin").write_bytes(BODY[::-1])
    assert large.json("u", "data", "--engine", "azcopy").code == 0
    (large.data / "a.bin").write_bytes(CHANGED)
    assert sent(large, counting) == SIZE
    demand(container, CHANGED)


@pytest.mark.parametrize("same_md5", [False, True])
def test_foreign_blocks_under_our_tag_are_never_kept(
    same_md5: bool, large: Project, container: Container, counting: FaultHandle
) -> None:
    """Somebody commits other bytes under the very ids; with the MD5 on record the survey even takes them for equal."""
    sent(large, counting)
    blob = container.blob("data/a.bin")
    kept = blob.get_blob_properties().content_settings
    client: Any = blob._client.block_blob
    names = [block_id_of(hashlib.sha256(BODY[at : at + BLOCK]).digest()) for at in range(0, SIZE, BLOCK)]
    for name in names:
        client.stage_block(name, BLOCK, b"\0" * BLOCK)
    md5 = bytes(kept.content_md5 or b"") if same_md5 else bytes(16)
    client.commit_block_list(BlockLookupList(latest=names), blob_http_headers=BlobHTTPHeaders(blob_content_md5=md5))
    if same_md5:
        os.utime(large.data / "a.bin", ns=(5, 5))
        assert large.json(*UP).data["unchanged"] == 1
    (large.data / "a.bin").write_bytes(CHANGED)
    assert sent(large, counting, *(() if same_md5 else ("--overwrite",))) == SIZE
    demand(container, CHANGED)


def test_a_copy_from_server_to_server_onto_the_blob_is_replaced_whole(
    large: Project, container: Container, counting: FaultHandle
) -> None:
    sent(large, counting)
    (large.data / "other.bin").write_bytes(BODY[::-1])
    sent(large, counting)
    other = container.blob("data/other.bin")
    container.blob("data/a.bin").start_copy_from_url(f"{other.url}?{container.sas('r')}", requires_sync=True)
    (large.data / "a.bin").write_bytes(CHANGED)
    done = large.json(*UP)
    assert done.code == 3 and done.data["conflicts"] == 1, str(done)
    assert sent(large, counting, "--overwrite") == SIZE
    assert sha256(container.get("data/a.bin")) == sha256(CHANGED)


def test_uncommitted_blocks_of_somebody_else_under_our_ids_are_replaced(
    large: Project, container: Container, counting: FaultHandle
) -> None:
    client: Any = container.blob("data/a.bin")._client.block_blob
    for at in range(0, SIZE, BLOCK):
        client.stage_block(block_id_of(hashlib.sha256(BODY[at : at + BLOCK]).digest()), BLOCK, b"\0" * BLOCK)
    assert sent(large, counting) == SIZE
    demand(container, BODY)


def test_two_writers_of_one_blob_leave_one_of_the_two(
    large: Project, container: Container, counting: FaultHandle, tmp_path: Path
) -> None:
    other = Project(tmp_path / "other", large.environ)
    other.root.mkdir()
    other.configure(container, url=counting.url)
    other.data.mkdir()
    mixed = BODY[: SIZE // 2] + BODY[: SIZE // 2][::-1]
    (other.data / "a.bin").write_bytes(mixed)
    for turn in range(2):
        writers = [each.start(*UP, "--overwrite", "--cap-mbps", "400", "--json") for each in (large, other)]
        ended = [each.finish(writer) for each, writer in zip((large, other), writers, strict=True)]
        assert {done.code for done in ended} <= {0, 1, 3}, "\n".join(map(str, ended))
        assert container.contents("data/")["a.bin"] in {sha256(BODY), sha256(mixed)}
        # Whoever says that it is done last has done it.
        assert large.json(*UP, "--overwrite").code == 0
        demand(container, BODY)
        mixed = mixed[: -turn - 1] + b"x" * (turn + 1)
        (other.data / "a.bin").write_bytes(mixed)


def test_a_file_that_changes_while_its_blocks_are_sent(
    large: Project, container: Container, counting: FaultHandle
) -> None:
    hold_the_last_blocks(counting)
    process = large.start(*UP, "--cap-mbps", "120", "--json")
    assert wait_until(lambda: counting.stats().uploaded >= 4 * MIB, seconds=60, pause=0.005)
    with (large.data / "a.bin").open("r+b") as file:
        file.seek(MIB)
        file.write(b"changed under way")
    pass_the_last_blocks(counting)
    done = large.finish(process)
    now = (large.data / "a.bin").read_bytes()
    found = container.contents("data/")
    assert (done.code == 0) == (found == {"a.bin": sha256(now)}), str(done)
    assert set(found.values()) <= {sha256(now)}
    assert large.json(*UP).code == 0
    demand(container, now)
    # What was sent before the change was not sent again.
    assert counting.stats().uploaded < 1.5 * SIZE


_SIZES = (0, 1, 5 * MIB, 40 * MIB)


@pytest.mark.parametrize(
    ("before", "size"),
    [
        ("whole", 0),
        ("cut off", 5 * MIB),
        *(pytest.param(before, size, marks=pytest.mark.soak) for before in ("whole", "cut off") for size in _SIZES * 3),
    ],
)
def test_a_file_whose_size_changes_while_its_difference_is_sent(
    before: str, size: int, large: Project, container: Container, counting: FaultHandle
) -> None:
    """Whatever its program makes of it meanwhile is one more version to send."""
    if before == "whole":
        sent(large, counting)
    else:
        killed_at(large, counting, 5 * MIB)
    later = random.Random(6).randbytes(size)
    file = large.data / "a.bin"
    file.write_bytes(random.Random(7).randbytes(SIZE))
    counting.reset()
    blocks = random.randrange(1, 7)
    hold_the_last_blocks(counting, blocks)
    process = large.start(*UP, "--json")
    # A held block keeps the next attempt from the moment in which the file is empty.
    assert wait_until(lambda: counting.is_holding() and counting.stats().uploaded >= blocks * BLOCK, pause=0.005)
    file.write_bytes(later)
    pass_the_last_blocks(counting)
    done = large.finish(process)
    assert done.code == 0, f"after {blocks} blocks: {done}"
    demand(container, later)
    assert sent(large, counting) == 0


_KINDS = ("emptied", "cut", "rewritten", "replaced", "written in steps")
_STEP = 3 * MIB


def _change(file: Path, kind: str, chance: random.Random) -> None:
    """What a program does to its file."""
    if kind in ("emptied", "cut"):
        os.truncate(file, 0 if kind == "emptied" else chance.randrange(1, SIZE))
        return
    body = chance.randbytes(chance.randrange(8 * MIB, 2 * SIZE))
    if kind == "replaced":
        other = file.parent.parent / "newer"
        other.write_bytes(body)
        other.replace(file)
        return
    with file.open("wb") as writing:
        for at in range(0, len(body), _STEP):
            writing.write(body[at : at + _STEP])
            writing.flush()
            time.sleep(0.1 if kind == "written in steps" else 0)


def _is_there(counting: FaultHandle, process: subprocess.Popen[str], moment: float) -> bool:
    """Whether so many bytes were sent; true of an upload that has ended, too."""
    return counting.stats().uploaded >= moment or process.poll() is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize("moments", [2, pytest.param(40, marks=pytest.mark.soak)])
def test_whatever_happens_to_a_file_at_a_random_moment_a_whole_version_arrives(
    moments: int, large: Project, container: Container, counting: FaultHandle
) -> None:
    """The difference to the blob is sent meanwhile; each change is one more version to send."""
    file, slowly = large.data / "a.bin", (*UP, "--json", "--cap-mbps", "120")
    sent(large, counting)
    for number in range(moments):
        chance, kind = random.Random(f"moment {number}"), _KINDS[number % len(_KINDS)]
        blob = sha256(container.get("data/a.bin"))
        before = chance.randbytes(SIZE)
        file.write_bytes(before)
        # From before it looks at the file to after its last block.
        moment = counting.stats().uploaded + chance.uniform(0, 1.1 * SIZE)
        process = large.start(*slowly)
        assert wait_until(partial(_is_there, counting, process, moment), pause=0.005)
        _change(file, kind, chance)
        done = large.finish(process)
        later = file.read_bytes()
        where = f"{kind} at {moment:,.0f} bytes: {done}"
        steps = range(0, len(later), _STEP) if kind == "written in steps" else ()
        versions = {sha256(each) for each in (before, later, *(later[:at] for at in steps))}
        if steps and done.code == 1:
            # It changed during the second attempt, too.
            assert done.codes == {"changed_while_read"} and "once nothing writes to it" in str(done), where
            versions = {blob}
        else:
            assert (done.code, done.errors) == (0, []), where
        assert container.contents("data/")["a.bin"] in versions, where
        assert large.json(*UP).code == 0, where
        demand(container, later)
        if not later:
            # Of several blocks again: else the next difference is to an empty blob.
            file.write_bytes(before)
            sent(large, counting)


def test_with_a_sas_that_cannot_read_nothing_begins(
    large: Project, container: Container, counting: FaultHandle
) -> None:
    large.configure(container, url=counting.url, sas=container.sas("cw"))
    done = large.json(*UP)
    assert done.code == 2 and "needs rl" in done.errors[0]["message"], str(done)
    assert counting.stats().requests == 0


def test_a_sas_that_cannot_list_blocks_sends_them_again(tmp_path: Path, container: Container, service: str) -> None:
    """The engine alone, as it would be with an access policy whose rights do not show."""
    key = Secret(container.key)
    full = StorageAccount("t", container.account, container.name, f"{service}/{container.account}", account_key=key)
    sas = mint_sas(full, "cw", 3600)
    narrow = StorageAccount("t", container.account, container.name, f"{service}/{container.account}", sas_token=sas)
    (tmp_path / "up").mkdir()
    (tmp_path / "up/a.bin").write_bytes(BODY)
    journal = BlockJournal(tmp_path / "unfinished.sqlite")
    listener = RecordingListener()
    with connect(full, environ={}) as store, connect(narrow, environ={}) as writing:
        blob = str(store.container.child("data/a.bin"))
        journal.begin(blob, LocalState.of(os.stat(tmp_path / "up/a.bin")))
        for at in range(0, SIZE // 2, BLOCK):
            piece = BODY[at : at + BLOCK]
            digest = hashlib.sha256(piece).digest()
            store.put_block("data/a.bin", block_id_of(digest), piece)
            journal.put(blob, digest, len(piece))
        task = upload(tmp_path / "up", store, "data")
        task = task._replace(part=replace(task.part, destination=OpenBlob(writing, "data")))
        report = moved_by(DirectEngine(journal=journal), task, listener)
        assert report.failed == [] and report.moved[0].reused == 0
    assert len(listener.notes) == 1 and "cannot list the blocks that are there already" in listener.notes[0]
    demand(container, BODY)


_MEASURED = """
import json, resource, subprocess, sys
out = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True).stdout
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([json.loads(out)["data"]["bytes_planned"], used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""


def test_a_sparse_file_of_200_gb_is_planned_at_once(large: Project) -> None:
    with (large.data / "a.bin").open("r+b") as file:
        file.truncate(200_000_000_000)
    # Through a small process: the peak of a large one's child is that of its parent.
    command = [sys.executable, "-c", _MEASURED, blobsync_command(), "plan", *UP, "--json"]
    done = subprocess.run(
        command, cwd=large.root, env={**os.environ, **large.environ}, stdout=subprocess.PIPE, check=True, timeout=60
    )
    planned, seconds, kib = json.loads(done.stdout)
    assert planned == 200_000_000_000
    assert seconds < 5 and kib < 150 * 1024
