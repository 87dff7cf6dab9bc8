"""Soak tests run when they are asked for: ``./dev soak``, or ``./dev test -m soak``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Not by an option in pyproject.toml: another -m on the command line would replace it, and bring them back.
    if "soak" in str(config.getoption("markexpr")):
        return
    long = [item for item in items if item.get_closest_marker("soak")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
