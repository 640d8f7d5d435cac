"""Other ways to ask a prompt, on real servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from mtpmon.board import ServerBoard
from mtpmon.client import LlamaClient
from mtpmon.demo.server import LlamaServer
from mtpmon.model import ProbeOutcome, ProbeResult, Variant
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.rolling import matrix, rolling
from mtpmon.suite import DEFAULT_VARIANT, Prompt, builtin_suite, cases, cycle, select, variants
from mtpmon.watch import Timing, Watcher
from mtpmon.wire import parse_prompt, template_request
from tests.test_board import SETTINGS
from tests.test_watch import CLOCK

pytestmark = pytest.mark.real
PROMPTS = builtin_suite().prompts
SENTENCE_TOKENS = 110  # of filler: most of its words are bytes to the small model
# Says what it was told, so that a test can see it.
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined %}"
    "{% if enable_thinking %}think\n{% else %}do not think\n{% endif %}{% endif %}assistant:"
)


@asynccontextmanager
async def watching(server: LlamaServer, twin: LlamaServer | None = None) -> AsyncIterator[Watcher]:
    arms = Arms(LlamaClient(server.url), LlamaClient(twin.url) if twin else None)
    try:
        yield Watcher(
            arms=arms,
            board=ServerBoard("a", SETTINGS),
            cases=None,
            settings=ProbeSettings(tokens=32, top_logprobs=8),
            timing=Timing(
                scrape_interval_seconds=1,
                scrape_timeout_seconds=0.9,
                probe_interval_seconds=60,
                probe_timeout_seconds=60,
                idle_for_seconds=0,
            ),
            clock=CLOCK,
        )
    finally:
        await arms.close()


async def asked(
    watcher: Watcher, variant: Variant, prompts: Sequence[Prompt] = PROMPTS[:1]
) -> list[ProbeResult]:
    found = [
        await watcher.probe_once(prompt, variant=variant, baseline_first=False)
        for prompt in prompts
    ]
    assert [(each.outcome, each.detail) for each in found] == [
        (ProbeOutcome.COMPLETED, "") for _ in found
    ]
    return found


def said(result: ProbeResult) -> list[int | None]:
    assert result.speculating is not None
    return [position.id for position in result.speculating.positions]


def depth(result: ProbeResult) -> int:
    assert result.speculating is not None
    timings = result.speculating.timings
    return timings.prompt_tokens + timings.cached_tokens


async def test_greedy_answers_repeat_and_sampled_ones_vary(model: Path) -> None:
    """A greedy answer is the same each time, sampled ones differ from it and each other."""
    hot = Variant(temperature=1.0)
    async with LlamaServer(None, model) as server, watching(server) as watcher:
        greedy = await asked(watcher, DEFAULT_VARIANT, [PROMPTS[0]] * 2)
        sampled = await asked(watcher, hot, [PROMPTS[0]] * 3)
    assert said(greedy[0]) == said(greedy[1])
    answers = {tuple(said(each)) for each in (greedy[0], *sampled)}
    assert len(answers) == 4
    assert all(each.speculating and each.speculating.timings.draft_tokens for each in sampled)


async def test_sampling_is_deterministic_by_seed(model: Path) -> None:
    """The same probe of another run gives the same sampled answer."""
    hot = Variant(temperature=1.0)
    async with LlamaServer(None, model) as server:
        runs = []
        for _ in range(2):
            async with watching(server) as watcher:
                runs.append([said(each) for each in await asked(watcher, hot, PROMPTS[:2])])
    assert runs[0] == runs[1]


async def test_sampled_arms_are_not_compared(model: Path) -> None:
    """But for the distribution after the prompt, which is the same on both."""
    hot = Variant(temperature=1.0)
    async with (
        LlamaServer(None, model) as server,
        LlamaServer(None, model, speculate=False) as twin,
        watching(server, twin) as watcher,
    ):
        results = await asked(watcher, hot, PROMPTS[::10])
    for found in results:
        assert found.comparison is None
        assert found.after_speculation == ()
        assert found.forced == ()
        assert found.next_token is not None
        assert found.next_token.nats < 1e-6
        assert found.target_only is not None


async def test_a_template_without_a_switch_ignores_thinking(model: Path) -> None:
    """The request is accepted, and the answer is the same."""
    async with LlamaServer(None, model) as server, watching(server) as watcher:
        (usual,) = await asked(watcher, DEFAULT_VARIANT)
        (on,) = await asked(watcher, Variant(thinking=True))
        (off,) = await asked(watcher, Variant(thinking=False))
    assert said(usual) == said(on) == said(off)


async def test_a_template_with_a_switch_is_told(model: Path, tmp_path: Path) -> None:
    """On, off, or nothing at all."""
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE, encoding="utf-8")
    arguments = ["--jinja", "--chat-template-file", str(template)]
    prompts: dict[bool | None, str] = {}
    async with LlamaServer(None, model, extra_args=arguments) as server:
        async with LlamaClient(server.url) as client:
            for thinking in (None, True, False):
                request = template_request("hi", thinking=thinking)
                body = await client.post("/apply-template", request, timeout_seconds=10)
                prompts[thinking] = parse_prompt(body)
        async with watching(server) as watcher:
            depths = {
                thinking: depth((await asked(watcher, Variant(thinking=thinking)))[0])
                for thinking in (True, False)
            }
    assert "\nthink\n" in prompts[True]
    assert "do not think" in prompts[False]
    # What a build tells the template when nothing is asked for is its own affair.
    assert "hi" in prompts[None]
    assert depths[False] > depths[True]


@pytest.mark.parametrize("wanted", [1000, 3000])
async def test_contexts_are_as_deep_as_asked_for(model: Path, wanted: int) -> None:
    """To within two sentences, never deeper, and the answer comes on both arms."""
    async with (
        LlamaServer(None, model) as server,
        LlamaServer(None, model, speculate=False) as twin,
        watching(server, twin) as watcher,
    ):
        results = await asked(watcher, Variant(depth_tokens=wanted), PROMPTS[::15])
    for found in results:
        assert wanted - 2 * SENTENCE_TOKENS <= depth(found) <= wanted
        assert found.comparison is not None


async def test_a_depth_beyond_the_context_is_cut(model: Path) -> None:
    """What fits is asked, and the answer is whole."""
    async with LlamaServer(None, model) as server, watching(server) as watcher:
        (found,) = await asked(watcher, Variant(depth_tokens=100_000))
    assert 3700 <= depth(found) <= 4096 - 32
    assert len(said(found)) == 32


async def test_a_whole_cycle_fills_the_matrix(model: Path) -> None:
    """Each task, temperature and thinking has a cell; figures by task are the usual ones."""
    suite = select(
        [p for p in PROMPTS if p.id in {"code-lru-cache", "essay-boredom"}], ["code", "essay"]
    )
    ways = variants([0.0, 0.8], [None, True], [0, 300])
    async with LlamaServer(None, model) as server, watching(server) as watcher:
        order = cases(suite, ways, 1)
        results: list[ProbeResult] = []
        for _ in range(cycle(suite, ways)):
            case = next(order)
            results += await asked(watcher, case.variant, [case.prompt])
    cells = matrix(results, confidence=0.95)
    assert set(cells) == {
        (task, temperature, thinking)
        for task in ("code", "essay")
        for temperature in (0.0, 0.8)
        for thinking in (None, True)
    }
    assert all(cell.acceptance is not None for cell in cells.values())
    figures = rolling(results, confidence=0.95)
    assert {task: found.probes for task, found in figures.tasks.items()} == {
        "code": 7,
        "essay": 7,
    }
    again = msgspec.json.decode(msgspec.json.encode(results), type=list[ProbeResult])
    assert again == results
