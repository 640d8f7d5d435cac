"""Reading a configuration, and showing one.

What can be configured is in `configschema`, what contradicts what in `configchecks`, and where
secrets come from in `apikeys`; their names can be imported from here as well.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from mtpmon.apikeys import (
    Secret,
    exposed_secret_files,
    resolve_api_key,
    resolve_target_only_api_key,
)
from mtpmon.configchecks import findings, placed, server_findings, task_findings
from mtpmon.configkinds import Address, Headers
from mtpmon.configread import ConfigError, Problem, Reader, is_null, parse_tree, render_tables
from mtpmon.configschema import (
    SCHEMA,
    Config,
    Evidence,
    History,
    Listen,
    Log,
    Probe,
    Scrape,
    Server,
    Shift,
    Tls,
    Verdict,
    has_wildcard,
)
from mtpmon.duration import format_duration

__all__ = [
    "Address",
    "Config",
    "ConfigError",
    "Evidence",
    "Headers",
    "History",
    "Listen",
    "Log",
    "Probe",
    "Problem",
    "Scrape",
    "Secret",
    "Server",
    "Shift",
    "Tls",
    "Verdict",
    "check_tasks",
    "default_config",
    "exposed_secret_files",
    "has_wildcard",
    "load_config",
    "parse_config",
    "read_text",
    "render_reference",
    "resolve_api_key",
    "resolve_target_only_api_key",
    "to_public_dict",
    "with_servers",
]

MAX_FILE_BYTES = 1024 * 1024


def default_config() -> Config:
    """Give the configuration that an empty file gives."""
    return Config()


def parse_config(
    text: str, *, source: str = "config.yaml", known_tasks: Collection[str] | None = None
) -> Config:
    """Read a configuration; touches no file.

    Args:
        text: YAML; an empty document is the defaults.
        source: The file's name: heads error messages, and relative file names start at its
            directory.
        known_tasks: The names `probe.tasks` may hold; any if None, or with `probe.prompt_files`.

    Raises:
        ConfigError: With all problems, in file order.
    """
    try:
        root = parse_tree(text.removeprefix("\ufeff"))
    except ConfigError as error:
        raise ConfigError(source, error.problems) from error.__cause__
    reader = Reader(Path(source).parent)
    config = default_config()
    if root is not None and not is_null(root):
        config = reader.value(SCHEMA, root, "", config)
    if config.server_files and "servers" not in reader.positions:
        config = msgspec.structs.replace(config, servers=())
    reader.cross_check(findings(config, known_tasks))
    if reader.problems:
        raise ConfigError(source, reader.problems)
    return config


def load_config(path: Path, *, known_tasks: Collection[str] | None = None) -> Config:
    """Read a configuration file.

    Args:
        path: The file: UTF-8, at most 1 MiB.
        known_tasks: The names `probe.tasks` may hold; any if None, or with `probe.prompt_files`.

    Raises:
        ConfigError: The file cannot be read, or with all problems in it.
    """
    fix = "name a readable file, or none to watch http://127.0.0.1:8080"
    return parse_config(read_text(path, fix=fix), source=str(path), known_tasks=known_tasks)


def with_servers(config: Config, found: Iterable[tuple[str, Server]], *, source: str) -> Config:
    """Add the servers that `server_files` list.

    Args:
        config: Holds its own servers.
        found: The others, each with its place for error messages.
        source: What the file of `config` is called: heads error messages.

    Raises:
        ConfigError: With every contradiction between servers.
    """
    servers = [*placed(config), *found]
    problems = [
        Problem(path=each.path, problem=each.problem, fix=each.fix)
        for each in server_findings(servers, config.probe)
    ]
    if problems:
        raise ConfigError(source, problems)
    return msgspec.structs.replace(config, servers=tuple(server for _, server in servers))


def check_tasks(config: Config, known_tasks: Collection[str], *, source: str) -> None:
    """Refuse tasks that are not known, once own prompt files have been read.

    Args:
        config: Of which `parse_config` did not check the tasks.
        known_tasks: The names `probe.tasks` may hold.
        source: The file's name: heads error messages.

    Raises:
        ConfigError: With each of them.
    """
    problems = [
        Problem(path=found.path, problem=found.problem, fix=found.fix)
        for found in task_findings(config, known_tasks)
    ]
    if problems:
        raise ConfigError(source, problems)


def read_text(path: Path, *, fix: str) -> str:
    """Read a file of at most 1 MiB.

    Args:
        path: The file.
        fix: What to do if it cannot be read.

    Raises:
        ConfigError: It cannot be read, is too long or not UTF-8.
    """
    source = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _file_error(source, f"cannot be read: {error.strerror}", fix) from error
    if len(content) > MAX_FILE_BYTES:
        raise _file_error(source, "is larger than 1 MiB", "is this the right file?")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _file_error(source, f"is not UTF-8 on line {line}", "save it as UTF-8") from error


def _file_error(source: str, problem: str, fix: str) -> ConfigError:
    return ConfigError(source, [Problem(path="file", problem=problem, fix=fix)])


def to_public_dict(config: Config) -> dict[str, Any]:
    """Show the configuration in effect: plain data, durations with units, no secrets."""
    public = SCHEMA.public(config)
    public["scrape"]["stale_after"] = format_duration(config.scrape.stale_after_effective_seconds)
    return public


def render_reference() -> str:
    """Write the tables of ``docs/configuration.md``."""
    return render_tables(SCHEMA)
