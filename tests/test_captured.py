"""Captures on disk, ``mtpmon capture``, and watching a server with a capture to compare with."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from mtpmon.__main__ import main
from mtpmon.board import ServerBoard
from mtpmon.capture import TOKENIZER_SAMPLES, Capture, CaptureError, Usable, Use
from mtpmon.captured import Captures, facts_of, read_capture, read_for_use, write_capture
from mtpmon.client import LlamaClient, RequestFailed
from mtpmon.compose import SYSTEM_CLOCK, board_settings, captures, suite, watcher
from mtpmon.config import Config, ConfigError, Probe, Server, load_config
from mtpmon.daemon import Daemon
from mtpmon.model import Baseline, ProbeOutcome, Props
from mtpmon.watch import Watcher
from tests.command_line import mtpmon
from tests.far_end import FakeLlama
from tests.test_board import seen
from tests.test_capture import PROMPT, capture, changed
from tests.test_probe import Scripted

TOKENS = 9
PROBE = Probe(tokens=TOKENS, top_logprobs=3, forced_positions=4)


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir())


# --- on disk ------------------------------------------------------------------------------


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """What is read is what was written; nothing else is left, with the usual permissions."""
    path = tmp_path / "a.capture"
    size = write_capture(path, capture())
    assert size == path.stat().st_size
    assert read_capture(path) == read_for_use(path) == capture()
    assert names(tmp_path) == ["a.capture"]
    plain = tmp_path / "plain"
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A failure at the last moment leaves no half file, and what was there as it was."""
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_capture(tmp_path / "taken", capture())
    assert names(tmp_path) == ["taken"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing ones and other files are errors; one of a later mtpmon is only of no use."""
    for path, words in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(CaptureError, match=words):
            read_for_use(path)
    path = tmp_path / "file"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(CaptureError, match="not gzip"):
        read_for_use(path)
    path.write_bytes(changed(version=99))
    assert read_for_use(path) == "it has format version 99, this mtpmon reads up to 1: upgrade it"


def test_a_bad_file_is_a_bad_configuration(tmp_path: Path) -> None:
    """It is named with its field before anything starts."""
    server = Server(name="a", reference_capture=tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"server 'a', reference_capture: .*absent cannot be"):
        captures(Config(servers=(server,)), server)
    assert captures(Config(), Server(name="a")) is None


def test_check_reads_captures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mtpmon check` says that a capture cannot be used, as it does of a key."""
    path = tmp_path / "mtpmon.yaml"
    path.write_text("servers: [{name: a, baseline_capture: absent}]")
    assert main(["check", "--config", str(path)]) == 2
    assert "server 'a', baseline_capture: " in capsys.readouterr().err


# --- what a server says -------------------------------------------------------------------


@asynccontextmanager
async def client_of(fake: FakeLlama) -> AsyncIterator[LlamaClient]:
    async with fake.serving() as url, LlamaClient(url) as client:
        yield client


async def test_facts_of_a_server() -> None:
    """All samples are tokenized, and the list of models gives the sizes."""
    fake = FakeLlama()
    async with client_of(fake) as client:
        facts = await facts_of(client, Props(build="b"), model=None, timeout_seconds=5)
    assert fake.requests == [("POST", "/tokenize")] * len(TOKENIZER_SAMPLES) + [
        ("GET", "/v1/models")
    ]
    assert (facts.build, facts.parameters, facts.tokenizer.vocabulary) == ("b", 225176, 465)


@pytest.mark.parametrize("models", [b"", b"[]", b'{"data": []}'])
async def test_facts_without_a_list_of_models(models: bytes) -> None:
    """Nothing is known of the sizes then; a router is not made to load a model."""
    fake = FakeLlama(models=models)
    async with client_of(fake) as client:
        facts = await facts_of(client, Props(), model="m", timeout_seconds=5)
    assert facts.tokenizer.vocabulary is None
    assert fake.requests[0] == ("POST", "/tokenize?autoload=false")
    async with client_of(FakeLlama(status={"/v1/models": 404})) as client:
        assert (await facts_of(client, Props(), model=None, timeout_seconds=5)).parameters is None


async def test_facts_of_a_server_that_does_not_tokenize() -> None:
    """It is an error: without a fingerprint nothing can be judged."""
    async with client_of(FakeLlama(status={"/tokenize": 500})) as client:
        with pytest.raises(RequestFailed):
            await facts_of(client, Props(), model=None, timeout_seconds=5)


async def judged(
    held: Captures, client: LlamaClient, props: Props | None, restarts: int = 0
) -> bool:
    return await held.check(client, props, restarts=restarts, model=None, timeout_seconds=5)


async def test_captures_are_judged_once_for_each_process() -> None:
    """And again after a restart or another model, not after a look without /props."""
    fake = FakeLlama()
    held = Captures(held={Use.REFERENCE: capture()}, prompts=[PROMPT], top_logprobs=64)
    async with client_of(fake) as client:
        news = [
            await judged(held, client, props, restarts)
            for props, restarts in (
                (Props(model="m"), 0),
                (Props(model="m"), 0),
                (None, 0),
                (Props(model="m"), 1),
                (Props(model="n"), 1),
            )
        ]
    assert news == [True, False, False, True, True]
    assert held.reasons == {Use.REFERENCE: ("it is from another tokenizer",)}
    assert held.usable.reference is None
    assert held.plain_requests() == ()


async def test_nothing_is_usable_while_a_server_cannot_be_asked() -> None:
    """What was judged of the process before says nothing of the next one."""
    fake = FakeLlama()
    async with client_of(fake) as client:
        facts = await facts_of(client, Props(model="m", build="b"), model=None, timeout_seconds=5)
        found = capture(server=facts)
        uses: dict[Use, Capture | str] = {Use.REFERENCE: "it is too new", Use.BASELINE: found}
        held = Captures(held=uses, prompts=[PROMPT], top_logprobs=64)
        assert await judged(held, client, Props(model="m", build="b"))
        assert held.reasons == {Use.REFERENCE: ("it is too new",), Use.BASELINE: ()}
        assert held.usable == Usable(baseline=found)
        assert len(held.plain_requests()) == 1
        fake.status = {"/tokenize": 500}
        assert await judged(held, client, None, restarts=1)
        assert held.reasons == {}
        assert held.usable == Usable()
        fake.status = {}
        assert await judged(held, client, None, restarts=1)
        assert held.usable == Usable(baseline=found)


# --- mtpmon capture -----------------------------------------------------------------------


def asked(url: str, out: Path, *more: str | Path) -> tuple[str | Path, ...]:
    sampling = ("--tokens", str(TOKENS), "--top-logprobs", "3", "--tasks", "code")
    return ("capture", "--url", url, "--out", out, *sampling, *more)


async def test_capture_of_a_plain_server(tmp_path: Path) -> None:
    """All prompts with all distributions, where they come from, and what a step costs."""
    out = tmp_path / "plain.capture"
    plain = Scripted(drafts=False)
    async with plain.serving() as url:
        ran = await mtpmon(*asked(url, out, "--note", "on a quiet day"))
    assert (ran.code, ran.err) == (0, "")
    assert "8 prompts" in ran.out
    assert "72 tokens, 72 of them with the 3 likeliest" in ran.out
    assert "a plain step takes 1.000 ms" in ran.out
    assert "fit for baseline_capture and for reference_capture" in ran.out
    found = read_capture(out)
    origin = found.provenance
    assert (origin.note, origin.drafted, origin.requests_processing) == ("on a quiet day", False, 0)
    assert (origin.server.model, origin.server.build) == ("toy.gguf", "b0-unknown")
    assert origin.sampling == msgspec.structs.replace(
        origin.sampling, tokens=TOKENS, top_logprobs=3, temperature=0
    )
    assert {len(prompt.ids) for prompt in found.prompts} == {TOKENS}
    assert len(plain.asked) == 1 + 8  # a warm-up, and each prompt once
    assert all(request["temperature"] == -1 for request in plain.asked)


async def test_capture_of_a_drafting_server(tmp_path: Path) -> None:
    """It says that the file is no baseline, and so does the file."""
    out = tmp_path / "a"
    async with Scripted().serving() as url:
        ran = await mtpmon(*asked(url, out, "--prompts", "2"))
    assert ran.code == 0
    assert "fit for reference_capture, not for baseline_capture" in ran.out
    assert "18 tokens, 4 of them" in ran.out
    assert read_capture(out).provenance.drafted


async def test_capture_does_not_overwrite(tmp_path: Path) -> None:
    """A file that is there stays as it is, and no server is asked, unless --force says so."""
    out = tmp_path / "a"
    out.write_text("precious")
    server = Scripted(drafts=False)
    async with server.serving() as url:
        ran = await mtpmon(*asked(url, out))
        assert (ran.code, ran.out, server.asked) == (2, "", [])
        assert "--out" in ran.err
        assert "--force" in ran.err
        assert out.read_text() == "precious"
        ran = await mtpmon(*asked(url, out, "--force", "--prompts", "1"))
    assert (ran.code, ran.err) == (0, "")
    assert len(read_capture(out).prompts) == 1


class Failing(Scripted):
    """Fails these requests for completions, counted from 0, the warm-up."""

    fails: tuple[int, ...] = ()
    restarts_at: int = -1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        if len(self.asked) in self.fails:
            self.asked.append({})
            return web.Response(status=500, text="out of memory")
        if len(self.asked) == self.restarts_at:
            self.start_token = "2"
        return await super()._stream(request)


async def test_capture_keeps_what_did_not_fail(tmp_path: Path) -> None:
    """A prompt that fails is named, the rest is kept, and the exit code is 1."""
    out = tmp_path / "a"
    async with Failing(drafts=False, fails=(2, 3)).serving() as url:
        ran = await mtpmon(*asked(url, out))
    assert ran.code == 1
    assert ran.err.count("out of memory") == 2
    assert "6 prompts" in ran.out
    assert len(read_capture(out).prompts) == 6


@pytest.mark.parametrize(
    ("server", "asked_for", "words"),
    [
        (Failing(fails=(0,)), 1, "out of memory"),
        (Failing(fails=tuple(range(1, 9))), 4, "out of memory"),
        (Failing(restarts_at=3), 9, "it restarted, or its model changed: nothing is kept"),
    ],
)
async def test_capture_of_nothing(
    tmp_path: Path, server: Failing, asked_for: int, words: str
) -> None:
    """A server that fails at once or three times in a row, or changes meanwhile: no file."""
    server.asked.clear()
    async with server.serving() as url:
        ran = await mtpmon(*asked(url, tmp_path / "a"))
    assert (ran.code, ran.out) == (1, "")
    assert words in ran.err
    assert len(server.asked) == asked_for
    assert names(tmp_path) == []


async def test_capture_of_a_server_that_is_not_there(tmp_path: Path) -> None:
    """It is 1, with the reason and without a file."""
    ran = await mtpmon(*asked("http://127.0.0.1:9", tmp_path / "a"))
    assert (ran.code, ran.out, names(tmp_path)) == (1, "", [])
    assert "cannot connect" in ran.err


async def test_capture_of_a_server_that_takes_too_long(tmp_path: Path) -> None:
    """Its prompts fail with what to change."""
    server = Scripted(drafts=False)
    server.stream_delay_seconds = 1.0
    async with server.serving() as url:
        ran = await mtpmon(*asked(url, tmp_path / "a", "--timeout", "200ms"))
    assert ran.code == 1
    assert "not done within 0.2 s: raise --timeout or lower --tokens" in ran.err


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--tokens", "2"), "--tokens: 2 tokens do not show whether the server drafts"),
        (("--tokens", "9999"), "--tokens: "),
        (("--top-logprobs", "0"), "--top-logprobs: "),
        (("--tasks", "nothing"), "--tasks: 'nothing' is not a task"),
        (("--prompts", "0"), "--prompts: 0 is not a number of prompts"),
        (("--out", "/"), "--out: / is no file in a directory"),
        (("--out", "/no/such/place"), "--out: /no/such/place is no file in a directory"),
        (("--config", "x"), "--config: does not go with --url"),
    ],
)
def test_capture_wrongly_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], words: str
) -> None:
    """Bad options are 2, by their names, before any server is asked."""
    basic = ("capture", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "a"))
    assert main([*basic, *more]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err


async def test_capture_of_one_of_several(tmp_path: Path) -> None:
    """From a configuration exactly one server is captured, with its settings of probes."""
    async with Scripted(drafts=False).serving() as url:
        tree = {
            "servers": [{"name": "a", "url": "http://127.0.0.1:9"}, {"name": "b", "url": url}],
            "probe": {"tokens": TOKENS, "top_logprobs": 3, "tasks": ["essay"]},
        }
        config = tmp_path / "mtpmon.yaml"
        config.write_text(json.dumps(tree))
        basic = ("capture", "--config", config, "--out", tmp_path / "a")
        ran = await mtpmon(*basic)
        assert ran.code == 2
        assert "--server: one is needed, there is a, b" in ran.err
        ran = await mtpmon(*basic, "--server", "b")
    assert (ran.code, ran.err) == (0, "")
    assert {prompt.task for prompt in read_capture(tmp_path / "a").prompts} == {"essay"}


# --- watching -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of a server that does not draft, and otherwise is as ``Scripted()``."""

    async def taken() -> Path:
        out = tmp_path_factory.mktemp("captures") / "plain"
        async with Scripted(drafts=False).serving() as url:
            ran = await mtpmon(*asked(url, out))
        assert ran.code == 0
        return out

    return asyncio.run(taken())


@asynccontextmanager
async def watching(fake: FakeLlama, probe: Probe = PROBE, **keys: Any) -> AsyncIterator[Watcher]:
    async with fake.serving() as url:
        server = Server(name="a", url=url, **keys)
        config = Config(servers=(server,), probe=probe)
        board = ServerBoard("a", board_settings(config))
        found = watcher(config, server, board, SYSTEM_CLOCK)
        try:
            yield found
        finally:
            await found.arms.close()


def usable(found: Watcher) -> dict[str, bool]:
    return dict(seen(found.board, SYSTEM_CLOCK.monotonic()).capture_usable)


PROMPTS = suite(Config()).prompts


async def test_a_capture_is_a_baseline(plain_capture: Path) -> None:
    """Sequences, distributions at comparable places, and the steps of a plain server."""
    server = Scripted()
    async with watching(server, baseline_capture=plain_capture) as found:
        with capture_logs() as logs:
            await found.look()
            await found.look()
        result = await found.probe_once(PROMPTS[0], baseline_first=True)
        shorter = await found.probe_once(PROMPTS[1], baseline_first=False, tokens=5)
        assert found.captures is not None
        assert len(found.captures.plain_requests()) == 8
        assert usable(found) == {"baseline": True}
    assert [log["use"] for log in logs if log["event"] == "capture_usable"] == ["baseline"]
    assert result.outcome is ProbeOutcome.COMPLETED
    assert result.baseline is Baseline.CAPTURE
    for one, tokens in ((result, TOKENS), (shorter, 5)):
        assert one.comparison is not None
        assert one.comparison.exact
        assert one.comparison.tokens == tokens
        assert one.next_token is not None
        assert one.next_token.nats == pytest.approx(0, abs=1e-9)
    assert [forced.rank for forced in result.forced] == [0, 0, 0, 0]
    assert len(result.teacher_forced) == 4
    assert max(d.nats for d in result.teacher_forced) == pytest.approx(0, abs=1e-9)
    assert len(result.after_speculation) == 1
    assert len(server.asked) == 2 * (1 + 4)


async def test_a_prompt_that_is_not_captured_goes_on_without(plain_capture: Path) -> None:
    """The target is asked one token at a time, and the switch is still tried."""
    server = Scripted()
    essay = next(prompt for prompt in PROMPTS if prompt.task == "essay")
    async with watching(server, baseline_capture=plain_capture) as found:
        await found.look()
        result = await found.probe_once(essay, baseline_first=False)
        await found.probe_once(PROMPTS[0], baseline_first=False)
        again = await found.probe_once(essay, baseline_first=False)
    assert result.baseline is again.baseline is Baseline.SINGLE
    assert len(result.forced) == 4
    switches = [request for request in server.asked if "speculative.n_max" in request]
    assert len(switches) == 1


async def test_a_prompt_of_other_tokens_goes_on_without(plain_capture: Path) -> None:
    """Another chat template makes another prompt of the same text: it is not compared."""
    held = read_capture(plain_capture)
    others = tuple(
        msgspec.structs.replace(prompt, prompt_ids=(*prompt.prompt_ids, 7))
        for prompt in held.prompts
    )
    path = plain_capture.with_name("other-template")
    write_capture(path, msgspec.structs.replace(held, prompts=others))
    async with watching(Scripted(), baseline_capture=path, reference_capture=path) as found:
        await found.look()
        result = await found.probe_once(PROMPTS[0], baseline_first=False)
    assert result.baseline is Baseline.SINGLE
    assert result.comparison is None
    assert result.reference_next_token is None


class Drifted(Scripted):
    """Says the same, with other probabilities: a quantized sibling."""

    def _answer_of(self, tokens: int, drafts: bool) -> list[dict[str, Any]]:
        events = super()._answer_of(tokens, drafts)
        for event in events:
            for position in event.get("completion_probabilities", ()):  # type: ignore[attr-defined]
                position["top_logprobs"][0]["logprob"] -= 0.2
        return events


async def test_a_capture_is_a_reference(plain_capture: Path) -> None:
    """After the prompt and along the captured answer, exported over recent probes."""
    server = Drifted()
    async with watching(server, reference_capture=plain_capture) as found:
        await found.look()
        result = await found.probe_once(PROMPTS[0], baseline_first=False)
        found.board.probed(result)
        figures = seen(found.board, SYSTEM_CLOCK.monotonic()).probe_figures
        assert usable(found) == {"reference": True}
    assert result.reference_next_token is not None
    assert result.reference_next_token.nats > 0
    assert len(result.reference_forced) in (3, 4)  # the first place may have been drawn as well
    assert figures.reference_kld is not None
    assert figures.reference_kld.positions == 1 + len(result.reference_forced)
    assert figures.reference_top1 == 1
    assert result.comparison is None


async def test_a_refused_capture_stops_nothing(plain_capture: Path) -> None:
    """It is logged once with the reason, exported as refused, and probes go on without it."""
    fake = Scripted()
    fake.props = {**fake.props, "build_info": "b2-other"}
    async with watching(
        fake, reference_capture=plain_capture, baseline_capture=plain_capture
    ) as found:
        with capture_logs() as logs:
            await found.look()
            await found.look()
        assert usable(found) == {"reference": True, "baseline": False}
        result = await found.probe_once(PROMPTS[0], baseline_first=False)
        assert result.outcome is ProbeOutcome.COMPLETED
        assert result.baseline is Baseline.SINGLE
        assert result.reference_next_token is not None
        (refused,) = [log for log in logs if log["event"] == "capture_refused"]
        assert refused["use"] == "baseline"
        assert refused["detail"] == "it is of another build: b0-unknown, the server is b2-other"
        fake.props = {**fake.props, "build_info": "b0-unknown"}
        await found.look()
        assert usable(found) == {"reference": True, "baseline": True}


async def test_a_server_that_does_not_answer_is_not_judged(plain_capture: Path) -> None:
    """Whether a capture fits is not known then, which is no sample."""
    fake = Scripted()
    fake.loading = True
    async with watching(fake, baseline_capture=plain_capture) as found:
        await found.look()
        assert usable(found) == {}
        assert ("POST", "/tokenize") not in fake.requests
        fake.loading, fake.status = False, {"/tokenize": 500}
        await found.look()
        assert usable(found) == {}
        fake.status = {}
        await found.look()
        assert usable(found) == {"baseline": True}


async def test_other_log_probabilities_are_refused(plain_capture: Path) -> None:
    """Lists of different lengths would give another bound."""
    probe = msgspec.structs.replace(PROBE, top_logprobs=8)
    async with watching(Scripted(), probe, reference_capture=plain_capture) as found:
        await found.look()
        assert usable(found) == {"reference": False}


async def test_probe_with_a_reference(plain_capture: Path) -> None:
    """It prints the table; with a capture that does not fit it says why and ends with 1."""
    sampling = ("--tokens", str(TOKENS), "--tasks", "code", "--prompts", "3")
    config = plain_capture.with_name("mtpmon.yaml")
    async with Scripted().serving() as url:
        servers = [{"name": "a", "url": url}]
        config.write_text(json.dumps({"servers": servers, "probe": {"top_logprobs": 3}}))
        basic = ("probe", "--config", config, "--reference", plain_capture, *sampling)
        ran = await mtpmon(*basic)
        assert (ran.code, ran.err) == (0, "")
        assert "KLD from the captured reference" in ran.out
        document = json.loads((await mtpmon(*basic, "--json")).out)
        config.write_text(json.dumps({"servers": servers, "probe": {"top_logprobs": 4}}))
        refused = await mtpmon(*basic)
    assert document["servers"][0]["refused_captures"] == []
    first, along = document["servers"][0]["report"]["reference"]
    assert (first["at"], first["positions"]) == ("next_token", 3)
    assert first["mean_nats"] == pytest.approx(0, abs=1e-9)
    assert along["at"] == "teacher_forced"
    assert refused.code == 1
    assert "reference_capture is not used: it has 3 log-probabilities" in refused.out
    assert "KLD from the captured reference" not in refused.out


def test_probe_with_a_file_that_is_no_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is wrong usage, and no server is asked."""
    absent = str(tmp_path / "absent")
    assert main(["probe", "--url", "http://127.0.0.1:9", "--reference", absent]) == 2
    assert "reference_capture: " in capsys.readouterr().err


async def test_a_reload_takes_up_a_capture_that_was_made_anew(tmp_path: Path) -> None:
    """The one that stands there then, even if it is made of the same bytes; else nothing ends."""
    made, config = tmp_path / "bf16.capture", tmp_path / "mtpmon.yaml"
    write_capture(made, capture())
    config.write_text(
        "servers: [{name: a, url: 'http://127.0.0.1:9', reference_capture: bf16.capture}]\n"
        "listen: {address: '127.0.0.1:0'}\n"
    )
    daemon = Daemon(load_config(config), path=config)
    started = asyncio.Event()
    task = asyncio.create_task(daemon.run(started=started.set))
    await started.wait()
    try:
        before = daemon.board["a"]
        await daemon.reload()
        assert daemon.board["a"] is before
        write_capture(made, capture())
        await daemon.reload()
        after = daemon.board["a"]
        assert after is not before
        config.write_text(config.read_text() + "verdict: {min_steps: 7}\n")
        await daemon.reload()
        assert daemon.board["a"] is not after, "another rule for verdicts"
    finally:
        daemon.stop()
        await task
