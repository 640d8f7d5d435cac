"""From the configuration to the parts it asks for."""

import ssl
import time
from pathlib import Path

from mtpmon.apikeys import Secret, resolve_api_key, resolve_target_only_api_key
from mtpmon.board import BoardSettings, ServerBoard
from mtpmon.budget import Budget
from mtpmon.capture import Capture, CaptureError, Use
from mtpmon.captured import Captures, read_for_use
from mtpmon.client import LlamaClient
from mtpmon.config import (
    Config,
    ConfigError,
    Problem,
    Server,
    check_tasks,
    default_config,
    load_config,
    read_text,
)
from mtpmon.grade import GradeRules
from mtpmon.history import History
from mtpmon.probe import Arms, ProbeSettings
from mtpmon.promptfile import parse_prompts
from mtpmon.shift.server import ShiftRules
from mtpmon.suite import TASKS, Prompt, Suite, Variant, builtin_suite, cases, select, variants
from mtpmon.verdict import VerdictRules
from mtpmon.watch import Clock, Timing, Watcher
from mtpmon.window import Evidence
from mtpmon.worth import WorthRules

SYSTEM_CLOCK = Clock(monotonic=time.monotonic, wall=time.time)


def read_config(path: Path | None) -> Config:
    """The configuration of ``path``, or the defaults without one.

    Raises:
        ConfigError: with everything that is wrong.
    """
    if path is None:
        return default_config()
    config = load_config(path, known_tasks=TASKS)
    check_tasks(config, known_tasks(config), source=str(path))
    return config


def own_prompts(config: Config) -> tuple[Prompt, ...]:
    """The prompts of ``probe.prompt_files``.

    Raises:
        ConfigError: with all that is wrong with the first bad file.
    """
    if not config.probe.prompt_files:
        return ()
    taken = {p.id: f"the built-in task {p.task}" for p in builtin_suite(TASKS).prompts}
    found: list[Prompt] = []
    for path in config.probe.prompt_files:
        text = read_text(path, fix="name a readable file in probe.prompt_files")
        prompts = parse_prompts(text, source=str(path), taken=taken)
        taken.update((prompt.id, str(path)) for prompt in prompts)
        found.extend(prompts)
    return tuple(found)


def known_tasks(config: Config) -> tuple[str, ...]:
    """The tasks that there are prompts for.

    Raises:
        ConfigError: a prompt file cannot be used.
    """
    return tuple(dict.fromkeys((*TASKS, *(prompt.task for prompt in own_prompts(config)))))


def suite(config: Config) -> Suite:
    """What is asked: built-in prompts and own ones, of the configured tasks.

    Raises:
        ConfigError: a prompt file cannot be used.
    """
    prompts = (*builtin_suite(TASKS).prompts, *own_prompts(config))
    return select(prompts, config.probe.tasks)


def ways(config: Config) -> tuple[Variant, ...]:
    """How it is asked."""
    return variants(config.probe.temperatures, config.probe.thinking, config.probe.depths)


def ssl_context(server: Server) -> ssl.SSLContext | None:
    """How to verify a server's certificate; ``None`` for the system's way.

    Raises:
        ConfigError: a file of ``tls`` cannot be used.
    """
    tls = server.tls
    if tls == type(tls)():
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.client_cert_file is not None:
            context.load_cert_chain(tls.client_cert_file, tls.client_key_file)
    except (OSError, ssl.SSLError) as error:
        problem = Problem(
            path=f"server {server.name!r}, tls",
            problem=f"a certificate or key cannot be used: {error}",
            fix="name readable PEM files",
        )
        raise ConfigError("TLS", [problem]) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def api_keys(server: Server) -> tuple[Secret | None, Secret | None]:
    """The keys of a server and of its target-only twin, read now.

    Raises:
        ConfigError: a key cannot be read.
    """
    return resolve_api_key(server), resolve_target_only_api_key(server)


def clients(config: Config, server: Server) -> Arms:
    """HTTP clients for a server and its target-only twin. Needs a running event loop.

    Raises:
        ConfigError: a key or certificate cannot be read.
    """
    context = ssl_context(server)

    def client(url: str, key: Secret | None) -> LlamaClient:
        headers = dict(server.headers)
        if key is not None:
            headers["Authorization"] = f"Bearer {key.reveal()}"
        return LlamaClient(
            url,
            headers=headers,
            ssl_context=context,
            max_body_bytes=config.scrape.max_body_bytes,
        )

    key, target_only_key = api_keys(server)
    if server.target_only_url is None:
        return Arms(client(server.url, key))
    return Arms(client(server.url, key), client(server.target_only_url, target_only_key))


