"""A project with something on every page, and the way to each: tests look at them, ``tools.screenshots`` paints them.

A route that answers with a page has a stop here, or a reason in ``NO_PAGES`` why it is none.
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone

import yaml
from playwright.sync_api import Page

from tests.e2e.world import Container, Project, write_tree

# What answers without a page of its own, and what it is.
NO_PAGES = {
    "/project/live": "a stream",
    "/browse/live": "a stream",
    "/plans/{id}/live": "a stream",
    "/transfers/live": "a stream",
    "/transfers/{id}/live": "a stream",
    "/jobs/live": "a stream",
    "/jobs/{run_id}/live": "a stream",
    "/jobs/{run_id}/log": "a stream",
    "/picture": "a picture",
    "/jobs/{run_id}/outputs": "a part of the job's page",
    "/jobs/{run_id}/checkpoints": "a part of the job's page",
    "/clusters/{name}/free": "a part of a page",
    "/clusters/{name}/holders": "a part of a page",
}
_ENTRIES = ("data", "data/coco", "models", "output")
_README = "# VOC 2020\n\nclasses: {}\nsplit: {}\nsource: flickr\n"
_PROGRAM = """\
import os, sys
rank = os.environ.get("RANK", "0")
for epoch in range(20):
    print(f"rank {rank}: epoch {epoch}, loss {1 / (epoch + 1):.3f}")
if sys.argv[1:]:
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
with open(os.path.join(os.environ["BLOBSYNC_OUTPUT"], f"model{rank}.pt"), "wb") as target:
    target.write(bytes(300_000))
for step in (10, 20) if rank == "0" else ():
    folder = os.path.join(os.environ["BLOBSYNC_OUTPUT"], f"checkpoint-{step}")
    os.makedirs(folder)
    for name, text in (("model.bin", "w" * 200_000), ("trainer_state.json", '{"loss": 0.5}')):
        with open(os.path.join(folder, name), "w") as target:
            target.write(text)
