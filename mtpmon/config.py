"""What can be configured: every key with its default, range and meaning, once.

A key is one line of a struct below. Reading, refusing, the `/config` page and the tables of
``docs/configuration.md`` follow from it; only contradictions between keys are written out, as
checks. Field names carry their unit where the file's key does not: ``interval: 5s`` is
``interval_seconds``.

Secrets are not in a `Config`, only where they are; `resolve_api_key` reads them.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from mtpmon.configkinds import (
    Address,
    Choice,
    Duration,
    FilePath,
    Flag,
    Headers,
    HeaderTable,
    ListenAddress,
    Real,
    Size,
    Switch,
    Text,
    Url,
    Variable,
    Whole,
)
from mtpmon.configread import (
    ConfigError,
    Finding,
    Items,
    Problem,
    Reader,
    RefusalError,
    Scalar,
    Section,
    closest,
    is_null,
    parse_tree,
    render_tables,
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
# One log-probability is about 100 bytes of JSON, so a probe's reply stays below some 26 MB.
MAX_LOGPROBS_PER_PROBE = 4096 * 64
_MAX_SECRET_BYTES = 16 * 1024

_SECRETS_IN_THE_FILE = {
    name: ("would hold a secret in this file", f"use {name}_env or {name}_file")
    for name in ("api_key", "target_only_api_key")
}

_SERVER_FILE_SUFFIXES = (".json", ".yaml", ".yml")

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]


class _Struct(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename=lambda name: name.removesuffix("_seconds"),
):
    """Frozen, by keyword; a key in the file is the field's name without its unit of time."""


class _CapturePath(FilePath):
    """The name of a file that ``mtpmon capture`` has written."""

    advice = "write the name of a file, like /var/lib/mtpmon/bf16.capture"


class _ServerFilePath(FilePath):
    """The name of a file that lists servers, or a pattern of such names."""

    title = "the name of a .json, .yaml or .yml file"
    advice = "write a name or a pattern that ends so, like /etc/mtpmon/servers/*.json"

    def line(self, node: Scalar) -> str:
        """Take what Prometheus takes, so that one file can serve both."""
        if not node.text.endswith(_SERVER_FILE_SUFFIXES):
            raise self.no(node)
        if has_wildcard(str(Path(node.text).parent)):
            raise RefusalError("has a wildcard in a directory's name", self.advice)
        return node.text


def has_wildcard(name: str) -> bool:
    """Whether a name is a pattern for several."""
    return re.search(r"[*?[]", name) is not None


class Tls(_Struct, frozen=True, kw_only=True):
    """How https connections to a server are verified."""

    ca_file: Annotated[
        Path | None, FilePath(), "certificates to trust in place of the system's"
    ] = None
    verify: Annotated[bool, Flag(), "whether the server's certificate is verified"] = True
    client_cert_file: Annotated[
        Path | None, FilePath(), "certificate to present; may hold its key as well"
    ] = None
    client_key_file: Annotated[Path | None, FilePath(), "key of `client_cert_file`"] = None


