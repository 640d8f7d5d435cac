"""Kinds of configuration values: numbers, durations, names, URLs, headers and the like.

Each takes what is written and gives a value, or raises what is wrong with it and what to write.
"""

import ipaddress
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from mtpmon import configread
from mtpmon.configread import (
    PLAIN_NUMBER,
    Kind,
    Node,
    Reader,
    RefusalError,
    Scalar,
    ScalarKind,
    closest,
    shown,
)
from mtpmon.duration import format_duration, parse_duration

_BYTES = {"GiB": 1024**3, "MiB": 1024**2, "KiB": 1024, "B": 1}
_READINGS = {
    "bool": "a yes/no value",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
}
_WHOLE = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_SIZE = re.compile(r"(0|[1-9][0-9]*)(B|KiB|MiB|GiB)?")
_NAME_HOST = re.compile(r"[A-Za-z0-9._-]+")
_ADDRESS = re.compile(r"(?:\[(.+)\]|([^:]*)):(0|[1-9][0-9]{0,4})")
_MAX_PORT = 65535
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADERS_OF_THE_CLIENT = ("connection", "content-length", "host", "transfer-encoding")


def format_size(size_bytes: int) -> str:
    """Write a size in the largest binary unit that divides it."""
    unit = next(unit for unit, size in _BYTES.items() if size_bytes % size == 0)
    return f"{size_bytes // _BYTES[unit]}{unit}"


def _is_host(text: str) -> bool:
    """Whether the text is a name or an address, IPv6 without its brackets."""
    if ":" not in text:
        return _NAME_HOST.fullmatch(text) is not None
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


class Flag(ScalarKind):
    """True or false."""

    title = "true or false"
    advice = "write true or false"

    def scalar(self, node: Scalar) -> bool:
        """Take what YAML takes for a boolean."""
        if node.type != "bool":
            raise self.no(node)
        return node.text.lower() in ("true", "yes", "on")


class Switch(ScalarKind):
    """On, off, or neither: true, false or None once read."""

    title = "one of on, off, default"
    advice = f"write {title}"
    _words: Mapping[str, bool | None] = {"on": True, "off": False, "default": None}

    def scalar(self, node: Scalar) -> bool | None:
        """Take the words, and what YAML takes for a boolean."""
        if node.type == "bool":
            return node.text.lower() in ("true", "yes", "on")
        if node.text not in self._words:
            raise RefusalError(f"{shown(node)} is not known", closest(node.text, self._words))
        return self._words[node.text]

    def public(self, value: Any) -> str:
        """Write the word."""
        return next(word for word, meaning in self._words.items() if meaning is value)


class Whole(ScalarKind):
    """A whole number in a range."""

    def __init__(self, low: int, high: int) -> None:
        """Take `low` to `high`, both included."""
        self._low, self._high = low, high
        self.title = "a whole number"
        self.limits = f"{low} to {high}"
        self.advice = f"write a whole number from {self.limits}, in plain digits"

    def scalar(self, node: Scalar) -> int:
        """Take plain decimal digits."""
        if node.type != "int" or not _WHOLE.fullmatch(node.text):
            raise self.no(node)
        # As a float first: the text may have more digits than `int` converts.
        if not self._low <= float(node.text) <= self._high:
            raise self.out_of_range(node)
        return int(node.text)


class Real(ScalarKind):
    """A number in a range."""

    def __init__(
        self, low: float, high: float, *, low_included: bool = False, high_included: bool = True
    ) -> None:
        """Take what lies between `low` and `high`, and these where they are included."""
        self._low, self._high = low, high
        self._low_included, self._high_included = low_included, high_included
        self.title = "a number"
        self.limits = (
            f"{'at least' if low_included else 'above'} {low},"
            f" {'at most' if high_included else 'below'} {high}"
        )
        self.advice = f"write a number {self.limits}, in plain digits"

    def scalar(self, node: Scalar) -> float:
        """Take plain decimal digits."""
        if node.type not in ("int", "float") or not PLAIN_NUMBER.fullmatch(node.text):
            raise self.no(node)
        number = float(node.text)
        lowest = number >= self._low if self._low_included else number > self._low
        highest = number <= self._high if self._high_included else number < self._high
        if not (lowest and highest):
            raise self.out_of_range(node)
        return number


