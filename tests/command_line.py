"""Running the command line as its users do: as a process."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

# What Python would only warn of, such as a connection left open, counts as an error.
PYTHON = (sys.executable, "-W", "error")
COMMAND = (*PYTHON, "-m", "mtpmon")
SECONDS = 900.0  # more than any of them takes on a busy machine


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str


@asynccontextmanager
async def started(
    *arguments: str | Path, command: tuple[str, ...] = COMMAND, env: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """A running command, gone at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *command,
        *map(str, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "COLUMNS": "100", **(env or {})},
        limit=1 << 26,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ended(process: Process) -> Ran:
    """Wait for the end of a command and read the rest of what it wrote."""
    async with asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def mtpmon(*arguments: str | Path, env: Mapping[str, str] | None = None) -> Ran:
    """Run ``mtpmon`` to its end."""
    async with started(*arguments, env=env) as process:
        return await ended(process)


async def broken(sabotage: str, *arguments: str | Path) -> Ran:
    """Run ``mtpmon`` after some statements that break it."""
    program = f"import sys\n{sabotage}\nfrom mtpmon.__main__ import main\nsys.exit(main())"
    async with started(*arguments, command=(*PYTHON, "-c", program)) as process:
        return await ended(process)


async def until(condition: Callable[[], object]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def line_with(process: Process, text: str) -> str:
    """Read standard output up to the line that holds ``text``."""
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        async for line in process.stdout:
            if text in line.decode():
                return line.decode()
    raise AssertionError(f"it ended without {text!r}")
