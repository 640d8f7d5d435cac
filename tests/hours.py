"""Two hours of mtpmon's own /metrics, as a Prometheus that scraped it would have kept them.

A busy server with probes, restarted once and idle for a while; one that never answers; one
that was never looked at. All figures come out of real boards; what only Prometheus itself or
the process would add is added here.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.exposition import generate_latest

from mtpmon.board import Board, ServerBoard
from mtpmon.model import Outcome, Props
from tests.test_board import OWN, SETTINGS, failed, scrape
from tests.test_export import HISTORY, board_registry, probed

BEGIN = 1_700_000_000.0  # Unix time
SECONDS = 7200.0
STEP_SECONDS = 30.0
END = BEGIN + SECONDS
RESTARTED = 3600.0
IDLE = (4500.0, 5400.0)
# What a request of 10 drafts of 3 tokens keeps at each position, and from when on.
Kept = tuple[int, ...]
NONE: Kept = (0, 0, 0)
PAYS, COSTS, BALANCED = (7, 3, 0), (1, 0, 0), (2, 1, 0)
PHASES = ((0.0, PAYS), (5400.0, COSTS), (6300.0, BALANCED))
OWN_KEPT = OWN.accepted_by_position or ()  # of a probe's request
BUSY = "all"
TARGET = {"job": "mtpmon", "instance": "127.0.0.1:9765"}

_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


def history() -> str:
    """OpenMetrics text with timestamps."""
    lines: Mapping[str, list[str]] = defaultdict(list)
    for now, text in _readings():
        for sample in text.splitlines():
            if sample and not sample.startswith("#"):
                found = _SAMPLE.fullmatch(sample)
                assert found, sample
                labels = [found["labels"]] if found["labels"] else []
                labels += [f'{name}="{value}"' for name, value in TARGET.items()]
                series = f"{found['name']}{{{','.join(labels)}}}"
                lines[series].append(f"{series} {found['value']} {now}")
    return "\n".join(line for series in lines.values() for line in series) + "\n# EOF\n"


def _readings() -> Iterator[tuple[float, str]]:
    """Unix time and exposition, scrape by scrape."""
    busy = ServerBoard(BUSY, SETTINGS, paired=True)
    gone = ServerBoard("gone", SETTINGS, probed=False)
    board = Board([busy, gone, ServerBoard("unseen", SETTINGS)], SETTINGS.windows_seconds)
    busy.captures_checked({"reference": True, "baseline": False})
    now = 0.0
    registry = board_registry(
        lambda: board.snapshot(
            monotonic_seconds=now,
            unix_seconds=BEGIN + now,
            server_files_successful=True,
            history=HISTORY,
        )
    )
    requests, kept = 0, NONE
    for count in range(int(SECONDS / STEP_SECONDS)):
        now = count * STEP_SECONDS
        if now == RESTARTED:
            requests, kept = 0, NONE
        elif not IDLE[0] <= now < IDLE[1]:
            requests += 5
            mix = [each for begin, each in PHASES if begin <= now][-1]
            kept = _plus(kept, mix, 5)
        if count % 4 == 3:
            busy.probe_request_began()
            busy.probe_request_ended(OWN)
            requests, kept = requests + 1, _plus(kept, OWN_KEPT, 1)
        looked = scrape(now, requests, kept=kept, token="t" if now < RESTARTED else "u")
        props = Props(
            build="b1" if now < RESTARTED else "b2",
            model="m",
            quantization="Q4_K_M",
            context_tokens=4096,
            slots=1,
        )
        busy.scraped(msgspec.structs.replace(looked, unix_seconds=BEGIN + now, props=props))
        gone.scraped(
            msgspec.structs.replace(failed(now, Outcome.REFUSED), unix_seconds=BEGIN + now)
        )
        if count % 4 == 3:
            diverged = 3 if count % 8 == 3 else None
            found = probed(0.5 + count % 3 * 0.01, diverged)
            busy.probed(msgspec.structs.replace(found, unix_seconds=BEGIN + now))
        lines = generate_latest(registry).decode().splitlines()
        # Changes are made up below: a board would need hours of its own to find one.
        own = [line for line in lines if "_shift" not in line]
        yield BEGIN + now, "\n".join(own) + "\n" + _added(now)


def _plus(totals: Kept, mix: Kept, times: int) -> Kept:
    return tuple(total + times * each for total, each in zip(totals, mix, strict=True))


def _added(now: float) -> str:
    """What no board here has: the process, alerts, and changes that were detected."""
    text = [f"process_cpu_seconds_total {now / 100}", "process_resident_memory_bytes 5e+07"]
    if now > RESTARTED:
        firing = (
            f'alertname="MtpmonAcceptanceBelowBreakeven",server="{BUSY}"',
            'alertname="MtpmonConfigReloadFailed"',
        )
        text += [f'ALERTS{{{labels},alertstate="firing"}} 1' for labels in firing]
    for figure in ("acceptance", "decode_speed", "kld"):
        name = f"mtpmon_{figure}_shift"
        labels = f'{{server="{BUSY}",direction="fall"}}'
        began = BEGIN + RESTARTED
        if now > RESTARTED:
            text.append(f"{name}{labels} 1")
            text.append(f"{name}_start_timestamp_seconds{labels} {began}")
        total = f'mtpmon_shifts_total{{server="{BUSY}",figure="{figure}",direction="fall"}}'
        text.append(f"{total} {int(now > RESTARTED)}")
    return "\n".join(text) + "\n"
