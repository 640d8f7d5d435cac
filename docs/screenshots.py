"""Take the pictures of the status page that the README shows: ``python -m docs.screenshots``.

They show made-up servers, the same ones as the tests of the page, so that a picture changes only
when the page does. Chromium is needed, as for these tests.
"""

import asyncio
import base64
import struct
import sys
import zlib
from pathlib import Path

import msgspec
from aiohttp import web
from aiohttp.test_utils import TestServer

from mtpmon.board import Snapshot
from mtpmon.page import render_page
from tests.browser import Browser, Tab, chromium
from tests.page_snapshots import drifting, ready, snapshot, twelve

IMAGES = Path(__file__).parent / "images"
MOST_BYTES = 150_000  # of a picture; every clone pays for it


class Shot(msgspec.Struct, frozen=True, kw_only=True):
    """One picture: what is shown, and on which screen. Sizes are in pixels."""

    name: str
    shown: Snapshot
    width: int
    height: int
    dark: bool = False


SHOTS = (
    Shot(
        name="status-one",
        shown=snapshot(ready(trend=drifting())),
        width=1280,
        height=690,
    ),
    Shot(name="status-twelve", shown=twelve(), width=1280, height=520, dark=True),
)


async def taken(browser: Browser, shot: Shot) -> bytes:
    """The upper part of the page as PNG, as much as the screen shows."""

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=render_page(shot.shown), content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/", page)])
    async with TestServer(app, host="127.0.0.1") as server, browser.tab() as tab:
        await tab.look(width=shot.width, height=shot.height, dark=shot.dark)
        await tab.send("Emulation.setScrollbarsHidden", hidden=True)
        await tab.go(str(server.make_url("/")))
        picture = await tab.screenshot(whole=False)
        await tab.go("about:blank")  # the page itself loads no pictures, by its own policy
        return smaller(shot, await pixels(tab, picture))


async def pixels(tab: Tab, picture: bytes) -> bytes:
    """Red, green and blue of each pixel, row by row; Chromium knows best how to read its PNG."""
    shown = base64.b64encode(picture).decode()
    found: str = await tab.run(f"""(async () => {{
      const image = new Image();
      image.src = "data:image/png;base64,{shown}";
      await image.decode();
      const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
      canvas.drawImage(image, 0, 0);
      const all = canvas.getImageData(0, 0, image.width, image.height).data;
      let text = "";
      for (let i = 0; i < all.length; i += 4) text += String.fromCharCode(...all.slice(i, i + 3));
      return btoa(text);
    }})()""")
    return base64.b64decode(found)


def smaller(shot: Shot, rows: bytes) -> bytes:
    """The same picture as PNG without filters: of text on a plain ground, two thirds the size."""
    wide = 3 * shot.width
    plain = b"".join(b"\0" + rows[i : i + wide] for i in range(0, len(rows), wide))
    header = struct.pack(">IIBBBBB", shot.width, shot.height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(plain, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


async def main() -> None:
    """Write all pictures."""
    IMAGES.mkdir(exist_ok=True)
    async with chromium() as browser:
        for shot in SHOTS:
            picture = await taken(browser, shot)
            if len(picture) > MOST_BYTES:
                sys.exit(f"{shot.name} is too large: {len(picture)} bytes")
            (IMAGES / f"{shot.name}.png").write_bytes(picture)


if __name__ == "__main__":
    asyncio.run(main())
