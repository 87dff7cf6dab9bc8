"""The coordinator's end of one worker process: how it ends, what it says of its end, and which credentials it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import CredentialError, LoginRequiredError
from blobsync.base.events import Note
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import SasToken, Secret
from blobsync.spread.orders import Handed, handed_line, read_handed
from blobsync.spread.record import Answer, Ask, Ready, ShardDone, answer_line
from blobsync.spread.shard import Shard, cut
from blobsync.spread.worker_pipe import Credentials, WorkerLostError, WorkerPipe
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, Signer
from blobsync.transfer.engines import MoveTask
from tests.fakes.runner import FakeProcess, Starting
from tests.fakes.store import MemoryStore
from tests.fakes.tasks import copy, upload

_SAS = SasToken.parse("sv=1&se=2099-01-01&sig=c2VudGluZWw%3D")


def _process(*said: Answer | str, code: int | None = 0, stderr: str = "") -> FakeProcess:
    """A worker that says these lines."""
    lines = [each if isinstance(each, str) else answer_line(each) for each in (Ready(), *said)]
    return FakeProcess(code, *lines, stderr=stderr)


@pytest.fixture
def task(tmp_path: Path) -> MoveTask:
    (tmp_path / "a").write_bytes(b"1")
    return upload(tmp_path, MemoryStore("box"), "sets", ["a"])


def _pipe(
    process: FakeProcess, task: MoveTask, signer: Signer | None = None, sas: SasToken | None = _SAS
) -> WorkerPipe:
    credentials = Credentials(lambda container: signer or SasSigner(_SAS), lambda end: sas, {})
    return WorkerPipe(Starting(process), task.part, credentials, processes=1)


def _shard(task: MoveTask) -> Shard:
    return cut(task.part, task.actions, 1)[0]


@pytest.mark.parametrize(("waits", "stops"), [(0, 0), (130, 0), (None, 1)])
def test_only_a_worker_that_does_not_end_by_itself_is_killed(task: MoveTask, waits: int | None, stops: int) -> None:
    process = _process(code=waits)
    _pipe(process, task).end()
    assert process.stops == stops


def test_a_worker_that_sends_what_is_no_record_is_stopped(task: MoveTask) -> None:
    process = _process("nonsense")
    with pytest.raises(WorkerLostError, match="it sent what is no record"):
        list(_pipe(process, task).carry(_shard(task)))
    assert process.stops == 1


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (-9, "it was killed by signal 9"),
        (-1, "it was killed by signal 1"),
        (0, "it ended with code 0"),
        (1, "it ended with code 1: the last line"),
    ],
)
def test_the_last_line_of_a_worker_is_shown_only_where_it_failed_by_itself(task: MoveTask, code: int, how: str) -> None:
    process = _process(code=code, stderr="first\nthe last line")
    with pytest.raises(WorkerLostError) as lost:
        list(_pipe(process, task).carry(_shard(task)))
    assert str(lost.value) == how


def test_a_token_is_renewed_only_where_the_service_refused_the_last(task: MoveTask) -> None:
    count = iter(range(100))
    signer = BearerSigner(lambda: (Secret(f"token-{next(count)}"), 1e12))
    asked = [Ask(what, "destination") for what in ("token", "token", "renewed", "token")]
    process = _process(*asked, Note("what it had to say"), ShardDone(0))
    assert list(_pipe(process, task, signer).carry(_shard(task))) == [Note("what it had to say")]
    given = [f"token-{number}" for number in (0, 0, 1, 1)]
    assert process.sent[-4:] == [handed_line(Handed(Secret(each), 1e12)) for each in given]


@pytest.mark.parametrize("sas", [_SAS, None])
def test_a_copy_gets_the_key_of_its_source_if_there_is_one(sas: SasToken | None) -> None:
    here = MemoryStore("here")
    here.add("x/a", b"1")
    task = copy(here, "x", MemoryStore("there"), "y", ["a"])
    process = _process(Ask("source_sas", "source"), ShardDone(0))
    assert not list(_pipe(process, task, sas=sas).carry(_shard(task)))
    assert process.sent[-1] == handed_line(Handed(Secret(sas.reveal()) if sas else None))


def test_what_no_worker_can_have_is_refused_by_name(task: MoveTask) -> None:
    def nobody() -> tuple[Secret, float]:
        raise LoginRequiredError("nobody is signed in", hint="az login")

    def refused(signer: Signer, ask: Ask) -> CredentialError:
        process = _process(ask, ShardDone(0))
        assert not list(_pipe(process, task, signer).carry(_shard(task)))
        handed = read_handed(parse_object(process.sent[-1]))
        assert handed.problem is not None
        return handed.problem

    assert "a folder of this machine" in refused(SasSigner(_SAS), Ask("token", "source")).message
    assert "cannot be renewed" in refused(SasSigner(_SAS), Ask("renewed", "destination")).message
    login = refused(BearerSigner(nobody), Ask("token", "destination"))
    assert (login.code, login.hint) == ("login_required", "az login")
