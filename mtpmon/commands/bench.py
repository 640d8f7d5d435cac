"""``mtpmon bench``: start servers with every draft length and measure which pays."""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from mtpmon import __version__
from mtpmon.board import ServerBoard
from mtpmon.commands import EXIT_FINE, EXIT_NOT_FINE, EXIT_USAGE, exit_codes
from mtpmon.commands.options import usage, with_probe
from mtpmon.commands.passes import GIVE_UP_AFTER, look, progress_bar, side_by_side
from mtpmon.commands.tables import UNKNOWN, bounded, number, percent, rate, table
from mtpmon.commands.terminal import complain, printable, show, write
from mtpmon.compose import SYSTEM_CLOCK, board_settings, read_config, suite, watcher
from mtpmon.config import Config, Server
from mtpmon.demo.binary import ServerError, find_llama_server
from mtpmon.demo.server import LlamaServer
from mtpmon.grade import Grade
from mtpmon.model import ProbeResult
from mtpmon.suite import TASKS, Case, Prompt, rotation
from mtpmon.sweep import Depth, Sweep, sweep
from mtpmon.watch import Watcher

SCHEMA: Final = "mtpmon.bench/1"
DEEPEST: Final = 16
PROMPTS: Final = 25

SUMMARY: Final = "start servers with every draft length and measure which one pays"
DESCRIPTION: Final = f"""\
Starts one llama-server without drafting and, one after another, one for each draft length,
all with the same model on free local ports. Each answers the same prompts, in turn with the
one that does not draft. Then prints speed-up, breakeven and acceptance by draft length, which
length is fastest by task, and beside it what the server with the longest drafts alone would
have predicted for the others: that is how mtpmon advises on a server that it must not restart.

Two servers run at a time, so the model must fit twice; if it fits once for each length and
once more, --together takes the lengths in turn for each prompt, which is what to do where
the machine's speed drifts. Everything after -- goes to
llama-server as it is, such as -ngl 99 or --ctx-size 8192. Without --model the small model of
`mtpmon demo` is used, in its deeper form. {GIVE_UP_AFTER} failures in a row end a server's turn."""
EPILOG: Final = """\
examples:
  mtpmon bench
  mtpmon bench --model qwen3.5-27b-q4.gguf --draft-n-max 1-4 -- -ngl 99 -c 8192
  mtpmon bench --model m.gguf --draft-n-max 1,3,5 --tasks code,creative --json > sweep.json

""" + exit_codes(
    not_fine="a server did not start, or a probe failed",
    interrupted="interrupted by Ctrl-C",
)


class BenchDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints. Numbers that are not known are null."""

    schema: str = SCHEMA
    mtpmon: str = __version__
    unix_seconds: float
    model: str
    build: str | None
    arguments: tuple[str, ...]
    prompts: int
    tokens: int
    confidence: float
    sweep: Sweep


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="for probe, verdict and evidence settings"
    )
    parser.add_argument("--model", metavar="FILE", type=Path, help="a GGUF file with an MTP head")
    parser.add_argument(
        "--llama-server", metavar="PATH", type=Path, help="the llama-server to start"
    )
    parser.add_argument(
        "--draft-n-max",
        metavar="N,…",
        default="1-5",
        help="draft lengths to try, such as 1-5 (the default) or 1,2,4",
    )
    parser.add_argument(
        "--prompts",
        metavar="N",
        type=int,
        default=PROMPTS,
        help=f"prompts for each draft length, evenly over the tasks; {PROMPTS} by default",
    )
    parser.add_argument("--tasks", metavar="TASK,…", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--tokens", metavar="N", type=int, help="tokens to generate for a prompt")
    parser.add_argument("--timeout", metavar="DURATION", help="longest a probe may take")
    parser.add_argument(
        "--ready", metavar="SECONDS", type=float, default=300.0, help="longest a start may take"
    )
    parser.add_argument(
        "--together", action="store_true", help="run all servers at once, and take them in turn"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="of each server; its default")
    parser.add_argument("--json", action="store_true", help="print a JSON document, no tables")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", help="after --: llama-server's")


def execute(args: argparse.Namespace) -> int:
    """Measure, and print what came out.

    Raises:
        ConfigError: options or configuration cannot be used.
    """
    depths = _depths(args.draft_n_max)
    config = _changed(read_config(args.config), args)
    try:
        binary = find_llama_server(args.llama_server)
        model = args.model or _small_model()
    except (ModuleNotFoundError, ServerError) as error:
        complain(str(error))
        return EXIT_USAGE
    if not model.is_file():
        raise usage("--model", f"{model} is no file", "name a GGUF file with an MTP head")
    asked = suite(config)
    count = min(args.prompts, len(asked.prompts))
    prompts = tuple(islice(rotation(asked, config.probe.seed), count))
    bench = _Bench(
        config=config,
        binary=binary,
        model=model,
        prompts=prompts,
        arguments=tuple(args.arguments),
        # Two servers of a model so small would only be in each other's way with more.
        threads=1 if args.model is None and args.threads is None else args.threads,
        ready_seconds=args.ready,
        together=args.together or args.model is None,
    )
    try:
        document = asyncio.run(bench.document(depths))
    except ServerError as error:
        complain(printable_lines(str(error)))
        return EXIT_NOT_FINE
    if args.json:
        write(msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n")
    else:
        show(*rendered(document))
    whole = all(depth.failed == 0 and depth.probes for depth in document.sweep.depths)
    return EXIT_FINE if whole else EXIT_NOT_FINE


def printable_lines(text: str) -> str:
    """Several lines of foreign origin."""
    return "\n".join(map(printable, text.splitlines()))


def _depths(text: str) -> tuple[int, ...]:
    """``1-3,5`` → (1, 2, 3, 5)."""
    found: set[int] = set()
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            # One too many is as wrong as a million too many.
            found.update(range(int(first), min(int(last or first), DEEPEST + 1) + 1))
    except ValueError:
        found = set()
    if not found or min(found) < 1 or max(found) > DEEPEST:
        fix = f"use numbers from 1 to {DEEPEST}, such as 1-5 or 1,2,4"
        raise usage("--draft-n-max", f"{text!r} names no draft lengths", fix)
    return tuple(sorted(found))


def _changed(config: Config, args: argparse.Namespace) -> Config:
    for name in ("prompts", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise usage(f"--{name}", f"{value} is not a number of {name}", "use 1 or more")
    if not args.ready > 0:
        raise usage("--ready", f"{args.ready:g} is no length of time", "use 1 or more")
    # Log-probabilities and questions about single tokens cost time and say nothing of speed.
    changes: dict[str, object] = {"top_logprobs": 1, "forced_positions": 0}
    if args.tasks is not None:
        changes["tasks"] = args.tasks.split(",")
    if args.tokens is not None:
        changes["tokens"] = args.tokens
    if args.timeout is not None:
        changes["timeout"] = changes["interval"] = args.timeout
    return with_probe(config, changes)


def _small_model() -> Path:
    # What writes the model is installed with the extra `demo` only.
    from mtpmon.demo.model import DEEP, cached_model  # noqa: PLC0415

    return cached_model(DEEP)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bench:
    """One sweep: what to start, what to ask."""

    config: Config
    binary: Path
    model: Path
    prompts: Sequence[Prompt]
    arguments: tuple[str, ...]
    threads: int | None
    ready_seconds: float
    together: bool

    async def document(self, depths: Sequence[int]) -> BenchDocument:
        """Run it.

        Raises:
            ServerError: a server did not start.
        """
        began = SYSTEM_CLOCK.wall()
        with progress_bar() as progress:
            results, build = await self._results(depths, progress)
        return BenchDocument(
            unix_seconds=began,
            model=self.model.name,
            build=build,
            arguments=self.arguments,
            prompts=len(self.prompts),
            tokens=self.config.probe.tokens,
            confidence=self.config.evidence.confidence,
            sweep=sweep(
                results,
                rules=board_settings(self.config).worth,
                confidence=self.config.evidence.confidence,
            ),
        )

    async def _results(
        self, depths: Sequence[int], progress: Progress
    ) -> tuple[dict[int, list[ProbeResult]], str | None]:
        """The probes of each draft length, and the build that answered them."""
        results: dict[int, list[ProbeResult]] = {}
        build: str | None = None
        total = len(depths) * len(self.prompts)
        bar = progress.add_task("starting", total=total, note="")
        async with self._server(None) as plain:
            for group in [depths] if self.together else [[depth] for depth in depths]:
                lengths = ", ".join(map(str, group))
                progress.update(bar, description=f"--spec-draft-n-max {lengths}")
                async with AsyncExitStack() as stack:
                    watching = {
                        drafted: await self._started(stack, drafted, plain) for drafted in group
                    }
                    build = build or await self._build(watching[group[0]])
                    results |= await side_by_side(
                        watching,
                        [Case(prompt) for prompt in self.prompts],
                        advance=lambda _: progress.advance(bar),
                    )
        return results, build

    def _server(self, drafted: int | None) -> LlamaServer:
        return LlamaServer(
            self.binary,
            self.model,
            speculate=drafted is not None,
            draft_n_max=drafted or 1,
            threads=self.threads,
            extra_args=self.arguments,
            ready_seconds=self.ready_seconds,
        )

    async def _started(self, stack: AsyncExitStack, drafted: int, plain: LlamaServer) -> Watcher:
        """A server that drafts so many tokens, and what asks it."""
        speculating = await stack.enter_async_context(self._server(drafted))
        server = Server(name="bench", url=speculating.url, target_only_url=plain.url)
        board = ServerBoard(server.name, board_settings(self.config), paired=True)
        watching = watcher(self.config, server, board, SYSTEM_CLOCK)
        stack.push_async_callback(watching.arms.close)
        return watching

    async def _build(self, watching: Watcher) -> str | None:
        found = await look(self.config, watching.arms.speculating)
        return found.props.build if found.props is not None else None


# --- saying -------------------------------------------------------------------------------


def rendered(document: BenchDocument) -> Iterator[RenderableType]:
    """What people are shown."""
    found = document.sweep
    build = f", build {document.build}" if document.build else ""
    yield Text(printable(f"{document.model}{build}"), style="bold")
    yield Text(
        f"{document.prompts} prompts of {document.tokens} tokens for each draft length, greedy,"
        " one request at a time"
    )
    yield ""
    yield _by_length(found)
    yield ""
    if found.by_task:
        yield _by_task(found)
        yield ""
    yield Text("\n".join(_words(found)))
    failed = sum(depth.failed for depth in found.depths)
    if failed:
        yield Text(f"{failed} probes failed and are in no figure", style="bold")


def _by_length(found: Sweep) -> Table:
    longest = found.depths[-1].drafted
    grid = table(
        "By --spec-draft-n-max",
        "n",
        "accept-\nance",
        "accept.\nlength",
        "step\ncost",
        "break-\neven",
        "tok/s",
        "speed-up\nmeasured",
        f"pre-\ndicted\nfrom {longest}",
        "off by",
    )
    for depth in found.depths:
        seen = depth.predicted
        grid.add_row(
            str(depth.drafted),
            percent(depth.figures.acceptance),
            number(depth.figures.acceptance_length, ".2f"),
            number(depth.step_ratio.value if depth.step_ratio else None, ".2f"),
            _breakeven(depth),
            rate(depth.figures.tokens_per_second),
            bounded(depth.speedup, "×"),
            number(seen.speedup if seen else None, ".2f") + ("×" if seen else ""),
            number(seen.error if seen else None, "+.1%"),
        )
    return grid


def _breakeven(depth: Depth) -> str:
    if depth.breakeven is not None and depth.breakeven.value > 1:
        return "none"  # not even if all were kept
    return percent(depth.breakeven.value if depth.breakeven is not None else None)


def _by_task(found: Sweep) -> Table:
    names = [str(depth.drafted) for depth in found.depths]
    grid = table("Speed-up by task and draft length", "task", *names, "fastest", "grade there")
    for task, best in found.by_task.items():
        at_best = next((d for d in found.depths if d.drafted == best), None)
        graded = at_best.grades.get(task) if at_best is not None else None
        grid.add_row(
            task,
            *(_task_speedup(depth, task) for depth in found.depths),
            str(best) if best else "no drafting",
            graded.grade.value.replace("_", " ") if graded else _plain_grade(best),
        )
    return grid


def _plain_grade(best: int) -> str:
    return Grade.NOT_RECOMMENDED.value.replace("_", " ") if best == 0 else UNKNOWN


def _task_speedup(depth: Depth, task: str) -> str:
    figures = depth.tasks.get(task)
    speedup = figures.speedup if figures is not None else None
    return f"{speedup.value:.2f}×" if speedup is not None else UNKNOWN


def _words(found: Sweep) -> Iterator[str]:
    if found.best is None:
        yield "Too few prompts completed to tell which draft length is fastest."
        return
    what = f"--spec-draft-n-max {found.best}" if found.best else "no drafting"
    others = [str(depth) if depth else "no drafting" for depth in found.as_good]
    others.remove(str(found.best) if found.best else "no drafting")
    yield f"Measured fastest: {what}" + (
        f"; not told apart from it: {', '.join(others)}." if others else "."
    )
    if found.named is not None:
        same = "too" if found.named == found.best else "instead"
        named = str(found.named) if found.named else "no drafting"
        yield f"From {found.depths[-1].drafted} alone, {named} looked fastest {same}."
    if found.words is not None:
        yield f"Its advice: {found.words}."
