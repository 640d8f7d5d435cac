"""The dashboards over the demo: real servers, real traffic, a real Prometheus that scrapes."""

import asyncio
import time
from pathlib import Path

import pytest

from grafana import generate
from grafana.promql import MARGIN, MARGIN_LOWER, MARGIN_UPPER
from mtpmon.demo.run import NAME, demo
from mtpmon.demo.server import find_llama_server
from tests.dashboards import Asked, asked, filled_in
from tests.prometheus_rig import prometheus, query, query_range

pytestmark = [pytest.mark.real, pytest.mark.slow]

SCRAPE_SECONDS = 2
LONGEST_SECONDS = 240.0

# Expressions that may stay without data after the demo's traffic: a part of them, and why.
EMPTY = {
    "ALERTS": "no alert rules are loaded",
    "_shift": "nothing has changed, or too little is known of the past to tell",
    "[2m]) > 0": "no server was restarted",
    "[1h] offset 1m": "the same build runs all along",
    "mtpmon_reference_": "the demo has no capture",
    "mtpmon_capture_": "the demo has no capture",
    "mtpmon_history_": "the demo keeps no history",
    "mtpmon_server_files_": "the demo's servers are in no files",
    "mtpmon_divergence_margin_nats": "both arms may say the same all along",
    "mtpmon_figures_untrusted": "nothing is wrong with the server's counters",
    f"and on (server) (max by (server) ({MARGIN_LOWER}": "traffic is worth one thing at a time",
    f"and on (server) (max by (server) ({MARGIN_UPPER}": "traffic is worth one thing at a time",
    f"unless on (server) (max by (server) ({MARGIN_LOWER}": "traffic is worth one thing at a time",
    f"unless on (server) max by (server) ({MARGIN}": "the cost of a step was known at once",
}


def config(url: str) -> str:
    target = url.removeprefix("http://")
    return f"""
scrape_configs:
  - job_name: mtpmon
    scrape_interval: {SCRAPE_SECONDS}s
    static_configs: [{{targets: ["{target}"]}}]
"""


def without_data(url: str, began: float) -> list[Asked]:
    """What has none now and should have."""
    return [
        each
        for name in generate.DASHBOARDS
        for each in asked(name)
        if not any(part in each.expr for part in EMPTY) and not _has_data(url, each, began)
    ]


def _has_data(url: str, each: Asked, began: float) -> bool:
    expr = filled_in(each.expr, NAME)
    if each.instant:
        return bool(query(url, expr))
    return bool(query_range(url, expr, start=began, end=time.time(), step_seconds=SCRAPE_SECONDS))


async def test_after_the_demos_traffic_every_panel_has_data(tmp_path: Path) -> None:
    """Or is listed with the reason it may have none; the list names nothing that is not asked."""
    every = [each.expr for name in generate.DASHBOARDS for each in asked(name)]
    assert all(any(part in expr for expr in every) for part in EMPTY)
    began = time.time()
    async with demo(find_llama_server(None)) as running:
        with prometheus(config(running.daemon.url), tmp_path) as url:
            missing = None
            while missing is None or (missing and time.time() - began < LONGEST_SECONDS):
                await asyncio.sleep(5)
                missing = await asyncio.to_thread(without_data, url, began)
    assert not missing, "\n".join(map(str, missing))
