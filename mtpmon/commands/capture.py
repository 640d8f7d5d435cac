"""``mtpmon capture``: keep what a server says to the suite, to compare with later."""

import argparse
import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final

from mtpmon import __version__
from mtpmon.capture import (
    Capture,
    CapturedPrompt,
    Provenance,
    Sampling,
    ServerFacts,
    captured_prompt,
    plain_requests,
)
from mtpmon.captured import facts_of, write_capture
from mtpmon.client import RequestFailed
from mtpmon.commands import EXIT_FINE, EXIT_NOT_FINE, exit_codes
from mtpmon.commands.options import add_config, chosen, usage, with_probe
from mtpmon.commands.passes import GIVE_UP_AFTER, look, progress_bar
from mtpmon.commands.terminal import complain, printable, write
from mtpmon.compose import SYSTEM_CLOCK, clients, probe_settings, suite
from mtpmon.config import Config, Server
from mtpmon.cost import plain_step
from mtpmon.evaluate import Pair
from mtpmon.model import Baseline, ProbeOutcome, Props, Scrape
from mtpmon.probe import Arms, Books, ProbeFailed, ProbeSettings, probe
from mtpmon.suite import TASKS, Prompt, rotation
from mtpmon.wire import WireError

FEWEST_TOKENS: Final = 3  # in less than three tokens no server drafts, so none is seen to

