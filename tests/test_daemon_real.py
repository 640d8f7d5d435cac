"""The whole daemon beside real servers."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from mtpmon.config import Server, load_config
from mtpmon.daemon import Daemon
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer, free_port
from mtpmon.model import State
from tests.programs import metrics_complaints
from tests.rig import complete, configuration, difference, fetch, running, samples
from tests.test_watch import until

pytestmark = pytest.mark.real


async def test_every_ratio_is_the_one_computed_by_hand(model: Path) -> None:
    """On a quiet server: acceptance, each position, length and speed, difference 0."""
    async with LlamaServer(None, model) as server:
        await complete(server, "before we came", 40)
        before = samples(await fetch(f"{server.url}/metrics"))
        async with running(configuration(Server(name="a", url=server.url))) as daemon:
            board = daemon.board["a"]
            await until(lambda: board.last_scrape is not None)
            for prompt, count in (("a function that", 90), ("once upon a time", 130), ("why", 3)):
                await complete(server, prompt, count, temperature=0.7, seed=3)
                await asyncio.sleep(0.7)
            ours = samples(await fetch(f"{daemon.url}/metrics"))
        theirs = difference(samples(await fetch(f"{server.url}/metrics")), before)

    def counted(name: str) -> float:
        return theirs[f"llamacpp:{name}"]

    positions = [
        counted(f'spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}')
        for i in range(3)
    ]
    drafts = counted("spec_decode_num_drafts_total")
    drafted = counted("spec_decode_num_draft_tokens_total")
    accepted = counted("spec_decode_num_accepted_tokens_total")
    tokens = counted("tokens_predicted_total")
    window = 'server="a",traffic="live",window="1m"'
    assert drafts > 50
    assert accepted == sum(positions)
    assert ours['mtpmon_drafts_total{server="a",traffic="live"}'] == drafts
    assert ours[f"mtpmon_acceptance_ratio{{{window}}}"] == accepted / drafted
    for place, kept in enumerate(positions):
        labels = f'position="{place}",{window}'
        assert ours[f"mtpmon_position_acceptance_ratio{{{labels}}}"] == kept / drafts
        labels = f'position="{place}",server="a",traffic="live"'
        assert ours[f"mtpmon_position_accepted_tokens_total{{{labels}}}"] == kept
    length = ours[f"mtpmon_acceptance_length_tokens{{{window}}}"]
    assert length == pytest.approx(1 + accepted / drafts, rel=1e-15)
    assert ours['mtpmon_generated_tokens_total{server="a",traffic="live"}'] == tokens == 223
    seconds = counted("tokens_predicted_seconds_total")
    speed = ours[f"mtpmon_decode_tokens_per_second{{{window}}}"]
    assert speed == pytest.approx((tokens - 3) / seconds, rel=1e-9)
    coverage = ours[f"mtpmon_draft_coverage_ratio{{{window}}}"]
    assert coverage == pytest.approx(drafts / (tokens - 3 - accepted), rel=1e-15)


async def test_identical_servers_say_the_same(model: Path) -> None:
    """Exact sequences, next-token KLD 0, what came of drafts missing and in no KLD."""
    async with (
        LlamaServer(None, model) as server,
        LlamaServer(None, model, speculate=False) as twin,
    ):
        watched = Server(name="a", url=server.url, target_only_url=twin.url)
        async with running(configuration(watched, probing=True)) as daemon:
            board = daemon.board["a"]
            await until(lambda: len(board.results) >= 10, seconds=60)
            text = await fetch(f"{daemon.url}/metrics")
            page = await fetch(daemon.url)
            probes = json.loads(await fetch(f"{daemon.url}/probes"))
            await until(lambda: board.last_scrape is not None and not board.last_scrape.overlapped)
        own = board.snapshot(monotonic_seconds=time.monotonic()).own
        counted = samples(await fetch(f"{server.url}/metrics"))
    ours = samples(text)
    divergent = [
        r
        for r in board.results
        if r.comparison is not None and r.comparison.first_divergence is not None
    ]
    # Two candidates within rounding of each other may swap: any other difference is a fault.
    for result in divergent:
        assert result.comparison is not None
        assert result.comparison.divergence_margin_nats is not None
        assert result.comparison.divergence_margin_nats < 1e-3
    assert ours['mtpmon_kld_nats{at="next_token",server="a",stat="max"}'] <= 1e-6
    assert ours['mtpmon_kld_nats{at="next_token",server="a",stat="mean"}'] <= 1e-6
    assert ours['mtpmon_kld_positions_total{result="missing",server="a"}'] >= 300
    positions = sum(r.positions.comparable for r in board.results if r.positions is not None)
    compared = sum(len(r.after_speculation) + (r.next_token is not None) for r in board.results)
    assert positions == compared
    assert ours['mtpmon_probe_success{server="a"}'] == 1
    for arm in ("speculating", "target_only"):
        assert any(f'arm="{arm}"' in name for name in ours)
    assert metrics_complaints(text) == ""
    assert "<!doctype html>" in page.lower()
    assert len(probes["a"]["completed"]) >= 10
    # What we say our probes cost is what the server counted, to the token and the position.
    assert own.drafts is not None
    assert own.drafts.value == counted["llamacpp:spec_decode_num_drafts_total"]
    assert own.accepted_by_position == tuple(
        counted[f'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}}']
        for i in range(3)
    )


async def test_live_figures_leave_our_probes_out(model: Path) -> None:
    """Users' totals are those of their own requests, although probes ran in between.

    To the token, unless a probe was cut off for one of them: then within the error it left.
    """
    async with LlamaServer(None, model, slots=2) as server:
        config = configuration(Server(name="a", url=server.url), probing=True)
        async with running(config) as daemon:
            board = daemon.board["a"]
            await until(lambda: len(board.results) >= 2, seconds=30)
            for place in range(6):
                await complete(server, f"tell me about number {place}", 40, temperature=0)
                await asyncio.sleep(0.8)
            await until(lambda: len(board.results) >= 5, seconds=30)
            await asyncio.sleep(0.7)
            ours = samples(await fetch(f"{daemon.url}/metrics"))
            own = board.snapshot(monotonic_seconds=time.monotonic()).own
    assert own.generated_tokens is not None
    cut = ours['mtpmon_probes_total{outcome="preempted",server="a"}']
    assert own.generated_tokens.half_width <= 16 * cut
    live = ours['mtpmon_generated_tokens_total{server="a",traffic="live"}']
    assert abs(live - 240) <= own.generated_tokens.half_width
    assert ours['mtpmon_generated_tokens_total{server="a",traffic="probe"}'] >= 3 * 64


async def test_a_worse_head_shows_and_the_model_stays(model: Path) -> None:
    """Two servers side by side: acceptance differs, what they say does not."""
    worse = cached_model(ModelSpec(head_noise=3.0))
    async with (
        LlamaServer(None, model) as good,
        LlamaServer(None, worse) as bad,
        LlamaServer(None, model, speculate=False) as twin,
    ):
        config = configuration(
            Server(name="good", url=good.url, target_only_url=twin.url),
            Server(name="bad", url=bad.url, target_only_url=twin.url),
            probing=True,
        )
        async with running(config) as daemon:
            boards = [daemon.board["good"], daemon.board["bad"]]
            await until(lambda: all(len(b.results) >= 5 for b in boards), seconds=60)
            ours = samples(await fetch(f"{daemon.url}/metrics"))
    name = 'mtpmon_acceptance_ratio{{server="{}",traffic="probe",window="1m"}}'
    assert ours[name.format("good")] > ours[name.format("bad")] + 0.15
    assert ours['mtpmon_kld_nats{at="next_token",server="bad",stat="max"}'] <= 1e-6


# --- the process ---


def start(tmp_path: Path, url: str, code: str = "") -> tuple[subprocess.Popen[bytes], str]:
    """``mtpmon run`` as a process of its own, and its address."""
    port = free_port()
    config = tmp_path / "mtpmon.yaml"
    config.write_text(
        f"servers: [{{name: a, url: '{url}'}}]\n"
        "scrape: {interval: 300ms, timeout: 200ms}\n"
        "probe: {interval: 1s, timeout: 1s, idle_for: 0, time_share: 1}\n"
        f"listen: {{address: '127.0.0.1:{port}', reload: true}}\n"
    )
    command = [sys.executable, "-c", code] if code else [sys.executable, "-m", "mtpmon"]
    process = subprocess.Popen(
        [*command, "run", "--config", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return process, f"http://127.0.0.1:{port}"


async def answering(url: str) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                if "is ready" in await fetch(f"{url}/-/ready"):
                    return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well(model: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Exit 0 within 2 s, a probe under way or not, and the server is left idle."""
    async with LlamaServer(None, model) as server:
        process, url = start(tmp_path, server.url)
        try:
            await answering(url)
            assert "mtpmon_up" in await fetch(f"{url}/metrics")
            began = time.monotonic()
            process.send_signal(number)
            _, errors = await asyncio.to_thread(process.communicate, timeout=10)
        finally:
            process.kill()
            process.wait()
        assert time.monotonic() - began < 2
        assert process.returncode == 0, errors.decode()
        assert b"Traceback" not in errors
        await asyncio.sleep(0.3)
        counted = samples(await fetch(f"{server.url}/metrics"))
    assert counted["llamacpp:requests_processing"] == 0