class Server(_Struct, frozen=True, kw_only=True):
    """A `llama-server` to watch."""

    name: Annotated[str, Text(), "value of the `server` label; unique"]
    url: Annotated[str, Url(), "where the server is, with a path prefix if it has one"] = (
        "http://127.0.0.1:8080"
    )
    target_only_url: Annotated[
        str | None, Url(), "a second `llama-server` with the same model and no drafting, to compare"
    ] = None
    model: Annotated[
        str | None, Text(256, like="qwen"), "model to watch behind a router, sent as `?model=`"
    ] = None
    api_key_env: Annotated[str | None, Variable(), "variable that holds the key of `url`"] = None
    api_key_file: Annotated[Path | None, FilePath(), "file that holds the key of `url`"] = None
    target_only_api_key_env: Annotated[
        str | None, Variable(), "variable that holds the key of `target_only_url`"
    ] = None
    target_only_api_key_file: Annotated[
        Path | None, FilePath(), "file that holds the key of `target_only_url`"
    ] = None
    headers: Annotated[Headers, HeaderTable(), "extra headers for each request to both URLs"] = (
        Headers()
    )
    tls: Annotated[Tls, Section(Tls), "how https is verified, for both URLs"] = Tls()
    sleep_idle_seconds: Annotated[
        float | None,
        Duration(1, 7 * 86400),
        "the server's `--sleep-idle-seconds`: lets an idle server fall asleep on builds where"
        " reading `/metrics` keeps it awake",
    ] = None
    probe: Annotated[bool, Flag(), "whether this server is probed"] = True
    reference_capture: Annotated[
        Path | None,
        _CapturePath(),
        "file of `mtpmon capture`, of a BF16 original for instance: probes tell how far this"
        " server is from it",
    ] = None
    baseline_capture: Annotated[
        Path | None,
        _CapturePath(),
        "file of `mtpmon capture` of this very server, started without drafting; in place of"
        " `target_only_url`",
    ] = None


class Scrape(_Struct, frozen=True, kw_only=True):
    """How the counters of each server are read."""

    interval_seconds: Annotated[float, Duration(0.2, 300), "time between scrapes of a server"] = 5.0
    timeout_seconds: Annotated[
        float, Duration(0.05, 300), "longest a scrape may take; less than `interval`"
    ] = 3.0
    stale_after_seconds: Annotated[
        float | None,
        Duration(0.25, 3600),
        "age at which the last good figures vanish; at least `interval` + `timeout`,"
        " null is 3 × `interval` + `timeout`",
    ] = None
    max_body_bytes: Annotated[int, Size(4096, 64 * 1024**2), "longest reply that is read"] = 1024**2

    @property
    def stale_after_effective_seconds(self) -> float:
        """Age at which the last good figures vanish, the default worked out."""
        if self.stale_after_seconds is None:
            return 3 * self.interval_seconds + self.timeout_seconds
        return self.stale_after_seconds


class Probe(_Struct, frozen=True, kw_only=True):
    """When and how mtpmon asks for a completion of its own."""

    enabled: Annotated[bool, Flag(), "whether any server is probed"] = True
    interval_seconds: Annotated[
        float, Duration(0.2, 86400), "time between the starts of probes of a server"
    ] = 60.0
    timeout_seconds: Annotated[
        float, Duration(0.1, 3600), "longest a probe may take, both arms; at most `interval`"
    ] = 30.0
    idle_for_seconds: Annotated[
        float, Duration(0, 3600), "how long a server must have had no request before a probe"
    ] = 5.0
    time_share: Annotated[
        float, Real(0, 1), "share of wall time that probes of a server may run"
    ] = 0.1
    tokens_per_hour: Annotated[
        int, Whole(1, 10**9), "tokens an hour that probes may make a server generate"
    ] = 20_000
    tokens: Annotated[int, Whole(2, 4096), "tokens to generate in a completion"] = 64
    # Beyond 1000 a single position is a tenth of a megabyte.
    top_logprobs: Annotated[
        int,
        Whole(1, 1000),
        "log-probabilities to ask for at a position; `tokens` × `top_logprobs` is at most 262144",
    ] = 64
    forced_positions: Annotated[
        int,
        Whole(0, 4096),
        "tokens of an answer about which the target is asked, one undrafted token each",
    ] = 8
    tasks: Annotated[tuple[str, ...], Items(Text(like="code"), most=32), "tasks to take turns"] = (
        "code",
        "factual",
        "analysis",
        "essay",
        "creative",
    )
    prompt_files: Annotated[
        tuple[Path, ...],
        Items(FilePath(), least=0, most=32),
        "files of your own prompts, whose tasks `tasks` may name",
    ] = ()
    temperatures: Annotated[
        tuple[float, ...],
        Items(Real(0, 2, low_included=True), most=8),
        "temperatures to probe at, besides 0; 0 is greedy",
    ] = (0.0,)
    thinking: Annotated[
        tuple[bool | None, ...],
        Items(Switch(), most=3),
        "thinking modes to probe in, besides `default`, which leaves it to the chat template",
    ] = (None,)
    # The server's reply to /tokenize then stays below `scrape.max_body_bytes` at its default.
    depths: Annotated[
        tuple[int, ...],
        Items(Whole(0, 131_072), most=8),
        "context depths to probe at, in tokens of filler before the prompt, besides 0",
    ] = (0,)
    seed: Annotated[
        int, Whole(0, 2**32 - 2), "seed of the sampling; one more than the greatest would be random"
    ] = 1
    rolling: Annotated[int, Whole(8, 100_000), "recent probes that rolling figures hold"] = 256


