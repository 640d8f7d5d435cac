"""The text Prometheus reads."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import (
    text_string_to_metric_families as plain_families,
)

from mtpmon.board import Board, ServerBoard
from mtpmon.export import METRICS, OWN_METRICS, BoardCollector
from mtpmon.model import (
    Baseline,
    Completion,
    Counters,
    ForcedToken,
    Outcome,
    ProbeResult,
    Scrape,
    State,
    Step,
    StepStream,
    Timings,
)
from mtpmon.record import HistoryFigures, Operation, RecordKind
from mtpmon.snapshot import Snapshot
from tests.programs import metrics_complaints
from tests.shifting import shifted
from tests.test_board import OWN, SETTINGS, failed, result, scrape

HISTORY = HistoryFigures(
    usable=True, size_bytes=40960, errors={Operation.READ: 1}, dropped={RecordKind.ROLLUP: 2}
)
GOLDEN = Path(__file__).parent / "data" / "metrics.txt"


def completion(seconds: float, *, drafted: bool) -> Completion:
    steps: tuple[Step, ...] = (Step(0, 0, seconds / 40),) * 40
    if drafted:
        steps = (Step(3, 2, seconds / 16), Step(3, 1, seconds / 16)) * 8
    return Completion(
        positions=(),
        timings=Timings(
            prompt_tokens=5,
            prompt_seconds=0.1,
            cached_tokens=0,
            generated_tokens=41,
            generation_seconds=seconds,
            draft_tokens=48 if drafted else None,
            accepted_tokens=24 if drafted else None,
        ),
        stream=StepStream(steps=steps),
        wall_seconds=seconds,
    )


def probed(seconds: float, first: int | None = None) -> ProbeResult:
    base = msgspec.structs.replace(result(first=first), prompt_id=f"p{seconds}")
    return ProbeResult(
        **{
            **{name: getattr(base, name) for name in base.__struct_fields__},
            "speculating": completion(seconds, drafted=True),
            "target_only": completion(2 * seconds, drafted=False),
            "teacher_forced": base.after_speculation,
            "forced": (ForcedToken(index=1, logprob=-0.5, rank=0, regret_nats=0.0),),
            "baseline": Baseline.PAIR,
            "reference_next_token": base.next_token,
            "reference_forced": base.after_speculation,
        }
    )


def full_board() -> Board:
    """One server with everything, one never looked at, one that does not answer."""
    everything = ServerBoard("all", SETTINGS, paired=True)
    everything.scraped(scrape(0, 0))
    everything.probe_request_began()
    everything.probe_request_ended(OWN)
    everything.scraped(scrape(2, 1))
    for seconds, first in ((0.5, None), (0.4, 3), (0.6, None)):
        everything.probed(probed(seconds, first))
    everything.scraped(scrape(5, 4))
    everything._shifts = shifted()
    everything.captures_checked({"reference": True, "baseline": False})
    unknown = ServerBoard('quo"ted', SETTINGS, probed=False)
    gone = ServerBoard("gone", SETTINGS, probed=False)
    gone.scraped(failed(1, Outcome.REFUSED))
    return Board([everything, unknown, gone], SETTINGS.windows_seconds)


def board_registry(snapshot: Callable[[], Snapshot]) -> CollectorRegistry:
    found = CollectorRegistry(auto_describe=False)
    found.register(BoardCollector(snapshot))
    return found


def registry(board: Board) -> CollectorRegistry:
    return board_registry(
        lambda: board.snapshot(
            monotonic_seconds=6, unix_seconds=2000, server_files_successful=True, history=HISTORY
        )
    )


def text(board: Board) -> str:
    """The exposition, to nine digits: the last ones differ between processors."""
    found = re.sub(r'python="[^"]*"', 'python="*"', generate_latest(registry(board)).decode())
    return re.sub(r"(?<= )-?\d+\.\d{9,}\S*$", _nine_digits, found, flags=re.MULTILINE)


def _nine_digits(number: re.Match[str]) -> str:
    return f"{float(number[0]):.9g}"


def test_the_whole_text_is_as_recorded() -> None:
    """Every metric, label and value, byte for byte."""
    assert text(full_board()) == GOLDEN.read_text()


def test_promtool_has_no_complaint() -> None:
    """Names, units, help texts and types pass Prometheus' own linter."""
    assert metrics_complaints(text(full_board())) == ""


