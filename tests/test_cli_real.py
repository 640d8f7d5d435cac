"""The command line against real servers, and the demo's real servers after its end."""

import asyncio
import contextlib
import json
import math
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from mtpmon.commands.bench import BenchDocument
from mtpmon.commands.probetext import ProbeDocument
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.historyfile import HistoryFile, HistoryFileError
from mtpmon.model import ProbeOutcome
from mtpmon.suite import DEFAULT_TASKS
from tests.command_line import Ran, ended, line_with, mtpmon, started, until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cached_model(ModelSpec(), tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def pair(model: Path) -> AsyncIterator[tuple[LlamaServer, LlamaServer]]:
    async with (
        LlamaServer(None, model) as drafting,
        LlamaServer(None, model, speculate=False) as plain,
    ):
        yield drafting, plain


# --- bench --------------------------------------------------------------------------------


async def test_bench_measures_every_draft_length(model: Path) -> None:
    """Each on a server of its own, which really drafts so many; none is left behind."""
    arguments = ("--model", model, "--draft-n-max", "1,3", "--prompts", "15", "--tokens", "32")
    ran = await mtpmon("bench", *arguments, "--threads", "1", "--json", "--", "--no-cont-batching")
    assert (ran.code, ran.err) == (0, "")
    document = msgspec.json.decode(ran.out, type=BenchDocument)
    assert document.arguments == ("--no-cont-batching",)
    assert document.model == model.name
    assert document.build is not None
    depths = {depth.drafted: depth for depth in document.sweep.depths}
    assert list(depths) == [1, 3]
    lengths = {drafted: depth.figures.acceptance_length for drafted, depth in depths.items()}
    for drafted, depth in depths.items():
        assert (depth.probes, depth.failed) == (15, 0)
        assert depth.speedup is not None
        assert 1 < (lengths[drafted] or 0) <= 1 + drafted
    assert (lengths[1] or 0) < (lengths[3] or 0)
    assert depths[1].predicted is not None, "the server with three knows of one"


# --- probe --------------------------------------------------------------------------------


async def test_probe_json(model: Path) -> None:
    """--json is a document of its schema whose figures follow from its own single probes."""
    async with pair(model) as (drafting, plain):
        arguments = ("--url", drafting.url, "--target-only-url", plain.url, "--tokens", "24")
        ran = await mtpmon("probe", *arguments, "--prompts", "10", "--json")
    assert (ran.code, ran.err) == (0, "")
    document = msgspec.json.decode(ran.out, type=ProbeDocument)
    assert document.schema == "mtpmon.probe/1"
    assert (document.prompts, document.tokens, document.tasks) == (10, 24, DEFAULT_TASKS)
    (server,) = document.servers
    assert (server.url, server.target_only_url) == (drafting.url, plain.url)
    assert server.requests_processing_before == 0
    found, probes = server.report, server.probes
    assert found.completed == len(probes) == 10
    assert [row.task for row in found.tasks] == [*DEFAULT_TASKS, "all"]
    assert {row.probes for row in found.tasks} == {2, 10}
    ours = [probe.speculating for probe in probes if probe.speculating is not None]
    _, speculating = found.arms
    assert speculating.acceptance.part == sum(c.timings.accepted_tokens or 0 for c in ours)
    assert speculating.acceptance.whole == sum(c.timings.draft_tokens or 0 for c in ours) > 0
    assert speculating.tokens == 240
    assert len(speculating.positions) == 3
    compared = [probe.comparison for probe in probes if probe.comparison is not None]
    assert found.match is not None
    assert found.match.exact.part == sum(c.exact for c in compared)
    assert found.match.tokens.whole == 240
    kld = {row.at: row for row in found.kld}
    assert set(kld) == {"next_token", "after_speculation", "both", "teacher_forced"}
    assert (kld["next_token"].positions, kld["next_token"].top1_match.part) == (10, 10)
    assert all(row.max_nats == pytest.approx(0, abs=1e-6) for row in found.kld)
    assert found.comparability is not None
    assert found.comparability.paired == 240
    assert found.emitted is not None
    assert found.emitted.asked == sum(len(probe.forced) for probe in probes) > 0
    overall = found.tasks[-1].speedup
    assert overall is not None
    assert 0 < overall.lower < overall.value < overall.upper


async def test_probe_json_has_no_nan(model: Path) -> None:
    """Without a target-only server what is not known is null, and every number is finite."""
    async with LlamaServer(None, model) as drafting:
        ran = await mtpmon("probe", "--url", drafting.url, "--prompts", "2", "--json")
    assert ran.code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads(ran.out, parse_constant=refuse)
    assert all(math.isfinite(number) for number in numbers(document))
    (server,) = document["servers"]
    assert server["report"]["match"] is None
    assert server["report"]["tasks"][-1]["speedup"] is None


def numbers(value: Any) -> list[float]:
    """Every number in a document."""
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


async def test_probe_tables(model: Path, tmp_path: Path) -> None:
    """A pass prints the tables of a server in 100 columns, tasks in the order asked for."""
    async with pair(model) as (drafting, plain):
        config = tmp_path / "mtpmon.yaml"
        server = {"name": "both", "url": drafting.url, "target_only_url": plain.url}
        config.write_text(json.dumps({"servers": [server], "probe": {"tasks": ["essay", "code"]}}))
        ran = await mtpmon("probe", "--config", config, "--prompts", "4", "--timeout", "60s")
    assert (ran.code, ran.err) == (0, "")
    titles = re.findall(
        r"^(?:By task|Sequence|First|Positions|KLD of|Emitted|Where)", ran.out, re.MULTILINE
    )
    assert titles == ["By task", "Sequence", "First", "Positions", "KLD of", "Emitted", "Where"]
    assert "4 of 4 probes completed, up to 64 tokens each" in ran.out
    assert ran.out.index("essay   ") < ran.out.index("code    ")
    assert max(map(len, ran.out.splitlines())) <= 100


async def test_probe_in_other_ways(model: Path) -> None:
    """Each task, temperature and thinking has a cell; figures by task are the usual ones."""
    async with pair(model) as (drafting, plain):
        ran = await mtpmon(
            *("probe", "--url", drafting.url, "--target-only-url", plain.url, "--json"),
            *("--tasks", "code,creative", "--prompts", "6", "--tokens", "32"),
            *("--temperatures", "0,0.8", "--thinking", "default,on"),
        )
    assert (ran.code, ran.err) == (0, "")
    document = msgspec.json.decode(ran.out, type=ProbeDocument)
    assert len(document.variants) == 4
    (server,) = document.servers
    assert server.report.completed == 24
    assert [(row.task, row.probes) for row in server.report.tasks] == [
        ("code", 3),
        ("creative", 3),
        ("all", 6),
    ]
    assert [(c.task, c.temperature, c.thinking, c.probes) for c in server.viability.cells] == [
        (task, temperature, thinking, 3)
        for task in ("code", "creative")
        for temperature in (0.0, 0.8)
        for thinking in (None, True)
    ]
    assert server.viability.plain == "pair"
    for cell in server.viability.cells:
        assert cell.acceptance is not None
        assert cell.breakeven is not None
        assert cell.speedup is not None
        assert cell.graded is not None


async def test_probe_of_several_servers(model: Path, tmp_path: Path) -> None:
    """Each server has its heading, with what cannot be said of it."""
    async with pair(model) as (drafting, plain):
        config = tmp_path / "mtpmon.yaml"
        servers = [{"name": "alone", "url": drafting.url}, {"name": "plain", "url": plain.url}]
        config.write_text(json.dumps({"servers": servers}))
        ran = await mtpmon("probe", "--config", config, "--prompts", "2")
    assert ran.code == 0
    alone, _, undrafted = ran.out.partition(f"\nplain: {plain.url}\n")
    assert alone.startswith(f"alone: {drafting.url}\n")
    assert "no target-only server to compare with: no speed-up, no exact sequences" in alone
    assert "Emitted tokens, by the target" in alone
    assert "it drafted nothing: see `mtpmon doctor`" in undrafted


async def test_probe_with_a_baseline_that_drafts(model: Path) -> None:
    """A baseline that drafts is none: the probe fails and says so."""
    async with pair(model) as (drafting, plain):
        ran = await mtpmon("probe", "--url", plain.url, "--target-only-url", drafting.url)
    assert ran.code == 1
    assert "target-only server drafted" in ran.out


# --- doctor -------------------------------------------------------------------------------


def findings(ran: Ran) -> str:
    """What was printed, on one line, so that wrapping does not matter."""
    return " ".join(ran.out.split())


async def test_doctor_of_a_good_pair(model: Path) -> None:
    """A drafting server and its true twin have no finding but ok."""
    async with pair(model) as (drafting, plain):
        ran = await mtpmon("doctor", "--url", drafting.url, "--target-only-url", plain.url)
    assert (ran.code, ran.err) == (0, "")
    assert "warning" not in ran.out
    said = findings(ran)
    assert "ok drafts: " in said
    assert "ok counts drafts, and accepted tokens by draft position" in said
    assert "ok has counters that agree with its replies" in said
    assert "ok predicts the same next token: a KLD of 0 nats" in said


async def test_doctor_without_metrics(model: Path) -> None:
    """A server without --metrics is a problem, though it can be seen to draft."""
    async with LlamaServer(None, model, metrics=False) as drafting:
        ran = await mtpmon("doctor", "--url", drafting.url)
    assert ran.code == 1
    said = findings(ran)
    assert "problem has /metrics turned off → start llama-server with --metrics" in said
    assert "ok drafts: " in said
    assert "nothing, while /metrics is off" in said


async def test_doctor_with_an_api_key(model: Path) -> None:
    """A server with a key wants it, refuses a wrong one, and is fine with the right one."""
    async with LlamaServer(None, model, api_key="sesame") as drafting:
        keyless = ("doctor", "--url", drafting.url)
        keyed = (*keyless, "--api-key-env", "THE_KEY")
        without = await mtpmon(*keyless)
        wrong = await mtpmon(*keyed, env={"THE_KEY": "swordfish"})
        right = await mtpmon(*keyed, env={"THE_KEY": "sesame"})
    assert without.code == 1
    assert "problem wants an API key → set api_key_env or api_key_file" in findings(without)
    assert wrong.code == 1
    assert "problem refuses the API key" in findings(wrong)
    assert right.code == 0
    assert "ok answers with the API key given" in findings(right)
    assert "swordfish" not in wrong.out + wrong.err


async def test_doctor_of_servers_the_wrong_way_round(model: Path) -> None:
    """A server that does not draft and a twin that does are two problems."""
    async with pair(model) as (drafting, plain):
        ran = await mtpmon("doctor", "--url", plain.url, "--target-only-url", drafting.url)
    assert ran.code == 1
    assert "problem does not draft" in findings(ran)
    assert "problem drafts as well" in findings(ran)


async def test_doctor_of_a_twin_with_other_weights(model: Path, tmp_path: Path) -> None:
    """A disturbed sibling of the model is found out by its next token."""
    sibling = cached_model(ModelSpec(trunk_noise=0.05), tmp_path)
    async with (
        LlamaServer(None, model) as drafting,
        LlamaServer(None, sibling, speculate=False) as plain,
    ):
        ran = await mtpmon("doctor", "--url", drafting.url, "--target-only-url", plain.url)
    assert ran.code == 0
    assert "warning predicts another next token" in findings(ran)


# --- demo ---------------------------------------------------------------------------------


def children(pid: int) -> set[int]:
    """Processes that ``pid`` has started."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found.add(int(stat.parent.name))
    return found


async def gone(pids: set[int]) -> None:
    """Wait until none of these processes runs."""
    await until(lambda: not any(running(pid) for pid in pids))


def running(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def cache(model: Path) -> dict[str, str]:
    """Where the demo keeps its model."""
    return {"XDG_CACHE_HOME": str(model.parent)}


async def test_demo_for_some_seconds(cache: dict[str, str]) -> None:
    """The demo serves figures of its real servers, and ends by itself with 0 and no process."""
    async with started("demo", "--seconds", "9", env=cache) as process:
        url = (await line_with(process, "status page")).split()[2].rstrip("/")
        await line_with(process, "llama-server http://")
        servers = children(process.pid)
        assert len(servers) == 2
        async with aiohttp.request("GET", f"{url}/-/healthy") as response:
            assert response.status == 200
        ran = await ended(process)
    assert (ran.code, ran.err) == (0, "")
    assert "acceptance: live" in ran.out
    assert "Probes by task" in ran.out
    assert " failed\nserver       ready\n" in ran.out
    await gone(servers)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
async def test_demo_ended_by_a_signal(cache: dict[str, str], name: signal.Signals) -> None:
    """Whatever ends the demo, its servers end with it; Ctrl-C is the usual way and no failure."""
    async with started("demo", env=cache) as process:
        await line_with(process, "llama-server http://")
        servers = children(process.pid)
        assert len(servers) == 2
        process.send_signal(name)
        ran = await ended(process)
        await gone(servers)
    assert ran.code == (-signal.SIGKILL if name is signal.SIGKILL else 0)
    assert ran.err == ""


async def test_demo_interrupted_before_its_time(cache: dict[str, str]) -> None:
    """Ctrl-C before the seconds are over ends with 130, so that a script can tell."""
    async with started("demo", "--seconds", "60", env=cache) as process:
        await line_with(process, "llama-server http://")
        process.send_signal(signal.SIGINT)
        ran = await ended(process)
    assert (ran.code, ran.err) == (130, "")


async def test_demo_interrupted_while_it_starts(cache: dict[str, str]) -> None:
    """A signal while servers start leaves none behind either."""
    async with started("demo", env=cache) as process:
        await until(lambda: children(process.pid))
        servers = children(process.pid)
        process.send_signal(signal.SIGTERM)
        ran = await ended(process)
        await gone(servers | children(process.pid))
    assert (ran.code, ran.err) == (0, "")


async def test_demo_whose_output_is_closed(cache: dict[str, str]) -> None:
    """A reader that has seen enough ends the demo, its servers too."""
    async with started("demo", env=cache) as process:
        await line_with(process, "llama-server http://")
        servers = children(process.pid)
        assert process.stdout is not None
        transport = process.stdout._transport  # type: ignore[attr-defined]
        transport.close()
        async with asyncio.timeout(60):
            code = await process.wait()
        await gone(servers)
        assert process.stderr is not None
        assert await process.stderr.read() == b""
    assert code == 141


async def test_demo_where_the_usual_port_is_taken(cache: dict[str, str]) -> None:
    """If 9765 is taken, the demo answers on another port."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # taken already: as good
            stack.enter_context(socket.create_server(("127.0.0.1", 9765)))
        async with started("demo", "--seconds", "1", env=cache) as process:
            page = await line_with(process, "status page")
            ran = await ended(process)
    assert ran.code == 0
    assert "127.0.0.1:" in page
    assert "127.0.0.1:9765" not in page


@pytest.mark.slow
async def test_demo_once(cache: dict[str, str]) -> None:
    """--once ends with 0 when there is a speed-up with bounds for each task."""
    ran = await mtpmon("demo", "--once", env=cache)
    assert (ran.code, ran.err) == (0, "")
    for task in DEFAULT_TASKS:
        assert re.search(rf"^{task} +[3-9].*× \[[\d.]+, [\d.]+\]$", ran.out, re.MULTILINE)


async def test_doctor_says_whether_captures_fit(model: Path, tmp_path: Path) -> None:
    """Both uses of a capture of this server before it drafted; then after its template changed."""
    plain, config = tmp_path / "plain.capture", tmp_path / "mtpmon.yaml"
    async with LlamaServer(None, model, speculate=False) as server:
        sampling = ("--tokens", "8", "--prompts", "10")
        assert (await mtpmon("capture", "--url", server.url, "--out", plain, *sampling)).code == 0

    async def examined(*arguments: str) -> Ran:
        async with LlamaServer(None, model, extra_args=arguments) as server:
            keys = {"reference_capture": str(plain), "baseline_capture": str(plain)}
            config.write_text(json.dumps({"servers": [{"name": "a", "url": server.url, **keys}]}))
            return await mtpmon("doctor", "--config", config)

    fitting = await examined()
    assert fitting.code == 0
    assert "ok       the baseline capture fits, with 10 of 40 prompts" in fitting.out
    assert "ok       the reference capture fits, with 10 of 40 prompts" in fitting.out
    assert "none needed: the baseline capture stands in for it" in fitting.out
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}!{% endfor %}", encoding="utf-8")
    other = await examined("--jinja", "--chat-template-file", str(template))
    assert other.code == 0
    assert "the test prompt comes to the server as other tokens" in " ".join(other.out.split())


