"""A real Prometheus on the loopback interface, for tests that ask it something.

A server lives as long as a ``with`` block, at most ten minutes. Samples come from what
it scrapes, or all at once from a text with timestamps (``history``), so that hours of figures
are there without waiting for them.
"""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.listening import listening
from tests.programs import prometheus_server, promtool

READY_SECONDS = 60.0
SCRAPES_NOTHING = "scrape_configs: []\n"


class QueryError(Exception):
    """Prometheus refused a query; the message is its own."""


class Series(NamedTuple):
    """One series of an answer: its labels, and ``(Unix seconds, value)`` in order of time."""

    labels: dict[str, str]
    points: list[tuple[float, float]]

    @property
    def value(self) -> float:
        """The last value."""
        return self.points[-1][1]


@contextmanager
def prometheus(
    config: str, directory: Path, *, history: str = "", flags: Sequence[str] = ()
) -> Iterator[str]:
    """A running, ready Prometheus; the value is its base URL without a slash at the end.

    Args:
        config: text of its configuration file.
        directory: an empty one of its own; files that ``config`` names may already be in it.
        history: OpenMetrics text with timestamps, loaded before the start.
        flags: appended to the command line.

    Raises:
        RuntimeError: it does not start; the message ends with its log.
    """
    (directory / "prometheus.yml").write_text(config, encoding="utf-8")
    data = directory / "data"
    if history:
        load(history, directory, data)

    def command(address: str) -> list[str]:
        return [
            prometheus_server(),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=10y",  # history may be of any time
            f"--web.listen-address={address}",
            "--web.enable-lifecycle",
            *flags,
        ]

    log = directory / "prometheus.log"
    with listening(
        "Prometheus", command, directory, log=log, ready_seconds=READY_SECONDS
    ) as address:
        yield f"http://{address}"


def load(history: str, directory: Path, data: Path) -> None:
    """Make blocks of a text with timestamps."""
    text = directory / "history.txt"
    text.write_text(history, encoding="utf-8")
    command = [promtool(), "tsdb", "create-blocks-from", "openmetrics", "--quiet"]
    done = subprocess.run(
        [*command, str(text), str(data)], capture_output=True, check=False, timeout=120
    )
    if done.returncode != 0:
        raise RuntimeError(f"history was refused: {done.stderr.decode()}")


def fetch(url: str, **parameters: str) -> Any:
    """The ``data`` of an answer of Prometheus' API.

    Raises:
        QueryError: the query is not well-formed or cannot be executed.
    """
    encoded = urllib.parse.urlencode(parameters)
    try:
        with urllib.request.urlopen(f"{url}?{encoded}", timeout=30) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        with error:
            raise QueryError(json.load(error)["error"]) from None


def query(url: str, expr: str, at: float | None = None) -> list[Series]:
    """What an expression is worth.

    Args:
        url: base URL of the server.
        expr: PromQL; a scalar comes back as a series without labels.
        at: Unix seconds; by default now.

    Raises:
        QueryError: as for ``fetch``.
    """
    when = {} if at is None else {"time": repr(at)}
    found = fetch(f"{url}/api/v1/query", query=expr, **when)
    if found["resultType"] == "scalar":
        return [_series({}, [found["result"]])]
    return [_series(each["metric"], [each["value"]]) for each in found["result"]]


def query_range(
    url: str, expr: str, *, start: float, end: float, step_seconds: float
) -> list[Series]:
    """What an expression is worth over time, in Unix seconds.

    Raises:
        QueryError: as for ``fetch``.
    """
    found = fetch(
        f"{url}/api/v1/query_range",
        query=expr,
        start=repr(start),
        end=repr(end),
        step=repr(step_seconds),
    )
    return [_series(each["metric"], each["values"]) for each in found["result"]]


def _series(labels: dict[str, str], points: Sequence[tuple[float, str]]) -> Series:
    return Series(labels, [(float(when), float(value)) for when, value in points])
