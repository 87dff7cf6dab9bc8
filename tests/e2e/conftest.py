"""Fixtures of the end-to-end tests, and the count of faults that they injected."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from blobsync.jobspec.node_archive import node_archive
from tests.conftest import Azurite
from tests.e2e.tally import Tally
from tests.e2e.web_server import chromium
from tests.e2e.world import HAS_DIRECTORIES, Container, Project
from tests.servers.copy_source_proxy import CopySourceHandle, copy_source_proxy
from tests.servers.data_lake import data_lake
from tests.servers.fault_proxy import FaultHandle, fault_proxy
from tests.servers.s3 import S3Server


@pytest.fixture(scope="module")
def azurite(azurite: Azurite) -> Iterator[Azurite]:
    """The blob server; with ``BLOBSYNC_TEST_ACCOUNT=hns`` as an account with a hierarchical namespace."""
    if not HAS_DIRECTORIES:
        yield azurite
        return
    with data_lake(azurite.url, azurite.keys) as lake:
        yield replace(azurite, url=lake.url)


@pytest.fixture(scope="module")
def service(azurite: Azurite) -> str:
    """``http://127.0.0.1:port`` of the blob server, the upstream of proxies."""
    return azurite.url


@pytest.fixture
def counting(service: str) -> Iterator[FaultHandle]:
    """A proxy without faults at first, which records what is moved."""
    with fault_proxy(service) as proxy:
        yield proxy


@pytest.fixture
def new_container(azurite: Azurite) -> Callable[[str], Container]:
    """Makes a new container in the account ``one`` or ``two``."""

    def make(account: str = "one") -> Container:
        container = Container(azurite.url, account, azurite.keys[account], f"c{uuid.uuid4().hex[:20]}")
        container.create()
        return container

    return make


@pytest.fixture
def container(new_container: Callable[[str], Container]) -> Container:
    return new_container("one")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project with a home of its own; ``configure`` it before use."""
    root = tmp_path / "project"
    home = tmp_path / "home"
    root.mkdir()
    home.mkdir()
    environ = {"HOME": str(home)}
    return Project(root, environ)


@pytest.fixture
def with_azcopy(project: Project, azcopy_path: Path) -> Project:
    """The project with azcopy."""
    project.environ["BLOBSYNC_AZCOPY"] = str(azcopy_path)
    return project


@pytest.fixture(scope="session")
def home_with_node_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user who has submitted a job to a cluster before."""
    home = tmp_path_factory.mktemp("submitted")
    node_archive({"HOME": str(home)})
    return home


@pytest.fixture
def with_node_archive(project: Project, home_with_node_archive: Path) -> Project:
    """The project of such a user: making the archive takes longer than a small job."""
    shutil.copytree(home_with_node_archive, project.environ["HOME"], dirs_exist_ok=True)
    return project


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    return Tally(record_property)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    with chromium() as found:
        yield found


@pytest.fixture
def copying(service: str, moto: S3Server) -> Iterator[CopySourceHandle]:
    with copy_source_proxy(service, outside=[moto.url]) as proxy:
        yield proxy


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if HAS_DIRECTORIES:
        # Some that have a project ask for its account by the name of the fixture.
        uses = [item for item in items if {"azurite", "project"} & {*getattr(item, "fixturenames", ())}]
        config.hook.pytest_deselected(items=list({*items} - {*uses}))
        items[:] = uses


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The sum of injected faults and their outcomes over all tests of this run."""
    kinds: Counter[str] = Counter()
    exact = honest = failed = 0
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            properties = [each for each in report.user_properties if each[0] in ("injected", "runs")]
            failed += bool(properties) and outcome == "failed"
            for name, value in properties:
                if name == "injected":
                    kinds[value[0]] += value[1]
                else:
                    exact, honest = exact + value[0], honest + value[1]
    if kinds:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        terminalreporter.section("faults")
        terminalreporter.write_line(f"{sum(kinds.values())} faults injected: {listed}")
        terminalreporter.write_line(
            f"{exact} runs under fault ended exact, {honest} failed and named every file that was not; "
            f"{failed} tests found one that did neither"
        )
