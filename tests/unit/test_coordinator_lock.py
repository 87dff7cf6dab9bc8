"""One coordinator at a time, and its heartbeat."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from blobsync.base.errors import LocalFileError, SpreadBusyError, StorageUnreachableError
from blobsync.spread.coordinator_lock import BEAT_SECONDS, CoordinatorLock, OwnerLock
from blobsync.spread.shared_store import CLAIM_SECONDS, FolderStore

_ONE, _OTHER = (str(uuid.UUID(int=number)) for number in (1, 2))
_PATIENCE = 60.0


class Place(FolderStore):
    """A store that fails so many times, and records the writers."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.signs: list[bytes] = []
        self.claims = 0
        self.failures = 0
        self.hurried = 0
        # Signals that a heartbeat hangs, and lets it continue.
        self.hangs, self.awake = threading.Event(), threading.Event()
        self.awake.set()

    def write(self, name: str, body: bytes) -> None:
        if self.failures:
            self.failures -= 1
            raise StorageUnreachableError("the line is cut")
        super().write(name, body)
        self.signs.append(body)

    def claim(self, name: str, holder: str) -> bool:
        self.claims += 1
        if not self.awake.is_set():
            self.hangs.set()
            assert self.awake.wait(_PATIENCE)
        return super().claim(name, holder)

    def hurry(self) -> None:
        self.hurried += 1


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "place")


def _until(met: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not met():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_others_see_that_the_parent_lives_until_it_ends(place: Place, tmp_path: Path) -> None:
    claims = Place(tmp_path / "claims")
    with CoordinatorLock(claims, _ONE, beat=0.01) as presence:
        assert claims.claims == 1 and not place.signs, "nobody is told before there is something to do"
        presence.show(place)
        assert place.read("alive") == place.signs[0] != b""
        _until(lambda: len(place.signs) > 3 and claims.claims > 3)
        # Each differs from the previous one, and only the coordinator can have made it.
        assert len(set(place.signs)) == len(place.signs) and {len(each) for each in place.signs} == {16}
        assert not FolderStore(tmp_path / "claims").claim("owner", _OTHER)
    assert place.read("alive") == b"" and not claims.signs
    count = len(place.signs)
    assert FolderStore(tmp_path / "claims").claim("owner", _OTHER), "given up at the end"
    presence.end()
    assert len(place.signs) == count, "an end is told once"


def test_a_parent_that_is_cut_off_for_a_while_goes_on(place: Place) -> None:
    with CoordinatorLock(place, _ONE, beat=0.01) as presence:
        presence.show(place)
        place.failures = 3
        _until(lambda: not place.failures and len(place.signs) > 2)


def test_whoever_was_never_shown_says_nothing_at_its_end(place: Place) -> None:
    with CoordinatorLock(place, _ONE):
        # Afterwards its claim is renewed several times before it expires.
        assert CLAIM_SECONDS / BEAT_SECONDS >= 3
    assert place.read("alive") is None and place.claim("owner", _OTHER)


def test_a_second_parent_is_told_who_has_the_place_and_when_to_try_again(place: Place, tmp_path: Path) -> None:
    with CoordinatorLock(place, _ONE), pytest.raises(SpreadBusyError) as error, CoordinatorLock(place, _OTHER):
        pass
    assert f"{tmp_path / 'place'}/" in error.value.message
    assert error.value.hint == "wait for it; if it was killed, try again after 60 s"


def test_a_command_that_ends_does_not_wait_for_the_next_beat(place: Place) -> None:
    known = set(threading.enumerate())
    began = time.monotonic()
    with CoordinatorLock(place, _ONE, beat=10 * _PATIENCE) as presence:
        presence.show(place)
        (thread,) = set(threading.enumerate()) - known
        assert thread.daemon
    assert not thread.is_alive() and time.monotonic() - began < _PATIENCE


class _Stopped(BaseException):
    """Stands for Ctrl-C."""


def test_an_end_that_nobody_hurries_waits_for_the_beat_under_way_and_has_the_last_word(
    place: Place, tmp_path: Path
) -> None:
    claims = Place(tmp_path / "claims")
    known = set(threading.enumerate())
    with CoordinatorLock(claims, _ONE, beat=0.01) as presence:
        presence.show(place)
        (thread,) = set(threading.enumerate()) - known
        claims.awake.clear()
        assert claims.hangs.wait(_PATIENCE)
        threading.Timer(2.5, claims.awake.set).start()
    assert not thread.is_alive() and place.signs[-1] == b""
    assert not claims.hurried and not place.hurried


def _hang(claims: Place) -> None:
    """Wait until a heartbeat hangs."""
    claims.awake.clear()
    assert claims.hangs.wait(_PATIENCE)


def _cut_off(place: Place) -> None:
    """Runs before the next heartbeat."""
    place.failures = 1


def _live(presence: CoordinatorLock, signs: Place, then: Callable[[], None], error: type[BaseException] | None) -> None:
    with presence:
        presence.show(signs)
        then()
        if error is not None:
            raise error


def test_who_is_stopped_does_not_wait_for_a_beat_that_hangs_and_says_its_end_once(place: Place, tmp_path: Path) -> None:
    claims = Place(tmp_path / "claims")
    presence = CoordinatorLock(claims, _ONE, beat=0.01)
    with pytest.raises(_Stopped):
        _live(presence, place, lambda: _hang(claims), _Stopped)
    assert (claims.hurried, place.hurried) == (1, 1)
    presence.end()
    assert place.signs.count(b"") == 1
    claims.awake.set()


def test_what_ended_the_command_is_reported_and_not_that_the_place_is_cut_off(place: Place) -> None:
    with pytest.raises(_Stopped):
        _live(CoordinatorLock(place, _ONE), place, lambda: _cut_off(place), _Stopped)
    assert place.failures == 0
    # Reported if nothing else ended the block.
    with pytest.raises(StorageUnreachableError):
        _live(CoordinatorLock(place, _ONE), place, lambda: _cut_off(place), None)


def test_who_is_stopped_before_anything_was_shown_gives_its_claim_up(place: Place) -> None:
    with pytest.raises(_Stopped), CoordinatorLock(place, _ONE):
        raise _Stopped
    assert place.hurried and not place.signs and place.claim("owner", _OTHER)


# -- on machines that share the project's state ---------------------------------------------------------------------


def test_one_command_at_a_time_has_the_lock_and_all_have_the_same_name(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with OwnerLock(file) as holder:
        assert str(uuid.UUID(holder)) == holder
        with pytest.raises(SpreadBusyError, match="another command of this project"), OwnerLock(file):
            pass
        with pytest.raises(SpreadBusyError), OwnerLock(file):
            pass
    with OwnerLock(file) as again:
        assert again == holder
    assert file.read_text() == holder


@pytest.mark.parametrize("left", ["", "no name", "6f0c2f5e"])
def test_what_is_no_name_in_the_lock_is_replaced(tmp_path: Path, left: str) -> None:
    file = tmp_path / "lock"
    file.write_text(left)
    with OwnerLock(file) as holder:
        # At once: the successor of a killed coordinator has the same UUID.
        assert file.read_text() == holder != left
    with OwnerLock(file) as again:
        assert again == holder


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match="missing"), OwnerLock(tmp_path / "missing" / "lock"):
        pass


def test_a_lock_that_was_not_got_is_not_given_up(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path / "lock")
    lock.__exit__(None, None, None)
    with lock, pytest.raises(SpreadBusyError), OwnerLock(tmp_path / "lock"):
        pass