class Evidence(_Struct, frozen=True, kw_only=True):
    """How much must be seen before something is said."""

    min_drafts: Annotated[
        int, Whole(1, 1_000_000), "verification steps a window needs to give a ratio"
    ] = 1
    rounding_error: Annotated[
        float,
        Real(0, 0.2),
        "share by which rounded counters may put a ratio off; a window widens until it is less",
    ] = 0.01
    confidence: Annotated[
        float, Real(0.5, 0.9999, high_included=False), "level of lower and upper bounds"
    ] = 0.95


class _DatabasePath(FilePath):
    """The name of a file that mtpmon makes."""

    advice = "write the name of a file, like /var/lib/mtpmon/history.db"


class History(_Struct, frozen=True, kw_only=True):
    """What is kept on disk, so that figures of probes go on where they were after a restart."""

    path: Annotated[
        Path | None,
        _DatabasePath(),
        "SQLite file for probes, changes and a row a minute of traffic, made if it is not there;"
        " null is off",
    ] = None
    retention_seconds: Annotated[
        float, Duration(3600, 3650 * 86400), "age at which rows are deleted"
    ] = 30 * 86400.0
    max_bytes: Annotated[
        int, Size(4 * 1024**2, 1024**4), "greatest size of the file; the oldest rows go first"
    ] = 256 * 1024**2


class Verdict(_Struct, frozen=True, kw_only=True):
    """When drafting is said to pay or to cost, and how it is graded."""

    min_steps: Annotated[
        int,
        Whole(2, 1_000_000),
        "verification steps in a window that a verdict needs to begin; half to go on",
    ] = 200
    settle_seconds: Annotated[
        float, Duration(0, 86400), "how long a change must last, unless the evidence is clear"
    ] = 150.0
    max_age_seconds: Annotated[
        float, Duration(60, 30 * 86400), "age at which the measured cost of steps no longer holds"
    ] = 86400.0
    recommended: Annotated[
        float, Real(0, 100), "speed-up from which drafting is recommended for a task"
    ] = 1.2
    marginal: Annotated[
        float, Real(0, 100), "speed-up from which it is marginal; not above `recommended`"
    ] = 1.02


class Shift(_Struct, frozen=True, kw_only=True):
    """When a figure is said to have changed against the server's own past."""

    false_alarms_per_week: Annotated[
        float,
        Real(0.01, 100, low_included=True),
        "false alarms that each figure of a server may raise in a week at most",
    ] = 1.0
    least_change: Annotated[
        float,
        Real(0, 1, low_included=True, high_included=False),
        "share by which acceptance or decode speed must change to be worth telling",
    ] = 0.05
    least_kld: Annotated[
        float,
        Real(0, 10, low_included=True),
        "nats by which the KL divergence must change to be worth telling",
    ] = 0.001


class Listen(_Struct, frozen=True, kw_only=True):
    """Where mtpmon answers."""

    address: Annotated[
        Address,
        ListenAddress(),
        "where `/metrics` is; no host is every interface, port 0 any free port",
    ] = Address("127.0.0.1", 9765)
    reload: Annotated[bool, Flag(), "whether `POST /-/reload` reads this file again"] = False


