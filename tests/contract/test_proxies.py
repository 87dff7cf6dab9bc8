"""The proxies of ``tests/servers``: unchanged bytes, and the effect of each fault."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.servers.child import ServerProcess
from tests.servers.copy_source_proxy import REFUSALS, CopySourceHandle, Refusal, copy_source_proxy
from tests.servers.delay_proxy import delay_proxy
from tests.servers.fault_proxy import Fault, FaultHandle, fault_proxy, weather
from tests.servers.recording_server import RecordingServer
from tests.waiting import wait_until

_PAYLOAD = bytes(range(256)) * 1200
_ODD_HEAD = b"PUT /acct/c/a%41b%20c%23?comp=block&sig=x%2By HTTP/1.1\r\nhOsT: Somewhere:1\r\nX-Ms-Odd:  two  spaces\r\n"

_ANSWERS = {
    "GET /a/c/plain": b"HTTP/1.1 200 Fine\r\nx-a:  b\r\nContent-Length: %d\r\n\r\n" % len(_PAYLOAD) + _PAYLOAD,
    "GET /a/c/empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "GET /a/c/chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=1\r\nhello\r\n1\r\n!\r\n0\r\n\r\n"),
    "GET /a/c/to-the-end": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the connection ends",
    "HEAD /a/c/plain": b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n",
    "GET /a/c/304": b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
}


@pytest.fixture
def upstream() -> Iterator[RecordingServer]:
    with RecordingServer(_ANSWERS) as server:
        yield server


@pytest.fixture
def faulty(upstream: RecordingServer) -> Iterator[FaultHandle]:
    with fault_proxy(upstream.url) as handle:
        yield handle


@pytest.fixture
def copying(upstream: RecordingServer) -> Iterator[CopySourceHandle]:
    with copy_source_proxy(upstream.url) as handle:
        yield handle


class Reset(Exception):
    """The connection ended with a TCP reset."""


def _exchange(url: str, *requests: bytes) -> bytes:
    """Send requests on one connection, the last of which closes it; returns all received bytes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        got = b""
        try:
            for request in requests:
                connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1 << 16):
                got += data
        except OSError as error:
            # The error of a reset depends on its time: during sendall, or before shutdown.
            if error.errno not in {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}:
                raise
            raise Reset(got) from error
        return got


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


def _put(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"PUT {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_PROXIES: dict[str, Callable[[str], AbstractContextManager[ServerProcess]]] = {
    "copy_source": copy_source_proxy,
    "fault": fault_proxy,
    "delay": lambda url: delay_proxy(url, round_trip_ms=1),
}


@pytest.mark.parametrize("name", _PROXIES)
def test_what_is_not_changed_passes_byte_for_byte(name: str, upstream: RecordingServer) -> None:
    requests = [
        _ODD_HEAD + b"Content-Length: %d\r\n\r\n" % len(_PAYLOAD) + _PAYLOAD,
        b"HEAD /a/c/plain HTTP/1.1\r\nHost: x\r\n\r\n",
        *(_get(target.split(" ")[1]) for target in ("GET /a/c/304", *_ANSWERS) if target.startswith("GET")),
    ]
    *others, last = [each for each in requests if b"to-the-end" not in each] + [_get("/a/c/to-the-end")]
    expected = _exchange(upstream.url, *others, last)
    sent, upstream.requests = upstream.requests, []
    with _PROXIES[name](upstream.url) as proxy:
        assert _exchange(proxy.url, *others, last) == expected
    assert upstream.requests == sent
    assert expected.endswith(b"until the connection ends")


