"""The Project and Transfers pages of ``blobsync web``, in Debian's Chromium."""

from __future__ import annotations

import base64
import os
import random
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.web_server import PATIENCE_MS, PHONE, faults, overflow, web_server, window
from tests.e2e.world import Container, Project, hashes, read_tree, write_tree
from tests.servers.delay_proxy import delay_proxy
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
expect.set_options(timeout=PATIENCE_MS)

_SHOWS = "Number(document.querySelector('[role=progressbar]')?.getAttribute('aria-valuenow'))"
_MOVES = """() => {
  const bar = document.querySelector('[role=progressbar]');
  if (bar) (window.seen ??= new Set()).add(bar.getAttribute('aria-valuenow'));
  return window.seen?.size >= 3;
}"""
# One red pixel.
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
_HOSTILE = "<img src=x onerror=window.hacked=1>.txt"
_SCRIPT = b"<script>window.hacked=2</script><b>bold</b>\n"


def test_a_plan_is_made_and_carried_out_with_progress_that_moves(
    project: Project, container: Container, browser: Browser
) -> None:
    files = {f"file{n:03}.bin": random.Random(n).randbytes(20_000) for n in range(100)}
    with fault_proxy(container.service, _held("file0[3-9]")) as line:
        project.configure(container, url=line.url)
        write_tree(project.data, files)
        with web_server(project) as server, window(browser, server) as seen:
            page = seen.page
            # First visit: five places, the entries with their state; everything from this machine.
            places = page.get_by_role("navigation", name="Places").get_by_role("link")
            assert [text.strip() for text in places.all_inner_texts()] == [
                "Project", "Transfers", "Jobs", "New job", "Clusters",
            ]  # fmt: skip
            expect(page.locator(".entries tbody tr")).to_have_count(1)
            # By keyboard alone: the first stop skips the navigation, the buttons answer to Enter.
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
            page.get_by_role("button", name="Plan the upload of data").focus()
            page.keyboard.press("Enter")
            expect(page.locator(".go")).to_contain_text("100 files to upload, 2 MB")
            expect(page.locator(".go")).not_to_contain_text("ngine")
            expect(page.get_by_role("heading", name="not at the destination yet")).to_be_visible()
            assert container.names() == [], "the first click changes nothing"
            page.get_by_role("button", name="Carry out exactly this plan").click()
            expect(page.locator(".badge.running")).to_have_text("uploading")
            shown = 0
            # More files go on as soon as the page has shown those before.
            for held in (_held("file0[5-9]"), _held("file0[8-9]"), None):
                page.wait_for_function(f"(before) => {_SHOWS} > before", arg=shown)
                shown = int(page.evaluate(_SHOWS))
                line.inject(*filter(None, [held]))
                line.release()
            expect(page.locator(".badge.done")).to_be_visible()
            expect(page.get_by_label("Result")).to_contain_text("100 files")
            receipt = page.get_by_role("link", name="Receipt").get_attribute("href")
            rate = page.locator(".numbers div", has_text="Rate").locator("dd").inner_text()
            assert container.contents("data/") == hashes(files)
            # The history has it, with its receipt and a column of the chart; and the project is in sync.
            page.get_by_role("link", name="Transfers").first.click()
            expect(page.locator(".chart rect.up")).to_have_count(1)
            expect(page.locator(".history tbody tr")).to_contain_text(rate)
            expect(page.locator(".chart")).to_contain_text(f"fastest transfer: {rate}")
            page.locator(".history a").first.click()
            expect(page).to_have_url(f"{server.address}{receipt}")
            expect(page.get_by_role("heading", name="Receipt")).to_be_visible()
            expect(page.locator("table")).to_contain_text("data/file005.bin")
            page.get_by_role("link", name="Project").first.click()
            expect(page.locator(".entries .badge.good")).to_have_text("in sync")
            expect(page.locator(".entries .bar rect.same")).to_have_attribute("width", "1000.0")
            assert seen.errors == []
            assert seen.hosts - {""} == {f"127.0.0.1:{server.port}"}


def _held(pattern: str) -> Fault:
    """These files wait at the proxy, until it releases them."""
    return Fault("hold", rate=1, operations=("put blob",), pattern=pattern)


