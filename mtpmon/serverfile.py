"""A file of servers in Prometheus' `file_sd` format: text into servers, or all that is wrong.

The file is a list of groups, each with targets and labels that they share. Prometheus itself can
read the same file: what is meant for mtpmon is in labels of the form ``__mtpmon_<key>__``, which
Prometheus drops, and the labels it has for scheme, path and parameters mean the same here.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from mtpmon.configkinds import Flag
from mtpmon.configread import (
    ConfigError,
    Key,
    Node,
    Position,
    Reader,
    RefusalError,
    Scalar,
    ScalarKind,
    Section,
    Sequence,
    closest,
    is_null,
    parse_tree,
    shown,
)
from mtpmon.configread import Mapping as Table
from mtpmon.configschema import Server

MAX_SERVERS = 1000

_SERVER = Section(Server)
_BOOLEANS = ("true", "false", "yes", "no", "on", "off")
_GROUPS = "write [] for no servers, else a list like [{targets: [10.0.0.5:8080]}]"
_METRICS = "/metrics"
# JSON writes a character beyond the first 65536 as two escapes, which YAML takes for two.
_PAIR = re.compile(
    r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE
)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A server and its place in a file, such as ``/etc/mtpmon/fleet.json [0].targets[1]``."""

    place: str
    server: Server


def _label_keys() -> Iterator[tuple[str, tuple[str, ...], Key]]:
    """Label, path of fields in a `Server`, key: all keys that are one line of text."""
    for name, key in _SERVER.keys.items():
        match key.kind:
            case Section(keys=inner):
                for part, inner_key in inner.items():
                    yield f"__mtpmon_{name}_{part}__", (key.field, inner_key.field), inner_key
            case ScalarKind() if name != "url":
                yield f"__mtpmon_{name}__", (key.field,), key


# Label → where its value goes. `url` is the target, `headers` are no single value.
LABELS: Mapping[str, tuple[tuple[str, ...], Key]] = {
    "__param_model": (("model",), _SERVER.keys["model"]),
    **{label: (fields, key) for label, fields, key in _label_keys()},
}


def parse_servers(text: str, *, source: Path) -> tuple[Found, ...]:
    """Read a file of servers; touches no file.

    Args:
        text: JSON if the name of `source` ends so, else YAML.
        source: The file: heads error messages, and relative file names start at its directory.

    Raises:
        ConfigError: With all problems, in file order.
    """
    if source.suffix == ".json":
        # YAML takes JSON, but for tabs between values; within a JSON string there is none.
        text = _PAIR.sub(_joined, text.replace("\t", " "))
    try:
        root = parse_tree(text.removeprefix("\ufeff"))
    except ConfigError as error:
        raise ConfigError(str(source), error.problems) from error.__cause__
    reader = Reader(source.parent)
    found: list[Found] = []
    if isinstance(root, Sequence):
        for index, group in enumerate(root.items):
            found += _group(group, f"[{index}]", reader, source)
    else:
        # Half a file, most likely: that there are no servers has to be said.
        said = "is empty" if root is None or is_null(root) else f"{shown(root)} is not a list"
        reader.refuse("", Position(), said, _GROUPS)
    if len(found) > MAX_SERVERS:
        fix = "is this the right file? A second mtpmon can watch the others"
        problem = f"has {len(found)} targets, more than {MAX_SERVERS}"
        reader.refuse("", Position(), problem, fix)
    if reader.problems:
        raise ConfigError(str(source), reader.problems)
    return tuple(found)


def _joined(pair: re.Match[str]) -> str:
    """The character that two escapes stand for, after backslashes that are none of theirs."""
    return pair[1] + bytes.fromhex(pair[2] + pair[3]).decode("utf-16-be")


