from __future__ import annotations

import base64
import hashlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeVar

import pytest

from blobsync.base.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    BlobsyncError,
    ChecksumError,
    CopySourceRefusedError,
    FailureCode,
    PreconditionFailedError,
    SasExpiredError,
    SourceChangedError,
    StorageError,
    StorageUnreachableError,
    ThrottledError,
    UsageError,
)
from blobsync.base.events import WHYS, Connected, Disconnected, Event
from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import EMULATOR_ACCOUNT
from blobsync.store.protocol import BlobInfo, BlobProperties, FileBody, GetOrder, Orders, Precondition, PutOrder
from blobsync.store.rest.http import BlobHttp, Steps
from blobsync.store.rest.request_signing import BearerSigner, SasSigner, Signer
from blobsync.store.rest.retries import HostState, RetryPolicy
from blobsync.store.rest.store import BlobSteps, RestBlobStore
from blobsync.store.rest.transport import HttpRequest, Timeouts, TransportError, proxy_for
from tests.fakes.scripted_http import Script, Step, scripted
from tests.servers.tls_azurite import make_certificate
from tests.waiting import wait_until

T = TypeVar("T")

SAS = SasToken.parse("sv=2023-11-03&sp=rwl&sr=c&se=2099-01-01T00:00:00Z&sig=SENTINEL%3D")
QUICK = RetryPolicy(tries=4, base=0.001, longest=0.002, longest_asked=0.3)


# Environments for the two transports; each test runs with both.
CHOSEN = {"BLOBSYNC_TRANSPORT": ""}


# Whether a test's requests about single blobs are driven as many at a time are, which libcurl does.
MANY = {"at a time": False}


@pytest.fixture(params=["curl", "curl, many", "urllib3"], autouse=True)
def transport(request: pytest.FixtureRequest) -> str:
    CHOSEN["BLOBSYNC_TRANSPORT"], _, many = request.param.partition(", ")
    MANY["at a time"] = bool(many)
    return CHOSEN["BLOBSYNC_TRANSPORT"]


class Driven:
    """A store that sends its requests in the tested way."""

    def __init__(self, container: BlobContainer, http: BlobHttp) -> None:
        self.http = http
        self.steps = BlobSteps(container, http)
        self.real = RestBlobStore(container, http)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def head(self, name: str) -> BlobInfo | None:
        return self._many(self.steps.head(name)) if MANY["at a time"] else self.real.head(name)

    def put(
        self,
        name: str,
        body: bytes,
        *,
        md5: bytes,
        properties: BlobProperties | None = None,
        condition: Precondition | None = None,
    ) -> BlobInfo:
        order = PutOrder(name, body, md5, properties or BlobProperties(), condition or Precondition())
        if MANY["at a time"]:
            return self._many(self.steps.put(order))
        return self.real.put(name, body, md5=md5, properties=order.properties, condition=order.condition)

    def measure_outages_by(self, clock: Callable[[], float]) -> None:
        """Seconds of outages are those of this clock."""
        host = self.http._host_state
        self.http._host_state = HostState(host._host, host._emit, clock)

    def _many(self, steps: Steps[T]) -> T:
        driver = self.http.side_by_side(lambda order: steps)
        assert driver is not None
        with closing(driver):
            driver.begin("mine", GetOrder("", "", 0))
            while not (ended := driver.ended(1)):
                assert driver.under_way == 1
            ((key, end),) = ended
            assert (key, driver.under_way) == ("mine", 0)
            if isinstance(end, Exception):
                raise end
            found: T = end
            return found


def md5(body: bytes) -> bytes:
    return hashlib.md5(body).digest()


def driven(url: str, account: str = "acct", signer: Signer | None = None, **given: Any) -> Driven:
    """A store at this address, over a ``BlobHttp`` with these arguments."""
    container = BlobContainer(account, "box", url)
    http = BlobHttp(container, signer or SasSigner(SAS), **{"environ": CHOSEN, "retry": QUICK, **given})
    return Driven(container, http)


def address(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}/acct"


def store(script: Script, *, signer: Signer | None = None) -> Driven:
    return driven(script.url, signer=signer, timeouts=Timeouts(20.0, 20.0))


WRITTEN = Step(201, headers={"ETag": '"0x1"'})
NEEDED = "<Properties><Etag>0x1</Etag><Content-Length>0</Content-Length></Properties>"


def blob(body: bytes, *, status: int = 200, cut: int | None = None, **headers: str) -> Step:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    facts = {"ETag": '"0x1"', "Content-MD5": base64.b64encode(md5(b"0123456789")).decode(), **named}
    return Step(status, body, facts, cut)


def error(status: int, code: str, message: str = "", **headers: str) -> Step:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return Step(status, body, {"x-ms-error-code": code, "x-ms-request-id": "req-7", **headers})


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_retryable_responses_are_retried(status: int) -> None:
    with scripted([error(status, "ServerBusy"), Step(201, headers={"ETag": '"0x2"'})]) as script:
        written = store(script).put("a", b"hi", md5=md5(b"hi"))
    assert written.etag == "0x2"
    assert [seen.body for seen in script.seen] == [b"hi", b"hi"]


@pytest.mark.parametrize("status", [400, 403, 404, 409, 412, 501])
def test_other_errors_are_not_retried(status: int) -> None:
    with scripted([error(status, "Whatever")]) as script, pytest.raises(StorageError) as caught:
        store(script).put("a", b"hi", md5=md5(b"hi"))
    assert len(script.seen) == 1
    assert caught.value.status == status


