"""The Project and Transfers pages of ``blobsync web``, in Debian's Chromium."""

from __future__ import annotations

import random
import re

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.web_server import PATIENCE_MS, PHONE, faults, overflow, web_server, window
from tests.e2e.world import Container, Project, hashes, read_tree, write_tree
from tests.servers.delay_proxy import delay_proxy

pytestmark = pytest.mark.e2e
expect.set_options(timeout=PATIENCE_MS)

_MOVES = """() => {
  const bar = document.querySelector('[role=progressbar]');
  if (bar) (window.seen ??= new Set()).add(bar.getAttribute('aria-valuenow'));
  return window.seen?.size >= 3;
}"""
_HOSTILE = "<img src=x onerror=window.hacked=1>.txt"
_SCRIPT = b"<script>window.hacked=2</script><b>bold</b>\n"


def test_a_plan_is_made_and_carried_out_with_progress_that_moves_and_another_one_cancelled(
    project: Project, container: Container, browser: Browser
) -> None:
    # Many small ones: the line takes in several megabytes before it slows a large one down.
    files = {f"file{n:03}.bin": random.Random(n).randbytes(20_000) for n in range(300)}
    with delay_proxy(container.service, round_trip_ms=2, mbps=12) as line:
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
            expect(page.locator(".go")).to_contain_text("300 files, 6 MB")
            expect(page.get_by_role("heading", name="not at the destination yet")).to_be_visible()
            assert container.names() == [], "the first click changes nothing"
            page.get_by_role("button", name="Carry out exactly this plan").click()
            page.wait_for_function(_MOVES)
            expect(page.locator(".badge.done")).to_be_visible()
            expect(page.get_by_label("Result")).to_contain_text("300 files")
            assert container.contents("data/") == hashes(files)
            # The history has it, with its receipt; and the project is in sync.
            page.get_by_role("link", name="Transfers").first.click()
            page.locator(".history a").first.click()
            expect(page.get_by_role("heading", name="Receipt")).to_be_visible()
            expect(page.locator("table")).to_contain_text("data/file005.bin")
            page.get_by_role("link", name="Project").first.click()
            expect(page.locator(".entries .badge.good")).to_have_text("in sync")
            # Spread over two processes, each is shown; cancelled, it leaves nothing half done.
            huge = {f"huge{n}.bin": random.Random(n).randbytes(12_000_000) for n in range(2)}
            write_tree(project.data, huge)
            page.goto(f"{server.address}/")
            page.get_by_text("Plan for one path, with options").click()
            page.get_by_label("Path in the project").fill("data")
            page.get_by_label("Processes").fill("2")
            page.get_by_role("button", name="Plan the upload", exact=True).last.click()
            page.get_by_role("button", name="Carry out exactly this plan").click()
            expect(page.locator(".workers dt")).to_have_text(["worker 1", "worker 2"])
            page.get_by_role("button", name="Cancel").click()
            expect(page.locator(".badge.cancelled")).to_be_visible()
            left = container.contents("data/")
            assert hashes(files).items() <= left.items() <= hashes(files | huge).items(), "whole files only"
            assert seen.errors == []
            assert seen.hosts - {""} == {f"127.0.0.1:{server.port}"}
    assert project.json("history").data["transfers"][0]["result"] == "cancelled"


def test_a_plan_that_no_longer_holds_is_not_carried_out(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    write_tree(project.data, {"a.txt": b"one\n"})
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        page.get_by_role("button", name="Plan the upload of data").click()
        expect(page.locator(".go")).to_contain_text("1 file")
        write_tree(project.data, {"b.txt": b"two\n"})
        page.get_by_role("button", name="Carry out exactly this plan").click()
        expect(page.locator(".notice.bad")).to_contain_text("data/b.txt changed")
        assert container.names() == []
        page.get_by_role("button", name="Plan the rest").click()
        expect(page.locator(".go")).to_contain_text("2 files")
        assert seen.errors == []


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
        page.get_by_role("link", name="data/notes.txt").click()
        expect(page.get_by_role("region", name="Here", exact=True)).to_contain_text("here")
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


def test_names_and_contents_of_blobs_are_inert_and_no_page_has_a_key(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    container.put(f"data/{_HOSTILE}", _SCRIPT)
    container.put("data/drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.hacked=3'></svg>")
    container.put("data/lie.png", _SCRIPT)
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
        server.cookie = "; ".join(f"{each['name']}={each['value']}" for each in page.context.cookies())
        assert server.ask("/picture?path=data/lie.png").status == 400
        # The one link that was asked for.
        page.goto(f"{server.address}/blob?path=data/lie.png")
        page.get_by_label("works for").select_option("1 hour")
        page.get_by_role("button", name="Make it").click()
        assert "sig=" in page.get_by_label("Link", exact=True).input_value()
        assert "sig=" not in page.url


def test_a_page_says_when_the_server_is_gone_and_goes_on_after_a_new_login(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    with web_server(project) as server, window(browser, server) as seen:
        page = seen.page
        said = page.locator("#connection")
        expect(said).to_be_hidden()
        server.kill()
        expect(said).to_contain_text("start it again in the project: blobsync web")
        server.words = ("--port", str(server.port))
        server.start()
        expect(said).to_contain_text("Log in with the link that it printed")
        other = page.context.new_page()
        other.goto(f"file://{server.file}")
        other.wait_for_url(f"{server.address}/")
        expect(said).to_be_hidden()
        expect(page.get_by_role("heading", name="Project")).to_be_visible()


def test_pages_have_no_serious_fault_of_accessibility_and_fit_a_narrow_window(
    project: Project, container: Container, browser: Browser
) -> None:
    project.configure(container)
    long = "a-name-without-any-place-to-break-it-" * 4
    write_tree(project.data, {f"{long}.txt": b"one\n", "b.txt": b"two\n"})
    assert project.run("u", "data").code == 0
    write_tree(project.data, {"b.txt": b"here\n", "c.txt": b"new\n"})
    container.put("data/b.txt", b"there\n")
    with web_server(project) as server:
        for dark in (False, True):
            with window(browser, server, size=PHONE, dark=dark) as seen:
                page, found = seen.page, []
                page.locator(".entries tbody tr").wait_for()
                addresses = [
                    "/",
                    "/transfers",
                    "/browse?path=data",
                    f"/blob?path=data/{long}.txt",
                    "/conflict?path=data/b.txt",
                ]
                page.get_by_role("button", name="Plan the upload of data").click()
                page.locator(".go").wait_for()
                addresses.append(re.sub(r"^http://[^/]+", "", page.url))
                for address in addresses:
                    page.goto(f"{server.address}{address}")
                    found += faults(page)
                    assert overflow(page) <= 0, address
                assert found == []
