"""The dashboards over the demo: real servers, real traffic, a real Prometheus that scrapes."""

import asyncio
import time
from pathlib import Path

import pytest

from grafana import generate
from mtpmon.demo.run import NAME, demo
from mtpmon.demo.server import find_llama_server
from tests.dashboards import Asked, asked, filled_in
from tests.prometheus_rig import prometheus, query, query_range

pytestmark = [pytest.mark.real, pytest.mark.slow]

SCRAPE_SECONDS = 2
LONGEST_SECONDS = 240.0

# Panels and events that stay without data after the demo's traffic, and why.
EMPTY: dict[tuple[str, str], str] = {}


def config(url: str) -> str:
    target = url.removeprefix("http://")
    return f"""
scrape_configs:
  - job_name: mtpmon
    scrape_interval: {SCRAPE_SECONDS}s
    static_configs: [{{targets: ["{target}"]}}]
"""


def empty(url: str, began: float) -> set[tuple[str, str, str]]:
    """Dashboard, place and expression of all that have no data now."""
    return {
        (name, each.place, each.expr)
        for name in generate.DASHBOARDS
        for each in asked(name)
        if not _has_data(url, each, began)
    }


def _has_data(url: str, each: Asked, began: float) -> bool:
    expr = filled_in(each.expr, NAME)
    if each.instant:
        return bool(query(url, expr))
    return bool(query_range(url, expr, start=began, end=time.time(), step_seconds=SCRAPE_SECONDS))


async def test_after_the_demos_traffic_every_panel_has_data(tmp_path: Path) -> None:
    """Or is listed with the reason it cannot have any."""
    began = time.time()
    async with demo(find_llama_server(None)) as running:
        folder = tmp_path
        with prometheus(config(running.daemon.url), folder) as url:
            missing = None
            while missing is None or (missing and time.time() - began < LONGEST_SECONDS):
                await asyncio.sleep(10)
                missing = await asyncio.to_thread(empty, url, began)
                print(round(time.time() - began), len(missing), flush=True)
            for each in sorted(missing):
                print(each, flush=True)
    assert not missing
