"""Pictures of the local web page: ``python -m tools.screenshots [FOLDER] [NAME...]``.

Makes a small project on the emulator, drives Debian's Chromium to every page (``tests/e2e/web_tour.py``), and writes a
PNG of each, wide and narrow, light and dark. Without ``FOLDER``, the pictures that the docs show are made anew in
``docs/images``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

from blobsync.emulator import Emulator, new_key
from tests.conftest import FOR_INSTALLERS, TOOLS
from tests.e2e.web_server import DESKTOP, PHONE, chromium, web_server, window
from tests.e2e.web_tour import STOPS, something_on_every_page
from tests.e2e.world import Container, Project

# The width and height of each, and whether it is dark.
LOOKS = {
    "wide": (DESKTOP, False),
    "low-dark": ((DESKTOP[0], 520), True),
    "wide-dark": (DESKTOP, True),
    "phone": (PHONE, False),
    "phone-dark": (PHONE, True),
}
# What docs/web.md shows: the picture's name -> the stop, and how it looks.
IN_DOCS = {
    "web-project": ("project", "wide"),
    "web-conflict": ("conflict", "wide"),
    "web-jobs": ("jobs", "low-dark"),
    "web-job": ("job-failed", "wide"),
    "web-compare": ("compare", "wide"),
    "web-new-job": ("new-job-mistakes", "wide"),
    "web-clusters": ("doctor", "wide"),
    "web-phone": ("job-running", "phone-dark"),
}
_IMAGES = Path(__file__).parent.parent / "docs" / "images"


@contextmanager
def example() -> Iterator[Project]:
    """The project, on a blob server of its own."""
    keys = {"research": new_key()}
    with tempfile.TemporaryDirectory() as folder, Emulator(TOOLS, environ=FOR_INSTALLERS).session(keys) as state:
        container = Container(f"http://127.0.0.1:{state.port}", "research", keys["research"].reveal(), "datasets")
        container.create()
        root, home = Path(folder, "segmentation"), Path(folder, "home")
        home.mkdir()
        root.mkdir()
        project = Project(root, {"HOME": str(home), "USER": "amber"})
        with something_on_every_page(project, container):
            yield project


def _paint(page: Page, folder: Path, files: Mapping[str, str]) -> None:
    """``files``: the name of each picture by how it looks."""
    for look, name in files.items():
        size, dark = LOOKS[look]
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.emulate_media(color_scheme="dark" if dark else "light")
        # A window as tall as the page: what stays at its edge is at the edge of the picture.
        tall = max(size[1], int(page.evaluate("document.documentElement.scrollHeight")))
        page.set_viewport_size({"width": size[0], "height": tall})
        page.screenshot(path=folder / f"{name}.png", full_page=True)
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})


def _files(stop: str, names: Collection[str], *, for_docs: bool) -> dict[str, str]:
    if for_docs:
        return {look: name for name, (shown, look) in IN_DOCS.items() if shown == stop}
    return {look: f"{stop}-{look}" for look in LOOKS} if not names or stop in names else {}


def main(folder: Path | None, names: Collection[str]) -> None:
    place = folder or _IMAGES
    place.mkdir(parents=True, exist_ok=True)
    with example() as project, web_server(project, "--port", "0") as server, chromium() as browser:
        with window(browser, server) as seen:
            for stop in STOPS:
                stop.go(seen.page, server.address)
                _paint(seen.page, place, _files(stop.name, names, for_docs=folder is None))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, sys.argv[2:])
