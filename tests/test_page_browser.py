"""The status page in a real browser: layout, contrast, refreshing, keyboard."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from mtpmon import __version__
from mtpmon.page import render_page
from mtpmon.snapshot import Snapshot
from tests.browser import Browser, Tab, chromium
from tests.page_snapshots import (
    NOW,
    WINDOWS,
    doubtful,
    drifting,
    figures,
    hostile,
    idle,
    ready,
    sleeping,
    snapshot,
    twelve,
    unauthorized,
    unreachable,
    unseen,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

MANY_WINDOWS = (*WINDOWS, 7200.0, 21600.0, 43200.0, 86400.0)
PAGES: dict[str, Snapshot] = {
    "no data": snapshot(unseen()),
    "one": snapshot(ready(trend=drifting())),
    "states": snapshot(
        idle(), sleeping(), unreachable(), unauthorized(), config_reload_successful=False
    ),
    "twelve": twelve(),
    "hostile": snapshot(hostile(), ready()),
    "doubtful": snapshot(doubtful(), ready()),
    "many windows": snapshot(
        ready(windows={"live": dict.fromkeys(MANY_WINDOWS, figures())}),
        windows_seconds=MANY_WINDOWS,
    ),
}
ANY_PAGE = pytest.mark.parametrize("shown", PAGES.values(), ids=PAGES.keys())

# Lines "ratio needed colours text" for all text that is too weak, WCAG 2.2's formula.
WEAK_TEXT = """
(() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], under) =>
    [r, g, b].map((value, i) => value * a + under[i] * (1 - a));
  const backdrop = (element) => {
    if (!element) return [255, 255, 255];
    const colour = parse(getComputedStyle(element).backgroundColor);
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, backdrop(element.parentElement));
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((value) => {
      const c = value / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const weak = [];
  let seen = 0;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
    seen += 1;
    const style = getComputedStyle(element), behind = backdrop(element);
    const front = over(parse(style.color), behind);
    const [light, dark] = [luminance(front), luminance(behind)].sort((a, b) => b - a);
    const ratio = (light + 0.05) / (dark + 0.05);
    const size = parseFloat(style.fontSize), bold = style.fontWeight >= 700;
    const needed = size >= 24 || (bold && size >= 18.66) ? 3 : 4.5;
    if (ratio < needed) weak.push(`${ratio.toFixed(2)} ${needed} ${front} on ${behind} ` +
      texts.currentNode.data);
  }
  return { seen, weak };
})()
"""
REFRESH = "document.dispatchEvent(new Event('visibilitychange'))"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as started:
        yield started


class Site:
    """What is served at ``/`` on loopback; it can change, fail, stop, and count."""

    def __init__(self, shown: Snapshot) -> None:
        app = web.Application()
        app.add_routes([web.get("/", self.page)])
        self.server = TestServer(app, host="127.0.0.1")
        self.shown = shown
        self.broken: web.Response | None = None
        self.version: str | None = None
        self.served = 0

    async def page(self, _: web.Request) -> web.Response:
        self.served += 1
        if self.broken is not None:
            return web.Response(status=self.broken.status, text=self.broken.text)
        text = render_page(self.shown)
        if self.version is not None:
            text = text.replace(__version__, self.version)
        return web.Response(text=text, content_type="text/html")


@asynccontextmanager
async def opened(browser: Browser, shown: Snapshot, **look: Any) -> AsyncIterator[tuple[Tab, Site]]:
    """A tab with the page of ``shown`` in it."""
    site = Site(shown)
    async with site.server, browser.tab() as tab:
        await tab.look(**look)
        await tab.go(str(site.server.make_url("/")))
        yield tab, site


@ANY_PAGE
async def test_no_errors_and_no_request_elsewhere(browser: Browser, shown: Snapshot) -> None:
    """The console stays empty, and only mtpmon itself is asked for anything."""
    async with opened(browser, shown) as (tab, site):
        await tab.run(REFRESH)
        await tab.until("performance.getEntriesByType('resource').length > 0")
        assert tab.errors == []
        asked = [url for url in tab.requests if not url.startswith("data:")]
        assert asked == [str(site.server.make_url("/"))] * 2


@ANY_PAGE
@pytest.mark.parametrize("width", [320, 360, 700, 1280])
async def test_nothing_is_wider_than_the_screen(
    browser: Browser, shown: Snapshot, width: int
) -> None:
    """The page never scrolls sideways, whatever names servers have."""
    async with opened(browser, shown, width=width, height=740) as (tab, _):
        await tab.run("document.querySelector('details').open = true")
        assert await tab.run("document.documentElement.scrollWidth") <= width
        assert await tab.run("innerWidth") == width


@pytest.mark.parametrize("name", ["no data", "one", "states", "twelve", "doubtful"])
async def test_tables_fit_a_phone(browser: Browser, name: str) -> None:
    """With the default windows and tasks no part of the page scrolls sideways at 360 px."""
    async with opened(browser, PAGES[name], width=360, height=740) as (tab, _):
        hidden = await tab.run(
            "[...document.querySelectorAll('section')].map(e => e.scrollWidth - e.clientWidth)"
        )
        assert max(hidden) == 0


@ANY_PAGE
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
async def test_all_text_has_contrast(browser: Browser, shown: Snapshot, *, dark: bool) -> None:
    """Each text reaches the ratio of WCAG level AA against what is behind it."""
    async with opened(browser, shown, dark=dark) as (tab, _):
        await tab.run(
            "document.querySelector('details').open = true;"
            "document.getElementById('lost').textContent = 'lost'"
        )
        found = await tab.run(WEAK_TEXT)
        assert found["weak"] == []
        assert found["seen"] >= 50


async def test_dark_and_light_differ(browser: Browser) -> None:
    """The page follows the system's choice of colours."""
    background = "getComputedStyle(document.body).backgroundColor"
    async with opened(browser, PAGES["one"]) as (tab, _):
        light = await tab.run(background)
        await tab.look(dark=True)
        assert await tab.run(background) != light