def test_openmetrics_is_well_formed() -> None:
    """The negotiated format parses, and holds the same samples."""
    encoder, content_type = choose_encoder("application/openmetrics-text; version=1.0.0")
    assert "openmetrics" in content_type
    families = list(  # the parser has no types
        openmetrics_families(encoder(registry(full_board())).decode())  # type: ignore[no-untyped-call]
    )
    samples = {(s.name, tuple(sorted(s.labels.items()))) for f in families for s in f.samples}
    plain = {
        (s.name, tuple(sorted(s.labels.items())))
        for f in plain_families(text(full_board()))
        for s in f.samples
    }
    assert {name for name, _ in plain} == {name for name, _ in samples}


def test_every_row_appears_and_nothing_else() -> None:
    """The table is the whole truth about names."""
    shown = set(re.findall(r"^# TYPE (\S+)", text(full_board()), re.MULTILINE))
    assert shown == {row.name for row in METRICS} | set(OWN_METRICS)


def test_names_follow_the_rules() -> None:
    """One prefix, base units last, ``_total`` on counters and on nothing else."""
    for row in METRICS:
        assert re.fullmatch(r"mtpmon_[a-z0-9_]+", row.name)
        assert row.name.endswith("_total") == (row.kind == "counter")
        assert row.name.endswith("_info") == (row.kind == "info")
        assert row.help.endswith(".")
    assert len({row.name for row in METRICS}) == len(METRICS)


def test_unknown_is_no_sample() -> None:
    """A server never looked at has no state, no up, no figures, only counts of 0."""
    lines = [line for line in text(full_board()).splitlines() if 'server="quo\\"ted"' in line]
    assert lines
    assert all(line.endswith(" 0.0") for line in lines)
    assert not any(line.startswith(("mtpmon_up", "mtpmon_server_state")) for line in lines)


def test_a_state_is_one_hot() -> None:
    """All states are there, one of them is 1."""
    values = re.findall(
        r'mtpmon_server_state\{server="gone",state="(\w+)"\} (\S+)', text(full_board())
    )
    assert dict(values) == {
        state.value: "1.0" if state is State.UNREACHABLE else "0.0" for state in State
    }


def test_no_figure_is_not_a_number() -> None:
    """Neither NaN nor an infinity is ever a value."""
    server = ServerBoard("a", SETTINGS)
    server.scraped(scrape(0, 0))
    empty = Scrape(
        monotonic_seconds=5,
        unix_seconds=5,
        duration_seconds=math.nan,
        outcome=Outcome.OK,
        counters=Counters(),
    )
    server.scraped(empty)
    found = text(Board([server], SETTINGS.windows_seconds))
    assert "NaN" not in found
    assert not re.search(r" [+-]?Inf$", found, re.MULTILINE)


@pytest.mark.parametrize("successful", [True, False])
def test_a_failed_reload_shows(successful: bool) -> None:
    """So that an alert can tell that an old configuration is in use."""
    board = Board([], (60.0,))
    found = board_registry(
        lambda: board.snapshot(
            monotonic_seconds=0, unix_seconds=0, config_reload_successful=successful
        )
    )
    assert found.get_sample_value("mtpmon_config_last_reload_successful") == successful


@pytest.mark.parametrize("successful", [True, False, None])
def test_files_of_servers_that_are_not_in_use_show(successful: bool | None) -> None:
    """So that an alert can tell; without such files there is no sample."""
    found = CollectorRegistry(auto_describe=False)
    found.register(
        BoardCollector(
            lambda: Board([], (60.0,)).snapshot(
                monotonic_seconds=0, unix_seconds=0, server_files_successful=successful
            )
        )
    )
    assert found.get_sample_value("mtpmon_server_files_last_read_successful") == successful


def test_a_history_that_cannot_be_used_has_no_size() -> None:
    """Its other metrics say so."""
    board = Board([], (60.0,))
    unusable = msgspec.structs.replace(HISTORY, usable=False, size_bytes=None)
    found = board_registry(
        lambda: board.snapshot(monotonic_seconds=0, unix_seconds=0, history=unusable)
    )
    assert found.get_sample_value("mtpmon_history_usable") == 0
    assert found.get_sample_value("mtpmon_history_bytes") is None


def test_without_a_plain_step_the_others_have_their_cost() -> None:
    """One server alone, and no step of it undrafted: length 3, and no length 0."""
    alone = ServerBoard("alone", SETTINGS)
    for seconds in (0.5, 0.4, 0.6):
        single = msgspec.structs.replace(probed(seconds), target_only=None, comparison=None)
        alone.probed(single)
    lines = text(Board([alone], SETTINGS.windows_seconds))
    assert 'mtpmon_step_seconds{draft_tokens="3",server="alone"}' in lines
    assert 'mtpmon_step_seconds{draft_tokens="0",server="alone"}' not in lines
