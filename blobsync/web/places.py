"""The places of the navigation, in its order."""

from __future__ import annotations

from typing import NamedTuple


class NavigationPlace(NamedTuple):
    """One of them: its name, its address, and the name of its picture in ``icons.svg``."""

    name: str
    path: str
    icon: str


PLACES = (
    NavigationPlace("Project", "/", "folder"),
    NavigationPlace("Transfers", "/transfers", "arrows"),
    NavigationPlace("Jobs", "/jobs", "list"),
    NavigationPlace("New job", "/new-job", "plus"),
    NavigationPlace("Clusters", "/clusters", "nodes"),
)


def place_of(address: str) -> NavigationPlace:
    """Where an address belongs: to the place whose own it begins with; to the first one otherwise."""
    return next((each for each in PLACES[1:] if f"{address}/".startswith(f"{each.path}/")), PLACES[0])
