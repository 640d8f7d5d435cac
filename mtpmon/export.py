"""Every metric, once; and a collector that turns a snapshot into samples.

The rows of servers stand in tables by what they are about: ``exportserver``, ``exportprobes``,
``exportworth``, ``exportshifts``. Names and labels are a contract: dashboards and alerts
depend on them, and ``docs/metrics.md`` is checked against these tables.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector

from mtpmon import __version__
from mtpmon.exportprobes import PROBES
from mtpmon.exportrow import UNLABELLED, Kind, Labels, Row
from mtpmon.exportserver import SERVER
from mtpmon.exportshifts import SHIFTS
from mtpmon.exportworth import WORTH
from mtpmon.record import HistoryFigures, Operation, RecordKind
from mtpmon.snapshot import ServerSnapshot, Snapshot

__all__ = ["METRICS", "OWN_METRICS", "WORTH", "BoardCollector", "render_reference"]

METRICS: tuple[Row, ...] = (*SERVER, *PROBES, *WORTH, *SHIFTS)

# Metrics of mtpmon itself, which belong to no server: name -> (type, labels, help).
OWN_METRICS: Mapping[str, tuple[Kind, Labels, str]] = {
    "mtpmon_build_info": ("info", UNLABELLED, "Version of mtpmon and of Python."),
    "mtpmon_config_last_reload_successful": (
        "gauge",
        UNLABELLED,
        "1 if the configuration was read well the last time, 0 if the one before is in use.",
    ),
    "mtpmon_server_files_last_read_successful": (
        "gauge",
        UNLABELLED,
        "1 if the files of `server_files` could be used the last time, 0 if not; the log says why.",
    ),
    "mtpmon_history_usable": (
        "gauge",
        UNLABELLED,
        "1 if the history could be used the last time, 0 if not; the log says why.",
    ),
    "mtpmon_history_bytes": ("gauge", UNLABELLED, "Size of the history on disk."),
    "mtpmon_history_errors_total": (
        "counter",
        ("operation",),
        "Operations on the history that failed, and records that could not be read.",
    ),
    "mtpmon_history_dropped_records_total": (
        "counter",
        ("record",),
        "Records given up since too many waited to be written.",
    ),
}


class BoardCollector(Collector):
    """Renders a snapshot taken at the moment of the scrape.

    Args:
        snapshot: takes it.
    """

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics that have samples."""
        snapshot = self._snapshot()
        for row in METRICS:
            family = _family(row, snapshot.servers)
            if family.samples:
                yield family
        own = InfoMetricFamily("mtpmon_build", OWN_METRICS["mtpmon_build_info"][2], labels=())
        own.add_metric((), {"version": __version__, "python": platform.python_version()})
        yield own
        name = "mtpmon_config_last_reload_successful"
        yield GaugeMetricFamily(
            name, OWN_METRICS[name][2], value=float(snapshot.config_reload_successful)
        )
        if snapshot.server_files_successful is not None:
            name = "mtpmon_server_files_last_read_successful"
            value = float(snapshot.server_files_successful)
            yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=value)
        if snapshot.history is not None:
            yield from _history(snapshot.history)


def _history(history: HistoryFigures) -> Iterator[Metric]:
    """The metrics of a history that is configured."""
    name = "mtpmon_history_usable"
    yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=float(history.usable))
    if history.size_bytes is not None:
        name = "mtpmon_history_bytes"
        yield GaugeMetricFamily(name, OWN_METRICS[name][2], value=float(history.size_bytes))
    counts = {
        "mtpmon_history_errors_total": {o.value: history.errors.get(o, 0) for o in Operation},
        "mtpmon_history_dropped_records_total": {
            kind.value: history.dropped.get(kind, 0) for kind in RecordKind
        },
    }
    for name, by_label in counts.items():
        _, labels, text = OWN_METRICS[name]
        family = CounterMetricFamily(name, text, labels=labels)
        for label, number in by_label.items():
            family.add_metric([label], number)
        yield family


def _family(row: Row, servers: Iterable[ServerSnapshot]) -> Metric:
    labels = ("server", *row.labels)
    match row.kind:
        case "info":
            info = InfoMetricFamily(row.name.removesuffix("_info"), row.help, labels=["server"])
            for server in servers:
                for values, _ in row.samples(server):
                    info.add_metric([server.name], dict(zip(row.labels, values, strict=True)))
            return info
        case "histogram":
            histogram = HistogramMetricFamily(row.name, row.help, labels=labels)
            for server in servers:
                *buckets, (_, total) = row.samples(server)
                histogram.add_metric(
                    [server.name], [(bound[0], count) for bound, count in buckets], total
                )
            return histogram
        case _:
            kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            family = kind(row.name, row.help, labels=labels)
            for server in servers:
                for values, value in row.samples(server):
                    family.add_metric([server.name, *values], value)
            return family


def render_reference() -> str:
    """Write the table of ``docs/metrics.md``."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for row in METRICS:
        labels = ", ".join(f"`{label}`" for label in ("server", *row.labels))
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    for name, (kind, own_labels, text) in OWN_METRICS.items():
        shown = "".join(f" `{label}`" for label in own_labels)
        lines.append(f"| `{name}` | {kind} |{shown} | {text} |")
    return "\n".join(lines) + "\n"
