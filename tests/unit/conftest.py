"""What many tests of plans and transfers begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.project_context import World, account, cluster


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project with ``data``, and another cluster that has it, too."""
    return World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("us", data=account("us")))