def five_seconds_later(shown: Snapshot, **changes: Any) -> Snapshot:
    """The same servers."""
    return snapshot(*shown.servers, unix_seconds=NOW + 5, **changes)


async def test_page_refreshes_itself(browser: Browser) -> None:
    """Within seconds, unasked, the page shows the newer snapshot."""
    async with opened(browser, snapshot(ready())) as (tab, site):
        site.shown = snapshot(unreachable(), ready(), unix_seconds=NOW + 5)
        await tab.until("document.querySelector('main').innerText.includes('Connection refused')")
        assert await tab.run("document.getElementById('now').dateTime") == "2026-11-29T15:22:12Z"
        assert await tab.run("document.title") == "mtpmon: 2 servers: 1 unreachable, 1 MTP paying"
        assert tab.errors == []


async def test_refresh_keeps_the_reader_in_place(browser: Browser) -> None:
    """Focus, scroll position, selection and what was opened outlive a refresh."""
    async with opened(browser, twelve()) as (tab, site):
        await tab.run(
            "document.querySelector('details').open = true;"
            "document.querySelector('a[href=\"#s2\"]').focus();"
            "getSelection().selectAllChildren(document.querySelector('#s1 h2'));"
            "scrollTo(0, 1500)"
        )
        site.shown = five_seconds_later(twelve())
        await tab.run(REFRESH)
        await tab.until("document.getElementById('now').innerText.includes('15:22:12')")
        assert await tab.run("document.activeElement.getAttribute('href')") == "#s2"
        assert await tab.run("String(getSelection())") == "coder-b"
        assert await tab.run("scrollY") == 1500
        assert await tab.run("document.querySelector('details').open")


async def test_focus_follows_a_link_that_moved(browser: Browser) -> None:
    """Focus stays on a server's link when a notice above replaces the overview."""
    async with opened(browser, twelve()) as (tab, site):
        await tab.run("document.querySelector('a[href=\"#s2\"]').focus()")
        site.shown = five_seconds_later(twelve(), config_reload_successful=False)
        await tab.run(REFRESH)
        await tab.until("document.querySelector('main').innerText.includes('not in use')")
        assert await tab.run("document.activeElement.getAttribute('href')") == "#s2"


async def test_one_request_at_a_time(browser: Browser) -> None:
    """An answer is waited for: cause to ask again meanwhile makes no second request."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        await tab.run(f"{REFRESH};{REFRESH};{REFRESH}")
        await tab.until("performance.getEntriesByType('resource').length > 0")
        assert site.served == 2
        await tab.run(REFRESH)
        await tab.until("performance.getEntriesByType('resource').length > 1")
        assert site.served == 3


async def test_new_version_is_loaded_whole(browser: Browser) -> None:
    """After mtpmon was replaced the page loads anew, with its own script and style."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        await tab.run("window.old = true")
        site.version = "99.0"
        await tab.run(REFRESH)
        await tab.until("document.querySelector('h1')?.innerText === 'mtpmon 99.0'")
        assert await tab.run("window.old") is None


