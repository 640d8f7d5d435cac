"""Programs of others that listen on the loopback interface while a test needs them."""

import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from mtpmon.demo.server import free_port

LIFETIME_SECONDS = 600
STOP_SECONDS = 10.0
PORT_ATTEMPTS = 3


@contextmanager
def listening(
    name: str,
    command: Callable[[str], Sequence[str]],
    directory: Path,
    *,
    log: Path,
    ready_seconds: float,
) -> Iterator[str]:
    """A running program that says on ``/-/ready`` that it is ready; its host and port.

    It lives as long as the block, at most ``LIFETIME_SECONDS``.

    Args:
        name: for messages.
        command: its command line, given the address to listen on.
        directory: to run in.
        log: what it prints goes there.
        ready_seconds: how long a start may take.

    Raises:
        RuntimeError: it does not start; the message ends with its log.
    """
    for attempt in range(PORT_ATTEMPTS):  # another process may take a free port first
        address = f"127.0.0.1:{free_port()}"
        with _process(command(address), directory, log) as process:
            if _ready(f"http://{address}", process, ready_seconds):
                yield address
                return
        text = log.read_text(encoding="utf-8", errors="replace")
        if "address already in use" not in text or attempt == PORT_ATTEMPTS - 1:
            raise RuntimeError(f"{name} was not ready\n{text[-4000:]}")


@contextmanager
def _process(
    command: Sequence[str], directory: Path, log_path: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """The process; gone when the block ends, and at the end of its lifetime in any case."""
    limited = [*("timeout", "--kill-after=5", str(LIFETIME_SECONDS)), *command]
    with (
        log_path.open("wb") as log,
        # `timeout` makes a group of its own; a session makes sure of it before it has.
        subprocess.Popen(
            limited, cwd=directory, stdout=log, stderr=log, start_new_session=True
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


def _ready(url: str, process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait until it answers; false if it ended or took too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with (
            suppress(OSError),
            urllib.request.urlopen(f"{url}/-/ready", timeout=2) as reply,
        ):
            if reply.status == 200:
                return True
        time.sleep(0.05)
    return False
