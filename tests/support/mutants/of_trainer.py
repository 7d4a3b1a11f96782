"""Mutants of the trainer: safe points, saves, stops, the time that is left."""

from __future__ import annotations

from tests.support.mutants.mutant import Mutants

_SAVING = "tests/trainer/test_saving.py"
_TIME = "tests/trainer/test_time_left.py"
_ENDINGS = "tests/trainer/test_endings.py"
_NOTICES = "tests/trainer/test_notices.py"
_ANOMALIES = "tests/trainer/test_anomalies.py"

MUTANTS = (
    Mutants(
        "segue/trainer/survivors.py",
        ("tests/trainer/ranks/test_survivors.py",),
        (
            ("        copy_all([group[name] for", "        0 and copy_all([group[name] for"),
            ("if _hash_of(text) == known)", "if text)"),
            ("_MOST_SHARE * median(steps)", "_MOST_SHARE * max(steps)"),
        ),
    ),
    Mutants(
        "segue/trainer/step_records.py",
        (
            "tests/sessions/test_local_session.py::test_the_report_of_a_program_that_leaves_its_loop_early_counts_all_its_steps",
        ),
        (
            ("    close = settle", "    def close(self) -> None: ..."),
            ("        steps, self._steps = self._steps, []", "        steps, self._steps = self._steps[1:], []"),
        ),
    ),
    Mutants(
        "segue/trainer/step_records.py",
        (_ANOMALIES,),
        (('        return self._spec.spikes == "off" and anomalous', "        return True or anomalous"),),
    ),
    Mutants(
        "segue/trainer/time_left.py",
        (_TIME,),
        (
            ("        reserve = 2 * ((save_seconds", "        reserve = 1 * ((save_seconds"),
            (
                "        return self.seconds + reserve >= self._bound_seconds",
                "        return self.seconds >= self._bound_seconds",
            ),
            ("        if self.first_step_at is None:", "        if False:"),
            ("        self.train_steps += 1", "        self.train_steps += 2"),
            ("        return needed < (1 - NOTICE_SHARE) * left", "        return True"),
            ("        reserved = min(REPORT_SECONDS, _REPORT_SHARE * self._grace_seconds)", "        reserved = 0.0"),
        ),
    ),
    Mutants(
        "segue/trainer/save_schedule.py",
        (_SAVING,),
        (
            ("        if waiting > (allowed / 2 if trouble else", "        if waiting > (allowed / 2 if False else"),
            ("        if not self._submitted or now - self._safe_at <= allowed:", "        if not self._submitted:"),
            ("max(2 * allowed, 4 * (self._meter.save_seconds or 0.0))):", 'float("inf")):'),
            ("            in_flight = max(self._meter.save_seconds - passed, 0.0)", "            in_flight = None"),
            ("replace(submitted, evaluate_seconds=seconds)", "submitted"),
        ),
    ),
    Mutants(
        "segue/trainer/save_schedule.py",
        (_SAVING,),
        (("        self.delayed += not self._is_delaying", "        self.delayed += 1"),),
    ),
    Mutants(
        "segue/trainer/safe_points.py",
        (f"{_ENDINGS}::test_a_recall_through_the_store_commits_and_ends_as_bound",),
        (
            (
                '            return StopReason.BOUND if first == "recall" else StopReason.NOTICE',
                "            return StopReason.NOTICE",
            ),
        ),
    ),
    Mutants(
        "segue/trainer/safe_points.py",
        (f"{_ENDINGS}::test_an_attempt_stops_before_its_wall_clock_bound",),
        (("        return StopReason.BOUND if is_near else None", "        return None"),),
    ),
    Mutants(
        "segue/trainer/safe_points.py",
        ("tests/trainer/test_planned_ends.py",),
        (
            (
                "        if plan.stop_at_step is not None and step >= plan.stop_at_step:",
                "        if plan.stop_at_step is not None and step > plan.stop_at_step:",
            ),
        ),
    ),
    Mutants(
        "segue/trainer/safe_points.py",
        (f"{_NOTICES}::test_a_notice_on_which_the_attempt_ends_is_in_its_report_though_it_is_withdrawn_then",),
        (("            board.hold()", "            pass"),),
    ),
    Mutants(
        "segue/trainer/loop.py",
        (f"{_ENDINGS}::test_sigterm_commits_at_the_next_safe_point_and_ends_as_notice",),
        (("            self._save(evaluate=reason is StopReason.FINISHED, is_last=True)", "            pass"),),
    ),
    Mutants(
        "segue/trainer/loop.py",
        (f"{_ANOMALIES}::test_a_step_with_an_anomaly_that_does_not_repeat_is_done_again_and_leaves_no_trace",),
        (("            self._records.refuse_poison(made)", "            pass"),),
    ),
    Mutants(
        "segue/trainer/loop.py",
        (f"{_ENDINGS}::test_sigterm_commits_at_the_next_safe_point_and_ends_as_notice",),
        (
            (
                "        self._progress.step, self._progress.samples_seen = reached.step, reached.samples_seen",
                "        self._progress.samples_seen = reached.samples_seen",
            ),
        ),
    ),
)
