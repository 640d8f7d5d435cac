"""``mtpmon run``: the daemon."""

import argparse
import asyncio
from typing import Final

from mtpmon.commands import EXIT_FINE, exit_codes
from mtpmon.commands.options import add_config
from mtpmon.compose import read_config
from mtpmon.daemon import Daemon, run_until_signal
from mtpmon.log import configure_logging

SUMMARY: Final = "watch the servers and serve figures to Prometheus"
DESCRIPTION: Final = """\
Watches the servers of the configuration until it is told to stop: reads their counters,
sends them probes while they are idle, and serves the figures at /metrics and a status page
at /, by default on http://127.0.0.1:9765. It logs to standard error.

Signals: SIGTERM and SIGINT (Ctrl-C) end it; SIGHUP makes it read its configuration again."""
EPILOG: Final = """\
examples:
  mtpmon run                          watch http://127.0.0.1:8080
  mtpmon run --config mtpmon.yaml

""" + exit_codes(
    fine="told to stop, by SIGTERM or Ctrl-C",
    not_fine="a fault of mtpmon itself, with a traceback",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config(parser)


def execute(args: argparse.Namespace) -> int:
    """Run until a signal says stop.

    Raises:
        ConfigError: the configuration cannot be used.
    """
    config = read_config(args.config)
    configure_logging(config.log.level, config.log.format)
    asyncio.run(run_until_signal(Daemon(config, path=args.config)))
    return EXIT_FINE
