"""Captures of real servers: what is kept in a file stands in for the server it came from."""

import statistics
import time
from pathlib import Path

import pytest

from mtpmon.board import ServerBoard
from mtpmon.capture import Use, plain_requests
from mtpmon.captured import read_capture
from mtpmon.client import LlamaClient
from mtpmon.compose import SYSTEM_CLOCK, board_settings, suite, watcher
from mtpmon.config import Config, Probe, Server
from mtpmon.cost import PlainSource, StepCosts, plain_step
from mtpmon.demo.model import ModelSpec, cached_model
from mtpmon.demo.server import LlamaServer
from mtpmon.kld import divergence
from mtpmon.model import Baseline, ProbeResult, TopToken
from mtpmon.probe import Arms, Books, ProbeSettings, probe
from mtpmon.rolling import rolling
from mtpmon.suite import Prompt
from tests.command_line import Ran, mtpmon
from tests.test_board import seen

pytestmark = pytest.mark.real
TASKS = ("code", "creative")
PROBE = Probe(tokens=32, top_logprobs=64, forced_positions=32, tasks=TASKS)
CONFIG = Config(probe=PROBE)
PROMPTS = suite(CONFIG).prompts[::2]


@pytest.fixture(scope="session")
def sibling() -> Path:
    """The same model, its trunk disturbed as quantization would."""
    return cached_model(ModelSpec(trunk_noise=0.05))


async def captured(url: str, out: Path) -> Ran:
    sampling = ("--tokens", "32", "--tasks", ",".join(TASKS))
    ran = await mtpmon("capture", "--url", url, "--out", out, *sampling)
    assert (ran.code, ran.err) == (0, "")
    return ran


async def probed(
    url: str, **keys: Path
) -> tuple[list[ProbeResult], dict[Use, tuple[str, ...]], StepCosts | None]:
    """Probes of a server with captures to compare with, why any was refused, and step costs."""
    server = Server(name="a", url=url, **keys)  # type: ignore[arg-type]
    config = Config(servers=(server,), probe=PROBE)
    found = watcher(config, server, ServerBoard("a", board_settings(config)), SYSTEM_CLOCK)
    try:
        await found.look()
        results = [await found.probe_once(prompt, baseline_first=False) for prompt in PROMPTS]
    finally:
        await found.arms.close()
    for result in results:
        found.board.probed(result)
    assert found.captures is not None
    costs = seen(found.board, SYSTEM_CLOCK.monotonic()).measured.costs
    return results, dict(found.captures.reasons), costs


async def next_token(url: str, prompt: Prompt) -> tuple[TopToken, ...]:
    """A server's own distribution after a prompt."""
    arms = Arms(LlamaClient(url))
    try:
        pair = await probe(
            arms,
            prompt,
            ProbeSettings(tokens=1, top_logprobs=64),
            baseline=Baseline.SINGLE,
            baseline_first=False,
            forced_seed=0,
            books=Books(began=lambda: None, ended=lambda _: None, clock=time.monotonic),
        )
    finally:
        await arms.close()
    return pair.speculating.positions[0].top


async def test_a_capture_is_the_baseline_of_the_same_server(model: Path, tmp_path: Path) -> None:
    """Captured without drafting, then started with it: equal sequences and distributions."""
    out = tmp_path / "plain.capture"
    async with LlamaServer(None, model, speculate=False) as plain:
        ran = await captured(plain.url, out)
    assert "fit for baseline_capture" in ran.out
    async with LlamaServer(None, model) as drafting:
        results, reasons, costs = await probed(drafting.url, baseline_capture=out)
    assert reasons == {Use.BASELINE: ()}
    assert {result.baseline for result in results} == {Baseline.CAPTURE}
    figures = rolling(results, confidence=0.95)
    assert figures.probes == len(PROMPTS)
    assert figures.exact_sequences == figures.token_match == figures.top1_agreement == 1
    assert figures.kld["next_token"].positions == len(PROMPTS)
    assert figures.kld["teacher_forced"].positions == 32 * len(PROMPTS)
    assert all(summary.max_nats < 1e-9 for summary in figures.kld.values())
    assert figures.emitted_best == 1
    assert costs is not None
    assert costs.plain is not None
    assert costs.plain.source is PlainSource.CAPTURE
    assert costs.plain.ratio.value > 1
    assert all(task.acceptance for task in figures.tasks.values())


