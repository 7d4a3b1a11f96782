"""Synthetic traces from hazards: policies can be tried without data files. Pure.

They are semi-Markov: in each tick an interval ends with a probability that depends only on its age, by the
published hazards times a factor. The first tick is at a random moment of an endless history: most runs start within a
long interval.
"""

from __future__ import annotations

import numpy as np

from segue.policy.rules.hazards import DOWN_RATES, UP_RATES, age_bin
from segue.policy.rules.view import Flags, Floats

_FORGOTTEN = 1e-7
"""Share of intervals that may be older than the oldest age that is drawn for the first tick."""


def synthetic_availability(
    random: np.random.Generator,
    runs: int,
    seconds: float,
    tick_seconds: float,
    *,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
) -> Flags:
    """(runs, ticks) of availability that cover `seconds`, from the published hazards times these positive factors.

    An `up_factor` of 2 doubles the preemption rate; a `down_factor` of 2 doubles the rate at which spot comes back.
    """
    up_rates, down_rates = UP_RATES * up_factor, DOWN_RATES * down_factor
    ticks = int(np.ceil(seconds / tick_seconds)) + 1
    is_up, age = _starts(random, runs, tick_seconds, up_rates, down_rates)
    rows = np.empty((ticks, runs), bool)
    for at in range(ticks):
        rows[at] = is_up
        bins = age_bin(age)
        rate = np.where(is_up, up_rates[bins], down_rates[bins])
        ends = random.random(runs) < -np.expm1(-rate * tick_seconds)
        is_up = is_up ^ ends
        age = np.where(ends, 0.0, age + tick_seconds)
    return np.ascontiguousarray(rows.T)


def _starts(
    random: np.random.Generator, runs: int, tick_seconds: float, up_rates: Floats, down_rates: Floats
) -> tuple[Flags, Floats]:
    """State and age of spot at a random moment: each (state, age) is as frequent as intervals that reach it."""
    up_reach, down_reach = (_reach(rates, tick_seconds) for rates in (up_rates, down_rates))
    weights = np.concatenate([up_reach, down_reach])
    drawn = random.choice(len(weights), runs, p=weights / weights.sum())
    is_up = drawn < len(up_reach)
    return is_up, np.where(is_up, drawn, drawn - len(up_reach)) * tick_seconds


def _reach(rates: Floats, tick_seconds: float) -> Floats:
    """The share of intervals that reach each age, in ticks, up to an age that almost none reaches."""
    oldest = -np.log(_FORGOTTEN) / rates.min()
    ages = np.arange(0.0, oldest + tick_seconds, tick_seconds)
    hazard = rates[age_bin(ages)] * tick_seconds
    return np.asarray(np.exp(-np.concatenate([[0.0], np.cumsum(hazard)[:-1]])))
