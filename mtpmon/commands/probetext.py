"""What a pass of ``mtpmon probe`` comes to: a document, and its text for people."""

from collections.abc import Iterator
from typing import Final

import msgspec
from rich.console import RenderableType
from rich.text import Text

from mtpmon import __version__
from mtpmon.commands.matrix import viability_table
from mtpmon.commands.tables import definitions, percent, tables
from mtpmon.commands.terminal import printable
from mtpmon.model import Baseline, ProbeResult, Variant
from mtpmon.report import Report
from mtpmon.suite import DEFAULT_VARIANT
from mtpmon.viability import Viability

SCHEMA: Final = "mtpmon.probe/1"


class ServerDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One server of the JSON document."""

    name: str
    url: str
    target_only_url: str | None
    build: str | None
    model: str | None
    quantization: str | None
    requests_processing_before: int | None
    report: Report
    viability: Viability = Viability()
    refused_captures: tuple[str, ...] = ()
    probes: tuple[ProbeResult, ...]


class ProbeDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints. Numbers that are not known are null, never NaN."""

    schema: str = SCHEMA
    mtpmon: str = __version__
    unix_seconds: float
    prompts: int
    tasks: tuple[str, ...]
    variants: tuple[Variant, ...] = (DEFAULT_VARIANT,)
    tokens: int
    top_logprobs: int
    seed: int
    confidence: float
    servers: tuple[ServerDocument, ...]


def rendered(document: ProbeDocument) -> Iterator[RenderableType]:
    """All of it, server by server, and what the words mean."""
    for server in document.servers:
        yield Text(_heading(server), style="bold")
        yield Text("\n".join(_remarks(document, server)))
        for table in tables(server.report):
            yield ""
            yield table
        if server.viability.cells:
            yield ""
            yield viability_table(server.viability)
        yield ""
    if any(server.report.completed for server in document.servers):
        yield definitions()


def _heading(server: ServerDocument) -> str:
    pair = f" against {server.target_only_url}" if server.target_only_url else ""
    return f"{server.name}: {server.url}{pair}"


def _remarks(document: ProbeDocument, server: ServerDocument) -> Iterator[str]:
    wanted = document.prompts * len(document.variants)
    known = [server.model, server.quantization, server.build and f"build {server.build}"]
    if any(known):
        yield printable(", ".join(part for part in known if part))
    yield (
        f"{server.report.completed} of {wanted} probes completed,"
        f" up to {document.tokens} tokens each"
    )
    if server.requests_processing_before:
        yield (
            f"{server.requests_processing_before} other requests were running at the start:"
            " figures of speed are those of a busy server"
        )
    yield from map(printable, server.refused_captures)
    overall = server.viability.overall
    if overall is not None and server.viability.below_breakeven:
        reach = f"it pays from {percent(overall.breakeven.value)} on"
        if overall.breakeven.value > 1:
            reach = "and if all were it would not pay: steps cost too much"
        kept = percent(overall.acceptance.value)
        yield f"drafting is below breakeven: {kept} of its tokens are kept, {reach}"
    baselines = {probe.baseline for probe in server.probes}
    if server.report.tasks and not server.report.tasks[-1].acceptance.whole:
        yield "it drafted nothing: see `mtpmon doctor`"
    elif Baseline.CAPTURE in baselines:
        yield "compared with what it said without drafting, as captured: no speed-up"
    elif server.target_only_url is None and server.report.match is not None:
        yield "compared with itself, drafting switched off by request"
    elif server.target_only_url is None:
        yield "no target-only server to compare with: no speed-up, no exact sequences"
