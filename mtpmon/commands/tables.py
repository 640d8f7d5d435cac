"""A report as tables for people."""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mtpmon.commands.terminal import printable
from mtpmon.model import ArmName, Bounded
from mtpmon.pagetext import PROBE_OUTCOMES
from mtpmon.report import (
    ALL_TASKS,
    ArmSpeed,
    Comparability,
    Emitted,
    KldRow,
    Place,
    Report,
    SequenceMatch,
    Share,
)

UNKNOWN = "–"
MOST_POSITIONS = 8

_ARMS: dict[ArmName, str] = {"target_only": "target-only", "speculating": "speculating"}
_REFERENCE_TITLE = "KLD from the captured reference"
_REFERENCE_PLACES: dict[Place, str] = {
    "next_token": "next token",
    "teacher_forced": "along its answers",
}
_PLACES: dict[Place, str] = {
    "next_token": "next token",
    "after_speculation": "after speculation",
    "both": "both",
    "teacher_forced": "teacher-forced",
}

_DEFINITIONS = {
    "draft acceptance": "draft tokens kept / draft tokens",
    "acceptance length": "tokens out of a verification step, the target's own included",
    "by draft position": "share of drafts that kept the token at position 0, 1, …; ≈ where some"
    " steps could not be told apart",
    "decode tok/s": "of one stream, without prompts, by the server's own timings; client tok/s: all"
    " tokens over all waiting",
    "speed-up": "decode tok/s of speculating over target-only, prompt by prompt, and the bounds of"
    " its mean",
    "breakeven": "the draft acceptance at which drafting would neither gain nor lose, from what"
    " steps of this pass cost; a grade is certain where its bounds have it too, else it has a ?",
    "first mismatch": "0-based place of the first token that differs; margin: the target-only"
    " server's gap between its two likeliest tokens there, near 0 for a rounding tie, which is no"
    " fault",
    "comparable": "both servers gave a distribution, after the same prefix; missing: one gave none,"
    " as llama-server does for tokens out of a draft, which says nothing good or bad; diverged: the"
    " prefixes differ",
    "KLD": "KL(target ‖ speculating) of the likeliest tokens, a lower bound of the whole; at the"
    " first token, which no draft touches; after speculation, mostly at the last one; teacher-"
    "forced: both servers without drafting, along the speculative answer",
    "reference": "KL(captured ‖ this server, without drafting) in the same way, over the prompts'"
    " next tokens and along the captured answers",
    "regret": "how much likelier the target finds its own best token than the one emitted, asked"
    " at some positions of the speculative answer",
}


def tables(report: Report) -> Iterable[RenderableType]:
    """The tables of a report, as far as there is something in them."""
    if report.failures:
        yield _failures(report)
    if report.completed:
        yield _tasks(report)
        yield _arms(report.arms, report.match)
    if report.match is not None:
        yield from _divergences(report, report.match)
    if report.comparability is not None:
        yield _comparability(report.comparability)
    if report.kld:
        yield _kld(report.kld, "KLD of distributions", _PLACES)
    if report.emitted is not None:
        yield _emitted(report.emitted)
    if report.reference:
        yield _kld(report.reference, _REFERENCE_TITLE, _REFERENCE_PLACES)


def definitions() -> RenderableType:
    """What the words in the tables mean."""
    grid = Table.grid(padding=(0, 2))
    for term, meaning in _DEFINITIONS.items():
        grid.add_row(Text(term, style="dim bold"), Text(meaning, style="dim"))
    return grid


def table(title: str, *columns: str, left: int = 1, wrapped: Sequence[int] = ()) -> Table:
    """A table whose first ``left`` columns are text and the others numbers.

    Only the columns ``wrapped`` become narrower when there is not enough room.
    """
    table = Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style="dim",
    )
    for place, column in enumerate(columns):
        table.add_column(
            column,
            justify="left" if place < left else "right",
            vertical="top",
            no_wrap=place not in wrapped,
        )
    return table


def _failures(report: Report) -> Table:
    grid = table("Probes that failed", "how", "why", "probes", left=2, wrapped=[1])
    for failure in report.failures:
        grid.add_row(
            PROBE_OUTCOMES[failure.outcome], printable(failure.detail), str(len(failure.prompt_ids))
        )
    return grid


def _tasks(report: Report) -> Table:
    grid = table(
        "By task",
        "task",
        "probes",
        "draft acceptance",
        "acceptance\nlength",
        "speculating\ntok/s",
        "target-only\ntok/s",
        "speed-up",
    )
    for row in report.tasks:
        if row.task == ALL_TASKS:
            grid.add_section()
        grid.add_row(
            row.task,
            str(row.probes),
            share(row.acceptance),
            number(row.acceptance_length, ".2f"),
            rate(row.tokens_per_second),
            rate(row.target_only_tokens_per_second),
            bounded(row.speedup, "×"),
        )
    return grid


