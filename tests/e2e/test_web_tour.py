"""Every page of ``blobsync web``: dark and light, narrow and wide, without a mouse, with a screen reader."""

from __future__ import annotations

from typing import Literal, TypeAlias

import pytest
from playwright.sync_api import Browser, Page

from blobsync.web.pages import ROUTES
from tests.e2e.web_server import DESKTOP, PHONE, faults, overflow, web_server, window
from tests.e2e.web_tour import NO_PAGES, STOPS, something_on_every_page
from tests.e2e.world import Container, Project, write_tree

pytestmark = pytest.mark.e2e

Color = Literal["dark", "light"]
# Whoever looks at 25 pages takes his time on a machine that is busy.
_PATIENCE = 600
# What somebody could use with a mouse; and which of it the Tab key passes by.
_CONTROLS = """() => [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')]
    .filter((each) => !each.disabled && each.type !== 'hidden' && each.checkVisibility())"""
_PASSED_BY = f"({_CONTROLS})().filter((each) => each.tabIndex < 0).map((each) => each.outerHTML.slice(0, 200))"
# Notes whatever gets the focus.
_WATCH = "document.addEventListener('focusin', (event) => { event.target.dataset.reached = 'yes'; })"
# What has its own bar to scroll sideways; code, logs and the tables of files may.
_SIDEWAYS = """() => [...document.querySelectorAll('main *:not(pre, textarea, .sheet)')]
    .filter((each) => each.scrollWidth > each.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(each).overflowX))
    .map((each) => each.outerHTML.slice(0, 200))"""
# A frame has a margin.
_AT_AN_EDGE = """() => [...document.querySelectorAll('.card :is(button, input, select, textarea, .button)')]
    .filter((each) => each.checkVisibility() && each.getBoundingClientRect().width > 1)
    .filter((each) => each.getBoundingClientRect().left < each.closest('.card').getBoundingClientRect().left + 6)
    .map((each) => each.outerHTML.slice(0, 200))"""
# What sticks out of its card; heads of tables that screen readers alone have do not count.
_LEAVES = """() => [...document.querySelectorAll('.card *')]
    .filter((each) => each.checkVisibility() && getComputedStyle(each).clipPath === 'none')
    .filter((each) => !each.closest('.hidden-label, .scroll'))
    .filter((each) => getComputedStyle(each.closest('thead') ?? each).clipPath === 'none')
    .filter((each) => {
      const [card, own] = [each.closest('.card').getBoundingClientRect(), each.getBoundingClientRect()];
      return own.width > 1 && (own.right > card.right + 1 || own.left < card.left - 1);
    })
    .map((each) => each.outerHTML.slice(0, 200))"""
# A size, a count or the words of a button that are broken into two lines.
_BROKEN = """() => [...document.querySelectorAll(
        'button, .button, .badge, .num, .spans .soft, .sheet td:nth-child(2), .what small')]
    .filter((each) => each.checkVisibility() && getComputedStyle(each.closest('thead') ?? each).clipPath === 'none')
    .filter((each) => [...each.childNodes].some((node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return (node.nodeType === Node.TEXT_NODE || node.tagName === 'SMALL')
          && new Set([...range.getClientRects()].map((line) => Math.round(line.top))).size > 1;
    }))
    .map((each) => each.outerHTML.slice(0, 200))"""
# An option's name, which a line must not end in the middle of.
_SPLIT = """() => [...document.querySelectorAll('label, label *, .typed *')].filter((each) => each.checkVisibility())
    .filter((each) => [...each.childNodes].some((node) => [...(node.data ?? '').matchAll(/--[a-z-]+/g)].some((name) => {
      const range = document.createRange();
      range.setStart(node, name.index);
      range.setEnd(node, name.index + name[0].length);
      return range.getClientRects().length > 1;
    })))
    .map((each) => each.outerHTML.slice(0, 200))"""
# What is cut off or stands over its neighbour.
_CUT_OFF = """() => [...document.querySelectorAll('main td, main th, main td > *, textarea[readonly]')]
    .filter((each) => each.checkVisibility() && !each.closest('.sheet, .hidden-label'))
    .filter((each) => getComputedStyle(each.closest('thead') ?? each).clipPath === 'none')
    .filter((each) => getComputedStyle(each).display !== 'inline')
    .filter((each) => each.scrollWidth > each.clientWidth + 1
        || each.matches('textarea') && each.scrollHeight > each.clientHeight + 1)
    .map((each) => each.outerHTML.slice(0, 200))"""
# Keys reach it, and nobody sees it.
_UNSEEN = f"""() => ({_CONTROLS})().filter((each) => each.tabIndex >= 0 && !each.matches('.skip'))
    .filter((each) => {{
      for (let at = each; at; at = at.parentElement) if (getComputedStyle(at).clipPath !== 'none') return true;
      return false;
    }})
    .map((each) => each.outerHTML.slice(0, 200))"""