def _group(node: Node, path: str, reader: Reader, source: Path) -> Iterator[Found]:
    """The servers of one group, and its problems noted."""
    if not isinstance(node, Table):
        fix = "write it like {targets: [10.0.0.5:8080]}"
        reader.refuse(path, node.at, f"{shown(node)} is not a mapping of keys", fix)
        return
    parts: dict[str, tuple[str, Node]] = {}
    for name, at, child_path, child in reader.entries(node, path):
        if name in ("targets", "labels"):
            parts[name] = child_path, child
        else:
            fix = closest(name, ("targets", "labels"))
            reader.refuse(child_path, at, "unknown key", fix)
    if "targets" not in parts:
        reader.refuse(path, node.at, "has no targets", "add targets: [10.0.0.5:8080]")
        return
    labels = _labels(*parts["labels"], reader) if "labels" in parts else {}
    settings = _settings(labels, reader)
    targets_path, targets = parts["targets"]
    if not isinstance(targets, Sequence):
        fix = "write [a, b] or lines that start with -"
        reader.refuse(targets_path, targets.at, f"{shown(targets)} is not a list", fix)
        return
    before, after = _around(labels, reader)
    for index, target in enumerate(targets.items):
        place = f"{targets_path}[{index}]"
        url = _url(target, place, before, after, reader)
        if url and isinstance(target, Scalar):
            name = settings.get("name") or _name(target, place, reader)
            named = {**settings, "name": name, "url": url}
            server = msgspec.structs.replace(_SERVER.placeholder, **named)
            yield Found(place=f"{source} {place}", server=server)


def _labels(path: str, node: Node, reader: Reader) -> dict[str, tuple[str, Scalar]]:
    """Label → path and value of those that mean something here."""
    if is_null(node):  # what programs write that have none
        return {}
    if not isinstance(node, Table):
        fix = "write lines like env: production below it"
        reader.refuse(path, node.at, f"{shown(node)} is not a mapping of labels", fix)
        return {}
    known = (*LABELS, "__scheme__", "__metrics_path__")
    labels: dict[str, tuple[str, Scalar]] = {}
    for name, at, child_path, child in reader.entries(node, path):
        if name not in known:
            # The others are for Prometheus, a mistyped one for nobody.
            if name.startswith("__mtpmon_"):
                reader.refuse(child_path, at, "unknown label", closest(name, known))
        elif not isinstance(child, Scalar):
            reader.refuse(child_path, child.at, f"{shown(child)} is not text", "write text")
        else:
            labels[name] = child_path, child
    return labels


def _settings(labels: Mapping[str, tuple[str, Scalar]], reader: Reader) -> dict[str, Any]:
    """The fields of a `Server` that labels set."""
    settings: dict[str, Any] = {}
    for label, (fields, key) in LABELS.items():
        if label not in labels:
            continue
        path, written = labels[label]
        kind = "str"  # every label is text to Prometheus, be it in quotes or not
        if isinstance(key.kind, Flag) and written.text.lower() in _BOOLEANS:
            kind = "bool"
        value = key.read(Scalar(written.at, written.text, kind), path, reader)
        if len(fields) == 1:
            settings[fields[0]] = value
        else:
            outer, inner = fields
            before = settings.get(outer, getattr(_SERVER.placeholder, outer))
            settings[outer] = msgspec.structs.replace(before, **{inner: value})
    return settings


def _around(labels: Mapping[str, tuple[str, Scalar]], reader: Reader) -> tuple[str, str]:
    """What a URL has before and after host and port: ``http://``, and a path prefix or nothing."""
    scheme, prefix = "http", ""
    if "__scheme__" in labels:
        path, written = labels["__scheme__"]
        if written.text in ("http", "https"):
            scheme = written.text
        else:
            reader.refuse(path, written.at, f"{shown(written)} is not known", "write http or https")
    if "__metrics_path__" in labels:
        # llama-server --api-prefix puts its prefix before this path as well.
        path, written = labels["__metrics_path__"]
        prefix = written.text.removesuffix(_METRICS)
        if prefix == written.text:
            fix = "write what llama-server has as --api-prefix, and /metrics after it"
            reader.refuse(path, written.at, f"{shown(written)} does not end in /metrics", fix)
    return f"{scheme}://", prefix


def _url(node: Node, path: str, before: str, after: str, reader: Reader) -> str:
    """Where a target is, which may be a URL itself; empty if it was refused."""
    if isinstance(node, Scalar) and not is_null(node):
        text = node.text if "://" in node.text else f"{before}{node.text}{after}"
        node = Scalar(node.at, text, "str")
    url: str = reader.value(_SERVER.keys["url"].kind, node, path, "")
    return url


def _name(target: Scalar, path: str, reader: Reader) -> str:
    """A server without a name of its own has that of its target, as Prometheus' `instance` has."""
    try:
        name: str = _SERVER.keys["name"].kind.read(
            Scalar(target.at, target.text, "str"), path, reader
        )
    except RefusalError as refusal:
        fix = "give it a shorter name with the label __mtpmon_name__"
        reader.refuse(path, target.at, f"as a name {refusal.problem}", fix)
        return ""
    return name