SUMMARY: Final = "keep what a server says in a file, to compare with later"
DESCRIPTION: Final = f"""\
Sends one server the prompts of the suite, one after another and greedily, and keeps its
answers in a file: tokens, the distribution at each position, what each decode step cost, and
where it all comes from. The file then serves as

  reference_capture   of any server with the same tokenizer: how far is it from, say, the
                      BF16 original?
  baseline_capture    of this very server once it drafts: what did it say, and what did a
                      step cost, while it ran without --spec-type?

The first prompt is sent once more beforehand, to warm the server up, and not kept. A server
that has other requests meanwhile gives the step cost of a busy server. Prompts that fail are
left out; {GIVE_UP_AFTER} in a row end the capture, and what there is by then is kept."""
EPILOG: Final = """\
examples:
  mtpmon capture --url http://10.0.0.5:8080 --out bf16.capture --note "BF16, two GPUs"
  mtpmon capture --config mtpmon.yaml --server big --out big-plain.capture
  mtpmon probe --url http://10.0.0.5:8080 --reference bf16.capture

""" + exit_codes(
    not_fine="a prompt failed, or the server changed meanwhile",
    interrupted="interrupted by Ctrl-C; nothing is written",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config(parser)
    parser.add_argument(
        "--server",
        metavar="NAME",
        action="append",
        help="which server of the configuration, if it has several",
    )
    parser.add_argument(
        "--url", metavar="URL", help="a server that is in no configuration, instead of --config"
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="with --url: environment variable that holds its API key",
    )
    parser.set_defaults(target_only_url=None, target_only_api_key_env=None)
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the file to write")
    parser.add_argument("--force", action="store_true", help="overwrite it if it is there")
    parser.add_argument(
        "--tokens", metavar="N", type=int, help="tokens to generate for a prompt, 3 or more"
    )
    parser.add_argument(
        "--top-logprobs",
        metavar="K",
        type=int,
        help="log-probabilities to keep at a position; probes must ask for as many",
    )
    parser.add_argument(
        "--tasks",
        metavar="TASK,…",
        help=f"of {', '.join(TASKS)}, or of your prompt files; those of the configuration by"
        " default",
    )
    parser.add_argument(
        "--prompts",
        metavar="N",
        type=int,
        help="so many prompts, evenly over the tasks; all of the suite by default",
    )
    parser.add_argument(
        "--timeout", metavar="DURATION", help="longest a prompt may take, such as 90s"
    )
    parser.add_argument("--note", metavar="TEXT", default="", help="a remark to keep in the file")


def execute(args: argparse.Namespace) -> int:
    """Capture, and say what came out.

    Raises:
        ConfigError: options or configuration cannot be used, or the file cannot be written.
    """
    config, servers = chosen(args)
    if len(servers) != 1:
        listed = ", ".join(server.name for server in servers)
        raise usage("--server", f"one is needed, there is {listed}", "name one of them")
    config = _changed(config, args)
    out: Path = args.out
    _check_out(out, force=args.force)
    prompts = _prompts(config, args.prompts)
    taken = asyncio.run(_taken(config, servers[0], prompts, note=args.note))
    for complaint in taken.complaints:
        complain(printable(complaint))
    if taken.capture is not None:
        _check_out(out, force=args.force)
        try:
            size = write_capture(out, taken.capture)
        except OSError as error:
            fix = "choose another file"
            raise usage("--out", f"{out} cannot be written: {error.strerror}", fix) from error
        write("\n".join(_described(out, size, taken.capture, config)) + "\n")
    return EXIT_NOT_FINE if taken.complaints else EXIT_FINE


def _changed(config: Config, args: argparse.Namespace) -> Config:
    changes: dict[str, object] = {}
    if args.tasks is not None:
        changes["tasks"] = args.tasks.split(",")
    if args.tokens is not None:
        changes["tokens"] = args.tokens
    if args.top_logprobs is not None:
        changes["top_logprobs"] = args.top_logprobs
    if args.timeout is not None:
        # There is no interval here, which could be too short for this.
        changes["timeout"] = changes["interval"] = args.timeout
    named = {"probe.top_logprobs": "--top-logprobs"} if args.top_logprobs is not None else {}
    config = with_probe(config, changes, options=named)
    if config.probe.tokens < FEWEST_TOKENS:
        problem = f"{config.probe.tokens} tokens do not show whether the server drafts"
        raise usage("--tokens", problem, f"use {FEWEST_TOKENS} or more")
    return config


def _check_out(out: Path, *, force: bool) -> None:
    if out.is_dir() or not out.parent.is_dir():
        raise usage("--out", f"{out} is no file in a directory", "name a file to write")
    if out.exists() and not force:
        raise usage("--out", f"{out} is there already", "choose another name, or add --force")
    if not os.access(out.parent, os.W_OK | os.X_OK):
        raise usage("--out", f"{out.parent} is not writable", "choose another directory")


def _prompts(config: Config, wanted: int | None) -> tuple[Prompt, ...]:
    asked = suite(config)
    if wanted is None or wanted >= len(asked.prompts):
        return asked.prompts
    if wanted < 1:
        raise usage("--prompts", f"{wanted} is not a number of prompts", "use 1 or more")
    return tuple(islice(_each_once(rotation(asked, config.probe.seed)), wanted))


def _each_once(prompts: Iterator[Prompt]) -> Iterator[Prompt]:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id not in seen:
            seen.add(prompt.id)
            yield prompt


# --- asking -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Taken:
    """What came out, ``None`` if nothing to keep, and what went wrong."""

    capture: Capture | None
    complaints: tuple[str, ...] = ()


async def _taken(config: Config, server: Server, prompts: Sequence[Prompt], *, note: str) -> _Taken:
    began = SYSTEM_CLOCK.wall()
    progress = progress_bar()
    async with AsyncExitStack() as stack:
        arms = Arms(clients(config, server).speculating)
        stack.push_async_callback(arms.close)
        stack.enter_context(progress)
        bar = progress.add_task(server.name, total=len(prompts), note="")
        asking = _Asking(config, server, arms)
        try:
            await asking.one(prompts[0])  # warms the server up, and wakes it
            before = await asking.look()
            facts = await asking.facts(before)
        except (ProbeFailed, RequestFailed, WireError) as failed:
            return _Taken(None, (f"{server.url}: {failed}",))
        found: list[CapturedPrompt] = []
        complaints: list[str] = []
        drafted, in_a_row = False, 0
        for prompt in prompts:
            started = SYSTEM_CLOCK.wall()
            try:
                pair = await asking.one(prompt)
            except ProbeFailed as failed:
                complaints.append(f"{prompt.id}: {failed.outcome.value}: {failed}")
                in_a_row += 1
                if in_a_row == GIVE_UP_AFTER:
                    break
                continue
            in_a_row = 0
            answer = pair.speculating
            drafted |= bool(answer.timings.draft_tokens)
            found.append(captured_prompt(prompt, pair.prompt_ids, answer, unix_seconds=started))
            progress.update(bar, advance=1)
        if not found:
            return _Taken(None, tuple(complaints))
        if _identity(await asking.look()) != _identity(before):
            why = "it restarted, or its model changed: nothing is kept"
            return _Taken(None, (*complaints, f"{server.url}: {why}"))
    probing = config.probe
    provenance = Provenance(
        mtpmon=__version__,
        date=datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"),
        unix_seconds=began,
        server=facts,
        sampling=Sampling(
            tokens=probing.tokens, top_logprobs=probing.top_logprobs, seed=probing.seed
        ),
        drafted=drafted,
        requests_processing=before.counters.requests_processing if before.counters else None,
        note=note,
    )
    return _Taken(Capture(provenance=provenance, prompts=tuple(found)), tuple(complaints))


class _Asking:
    """The requests of one capture."""

    def __init__(self, config: Config, server: Server, arms: Arms) -> None:
        self._config = config
        self._server = server
        self._arms = arms
        settings = probe_settings(config, server)
        self._settings = ProbeSettings(
            tokens=settings.tokens,
            top_logprobs=settings.top_logprobs,
            seed=settings.seed,
            model=settings.model,
        )

    async def one(self, prompt: Prompt) -> Pair:
        """Ask one prompt.

        Raises:
            ProbeFailed: no usable answer came.
        """
        limit = self._config.probe.timeout_seconds
        try:
            async with asyncio.timeout(limit):
                return await probe(
                    self._arms,
                    prompt,
                    self._settings,
                    baseline=Baseline.SINGLE,
                    baseline_first=False,
                    forced_seed=0,
                    books=Books(
                        began=lambda: None, ended=lambda _: None, clock=SYSTEM_CLOCK.monotonic
                    ),
                )
        except TimeoutError:
            detail = f"not done within {limit:g} s: raise --timeout or lower --tokens"
            raise ProbeFailed(ProbeOutcome.TIMEOUT, detail) from None

    async def look(self) -> Scrape:
        """What the server says of itself."""
        return await look(self._config, self._arms.speculating, model=self._server.model)

    async def facts(self, look: Scrape) -> ServerFacts:
        """The same, to be kept."""
        return await facts_of(
            self._arms.speculating,
            look.props or Props(),
            model=self._server.model,
            timeout_seconds=self._config.scrape.timeout_seconds,
        )


def _identity(look: Scrape) -> tuple[object, ...]:
    props = look.props or Props()
    token = look.counters.start_token if look.counters is not None else None
    return props.build, props.model, props.model_path, props.quantization, token


# --- saying -------------------------------------------------------------------------------


def _described(out: Path, size: int, capture: Capture, config: Config) -> Iterator[str]:
    origin = capture.provenance
    tokens = sum(len(prompt.ids) for prompt in capture.prompts)
    known = sum(bool(top) for prompt in capture.prompts for top in prompt.tops)
    server = origin.server
    parts = [server.model, server.quantization, server.build and f"build {server.build}"]
    yield f"{out}: {len(capture.prompts)} prompts, {size / 1e6:.2f} MB"
    yield printable(", ".join(part for part in parts if part) or "a server that names no model")
    yield f"{tokens} tokens, {known} of them with the {origin.sampling.top_logprobs} likeliest"
    if origin.drafted:
        yield "the server drafts: fit for reference_capture, not for baseline_capture"
        return
    step = plain_step(plain_requests(capture), confidence=config.evidence.confidence)
    if step is not None:
        cost = step.seconds
        yield (
            f"a plain step takes {cost.value * 1e3:.3f} ms"
            f" [{cost.lower * 1e3:.3f}, {cost.upper * 1e3:.3f}]"
        )
    if origin.requests_processing:
        yield f"{origin.requests_processing} other requests were running: steps of a busy server"
    yield "the server does not draft: fit for baseline_capture and for reference_capture"