def _arms(arms: Iterable[ArmSpeed], match: SequenceMatch | None) -> Table:
    grid = table(
        "Sequence probe",
        "server",
        "client\ntok/s",
        "decode\ntok/s",
        "draft acceptance",
        "acceptance by\ndraft position",
        "exact\nsequences",
        "token-position\nmatch",
        wrapped=[4],
    )
    for arm in arms:
        exact, tokens = UNKNOWN, UNKNOWN
        if match is not None and arm.arm == "speculating":
            exact, tokens = f"{match.exact.part}/{match.exact.whole}", share(match.tokens)
        elif arm.arm == "target_only":
            exact = tokens = "baseline"
        grid.add_row(
            _ARMS[arm.arm],
            rate(arm.client_tokens_per_second),
            rate(arm.decode_tokens_per_second),
            share(arm.acceptance),
            positions(arm.positions, exact=arm.positions_exact),
            exact,
            tokens,
        )
    return grid


def _divergences(report: Report, match: SequenceMatch) -> Iterable[RenderableType]:
    title = f"First divergences: {match.exact.part} of {match.exact.whole} sequences are exact"
    if not report.divergences:
        yield Text(title, style="bold")
        return
    grid = table(
        title,
        "prompt",
        "target-only wrote",
        "speculating wrote",
        "first\nmismatch",
        "matched\nprefix",
        "margin\nnats",
        left=3,
        wrapped=[1, 2],
    )
    for row in report.divergences:
        grid.add_row(
            row.prompt_id,
            repr(row.target_only_text),
            repr(row.speculating_text),
            str(row.position),
            str(row.matched_prefix),
            number(row.margin_nats, ".4g"),
        )
    yield grid


def _comparability(found: Comparability) -> Table:
    grid = table(
        "Positions with both distributions", "paired", "comparable", "missing", "diverged", left=0
    )
    grid.add_row(*map(str, (found.paired, found.comparable, found.missing, found.diverged)))
    return grid


def _kld(rows: Iterable[KldRow], title: str, places: Mapping[Place, str]) -> Table:
    grid = table(
        title,
        "at",
        "positions",
        "mean nats",
        "mean bits",
        "p50 nats",
        "p95 nats",
        "max nats",
        "top-1 match",
    )
    for row in rows:
        grid.add_row(
            places[row.at],
            str(row.positions),
            number(row.mean_nats, ".4g"),
            number(row.mean_bits, ".4g"),
            number(row.p50_nats, ".4g"),
            number(row.p95_nats, ".4g"),
            number(row.max_nats, ".4g"),
            f"{row.top1_match.part}/{row.top1_match.whole}",
        )
    return grid


def _emitted(found: Emitted) -> Table:
    grid = table(
        "Emitted tokens, by the target",
        "asked about",
        "its best",
        "mean regret nats",
        "p95 regret nats",
        "max regret nats",
        left=0,
    )
    grid.add_row(
        str(found.asked),
        share(found.best),
        number(found.mean_regret_nats, ".4g"),
        number(found.p95_regret_nats, ".4g"),
        number(found.max_regret_nats, ".4g"),
    )
    return grid


def share(value: Share) -> str:
    """``310/378 = 82.01%``."""
    if value.ratio is None:
        return UNKNOWN
    return f"{value.part}/{value.whole} = {value.ratio:.2%}"


def number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none."""
    return UNKNOWN if value is None else format(value, form)


def percent(value: float | None) -> str:
    """``82.0%``."""
    return number(value, ".1%")


def rate(value: float | None) -> str:
    """Tokens per second, to five digits or so."""
    return number(value, ".2f" if value is not None and value < 1000 else ".1f")


def bounded(value: Bounded | None, unit: str = "") -> str:
    """``1.31× [1.28, 1.34]``."""
    if value is None:
        return UNKNOWN
    return f"{value.value:.2f}{unit} [{value.lower:.2f}, {value.upper:.2f}]"


def positions(shares: tuple[float, ...], *, exact: bool) -> str:
    """``0.884 0.747``, marked when not exact; of a long draft the first few."""
    if not shares:
        return UNKNOWN
    said = [f"{share:.3f}" for share in shares[:MOST_POSITIONS]]
    if len(shares) > MOST_POSITIONS:  # n-gram drafts chained to the head's are up to 64 long
        said.append(f"and {len(shares) - MOST_POSITIONS} more, up to {shares[MOST_POSITIONS]:.3f}")
    return ("" if exact else "≈ ") + " ".join(said)
