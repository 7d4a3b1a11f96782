"""Mutants of the decisions: the clamp, estimates, budgets, the save interval."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_DECIDE = "tests/policy/test_decide.py"
_ESTIMATES = "tests/policy/test_estimates.py"
_INTERVAL = "tests/policy/test_save_interval.py"
_ANY = "tests/policy/test_any_record.py"

MUTANTS = (
    Mutants(
        "segue/policy/clamp.py",
        (_DECIDE,),
        (
            (
                "    return now.changeover_seconds + now.at_risk_seconds + on_demand",
                "    return now.changeover_seconds + on_demand",
            ),
            (
                "    return now.changeover_seconds + now.at_risk_seconds + on_demand",
                "    return now.at_risk_seconds + on_demand",
            ),
            ("    return now.remaining_seconds >= needed", "    return now.remaining_seconds > needed"),
            ("        return now.probe_seconds is None or now.probe_seconds > 0", "        return True"),
            (
                "    return left is not None and left < 0 and not is_behind_others(now)",
                "    return left is not None and left < 1 and not is_behind_others(now)",
            ),
            (
                "    return now.answer_seconds + now.detection_seconds + on_demand",
                "    return now.answer_seconds + on_demand",
            ),
            (
                "    return now.answer_seconds + now.detection_seconds + on_demand",
                "    return now.detection_seconds + on_demand",
            ),
            (
                "    return now.remaining_seconds - in_seconds < on_demand",
                "    return now.remaining_seconds < on_demand",
            ),
            ("    return max(spare or 0.0, 0.0) + now.changeover_seconds", "    return max(spare or 0.0, 0.0)"),
        ),
    ),
    Mutants(
        "segue/policy/clamp.py",
        ("tests/policy/test_queueing.py",),
        (
            (
                "_needed_by_a_death_seconds(now, now.work_seconds) + now.crowd_seconds",
                "_needed_by_a_death_seconds(now, now.work_seconds)",
            ),
            (
                "    return left is not None and left < 0 and not is_behind_others(now)",
                "    return left is not None and left < 0",
            ),
            (
                "    return now.remaining_seconds - now.spot_queue_seconds - now.changeover_seconds - now.work_seconds",
                "    return now.remaining_seconds - now.changeover_seconds - now.work_seconds",
            ),
        ),
    ),
    Mutants(
        "segue/policy/estimates.py",
        (_ESTIMATES,),
        (
            ("* rate * (1 + spec.policy.margin_share)", "* rate"),
            ("_LONGEST_OF, _USUAL_OF = 3, 5", "_LONGEST_OF, _USUAL_OF = 1, 5"),
            ("(*of_it[-_LONGEST_OF:], *new[-_LONGEST_OF:])", "of_it[-_LONGEST_OF:]"),
            ("    expected = UNSEEN_START_FACTOR * max(", "    expected = max("),
            ("SEEN_START_FACTOR * max(seen)", "max(seen)"),
            (
                "    return max(usual, default=spec.policy.step_seconds)",
                "    return min(usual, default=spec.policy.step_seconds)",
            ),
            ("    return max(between, spec.continuity.witness_steps * step)", "    return between"),
            ("        rate = max(rate or 0.0, slowest_step_seconds)", "        rate = slowest_step_seconds"),
            (
                "spec.liveness.heartbeat_seconds + (rate or 0.0) + (save or 0.0)",
                "spec.liveness.heartbeat_seconds + (rate or 0.0)",
            ),
            (
                "    return median(seen[-_USUAL_OF:]) if seen else None",
                "    return max(seen[-_USUAL_OF:]) if seen else None",
            ),
        ),
    ),
    Mutants(
        "segue/policy/estimates.py",
        ("tests/policy/test_queueing.py::test_a_wait_in_a_queue_is_no_changeover_beyond_the_time_of_the_plan",),
        (("    return seconds if longest is None else min(seconds, longest)", "    return seconds"),),
    ),
    Mutants(
        "segue/policy/save_interval.py",
        (_INTERVAL,),
        (
            ("    if expected <= NOTICE_SHARE * seconds_left:", "    if expected <= seconds_left:"),
            (
                "    return (prior_weight * prior_seconds + up_seconds) / (prior_weight + preemptions)",
                "    return (prior_weight * prior_seconds + up_seconds) / prior_weight",
            ),
            ("        if len(self._saves) == 1 and not self._has_warmed_up:", "        if False:"),
            (
                "    interval = longest if best is None else min(max(best, shortest), longest)",
                "    interval = longest if best is None else max(best, shortest)",
            ),
            ("    expected = in_flight + own", "    expected = own"),
            ("max(save_seconds, _LEAST_SECONDS))", "save_seconds)"),
        ),
    ),
    Mutants(
        "segue/policy/failure_classes.py",
        ("tests/policy/test_failure_classes.py",),
        (
            (
                "        if counted and len(counted) >= each.budget(spec):",
                "        if counted and len(counted) > each.budget(spec):",
            ),
            ("        and report.to_step >= history.committed_step", ""),
            ("first_seconds * 2.0**again", "first_seconds"),
            ("max(slack_seconds, 0.0) * _SLACK_SHARE)", "max(slack_seconds, 0.0))"),
        ),
    ),
    Mutants(
        "segue/policy/budget_cap.py",
        ("tests/policy/test_budget_cap.py",),
        (
            (
                "        return min(self.caps, key=lambda cap: cap.left)",
                "        return max(self.caps, key=lambda cap: cap.left)",
            ),
            ("        if known is not None and known.month == month.name:", "        if known is not None:"),
            (
                "    if purse.affordable_seconds(price, start_cost=start_cost) <= needed:",
                "    if purse.affordable_seconds(price, start_cost=start_cost) < 0:",
            ),
            ("        return self.renewed_in_seconds + self.limit / price * HOUR", "        return seconds"),
        ),
    ),
    Mutants(
        "segue/policy/decide.py",
        ("tests/policy/test_failure_classes.py::test_a_cancelled_segment_ends_the_run_and_the_next_start_goes_on",),
        (("    if last is not None and last.stop_reason is StopReason.CANCELLED:", "    if False:"),),
    ),
    Mutants(
        "segue/policy/decide.py",
        (_DECIDE,),
        (
            (
                "    return (last.segment, last.attempt + 1) if parent == last.parent else (last.segment + 1, 1)",
                "    return (last.segment, last.attempt + 1)",
            ),
            ("        return max(spec.policy.probe_share * here.remaining_seconds, 1.0)", "        return None"),
            ("and in_place[0].capacity is Capacity.ON_DEMAND:", "and True:"),
        ),
    ),
    Mutants(
        "segue/policy/machines/bad_machines.py",
        ("tests/policy/machines/test_bad_machines.py",),
        (
            ("    if score < 1.0:", "    if score < 0.5:"),
            ('    shares["died"] = min(shares["died"], _MOST_OF_DEATHS)', "    pass"),
            ("        share = 0.5 ** max(age, 0.0) / each.machines", "        share = 0.5 ** max(age, 0.0)"),
        ),
    ),
    Mutants(
        "segue/policy/machines/machine_evidence.py",
        ("tests/policy/machines/test_machine_evidence.py",),
        (
            ("it.parent == parent and it.verdict.kind in _PROVEN)", "it.parent == parent)"),
            ("and history.committed_step > report.to_step:", "and history.committed_step > 0:"),
            ("        if not is_skipped and any(", "        if any("),
        ),
    ),
    Mutants(
        "segue/units.py",
        (
            f"{_ANY}::test_seconds_are_within_bounds",
            f"{_ANY}::test_a_price_that_is_none_is_not_known_and_the_pool_keeps_its_own",
        ),
        (
            (
                "    return least if math.isnan(value) else min(max(value, least), most)",
                "    return min(max(value, least), most)",
            ),
            (
                "    return least if math.isnan(value) else min(max(value, least), most)",
                "    return least if math.isnan(value) else max(value, least)",
            ),
            ("for name, price in values.items() if price > 0}", "for name, price in values.items()}"),
        ),
    ),
    Mutants(
        "segue/units.py",
        (f"{_ANY}::test_it_is_decided_what_happens_next",),
        (
            ("    return min(max(value, 0), MOST_COUNT)", "    return max(value, 0)"),
            ("if EARLIEST <= value <= LATEST else", "if True else"),
        ),
    ),
    Mutants(
        "segue/policy/availability.py",
        (f"{_ANY}::test_a_hand_over_that_lacks_a_figure_is_read",),
        (('handover.numbers.get("held_seconds", 0.0)', 'handover.numbers["held_seconds"]'),),
    ),
)
