"""One throttled request delays all others with the same pace."""

from __future__ import annotations

import pytest

from blobsync.base.locations import BlobContainer
from blobsync.base.redaction import SasToken
from blobsync.store.rest.auth import SasSigner
from blobsync.store.rest.http import BlobHttp, Pace, Pause, Reply, RetryPolicy, Steps
from blobsync.store.rest.transport import Headers, HttpRequest, HttpResponse, WholeResponse

_SAS = SasToken.parse("sv=2023-11-03&sp=rwl&sr=c&se=2099-01-01T00:00:00Z&sig=UEFDRQ%3D%3D")


def _http(pace: Pace | None) -> BlobHttp:
    container = BlobContainer("acct", "box", "http://127.0.0.1:1/acct")
    return BlobHttp(container, SasSigner(_SAS), environ={}, retry=RetryPolicy(base=0.001, longest=0.002), pace=pace)


def _asked(http: BlobHttp) -> Steps[Reply]:
    return http.tries("PUT", "/acct/box/x", {}, {}, b"")


def _answered(status: int, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(WholeResponse(status, Headers(headers), resent=False), b"")


def test_other_requests_wait_until_the_retry_after_is_over() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])
    one, other, free = _http(pace), _http(pace), _http(None)
    throttled, waiting = _asked(one), _asked(other)
    assert isinstance(next(throttled), HttpRequest)
    assert throttled.send(_answered(503, ("Retry-After", "7"))) == Pause(7.0)
    assert next(waiting) == Pause(7.0)
    # The engine sends fewer requests at a time afterwards.
    assert (one.throttled, other.throttled) == (1, 1)
    now[0] = 5.0
    assert waiting.send(None) == Pause(2.0)
    now[0] = 7.0
    assert isinstance(waiting.send(None), HttpRequest) and isinstance(throttled.send(None), HttpRequest)
    assert pace.take() == 7.0 and pace.take() == 0.0
    assert isinstance(next(_asked(free)), HttpRequest)
    with pytest.raises(StopIteration) as end:
        waiting.send(_answered(201))
    assert end.value.value.status == 201


@pytest.mark.parametrize("answer", [(500, ()), (503, ())])
def test_a_short_wait_does_not_delay_other_requests(answer: tuple[int, tuple[()]]) -> None:
    pace = Pace()
    steps = _asked(_http(pace))
    next(steps)
    status, headers = answer
    assert isinstance(steps.send(_answered(status, *headers)), Pause)
    assert pace.take() == 0.0 and pace.left == 0.0
