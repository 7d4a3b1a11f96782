"""Availability made from hazards, or told by a run's own log: no data file is needed to try a policy. Pure.

Made traces are semi-Markov: in each tick a spell ends with a chance that depends on its age alone, by the published
hazards times a factor. The first tick is at a random moment of an endless history: most runs start in an old spell.
"""

from __future__ import annotations

import numpy as np

from segue.policy.availability import spells
from segue.policy.rules.hazards import DOWN_RATES, UP_RATES, age_bin
from segue.policy.rules.view import Flags, Floats
from segue.runlog.history import History
from segue.simulation.traces import Trace

_FORGOTTEN = 1e-7
"""Share of spells that may be older than the oldest start that is drawn."""


def made_up(
    random: np.random.Generator,
    runs: int,
    seconds: float,
    tick_seconds: float,
    *,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
) -> Flags:
    """(runs, ticks) of made availability that cover `seconds`; spells end by these factors of the published hazards.

    A factor of 2 means twice as many ends; the factors are positive.
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


def recorded_trace(history: History, tick_seconds: float) -> Trace | None:
    """What a run saw of spot: up while an attempt had it, down while one waited or booted; None when it saw nothing.

    While the run was on on-demand, or nowhere, nobody looked. Those stretches are left out and what is known on their
    two sides is joined, so the trace is shorter than the run and the spells at a joint may look longer than they were.
    """
    known = [spell for spell in spells(history) if spell.seconds > 0]
    ends = np.cumsum([spell.seconds for spell in known])
    ticks = int(ends[-1] // tick_seconds) if len(ends) else 0
    if ticks == 0:
        return None
    spell_at = np.searchsorted(ends, np.arange(ticks) * tick_seconds, side="right")
    name = history.spec.run_id if history.spec else "run"
    return Trace(name, tick_seconds, np.array([spell.is_up for spell in known])[spell_at])


def _starts(
    random: np.random.Generator, runs: int, tick_seconds: float, up_rates: Floats, down_rates: Floats
) -> tuple[Flags, Floats]:
    """State and age of spot at a random moment: each (state, age) is met as often as a spell reaches it."""
    up_reach, down_reach = (_reach(rates, tick_seconds) for rates in (up_rates, down_rates))
    weights = np.concatenate([up_reach, down_reach])
    drawn = random.choice(len(weights), runs, p=weights / weights.sum())
    is_up = drawn < len(up_reach)
    return is_up, np.where(is_up, drawn, drawn - len(up_reach)) * tick_seconds


def _reach(rates: Floats, tick_seconds: float) -> Floats:
    """The share of spells that reach each age, in ticks, up to where next to none does."""
    oldest = -np.log(_FORGOTTEN) / rates.min()
    ages = np.arange(0.0, oldest + tick_seconds, tick_seconds)
    hazard = rates[age_bin(ages)] * tick_seconds
    return np.asarray(np.exp(-np.concatenate([[0.0], np.cumsum(hazard)[:-1]])))
