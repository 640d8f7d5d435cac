"""Two sites and a centre, as docs/fleets.md has them, with real Prometheus processes."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from mtpmon.config import parse_config
from tests.command_line import SECONDS, started
from tests.far_end import FakeLlama
from tests.programs import program
from tests.rig import running

DEPLOY = Path(__file__).parent.parent / "deploy"
FLEET = DEPLOY / "fleet"
SITES = ("berlin", "oslo")


def free_address() -> str:
    """Of a port that nobody has just now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def changed(path: Path, target: Path, **values: Any) -> None:
    """Copy a configuration with other values of some keys, each named once in it."""
    left = set(values)

    def walk(tree: Any) -> Any:
        match tree:
            case dict():
                left.difference_update(tree)
                return {key: values.get(key, walk(value)) for key, value in tree.items()}
            case list():
                return [walk(item) for item in tree]
        return tree

    target.write_text(yaml.safe_dump(walk(yaml.safe_load(path.read_text(encoding="utf-8")))))
    assert not left, f"{path} has no {left}"


@asynccontextmanager
async def prometheus(config: Path, address: str) -> AsyncIterator[None]:
    """A running one, ready."""
    command = (
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={config.parent / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
    )
    async with started(command=command) as process:
        async with aiohttp.ClientSession() as session, asyncio.timeout(SECONDS):
            while process.returncode is None:
                try:
                    async with session.get(f"http://{address}/-/ready") as reply:
                        if reply.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        assert process.returncode is None, "it ended at once"
        yield


async def found(address: str, expression: str) -> list[dict[str, str]]:
    """The labels of what an expression gives."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/api/v1/query", params={"query": expression}) as reply,
    ):
        answer = json.loads(await reply.text())
    assert answer["status"] == "success", answer
    return [each["metric"] for each in answer["data"]["result"]]


async def until_found(address: str, expression: str, number: int) -> list[dict[str, str]]:
    """Wait for so many results."""
    async with asyncio.timeout(SECONDS):
        while len(results := await found(address, expression)) != number:
            await asyncio.sleep(0.2)
    return results


@pytest.mark.parametrize("way", ["remote write", "federation"])
async def test_the_centre_tells_sites_apart(way: str, tmp_path: Path) -> None:
    """Each site's series arrive once, with the labels they have there and the site's name."""
    centre = free_address()
    sites = {name: free_address() for name in SITES}
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(FakeLlama().serving())
        config = parse_config(
            f"servers: [{{name: coder, url: '{url}', probe: false}}]\n"
            "scrape: {interval: 300ms, timeout: 250ms}\nlisten: {address: '127.0.0.1:0'}\n"
        )
        daemon = await stack.enter_async_context(running(config))
        (tmp_path / "centre").mkdir()
        settings = tmp_path / "centre" / "prometheus.yml"
        if way == "federation":
            changed(
                FLEET / "federation.yml", settings, targets=[*sites.values()], scrape_interval="1s"
            )
        else:
            settings.write_text("{}")
        await stack.enter_async_context(prometheus(settings, centre))
        for name, address in sites.items():
            directory = tmp_path / name
            directory.mkdir()
            targets = daemon.url.removeprefix("http://")
            (directory / "mtpmon-targets.yaml").write_text(f"- targets: ['{targets}']\n")
            (directory / "remote_write_password").write_text("unused")
            changed(
                FLEET / "site.yml",
                directory / "site.yml",
                site=name,
                scrape_interval="1s",
                evaluation_interval="1s",
                rule_files=[str(DEPLOY / "prometheus" / "rules" / "mtpmon-recording.yml")],
                url=f"http://{centre if way == 'remote write' else '127.0.0.1:1'}/api/v1/write",
                alertmanagers=[],
                grafana_url="http://grafana",
                docs_url="http://docs/",
            )
            await stack.enter_async_context(prometheus(directory / "site.yml", address))
        series = await until_found(centre, "mtpmon_up == 1", len(SITES))
        recorded = await until_found(
            centre, "count by (site) (mtpmon:drafts:increase15m)", len(SITES)
        )
        for each in series:
            assert each.pop("site") in SITES
            assert each == {
                "__name__": "mtpmon_up",
                "job": "mtpmon",
                "instance": daemon.url.removeprefix("http://"),
                "server": "coder",
            }
        assert {each["site"] for each in recorded} == set(SITES)
        for label in ("grafana_url", "docs_url"):
            assert not await found(centre, f'{{{label}=~".+"}}')