def test_retry_after_is_obeyed_up_to_a_limit() -> None:
    with scripted([error(503, "ServerBusy", **{"Retry-After": "77"}), blob(b"0123456789")]) as script:
        before = time.monotonic()
        found = store(script).head("a")
        waited = time.monotonic() - before
    assert found is not None
    # Far below what was asked for.
    assert 0.29 < waited < 40


@pytest.mark.parametrize("asked", ["\u00b2", "soon", "-5", "1e9"])
def test_a_retry_after_that_is_not_a_number_is_ignored(asked: str) -> None:
    assert RetryPolicy().wait(1, asked) <= RetryPolicy().base


def test_a_service_that_stays_busy_is_reported_after_the_last_retry() -> None:
    with scripted([error(503, "ServerBusy")] * 9) as script, pytest.raises(ThrottledError) as caught:
        store(script).put("a", b"hi", md5=md5(b"hi"))
    assert len(script.seen) == QUICK.tries
    assert (caught.value.status, caught.value.service_code, caught.value.request_id) == (503, "ServerBusy", "req-7")


@pytest.mark.parametrize("size", ["-1", "1_0", "1e3"])
def test_a_listing_with_an_invalid_size_is_refused(size: str) -> None:
    listed = NEEDED.replace(">0<", f">{size}<")
    body = f"<EnumerationResults><Blobs><Blob><Name>d/x</Name>{listed}</Blob></Blobs></EnumerationResults>"
    with scripted([Step(200, body.encode())]) as script:
        with pytest.raises(StorageError, match=rf"listing of .*box: the blob 'd/x': '{size}' is not a blob size"):
            list(store(script).list_blobs())


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"ETag": ""}),
        (200, {"ETag": '"a b"'}),
        (200, {"Last-Modified": "yesterday"}),
        (206, {"Content-Range": "bytes 0-1/-2"}),
        (206, {"Content-Range": "bytes 0-1/*"}),
        (206, {"Content-Range": "bytes 0-1/\u00b2"}),
        (206, {}),
    ],
)
def test_an_impossible_property_of_a_blob_is_an_error_that_names_the_blob(status: int, headers: dict[str, str]) -> None:
    with scripted([Step(status, b"hi", {"ETag": '"0x1"', **headers})]) as script:
        with pytest.raises(StorageError, match=r"cannot parse the response about the blob 'd/x'"):
            store(script).open("d/x")


def test_a_reset_connection_is_retried() -> None:
    with scripted([Step(reset=True), Step(reset=True), WRITTEN]) as script:
        store(script).put("a", b"hi", md5=md5(b"hi"))
    assert len(script.seen) == 3


def test_a_connection_that_the_server_closed_after_a_response_is_replaced() -> None:
    answered = 0

    def serve() -> None:
        nonlocal answered
        for _ in range(2):
            connection, _ = server.accept()
            with closing(connection):
                while not connection.recv(65536).endswith(b"\r\n\r\n"):
                    pass
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "0x1"\r\n\r\n')
                answered += 1

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        asked = driven(address(server), timeouts=Timeouts(20.0, 20.0))
        found = [asked.head(name) for name in "ab"]
        serving.join(60)
    assert [info and info.etag for info in found] == ["0x1", "0x1"]
    assert answered == 2


def test_the_error_after_broken_connections_hides_the_signature() -> None:
    with scripted([Step(reset=True)] * 9) as script, pytest.raises(StorageUnreachableError) as caught:
        store(script).put("a", b"hi", md5=md5(b"hi"))
    assert str(caught.value) == "the connection to 127.0.0.1 broke (4 tries)"
    assert "SENTINEL" not in repr(caught.value) + str(caught.value.__dict__)


# Longer than all attempts of a single request.
PATIENT = RetryPolicy(tries=4, base=0.001, longest=0.002, offline=0.001, outage=30.0)


def patient(script: Script, heard: list[Event], retry: RetryPolicy = PATIENT) -> Driven:
    return driven(script.url, retry=retry, emit=heard.append)


@pytest.mark.parametrize("trouble", [Step(reset=True), error(503, "ServerBusy")], ids=["no connection", "busy"])
def test_an_outage_is_retried_longer_than_one_failed_request(trouble: Step) -> None:
    heard: list[Event] = []
    with scripted([blob(b"0123456789"), *[trouble] * 40, WRITTEN]) as script:
        asked = patient(script, heard)
        asked.head("a")
        asked.put("b", b"hi", md5=md5(b"hi"))
    assert len(script.seen) == 42
    assert [type(event) for event in heard] == [Disconnected, Connected]
    assert isinstance(heard[0], Disconnected)
    assert (heard[0].host, heard[0].why in WHYS) == ("127.0.0.1", True)


def test_an_outage_is_given_up_after_its_time_and_the_error_counts_the_tries() -> None:
    heard: list[Event] = []
    with scripted([blob(b"0123456789"), *[Step(reset=True)] * 3000]) as script:
        asked = patient(script, heard, PATIENT._replace(outage=0.3))
        # Each look at this clock takes a hundredth of a second, however long a try takes here.
        seconds = itertools.count(step=0.01)
        asked.measure_outages_by(lambda: next(seconds))
        asked.head("a")
        with pytest.raises(StorageUnreachableError) as caught:
            asked.head("b")
        first = len(script.seen) - 1
        # A later request does not wait as long again.
        with pytest.raises(StorageUnreachableError):
            asked.head("c")
    # libcurl sends a request again by itself if a connection that it had kept is gone.
    assert str(caught.value) in {f"the connection to 127.0.0.1 broke ({first - resent} tries)" for resent in (0, 1)}
    assert first > PATIENT.tries
    assert len(script.seen) - 1 - first == 3
    assert caught.value.hint and "it answered before" in caught.value.hint
    assert [type(event) for event in heard] == [Disconnected]