def test_payload_is_counted_by_direction_and_by_agent(copying: CopySourceHandle) -> None:
    agent = "User-Agent: azsdk-python/1 (x)"
    _exchange(copying.url, _put("/a/c/x", b"12345", agent), _put("/a/c/x?comp=blocklist", b"list", agent))
    _exchange(copying.url, _get("/a/c/plain"))
    stats = copying.stats()
    assert (stats.uploaded, stats.downloaded, stats.other) == (5, len(_PAYLOAD), 4)
    assert stats.by_agent == {"azsdk-python": 9, "unknown": len(_PAYLOAD)}
    assert stats.operations == {"put blob": 1, "put block list": 1, "get blob": 1}
    first = copying.journal()[0]
    assert (first.operation, first.path, first.status) == ("put blob", "/a/c/x", 201)


@pytest.mark.parametrize("block", [False, True], ids=["blob", "block"])
def test_a_copy_reads_the_source_and_writes_what_it_read(
    block: bool, upstream: RecordingServer, copying: CopySourceHandle
) -> None:
    upstream.answers["GET /a/c/so%41urce"] = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/x\r\nCache-Control: no-store\r\nx-ms-meta-who: me\r\n"
        b"Content-Length: 5\r\n\r\nhello"
    )
    headers = [
        "x-ms-copy-source: http://elsewhere:1/a/c/so%41urce?sig=s%2B",
        "x-ms-source-range: bytes=0-4",
        "x-ms-source-if-match: etag",
        "x-ms-blob-content-type: text/mine",
        "x-ms-blob-type: BlockBlob",
    ]
    answer = _exchange(copying.url, _put("/b/c/d%2542" + ("?comp=block&blockid=AA" if block else ""), b"", *headers))
    digest = b64encode(hashlib.md5(b"hello").digest())
    assert answer.startswith(b"HTTP/1.1 201 ") and b"Content-MD5: " + digest in answer
    read, written = upstream.requests
    assert read.startswith(b"GET /a/c/so%41urce?sig=s%2B HTTP/1.1\r\nHost: elsewhere:1\r\n")
    assert b"x-ms-range: bytes=0-4" in read and b"if-match: etag" in read
    assert written.startswith(b"PUT /b/c/d%2542") and written.endswith(b"\r\n\r\nhello")
    assert b"copy-source" not in written and b"x-ms-blob-content-type: text/mine" in written
    assert (b"no-store" in written, b"x-ms-meta-who: me" in written) == (not block, not block)
    assert b"text/x" not in written
    stats = copying.stats()
    assert (stats.through_clients, stats.fetched) == (0, 5)


@pytest.mark.parametrize(
    ("answer", "extra", "status", "code"),
    [
        ("403 No", "", 403, "CannotVerifyCopySource"),
        ("404 No", "", 404, "CannotVerifyCopySource"),
        ("412 No", "", 412, "SourceConditionNotMet"),
        ("304 No", "", 412, "SourceConditionNotMet"),
        ("200 OK", "x-ms-source-content-md5: AAAA", 400, "Md5Mismatch"),
    ],
)
def test_a_copy_that_cannot_be_is_refused_in_the_services_words(
    answer: str, extra: str, status: int, code: str, upstream: RecordingServer, copying: CopySourceHandle
) -> None:
    upstream.answers["GET /a/c/source"] = f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode()
    headers = ["x-ms-blob-type: BlockBlob", "x-ms-copy-source: http://x:1/a/c/source", *([extra] if extra else [])]
    got = _exchange(copying.url, _put("/b/c/d", b"", *headers)).decode()
    assert got.startswith(f"HTTP/1.1 {status} ")
    assert f"x-ms-error-code: {code}" in got and f"<Code>{code}</Code>" in got
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("kind", REFUSALS)
def test_refusals_come_when_asked_for_and_end(kind: str, upstream: RecordingServer, copying: CopySourceHandle) -> None:
    upstream.answers["GET /a/c/source"] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    request = _put("/b/c/d", b"", "x-ms-blob-type: BlockBlob", "x-ms-copy-source: http://x:1/a/c/source")
    copying.refuse(Refusal(kind, pattern="/b/c/", limit=1))
    status, code, _ = REFUSALS[kind]
    refused, done = _exchange(copying.url, request), _exchange(copying.url, request)
    assert refused.startswith(b"HTTP/1.1 %d " % status) and code.encode() in refused
    assert done.startswith(b"HTTP/1.1 201 ")
    assert copying.stats().injected == {kind: 1}


