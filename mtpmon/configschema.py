"""What can be configured: every key with its default, range and meaning, once.

A key is one line of a struct below. Reading, refusing, the `/config` page and the tables of
``docs/configuration.md`` follow from it; only contradictions between keys are written out, in
`configchecks`. Field names carry their unit where the file's key does not: ``interval: 5s`` is
``interval_seconds``.

Secrets are not in a `Config`, only where they are; `apikeys` reads them.
"""

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

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
from mtpmon.configread import Items, RefusalError, Scalar, Section

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


SCHEMA = Section(Config)
