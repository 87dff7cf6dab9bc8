"""The places of the navigation, in its order."""

from __future__ import annotations

from typing import NamedTuple


class NavigationPlace(NamedTuple):
    """One of them: its name, its address, the name of its picture in ``icons.svg``, and where else its pages are."""

    name: str
    path: str
    icon: str
    more: tuple[str, ...] = ()


PLACES = (
    NavigationPlace("Project", "/", "folder"),
    NavigationPlace("Transfers", "/transfers", "arrows", ("/history",)),
    NavigationPlace("Jobs", "/jobs", "list"),
    NavigationPlace("New job", "/new-job", "plus"),
    NavigationPlace("Clusters", "/clusters", "nodes"),
)


def place_of(address: str) -> NavigationPlace:
    """Where an address belongs: to the place with an address that it begins with; to the first one otherwise."""
    return next(
        (each for each in PLACES[1:] if any(_is_below(address, own) for own in (each.path, *each.more))), PLACES[0]
    )


def _is_below(address: str, own: str) -> bool:
    return f"{address}/".startswith(f"{own}/")