def test_a_request_that_fails_while_others_succeed_gets_the_usual_number_of_tries() -> None:
    # libcurl sends a request again by itself if a connection that it had kept is gone.
    answers = [blob(b"0123456789"), *[Step(reset=True), Step(reset=True), blob(b"0123456789")] * 9]
    with scripted(answers) as script:
        asked = patient(script, [])
        run, steps = asked.http.run, asked.steps
        run(steps.head("a"))
        with pytest.raises(StorageUnreachableError, match=r"\(4 tries\)"):
            run(_with_others(steps.head("b"), lambda: run(steps.head("c"))))


def test_after_fail_soon_nothing_waits_for_a_host_that_is_down() -> None:
    down, over = threading.Event(), threading.Event()
    errors: list[StorageUnreachableError] = []
    slowly = RetryPolicy(tries=4, base=60.0, longest=60.0, offline=60.0, outage=600.0)
    with scripted([blob(b"0123456789"), *[Step(reset=True)] * 99]) as script:

        def hear(event: Event) -> None:
            if isinstance(event, Disconnected):
                down.set()

        # The test's thread is the interrupted one, the other stands for all that wait.
        asked = driven(script.url, retry=slowly, emit=hear).real
        asked.head("a")

        def wait() -> None:
            try:
                asked.head("b")
            except StorageUnreachableError as error:
                errors.append(error)
            over.set()

        threading.Thread(target=wait, daemon=True).start()
        assert down.wait(20)
        assert not over.wait(0.2)
        asked.fail_soon()
        assert over.wait(20)
        sent = len(script.seen)
        with pytest.raises(StorageUnreachableError) as caught:
            asked.put("c", b"hi", md5=md5(b"hi"))
        # Once it is known to be down, nothing is sent any more.
        assert len(script.seen) == sent
    assert str(caught.value).startswith("127.0.0.1 does not answer")
    assert [error.hint for error in (*errors, caught.value)] == [
        "it answered before; run the same command again when the network is back"
    ] * 2


def test_after_fail_soon_requests_to_a_working_host_are_still_retried() -> None:
    steps = [blob(b"0123456789"), error(503, "ServerBusy"), Step(reset=True), blob(b"0123456789"), WRITTEN]
    with scripted(steps) as script:
        asked = patient(script, [])
        # A host that answers with 503 counts as down after a second: here none passes.
        asked.measure_outages_by(lambda: 0.0)
        asked.head("a")
        asked.fail_soon()
        asked.fail_soon()
        assert asked.head("a")
        assert asked.put("b", b"hi", md5=md5(b"hi"))
        assert len(script.seen) == len(steps)
        asked.close()


def test_after_fail_soon_a_long_retry_after_is_not_obeyed() -> None:
    busy = error(503, "ServerBusy", **{"Retry-After": "60"})
    with scripted([blob(b"0123456789"), *[busy] * 9]) as script:
        asked = driven(script.url, retry=None).real
        asked.head("a")
        asked.fail_soon()
        began = time.monotonic()
        with pytest.raises(StorageUnreachableError, match="does not answer"):
            asked.head("b")
        assert time.monotonic() - began < 30


def test_after_fail_soon_a_host_that_never_answered_is_tried_once() -> None:
    with scripted([Step(reset=True)] * 9) as script:
        asked = patient(script, [])
        asked.fail_soon()
        with pytest.raises(StorageUnreachableError, match=r"broke$"):
            asked.head("a")
        assert len(script.seen) == 1


def test_after_fail_soon_a_silent_host_is_given_up_after_one_timeout() -> None:
    """The service reads requests but does not respond any more: only the timeout shows that."""
    answer = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nx-ms-error-code: BlobNotFound\r\n\r\n"
    with closing(socket.create_server(("127.0.0.1", 0), backlog=9)) as server:
        asked = driven(address(server), retry=None).real

        def answer_once() -> None:
            connection, _ = server.accept()
            kept.append(connection)
            connection.recv(1 << 16)
            connection.sendall(answer)

        kept: list[socket.socket] = []
        thread = threading.Thread(target=answer_once)
        thread.start()
        assert asked.head("a") is None
        thread.join()
        asked.fail_soon()
        began = time.monotonic()
        with pytest.raises(StorageUnreachableError):
            asked.head("b")
        assert time.monotonic() - began < 30
        with pytest.raises(StorageUnreachableError, match="does not answer"):
            asked.head("c")
        asked.close()
        kept[0].close()