class Log(_Struct, frozen=True, kw_only=True):
    """What is logged to standard error."""

    level: Annotated[LogLevel, Choice(*get_args(LogLevel)), "least level that is logged"] = "info"
    format: Annotated[
        LogFormat, Choice(*get_args(LogFormat)), "`auto` is `console` at a terminal, else `json`"
    ] = "auto"


class Config(_Struct, frozen=True, kw_only=True):
    """The whole configuration."""

    servers: Annotated[
        tuple[Server, ...],
        Items(Section(Server, refused_keys=_SECRETS_IN_THE_FILE), most=100),
        "servers to watch; without this key one named `local`, or none but those of `server_files`",
    ] = (Server(name="local"),)
    server_files: Annotated[
        tuple[Path, ...],
        Items(_ServerFilePath(), least=0, most=32),
        "files that list more servers, as Prometheus' `file_sd` has them, and are read again when"
        " they change; `*` in a file's name is any text",
    ] = ()
    scrape: Annotated[Scrape, Section(Scrape), "how counters are read"] = Scrape()
    windows_seconds: Annotated[
        tuple[float, ...],
        Items(Duration(1, 86400), most=8),
        "spans that figures are given over, ascending; each at least 2 × `scrape.interval`",
    ] = (60.0, 300.0, 3600.0)
    probe: Annotated[Probe, Section(Probe), "when and how to probe"] = Probe()
    evidence: Annotated[Evidence, Section(Evidence), "how much must be seen"] = Evidence()
    history: Annotated[History, Section(History), "what is kept on disk"] = History()
    verdict: Annotated[Verdict, Section(Verdict), "when drafting is said to pay, and for what"] = (
        Verdict()
    )
    shift: Annotated[Shift, Section(Shift), "when a figure is said to have changed"] = Shift()
    listen: Annotated[Listen, Section(Listen), "where mtpmon answers"] = Listen()
    log: Annotated[Log, Section(Log), "what is logged"] = Log()


_SCHEMA = Section(Config)


# --- Contradictions between keys ------------------------------------------------------------------


def _scrape_findings(config: Config) -> Iterator[Finding]:
    scrape = config.scrape
    interval, timeout = scrape.interval_seconds, scrape.timeout_seconds
    span, limit = format_duration(interval), format_duration(timeout)
    if timeout >= interval:
        yield Finding(
            path="scrape.timeout",
            uses=("scrape.interval",),
            problem=f"{limit} is not less than scrape.interval {span}",
            fix="a scrape must end before the next begins: lower it or raise the interval",
        )
    stale_after, floor = scrape.stale_after_effective_seconds, round(interval + timeout, 9)
    if stale_after < floor:
        least = format_duration(floor)
        yield Finding(
            path="scrape.stale_after",
            uses=("scrape.interval", "scrape.timeout"),
            problem=f"{format_duration(stale_after)} is less than interval + timeout,"
            f" {span} + {limit} = {least}",
            fix=f"use at least {least}, so that one slow scrape leaves no gap",
        )
    for index, window in enumerate(config.windows_seconds):
        if window < 2 * interval:
            least = format_duration(2 * interval)
            yield Finding(
                path=f"windows[{index}]",
                uses=("scrape.interval",),
                problem=f"{format_duration(window)} is less than"
                f" 2 × scrape.interval, 2 × {span} = {least}",
                fix="a window needs two scrapes: widen it or lower the interval",
            )
    for index, (window, following) in enumerate(pairwise(config.windows_seconds), start=1):
        if following <= window:
            yield Finding(
                path=f"windows[{index}]",
                uses=(f"windows[{index - 1}]",),
                problem=f"{format_duration(following)} does not follow"
                f" {format_duration(window)} in ascending order",
                fix="list each window once, shortest first",
            )


