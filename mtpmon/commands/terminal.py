"""Standard output: text and tables, for terminals, files and pipes that close early."""

import os
import sys

from rich.console import Console, RenderableType

PIPED_WIDTH = 100  # columns where no terminal says otherwise


class OutputClosed(Exception):  # noqa: N818  nobody's fault
    """Whoever read our standard output has gone."""


def write(text: str) -> None:
    """Write ``text`` to standard output.

    Raises:
        OutputClosed: nobody reads it any more.
    """
    try:
        print(text, end="", flush=True)  # noqa: T201
    except BrokenPipeError as error:
        abandon_stdout()
        raise OutputClosed from error


def complain(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr)  # noqa: T201


def abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that the interpreter's last flush succeeds."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
    os.close(sink)


def console() -> Console:
    """A console as wide and as colourful as standard output can be."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None, highlight=False, markup=False)


def show(*renderables: RenderableType) -> None:
    """Write tables and texts to standard output.

    Raises:
        OutputClosed: nobody reads it any more.
    """
    out = console()
    with out.capture() as captured:
        for renderable in renderables:
            out.print(renderable)
    # Tables are padded to their width, which only matters in front of a coloured background.
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def printable(text: str) -> str:
    """``text`` of foreign origin, with whatever could steer a terminal spelt out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