def test_resets(faulty: FaultHandle, upstream: RecordingServer) -> None:
    body = b"x" * 100_000
    for kind, request, arrives in (
        ("reset_before", _get("/a/c/plain"), 0),
        ("stall", _get("/a/c/plain"), 0),
        ("reset_after", _put("/a/c/new", body), 1),
        ("reset_upload", _put("/a/c/new", body), 1),
        ("reset_download", _get("/a/c/plain"), 1),
    ):
        upstream.requests = []
        faulty.inject(Fault(kind, at=(1,), seconds=0.05))
        with pytest.raises(Reset):
            _exchange(faulty.url, request)
        # The server's thread notes a request that broke off a moment after its client knows.
        assert wait_until(lambda: len(upstream.requests) >= arrives), kind  # noqa: B023 - it is called at once
        assert len(upstream.requests) == arrives, kind
        if kind == "reset_after":
            assert upstream.requests[0].endswith(body)
        if kind == "reset_upload":
            assert upstream.requests[0].count(b"x") < len(body)
    assert faulty.stats().injected == dict.fromkeys(
        ("reset_before", "stall", "reset_after", "reset_upload", "reset_download"), 1
    )


def test_cut_bodies(faulty: FaultHandle, upstream: RecordingServer) -> None:
    half = len(_PAYLOAD) // 2
    faulty.inject(Fault("truncate", at=(1,)))
    head, _, body = _exchange(faulty.url, _get("/a/c/plain")).partition(b"\r\n\r\n")
    assert (body, b"Content-Length: %d" % len(_PAYLOAD) in head) == (_PAYLOAD[:half], True)
    faulty.inject(Fault("truncate_lying", at=(1,)))
    head, _, body = _exchange(faulty.url, _get("/a/c/plain")).partition(b"\r\n\r\n")
    assert (body, b"Content-Length: %d" % half in head) == (_PAYLOAD[:half], True)
    faulty.inject(Fault("truncate_upload", at=(1,)))
    upstream.requests = []
    assert b" 201 " in _exchange(faulty.url, _put("/a/c/new", _PAYLOAD, "Content-MD5: kept"))
    head, _, body = upstream.requests[0].partition(b"\r\n\r\n")
    assert (body, b"Content-Length: %d" % half in head, b"kept" in head) == (_PAYLOAD[:half], True, True)


def test_flipped_bits(faulty: FaultHandle, upstream: RecordingServer) -> None:
    faulty.inject(Fault("flip_down", at=(1,)), Fault("flip_up", at=(1,)))
    _, _, down = _exchange(faulty.url, _get("/a/c/plain")).partition(b"\r\n\r\n")
    upstream.requests = []
    _exchange(faulty.url, _put("/a/c/new", _PAYLOAD))
    _, _, up = upstream.requests[0].partition(b"\r\n\r\n")
    for got in (down, up):
        wrong = [a ^ b for a, b in zip(got, _PAYLOAD, strict=True) if a != b]
        assert len(wrong) == 1 and wrong[0].bit_count() == 1
    assert faulty.stats().injected == {"flip_down": 1, "flip_up": 1}


def test_nothing_is_counted_where_there_was_nothing_to_damage(faulty: FaultHandle) -> None:
    faulty.inject(Fault("flip_down", rate=1), Fault("flip_up", rate=1), Fault("truncate", rate=1))
    _exchange(faulty.url, _get("/a/c/empty"), _put("/a/c/new", b""))
    assert faulty.stats().injected == {}


def test_busy_answers_carry_retry_after(faulty: FaultHandle, upstream: RecordingServer) -> None:
    faulty.inject(Fault("status", at=(1,), status=429, retry_after=7))
    got = _exchange(faulty.url, _put("/a/c/new", b"body"), _get("/a/c/empty"))
    assert got.startswith(b"HTTP/1.1 429 ") and b"Retry-After: 7\r\n" in got
    assert b"HTTP/1.1 200 OK" in got
    assert len(upstream.requests) == 1