class Duration(ScalarKind):
    """A time span, in seconds once read."""

    title = "a duration"
    placeholder = 0.0

    def __init__(self, low_seconds: float, high_seconds: float) -> None:
        """Take `low_seconds` to `high_seconds`, both included."""
        self._low_seconds, self._high_seconds = low_seconds, high_seconds
        self.limits = f"{format_duration(low_seconds)} to {format_duration(high_seconds)}"
        self.advice = f"write it like 250ms, 5s, 1m, 2h or 1d, from {self.limits}"

    def scalar(self, node: Scalar) -> float:
        """Take a number and a unit, or a number of seconds."""
        seconds = parse_duration(node.text)
        if seconds is None:
            raise self.no(node)
        if not self._low_seconds <= seconds <= self._high_seconds:
            raise self.out_of_range(node)
        return seconds

    def public(self, value: Any) -> str:
        """Write it with its unit."""
        return format_duration(value)


class Size(ScalarKind):
    """A number of bytes."""

    title = "a size"

    def __init__(self, low_bytes: int, high_bytes: int) -> None:
        """Take `low_bytes` to `high_bytes`, both included."""
        self._low_bytes, self._high_bytes = low_bytes, high_bytes
        self.limits = f"{format_size(low_bytes)} to {format_size(high_bytes)}"
        self.advice = f"write it like 512KiB, 1MiB or 1048576, from {self.limits}"

    def scalar(self, node: Scalar) -> int:
        """Take a number and a binary unit, or a number of bytes."""
        match = _SIZE.fullmatch(node.text)
        if match is None:
            raise self.no(node)
        unit_bytes = _BYTES[match[2] or "B"]
        # As a float first: the text may have more digits than `int` converts.
        if not self._low_bytes <= float(match[1]) * unit_bytes <= self._high_bytes:
            raise self.out_of_range(node)
        return int(match[1]) * unit_bytes

    def public(self, value: Any) -> str:
        """Write it with its unit."""
        return format_size(value)


class Choice(ScalarKind):
    """One of a few words."""

    def __init__(self, *words: str) -> None:
        """Take one of `words`."""
        self._words = words
        self.title = f"one of {', '.join(words)}"
        self.advice = f"write {self.title}"

    def scalar(self, node: Scalar) -> str:
        """Take a word as it is spelled."""
        if node.text not in self._words:
            raise RefusalError(f"{shown(node)} is not known", closest(node.text, self._words))
        return node.text


class Line(ScalarKind):
    """One line of printable text, the base of whatever is not a number.

    Attributes:
        most_characters: Its greatest length.
    """

    placeholder = ""
    most_characters: int = 256

    def scalar(self, node: Scalar) -> Any:
        """Pass text that YAML does not read as something else on to `line`."""
        if node.type != "str":
            raise self.no(node)
        count = len(node.text)
        if not 1 <= count <= self.most_characters:
            raise RefusalError(f"has {count} characters", self.advice)
        if not node.text.isprintable() or node.text != node.text.strip():
            problem = f"{self.shown(node)} has control characters, or spaces around it"
            raise RefusalError(problem, self.advice)
        return self.line(node)

    @abstractmethod
    def line(self, node: Scalar) -> Any:
        """Turn a line into a value, or raise `RefusalError`."""


class Text(Line):
    """Any line."""

    title = "text"

    def __init__(self, most_characters: int = 64, *, like: str = "local") -> None:
        """Take 1 to `most_characters`; `like` is an example of it."""
        self.most_characters = most_characters
        self.limits = f"1 to {most_characters} characters"
        self.advice = f"write {self.limits}, like {like}"

    def no(self, node: Scalar) -> RefusalError:
        """Advise to quote what YAML reads as something else."""
        quoted = "" if self.secret else f': "{shown(node)}"'
        reading = _READINGS.get(node.type, "special")
        problem = f"{self.shown(node)} is {reading} in YAML, not {self.title}"
        return RefusalError(problem, f"put it in quotes{quoted}")

    def line(self, node: Scalar) -> str:
        """Take it as it is."""
        return node.text


class FilePath(Line):
    """A file's name; a relative one starts at the configuration file's directory."""

    title = "a file name"
    advice = "write the name of a file, like /etc/mtpmon/key"
    most_characters = 4096
    # A key pasted where its file's name belongs must not be printed.
    secret = True

    def read(self, node: Node, path: str, reader: Reader) -> Path:
        """Start at the reader's directory."""
        return reader.directory / str(super().read(node, path, reader))

    def line(self, node: Scalar) -> str:
        """Take any name."""
        return node.text

    def public(self, value: Any) -> str:
        """Show the name."""
        return str(value)


