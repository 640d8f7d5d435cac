"""``mtpmon probe``: one pass of the suite, as tables or as JSON."""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from rich.progress import Progress, TaskID

from mtpmon.board import ServerBoard
from mtpmon.commands import EXIT_FINE, EXIT_NOT_FINE, exit_codes
from mtpmon.commands.options import add_servers, chosen, usage, with_probe
from mtpmon.commands.passes import GIVE_UP_AFTER, look, one_pass, progress_bar
from mtpmon.commands.probetext import ProbeDocument, ServerDocument, rendered
from mtpmon.commands.terminal import show, write
from mtpmon.compose import SYSTEM_CLOCK, board_settings, suite, watcher, ways
from mtpmon.config import Config, Server
from mtpmon.cost import PlainStep, plain_step
from mtpmon.model import ProbeResult, Props, Variant
from mtpmon.report import report
from mtpmon.suite import DEFAULT_VARIANT, TASKS, Case, Prompt, rotation
from mtpmon.viability import viability
from mtpmon.watch import Watcher

SUMMARY: Final = "measure servers once: acceptance, speed-up, differences in output"
DESCRIPTION: Final = f"""\
Sends each chosen server the prompts of the built-in suite, one after another, greedily, and
the same to its target-only twin if it has one; then prints what came out: draft acceptance,
speed and speed-up by task, where drafting pays and from which acceptance on, exact sequences,
where sequences part and how close that call was, and KLD where both distributions are there.
Without a twin (target_only_url) there is no speed-up and nothing to part from; what the target
itself thinks of the answer is asked all the same. Other ways to ask (temperatures, thinking)
add rows to the table of where drafting pays.

The first prompt is sent once more beforehand, to warm the servers up, and not counted. The
servers are probed at once, also when they are busy: figures of speed are then those of a
busy server. A sleeping server wakes up. {GIVE_UP_AFTER} failures in a row end a server's turn."""
EPILOG: Final = """\
examples:
  mtpmon probe --url http://10.0.0.5:8080
  mtpmon probe --url http://10.0.0.5:8080 --target-only-url http://10.0.0.5:8081
  mtpmon probe --config mtpmon.yaml --server big --tasks code,essay --prompts 8
  mtpmon probe --config mtpmon.yaml --json > before-upgrade.json
  mtpmon probe --url http://10.0.0.5:8080 --reference bf16.capture
  mtpmon probe --url http://10.0.0.5:8080 --target-only-url http://10.0.0.5:8081 \\
    --temperatures 0,0.7 --thinking on,off --fail-below-breakeven

""" + exit_codes(
    not_fine="at least one probe failed, a capture does not fit, or drafting is below breakeven",
    interrupted="interrupted by Ctrl-C",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_servers(parser)
    parser.add_argument(
        "--prompts",
        metavar="N",
        type=int,
        help="prompts for each server, evenly over the tasks; all of the suite by default",
    )
    parser.add_argument(
        "--tasks",
        metavar="TASK,…",
        help=f"of {', '.join(TASKS)}, or of your prompt files; those of the configuration by"
        " default",
    )
    parser.add_argument("--tokens", metavar="N", type=int, help="tokens to generate for a prompt")
    parser.add_argument(
        "--timeout", metavar="DURATION", help="longest a probe may take, both servers, such as 90s"
    )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        type=Path,
        help="a file of mtpmon capture: how far is the server from that one?",
    )
    parser.add_argument(
        "--variants",
        choices=("default", "all"),
        help="ask each prompt greedily and as the chat template has it, or in each way of the"
        " configuration too; default is the former",
    )
    parser.add_argument(
        "--temperatures",
        metavar="T,…",
        help="temperatures to ask at besides 0; with it all variants are asked",
    )
    parser.add_argument(
        "--thinking",
        metavar="MODE,…",
        help="thinking modes to ask in besides default, of on, off; with it all variants are asked",
    )
    parser.add_argument(
        "--fail-below-breakeven",
        action="store_true",
        help="end with 1 where drafting certainly costs more than it brings",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document, no tables")


def execute(args: argparse.Namespace) -> int:
    """Probe, and print what came out.

    Raises:
        ConfigError: options or configuration cannot be used.
    """
    config, servers = chosen(args)
    changes: dict[str, object] = {}
    if args.tasks is not None:
        changes["tasks"] = args.tasks.split(",")
    if args.tokens is not None:
        changes["tokens"] = args.tokens
    if args.timeout is not None:
        # A single pass has no interval, which could be too short for this.
        changes["timeout"] = changes["interval"] = args.timeout
    if args.temperatures is not None:
        changes["temperatures"] = [_number(text) for text in args.temperatures.split(",")]
    if args.thinking is not None:
        changes["thinking"] = args.thinking.split(",")
    config = with_probe(config, changes)
    asked = _ways(config, args)
    if args.server is None:
        servers = tuple(server for server in servers if server.probe)
    if not servers:
        raise usage("--server", "is needed", "every server of the file has probe: false")
    if args.reference is not None:
        servers = tuple(
            msgspec.structs.replace(server, reference_capture=args.reference) for server in servers
        )
    prompts = _prompts(config, args.prompts)
    document = asyncio.run(_document(config, servers, prompts, asked))
    if args.json:
        write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
    else:
        show(*rendered(document))
    not_fine = any(
        server.report.failures
        or server.refused_captures
        or (args.fail_below_breakeven and server.viability.below_breakeven)
        for server in document.servers
    )
    return EXIT_NOT_FINE if not_fine else EXIT_FINE


def _number(text: str) -> float | str:
    """A number; what is none is refused as in a file."""
    try:
        return float(text)
    except ValueError:
        return text


def _ways(config: Config, args: argparse.Namespace) -> tuple[Variant, ...]:
    more = args.temperatures is not None or args.thinking is not None
    if args.variants == "default" and more:
        option = "--temperatures" if args.temperatures is not None else "--thinking"
        raise usage("--variants", f"default does not go with {option}", "leave one of them out")
    return ways(config) if more or args.variants == "all" else (DEFAULT_VARIANT,)


def _prompts(config: Config, wanted: int | None) -> tuple[Prompt, ...]:
    asked = suite(config)
    if wanted is not None and wanted < 1:
        raise usage("--prompts", f"{wanted} is not a number of prompts", "use 1 or more")
    count = len(asked.prompts) if wanted is None else wanted
    return tuple(islice(rotation(asked, config.probe.seed), count))


async def _document(
    config: Config, servers: Sequence[Server], prompts: Sequence[Prompt], asked: Sequence[Variant]
) -> ProbeDocument:
    began = SYSTEM_CLOCK.wall()
    cases = [Case(prompt, variant) for prompt in prompts for variant in asked]
    progress = progress_bar()
    async with AsyncExitStack() as stack:
        watchers = []
        for server in servers:  # all of them first: a key that is missing must not cost a pass
            board = ServerBoard(server.name, board_settings(config))
            watchers.append(watcher(config, server, board, SYSTEM_CLOCK))
            stack.push_async_callback(watchers[-1].arms.close)
        stack.enter_context(progress)
        documents = []
        for server, watching in zip(servers, watchers, strict=True):
            bar = progress.add_task(server.name, total=len(cases), note="warming up")
            advance = partial(_noted, progress, bar)
            documents.append(await _measure(config, server, watching, cases, advance))
    return ProbeDocument(
        unix_seconds=began,
        prompts=len(prompts),
        tasks=config.probe.tasks,
        variants=tuple(asked),
        tokens=config.probe.tokens,
        top_logprobs=config.probe.top_logprobs,
        seed=config.probe.seed,
        confidence=config.evidence.confidence,
        servers=tuple(documents),
    )


def _noted(progress: Progress, bar: TaskID, result: ProbeResult) -> None:
    progress.update(bar, advance=1, note=f"{result.task}: {result.outcome.value}")


async def _measure(
    config: Config,
    server: Server,
    watching: Watcher,
    cases: Sequence[Case],
    advance: Callable[[ProbeResult], None],
) -> ServerDocument:
    found = await look(config, watching.arms.speculating, model=server.model)
    results = await one_pass(
        watching,
        cases,
        advance=advance,
        awake=lambda: watching.check_captures(found.props),
    )
    props = found.props or Props()
    counters = found.counters
    return ServerDocument(
        name=server.name,
        url=server.url,
        target_only_url=server.target_only_url,
        build=props.build,
        model=props.model,
        quantization=props.quantization,
        requests_processing_before=counters.requests_processing if counters is not None else None,
        report=report(results, tasks=config.probe.tasks, confidence=config.evidence.confidence),
        viability=viability(
            results,
            tasks=config.probe.tasks,
            confidence=config.evidence.confidence,
            rules=board_settings(config).worth.grades,
            capture=_captured_step(watching, config),
        ),
        refused_captures=tuple(_refused(watching)),
        probes=tuple(results),
    )


def _captured_step(watching: Watcher, config: Config) -> PlainStep | None:
    if watching.captures is None:
        return None
    requests = watching.captures.plain_requests()
    return plain_step(requests, confidence=config.evidence.confidence)


def _refused(watching: Watcher) -> Iterator[str]:
    captures = watching.captures
    if captures is None:
        return
    for use, why in captures.refused().items():
        if why:
            yield f"{use.value}_capture is not used: {'; '.join(why)}"
