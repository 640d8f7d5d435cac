"""What is wrong with a configuration whose values are fine alone: they contradict each other.

Each contradiction is a `Finding`: the key to change, the keys it depends on, what is wrong and
what to do. So is a task that is not among the known ones.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, pairwise

from mtpmon.configread import Finding, closest
from mtpmon.configschema import SCHEMA, Config, Probe, Server, Tls
from mtpmon.duration import format_duration

# One log-probability is about 100 bytes of JSON, so a probe's reply stays below some 26 MB.
MAX_LOGPROBS_PER_PROBE = 4096 * 64


def findings(config: Config, known_tasks: Collection[str] | None) -> Iterator[Finding]:
    """Everything that is wrong with a configuration.

    Args:
        config: Of which each value is fine alone.
        known_tasks: The names `probe.tasks` may hold; any if None, or with `probe.prompt_files`.
    """
    return chain(
        _scrape_findings(config),
        _probe_findings(config),
        _verdict_findings(config),
        _unknown_task_findings(config, known_tasks),
        server_findings(placed(config), config.probe),
    )


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
        written = SCHEMA.public(config)["probe"][key]
        for index, item in enumerate(written):
            first = written.index(item)
            if first != index:
                yield Finding(
                    path=f"probe.{key}[{index}]",
                    uses=(f"probe.{key}[{first}]",),
                    problem=f"{item!r} is listed twice",
                    fix=fix,
                )


def server_findings(servers: Iterable[tuple[str, Server]], probe: Probe) -> Iterator[Finding]:
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


def placed(config: Config) -> list[tuple[str, Server]]:
    """A configuration's own servers, each with its path."""
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
    # Which tasks own prompt files hold is known only when they are read: see `config.check_tasks`.
    if known_tasks is None or config.probe.prompt_files:
        return
    yield from task_findings(config, known_tasks)


def task_findings(config: Config, known_tasks: Collection[str]) -> Iterator[Finding]:
    """Tasks to take turns that are not known, each with what may have been meant."""
    for index, task in enumerate(config.probe.tasks):
        if task not in known_tasks:
            yield Finding(
                path=f"probe.tasks[{index}]",
                problem=f"{task!r} is not a task",
                fix=closest(task, known_tasks),
            )
