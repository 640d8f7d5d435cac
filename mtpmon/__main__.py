"""The command line: ``mtpmon COMMAND``."""

import argparse
import io
import sys
from collections.abc import Sequence

from mtpmon import __version__
from mtpmon.commands import (
    EXIT_INTERRUPTED,
    EXIT_OUTPUT_CLOSED,
    EXIT_USAGE,
    bench,
    capture,
    check,
    demo,
    doctor,
    probe,
    report,
    run,
)
from mtpmon.commands.terminal import OutputClosed, abandon_stdout, complain
from mtpmon.config import ConfigError

_EPILOG = """\
start here:
  mtpmon demo                              see it work, on a small model of its own
  mtpmon doctor --url http://HOST:8080     what can be measured on your server
  mtpmon probe --url http://HOST:8080      measure it once
  mtpmon run --config mtpmon.yaml          watch it, with figures for Prometheus
  mtpmon bench --model FILE                which draft length is fastest, before you settle on one

exit codes: 0 fine, 1 what was looked at is not fine, 2 wrong usage or configuration"""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    root = argparse.ArgumentParser(
        prog="mtpmon",
        description="Monitors llama-server with multi-token-prediction (MTP) drafting: does MTP"
        " pay on your traffic, and did it change what the model says?",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"mtpmon {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (run, check, probe, capture, bench, report, doctor, demo):
        name = module.__name__.rpartition(".")[2]
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(command)
        command.set_defaults(execute=module.execute)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    What nobody expected is not caught: it ends the process with a traceback.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a model wrote may hold characters that this terminal cannot show.
            stream.reconfigure(errors="backslashreplace")
    try:
        args = parser().parse_args(arguments)
        return int(args.execute(args))
    except ConfigError as error:
        complain(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OutputClosed:
        return EXIT_OUTPUT_CLOSED
    finally:
        _flush()


def _flush() -> None:
    """Write out what ``--help`` left in the buffer, here and not in the interpreter's end."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()


if __name__ == "__main__":
    sys.exit(main())
