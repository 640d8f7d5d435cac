"""YAML text into frozen structs, with everything that is wrong with it said at once.

This file knows YAML and kinds of values; what is configured is in `configschema`. A struct declares
a key as ``Annotated[type, kind, "meaning"] = default`` and the rest follows from that line:
reading, refusing, showing and documenting it.

The text is read from PyYAML's events, not from constructed objects, because a constructed object
has lost what an operator needs to be told: the line, the quotes, the second of two equal keys, and
that ``on`` or ``1:30`` was typed where YAML 1.1 sees a boolean or the number 90.
"""

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import msgspec
import yaml

_MAX_DEPTH = 16
_MAX_SHOWN_CHARACTERS = 80
PLAIN_NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,40}")


class Position(NamedTuple):
    """Where in the file, counted from 1; zeros are the file as a whole."""

    line: int = 0
    column: int = 0


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong, and what to do about it."""

    path: str
    problem: str
    fix: str
    position: Position = Position()

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}; {self.fix}"


class ConfigError(Exception):
    """The configuration cannot be used.

    Attributes:
        source: Name of the file.
        problems: Everything found, in file order.
    """

    def __init__(self, source: str, problems: Iterable[Problem]) -> None:
        """Keep the problems, in file order."""
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: problem.position))
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        header = f"{self.source}: {count} problem{'' if count == 1 else 's'}"
        return "\n".join([header, *map(str, self.problems)])


class RefusalError(Exception):
    """A kind's answer to a value it does not take."""

    def __init__(self, problem: str, fix: str) -> None:
        """Keep what is wrong and what to write instead."""
        self.problem = problem
        self.fix = fix
        super().__init__(problem, fix)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A contradiction between values that are each fine alone.

    Attributes:
        path: The key to blame.
        uses: The other keys it follows from.
        problem: What is wrong, with the arithmetic.
        fix: What to do.
    """

    path: str
    uses: tuple[str, ...] = ()
    problem: str
    fix: str


# --- YAML events to a tree that keeps positions and repeated keys ---------------------------------


class Scalar(msgspec.Struct, frozen=True):
    """One value as written; `type` is what YAML 1.1 makes of it: str, int, float, bool, null …."""

    at: Position
    text: str
    type: str


class Sequence(msgspec.Struct, frozen=True):
    """A list."""

    at: Position
    items: tuple["Node", ...]


class Mapping(msgspec.Struct, frozen=True):
    """Keys and values, repeated keys included."""

    at: Position
    entries: tuple[tuple["Node", "Node"], ...]


class Foreign(msgspec.Struct, frozen=True):
    """A YAML feature that a configuration has no use for: an alias or an explicit tag."""

    at: Position
    name: str
    fix: str


Node = Scalar | Sequence | Mapping | Foreign


def parse_tree(text: str) -> Node | None:
    """Parse one YAML document.

    Args:
        text: The document.

    Returns:
        Its root, or None if there is nothing in it.

    Raises:
        ConfigError: It is not one YAML document. The source is empty: only the caller knows it.
    """
    try:
        # The constructor already looks for unprintable characters.
        loader: Any = yaml.SafeLoader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        character = ascii(text[error.position])
        raise _malformed(line, column, f"unprintable character {character}", "remove it") from error
    try:
        loader.get_event()
        if loader.check_event(yaml.StreamEndEvent):
            return None
        loader.get_event()
        root = _node(loader, depth=0)
        loader.get_event()
        if not loader.check_event(yaml.StreamEndEvent):
            second = _position(loader.peek_event().start_mark)
            problem, fix = "a second YAML document starts", "keep one, without a --- line"
            raise _malformed(*second, problem, fix)
    except yaml.MarkedYAMLError as error:
        at = _position(error.problem_mark)
        if "'\\t'" in str(error.problem):
            raise _malformed(*at, "a tab where YAML wants spaces", "indent with spaces") from error
        fix = "check colons, indentation and brackets, and quote text with special characters"
        raise _malformed(*at, f"not YAML: {_cut(str(error.problem))}", fix) from error
    except (ValueError, OverflowError) as error:
        # PyYAML converts "\U…" escapes and %YAML versions without looking at their range.
        problem, fix = "an escape or directive out of range", "write the character itself"
        raise _malformed(loader.line + 1, loader.column + 1, problem, fix) from error
    return root


def _malformed(line: int, column: int, problem: str, fix: str) -> ConfigError:
    path = f"line {line}, column {column}"
    at = Position(line, column)
    return ConfigError("", [Problem(path=path, problem=problem, fix=fix, position=at)])


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _node(loader: Any, *, depth: int) -> Node:
    event = loader.get_event()
    at = _position(event.start_mark)
    if depth > _MAX_DEPTH:
        fix = "a configuration needs four levels"
        raise _malformed(*at, f"nested deeper than {_MAX_DEPTH} levels", fix)
    node: Node
    match event:
        case yaml.AliasEvent():
            return Foreign(
                at, f"the YAML alias *{_cut(str(event.anchor))}", "write out what it stands for"
            )
        case yaml.ScalarEvent():
            tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            node = Scalar(at, event.value, str(tag).rpartition(":")[2])
        case yaml.SequenceStartEvent():
            items = []
            while not loader.check_event(yaml.SequenceEndEvent):
                items.append(_node(loader, depth=depth + 1))
            loader.get_event()
            node = Sequence(at, tuple(items))
        case _:
            entries = []
            while not loader.check_event(yaml.MappingEndEvent):
                key = _node(loader, depth=depth + 1)
                entries.append((key, _node(loader, depth=depth + 1)))
            loader.get_event()
            node = Mapping(at, tuple(entries))
    if event.tag is not None:
        tag = _cut(event.tag.replace("tag:yaml.org,2002:", "!!"))
        return Foreign(at, f"the YAML tag {tag!r}", "write the value without it")
    return node


def is_null(node: Node) -> bool:
    """Whether the value is empty, ``~`` or ``null``."""
    return isinstance(node, Scalar) and node.type == "null"


# --- Walker ---------------------------------------------------------------------------------------


class Reader:
    """Collects what one pass over a tree finds.

    Attributes:
        directory: What relative file names in the configuration start from.
        problems: Everything refused so far.
        positions: Where each key that is in the file has its value.
    """

    def __init__(self, directory: Path) -> None:
        """Start with nothing found."""
        self.directory = directory
        self.problems: list[Problem] = []
        self.positions: dict[str, Position] = {}

    def value(self, kind: "Kind", node: Node, path: str, fallback: Any) -> Any:
        """Read one value; if it is refused, `fallback` stands in for it in later checks."""
        self.positions[path] = node.at
        if is_null(node):
            self.refuse(path, node.at, "is empty", kind.advice)
            return fallback
        if isinstance(node, Foreign):
            self.refuse(path, node.at, f"{node.name} is not allowed", node.fix)
            return fallback
        try:
            return kind.read(node, path, self)
        except RefusalError as refusal:
            self.refuse(path, node.at, refusal.problem, refusal.fix)
            return fallback

    def entries(
        self, mapping: Mapping, path: str, fold: Callable[[str], str] = str
    ) -> Iterator[tuple[str, Position, str, Node]]:
        """Walk a mapping, refusing keys that are no words or are repeated.

        Args:
            mapping: What to walk.
            path: Its path.
            fold: Keys that are equal after this are the same key.

        Yields:
            Key, the key's position, the value's path, the value.
        """
        first_lines: dict[str, int] = {}
        for key, node in mapping.entries:
            if not isinstance(key, Scalar):
                self.refuse(path, key.at, f"{shown(key)} cannot be a key", "write a word")
                continue
            name = key.text if _PLAIN_KEY.fullmatch(key.text) else repr(_cut(key.text))
            child_path = join(path, name)
            folded = fold(key.text)
            if folded in first_lines:
                lines = f"lines {first_lines[folded]} and {key.at.line}"
                self.refuse(child_path, key.at, f"given twice, on {lines}", "keep one of them")
                continue
            first_lines[folded] = key.at.line
            yield key.text, key.at, child_path, node

    def cross_check(self, findings: Iterable[Finding]) -> None:
        """Add the findings that do not rest on a value already refused."""
        refused = [problem.path for problem in self.problems]
        for finding in findings:
            paths = (finding.path, *finding.uses)
            if any(_related(path, other) for path in paths for other in refused):
                continue
            at, problem = self.positions.get(finding.path), finding.problem
            if at is None:
                problem = f"the default {problem}"
                near = (*finding.uses, finding.path.rpartition(".")[0], "")
                at = max(self.positions.get(path, Position()) for path in near)
            self.refuse(finding.path, at, problem, finding.fix)

    def refuse(self, path: str, at: Position, problem: str, fix: str) -> None:
        """Note a problem."""
        path = path or "top level"
        self.problems.append(Problem(path=path, problem=problem, fix=fix, position=at))


def join(path: str, name: str) -> str:
    """Extend a path by a key."""
    return f"{path}.{name}" if path else name


def _related(path: str, other: str) -> bool:
    """Whether one path is the other or lies within it."""
    short, long = sorted((path, other), key=len)
    return long == short or (long.startswith(short) and long[len(short)] in ".[")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else text[: _MAX_SHOWN_CHARACTERS - 1] + "…"


def shown(node: Node) -> str:
    """Quote what was written, cut to a length that fits a line."""
    match node:
        case Scalar():
            text = _cut(node.text)
            return repr(text) if node.type == "str" or not text.isprintable() else text
        case Sequence():
            return "a list"
        case Mapping():
            return "a mapping"
        case _:
            return node.name


def closest(name: str, known: Collection[str]) -> str:
    """Advise on an unknown name: the known one that it resembles, else all of them."""
    matches = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {matches[0]}?" if matches else f"known are {', '.join(known)}"


# --- Kinds of values ------------------------------------------------------------------------------


class Kind(ABC):
    """What a key may hold.

    Attributes:
        title: Its name, with the article.
        limits: Which values of it are taken.
        advice: What to write instead of a value that was refused.
        placeholder: What stands in for a refused value that has no default.
    """

    title: str
    limits: str = ""
    advice: str
    placeholder: Any = None

    @abstractmethod
    def read(self, node: Node, path: str, reader: Reader) -> Any:
        """Turn a node into a value.

        Args:
            node: What is written; never null.
            path: Where.
            reader: Takes the problems of parts; knows the directory.

        Raises:
            RefusalError: The node as a whole is not of this kind.
        """

    def public(self, value: Any) -> Any:
        """Turn a value back into plain data, secrets masked."""
        return value

    def describe(self) -> str:
        """Name the kind and its limits."""
        name = re.sub("^(a|an|the) ", "", self.title)
        return f"{name}, {self.limits}" if self.limits else name


class ScalarKind(Kind):
    """A kind that is written as one scalar.

    Attributes:
        secret: Whether a value that is refused must not be printed.
    """

    secret: bool = False

    def read(self, node: Node, path: str, reader: Reader) -> Any:  # noqa: ARG002 - as in Kind
        """Pass a scalar on to `scalar`."""
        if not isinstance(node, Scalar):
            raise RefusalError(f"{shown(node)} is not {self.title}", self.advice)
        return self.scalar(node)

    @abstractmethod
    def scalar(self, node: Scalar) -> Any:
        """Turn a scalar into a value, or raise `RefusalError`."""

    def shown(self, node: Scalar) -> str:
        """Quote what was written, unless it may be a secret."""
        return "the value" if self.secret else shown(node)

    def no(self, node: Scalar) -> RefusalError:
        """Say that the scalar is not of this kind."""
        reading = ""
        if node.type == "bool":
            reading = "a yes/no value in YAML, "
        elif node.type in ("int", "float") and not PLAIN_NUMBER.fullmatch(node.text):
            reading = "special YAML 1.1 notation, "
        return RefusalError(f"{self.shown(node)} is {reading}not {self.title}", self.advice)

    def out_of_range(self, node: Scalar) -> RefusalError:
        """Say that the scalar is of this kind, but too small or too large."""
        return RefusalError(f"{self.shown(node)} is out of range", self.advice)


class Key(NamedTuple):
    """One line of a struct: where the value goes, what it may be, what it means."""

    field: str
    kind: Kind
    meaning: str
    default: Any

    @property
    def required(self) -> bool:
        """Whether there is no default."""
        return self.default is msgspec.NODEFAULT

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        """Read the value; null is one where it is the default."""
        if self.default is None and is_null(node):
            reader.positions[path] = node.at
            return None
        fallback = self.kind.placeholder if self.required else self.default
        return reader.value(self.kind, node, path, fallback)

    def public(self, value: Any) -> Any:
        """Show the value."""
        return None if value is None else self.kind.public(value)


class Section(Kind):
    """A mapping with known keys, read into a struct."""

    title = "a mapping"
    advice = "write its keys below it, indented, or remove it"

    def __init__(
        self, struct: type[msgspec.Struct], refused_keys: dict[str, tuple[str, str]] | None = None
    ) -> None:
        """Describe a section.

        Args:
            struct: Every field annotated with its kind and meaning; a key is the encoded name.
            refused_keys: Keys that someone may well try, each with what is wrong and the fix.
        """
        self.struct = struct
        self._refused_keys = refused_keys or {}
        hints = get_type_hints(struct, include_extras=True)
        self.keys: dict[str, Key] = {}
        for info in msgspec.structs.fields(struct):
            kind, meaning = hints[info.name].__metadata__
            self.keys[info.encode_name] = Key(info.name, kind, meaning, info.default)
        self.placeholder = struct(
            **{key.field: key.kind.placeholder for key in self.keys.values() if key.required}
        )

    def read(self, node: Node, path: str, reader: Reader) -> Any:
        """Read the keys that are there; the others keep their defaults."""
        if not isinstance(node, Mapping):
            fix = self.advice if path else "start with a key, like servers:"
            raise RefusalError(f"{shown(node)} is not {self.title} of keys", fix)
        values: dict[str, Any] = {}
        for name, at, child_path, child in reader.entries(node, path):
            if name in self._refused_keys:
                reader.refuse(child_path, at, *self._refused_keys[name])
            elif name not in self.keys:
                reader.refuse(child_path, at, "unknown key", closest(name, self.keys))
            else:
                key = self.keys[name]
                values[key.field] = key.read(child, child_path, reader)
        for name, key in self.keys.items():
            if key.required and key.field not in values:
                values[key.field] = key.kind.placeholder
                reader.refuse(join(path, name), node.at, "is missing", key.kind.advice)
        return self.struct(**values)

    def public(self, value: Any) -> dict[str, Any]:
        """Show every key."""
        return {name: key.public(getattr(value, key.field)) for name, key in self.keys.items()}


class Items(Kind):
    """A list of one kind."""

    title = "a list"
    advice = "write [a, b] or lines that start with -"

    def __init__(self, item: Kind, *, most: int, least: int = 1) -> None:
        """Take `least` to `most` items."""
        self.item = item
        self._least, self._most = least, most
        self.limits = f"{least} to {most} of: {item.describe()}"

    def read(self, node: Node, path: str, reader: Reader) -> tuple[Any, ...]:
        """Read each item."""
        if not isinstance(node, Sequence):
            raise RefusalError(f"{shown(node)} is not {self.title}", self.advice)
        if not self._least <= len(node.items) <= self._most:
            fix = f"list {self._least} to {self._most}"
            raise RefusalError(f"has {len(node.items)} items", fix)
        return tuple(
            reader.value(self.item, item, f"{path}[{index}]", self.item.placeholder)
            for index, item in enumerate(node.items)
        )

    def public(self, value: Any) -> list[Any]:
        """Show each item."""
        return [self.item.public(item) for item in value]


# --- Documentation --------------------------------------------------------------------------------


def render_tables(section: Section, path: str = "") -> str:
    """Describe every key in Markdown: a heading and a table for each section, outer ones first."""
    lines = [f"### `{path}`" if path else "### Top level", "", str(section.struct.__doc__), ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    inner = []
    for name, key in section.keys.items():
        child_path, kind, default = join(path, name), key.kind, "below"
        match kind:
            case Section():
                inner.append(render_tables(kind, child_path))
            case Items(item=Section() as item):
                inner.append(render_tables(item, f"{child_path}[]"))
            case _ if key.required:
                default = "required"
            case _:
                default = f"`{json.dumps(key.public(key.default))}`".replace('"', "")
        value = kind.describe() + (", or null" if key.default is None else "")
        lines.append(f"| `{child_path}` | {value} | {default} | {key.meaning} |")
    return "\n\n".join(["\n".join(lines), *inner])
