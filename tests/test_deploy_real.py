"""The words that deploy/ starts a `llama-server` with, to a real one."""

import json
import re
from pathlib import Path

import aiohttp
import pytest
import yaml

from mtpmon.demo.server import HOST, LlamaServer

DEPLOY = Path(__file__).parent.parent / "deploy"

pytestmark = pytest.mark.real


def of_compose() -> list[str]:
    words = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    found: list[str] = words["services"]["llama-server"]["command"]
    return [word.replace("${LLAMA_DRAFT_MAX:-3}", "3") for word in found]


def of_kubernetes() -> list[str]:
    words = yaml.safe_load((DEPLOY / "kubernetes" / "deployment.yaml").read_text(encoding="utf-8"))
    found: list[str] = words["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


class Deployed(LlamaServer):
    """A server with the words of a deployment, but for the model's place and the address."""

    words: tuple[str, ...] = ()

    def command(self) -> list[str]:
        found = [str(self.binary), *self.words]
        for option, value in (
            ("--model", str(self.model)),
            ("--host", HOST),
            ("--port", str(self.port)),
        ):
            found[found.index(option) + 1] = value
        return found


@pytest.mark.parametrize("words", [of_compose(), of_kubernetes()], ids=["compose", "kubernetes"])
async def test_a_deployed_server_drafts_and_counts(words: list[str], model: Path) -> None:
    """It takes every word, drafts three tokens at most, and has the counters that mtpmon reads."""
    server = Deployed(None, model)
    server.words = tuple(words)
    async with server, aiohttp.ClientSession() as session:
        payload = {"prompt": "def main():", "n_predict": 16, "ignore_eos": True}
        async with session.post(f"{server.url}/completion", json=payload) as reply:
            timings = json.loads(await reply.text())["timings"]
        assert timings["draft_n"] > 0
        async with session.get(f"{server.url}/metrics") as reply:
            counters = await reply.text()
        async with session.get(f"{server.url}/health") as reply:
            assert reply.status == 200
    found = dict(
        re.findall(r"^llamacpp:spec_decode_num_(\w+)_total (\d+)$", counters, re.MULTILINE)
    )
    assert int(found["draft_tokens"]) == timings["draft_n"]
    assert int(found["draft_tokens"]) <= 3 * int(found["drafts"])
