"""Pictures of the local web page for the docs: ``python -m tools.screenshots [FOLDER]``.

Makes a small project on the emulator, drives Debian's Chromium through its pages, and writes a PNG of each, wide and
narrow, light and dark. The pictures that the docs show are in ``docs/images``.
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from playwright.sync_api import Page

from blobsync.emulator import Emulator, new_key
from tests.conftest import FOR_INSTALLERS, TOOLS
from tests.e2e.web_server import DESKTOP, PHONE, chromium, web_server, window
from tests.e2e.world import Container, Project, write_tree

_ENTRIES = ("data", "data/coco", "models", "output")
_README = "# VOC 2020\n\nclasses: {}\nsplit: {}\nsource: flickr\n"
LOOKS = (("wide", DESKTOP, False), ("wide-dark", DESKTOP, True), ("phone", PHONE, False), ("phone-dark", PHONE, True))


def picture(width: int = 240, height: int = 160) -> bytes:
    """A PNG of colours that run into each other."""
    rows = b"".join(
        b"\0" + bytes(c for x in range(width) for c in (x * 255 // width, y * 255 // height, 160))
        for y in range(height)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@contextmanager
def project_with_everything() -> Iterator[Project]:
    """Four folder entries: in sync, to upload, to download, in conflict; and a history."""
    keys = {"research": new_key()}
    with tempfile.TemporaryDirectory() as folder, Emulator(TOOLS, environ=FOR_INSTALLERS).session(keys) as state:
        service = f"http://127.0.0.1:{state.port}"
        container = Container(service, "research", keys["research"].reveal(), "datasets")
        container.create()
        root = Path(folder, "segmentation")
        home = Path(folder, "home")
        home.mkdir()
        root.mkdir()
        project = Project(root, {"HOME": str(home), "USER": "amber"})
        _configure(project, container)
        _fill(project, container)
        yield project


def _configure(project: Project, container: Container) -> None:
    project.configure(container)
    file = project.root / "aux_data/aml/aml.yaml"
    account = "aux_data/configs/aml.yaml"
    entries = {f"{name}_folder": {"azure_blob_config_file": account, "path": f"amber/{name}"} for name in _ENTRIES}
    file.write_text(yaml.safe_dump({"config_param": entries}))


def _fill(project: Project, container: Container) -> None:
    chance = random.Random(7)
    files = {f"data/voc20/{n:04}.jpg": chance.randbytes(chance.randrange(4_000, 30_000)) for n in range(120)}
    files |= {f"data/coco/train/{n:05}.jpg": chance.randbytes(chance.randrange(2_000, 20_000)) for n in range(80)}
    files |= {
        "data/README.md": b"# VOC 2020\n\nclasses: 20\nsplit: train\nsource: flickr\n",
        "data/sample.png": picture(),
    }
    files |= {f"output/run{n}/model.pt": chance.randbytes(700_000) for n in range(3)}
    write_tree(project.root, files)
    for words in (("u", "data"), ("u", "output")):
        assert project.run(*words).code == 0
    for n in range(5):
        container.put(f"amber/models/resnet{n}.bin", chance.randbytes(260_000))
    assert project.run("status", "--fresh").code == 3
    _submit(project)
    # Afterwards: changes here, there, and on both sides.
    write_tree(project.root, {f"data/voc20/new{n:03}.jpg": chance.randbytes(24_000) for n in range(30)})
    (project.root / "data/README.md").write_text(_README.format(21, "train"))
    container.put("amber/data/README.md", _README.format(20, "trainval").encode())
    container.put("amber/data/coco/train/extra.jpg", chance.randbytes(90_000))
    assert project.run("status", "--fresh").code == 3


def _submit(project: Project) -> None:
    """One job that failed, one that did not."""
    program = "import sys\nfor n in range(20):\n    print(f'epoch {n} loss {1 / (n + 1):.3f}')\nif sys.argv[1:]:\n"
    write_tree(project.root, {"train.py": f"{program}    raise RuntimeError('CUDA out of memory')\n".encode()})
    (project.root / "aux_data/aml/here.yaml").write_text("platform: local\nenv: {EPOCHS: '20'}\n")
    for name, more in (("first try", ["--batch=512"]), ("smaller batch", [])):
        project.run("-c", "here", "submit", "--wait", "--name", name, "python3", "train.py", *more)


def _pages(page: Page, address: str) -> Iterator[str]:
    """Go to each page; yields its name once it is there."""
    page.goto(f"{address}/")
    page.wait_for_selector("table.entries")
    yield "project"
    page.click("#up-1")
    page.wait_for_selector(".go")
    yield "plan"
    page.goto(f"{address}/conflict?path=data/README.md")
    yield "conflict"
    page.goto(f"{address}/browse?path=data")
    yield "browse"
    page.goto(f"{address}/blob?path=data/sample.png")
    page.wait_for_function("document.images[0]?.complete")
    yield "blob"
    page.goto(f"{address}/transfers")
    yield "transfers"
    yield from _pages_of_jobs(page, address)


def _pages_of_jobs(page: Page, address: str) -> Iterator[str]:
    page.goto(f"{address}/jobs")
    page.wait_for_selector("table.jobs")
    yield "jobs"
    page.get_by_role("link", name="first try").click()
    page.get_by_label("Why it failed").wait_for()
    yield "job"
    page.goto(f"{address}/new-job?cluster=here")
    page.get_by_label("Command", exact=True).fill("python train.py --epochs 20")
    page.get_by_label("Retries").fill("a few")
    page.wait_for_selector("#mistake-retries:not(:empty)")
    yield "new-job-mistake"
    page.get_by_label("Retries").fill("2")
    page.wait_for_selector("#request")
    yield "new-job"
    page.goto(f"{address}/clusters")
    page.wait_for_selector(".free")
    yield "clusters"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with project_with_everything() as project, web_server(project, "--port", "0") as server, chromium() as browser:
        for look, size, dark in LOOKS:
            with window(browser, server, size=size, dark=dark) as seen:
                for name in _pages(seen.page, server.address):
                    seen.page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
                assert seen.errors == [], seen.errors


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/screenshots"))
