"""Secrets: read from where a configuration says they are, kept out of logs.

A `Config` holds no secret; what is read here goes into requests and nowhere else.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from mtpmon.configread import ConfigError, Problem, RefusalError
from mtpmon.configschema import Config, Server

_MAX_SECRET_BYTES = 16 * 1024


class Secret:
    """Text that does not show itself in logs and tracebacks."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Wrap `text`."""
        self._text = text

    def reveal(self) -> str:
        """Give the text, to be sent and not kept."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        """Whether it is the same text: a changed key must be noticed."""
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def resolve_api_key(
    server: Server, *, environment: Mapping[str, str] = os.environ
) -> Secret | None:
    """Read the API key of a server's `url`.

    Args:
        server: Says where the key is.
        environment: Where variables are looked up.

    Returns:
        The key, None if the server has none.

    Raises:
        ConfigError: The variable or file does not hold one line that fits an HTTP header.
    """
    return _resolve(server, "api_key", environment)


def resolve_target_only_api_key(
    server: Server, *, environment: Mapping[str, str] = os.environ
) -> Secret | None:
    """Read the API key of a server's `target_only_url`; see `resolve_api_key`."""
    return _resolve(server, "target_only_api_key", environment)


def _resolve(server: Server, field: str, environment: Mapping[str, str]) -> Secret | None:
    variable: str | None = getattr(server, f"{field}_env")
    file: Path | None = getattr(server, f"{field}_file")
    try:
        if variable is not None:
            field = f"{field}_env"
            return Secret(_secret_line(_variable_text(variable, environment)))
        if file is not None:
            field = f"{field}_file"
            return Secret(_secret_line(_file_text(file)))
    except RefusalError as refusal:
        path = f"server {server.name!r}, {field}"
        problem = Problem(path=path, problem=refusal.problem, fix=refusal.fix)
        raise ConfigError("API key", [problem]) from refusal.__cause__
    return None


def _variable_text(variable: str, environment: Mapping[str, str]) -> str:
    if variable not in environment:
        # The variable's name stays out of the message: it may be the key, pasted in its place.
        raise RefusalError("the environment variable is not set", "export it before the start")
    return environment[variable]


def _file_text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return stream.read(_MAX_SECRET_BYTES).decode()
    except OSError as error:
        fix = "name a readable file; a relative name starts at the configuration file's directory"
        raise RefusalError(f"the file cannot be read: {error.strerror}", fix) from error
    except UnicodeDecodeError:
        # Not chained: the exception holds the file's bytes.
        raise RefusalError("the file is not text", "write the key alone in it") from None


def _secret_line(text: str) -> str:
    line = text.strip()
    if not line:
        raise RefusalError("holds nothing", "write the key in it")
    if not line.isprintable():
        raise RefusalError("holds more than one line", "write the key alone in it")
    try:
        line.encode("latin-1")
    except UnicodeEncodeError:
        fix = "write the key alone in it"
        raise RefusalError("holds characters that no HTTP header can", fix) from None
    return line


def exposed_secret_files(config: Config) -> tuple[Problem, ...]:
    """List the secrets' files that every user of the machine can read, to warn of."""
    problems = []
    for server in config.servers:
        files = {
            "api_key_file": server.api_key_file,
            "target_only_api_key_file": server.target_only_api_key_file,
            "tls.client_key_file": server.tls.client_key_file,
        }
        for field, file in files.items():
            try:
                exposed = file is not None and file.stat().st_mode & stat.S_IROTH
            except OSError:
                # Missing files are an error of those who read them.
                continue
            if exposed:
                problems.append(
                    Problem(
                        path=f"server {server.name!r}, {field}",
                        problem="every user of this machine can read the file",
                        fix="chmod o-r it",
                    )
                )
    return tuple(problems)
