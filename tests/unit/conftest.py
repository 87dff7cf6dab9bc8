"""What many tests of plans, transfers and projects begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.opened_project import Opened
from tests.fakes.project_context import World, account, cluster


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project with ``data``, and another cluster that has it, too."""
    return World(tmp_path / "project", cluster("eu", data=account("eu")), cluster("us", data=account("us")))


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """A project whose container is in memory; nothing that a test made wait does so at the end."""
    opened = Opened(tmp_path / "project")
    yield opened
    opened.store.before = lambda request: None
    opened.project.close()