_ONCE = {
    "tasks": "list each task once",
    "temperatures": "list each temperature once",
    "thinking": "list each mode once",
    "depths": "list each depth once",
}


def _verdict_findings(config: Config) -> Iterator[Finding]:
    verdict = config.verdict
    if verdict.marginal > verdict.recommended:
        yield Finding(
            path="verdict.marginal",
            uses=("verdict.recommended",),
            problem=f"{verdict.marginal:g} is above verdict.recommended {verdict.recommended:g}",
            fix="lower it or raise verdict.recommended",
        )


def _probe_findings(config: Config) -> Iterator[Finding]:
    probe = config.probe
    if probe.timeout_seconds > probe.interval_seconds:
        yield Finding(
            path="probe.timeout",
            uses=("probe.interval",),
            problem=f"{format_duration(probe.timeout_seconds)} is more than"
            f" probe.interval {format_duration(probe.interval_seconds)}",
            fix="both arms of a probe must fit before the next: lower it or raise the interval",
        )
    logprobs = probe.tokens * probe.top_logprobs
    if logprobs > MAX_LOGPROBS_PER_PROBE:
        yield Finding(
            path="probe.top_logprobs",
            uses=("probe.tokens",),
            problem=f"{probe.tokens} tokens × {probe.top_logprobs} = {logprobs} log-probabilities"
            f" in a reply, more than {MAX_LOGPROBS_PER_PROBE}",
            fix=f"lower it to {MAX_LOGPROBS_PER_PROBE // probe.tokens} or lower probe.tokens",
        )
    for key, fix in _ONCE.items():
        written = to_public_dict(config)["probe"][key]
        for index, item in enumerate(written):
            first = written.index(item)
            if first != index:
                yield Finding(
                    path=f"probe.{key}[{index}]",
                    uses=(f"probe.{key}[{first}]",),
                    problem=f"{item!r} is listed twice",
                    fix=fix,
                )


def _server_findings(servers: Iterable[tuple[str, Server]], probe: Probe) -> Iterator[Finding]:
    """Contradictions within and between servers, each with its path."""
    names: dict[str, str] = {}
    watched: dict[tuple[str, str | None], str] = {}
    for path, server in servers:
        first = names.setdefault(server.name, path)
        if first != path:
            yield Finding(
                path=f"{path}.name",
                uses=(f"{first}.name",),
                problem=f"{server.name!r} is also the name of {first}",
                fix="give each server a name of its own",
            )
        first = watched.setdefault((server.url, server.model), path)
        if first != path:
            yield Finding(
                path=f"{path}.url",
                uses=(f"{first}.url", f"{path}.model", f"{first}.model"),
                problem=f"{server.url} is also watched as {first},"
                " and the probes of one would count as live traffic of the other",
                fix="keep one of them, or name the model of each behind a router",
            )
        yield from _key_findings(server, path)
        yield from _tls_findings(server, path)
        idle_for, sleep_idle = probe.idle_for_seconds, server.sleep_idle_seconds
        probed = probe.enabled and server.probe
        if probed and sleep_idle is not None and sleep_idle <= idle_for:
            yield Finding(
                path=f"{path}.sleep_idle",
                uses=("probe.idle_for",),
                problem=f"{format_duration(sleep_idle)} is not more than probe.idle_for"
                f" {format_duration(idle_for)}, so the server sleeps before it can be probed",
                fix="lower probe.idle_for, or set probe: false for this server",
            )


def _placed(config: Config) -> list[tuple[str, Server]]:
    return [(f"servers[{index}]", server) for index, server in enumerate(config.servers)]