@pytest.mark.soak
def test_transfers_of_a_terminal_and_of_the_page_are_followed_by_worker_and_cancelled(
    project: Project, container: Container, browser: Browser
) -> None:
    files = {f"file{n:03}.bin": random.Random(n).randbytes(20_000) for n in range(600)}
    workers = [re.compile(r"^process [0-9]+$")] * 2
    # None of them comes to its end by itself.
    with (
        delay_proxy(container.service, round_trip_ms=2, mbps=2) as distant,
        fault_proxy(distant.url, _held("file5")) as line,
    ):
        project.configure(container, url=line.url)
        write_tree(project.data, files)
        with web_server(project) as server, window(browser, server) as seen:
            page = seen.page
            page.on("dialog", lambda asked: asked.accept())
            page.goto(f"{server.address}/transfers")
            process = project.start("u", "data", "--processes", "2")
            # The page finds it by itself.
            expect(page.locator(".workers tbody th")).to_have_text(workers)
            page.wait_for_function(_MOVES)
            expect(page.get_by_role("main")).to_contain_text("blobsync u data --processes 2")
            page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
            assert faults(page) == [] and overflow(page) <= 0
            for width in range(PHONE[0], 3 * PHONE[0] // 2, 32):
                page.set_viewport_size({"width": width, "height": PHONE[1]})
                assert page.locator(".typed").evaluate(_OPTION_LINES) == 1, width
            page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
            (row,) = project.json("history").data["transfers"]
            assert row["progress"]["files_expected"] == 600 and len(row["progress"]["workers"]) == 2
            page.get_by_role("button", name="Cancel").click()
            _, said = process.communicate(timeout=120)
            assert process.returncode == 130 and "stopped:" in said, said
            expect(page.locator(".history .badge.cancelled")).to_have_count(1)
            # The same of the page's own.
            page.goto(f"{server.address}/")
            page.get_by_text("Plan for one path, with options").click()
            page.get_by_label("Path in the project").fill("data")
            page.get_by_label("Processes").fill("2")
            page.get_by_role("button", name="Plan the upload", exact=True).last.click()
            page.get_by_role("button", name="Carry out exactly this plan").click()
            expect(page.locator(".workers tbody th")).to_have_text(workers)
            page.get_by_role("button", name="Cancel").click()
            expect(page.locator(".badge.cancelled")).to_be_visible()
            left = container.contents("data/")
            assert left and left.items() <= hashes(files).items(), "whole files only"
            assert seen.errors == []
    assert [each["result"] for each in project.json("history").data["transfers"]] == ["cancelled"] * 2


# In how many lines the name of an option stands.
_OPTION_LINES = """(each) => {
  const walker = document.createTreeWalker(each, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const at = node.data.indexOf('--processes');
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + '--processes'.length);
    return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
  }
}"""


@pytest.mark.soak
def test_plans_through_another_cluster_and_copies_from_it_are_made_with_two_clicks(
    project: Project, new_container: Callable[[str], Container], browser: Browser
) -> None:
    own, far = new_container("one"), new_container("two")
    project.configure(own)
    project.configure(far, cluster="eu", path="far/data")
    files = {"a.txt": b"one\n", "b/c.txt": b"two\n"}
    write_tree(project.data, files)
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page

        def carry_out(plan: str, reason: str) -> None:
            expect(page.locator("h1")).to_have_text(plan)
            expect(page.get_by_role("heading", name=reason)).to_be_visible()
            assert own.names() == [], "the first click changes nothing"
            page.get_by_role("button", name="Carry out exactly this plan").click()
            expect(page.locator(".badge.done")).to_be_visible()

        page.get_by_label("Cluster", exact=True).select_option("eu")
        page.get_by_role("button", name="Show").click()
        page.get_by_role("button", name="Plan the upload of data").click()
        carry_out("Plan: upload data, cluster eu", "not at the destination yet")
        assert far.contents("far/data/") == hashes(files)
        # Its links stay with the cluster: only that one has the blob.
        page.get_by_role("link", name="Back to the project").click()
        page.get_by_role("link", name="data", exact=True).click()
        page.get_by_role("link", name="a.txt").click()
        expect(page.locator("pre.preview")).to_have_text("one")
        # A copy to the cluster of the command line, from there.
        page.goto(f"{server.address}/")
        page.get_by_text("Plan for one path, with options").click()
        page.get_by_label("Path in the project").fill("data/b")
        page.get_by_label("From another cluster's container").select_option("eu")
        page.get_by_role("button", name="Plan the upload", exact=True).last.click()
        carry_out("Plan: copy data/b from eu to aml", "not at the destination yet")
        expect(page.locator("h1")).to_have_text("Copy data/b from eu")
        page.get_by_role("link", name="Receipt").click()
        expect(page.locator(".receipt tbody td").first).to_have_text("copy")
        assert own.contents("data/") == hashes({"b/c.txt": b"two\n"})
        assert seen.errors == []
    copied, uploaded = project.json("history").data["transfers"]
    assert (copied["kind"], copied["cluster"], copied["from_cluster"]) == ("copy", "aml", "eu")
    assert (uploaded["kind"], uploaded["cluster"]) == ("upload", "eu")


def test_what_cannot_be_uploaded_is_named_with_its_reason_and_what_doctor_examined_in_one_line(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    (project.root / "aux_data/configs/aml.yaml").rename(project.root / "aux_data/configs/storage_of_us.yaml")
    cluster = project.root / "aux_data/aml/aml.yaml"
    cluster.write_text(cluster.read_text().replace("configs/aml.yaml", "configs/storage_of_us.yaml"))
    write_tree(project.data, {f"sub/{n}.txt": bytes(1_500) for n in range(100)})
    (project.data / "broken").symlink_to("nowhere")
    with open(os.fsencode(project.data) + b"/caf\xe9.txt", "wb") as target:
        target.write(b"x")
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        page.goto(f"{server.address}/browse?path=data")
        expect(page.locator("tr", has_text="broken").locator(".badge")).to_have_text("unreadable")
        # No address can have this name.
        expect(page.locator("tr", has_text="caf").get_by_title("its name is not valid UTF-8")).to_be_visible()
        expect(page.get_by_role("link", name="caf")).to_have_count(0)
        page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        # Both at once: the table moves while the container is being listed.
        here, there = page.locator("tr", has_text="sub/").evaluate(_TOPS, ["Here", "Container"])
        assert here == there
        page.goto(f"{server.address}/")
        page.get_by_role("button", name="Plan the upload of data").click()
        expect(page.locator(".notice.bad li")).to_have_text(
            [
                re.compile("^data/caf.*: left out: its name is not valid UTF-8$"),
                "data/broken: cannot be read (a symlink to nowhere, which does not exist)",
            ]
        )
        assert seen.errors == []
        page.goto(f"{server.address}/clusters")
        page.get_by_role("button", name="Run doctor").click()
        where = page.locator(".checks td:nth-child(3)", has_text="storage_of_us").first
        where.wait_for()
        # Before its style sheets are there, the page has no widths.
        page.wait_for_load_state("load")
        for width in (900, 1350, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            assert where.evaluate(_LINES) == 1, width


_TOPS = """(row, sides) => sides.map(
  (side) => row.querySelector(`td[data-label=${side}]`).getBoundingClientRect().top
)"""


_LINES = """(each) => {
  const range = document.createRange();
  range.selectNodeContents(each);
  return new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size;
}"""


def test_a_conflict_is_shown_side_by_side_and_settled(project: Project, container: Container, browser: Browser) -> None:
    project.configure(container)
    write_tree(project.data, {"notes.txt": b"one\ntwo\n", "same.txt": b"same\n"})
    assert project.run("u", "data").code == 0
    write_tree(project.data, {"notes.txt": b"one\nhere\n"})
    container.put("data/notes.txt", b"one\nthere\n")
    assert project.run("status", "--fresh").code == 3
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        expect(page.locator(".entries .badge.warn")).to_have_text("1 in conflict")
        page.get_by_role("button", name="Plan the upload of data").click()
        expect(page.locator(".go h2")).to_have_text("1 conflict, nothing to upload")
        page.get_by_role("link", name="data/notes.txt").click()
        here = page.get_by_role("region", name="Here", exact=True)
        expect(here).to_contain_text("here")
        expect(here.locator("dd").first).to_have_text("9 B")
        expect(page.get_by_role("region", name="In the container")).to_contain_text("there")
        expect(page.locator(".diff .new")).to_have_text("+here")
        page.get_by_role("button", name="Keep both").click()
        expect(page.locator("table.files")).to_contain_text("and the other version as")
        page.get_by_role("button", name="Carry out exactly this plan").click()
        expect(page.locator(".badge.done")).to_be_visible()
        page.get_by_role("link", name="Back to the project").click()
        expect(page.locator(".entries .badge.good")).to_have_text("in sync")
        assert seen.errors == []
    assert sorted(read_tree(project.data).values()) == sorted(
        hashes({"": b"same\n", "a": b"one\nhere\n", "b": b"one\nthere\n"}).values()
    )
    assert container.contents("data/") == read_tree(project.data)


def _has_row(page: Page, *cells: str) -> None:
    """Wait for the first four cells of a file or folder: the page is there before all files have been looked at."""
    link = page.get_by_role("link", name=cells[0], exact=True)
    row = page.locator(".blobs tbody tr", has=link).locator("th, td")

    def seen() -> list[str]:
        return [" ".join(text.split()) for text in row.all_inner_texts()][:4]

    assert wait_until(lambda: seen() == list(cells), seconds=PATIENCE_MS / 1000, pause=0.1), seen()


def _both_sides_are_shown(page: Page) -> None:
    # What was listed by the upload; the container has changed since.
    expect(page.locator(".blobs")).to_contain_text("five/")
    _has_row(page, "five/", "1,000 to upload", "5 KB 1,000 files", "–")
    _has_row(page, "sub/", "in sync", "900 B 1 file", "900 B 1 blob")
    page.get_by_role("button", name="List the container now").click()
    expect(page.get_by_role("link", name="there.bin")).to_be_visible()
    _has_row(page, "there.bin", "only in the container", "–", "70 B")
    _has_row(page, "same.txt", "changed here", "7 B", "5 B")
    expect(page.locator("#folder")).to_contain_text("Here 1,003 files")
    expect(page.locator("#folder")).to_contain_text("listed just now")


def _sorted_and_filtered(page: Page) -> None:
    page.get_by_role("link", name="Here", exact=True).click()
    expect(page.locator(".blobs tbody th").first).to_have_text("five/")
    page.get_by_label("State").select_option("What differs")
    page.get_by_label("Part of a name").fill("THE")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".blobs tbody th")).to_have_text(["there.bin"])
    page.get_by_role("button", name="Plan the download of data/there.bin").click()
    expect(page.locator(".go")).to_contain_text("1 file to download, 70 B")


def _what_is_only_here_is_shown_in_pages(page: Page) -> None:
    # Only here: not "no blobs".
    expect(page.locator("#folder nav")).to_contain_text("1 to 200 of 1,000 names")
    page.goto(f"{page.url}&page=77")
    expect(page.locator("#folder nav")).to_contain_text("801 to 1,000 of 1,000 names")
    page.go_back()
    page.get_by_role("link", name="0007.txt").click()
    expect(page.locator("pre.preview")).to_have_text("here")
    expect(page.get_by_label("Facts")).to_contain_text("the container has no such blob")


def _a_table_is_shown_as_one(page: Page) -> None:
    expect(page.locator(".sheet tbody td")).to_have_text(["1", "1", "ada"])
    page.get_by_role("link", name="Show it as text").click()
    expect(page.locator("pre.preview")).to_contain_text("id,name")


def test_a_folder_is_shown_side_by_side_with_the_state_of_each_file(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    write_tree(project.data, {"same.txt": b"same\n", "sub/deep/a.bin": b"x" * 900, "table.csv": b"id,name\n1,ada\n"})
    assert project.run("u", "data").code == 0
    write_tree(project.data, {f"five/{n:04}.txt": b"here\n" for n in range(1000)})
    write_tree(project.data, {"same.txt": b"edited\n"})
    os.mkfifo(project.data / "pipe")
    container.put("data/there.bin", b"y" * 70)
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        page.goto(f"{server.address}/browse?path=data")
        _both_sides_are_shown(page)
        _sorted_and_filtered(page)
        page.goto(f"{server.address}/browse?path=data/five")
        _what_is_only_here_is_shown_in_pages(page)
        page.goto(f"{server.address}/browse?path=data/table.csv")
        _a_table_is_shown_as_one(page)
        page.goto(f"{server.address}/browse?path=data/nothing")
        expect(page.locator(".notice:visible")).to_contain_text("nothing below data/nothing, here or in the container")
        assert seen.errors == []
        page.goto(f"{server.address}/browse?path=data")
        page.get_by_role("link", name="pipe").click()
        expect(page.locator(".notice.bad")).to_contain_text("data/pipe: left out, neither a file nor a folder")


def test_names_and_contents_of_blobs_are_inert_and_no_page_has_a_key(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    container.put(f"data/{_HOSTILE}", _SCRIPT)
    container.put("data/drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=3'></svg>")
    container.put("data/lie.png", _SCRIPT)
    container.put("data/true.png", _PNG)
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        pages = []
        page.get_by_role("link", name="data", exact=True).click()
        for name in (_HOSTILE, "drawing.svg", "lie.png"):
            page.get_by_role("link", name=name).click()
            expect(page.locator("h1")).to_have_text(name)
            pages.append(page.content())
            assert page.evaluate("window.hacked") is None
            page.go_back()
        page.get_by_role("link", name=_HOSTILE).click()
        expect(page.locator("pre.preview")).to_have_text(_SCRIPT.decode())
        assert page.locator("pre.preview b, main img").count() == 0
        page.get_by_role("button", name="Download").click()
        expect(page.locator("table.files").first).to_contain_text(_HOSTILE)
        page.get_by_role("button", name="Carry out exactly this plan").click()
        expect(page.locator(".badge.done")).to_be_visible()
        for address in ("/", "/transfers", f"/conflict?path=data/{_HOSTILE}"):
            page.goto(f"{server.address}{address}")
            pages.append(page.content())
        assert page.evaluate("window.hacked") is None
        assert seen.errors == []
        assert not [each for each in pages if container.key in each or "sig=" in each]
        # A picture is what begins like one; whatever it is served as, it cannot act.
        page.goto(f"{server.address}/blob?path=data/true.png")
        page.wait_for_function("() => document.querySelector('img.preview').naturalWidth === 1")
        server.cookie = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
        assert server.ask("/picture?path=data/lie.png").status == 400
        # The one link that was asked for.
        page.goto(f"{server.address}/blob?path=data/lie.png")
        _a_link_opens_for_an_hour(page)


def _a_link_opens_for_an_hour(page: Page) -> None:
    page.get_by_label("works for").select_option("1 hour")
    page.get_by_role("button", name="Make a link").click()
    link = page.get_by_label("Link", exact=True).input_value()
    ends = parse_qs(urlsplit(link).query)["se"][0]
    hour = datetime.fromisoformat(ends.replace("Z", "+00:00")) - datetime.now(timezone.utc)
    assert "sig=" in link and timedelta(minutes=50) < hour <= timedelta(minutes=61)
    assert urlopen(link).read() == _SCRIPT
    assert "sig=" not in page.url
    page.get_by_role("button", name="Copy").click()
    expect(page.locator("#copied")).not_to_be_empty()


@pytest.mark.soak
def test_a_page_says_when_the_server_is_gone_and_goes_on_after_a_new_login(
    project: Project, container: Container, browser: Browser
) -> None:
    files = {f"file{n:03}.bin": random.Random(n).randbytes(20_000) for n in range(400)}
    write_tree(project.data, files)
    with delay_proxy(container.service, round_trip_ms=2, mbps=2) as line:
        project.configure(container, url=line.url)
        with web_server(project) as server, window(browser, server) as seen:
            page = seen.page
            said = page.locator("#connection")
            expect(said).to_be_hidden()
            page.get_by_role("button", name="Plan the upload of data").click()
            page.get_by_role("button", name="Carry out exactly this plan").click()
            expect(page.get_by_role("progressbar")).to_be_visible()
            server.kill()
            expect(said).to_contain_text("start it again in the project: blobsync web")
            server.words = ("--port", str(server.port))
            server.start()
            expect(said).to_contain_text("Log in with the link that it printed")
            other = page.context.new_page()
            other.goto(f"file://{server.file}")
            other.wait_for_url(f"{server.address}/")
            # The transfer was killed with the server, which the page shows now.
            expect(page.get_by_role("heading", name="Transfers", exact=True)).to_be_visible()
            expect(said).to_be_hidden()
            expect(page.locator(".history .badge.killed")).to_have_count(1)
            left = container.contents("data/")
            assert left.items() <= hashes(files).items(), "whole files only"
