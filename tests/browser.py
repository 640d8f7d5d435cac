"""A headless Chromium for tests, driven over its DevTools protocol."""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
)
START_SECONDS = 60.0
ANSWER_SECONDS = 30.0


def executable() -> str:
    """Where Chromium is.

    Raises:
        RuntimeError: it is not there.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise RuntimeError(
            "the tests of the status page need Chromium: install it (on Debian and Ubuntu,"
            " apt-get install chromium) and see that it is on the PATH"
        )
    return found


class Tab:
    """One tab. What went wrong in it, and what it asked the network for, is kept."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = asyncio.Event()
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        return await self._browser.send(method, session=self._session, **params)

    def heard(self, method: str, params: dict[str, Any]) -> None:
        """Take in an event."""
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.errors.append(str(params["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(str(params["args"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"]["text"])
            case _:
                pass

    async def look(
        self, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True
    ) -> None:
        """Set the size of the screen, its colours, and whether scripts run."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        await self.send("Emulation.setScriptExecutionDisabled", value=not scripts)

    async def go(self, url: str) -> None:
        """Load a page and wait until it is there."""
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._loaded.wait()

    async def run(self, script: str) -> Any:
        """The value of an expression; of a promise, once it is kept."""
        reply = await self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in reply:
            raise RuntimeError(str(reply["exceptionDetails"]))
        return reply["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(ANSWER_SECONDS):
            while not await self.run(script):
                await asyncio.sleep(0.02)

    async def press(self, key: str) -> None:
        """Press and let go of a key, by its name."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

    async def screenshot(self, *, whole: bool = True) -> bytes:
        """The whole page, or only what fits the screen, as PNG."""
        shot = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}
        self._sent = 0

    async def send(
        self, method: str, *, session: str | None = None, **params: Any
    ) -> dict[str, Any]:
        """Call a method of the protocol.

        Raises:
            RuntimeError: Chromium refuses.
        """
        self._sent += 1
        message: dict[str, Any] = {"id": self._sent, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        answer = self._answers[self._sent] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(message)
        async with asyncio.timeout(ANSWER_SECONDS):
            reply = await answer
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        result: dict[str, Any] = reply.get("result", {})
        return result

    async def listen(self) -> None:
        """Hand answers and events to whom they belong, until the connection ends."""
        async for message in self._socket:
            data = message.json()
            if "id" in data:
                self._answers.pop(data["id"]).set_result(data)
            elif data.get("sessionId") in self._tabs:
                self._tabs[data["sessionId"]].heard(data["method"], data["params"])

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """Open a tab and close it at the end."""
        target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.send("Target.attachToTarget", targetId=target, flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Network", "Runtime", "Log"):
            await tab.send(f"{domain}.enable")
        try:
            yield tab
        finally:
            await self.send("Target.closeTarget", targetId=target)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Start Chromium with a profile of its own and end it afterwards."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            executable(),
            *FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            address = await _address(process, Path(profile) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as client,
                client.ws_connect(address, max_msg_size=0) as socket,
            ):
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
        finally:
            # Its own process group, made above: the wrapper script and all helpers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _address(process: asyncio.subprocess.Process, written: Path) -> str:
    """Where the DevTools listen: Chromium writes it once they do."""
    async with asyncio.timeout(START_SECONDS):
        while not written.exists() or len(lines := written.read_text().split()) < 2:  # noqa: ASYNC240
            if process.returncode is not None:
                raise RuntimeError(f"Chromium ended with status {process.returncode}")
            await asyncio.sleep(0.02)
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