def _key_findings(server: Server, path: str) -> Iterator[Finding]:
    for prefix in ("", "target_only_"):
        variable, file = f"{prefix}api_key_env", f"{prefix}api_key_file"
        if getattr(server, variable) is not None and getattr(server, file) is not None:
            yield Finding(
                path=f"{path}.{file}",
                uses=(f"{path}.{variable}",),
                problem=f"is given as well as {variable}",
                fix="keep one of them",
            )
    if server.target_only_url is None:
        for name in ("target_only_api_key_env", "target_only_api_key_file"):
            if getattr(server, name) is not None:
                yield Finding(
                    path=f"{path}.{name}",
                    uses=(f"{path}.target_only_url",),
                    problem="is of no use without target_only_url",
                    fix="add target_only_url or remove it",
                )
    elif server.baseline_capture is not None:
        yield Finding(
            path=f"{path}.baseline_capture",
            uses=(f"{path}.target_only_url",),
            problem="is given as well as target_only_url",
            fix="keep one of them: a target-only server is the better baseline",
        )
    if server.target_only_url == server.url:
        yield Finding(
            path=f"{path}.target_only_url",
            uses=(f"{path}.url",),
            problem=f"{server.url} is the url of this server",
            fix="name a second llama-server that runs without drafting, or remove it",
        )


def _tls_findings(server: Server, path: str) -> Iterator[Finding]:
    tls = server.tls
    urls = [server.url, server.target_only_url or ""]
    if tls != Tls() and not any(url.startswith("https:") for url in urls):
        yield Finding(
            path=f"{path}.tls",
            uses=(f"{path}.url", f"{path}.target_only_url"),
            problem="is of no use without an https URL",
            fix="write the url with https or remove it",
        )
    if tls.ca_file is not None and not tls.verify:
        yield Finding(
            path=f"{path}.tls.ca_file",
            uses=(f"{path}.tls.verify",),
            problem="is of no use with verify: false",
            fix="remove verify: false, or remove it to trust any certificate",
        )
    if tls.client_key_file is not None and tls.client_cert_file is None:
        yield Finding(
            path=f"{path}.tls.client_key_file",
            uses=(f"{path}.tls.client_cert_file",),
            problem="is of no use without client_cert_file",
            fix="add client_cert_file or remove it",
        )


def _unknown_task_findings(
    config: Config, known_tasks: Collection[str] | None
) -> Iterator[Finding]:
    # Which tasks own prompt files hold is known only when they are read: see `check_tasks`.
    if known_tasks is None or config.probe.prompt_files:
        return
    yield from _task_findings(config, known_tasks)


def _task_findings(config: Config, known_tasks: Collection[str]) -> Iterator[Finding]:
    for index, task in enumerate(config.probe.tasks):
        if task not in known_tasks:
            yield Finding(
                path=f"probe.tasks[{index}]",
                problem=f"{task!r} is not a task",
                fix=closest(task, known_tasks),
            )


# --- Reading --------------------------------------------------------------------------------------


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
        config = reader.value(_SCHEMA, root, "", config)
    if config.server_files and "servers" not in reader.positions:
        config = msgspec.structs.replace(config, servers=())
    reader.cross_check(
        chain(
            _scrape_findings(config),
            _probe_findings(config),
            _verdict_findings(config),
            _unknown_task_findings(config, known_tasks),
            _server_findings(_placed(config), config.probe),
        )
    )
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
    placed = [*_placed(config), *found]
    problems = [
        Problem(path=each.path, problem=each.problem, fix=each.fix)
        for each in _server_findings(placed, config.probe)
    ]
    if problems:
        raise ConfigError(source, problems)
    return msgspec.structs.replace(config, servers=tuple(server for _, server in placed))


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
        for found in _task_findings(config, known_tasks)
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
    public = _SCHEMA.public(config)
    public["scrape"]["stale_after"] = format_duration(config.scrape.stale_after_effective_seconds)
    return public


def render_reference() -> str:
    """Write the tables of ``docs/configuration.md``."""
    return render_tables(_SCHEMA)


# --- Secrets --------------------------------------------------------------------------------------


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