async def test_doctor_says_why_a_capture_does_not_fit(model: Path, tmp_path: Path) -> None:
    """One of another model is refused as a baseline, by name, and that is a problem."""
    sibling, config = cached_model(ModelSpec(trunk_noise=0.05)), tmp_path / "mtpmon.yaml"
    async with LlamaServer(None, sibling, speculate=False) as server:
        sampling = ("--tokens", "8", "--prompts", "2")
        made = await mtpmon("capture", "--url", server.url, "--out", tmp_path / "a", *sampling)
        assert made.code == 0
    async with LlamaServer(None, model) as server:
        keys = {"baseline_capture": str(tmp_path / "a")}
        config.write_text(json.dumps({"servers": [{"name": "a", "url": server.url, **keys}]}))
        ran = await mtpmon("doctor", "--config", config)
    assert ran.code == 1
    shown = " ".join(ran.out.split())
    assert f"the baseline capture is not used: it is of another model: {sibling.name}" in shown
    assert "warning nothing to compare the server with" in shown


async def test_doctor_tells_from_the_history_whether_it_pays(model: Path, tmp_path: Path) -> None:
    """Of this process of the server; of the next one nothing is known yet."""
    async with pair(model) as (drafting, plain):
        config = tmp_path / "mtpmon.yaml"
        config.write_text(
            f"servers: [{{name: a, url: '{drafting.url}', target_only_url: '{plain.url}'}}]\n"
            "scrape: {interval: 500ms, timeout: 450ms}\n"
            "probe: {interval: 1s, timeout: 1s, idle_for: 0s, time_share: 1, tokens: 32}\n"
            "history: {path: history.db}\nlisten: {address: '127.0.0.1:0'}\n"
        )
        before = await mtpmon("doctor", "--config", config)
        assert "not known: the history" in findings(before)
        assert "is not there" in findings(before)
        async with started("run", "--config", config) as process:
            kept = HistoryFile(tmp_path / "history.db", read_only=True)

            def enough() -> bool:
                with contextlib.suppress(HistoryFileError):
                    return len(kept.probes("a", [ProbeOutcome.COMPLETED], 99).results) >= 8
                return False

            await until(enough)
            kept.close()
            process.send_signal(signal.SIGTERM)
            await ended(process)
        ran = await mtpmon("doctor", "--config", config)
        assert "is it paying? by the history" in ran.out
        assert "a verification step costs " in findings(ran)
        await drafting.restart()
        after = await mtpmon("doctor", "--config", config)
        assert "too few probes of the server as it runs now" in findings(after)
