"""Decides how often a run commits, and whether a notice leaves time for one more save.

The module is pure.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from segue.units import duration

PRIOR_LIFE_SECONDS = 7200.0
"""Assumed seconds between preemptions until the first preemption.

The mean in published traces of V100 spot machines is 2.1 h.
"""

FIRST_SAVE_SECONDS = 60.0
"""Seconds of training before the first save, which measures the cost of a save.

The first save is late enough for a measurement of steps without a save.
"""

NOTICE_SHARE = 0.7
"""Largest expected duration of the last save, as a share of the remaining time. The rest is a margin."""

ASSUMED_BYTES_PER_SECOND = 100e6
"""Assumed bytes per second of a save until a rate has been measured.

The value is below the rate of the slowest measured S3 client on one machine (136 MB/s).
"""

_IDLE_STEPS_KEPT = 64
_SAVES_KEPT = 8
_LEAST_SECONDS = 1e-6
"""Shortest duration of a save in seconds, because a coarse clock may show zero seconds for a small save."""


@dataclass(frozen=True)
class SaveCost:
    """The training time that a save costs, and the duration of the save."""

    stall_seconds: float
    """Seconds for which the save blocked the safe point."""
    slowdown_seconds: float
    """Extra seconds of the steps during the write of the save."""
    save_seconds: float
    """Seconds from the snapshot to the commit, without the wait for the metric."""
    evaluate_seconds: float = 0.0
    """Seconds for which the recipe's `evaluate` blocked training after the save.

    The value is 0 if the save has no call of `evaluate`.
    """

    @property
    def cost_seconds(self) -> float:
        """Seconds of training time that one save costs (C)."""
        return self.stall_seconds + self.slowdown_seconds + self.evaluate_seconds


@dataclass(frozen=True)
class Life:
    """The prior and the observations of the time between preemptions on spot."""

    up_seconds: float = 0.0
    """Seconds on spot so far, including the running attempt."""
    preemptions: int = 0
    prior_seconds: float = PRIOR_LIFE_SECONDS
    prior_weight: float = 1.0
    """Weight of the prior, as a number of preemptions."""

    @property
    def mean_seconds(self) -> float:
        """The mean life in seconds that `mean_life_seconds` estimates (M)."""
        return mean_life_seconds(
            self.up_seconds, self.preemptions, prior_seconds=self.prior_seconds, prior_weight=self.prior_weight
        )


@dataclass(frozen=True)
class Cadence:
    """The interval between commits, the reason for the interval, and the numbers behind it."""

    interval_seconds: float | None
    """Seconds from the end of a save's stall until the next save is due.

    The value is None if only the number of steps determines when a save is due.
    """
    reason: str
    numbers: dict[str, float] = field(default_factory=dict)
    every_steps: int | None = None


@dataclass(frozen=True)
class LastSave:
    """The decision about a last save after a notice, and its reason."""

    save: bool
    expected_seconds: float
    """Expected seconds until the last save is committed. The time includes a save that is still being written."""
    reason: str


class CostMeter:
    """Measures the cost of saves during training from the last 64 steps without a save and the last 8 saves.

    All estimates are medians, because one slow disk flush or one late batch must not change the interval. The first
    save allocates memory and opens connections, and therefore takes 2 to 10 times as long as later saves. The meter
    uses the first save only until the second save is measured.
    """

    def __init__(self) -> None:
        self._idle_steps: deque[float] = deque(maxlen=_IDLE_STEPS_KEPT)
        self._saves: deque[SaveCost] = deque(maxlen=_SAVES_KEPT)
        self._rates: deque[float] = deque(maxlen=_SAVES_KEPT)
        self._has_warmed_up = False
        self._busy_seconds, self._busy_steps = 0.0, 0

    def step_done(self, seconds: float, *, writer_busy: bool) -> None:
        """Record a step. `writer_busy` means that the writer process was writing a save during the step."""
        if writer_busy:
            self._busy_seconds += seconds
            self._busy_steps += 1
        else:
            self._idle_steps.append(seconds)

    def save_done(
        self, stall_seconds: float, save_seconds: float, size_bytes: int, *, evaluate_seconds: float = 0.0
    ) -> None:
        """Record a committed save. The cost of the save includes the slower steps since the previous save.

        Sealing and pruning follow each commit. The cost of steps during sealing and pruning therefore belongs to the
        next save.
        """
        if len(self._saves) == 1 and not self._has_warmed_up:
            self._saves.clear()
            self._rates.clear()
            self._has_warmed_up = True
        self._saves.append(SaveCost(stall_seconds, self._slowdown_seconds(), save_seconds, evaluate_seconds))
        self._rates.append(size_bytes / max(save_seconds, _LEAST_SECONDS))
        self._busy_seconds, self._busy_steps = 0.0, 0

    @property
    def estimate(self) -> SaveCost | None:
        """Return the median cost of the newest saves, or None before the first save."""
        if not self._saves:
            return None
        return SaveCost(
            stall_seconds=median(save.stall_seconds for save in self._saves),
            slowdown_seconds=median(save.slowdown_seconds for save in self._saves),
            save_seconds=median(save.save_seconds for save in self._saves),
            evaluate_seconds=median(save.evaluate_seconds for save in self._saves),
        )

    @property
    def cost_seconds(self) -> float | None:
        return self.estimate.cost_seconds if self.estimate else None

    @property
    def save_seconds(self) -> float | None:
        return self.estimate.save_seconds if self.estimate else None

    @property
    def bytes_per_second(self) -> float | None:
        """Return the median rate of the newest saves from snapshot to commit, in bytes per second.

        The value is None before the first save.
        """
        return median(self._rates) if self._rates else None

    def _slowdown_seconds(self) -> float:
        if not self._idle_steps:
            return 0.0  # Nothing to compare with: only the stall is known.
        return max(self._busy_seconds - self._busy_steps * median(self._idle_steps), 0.0)


def mean_life_seconds(
    up_seconds: float,
    preemptions: int,
    *,
    prior_seconds: float = PRIOR_LIFE_SECONDS,
    prior_weight: float = 1.0,
) -> float:
    """Return the estimated seconds between preemptions.

    The estimate combines the observations with a prior of weight `prior_weight`, in preemptions. If preemptions come at
    a constant rate with the prior Gamma(shape w, rate w prior), then n preemptions in T seconds of uptime give the
    posterior Gamma(w + n, w prior + T). The result is one over the mean of the posterior. The uptime includes the
    running attempt, so a long time without preemptions increases the estimate at once. A weak prior is enough, because
    the save interval grows with the square root of the estimate. If the estimate is wrong by a factor of four, the
    interval doubles or halves, and the run loses a quarter more time than with the best interval.
    """
    return (prior_weight * prior_seconds + up_seconds) / (prior_weight + preemptions)


def young_daly_seconds(*, cost_seconds: float, mean_life_seconds: float) -> float:
    """Return the seconds of work between two saves that minimize the time lost to saves and preemptions.

    The formula is Young's sqrt(2 C M) (CACM 17(9), 1974) with the higher-order terms of Daly (FGCS 22(3), 2006). Daly's
    terms are needed if the cost C of a save is not small compared with the mean life M. For C >= 2 M, Daly's result is
    M, but at C = 2 M Daly's series only reaches 8/9 M. For C >= 2 M, the function uses min(M, 4/9 C), because a longer
    life must not make the interval shorter.
    """
    if cost_seconds >= 2 * mean_life_seconds:
        return min(mean_life_seconds, 4 / 9 * cost_seconds)
    ratio = cost_seconds / (2 * mean_life_seconds)
    return math.sqrt(2 * cost_seconds * mean_life_seconds) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_seconds


def as_asked(*, every_steps: int | None = None, every_seconds: float | None = None) -> Cadence:
    """Return the cadence that the run spec sets by steps, by seconds or by both.

    If the spec sets both, a save is due at the first of the two.
    """
    asked = [f"{every_steps} steps"] if every_steps is not None else []
    asked += [f"{every_seconds:g} s"] if every_seconds is not None else []
    which = ", whichever comes first" if len(asked) == 2 else ""
    return Cadence(every_seconds, f"every {' or '.join(asked)}{which}, as configured", every_steps=every_steps)


def interval_seconds(
    cost: SaveCost | None,
    *,
    life: Life | None,
    max_work_at_risk_seconds: float,
    shortest_seconds: float = 1.0,
) -> Cadence:
    """Return the cadence that follows from the measured cost of a save and the observed preemptions.

    All arguments in seconds are positive. `cost` is None before the first save. `life` is None if no preemption is
    expected. Work is at risk from one snapshot until the commit of the next snapshot: for the interval, one save, and
    the current step. The interval is never shorter than a save, because the run would skip a save that is due during
    the previous save.
    """
    if cost is None:
        first = min(FIRST_SAVE_SECONDS, max_work_at_risk_seconds)
        return Cadence(first, f"after {duration(first)}: first save, to measure its cost", _numbers(life, first))
    longest = max(max_work_at_risk_seconds - cost.save_seconds, cost.save_seconds)
    shortest = max(cost.save_seconds, shortest_seconds)
    best = None
    if life is not None:
        best = young_daly_seconds(cost_seconds=cost.cost_seconds, mean_life_seconds=life.mean_seconds)
    interval = longest if best is None else min(max(best, shortest), longest)
    cap = f"max_work_at_risk_seconds = {max_work_at_risk_seconds:g}"
    if 2 * cost.save_seconds > max_work_at_risk_seconds:
        at_risk = duration(2 * cost.save_seconds)
        why = f"one save takes that long end to end, so {at_risk} of work are at risk, more than {cap}"
    elif life is None or best is None:
        why = f"no preemptions expected, so limited only by {cap} less {duration(cost.save_seconds)} for the save"
    elif best > longest:
        limit = f"limited by {cap} less {duration(cost.save_seconds)} for the save"
        why = f"{_rule(cost, life)} gives {duration(best)}, {limit}"
    elif best >= shortest:
        why = _rule(cost, life)
    else:
        is_slow = shortest == cost.save_seconds
        bound = "one save takes that long end to end" if is_slow else "the shortest interval allowed"
        why = f"{bound}; {_rule(cost, life)} gives {duration(best)}"
    return Cadence(interval, f"every {duration(interval)}: {why}", _numbers(life, interval, cost=cost, best=best))


def should_save_on_notice(
    *,
    size_bytes: int,
    bytes_per_second: float | None,
    save_seconds: float | None,
    seconds_left: float,
    in_flight_seconds_left: float | None = None,
) -> LastSave:
    """Decide on a last save: its commit must be expected within 70 % of the remaining time.

    The writer process writes saves in order, so it first completes a save in flight. The remaining 30 % of the time are
    for the report. If the attempt died during a save, the controller would declare it lost only after the heartbeat
    timeout.
    """
    if bytes_per_second:
        own, basis = size_bytes / bytes_per_second, f"{_size(size_bytes)} at {_size(bytes_per_second)}/s"
    elif save_seconds is not None:
        own, basis = save_seconds, "as long as earlier saves"
    else:
        own, basis = size_bytes / ASSUMED_BYTES_PER_SECOND, "assumed: no save was made yet"
    in_flight = max(in_flight_seconds_left or 0.0, 0.0)
    expected = in_flight + own
    behind = f" after {duration(in_flight)} for the save in flight" if in_flight else ""
    needs = f"it needs {duration(own)} ({basis}){behind}"
    share = f"{NOTICE_SHARE:.0%} of the {duration(max(seconds_left, 0.0))} left"
    if expected <= NOTICE_SHARE * seconds_left:
        return LastSave(True, expected, f"one last save: {needs}, within {share}")
    if in_flight_seconds_left is None:
        instead = "the newest commit is kept"
    elif in_flight <= seconds_left:
        instead = "the save in flight can finish"
    else:
        instead = "the save in flight may not finish either"
    return LastSave(False, expected, f"no last save: {needs}, more than {share}; {instead}")


def _rule(cost: SaveCost, life: Life) -> str:
    seen = f"{life.preemptions} observed" if life.preemptions else "none observed yet"
    parts = ""
    if cost.evaluate_seconds:
        own = cost.stall_seconds + cost.slowdown_seconds
        parts = f" ({duration(own)} for the save and {duration(cost.evaluate_seconds)} for `evaluate`)"
    return (
        f"Young/Daly for a save cost of {duration(cost.cost_seconds)}{parts} and {duration(life.mean_seconds)} "
        f"between preemptions (prior {duration(life.prior_seconds)}, {seen})"
    )


def _numbers(
    life: Life | None, interval: float, *, cost: SaveCost | None = None, best: float | None = None
) -> dict[str, float]:
    named = {
        "interval_seconds": interval,
        "stall_seconds": cost.stall_seconds if cost else None,
        "slowdown_seconds": cost.slowdown_seconds if cost else None,
        "save_seconds": cost.save_seconds if cost else None,
        "evaluate_seconds": cost.evaluate_seconds if cost and cost.evaluate_seconds else None,
        "mean_life_seconds": life.mean_seconds if life else None,
        "preemptions": life.preemptions if life else None,
        "young_daly_seconds": best,
        "work_at_risk_seconds": interval + cost.save_seconds if cost else None,
    }
    return {name: round(value, 3) for name, value in named.items() if value is not None}


def _size(size_bytes: float) -> str:
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 10e6 else f"{size_bytes / 1e6:.2g} MB"
