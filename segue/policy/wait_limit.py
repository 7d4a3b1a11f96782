"""Limits the wait of an attempt for its machine, with or without a deadline. The module is pure."""

from __future__ import annotations

from datetime import datetime

from segue.policy import clamp
from segue.policy.availability import died_in_place, preemptions, seconds_without_spot
from segue.policy.estimates import Situation
from segue.policy.spending import priced_pools
from segue.records import Capacity, StopReason
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration


def has_waited_too_long(spec: RunSpec, history: History, *, now: datetime) -> bool:
    """Whether a run without a deadline has waited for spot as long as its policy permits.

    The result is False if the run is on on-demand for another reason.
    """
    longest, bound = spec.policy.max_wait_seconds, spec.policy.preemption_bound
    if spec.deadline is not None or longest is None or spec.policy.name == "on_demand_only":
        return False
    if bound is not None and preemptions(history) >= bound:
        return False
    is_dying = len(died_in_place(history)) >= spec.policy.max_lost_in_place
    is_cheaper = priced_pools(spec, history).price_ratio > 1
    return is_cheaper and not is_dying and seconds_without_spot(history, now=now) >= longest


def choice_without_deadline(spec: RunSpec, history: History, now: datetime) -> tuple[Capacity, str]:
    """Return the capacity of the next attempt of a run without a deadline, with the reason."""
    longest = spec.policy.max_wait_seconds
    if longest is None:
        return Capacity.SPOT, "spot: no deadline, so the cheapest capacity"
    limit = f"at most {duration(longest)} (policy.max_wait_seconds)"
    if not has_waited_too_long(spec, history, now=now):
        return Capacity.SPOT, f"spot: no deadline, so the cheapest capacity, after a wait of {limit}"
    waited = duration(seconds_without_spot(history, now=now))
    last = history.fresh_reports[-1] if history.fresh_reports else None
    if last is not None and last.capacity is Capacity.ON_DEMAND and last.stop_reason is StopReason.NO_CAPACITY:
        return Capacity.SPOT, f"spot: on-demand has no machine either, after {waited} without a spot machine"
    return Capacity.ON_DEMAND, f"on-demand: no spot machine for {waited}, and the wait is {limit}"


def gives_up(spec: RunSpec, history: History, capacity: Capacity, *, now: datetime) -> bool:
    """Whether an attempt on this capacity gives up its request after a wait without a machine.

    A request for on-demand stays in its queue, because a new request would be last in the queue. If the run is on
    on-demand only because spot took too long, the next request is for spot.
    """
    return capacity is Capacity.SPOT or has_waited_too_long(spec, history, now=now)


def booted_seconds(spec: RunSpec, here: Situation) -> float:
    """Return the longest time in seconds until a booted standby claims the run. A standby claims at once or never."""
    longest, timeout = clamp.longest_wait_seconds(here), spec.liveness.heartbeat_timeout_seconds
    usual = spec.liveness.start_seconds + here.changeover_seconds
    return max(min(usual if longest is None else longest, timeout), 1.0)


def wait_seconds(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, share: float, wanted: float | None
) -> float:
    """Return the longest wait for a machine in seconds, from the decision to the claim.

    `wanted` is the wait for capacity that the policy wants, without the boot. The value None means no limit. `share` is
    the share of the wait that the attempt spends on one pool.
    """
    # The attempt boots after the wait for capacity, and claims after the boot. The clamp's wait counts the boot.
    boot, capacity_seconds = here.changeover_seconds, spec.liveness.start_seconds
    if wanted is not None:
        capacity_seconds = min(wanted, capacity_seconds)
    if capacity_seconds > 0:
        capacity_seconds *= share
    if spec.deadline is None and spec.policy.max_wait_seconds is not None:
        left = spec.policy.max_wait_seconds - seconds_without_spot(history, now=now)
        capacity_seconds = min(left, capacity_seconds) if left > 0 else capacity_seconds
    longest = None if is_only_spot_in_time(spec, here) else clamp.longest_wait_seconds(here)
    wait = boot + capacity_seconds
    return max(wait if longest is None else min(longest, wait), 1.0)


def is_only_spot_in_time(spec: RunSpec, here: Situation) -> bool:
    """Whether the run has a single spot pool, and only spot still meets the deadline."""
    spare = clamp.spare_on_spot_seconds(here)
    return len(spec.pools.spot) == 1 and spare is not None and spare > 0
