"""Options that several commands share, and the configuration they make."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from mtpmon.compose import known_tasks, read_config
from mtpmon.config import (
    Config,
    ConfigError,
    Problem,
    Server,
    check_tasks,
    parse_config,
    to_public_dict,
)
from mtpmon.discovery import discovered
from mtpmon.suite import TASKS

SOURCE = "command line"

# Which option gave the value at a path of the configuration.
_OPTIONS = {
    "servers[0].url": "--url",
    "servers[0].target_only_url": "--target-only-url",
    "servers[0].api_key_env": "--api-key-env",
    "servers[0].target_only_api_key_env": "--target-only-api-key-env",
    "probe.tasks": "--tasks",
    "probe.tokens": "--tokens",
    "probe.top_logprobs": "--tokens",
    "probe.temperatures": "--temperatures",
    "probe.thinking": "--thinking",
    "probe.timeout": "--timeout",
    "probe.interval": "--timeout",
}


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="configuration; without it, the defaults: one server at http://127.0.0.1:8080",
    )


def add_servers(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--server``, or else ``--url`` and what belongs to it."""
    add_config(parser)
    parser.add_argument(
        "--server",
        metavar="NAME",
        action="append",
        help="only this server of the configuration; may be repeated",
    )
    parser.add_argument(
        "--url", metavar="URL", help="a server that is in no configuration, instead of --config"
    )
    parser.add_argument(
        "--target-only-url",
        metavar="URL",
        help="with --url: a second llama-server with the same model and no drafting, to compare",
    )
    parser.add_argument(
        "--api-key-env",
        metavar="VARIABLE",
        help="with --url: environment variable that holds its API key",
    )
    parser.add_argument(
        "--target-only-api-key-env",
        metavar="VARIABLE",
        help="with --target-only-url: environment variable that holds its API key",
    )


def chosen(args: argparse.Namespace) -> tuple[Config, tuple[Server, ...]]:
    """The configuration, and the servers of it that the options of ``add_servers`` name.

    Raises:
        ConfigError: the options contradict each other, or the configuration is bad.
    """
    if args.url is not None:
        for name in ("config", "server"):
            if getattr(args, name) is not None:
                raise usage(f"--{name}", "does not go with --url", "keep one of them")
        names = ("url", "target_only_url", "api_key_env", "target_only_api_key_env")
        given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
        config = _parsed({"servers": [{"name": "server", **given}]})
        return config, config.servers
    for name in ("target_only_url", "api_key_env", "target_only_api_key_env"):
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise usage(option, "needs --url", f"add --url, or write {name} in the configuration")
    config = discovered(read_config(args.config))
    if not config.servers:
        problem = "names no server: its files of servers list none at present"
        raise usage("--config", problem, "name one with --url")
    if args.server is None:
        return config, config.servers
    known = {server.name: server for server in config.servers}
    for name in args.server:
        if name not in known:
            listed = ", ".join(known)
            raise usage("--server", f"there is no server {name!r}", f"there is {listed}")
    return config, tuple(known[name] for name in dict.fromkeys(args.server))


def with_probe(
    config: Config,
    changes: Mapping[str, object],
    *,
    options: Mapping[str, str] = MappingProxyType({}),
) -> Config:
    """The configuration with some keys of ``probe`` changed, checked as in a file.

    Args:
        config: to change.
        changes: keys of ``probe`` and their values.
        options: which option gave the value at a path, where not the usual one did.

    Raises:
        ConfigError: a value is out of range or contradicts another.
    """
    if not changes:
        return config
    changed = _parsed({"probe": {**to_public_dict(config)["probe"], **changes}}, options)
    return msgspec.structs.replace(config, probe=changed.probe)


def usage(option: str, problem: str, fix: str) -> ConfigError:
    """An error in the options themselves."""
    return ConfigError(SOURCE, [Problem(path=option, problem=problem, fix=fix)])


def _parsed(tree: Mapping[str, Any], options: Mapping[str, str] = MappingProxyType({})) -> Config:
    try:
        # JSON is YAML, so what is typed is checked and refused just as in a file.
        config = parse_config(json.dumps(tree), source=SOURCE, known_tasks=TASKS)
        check_tasks(config, known_tasks(config), source=SOURCE)
    except ConfigError as error:
        problems = [
            msgspec.structs.replace(found, path=_option(found.path, options))
            for found in error.problems
        ]
        raise ConfigError(SOURCE, problems) from error
    return config


def _option(path: str, options: Mapping[str, str]) -> str:
    known = {**_OPTIONS, **options}
    return known.get(path.removesuffix("]").rstrip("0123456789").removesuffix("["), path)