async def test_a_capture_has_the_plain_step(model: Path, tmp_path: Path) -> None:
    """A cost with bounds, from every token but the first of each prompt, all of them undrafted."""
    async with LlamaServer(None, model, speculate=False) as plain:
        await captured(plain.url, tmp_path / "a")
    capture = read_capture(tmp_path / "a")
    assert not capture.provenance.drafted
    requests = plain_requests(capture)
    assert len(requests) == len(capture.prompts)
    steps = [step for request in requests for step in request.steps]
    assert len(steps) == 31 * len(requests)
    cost = plain_step(requests, confidence=0.95)
    assert cost is not None
    assert cost.seconds.lower <= cost.seconds.value <= cost.seconds.upper
    median = statistics.median(step.seconds for step in steps)
    assert cost.seconds.value == pytest.approx(median, rel=0.5)


async def test_a_capture_is_a_reference_as_good_as_its_server(
    model: Path, sibling: Path, tmp_path: Path
) -> None:
    """The mean next-token KLD is what both servers, asked directly, give."""
    async with (
        LlamaServer(None, sibling, speculate=False) as original,
        LlamaServer(None, model) as drafting,
    ):
        await captured(original.url, tmp_path / "a")
        results, reasons, _ = await probed(drafting.url, reference_capture=tmp_path / "a")
        direct = [
            divergence(
                await next_token(original.url, prompt), await next_token(drafting.url, prompt)
            )
            for prompt in PROMPTS
        ]
    assert reasons == {Use.REFERENCE: ()}
    found = [result.reference_next_token for result in results]
    nats = [each.nats for each in found if each is not None]
    assert len(nats) == len(PROMPTS)
    mean = statistics.fmean(each.nats for each in direct)
    assert mean > 1e-3
    assert statistics.fmean(nats) == pytest.approx(mean, abs=2e-6)
    agreed = [each.top1_agrees for each in found if each is not None]
    assert agreed == [each.top1_agrees for each in direct]
    along = [each.nats for result in results for each in result.reference_forced]
    assert len(along) == 31 * len(PROMPTS)
    assert statistics.fmean(along) > 1e-3


async def test_another_model_is_no_baseline(model: Path, sibling: Path, tmp_path: Path) -> None:
    """It is refused by name, and probes go on as without it."""
    async with LlamaServer(None, sibling, speculate=False) as other:
        await captured(other.url, tmp_path / "a")
    async with LlamaServer(None, model) as drafting:
        results, reasons, costs = await probed(drafting.url, baseline_capture=tmp_path / "a")
    (why,) = reasons[Use.BASELINE]
    assert why == f"it is of another model: {sibling.name}, the server has {model.name}"
    assert costs is not None
    assert costs.plain is None or costs.plain.source is not PlainSource.CAPTURE
    assert {result.baseline for result in results} == {Baseline.SINGLE}


async def test_a_drafting_server_is_no_baseline_of_itself(model: Path, tmp_path: Path) -> None:
    """What it says may be compared with as a reference only."""
    async with LlamaServer(None, model) as drafting:
        ran = await captured(drafting.url, tmp_path / "a")
        _, reasons, _ = await probed(
            drafting.url, baseline_capture=tmp_path / "a", reference_capture=tmp_path / "a"
        )
    assert "not for baseline_capture" in ran.out
    assert reasons[Use.REFERENCE] == ()
    (why,) = reasons[Use.BASELINE]
    assert "the captured server drafted" in why


async def test_probe_prints_the_drift(model: Path, sibling: Path, tmp_path: Path) -> None:
    """``mtpmon probe --reference`` has the table of next tokens, and ends with 0."""
    async with (
        LlamaServer(None, sibling, speculate=False) as original,
        LlamaServer(None, model) as drafting,
    ):
        await captured(original.url, tmp_path / "a")
        ran = await mtpmon(
            "probe", "--url", drafting.url, "--reference", tmp_path / "a", "--tasks", "code"
        )
    assert (ran.code, ran.err) == (0, "")
    _, _, table = ran.out.partition("KLD from the captured reference")
    (row,) = [line for line in table.splitlines() if line.startswith("next token")]
    positions, mean_nats, mean_bits, *_, match = row.removeprefix("next token").split()
    assert positions == "8"
    assert float(mean_nats) > 1e-3
    assert float(mean_bits) == pytest.approx(float(mean_nats) / 0.693147, rel=1e-3)
    assert match.endswith("/8")