def test_a_host_that_takes_a_body_and_says_nothing_is_given_up_after_one_timeout() -> None:
    """What moved at the beginning counts for no longer than that."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        asked = driven(address(server), retry=RetryPolicy(1), timeouts=Timeouts(20.0, 3.0))

        def take() -> None:
            connection, _ = server.accept()
            with connection:
                while connection.recv(1 << 16):
                    pass

        thread = threading.Thread(target=take)
        thread.start()
        began = time.monotonic()
        body = bytes(300_000)
        with pytest.raises(StorageUnreachableError):
            asked.put("a", body, md5=hashlib.md5(body).digest())
        # Twice the timeout would be too long.
        assert time.monotonic() - began < 5.5
        asked.close()
        thread.join()


def _with_others(steps: Steps[T], between: Callable[[], object]) -> Steps[T]:
    """The same, with another request during each of its pauses."""
    back, failed = None, None
    while True:
        try:
            step = steps.send(back) if failed is None else steps.throw(failed)
        except StopIteration as end:
            found: T = end.value
            return found
        back = failed = None
        if not isinstance(step, HttpRequest):
            between()
            continue
        try:
            back = yield step
        except TransportError as caught:
            failed = caught


@pytest.mark.parametrize(("given", "seconds"), [("", 300.0), ("0", 0.0), ("3600", 3600.0)])
def test_the_environment_sets_how_long_an_outage_is_retried(given: str, seconds: float) -> None:
    asked = driven("https://acct.example", environ={**CHOSEN, "BLOBSYNC_OUTAGE_SECONDS": given}, retry=None)
    assert asked.http._retry.outage == seconds


def test_an_outage_time_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(UsageError, match="BLOBSYNC_OUTAGE_SECONDS=soon: not a number of seconds"):
        driven("https://acct.example", environ={**CHOSEN, "BLOBSYNC_OUTAGE_SECONDS": "soon"}, retry=None)


@contextmanager
def closed_port() -> Iterator[int]:
    """A port of this machine that refuses connections; it is held, so that no other program gets it meanwhile."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_a_closed_local_port_is_reported_with_a_hint_about_the_emulator() -> None:
    with closed_port() as port:
        for account, said in (("acct", "refuses connections"), (EMULATOR_ACCOUNT, "the emulator is not running")):
            with pytest.raises(StorageUnreachableError, match=said) as caught:
                driven(f"http://127.0.0.1:{port}/{account}", account).head("a")
            assert str(port) in str(caught.value) and "(3 tries)" in str(caught.value)
            assert f"blobsync emulator start --port {port}" in (caught.value.hint or "")


def test_a_server_that_stops_answering_is_a_timeout() -> None:
    with closing(socket.create_server(("127.0.0.1", 0), backlog=9)) as silent:
        asked = driven(address(silent), retry=RetryPolicy(2, 0.001), timeouts=Timeouts(20, 0.05))
        with pytest.raises(StorageUnreachableError, match="stopped responding"):
            asked.head("a")