@pytest.mark.parametrize(
    "broken",
    [web.Response(status=502, text="bad gateway"), web.Response(text="please log in")],
    ids=["an error", "another page"],
)
async def test_lost_connection_is_said(browser: Browser, broken: web.Response) -> None:
    """When mtpmon cannot be reached the page says since when; figures stay; then it goes on."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        site.broken = broken
        await tab.run(REFRESH)
        await tab.until("document.getElementById('lost').innerText")
        said = await tab.run("document.getElementById('lost').innerText")
        assert said.startswith("Connection to mtpmon lost since ")
        assert "78.3" in await tab.run("document.querySelector('main').innerText")
        await tab.run(REFRESH)
        await tab.until("performance.getEntriesByType('resource').length > 1")
        assert await tab.run("document.getElementById('lost').innerText") == said
        site.broken = None
        await tab.run(REFRESH)
        await tab.until("!document.getElementById('lost').innerText")


async def test_stopped_mtpmon_is_said(browser: Browser) -> None:
    """A refused connection is a lost one too."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        await site.server.close()
        await tab.run(REFRESH)
        await tab.until("document.getElementById('lost').innerText.includes('lost since')")


async def test_hidden_tab_rests(browser: Browser) -> None:
    """A tab nobody sees asks for nothing, and catches up when it is seen again."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        await tab.run(
            "window.hide = true;"
            "Object.defineProperty(document, 'hidden', {get: () => window.hide});" + REFRESH
        )
        await tab.run("new Promise((done) => setTimeout(done, 5500))")
        assert site.served == 1
        site.shown = snapshot(unreachable())
        await tab.run("window.hide = false;" + REFRESH)
        await tab.until("document.querySelector('main').innerText.includes('Connection refused')")


async def test_pause(browser: Browser) -> None:
    """A button stops the refreshing and says so, and starts it again."""
    async with opened(browser, PAGES["one"]) as (tab, site):
        await tab.press("Tab")
        assert await tab.run("document.activeElement.innerText") == "Pause"
        await tab.press("Enter")
        assert await tab.run("document.getElementById('pause').innerText") == "Resume"
        await tab.run(REFRESH)
        await tab.run("new Promise((done) => setTimeout(done, 5500))")
        assert site.served == 1
        await tab.press("Enter")
        await tab.until("performance.getEntriesByType('resource').length > 0")
        assert await tab.run("document.getElementById('pause').innerText") == "Pause"


async def test_keyboard_reaches_everything(browser: Browser) -> None:
    """Tab goes through the button, the pages, the servers, scrolling parts and the terms."""
    shown = snapshot(
        ready(windows={"live": dict.fromkeys(MANY_WINDOWS, figures())}),
        sleeping(),
        windows_seconds=MANY_WINDOWS,
    )
    async with opened(browser, shown) as (tab, _):
        reached = []
        for _ in range(12):
            await tab.press("Tab")
            reached.append(
                await tab.run(
                    "document.activeElement.ariaLabel || document.activeElement.innerText"
                )
            )
            assert await tab.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    scrolls = "live traffic by window"
    assert reached == [
        "Pause",
        *("/metrics", "/probes", "/config", "/-/healthy", "/-/ready"),
        *("qwen-coder", "night-batch"),
        *(scrolls, "all of them", scrolls),
        "What the figures mean",
    ]


async def test_without_scripts_it_is_a_page(browser: Browser) -> None:
    """Without scripts all figures are there, no dead button, and how to get newer ones."""
    async with opened(browser, PAGES["one"], scripts=False) as (tab, _):
        tree = await tab.send("Accessibility.getFullAXTree")
        names = " ".join(str(node.get("name", {}).get("value", "")) for node in tree["nodes"])
        assert "Reload for newer figures." in names
        assert "78.3" in names
        assert "Pause" not in names


async def test_screen_readers_get_the_structure(browser: Browser) -> None:
    """Headings, tables with row and column headers, and landmarks come through."""
    async with opened(browser, PAGES["states"], width=360) as (tab, _):
        tree = await tab.send("Accessibility.getFullAXTree")
        roles = [node["role"]["value"] for node in tree["nodes"] if not node["ignored"]]
        for role, least in {
            "heading": 16,
            "table": 4,
            "rowheader": 20,
            "columnheader": 12,
            "banner": 1,
            "navigation": 1,
            "main": 1,
            "status": 1,
            "article": 4,
        }.items():
            assert roles.count(role) >= least, role
