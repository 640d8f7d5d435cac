"""Moving all positions' log-odds of being kept by the same amount."""

from collections.abc import Callable

import numpy as np

from mtpmon.shift.evidence import Array


def log_growth(chances: Array, tilts: Array) -> Array:
    """Logarithm of the normalizer that tilting a chance needs; positions last."""
    return np.asarray(np.log1p(chances[..., None, None, None, :] * np.expm1(tilts)[..., None]))


def tilted(chances: Array, tilts: Array) -> Array:
    odds = chances / (1 - chances) * np.exp(tilts)[..., None]
    return np.asarray(odds / (1 + odds))


def mean_evidence(chances: Array, null: Array, other: Array) -> Array:
    """Kullback-Leibler divergence of one step, null ‖ other."""
    at_null = tilted(chances[..., None, None, None, :], null)
    reach = np.cumprod(at_null, axis=-1) / at_null
    cost = log_growth(chances, other) - log_growth(chances, null)
    terms = reach * (cost - at_null * (other - null)[..., None])
    return np.asarray(np.maximum(np.sum(terms, axis=-1), 0.0))


def kept_tokens(chances: Array, tilt: Array) -> Array:
    """Draft tokens kept per step."""
    return np.asarray(np.sum(np.cumprod(tilted(chances, tilt), axis=-1), axis=-1))


def kept_share(chances: Array, tilt: Array, exact: slice) -> Array:
    """Share of the draft tokens that come to a decision, at the given positions."""
    moved = tilted(chances, tilt)[..., exact]
    kept = np.cumprod(moved, axis=-1)
    return np.asarray(np.sum(kept, axis=-1) / np.sum(kept / moved, axis=-1))


def solved(value: Callable[[Array], Array], target: Array) -> Array:
    """The tilt at which a growing function of it has the target value."""
    low, high = np.full_like(target, -12.0), np.full_like(target, 12.0)
    for _ in range(24):
        middle = (low + high) / 2
        below = value(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2)
