"""What an examination of a server finds out, and how a judgement of it is written down."""

from typing import Literal

import msgspec

from mtpmon.capture import Use
from mtpmon.model import ProbeResult, Scrape, State, Usage
from mtpmon.worth import Measured

Level = Literal["ok", "warning", "problem"]
Topic = Literal["server", "target_only", "captures", "paying", "measured"]


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one configured capture.

    ``refused``: why it cannot be used with the server as it runs now; empty if it can.
    ``judged``: the server could be asked; else that alone is why.
    ``prompts`` of those that are probed with are in it, of ``asked``. ``told``: whether the
    test prompt, which is in it, came to the server as the same tokens; ``None``: it is not in
    it, or was not asked. ``origin``: what it was made of.
    """

    use: Use
    refused: tuple[str, ...]
    judged: bool = True
    prompts: int = 0
    asked: int = 0
    told: bool | None = None
    origin: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one configured server. ``None``: not asked.

    ``server`` and ``target_only`` are looks at both, ``after`` one at the server once more
    after the test probe, whose requests have put ``sent`` into the counters, by their
    replies. ``tokens`` is a sample text in each one's tokenizer. ``target_only_drafted``: in
    a first test probe, so there was a second one without the twin. ``captures``: those that
    are configured. ``measured`` is what probes of the history say of the server as it runs
    now, ``None`` without a history; ``history_problem``: why it cannot be read.
    """

    target_only_url: str | None
    key_given: bool
    target_only_key_given: bool
    probed: bool
    server: Scrape
    target_only: Scrape | None = None
    tokens: tuple[int, ...] | None = None
    target_only_tokens: tuple[int, ...] | None = None
    target_only_drafted: bool = False
    probe: ProbeResult | None = None
    sent: Usage | None = None
    after: Scrape | None = None
    captures: tuple[CaptureFacts, ...] = ()
    measured: Measured | None = None
    history_problem: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """One sentence. ``advice`` is what to change, empty if nothing."""

    topic: Topic
    level: Level
    text: str
    advice: str = ""


def answers(look: Scrape | None) -> bool:
    """Whether a server can be sent prompts, with or without ``/metrics``."""
    return look is not None and look.state in (State.READY, State.METRICS_DISABLED)
