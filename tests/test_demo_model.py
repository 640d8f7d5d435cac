"""The demo model: its file, and what a real server makes of it."""

import hashlib
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import aiohttp
import numpy as np
import pytest

from mtpmon.demo import weights
from mtpmon.demo.lexicon import TASKS, vocabulary
from mtpmon.demo.model import DEEP, WRITER_VERSION, ModelSpec, cached_model, write_model
from mtpmon.demo.server import LlamaServer
from mtpmon.suite import builtin_suite

# By task, at most three drafted tokens, greedy; within 0.07.
ACCEPTANCE: Final = {
    "code": 0.85,
    "factual": 0.70,
    "analysis": 0.55,
    "essay": 0.55,
    "creative": 0.45,
}
# A text of one emoji and one Chinese character, over and over.
MULTIBYTE: Final = 'root ::= "\N{GRINNING FACE}\N{CJK UNIFIED IDEOGRAPH-6F22}"+'


def _tensors(**changes: float) -> dict[str, weights.Array]:
    shape: dict[str, Any] = {"embedding": 112, "trunk_blocks": 2, "feed_forward": 160}
    noise: dict[str, Any] = {"head_noise": 1.0, "trunk_noise": 0.0}
    return weights.build(vocabulary(), seed=1, **shape, **(noise | changes))


def _changed(**changes: float) -> set[str]:
    before, after = _tensors(), _tensors(**changes)
    return {name for name, array in before.items() if not np.array_equal(array, after[name])}