def test_one_process_alone_meets_its_fault(faulty: FaultHandle) -> None:
    faulty.inject(Fault("status", rate=1, pid=os.getpid()))
    assert _exchange(faulty.url, _get("/a/c/empty")).startswith(b"HTTP/1.1 503 ")
    faulty.inject(Fault("status", rate=1, pid=faulty.pid))
    assert _exchange(faulty.url, _get("/a/c/empty")).startswith(b"HTTP/1.1 200 ")


def test_a_drip_is_slow_and_whole(faulty: FaultHandle) -> None:
    faulty.inject(Fault("drip", rate=1, seconds=0.4))
    started = time.monotonic()
    assert _exchange(faulty.url, _get("/a/c/plain")).endswith(_PAYLOAD)
    assert time.monotonic() - started >= 0.35


def test_a_signature_expires_and_a_fresh_one_works(faulty: FaultHandle) -> None:
    faulty.inject(Fault("expire", at=(3,)))
    got = [_exchange(faulty.url, _get(f"/a/c/empty?sig={sig}"))[9:12] for sig in ("old", "old", "old", "old", "new")]
    assert got == [b"200", b"200", b"403", b"403", b"200"]


def test_a_seed_gives_the_same_fate_to_the_same_request(faulty: FaultHandle) -> None:
    def fates(seed: int) -> list[bytes]:
        faulty.inject(Fault("status", rate=0.3), *weather(busy=0, resets=0), seed=seed)
        return [_exchange(faulty.url, _get("/a/c/empty"))[9:12] for _ in range(40)]

    first = fates(7)
    assert first == fates(7)
    assert first != fates(8)
    assert 4 <= first.count(b"503") <= 22


def test_rules_choose_by_operation_pattern_and_limit(faulty: FaultHandle) -> None:
    faulty.inject(Fault("status", rate=1, operations=("put blob",), pattern="/new$", limit=1))
    statuses = [
        _exchange(faulty.url, request)[9:12]
        for request in (_get("/a/c/new"), _put("/a/c/newer", b""), _put("/a/c/new", b""), _put("/a/c/new", b""))
    ]
    assert statuses == [b"201", b"201", b"503", b"201"]


def test_an_unknown_fault_is_an_error(faulty: FaultHandle) -> None:
    with pytest.raises(ValueError, match="no such fault"):
        faulty.inject(Fault("earthquake"))


def test_the_line_is_late_and_narrow(upstream: RecordingServer) -> None:
    with delay_proxy(upstream.url, round_trip_ms=40) as line:
        started = time.monotonic()
        _exchange(line.url, _get("/a/c/empty"))
        assert 0.075 <= time.monotonic() - started < 10
        assert line.connections() == 1
    with delay_proxy(upstream.url, round_trip_ms=0, mbps=10) as line:
        started = time.monotonic()
        assert _exchange(line.url, _get("/a/c/plain")).endswith(_PAYLOAD)
        assert time.monotonic() - started >= 0.8 * len(_PAYLOAD) * 8 / 10e6


def test_a_server_ends_with_its_parent(upstream: RecordingServer, tmp_path: Path) -> None:
    program = tmp_path / "parent.py"
    program.write_text(
        "import time\n"
        "from tests.servers.fault_proxy import FaultHandle\n"
        f"handle = FaultHandle('fault_proxy', ['--upstream', {upstream.url!r}, '--faults', '[]'])\n"
        "print(handle.port, flush=True)\n"
        "time.sleep(600)\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": root}, cwd=root
    ) as parent:
        assert parent.stdout
        port = int(parent.stdout.readline())
        assert b"200" in _exchange(f"http://127.0.0.1:{port}", _get("/a/c/empty"))
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            # It ended before it took what waited for it.
            continue
        time.sleep(0.05)
    pytest.fail("the server outlived its parent")
