"""Events of a connection that is lost and comes back; ``plan.events`` has all others."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

# Why a transfer waits, as the terminal shows it.
NO_CONNECTION = "no connection"
NO_ANSWER = "no answer"
SERVICE_BUSY = "the service is busy"
WHYS = (NO_CONNECTION, NO_ANSWER, SERVICE_BUSY)


class Disconnected(NamedTuple):
    """A host stopped responding ``seconds`` ago: ``why`` is one of the texts above. All requests to it wait and are
    retried."""

    host: str
    why: str
    seconds: float = 0.0


class Connected(NamedTuple):
    """The host responds again."""

    host: str


ConnectionEvent: TypeAlias = Disconnected | Connected


def ignore(event: object) -> None:
    """Do nothing with an event."""