def test_a_slow_connection_is_not_a_timeout() -> None:
    body = bytes(20_000_000)
    received = bytearray()
    said: list[int] = []
    ahead: list[int] = []

    def hear(so_far: int) -> None:
        said.append(so_far)
        ahead.append(so_far - len(received))

    def read_slowly(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            while len(received) < len(body) and (piece := connection.recv(200_000)):
                received.extend(piece)
                time.sleep(0.02)
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\nETag: 0x1\r\n\r\n")

    with closing(socket.socket()) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        server.bind(("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=read_slowly, args=(server,))
        thread.start()
        # Sending takes longer than connecting may, which is plenty: a busy machine may take a second to connect.
        timeouts = Timeouts(1.8, 20.0)
        asked = driven(address(server), retry=RetryPolicy(1), timeouts=timeouts)
        started = time.monotonic()
        if MANY["at a time"]:
            asked.put("a", body, md5=md5(body))
        else:
            asked.real.put("a", body, md5=md5(body), sent=hear)
        thread.join()
    assert time.monotonic() - started > timeouts.connect
    assert received.endswith(body)
    if not MANY["at a time"]:
        # Reported while it is sent, without what this machine still buffers; urllib3 knows only what the socket took.
        most = 1 << 20 if CHOSEN["BLOBSYNC_TRANSPORT"] == "curl" else 10 << 20
        assert len(said) > 3 and said == sorted(said) and max(ahead) < most


def test_the_time_limit_ends_retries_before_their_number_does() -> None:
    impatient = RetryPolicy(tries=9, base=0.001, patience=-1)
    with scripted([error(503, "ServerBusy")] * 9) as script, pytest.raises(ThrottledError):
        driven(script.url, retry=impatient).head("a")
    assert len(script.seen) == 1


def test_a_broken_download_resumes_where_it_broke_off_from_the_same_version() -> None:
    rest = blob(b"456789", status=206, Content_Range="bytes 4-9/10")
    with scripted([blob(b"0123456789", cut=4), rest]) as script, store(script).open("a") as reader:
        body = b"".join(iter(lambda: reader.read(3), b""))
    assert body == b"0123456789"
    resumed = script.seen[1].headers
    assert resumed["x-ms-range"] == "bytes=4-9"
    assert resumed["if-match"] == '"0x1"'


def test_a_blob_that_changes_before_the_resume_is_an_error_and_not_a_mixture() -> None:
    steps = [blob(b"0123456789", cut=4), error(412, "ConditionNotMet")]
    with scripted(steps) as script, store(script).open("a") as reader, pytest.raises(PreconditionFailedError):
        list(iter(lambda: reader.read(3), b""))


WHOLE = blob(b"0123456789")
ELSEWHERE = blob(b"567", status=206, Content_Range="bytes 5-7/10")


@pytest.mark.parametrize(
    ("answer", "start", "etag", "said"),
    [
        pytest.param(WHOLE, 4, "0x1", "does not begin at byte 4", id="the whole blob instead of a range"),
        pytest.param(ELSEWHERE, 4, "0x1", "does not begin at byte 4", id="another range"),
        pytest.param(ELSEWHERE, 0, None, "does not begin at byte 0", id="a range instead of the whole blob"),
        pytest.param(WHOLE, 0, "0x2", "of another version", id="another version"),
        pytest.param(ELSEWHERE, 5, "0x2", "of another version", id="a range of another version"),
    ],
)
def test_a_response_for_another_range_or_version_is_refused(
    answer: Step, start: int, etag: str | None, said: str
) -> None:
    with scripted([answer]) as script, pytest.raises(ChecksumError, match=said):
        store(script).open("a", start=start, length=3 if start else None, etag=etag)


@pytest.mark.parametrize("rest", [WHOLE, ELSEWHERE], ids=["the whole blob", "another range"])
def test_a_broken_download_does_not_resume_with_another_range(rest: Step) -> None:
    with scripted([blob(b"0123456789", cut=4), rest]) as script, store(script).open("a") as reader:
        assert reader.read(4) == b"0123"
        with pytest.raises(ChecksumError, match="does not begin at byte 4"):
            reader.read(4)


def test_a_range_longer_than_requested_is_cut() -> None:
    longer = blob(b"23456789", status=206, Content_Range="bytes 2-9/10")
    with scripted([longer]) as script, store(script).open("a", start=2, length=3) as reader:
        assert list(iter(lambda: reader.read(10), b"")) == [b"234"]
    assert script.seen[0].headers["x-ms-range"] == "bytes=2-4"


def test_a_range_shorter_than_requested_is_continued() -> None:
    early = blob(b"234", status=206, Content_Range="bytes 2-9/10")
    rest = blob(b"56789", status=206, Content_Range="bytes 5-9/10")
    with scripted([early, rest]) as script, store(script).open("a", start=2, length=8) as reader:
        assert b"".join(iter(lambda: reader.read(3), b"")) == b"23456789"
    assert script.seen[1].headers["x-ms-range"] == "bytes=5-9"


def test_a_body_that_always_ends_early_is_an_error() -> None:
    with scripted([blob(b"0123456789", cut=0)] * 9) as script, store(script).open("a") as reader:
        with pytest.raises(StorageError, match="ended at byte 0 of 10"):
            reader.read(10)


def holding(body: bytes) -> Step:
    """The answer to HEAD of a blob with this content."""
    md5_header = base64.b64encode(md5(body)).decode()
    return Step(headers={"ETag": '"0x9"', "Content-MD5": md5_header, "Content-Length": "2"})


@pytest.mark.parametrize(
    ("steps", "condition", "is_ours"),
    [
        pytest.param(
            [Step(reset=True), error(409, "BlobAlreadyExists"), holding(b"hi"), holding(b"hi")],
            *(Precondition(absent=True), True),
            id="lost, and it has our content",
        ),
        pytest.param(
            [Step(reset=True), error(412, "ConditionNotMet"), holding(b"no")],
            *(Precondition(etag="0x1"), False),
            id="lost, and it has another content",
        ),
        pytest.param(
            [error(409, "BlobAlreadyExists"), holding(b"hi")], *(Precondition(absent=True), False), id="not lost"
        ),
    ],
)
def test_a_put_that_is_refused_has_succeeded_if_its_first_response_was_lost_and_the_blob_has_our_content(
    steps: list[Step], condition: Precondition, is_ours: bool
) -> None:
    with scripted(steps) as script, nullcontext() if is_ours else pytest.raises(PreconditionFailedError):
        assert store(script).put("a", b"hi", md5=md5(b"hi"), condition=condition).etag == "0x9"
    puts = sum(step.reset or step.status > 400 for step in steps)
    assert [seen.method for seen in script.seen] == ["PUT"] * puts + ["HEAD"] * (len(steps) - puts)


def test_a_file_is_not_written_over_a_directory() -> None:
    there = Step(headers={"ETag": '"0x9"', "x-ms-resource-type": "directory", "Content-Length": "0"})
    with scripted([error(409, "BlobAlreadyExists"), there]) as script, pytest.raises(StorageError, match="directory"):
        store(script).put("a", b"hi", md5=md5(b"hi"), condition=Precondition(absent=True))


def test_a_delete_whose_response_was_lost_succeeds() -> None:
    with scripted([Step(reset=True), error(404, "BlobNotFound"), error(404, "BlobNotFound")]) as script:
        assert store(script).delete("a")
        assert not store(script).delete("a")


def test_requests_carry_the_md5_and_the_conditions() -> None:
    with scripted([WRITTEN, WRITTEN]) as script:
        store(script).put("d/a b", b"hi", md5=md5(b"hi"), condition=Precondition(etag="0x5"))
        store(script).put("a", b"", md5=md5(b""), condition=Precondition(absent=True))
    first, second = script.seen
    assert first.target.startswith("/acct/box/d/a%20b?")
    assert first.headers["content-md5"] == "SfaKXIST7CwL9ImCHCH8Ow=="
    assert first.headers["if-match"] == '"0x5"'
    assert second.headers["if-none-match"] == "*"
    assert second.headers["content-length"] == "0"


def test_a_wrong_clock_and_a_bad_signature_are_different_errors() -> None:
    behind = formatdate(time.time() - 3660, usegmt=True)
    denied = error(403, "AuthenticationFailed", Date=behind)
    with scripted([denied, error(403, "AuthenticationFailed")]) as script:
        with pytest.raises(AccessDeniedError, match="clock is 1 h 1 min ahead of the service's"):
            store(script).head("a")
        with pytest.raises(AccessDeniedError, match="a wrong key, or a SAS"):
            store(script).head("a")


def test_a_sas_that_expires_during_a_transfer_is_recognised() -> None:
    ended = SasSigner(SasToken.parse("sp=r&sr=c&se=2020-01-01T00:00:00Z&sig=SENTINEL"))
    with scripted([error(403, "AuthenticationFailed")]) as script, pytest.raises(SasExpiredError):
        store(script, signer=ended).head("a")


@pytest.mark.parametrize("refusals", [1, 4])
def test_a_refused_bearer_token_is_renewed_once(refusals: int) -> None:
    tokens = iter(["one", "two", "three", "four"])
    signer = BearerSigner(lambda: (Secret(next(tokens)), time.time() + 3600))
    answers = [error(401, "InvalidAuthenticationInfo")] * refusals + [blob(b"0123456789")]
    with scripted(answers) as script, pytest.raises(AccessDeniedError) if refusals > 1 else nullcontext():
        assert store(script, signer=signer).head("a") is not None
    assert [seen.headers["authorization"] for seen in script.seen] == ["Bearer one", "Bearer two"]


def test_the_next_page_is_requested_while_this_one_is_parsed() -> None:
    pages = [
        f"<EnumerationResults><Blobs><Blob><Name>b{n}</Name>{NEEDED}</Blob></Blobs>{more}</EnumerationResults>"
        for n, more in enumerate(["<NextMarker>a&amp;b</NextMarker>", "<NextMarker/>"])
    ]
    with scripted([Step(200, page.encode()) for page in pages]) as script:
        listing = store(script).list_blobs("b")
        first = next(listing)
        assert wait_until(lambda: len(script.seen) > 1)
        assert "marker=a%26b" in script.seen[1].target
        assert [first.name, *(found.name for found in listing)] == ["b0", "b1"]


def test_a_listing_from_a_name_on_asks_for_the_version_that_has_it_and_for_no_page_too_many() -> None:
    page = f"<EnumerationResults><Blobs><Blob><Name>b/c</Name>{NEEDED}</Blob></Blobs><NextMarker>more</NextMarker>"
    with scripted([Step(200, f"{page}</EnumerationResults>".encode())] * 3) as script:
        asking = store(script)
        for _ in range(2):
            assert next(asking.list_from("b/", "b/c d", 1)).name == "b/c"
        # An account that answers in XML is not asked for Arrow again.
        assert [seen.headers["x-ms-version"] for seen in script.seen] == ["2026-10-06", "2026-02-06"]
        assert "prefix=b%2F&startFrom=b%2Fc%20d&maxresults=1&" in script.seen[0].target
        next(asking.list_blobs())
        assert script.seen[2].headers["x-ms-version"] == "2023-11-03"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (error(403, "CannotVerifyCopySource"), "acct is not allowed to read the source"),
        (error(404, "CannotVerifyCopySource"), "acct is not allowed to read the source"),
        (error(501, "NotImplemented"), "acct does not copy from a URL (an emulator?)"),
        (Step(500), "acct does not copy from a URL (an emulator?)"),
        (error(400, "UnsupportedHeader"), "acct does not copy from a URL"),
    ],
)
def test_refused_copies_have_their_own_error(step: Step, why: str) -> None:
    with scripted([step]) as script, pytest.raises(CopySourceRefusedError) as caught:
        store(script).put_block_from_url("a", "YWFh", "https://src/c/b", SAS, start=0, length=4)
    assert str(caught.value) == why
    assert caught.value.hint == "--relay streams the bytes through this machine instead"


def test_a_copy_sends_the_sas_of_the_source_in_its_header_only() -> None:
    with scripted([Step(201)]) as script:
        store(script).put_block_from_url("a", "YWFh", "https://src/c/b", SAS, start=8, length=4)
    seen = script.seen[0]
    assert seen.headers["x-ms-copy-source"] == f"https://src/c/b?{SAS.reveal()}"
    assert seen.headers["x-ms-source-range"] == "bytes=8-11"
    assert "x-ms-source-if-match" not in seen.headers


def test_a_copy_of_a_source_that_changed_fails_without_trying_copy_blob_from_url() -> None:
    other = error(412, "SourceConditionNotMet")
    with scripted([other, other]) as script:
        with pytest.raises(SourceChangedError, match="its source changed while it was being copied") as caught:
            store(script).put_from_url("a", "https://src/c/b", SAS, source_etag="0x1")
        assert caught.value.code is FailureCode.CHANGED_WHILE_READ
        with pytest.raises(SourceChangedError):
            store(script).put_block_from_url("a", "YWFh", "https://src/c/b", SAS, start=0, length=4, source_etag="0x1")
    assert [seen.headers["x-ms-source-if-match"] for seen in script.seen] == ['"0x1"', '"0x1"']


def test_a_server_without_put_blob_from_url_gets_copy_blob_from_url() -> None:
    made = Step(202, headers={"ETag": '"0x1"'})
    with scripted([Step(500), made, made]) as script:
        copier = store(script)
        assert copier.put_from_url("a", "http://src/c/b", None) == ("0x1", None)
        copier.put_from_url("a", "http://src/c/b", None, condition=Precondition(absent=True), tier="Cool")
    first, second, third = script.seen
    assert first.headers["x-ms-blob-type"] == "BlockBlob"
    assert second.headers["x-ms-requires-sync"] == third.headers["x-ms-requires-sync"] == "true"
    assert third.headers["if-none-match"] == "*" and third.headers["x-ms-access-tier"] == "Cool"


def test_closing_ends_a_waiting_retry() -> None:
    with scripted([error(503, "ServerBusy", **{"Retry-After": "60"})]) as script:
        waiting = driven(script.url, retry=None)
        waiting.close()
        with pytest.raises(StorageUnreachableError, match="was closed"):
            waiting.head("a")


def test_head_of_a_missing_blob_returns_none_and_read_raises() -> None:
    with scripted([error(404, "BlobNotFound"), error(404, "BlobNotFound")]) as script:
        assert store(script).head("a") is None
        with pytest.raises(BlobNotFoundError, match="there is no blob a in acct/box"):
            store(script).open("a")


def proxied(script: Script, environ: dict[str, str]) -> Sequence[str]:
    driven("http://blob.invalid/acct", environ=environ).head("a")
    return [seen.target for seen in script.seen]


def test_an_http_proxy_of_the_environment_is_used() -> None:
    with scripted([blob(b"")]) as script:
        proxy = script.url.removesuffix("/acct")
        assert proxied(script, {**CHOSEN, "HTTP_PROXY": proxy})[0].startswith("http://blob.invalid/acct/box/a?")


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_requests_to_this_machine_bypass_the_proxy(host: str, name: str) -> None:
    with scripted([blob(b"here")]) as script, scripted([blob(b"theirs")]) as proxy:
        environ = {**CHOSEN, name: proxy.url.removesuffix("/acct"), "NO_PROXY": ""}
        driven(script.url.replace("127.0.0.1", host), environ=environ).head("a")
    assert [len(each.seen) for each in (script, proxy)] == [1, 0]


@pytest.mark.parametrize(
    ("netloc", "proxied"),
    [
        *((here, False) for here in ("127.0.0.1", "127.9.8.7:80", "localhost", "LOCALHOST.:10000", "[::1]:10000")),
        # A name that only ends like that is resolved by DNS, and may be anywhere.
        *((there, True) for there in ("localhost.evil.example", "127.0.0.1.evil.example", "a.localhost", "10.0.0.1")),
    ],
)
def test_which_hosts_are_this_machine(netloc: str, proxied: bool) -> None:
    environ = {"HTTP_PROXY": "http://127.0.0.1:3128", "HTTPS_PROXY": "http://127.0.0.1:3128"}
    for scheme in ("http", "https"):
        assert proxy_for(scheme, netloc, environ) == ("http://127.0.0.1:3128" if proxied else None)


@pytest.mark.parametrize("listed", ["blob.invalid", ".invalid", "other, invalid", "*"])
def test_no_proxy_overrides_the_proxy(listed: str) -> None:
    with scripted([blob(b"")]) as script, pytest.raises(StorageUnreachableError, match="cannot resolve the host blob"):
        proxied(script, {**CHOSEN, "HTTP_PROXY": script.url.removesuffix("/acct"), "no_proxy": listed})
    assert script.seen == []


def test_an_unreachable_proxy_is_named() -> None:
    with pytest.raises(StorageUnreachableError, match="the proxy for blob"):
        proxied(Script(), {**CHOSEN, "HTTP_PROXY": "http://127.0.0.1:1"})


def test_an_invalid_proxy_url_is_refused_before_any_request() -> None:
    with pytest.raises(StorageUnreachableError, match="cannot use the endpoint or proxy for blob"):
        proxied(Script(), {**CHOSEN, "HTTP_PROXY": "ftp://127.0.0.1:1"})


@contextmanager
def connect_proxy(answer: bytes = b"HTTP/1.1 200 Connection established\r\nX-Of: the proxy\r\n\r\n") -> Iterator[str]:
    """A proxy that connects to the port in CONNECT, on this machine for any name, or responds with an error."""
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as held:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    way(held.enter_context(listening.accept()[0]))

        def way(near: socket.socket) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += near.recv(1)
            near.sendall(answer)
            if b" 200 " not in answer:
                near.close()
                return
            port = int(head.split()[1].decode().rpartition(":")[2])
            far = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            threading.Thread(target=pump, args=(far, near), daemon=True).start()
            pump(near, far)

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):
                while data := source.recv(1 << 16):
                    sink.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def secure(script: Script, host: str = "127.0.0.1", **environ: str) -> Driven:
    return driven(script.url.replace("127.0.0.1", host), environ={**CHOSEN, **environ})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "blob.invalid")