BROKEN = (
    "import sys, mtpmon.board\n"
    "from mtpmon.__main__ import main\n"
    "def broken(self, scrape): raise ZeroDivisionError('planted')\n"
    "mtpmon.board.ServerBoard.scraped = broken\n"
    "sys.exit(main(sys.argv[1:]))\n"
)


async def test_a_fault_ends_the_process(model: Path, tmp_path: Path) -> None:
    """Non-zero, with a traceback; it does not limp on."""
    async with LlamaServer(None, model) as server:
        process, _ = start(tmp_path, server.url, BROKEN)
        _, errors = await asyncio.to_thread(process.communicate, timeout=20)
    assert process.returncode not in (0, 2)
    assert b"Traceback" in errors
    assert b"planted" in errors


async def test_reload_changes_what_is_watched(model: Path, tmp_path: Path) -> None:
    """By POST and by SIGHUP; a bad configuration changes nothing and shows."""
    async with LlamaServer(None, model) as server:
        process, url = start(tmp_path, server.url)
        config = tmp_path / "mtpmon.yaml"
        good = config.read_text()
        try:
            await answering(url)
            more = f"{{name: a, url: '{server.url}'}}, {{name: b, url: 'http://127.0.0.1:1'}}"
            config.write_text(re.sub(r"servers: \[.*\]", f"servers: [{more}]", good))
            async with aiohttp.ClientSession() as session:
                async with session.post(f"{url}/-/reload") as reply:
                    assert (reply.status, await reply.text()) == (200, "watching a, b\n")
                await answering(url)
                ours = samples(await fetch(f"{url}/metrics"))
                assert ours['mtpmon_up{server="b"}'] == 0
                before = ours['mtpmon_scrapes_total{outcome="ok",server="a"}']
                assert before >= 1
                config.write_text("servers: 5\n")
                async with session.post(f"{url}/-/reload") as reply:
                    assert reply.status == 400
                    assert "servers: 5 is not" in await reply.text()
            ours = samples(await fetch(f"{url}/metrics"))
            assert ours["mtpmon_config_last_reload_successful"] == 0
            assert ours['mtpmon_scrapes_total{outcome="ok",server="a"}'] >= before
            config.write_text(good)
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(1)
            ours = samples(await fetch(f"{url}/metrics"))
            assert ours["mtpmon_config_last_reload_successful"] == 1
            assert 'mtpmon_up{server="b"}' not in ours
            process.terminate()
            _, errors = await asyncio.to_thread(process.communicate, timeout=10)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, errors.decode()


async def test_a_reload_reads_keys_again(model: Path, tmp_path: Path) -> None:
    """The same file with another key in it; nothing else has changed."""
    key, config = tmp_path / "key", tmp_path / "mtpmon.yaml"
    async with LlamaServer(None, model, api_key="right") as server:
        key.write_text("wrong")
        config.write_text(
            f"servers: [{{name: a, url: '{server.url}', api_key_file: key, probe: false}}]\n"
            "scrape: {interval: 300ms, timeout: 250ms}\n"
            "listen: {address: '127.0.0.1:0'}\n"
        )
        daemon = Daemon(load_config(config), path=config)
        started = asyncio.Event()
        task = asyncio.create_task(daemon.run(started=started.set))
        await started.wait()
        try:
            for text, state in (("wrong", State.UNAUTHORIZED), ("right", State.READY)):
                key.write_text(text)
                assert await daemon.reload() == "watching a"

                def seen(state: State = state) -> bool:
                    last = daemon.board["a"].last_scrape
                    return last is not None and last.state is state

                await until(seen)
        finally:
            daemon.stop()
            await task
