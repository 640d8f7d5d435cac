"""From rules to a message: the files of ``deploy/`` in a hurry, Alertmanager and who is told.

The rules and both configurations are the very files that users get. For a test of a minute or
two their durations are shortened by program, each to the value that ``SHORT`` gives it, and
addresses are put in; nothing else is changed.
"""

import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tests.alerts import DEPLOY, rule_groups
from tests.listening import listening
from tests.programs import alertmanager_server

READY_SECONDS = 30.0

# Each duration of the rules, and what becomes of it in a test.
SHORT = {
    "1m": "1s",
    "2m": "10s",  # a server that restarts is gone for as long here as elsewhere
    "3m": "5s",
    "5m": "5s",
    "10m": "12s",  # Prometheus takes up to five seconds to find what it is to scrape
    "15m": "10s",
    "20m": "15s",
    "30m": "15s",
    "1h": "20s",
    "6h": "30s",
    "1d": "60s",
    "7d": "90s",
}
_IN_EXPR = re.compile(r"(?<=[\[:])\d+[smhdw](?=[\]:])|(?<=offset )\d+[smhdw]")


def shortened_rules(path: Path) -> str:
    """A rule file whose durations are those of ``SHORT``; without a group's own interval."""
    groups = rule_groups(path)
    for group in groups:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule["expr"] = shortened(rule["expr"])
            if "for" in rule:
                rule["for"] = SHORT[rule["for"]]
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=10**6)


def shortened(expr: str) -> str:
    """An expression whose durations are those of ``SHORT``."""
    return _IN_EXPR.sub(lambda found: SHORT[found[0]], expr)


def prometheus_config(
    directory: Path, *, mtpmon: str, alertmanager: str, seconds: float = 0.5
) -> str:
    """The example configuration, with the rules in a hurry written to ``directory``.

    Args:
        directory: where Prometheus will run.
        mtpmon: host and port.
        alertmanager: host and port.
        seconds: between scrapes, and between evaluations.
    """
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text("utf-8"))
    config["global"] |= {
        "scrape_interval": f"{seconds * 1000:g}ms",
        "scrape_timeout": f"{seconds * 1000:g}ms",
        "evaluation_interval": f"{seconds * 1000:g}ms",
    }
    (scraped,) = config["scrape_configs"]
    scraped["static_configs"] = [{"targets": [mtpmon]}]
    config["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [alertmanager]}]}]
    for name in config["rule_files"]:
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(shortened_rules(DEPLOY / "prometheus" / name), encoding="utf-8")
    return yaml.safe_dump(config)


def alertmanager_config(receiver: str) -> str:
    """The example configuration, that waits for nothing and tells ``receiver`` (a base URL)."""
    text = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text("utf-8")
    config = yaml.safe_load(text.replace("http://127.0.0.1:9099", receiver))

    def hurry(route: dict[str, Any]) -> None:
        route |= {"group_wait": "100ms", "group_interval": "500ms", "repeat_interval": "1h"}
        for each in route.get("routes", ()):
            hurry(each)

    hurry(config["route"])
    return yaml.safe_dump(config)


@contextmanager
def alertmanager(config: str, directory: Path) -> Iterator[str]:
    """A running, ready Alertmanager; the value is its host and port.

    Raises:
        RuntimeError: it does not start; the message ends with its log.
    """
    (directory / "alertmanager.yml").write_text(config, encoding="utf-8")

    def command(address: str) -> list[str]:
        return [
            alertmanager_server(),
            f"--config.file={directory / 'alertmanager.yml'}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address={address}",
            "--cluster.listen-address=",  # alone: no gossip, nothing to wait for
        ]

    log = directory / "alertmanager.log"
    with listening(
        "Alertmanager", command, directory, log=log, ready_seconds=READY_SECONDS
    ) as address:
        yield address


# --- who is told --------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """One alert of one message. ``path`` is where the webhook went, ``at`` is monotonic."""

    at: float
    path: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.labels["alertname"]

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """What tells it from other alerts."""
        return tuple(sorted(self.labels.items()))


@dataclass
class Webhook:
    """Who is told of alerts: a web server that keeps what it gets."""

    url: str = ""
    told: list[Told] = field(default_factory=list)

    async def receive(self, request: web.Request) -> web.Response:
        """Take a message of Alertmanager."""
        message = await request.json()
        self.told += [
            Told(
                time.monotonic(),
                request.path,
                each["status"],
                each["labels"],
                each["annotations"],
            )
            for each in message["alerts"]
        ]
        return web.Response()

    def standing(self) -> list[Told]:
        """Alerts that were told to fire and not yet to be over."""
        last = {told.key: told for told in self.told}
        return [told for told in last.values() if told.status == "firing"]

    def has(self, name: str, path: str) -> bool:
        """Whether an alert came that way."""
        return any((told.name, told.path) == (name, path) for told in self.told)

    def since(self, moment: float) -> list[Told]:
        """What was told from a monotonic time on."""
        return [told for told in self.told if told.at >= moment]


@asynccontextmanager
async def webhook() -> AsyncIterator[Webhook]:
    """A receiver on the loopback interface."""
    found = Webhook()
    app = web.Application()
    app.router.add_post("/{severity}", found.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        found.url = f"http://{host}:{port}"
        yield found
    finally:
        await runner.cleanup()
