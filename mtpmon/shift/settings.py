"""How changes are detected: the figures that decide how often and how soon."""

import math

import msgspec

DAY = 86_400.0
MOST_STRATA = 64
RATE_MEMORY_SECONDS = DAY
LONGEST_PAUSE_SECONDS = DAY
"""A longer one, or a clock that was set, tells nothing of how often there is something to see."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How to detect.

    ``alarms_per_day``: false alarms allowed to one detector. ``memory_seconds``: after so long
    a past batch counts half for the level; ``range_seconds``: likewise for how requests
    scatter. ``least_change``: smaller changes are no news, a share of the kept tokens.
    ``learn_steps``, ``learn_batches``: what makes a reference. ``hold_seconds``: how long a
    shift stands before its level becomes the new reference. ``planned_share``: after a planned
    change this share of the kept tokens may be lost unreported, and after ``planned_steps``
    the level is the new reference. ``patience_seconds``: how long probes get to explain a
    change that past tasks do not; ``suspicion_seconds``: to explain one that they do.
    ``probe_fresh_seconds``: older probes do not count as running. ``acquaint_seconds``: how
    long users' traffic must have been watched for their tasks to count as known.
    """

    alarms_per_day: float = 1 / 7
    memory_seconds: float = DAY
    range_seconds: float = 7 * DAY
    least_change: float = 0.05
    learn_steps: float = 300.0
    learn_batches: float = 30.0
    hold_seconds: float = DAY
    planned_share: float = 0.25
    planned_steps: float = 1000.0
    patience_seconds: float = 1800.0
    suspicion_seconds: float = 6 * 3600.0
    probe_fresh_seconds: float = 600.0
    acquaint_seconds: float = DAY


class ValueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How to detect changes of a value.

    ``least_change``: smaller ones are no news; ``planned_change``: as large ones go
    unreported after a planned change; both in the value's unit. The rest is as in `Settings`.
    """

    least_change: float
    planned_change: float
    alarms_per_day: float = 1 / 7
    hold_seconds: float = DAY


PACE = ValueSettings(least_change=math.log(1.05), planned_change=math.log(4 / 3))
"""For the logarithm of seconds per step."""
KLD = ValueSettings(least_change=0.001, planned_change=0.02)
"""For nats."""
