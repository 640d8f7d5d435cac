"""A real Prometheus on the loopback interface, for tests that ask it something.

A server lives as long as a ``with`` block, at most ``LIFETIME_SECONDS``. Samples come from what
it scrapes, or all at once from a text with timestamps (``history``), so that hours of figures
are there without waiting for them.
"""

import json
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from mtpmon.demo.server import free_port
from tests.programs import prometheus_server, promtool

LIFETIME_SECONDS = 600
READY_SECONDS = 60.0
STOP_SECONDS = 10.0
PORT_ATTEMPTS = 3
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
    for attempt in range(PORT_ATTEMPTS):  # another process may take a free port first
        port = free_port()
        with _process(directory, data, port, flags) as process:
            url = f"http://127.0.0.1:{port}"
            if _ready(url, process):
                yield url
                return
        log = (directory / "prometheus.log").read_text(encoding="utf-8", errors="replace")
        if "address already in use" not in log or attempt == PORT_ATTEMPTS - 1:
            raise RuntimeError(f"Prometheus was not ready\n{log[-4000:]}")


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


@contextmanager
def _process(
    directory: Path, data: Path, port: int, flags: Sequence[str]
) -> Iterator["subprocess.Popen[bytes]"]:
    """The process; gone when the block ends, and at the end of its lifetime in any case."""
    command = [
        *("timeout", "--kill-after=5", str(LIFETIME_SECONDS), prometheus_server()),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=10y",  # history may be of any time
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-lifecycle",
        *flags,
    ]
    with (
        (directory / "prometheus.log").open("wb") as log,
        # `timeout` makes a group of its own; a session makes sure of it before it has.
        subprocess.Popen(
            command, cwd=directory, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGALRM)  # to `timeout`: the lifetime is over
                process.wait()


def _ready(url: str, process: "subprocess.Popen[bytes]") -> bool:
    """Wait until it answers; false if it ended or took too long."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"{url}/-/ready", timeout=2) as reply,
        ):
            if reply.status == 200:
                return True
        time.sleep(0.05)
    return False


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
