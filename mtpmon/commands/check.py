"""``mtpmon check``: is a configuration fine?"""

import argparse
from collections.abc import Iterable
from typing import Final

from mtpmon.apikeys import (
    exposed_secret_files,
    resolve_api_key,
    resolve_target_only_api_key,
)
from mtpmon.commands import EXIT_FINE, exit_codes
from mtpmon.commands.options import add_config
from mtpmon.commands.terminal import complain, write
from mtpmon.compose import captures, read_config, ssl_context, suite, ways
from mtpmon.config import (
    Config,
    ConfigError,
    Problem,
    Server,
)
from mtpmon.discovery import discovered
from mtpmon.duration import format_duration
from mtpmon.suite import coverage

SUMMARY: Final = "validate a configuration, starting nothing"
DESCRIPTION: Final = """\
Reads a configuration as `mtpmon run` would, with the keys, certificates, prompts, captures and
files of servers it names, and lists everything that is wrong with it. It contacts no server:
see `mtpmon doctor`."""
EPILOG: Final = """\
examples:
  mtpmon check --config mtpmon.yaml
  mtpmon check --config mtpmon.yaml && systemctl reload mtpmon

""" + exit_codes()


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config(parser)


def execute(args: argparse.Namespace) -> int:
    """Check the configuration.

    Raises:
        ConfigError: with all that is wrong.
    """
    source = str(args.config) if args.config is not None else "the default configuration"
    config = discovered(read_config(args.config))
    problems = list(_file_problems(config))
    if problems:
        raise ConfigError(source, problems)
    for problem in exposed_secret_files(config):
        complain(f"warning: {problem}")
    count = len(config.servers)
    lines = [f"{source} is fine: {count} server{'' if count == 1 else 's'}"]
    lines += [f"  {_described(config, server)}" for server in config.servers]
    write("\n".join(lines) + "\n")
    return EXIT_FINE


def _file_problems(config: Config) -> Iterable[Problem]:
    for server in config.servers:
        for resolve in (resolve_api_key, resolve_target_only_api_key, ssl_context):
            try:
                resolve(server)
            except ConfigError as error:
                yield from error.problems
        try:
            captures(config, server)
        except ConfigError as error:
            yield from error.problems


def _described(config: Config, server: Server) -> str:
    pair = f" with {server.target_only_url} to compare" if server.target_only_url else ""
    every = "not probed"
    if config.probe.enabled and server.probe:
        every = f"probed every {format_duration(config.probe.interval_seconds)}, {_extent(config)}"
    return f"{server.name}: {server.url}{pair}, {every}"


def _extent(config: Config) -> str:
    """What there is to ask, and how long it takes at best to ask it all."""
    asked, how = suite(config), ways(config)
    span = format_duration(coverage(asked, how, config.probe.interval_seconds))
    variants = f" in {len(how)} ways" if len(how) > 1 else ""
    return f"{len(asked.prompts)} prompts{variants} in {span}"