def test_a_certificate_is_trusted_when_the_environment_says_so(certificate: tuple[Path, Path]) -> None:
    with scripted([blob(b"0123456789")], certificate) as script:
        with secure(script, SSL_CERT_FILE=str(certificate[0])).open("a") as reader:
            assert reader.read(100) == b"0123456789"


def test_an_untrusted_certificate_is_refused_without_retries(certificate: tuple[Path, Path]) -> None:
    with scripted([blob(b"")] * 9, certificate) as script, pytest.raises(StorageUnreachableError) as caught:
        secure(script).head("a")
    assert str(caught.value) == "127.0.0.1 presented a TLS certificate that this machine does not trust"
    assert script.seen == []


def test_https_goes_through_a_proxy_by_connect(certificate: tuple[Path, Path]) -> None:
    with scripted([blob(b"0123456789")], certificate) as script, connect_proxy() as proxy:
        found = secure(script, "blob.invalid", HTTPS_PROXY=proxy, SSL_CERT_FILE=str(certificate[0])).head("a")
    assert found is not None
    assert found.size == 10, "the proxy's own answer is not taken for the service's"
    assert [seen.method for seen in script.seen] == ["HEAD"]


def test_a_proxy_that_refuses_connect_is_named(certificate: tuple[Path, Path]) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"
    with scripted([], certificate) as script, connect_proxy(refusal) as proxy:
        with pytest.raises(StorageUnreachableError, match=r"the proxy for blob\.invalid"):
            secure(script, "blob.invalid", HTTPS_PROXY=proxy).head("a")


