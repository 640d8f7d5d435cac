"""First paint of the status page with twelve servers, in headless Chromium on loopback.

Prints the times from the start of navigation to the first contentful paint and to the end of
loading, over several loads of a fresh tab, and what rendering the document takes.

    python bench/page.py [--loads 15]
"""

import argparse
import asyncio
import statistics
import time

from aiohttp import web
from aiohttp.test_utils import TestServer

from mtpmon.page import render_page
from tests.browser import chromium
from tests.page_snapshots import twelve

TIMES = """
(() => {
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  const load = performance.getEntriesByType('navigation')[0];
  return paint && load.loadEventEnd ? [paint.startTime, load.loadEventEnd] : null;
})()
"""


async def page(_: web.Request) -> web.Response:
    """The page, made anew for each request as the daemon does."""
    return web.Response(text=render_page(twelve()), content_type="text/html")


async def measured(loads: int) -> list[list[float]]:
    """First paint and end of loading of each load, ms."""
    app = web.Application()
    app.add_routes([web.get("/", page)])
    found: list[list[float]] = []
    async with TestServer(app, host="127.0.0.1") as server, chromium() as browser:
        for _ in range(loads):
            async with browser.tab() as tab:
                await tab.look()
                await tab.go(str(server.make_url("/")))
                await tab.until(f"{TIMES} !== null")
                found.append(await tab.run(TIMES))
    return found


def rendering(rounds: int = 50) -> float:
    """Median time to render the document, ms."""
    shown, times = twelve(), []
    for _ in range(rounds):
        began = time.perf_counter()
        render_page(shown)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loads", type=int, default=15)
    loads = parser.parse_args().loads
    size = len(render_page(twelve()).encode()) / 1000
    print(f"document of twelve servers: {size:.0f} kB, rendered in {rendering():.1f} ms (median)")
    paints, ends = zip(*asyncio.run(measured(loads)), strict=True)
    for name, values in (("first contentful paint", paints), ("loaded", ends)):
        print(
            f"{name}: median {statistics.median(values):.0f} ms, longest {max(values):.0f} ms"
            f" of {loads} loads"
        )


if __name__ == "__main__":
    main()