def probe_settings(config: Config, server: Server) -> ProbeSettings:
    """How ``server`` is probed."""
    return ProbeSettings(
        tokens=config.probe.tokens,
        top_logprobs=config.probe.top_logprobs,
        seed=config.probe.seed,
        model=server.model,
        forced_positions=config.probe.forced_positions,
    )


def timing(config: Config, server: Server) -> Timing:
    """When things happen to ``server``."""
    return Timing(
        scrape_interval_seconds=config.scrape.interval_seconds,
        scrape_timeout_seconds=config.scrape.timeout_seconds,
        probe_interval_seconds=config.probe.interval_seconds,
        probe_timeout_seconds=config.probe.timeout_seconds,
        idle_for_seconds=config.probe.idle_for_seconds,
        sleep_idle_seconds=server.sleep_idle_seconds,
    )


def board_settings(config: Config) -> BoardSettings:
    """What the board needs of the configuration."""
    return BoardSettings(
        windows_seconds=config.windows_seconds,
        stale_after_seconds=config.scrape.stale_after_effective_seconds,
        evidence=Evidence(
            min_drafts=config.evidence.min_drafts,
            rounding_error=config.evidence.rounding_error,
            confidence=config.evidence.confidence,
        ),
        rolling_probes=config.probe.rolling,
        worth=WorthRules(
            confidence=config.evidence.confidence,
            max_age_seconds=config.verdict.max_age_seconds,
            verdict=VerdictRules(
                min_steps=config.verdict.min_steps,
                settle_seconds=config.verdict.settle_seconds,
            ),
            grades=GradeRules(
                recommended=config.verdict.recommended, marginal=config.verdict.marginal
            ),
        ),
        shift=ShiftRules(
            false_alarms_per_week=config.shift.false_alarms_per_week,
            least_change=config.shift.least_change,
            least_kld_nats=config.shift.least_kld,
        ),
        probe_timeout_seconds=config.probe.timeout_seconds,
    )


def history(config: Config, clock: Clock) -> History | None:
    """Where probes and changes are kept; ``None``: nowhere."""
    if config.history.path is None:
        return None
    return History(
        config.history.path,
        retention_seconds=config.history.retention_seconds,
        max_bytes=config.history.max_bytes,
        wall=clock.wall,
    )


def captures(config: Config, server: Server) -> Captures | None:
    """What ``server`` is compared with besides its twin; ``None``: nothing.

    Raises:
        ConfigError: a file cannot be read or is no capture, or a prompt file is bad.
    """
    paths = {Use.REFERENCE: server.reference_capture, Use.BASELINE: server.baseline_capture}
    held: dict[Use, Capture | str] = {}
    for use, path in paths.items():
        if path is None:
            continue
        try:
            held[use] = read_for_use(path)
        except CaptureError as error:
            problem = Problem(
                path=f"server {server.name!r}, {use.value}_capture",
                problem=f"{path} {error}",
                fix="name a file that mtpmon capture has written",
            )
            raise ConfigError("capture", [problem]) from error
    if not held:
        return None
    asked = suite(config).prompts
    return Captures(held=held, prompts=asked, top_logprobs=config.probe.top_logprobs)


def watcher(config: Config, server: Server, board: ServerBoard, clock: Clock) -> Watcher:
    """All that watches ``server``. Needs a running event loop.

    Raises:
        ConfigError: a key, a certificate, a prompt file or a capture cannot be read.
    """
    probing = config.probe.enabled and server.probe
    # Before the clients, which would be left open if it raised.
    asked = cases(suite(config), ways(config), config.probe.seed) if probing else None
    held = captures(config, server)
    return Watcher(
        arms=clients(config, server),
        board=board,
        cases=asked,
        settings=probe_settings(config, server),
        timing=timing(config, server),
        clock=clock,
        budget=Budget(
            time_share=config.probe.time_share, tokens_per_hour=config.probe.tokens_per_hour
        ),
        captures=held,
        model=server.model,
    )