def test_dots_in_a_blob_name_are_sent_as_they_are() -> None:
    with scripted([blob(b"")]) as script:
        store(script).head("a/../b/./c")
    assert script.seen[0].target.startswith("/acct/box/a/../b/./c?")


def test_a_line_break_in_a_property_cannot_add_a_header() -> None:
    harmful = BlobProperties(content_type="text/plain\r\nx-ms-meta-own: yes")
    with scripted([WRITTEN]) as script, pytest.raises((StorageError, ValueError)):
        store(script).put("a", b"hi", md5=md5(b"hi"), properties=harmful)
    assert script.seen == []


def test_a_redirect_is_not_followed() -> None:
    with scripted([]) as elsewhere, scripted([Step(307, headers={"Location": elsewhere.url})]) as script:
        with pytest.raises(StorageError):
            store(script).put("a", b"hi", md5=md5(b"hi"))
        assert elsewhere.seen == []


# -- many small requests at a time ------------------------------------------------------------------------


def ends(orders: Orders) -> dict[object, BlobInfo | bytes | BlobsyncError]:
    """Run all requests under way to their end."""
    found: dict[object, BlobInfo | bytes | BlobsyncError] = {}
    until = time.monotonic() + 50
    while orders.under_way and time.monotonic() < until:
        found.update(orders.ended(1))
    return found


