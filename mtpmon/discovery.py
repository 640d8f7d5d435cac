"""The files of `server_files`: reading them, and noticing that they have changed.

A file may be caught while it is being written, and an empty or half one must not make servers
vanish. So a change counts once two looks in a row have found the same, and what a file said last
stays in force while it cannot be read.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from mtpmon.config import Config, ConfigError, Problem, has_wildcard, read_text, with_servers
from mtpmon.configread import Position
from mtpmon.serverfile import MAX_SERVERS, Found, parse_servers


class _Stamp(NamedTuple):
    """What changes when a file does, the target of a link included."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What the files list.

    Attributes:
        found: The servers, in order of patterns and names of files.
        errors: Files that could not be read; `found` has what they said last, if anything.
    """

    found: tuple[Found, ...] = ()
    errors: tuple[ConfigError, ...] = ()


class ServerFiles:
    """The files behind some patterns.

    Args:
        patterns: Names of files; ``*``, ``?`` and ``[…]`` in one stand for several, but not for a
            hidden one and not in the name of its directory.
    """

    def __init__(self, patterns: Iterable[Path] = ()) -> None:
        self._patterns = tuple(patterns)
        self._said: dict[Path, tuple[Found, ...]] = {}
        self._seen: Mapping[Path, _Stamp | None] | None = None
        self._used: Mapping[Path, _Stamp | None] | None = None

    def __bool__(self) -> bool:
        """Whether there can be any."""
        return bool(self._patterns)

    def read(self) -> Listed:
        """Read all of them now. May block."""
        self._seen = stamps = self._stamps()
        said: dict[Path, tuple[Found, ...]] = {}
        errors: list[ConfigError] = []
        for path in stamps:
            try:
                text = read_text(path, fix="name a readable file in server_files")
                said[path] = parse_servers(text, source=path)
            except ConfigError as error:
                errors.append(error)
                said[path] = self._said.get(path, ())
        self._said = said
        # Not used as long as something is wrong: a cure may leave no trace in the stamps.
        self._used = None if errors else stamps
        return Listed(
            found=tuple(each for found in said.values() for each in found), errors=tuple(errors)
        )

    def read_if_changed(self) -> Listed | None:
        """Read them if they are not as they were used, but are as at the last look. May block."""
        stamps = self._stamps()
        quiet, self._seen = stamps == self._seen, stamps
        if not quiet or stamps == self._used:
            return None
        before = self._said
        listed = self.read()
        if self._stamps() != stamps:  # a file changed under our eyes
            self._said, self._used = before, None
            return None
        return listed

    def unused(self) -> None:
        """What was read last could not be used: let it be read again."""
        self._used = None

    def _stamps(self) -> Mapping[Path, _Stamp | None]:
        """The files there are, and those that were named and are not."""
        found: dict[Path, _Stamp | None] = {}
        for pattern in self._patterns:
            found |= {path: _stamp(path) for path in self._matching(pattern)}
        return found

    def _matching(self, pattern: Path) -> list[Path]:
        if not has_wildcard(pattern.name):
            return [pattern]
        try:
            paths = sorted(pattern.parent.iterdir())
        except OSError:
            # The directory is out of reach, which does not mean that its servers are gone.
            return [pattern, *(path for path in self._said if _matches(path, pattern))]
        return [path for path in paths if _matches(path, pattern)]


def _matches(path: Path, pattern: Path) -> bool:
    hidden = path.name.startswith(".") and not pattern.name.startswith(".")
    return (
        path.parent == pattern.parent
        and not hidden
        and path != pattern
        and fnmatch.fnmatchcase(path.name, pattern.name)
    )


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return _Stamp(
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


def with_listed(config: Config, listed: Listed, *, source: str = "server_files") -> Config:
    """Add the servers of the files to those of the configuration.

    Args:
        config: Holds its own servers.
        listed: The others.
        source: Heads error messages.

    Raises:
        ConfigError: There are too many, or with every contradiction between servers.
    """
    total = len(config.servers) + len(listed.found)
    if total > MAX_SERVERS:
        problem = f"there are {total} servers in all, more than {MAX_SERVERS}"
        fix = "let a second mtpmon watch some of them"
        raise ConfigError(source, [Problem(path="server_files", problem=problem, fix=fix)])
    found = [(each.place, each.server) for each in listed.found]
    return with_servers(config, found, source=source)


def all_errors(listed: Listed) -> ConfigError | None:
    """What is wrong with any of the files, each problem with its file; `None` if nothing."""
    problems = [
        msgspec.structs.replace(
            problem, path=f"{error.source}, {problem.path}", position=Position()
        )
        for error in listed.errors
        for problem in error.problems
    ]
    return ConfigError("server_files", problems) if problems else None


def discovered(config: Config) -> Config:
    """A configuration with the servers that its files list now. May block.

    Raises:
        ConfigError: With all that is wrong with the files, or between servers.
    """
    listed = ServerFiles(config.server_files).read()
    error = all_errors(listed)
    if error is not None:
        raise error
    return with_listed(config, listed)