def test_equal_specs_give_equal_bytes(tmp_path: Path) -> None:
    """The same spec, written twice, is the same file."""
    for name in ("one", "two"):
        write_model(ModelSpec(seed=7), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_bytes_belong_to_the_writer_version(tmp_path: Path) -> None:
    """What is written does not change unless the version does, which keeps caches true."""
    write_model(ModelSpec(), tmp_path / "model")
    digest = hashlib.sha256((tmp_path / "model").read_bytes()).hexdigest()
    assert (WRITER_VERSION, digest[:16]) == (1, "b567ed6861d82ec0")


def test_file_is_small(tmp_path: Path) -> None:
    """The default model is below 3 MB, so that writing and loading it takes no time."""
    assert cached_model(directory=tmp_path).stat().st_size < 3_000_000


def test_head_noise_touches_the_head_only() -> None:
    """Servers of models that differ in head noise say the same and draft differently."""
    assert _changed(head_noise=2.0) == {"blk.2.ffn_down.weight"}


def test_trunk_noise_leaves_the_head() -> None:
    """A noisy sibling differs in the trunk and the output, as a quantised one would."""
    changed = _changed(trunk_noise=0.02)
    assert {"output.weight", "token_embd.weight", "blk.0.attn_qkv.weight"} <= changed
    assert not any(name.startswith("blk.2.") for name in changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed must not be negative"),
        ({"head_noise": -1.0}, "head_noise and trunk_noise"),
        ({"trunk_noise": -0.1}, "head_noise and trunk_noise"),
        ({"embedding": 80}, "multiple of 16 from 96"),
        ({"embedding": 100}, "multiple of 16 from 96"),
        ({"trunk_blocks": 3}, "trunk_blocks must be even"),
        ({"trunk_blocks": 0}, "trunk_blocks must be even"),
        ({"feed_forward": 100}, "feed_forward must be at least 160"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], message: str) -> None:
    """A spec that no model can have names its field."""
    with pytest.raises(ValueError, match=message):
        ModelSpec(**changes)


def test_vocabulary_is_small_and_unambiguous() -> None:
    """No token appears twice, so that a word says which task it belongs to."""
    texts = [word.text for word in vocabulary()]
    assert len(texts) == len(set(texts)) <= 1000


def test_prompts_mention_their_own_task_most() -> None:
    """The words that the model knows of a built-in prompt point to the prompt's task."""
    words = sorted(vocabulary(), key=lambda word: -len(word.text))
    for prompt in builtin_suite().prompts:
        rest, counts = prompt.text, dict.fromkeys(TASKS, 0)
        for word in words:
            if word.task is not None:
                counts[word.task] += rest.count(word.text)
            rest = rest.replace(word.text, "\0")
        others = max(n for task, n in counts.items() if task != prompt.task)
        assert counts[prompt.task] >= 2 * max(1, others), prompt.id


def test_model_is_written_once(tmp_path: Path) -> None:
    """The second call finds the file of the first and leaves it alone."""
    first = cached_model(directory=tmp_path)
    before = first.stat().st_mtime_ns
    assert cached_model(ModelSpec(), tmp_path) == first
    assert first.stat().st_mtime_ns == before


def test_specs_have_files_of_their_own(tmp_path: Path) -> None:
    """A changed spec never gets another spec's model."""
    specs = [ModelSpec(), ModelSpec(seed=2), ModelSpec(head_noise=0.5), ModelSpec(trunk_noise=0.1)]
    assert len({cached_model(spec, tmp_path) for spec in specs}) == len(specs)


@pytest.mark.parametrize(("variable", "below"), [("XDG_CACHE_HOME", ""), ("HOME", ".cache")])
def test_cache_directory(
    variable: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are kept where the user's caches are."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert cached_model().parent == tmp_path / below / "mtpmon"


def test_racing_processes_share_one_file(tmp_path: Path) -> None:
    """Processes that ask at once all get the whole file, and nothing else is left over."""
    program = (
        "import hashlib, sys; from mtpmon.demo.model import cached_model;"
        "print(hashlib.sha256(cached_model(directory=sys.argv[1]).read_bytes()).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    digests = {racer.communicate()[0] for racer in racers}
    assert [racer.returncode for racer in racers] == [0] * 4
    assert len(digests) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_missing_writer_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional dependency the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mtpmon\[demo\]'"):
        importlib.reload(sys.modules["mtpmon.demo.model"])


async def _complete(server: LlamaServer, prompt: str, **options: Any) -> dict[str, Any]:
    body = {"n_predict": 64, "temperature": -1, "ignore_eos": True, "return_tokens": True}
    return await _post(server, "/completion", prompt=prompt, **(body | options))


async def _chat_prompt(server: LlamaServer, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    reply = await _post(server, "/apply-template", messages=messages)
    return str(reply["prompt"])


async def _post(server: LlamaServer, path: str, **body: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession(server.url) as session,
        session.post(path, json=body) as response,
    ):
        assert response.status == 200, await response.text()
        reply: dict[str, Any] = await response.json()
        return reply


async def _suite_replies(server: LlamaServer, **options: Any) -> dict[str, list[dict[str, Any]]]:
    replies = defaultdict(list)
    for prompt in builtin_suite().prompts:
        text = await _chat_prompt(server, prompt.text)
        replies[prompt.task].append(await _complete(server, text, **options))
    return replies


def _acceptance(replies: list[dict[str, Any]]) -> float:
    timings = [reply["timings"] for reply in replies]
    accepted: int = sum(t["draft_n_accepted"] for t in timings)
    drafted: int = sum(t["draft_n"] for t in timings)
    return accepted / drafted


def _distribution(reply: dict[str, Any]) -> dict[int, float]:
    first = reply["completion_probabilities"][0]["top_logprobs"]
    return {entry["id"]: entry["logprob"] for entry in first}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for model files."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(models: Path) -> Path:
    return cached_model(directory=models)


@pytest.mark.real
async def test_acceptance_by_task(model: Path) -> None:
    """The head drafts code well, fiction badly, and the other tasks in between, in this order."""
    async with LlamaServer(None, model) as server:
        measured = {t: _acceptance(r) for t, r in (await _suite_replies(server)).items()}
    assert measured == {task: pytest.approx(a, abs=0.07) for task, a in ACCEPTANCE.items()}
    assert measured["code"] > measured["factual"] > measured["analysis"] > measured["creative"]
    assert measured["factual"] > measured["essay"] > measured["creative"]


@pytest.mark.real
@pytest.mark.slow
async def test_deep_model_keeps_the_order(models: Path) -> None:
    """Idle blocks change what a step costs and not which tasks are drafted well."""
    async with LlamaServer(None, cached_model(DEEP, models)) as server:
        measured = {t: _acceptance(r) for t, r in (await _suite_replies(server)).items()}
    middle = sorted((measured["analysis"], measured["essay"]))
    order = [measured["creative"], *middle, measured["factual"], measured["code"]]
    assert order == sorted(order)
    assert measured["code"] - measured["creative"] > 0.25


@pytest.mark.real
async def test_arms_say_the_same(model: Path) -> None:
    """Greedy text of the speculating and the target-only server agrees but for rounding."""
    async with (
        LlamaServer(None, model) as speculating,
        LlamaServer(None, model, speculate=False) as target_only,
    ):
        pairs = [
            (
                await _complete(speculating, await _chat_prompt(speculating, prompt.text)),
                await _complete(target_only, await _chat_prompt(target_only, prompt.text)),
            )
            for prompt in builtin_suite().prompts[::3]
        ]
    assert all("draft_n" not in plain["timings"] for _, plain in pairs)
    equal = sum(drafted["tokens"] == plain["tokens"] for drafted, plain in pairs)
    assert equal >= len(pairs) - 1


@pytest.mark.real
async def test_text_is_worth_looking_at(model: Path) -> None:
    """Distributions are neither flat nor certain, and text is words that do not repeat at once."""
    async with LlamaServer(None, model, speculate=False) as server:
        replies = [r for rs in (await _suite_replies(server, n_probs=1)).values() for r in rs]
    top = [np.exp(p["logprob"]) for r in replies for p in r["completion_probabilities"]]
    low, middle, high = np.quantile(top, [0.1, 0.5, 0.9])
    assert 0.2 < low < 0.5 < middle < 0.8 < high < 0.999
    forms = [word.form for word in vocabulary()]
    for reply in replies:
        tokens = reply["tokens"]
        assert {forms[token] for token in tokens} == {"whole"}
        assert all(tokens[-n:] != tokens[-2 * n : -n] for n in range(1, 20))


@pytest.mark.real
async def test_head_noise_sets_the_acceptance(models: Path) -> None:
    """A head without noise drafts better than the default one, a noisy one worse."""
    measured = []
    async with LlamaServer(None, cached_model(ModelSpec(head_noise=0.0), models)) as server:
        for noise in (0.0, 1.0, 3.0):
            await server.restart(model=cached_model(ModelSpec(head_noise=noise), models))
            replies = await _suite_replies(server, n_predict=24)
            measured.append(_acceptance([r for rs in replies.values() for r in rs]))
    assert measured[0] > 0.8 > measured[1] > 0.45 > measured[2]


@pytest.mark.real
async def test_noisy_sibling_is_related(model: Path, models: Path) -> None:
    """Trunk noise moves the next-token distribution: a little, as quantising would."""
    sibling = cached_model(ModelSpec(trunk_noise=0.02), models)
    everything = {"n_predict": 1, "n_probs": len(vocabulary())}
    divergences = []
    async with (
        LlamaServer(None, model, speculate=False) as one,
        LlamaServer(None, sibling, speculate=False) as two,
    ):
        for prompt in builtin_suite().prompts[::3]:
            text = await _chat_prompt(one, prompt.text)
            p, q = [_distribution(await _complete(s, text, **everything)) for s in (one, two)]
            divergences.append(sum(np.exp(p[i]) * (p[i] - q[i]) for i in p))
    assert 0.001 < np.mean(divergences) < 0.1


@pytest.mark.real
async def test_larger_models_work(models: Path) -> None:
    """A wider and deeper model loads, drafts, and keeps to the same words."""
    spec = ModelSpec(embedding=128, trunk_blocks=4, feed_forward=256)
    async with LlamaServer(None, cached_model(spec, models)) as server:
        reply = await _complete(server, await _chat_prompt(server, "A forest, a fox, a dragon."))
    assert reply["timings"]["draft_n_accepted"] > 0
    assert " dragon" in reply["content"] or " fox" in reply["content"]


@pytest.mark.real
async def test_any_text_can_be_read_and_written(model: Path) -> None:
    """Text outside the vocabulary goes through bytes, both ways."""
    text = "na\N{LATIN SMALL LETTER I WITH DIAERESIS}ve \N{GRINNING FACE}\t\N{SNOWMAN}\r\n  two"
    async with LlamaServer(None, model) as server:
        tokens = (await _post(server, "/tokenize", content=text))["tokens"]
        assert (await _post(server, "/detokenize", tokens=tokens))["content"] == text
        reply = await _complete(server, "user: hi", n_predict=14, grammar=MULTIBYTE)
    assert reply["content"] == 2 * "\N{GRINNING FACE}\N{CJK UNIFIED IDEOGRAPH-6F22}"
    assert len(reply["tokens"]) == 14