def many(asked: Script | Driven) -> Orders:
    orders = (asked if isinstance(asked, Driven) else store(asked)).orders()
    if orders is None:
        pytest.skip("urllib3 blocks the thread that sends")
    found: Orders = orders
    return found


def end_of_one(script: Script, etag: str = "0x1") -> BlobInfo | bytes | BlobsyncError:
    """The result of one small request."""
    with closing(many(script)) as orders:
        orders.begin("a", GetOrder("a", etag, 10))
        return ends(orders)["a"]


def test_urllib3_does_not_offer_requests_side_by_side(transport: str) -> None:
    with scripted([]) as script:
        assert (store(script).orders() is None) == (transport == "urllib3")


def test_each_of_many_requests_gets_its_own_response() -> None:
    found: dict[object, BlobInfo | bytes | BlobsyncError] = {}
    with scripted([blob(b"0123456789")] * 20) as script, closing(many(script)) as orders:
        for number in range(20):
            orders.begin(number, GetOrder(f"f{number}", "0x1", 10))
            # The scripted server has room for five that wait to be accepted.
            while orders.under_way > 3:
                found.update(orders.ended(1))
        found.update(ends(orders))
    assert found == dict.fromkeys(range(20), b"0123456789")
    assert sorted(seen.target.partition("?")[0] for seen in script.seen) == sorted(f"/acct/box/f{n}" for n in range(20))
    assert {seen.headers["if-match"] for seen in script.seen} == {'"0x1"'}


def test_files_that_are_read_while_they_are_sent_share_a_connection() -> None:
    def opened() -> int:
        return len(os.listdir("/dev/fd"))

    with scripted([WRITTEN] * 6) as script, driven(script.url).real as files:
        body = FileBody(lambda start, length: bytes(length), 300_000)
        files.put("a", body, md5=b"0" * 16)
        before = opened()
        for _ in range(5):
            files.put("a", body, md5=b"0" * 16)
        # Sockets of earlier tests may be closed meanwhile.
        assert opened() <= before


def test_a_failed_request_does_not_affect_the_others() -> None:
    steps = [error(412, "ConditionNotMet"), blob(b"0123456789")]
    with scripted(steps) as script, closing(many(script)) as orders:
        orders.begin("changed", GetOrder("changed", "0x1", 10))
        changed = ends(orders)["changed"]
        orders.begin("fine", GetOrder("fine", "0x1", 10))
        assert ends(orders) == {"fine": b"0123456789"}
    assert isinstance(changed, PreconditionFailedError)


def test_a_small_blob_of_another_version_is_refused() -> None:
    with scripted([blob(b"0123456789")]) as script:
        end = end_of_one(script, "0x2")
    assert isinstance(end, ChecksumError)
    assert "of another version" in str(end)


def test_a_busy_response_is_counted_and_retried_while_other_requests_go_on() -> None:
    busy = error(503, "ServerBusy", **{"Retry-After": "0.3"})
    with scripted([busy, blob(b"0123456789"), blob(b"0123456789")]) as script, closing(many(script)) as orders:
        orders.begin("busy", GetOrder("busy", "0x1", 10))
        while not orders.throttled:
            assert orders.ended(1) == []
        orders.begin("other", GetOrder("other", "0x1", 10))
        assert ends(orders) == {"busy": b"0123456789", "other": b"0123456789"}
    assert len(script.seen) == 3
    assert orders.throttled == 1


def test_a_small_body_that_breaks_off_is_downloaded_again() -> None:
    with scripted([blob(b"0123456789", cut=4), blob(b"0123456789")]) as script:
        assert end_of_one(script) == b"0123456789"
    assert len(script.seen) == 2


@pytest.mark.parametrize("told", [True, False])
def test_a_small_blob_with_an_endless_body_is_cut_off(told: bool) -> None:
    endless = Step(200, b"x" * (3 << 20), {"ETag": '"0x1"', **({} if told else {"Transfer-Encoding": "identity"})})
    with scripted([endless]) as script:
        end = end_of_one(script)
    assert isinstance(end, StorageError)
    assert "larger than 1 MiB" in str(end)


def test_closing_the_store_ends_requests_that_wait_for_a_retry() -> None:
    with scripted([error(503, "ServerBusy", **{"Retry-After": "60"})]) as script:
        patient = driven(script.url, retry=None)
        with closing(many(patient)) as orders:
            orders.begin("a", GetOrder("a", "0x1", 10))
            while not orders.throttled:
                orders.ended(0.1)
            patient.close()
            end = ends(orders)["a"]
    assert isinstance(end, StorageUnreachableError)
    assert "was closed" in str(end)


def test_closing_the_store_ends_requests_under_way() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        closed = driven(address(silent), retry=RetryPolicy(1))
        with closing(many(closed)) as orders:
            orders.begin("a", GetOrder("a", "0x1", 10))
            assert orders.ended(0.1) == []
            began = time.monotonic()
            closed.close()
            end = ends(orders)["a"]
    assert isinstance(end, StorageUnreachableError)
    # Without the end it would wait for a minute.
    assert time.monotonic() - began < 30