"""


@dataclass(frozen=True)
class Stop:
    """One look at a page: its route, a name, and how a browser gets there and sees that it is complete."""

    route: str
    name: str
    go: Callable[[Page, str], object]


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
def something_on_every_page(project: Project, container: Container) -> Iterator[None]:
    """Folder entries in sync, to upload, to download and in conflict; a history; jobs in every state."""
    _configure(project, container)
    _fill(project, container)
    _submit(project)
    _change(project, container)
    waiting = [_running(project, name) for name in ("night run", "after it")]
    try:
        yield
    finally:
        project.run("abort", *reversed(waiting))


def _configure(project: Project, container: Container) -> None:
    project.configure(container)
    account = "aux_data/configs/aml.yaml"
    entries = {f"{name}_folder": {"azure_blob_config_file": account, "path": f"amber/{name}"} for name in _ENTRIES}
    written = {**entries["output_folder"], "mode": "upload", "checkpoints": "checkpoint-*"}
    own = {**entries, "output_folder": written}
    own["code_path"] = {"azure_blob_config_file": account, "path": "amber/code.zip"}
    here = {"platform": "local", "output": "per_job", "env": {"EPOCHS": "20"}, "local": {"gpus": 2, "slots": 1}}
    files = {
        "aml": {"config_param": entries},
        "here": {**here, "config_param": own, "gpu_per_node": 2},
        "campus": {
            "platform": "slurm",
            "ssh": "amber@127.0.0.1",
            "gpu_per_node": 4,
            "slrum": {},
            "slurm": {"shared_root": "/home/amber/segmentation"},
            "config_param": entries,
        },
        "old": {"platform": "lcoal", "nodes": "many"},
    }
    for name, values in files.items():
        (project.root / f"aux_data/aml/{name}.yaml").write_text(yaml.safe_dump(values, sort_keys=False))


def _fill(project: Project, container: Container) -> None:
    chance = random.Random(7)
    files = {f"data/voc20/{n:04}.jpg": chance.randbytes(chance.randrange(4_000, 30_000)) for n in range(120)}
    files |= {f"data/coco/train/{n:05}.jpg": chance.randbytes(chance.randrange(2_000, 20_000)) for n in range(80)}
    rows = "".join(f'{n:04}.jpg,{n % 20},{n / 7:.3f},"somebody, {n % 3}"\n' for n in range(90))
    files["data/labels.csv"] = f"file,class,area,by\n{rows}".encode()
    files |= {"data/README.md": _README.format(20, "train").encode(), "data/sample.png": picture()}
    files |= {f"output/run{n}/model.pt": chance.randbytes(700_000) for n in range(3)}
    files["train.py"] = _PROGRAM.encode()
    write_tree(project.root, files)
    for words in (("u", "data"), ("u", "output")):
        assert project.run(*words).code == 0
    for n in range(5):
        container.put(f"amber/models/resnet{n}.bin", chance.randbytes(260_000))


def _submit(project: Project) -> None:
    """One job that ran on two GPUs, one that failed."""
    line = ("python3", "train.py")
    project.run("-c", "here", "-n", "2", "submit", "--init", "--wait", "--name", "baseline", *line)
    with (project.root / "train.py").open("a") as source:
        source.write("# a larger batch\n")
    failed = project.run(
        *("--json", "-c", "here", "-n", "1", "-p", "{env: {EPOCHS: '40'}}", "submit", "--init", "--wait"),
        *("--name", "first try", *line, "--batch=512"),
    )
    _heartbeats(project, failed.data["job_id"])


def _heartbeats(project: Project, run_id: str) -> None:
    """A day of what the node says of itself every half hour."""
    chance, log = random.Random(3), project.state / "jobs" / run_id / "system_logs" / "node_0.txt"
    with log.open("a") as target:
        for number in range(48):
            at = datetime.fromtimestamp(time.time() - (48 - number) * 1800, timezone.utc)
            use = min(100, 60 + number + chance.randrange(-8, 8)) if number > 3 else chance.randrange(10)
            target.write(
                f"{at:%Y-%m-%dT%H:%M:%SZ} heartbeat: disk {180 - 2 * number} of 271 GB free, "
                f"load {3 + chance.random() * 2:.1f}, GPU {use}%/{20_000 + 100 * number}MB\n"
            )


def _running(project: Project, name: str) -> str:
    run_id: str = project.run("--json", "-c", "here", "-n", "0", "submit", "--name", name, "sleep", "900").data[
        "job_id"
    ]
    return run_id


def _change(project: Project, container: Container) -> None:
    """Afterwards: changes here, there, and on both sides."""
    assert project.run("status", "--fresh").code == 3
    chance = random.Random(11)
    write_tree(project.root, {f"data/voc20/new{n:03}.jpg": chance.randbytes(24_000) for n in range(30)})
    write_tree(project.root, {f"data/five/{n}.txt": b"only here\n" * n for n in range(1, 6)})
    (project.root / "data/README.md").write_text(_README.format(21, "train"))
    container.put("amber/data/README.md", _README.format(20, "trainval").encode())
    container.put("amber/data/coco/train/extra.jpg", chance.randbytes(90_000))
    assert project.run("status", "--fresh").code == 3


def _goes(path: str, complete: str) -> Callable[[Page, str], object]:
    """To an address; the page is complete when that is there."""

    def go(page: Page, address: str) -> None:
        page.goto(f"{address}{path}")
        page.wait_for_selector(complete)

    return go


def _clicks(path: str, button: str, complete: str) -> Callable[[Page, str], object]:
    """To an address, and then a click."""

    def go(page: Page, address: str) -> None:
        page.goto(f"{address}{path}")
        page.locator(button).first.click()
        page.wait_for_selector(complete)

    return go


def _opens_all_files(page: Page, address: str) -> None:
    """From the plan, where the browser is."""
    page.locator(".card a", has_text="Show all ").last.click()
    page.wait_for_selector("table")


def _carries_out(page: Page, address: str) -> None:
    """The folder entry ``models`` comes."""
    page.goto(f"{address}/")
    page.get_by_role("button", name="Plan the download of models").click()
    page.get_by_role("button", name="Carry out exactly this plan").click()
    page.wait_for_selector(".badge.done")


def _one_job(name: str, complete: str, query: str = "") -> Callable[[Page, str], object]:
    def go(page: Page, address: str) -> None:
        page.goto(f"{address}/jobs")
        page.get_by_role("link", name=name, exact=True).click()
        page.wait_for_selector("#log")
        if query:
            # What is looked for is in the logs that were fetched.
            page.wait_for_selector("#job-logs a")
            page.goto(f"{page.url}{query}")
        page.locator("summary", has_text="Outputs").click()
        page.wait_for_selector(complete)
        page.wait_for_selector("#outputs > *")
        page.wait_for_selector("#checkpoints > :not(noscript)")

    return go


def _compares(page: Page, address: str) -> None:
    page.goto(f"{address}/jobs")
    for name in ("baseline", "first try"):
        page.locator("tr", has=page.get_by_role("link", name=name, exact=True)).locator("input").check()
    page.get_by_role("button", name="Compare two").click()
    page.wait_for_selector(".differs")


def _types(page: Page, address: str) -> None:
    page.goto(f"{address}/new-job?cluster=here")
    page.get_by_label("Command", exact=True).fill("python train.py --epochs 20")
    page.wait_for_selector("#summary")


def _mistakes(page: Page, address: str) -> None:
    _types(page, address)
    page.get_by_label("Retries").fill("a few")
    page.get_by_label("Environment variables").fill("EPOCHS")
    page.wait_for_selector("#mistake-retries:not(:empty)")


def _loads(page: Page, address: str) -> None:
    page.goto(f"{address}/new-job")
    page.get_by_label("Load from history").select_option(index=3)
    page.get_by_role("button", name="Load", exact=True).click()
    page.wait_for_selector("#message .good")


def _one_doctor(page: Page, address: str) -> None:
    page.goto(f"{address}/clusters")
    page.get_by_role("region", name="here").get_by_role("button", name="Doctor").click()
    page.wait_for_selector("#doctor")
    # The page grows as clusters answer.
    page.wait_for_function(
        "() => [...document.querySelectorAll('[data-load]')].every((each) => each.querySelector('.free, .mistake'))"
    )


def _makes_a_link(page: Page, address: str) -> None:
    _one_job("baseline", "#outputs button")(page, address)
    page.locator("#outputs button").first.click()
    page.wait_for_selector("#url")


STOPS = (
    Stop("/", "project", _goes("/", "table.entries")),
    Stop("/", "project-options", _clicks("/", "summary", "#include")),
    Stop("/plans/{id}", "plan", _clicks("/", "#up-1", ".go")),
    Stop("/plans/{id}/files", "plan-files", _opens_all_files),
    Stop("/plans/{id}", "plan-refused", _goes("/plans/none", ".notice.bad")),
    Stop("/conflict", "conflict", _goes("/conflict?path=data/README.md", ".diff")),
    Stop("/browse", "browse", _goes("/browse?path=data", "table.blobs")),
    Stop("/browse", "browse-differs", _goes("/browse?path=data/voc20&show=differs&sort=-here", "table.blobs")),
    Stop("/browse", "browse-here", _goes("/browse?path=data/five", "table.blobs")),
    Stop("/blob", "blob-here", _goes("/blob?path=data/five/3.txt", "pre.preview")),
    Stop("/blob", "blob-table", _goes("/blob?path=data/labels.csv", ".sheet")),
    Stop("/browse", "browse-empty", _goes("/browse?path=data/nothing", ".notice:not([hidden])")),
    Stop("/blob", "blob", _goes("/blob?path=data/sample.png", "img.preview")),
    Stop("/links", "link", _clicks("/blob?path=data/README.md", "text=Make a link", "#url")),
    Stop("/transfers/{id}", "transfer", _carries_out),
    Stop("/transfers", "transfers", _goes("/transfers", "table.history")),
    Stop("/history/{id}", "history", _clicks("/transfers", ".history a", "dl.facts")),
    Stop("/jobs", "jobs", _goes("/jobs", "table.jobs")),
    Stop("/jobs", "jobs-none", _goes("/jobs?text=nothing", "#job-list p")),
    Stop("/jobs/{run_id}", "job-failed", _one_job("first try", "#job-use figure", "?find=epoch")),
    Stop("/jobs/{run_id}", "job-done", _one_job("baseline", "#job-logs a")),
    Stop("/jobs/{run_id}", "job-running", _one_job("night run", "#abort")),
    Stop("/jobs/{run_id}/outputs/link", "job-link", _makes_a_link),
    Stop("/jobs/compare", "compare", _compares),
    Stop("/new-job", "new-job", _types),
    Stop("/new-job", "new-job-mistakes", _mistakes),
    Stop("/new-job", "new-job-loaded", _loads),
    Stop("/clusters", "clusters", _goes("/clusters", ".free")),
    Stop("/clusters/{name}/doctor", "doctor", _one_doctor),
    Stop("/login", "login", _goes("/login", "#login")),
)