class Variable(Line):
    """The name of an environment variable."""

    title = "the name of an environment variable"
    advice = "write a name like LLAMA_API_KEY and keep the key itself out of this file"
    # A key pasted where its variable's name belongs must not be printed.
    secret = True

    def line(self, node: Scalar) -> str:
        """Take what a shell can export."""
        if not _VARIABLE.fullmatch(node.text):
            raise self.no(node)
        return node.text


class Url(Line):
    """Where a server is, without a trailing slash once read."""

    title = "an http or https URL"
    advice = "write it like http://127.0.0.1:8080"
    most_characters = 2048

    def shown(self, node: Scalar) -> str:
        """Mask what may be a secret: credentials, query and fragment."""
        text = re.sub(r"^([A-Za-z0-9+.-]*://)?.*@", r"\1***@", node.text, flags=re.DOTALL)
        text = re.sub(r"([?#]).*", r"\1***", text, flags=re.DOTALL)
        return shown(Scalar(node.at, text, node.type))

    def line(self, node: Scalar) -> str:
        """Take scheme, host, port and path."""
        url = self.shown(node)
        malformed = RefusalError(f"{url} has a malformed host, port or path", self.advice)
        try:
            parts = urlsplit(node.text)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            # Not chained: the exception quotes the URL.
            raise malformed from None
        if parts.scheme not in _DEFAULT_PORTS:
            raise self.no(node)
        if "@" in parts.netloc:
            fix = "remove them and use api_key_env or api_key_file"
            raise RefusalError(f"{url} holds credentials", fix)
        if "?" in node.text or "#" in node.text:
            raise RefusalError(f"{url} has a query or a fragment", "end it after the path")
        if not _is_host(host) or port == 0 or " " in node.text:
            raise malformed
        authority = f"[{host}]" if ":" in host else host
        if port not in (None, _DEFAULT_PORTS[parts.scheme]):
            authority += f":{port}"
        return f"{parts.scheme}://{authority}{parts.path.rstrip('/')}"


class Address(msgspec.Struct, frozen=True):
    """Where to listen; no host is every interface, port 0 any free port."""

    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


class ListenAddress(Line):
    """A host and a port to listen on."""

    title = "a host and port"
    advice = 'write it like 127.0.0.1:9765, "[::1]:9765" or ":9765"'

    def line(self, node: Scalar) -> Address:
        """Take a name, an IPv4, a bracketed IPv6 or no host, and a port."""
        match = _ADDRESS.fullmatch(node.text)
        if match is None:
            raise self.no(node)
        bracketed, plain, port = match.groups()
        host = bracketed or plain or None
        if (host and not _is_host(host)) or int(port) > _MAX_PORT:
            raise self.no(node)
        return Address(host, int(port))

    def public(self, value: Any) -> str:
        """Write it as in the file."""
        return str(value)


class Headers(Mapping[str, str]):
    """Request headers, which may be secrets and do not show their values."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        """Keep a copy."""
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(dict.fromkeys(self, "***"))


class HeaderValue(Text):
    """What a header says."""

    secret = True

    def __init__(self) -> None:
        """Take what fits a header."""
        super().__init__(4096)
        self.advice = f"write {self.limits} of printable ASCII on one line"

    def line(self, node: Scalar) -> str:
        """Take ASCII."""
        if not node.text.isascii():
            raise RefusalError("the value has characters beyond ASCII", self.advice)
        return node.text


class HeaderTable(Kind):
    """Headers by name."""

    title = "a mapping of header names to text"
    advice = 'write lines like X-Name: "text" below it'
    _value = HeaderValue()

    def read(self, node: Node, path: str, reader: Reader) -> Headers:
        """Read each header."""
        if not isinstance(node, configread.Mapping):
            raise RefusalError(f"the value is not {self.title}", self.advice)
        values: dict[str, str] = {}
        for name, at, child_path, child in reader.entries(node, path, fold=str.lower):
            if name.lower() == "authorization":
                fix = "use api_key_env or api_key_file"
                reader.refuse(child_path, at, "would hold a secret in this file", fix)
            elif name.lower() in _HEADERS_OF_THE_CLIENT:
                reader.refuse(child_path, at, "is set by mtpmon itself", "remove it")
            elif not _HEADER_NAME.fullmatch(name):
                # The name stays out of the message: a whole header may have been quoted as one.
                reader.refuse(path, at, f"line {at.line} names no header", self.advice)
            else:
                values[name] = reader.value(self._value, child, child_path, "")
        return Headers(values)

    def public(self, value: Any) -> dict[str, str]:
        """Show the names only."""
        return dict.fromkeys(value, "***")