# Folder entries without their bars, or without what the colours mean; a number of a checkpoint without its name.
_UNEXPLAINED = """() => [
    ...[...document.querySelectorAll('.entries')].filter((each) => ![...each.querySelectorAll('.bar'),
        each.nextElementSibling].every((part) => part.checkVisibility() && part.getBoundingClientRect().width > 50)),
    ...[...document.querySelectorAll('.labelled td:not(:first-child, :empty)')].filter((each) =>
        getComputedStyle(each.closest('table').tHead).clipPath !== 'none'
        && getComputedStyle(each, '::before').content === 'none'),
].map((each) => each.outerHTML.slice(0, 200))"""
# What is looked at always, and more in the soak.
_WIDTHS = (PHONE[0], 1280)
_MORE_WIDTHS = (600, 800, 900, 1000, 1100, 1200, 1350, DESKTOP[0])
_MISSED = f"({_CONTROLS})().filter((each) => !each.dataset.reached).map((each) => each.outerHTML.slice(0, 200))"


# The size and the colours in which axe looks at a page, which takes long; in the second ones only at the contrast.
_Look: TypeAlias = tuple[tuple[int, int], Color, Color]
_BOTH: tuple[_Look, ...] = ((DESKTOP, "light", "dark"), (PHONE, "dark", "light"))


def test_each_route_is_on_the_tour() -> None:
    pages = {route.path for route in ROUTES if "GET" in (route.methods or ())}
    on_the_tour = {stop.route for stop in STOPS}
    assert pages == (on_the_tour & pages) | NO_PAGES.keys(), "a new page needs a stop in web_tour.py"
    assert not on_the_tour & NO_PAGES.keys()
    assert len({stop.name for stop in STOPS}) == len(STOPS)


@pytest.mark.timeout(_PATIENCE)
@pytest.mark.parametrize("looks", [(), pytest.param(_BOTH, marks=pytest.mark.soak)], ids=len)
def test_every_page_is_right_dark_and_light_narrow_and_wide_and_all_of_it_is_reached_with_the_tab_key(
    looks: tuple[_Look, ...], project: Project, container: Container, browser: Browser
) -> None:
    long = "a-name-without-any-place-to-break-it-" * 4
    found: list[str] = []
    with something_on_every_page(project, container):
        write_tree(project.root, {f"data/{long}.txt": b"one\n"})
        container.put(f"amber/data/{long}.there", b"one\n")
        with web_server(project) as server, window(browser, server) as seen:
            for stop in STOPS:
                stop.go(seen.page, server.address)
                found += [f"{stop.name}: {fault}" for fault in _faults(seen.page, looks)]
            for page in ("blob", "conflict"):
                seen.page.goto(f"{server.address}/{page}?path=data/{long}.there")
                found += [f"{page} of a long name: {fault}" for fault in _faults(seen.page, looks)]
            assert [error for error in seen.errors if "404" not in error] == []
            seen.page.goto(f"{server.address}/new-job?cluster=here")
            found += [f"not reached: {each}" for each in _unreached(seen.page)]
    assert found == []


def _faults(page: Page, looks: tuple[_Look, ...]) -> list[str]:
    """With axe in these looks and at all widths, or at two widths."""
    # After a click the page may be there before its style sheets.
    page.wait_for_load_state("load")
    found = [f"the Tab key passes by {each}" for each in page.evaluate(_PASSED_BY)]
    for size, look, other in looks:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        if (more := overflow(page)) > 0:
            found.append(f"{more} px wider than {size[0]}")
        found += [f"{size[0]}: scrolls sideways: {each}" for each in page.evaluate(_SIDEWAYS)]
        found += [f"{size[0]}: at the edge of its frame: {each}" for each in page.evaluate(_AT_AN_EDGE)]
        page.emulate_media(color_scheme=look)
        found += [f"{size[0]} {look}: {fault}" for fault in faults(page)]
        page.emulate_media(color_scheme=other)
        found += [f"{size[0]} {other}: {fault}" for fault in faults(page, "color-contrast")]
    for width in (*(_MORE_WIDTHS if looks else ()), *_WIDTHS):
        page.set_viewport_size({"width": width, "height": DESKTOP[1]})
        if (more := overflow(page)) > 0:
            found.append(f"{more} px wider than {width}")
        found += [f"{width}: scrolls sideways: {each}" for each in page.evaluate(_SIDEWAYS)]
        for fault, script in (
            ("leaves its card", _LEAVES),
            ("broken", _BROKEN),
            ("split", _SPLIT),
            ("cut off", _CUT_OFF),
            ("unseen", _UNSEEN),
            ("without its explanation", _UNEXPLAINED),
        ):
            found += [f"{width}: {fault}: {each}" for each in page.evaluate(script)]
    return found


def _unreached(page: Page) -> list[str]:
    """With real keys, which only one page is worth."""
    # What the page asks for may bring more controls.
    page.wait_for_load_state("networkidle")
    page.evaluate(_WATCH)
    page.evaluate("document.activeElement?.blur()")
    for _ in range(int(page.evaluate(f"({_CONTROLS})().length")) + 2):
        page.keyboard.press("Tab")
    missed: list[str] = page.evaluate(_MISSED)
    return missed
