"""mtpmon's own HTTP: metrics for Prometheus, pages for people, switches for operators."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from mtpmon.board import Board
from mtpmon.export import BoardCollector
from mtpmon.page import render_page
from mtpmon.probespage import ServerProbes, render_probes
from mtpmon.snapshot import Snapshot

PROBES_SHOWN = 100


class Web:
    """The handlers.

    Args:
        snapshot: the board as it is now.
        board: for the pages that show single probes.
        public_config: the configuration in effect, without secrets.
        reload: reads the configuration again and says how that went, or raises
            ``ValueError`` with the reason; ``None`` if it is not allowed over HTTP.
    """

    def __init__(
        self,
        *,
        snapshot: Callable[[], Snapshot],
        board: Callable[[], Board],
        public_config: Callable[[], dict[str, Any]],
        reload: Callable[[], Awaitable[str]] | None,
    ) -> None:
        self._snapshot = snapshot
        self._board = board
        self._public_config = public_config
        self._reload = reload
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BoardCollector(snapshot))
        ProcessCollector(registry=self._registry)  # what the monitor itself costs

    def application(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self.page),
                web.get("/metrics", self.metrics),
                web.get("/probes", self.probes),
                web.get("/config", self.config),
                web.get("/-/healthy", self.healthy),
                web.get("/-/ready", self.ready),
                web.post("/-/reload", self.reload),
            ]
        )
        return app

    async def metrics(self, request: web.Request) -> web.Response:
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        response = web.Response(
            body=encoder(self._registry), headers={"Content-Type": content_type}
        )
        response.enable_compression()
        return response

    async def page(self, _: web.Request) -> web.Response:
        response = web.Response(text=render_page(self._snapshot()), content_type="text/html")
        response.enable_compression()
        return response

    async def probes(self, request: web.Request) -> web.Response:
        """For browsers a page, for programs JSON; ``?format=`` is the last word."""
        servers = [
            ServerProbes(
                name=server.name,
                completed=tuple(server.results[-PROBES_SHOWN:]),
                failed=tuple(server.failures),
            )
            for server in self._board()
        ]
        form = request.query.get("format")
        if form is None:
            form = "html" if "text/html" in request.headers.get("Accept", "") else "json"
        if form == "json":
            response = _json(
                {
                    each.name: {"completed": each.completed, "failed": each.failed}
                    for each in servers
                }
            )
        elif form == "html":
            text = render_probes(servers, unix_seconds=self._snapshot().unix_seconds)
            response = web.Response(text=text, content_type="text/html")
            response.enable_compression()
        else:
            return web.Response(status=400, text="format is html or json\n")
        response.headers["Vary"] = "Accept"
        return response

    async def config(self, _: web.Request) -> web.Response:
        return _json(self._public_config())

    async def healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="mtpmon is healthy\n")

    async def ready(self, _: web.Request) -> web.Response:
        waiting = [server.name for server in self._snapshot().servers if server.state is None]
        if waiting:
            text = f"not looked at yet: {', '.join(waiting)}\n"
            return web.Response(status=503, text=text)
        return web.Response(text="mtpmon is ready\n")

    async def reload(self, _: web.Request) -> web.Response:
        if self._reload is None:
            return web.Response(status=403, text="off: set listen.reload to true\n")
        try:
            return web.Response(text=await self._reload() + "\n")
        except ValueError as error:
            return web.Response(status=400, text=f"{error}\n")


def _json(value: object) -> web.Response:
    body = msgspec.json.format(msgspec.json.encode(value), indent=2)
    response = web.Response(body=body, content_type="application/json")
    response.enable_compression()
    return response
