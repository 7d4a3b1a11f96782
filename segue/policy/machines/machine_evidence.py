"""Derives observations of machines from the attempts in a run's history. The module is pure.

The module blames a machine for wrong numbers only if the run itself has excluded the recipe and the checkpoint as the
cause. There are two proofs. The first proof is a broken resume, if a later resume from the same checkpoint was not
broken. The second proof is a number that was not finite, if a later attempt made the same step without an anomaly or a
skip. The module blames a machine for a hang only if a later attempt made the step at which the machine hung.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from statistics import median

from segue.records import SeenMachine, SegmentReport, StopReason, VerdictKind
from segue.runlog.history import Attempt, History

SLOW_RATIO = 1.2
"""Least step time of a slow attempt, as a multiple of the run's median on like hardware."""
_LEAST_STEPS, _LEAST_ATTEMPTS = 20, 3
"""Least number of measured steps, and of attempts on like hardware, for which step times are compared."""
Hardware = tuple[object, ...]
"""The properties of an environment that determine the duration of a step."""
_PROVEN = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)


def seen_machines(history: History, *, log_id: str) -> tuple[SeenMachine, ...]:
    """Return the observations of machines from the ended attempts and the failed checks of a run."""
    usual = _usual_step_seconds(history)
    found, before = [], None
    for attempt in history.attempts:
        found += _seen_of(attempt, history, log_id, usual, before)
        before = attempt
    for entry in history.unfit_machines:
        place = {"pool": entry.deployment, "log_id": log_id, "segment": entry.segment, "attempt": entry.attempt}
        why = "; ".join(entry.machine_check.problems)
        facts = {"machine": entry.machine, "begun_at": entry.written_at, "seconds": 0.0}
        found.append(SeenMachine.model_validate(place | facts | {"end": "check_failed", "why": why}))
    return tuple(found)


def _seen_of(
    attempt: Attempt, history: History, log_id: str, usual: Mapping[Hardware, float], before: Attempt | None
) -> list[SeenMachine]:
    claim, report = attempt.claim, attempt.report
    plan = history.plan_of(claim.segment, claim.attempt)
    if report is None or plan is None or not claim.machines:
        return []
    own, median_seconds = _step_seconds(attempt), usual.get(_hardware(attempt))
    slowness = None if own is None or median_seconds is None else round(own / median_seconds, 4)
    blamed = _wrong_numbers(attempt, history)
    end, why, seconds = "ended", "", report.seconds
    if blamed is not None:
        end, (why, at) = "wrong_numbers", blamed
        seconds = max(seconds, (at - claim.written_at).total_seconds())
    elif report.stop_reason is StopReason.HUNG and history.committed_step > report.to_step:
        end, why = "hung", f"it hung after step {report.to_step}, and a later attempt did not"
    elif (
        report.slowness is not None
        and not report.slow_ranks
        and (report.leaves_machine or slowness is None or slowness >= SLOW_RATIO)
    ):
        end, why = "slow", f"its steps took {report.slowness:.2f} times as long as usual"
    elif report.stop_reason is StopReason.LOST:
        end, why = "died", report.note or ""
    facts = {"zone": report.zone, "pool": plan.deployment, "log_id": log_id, "segment": claim.segment}
    facts |= {"attempt": claim.attempt, "begun_at": claim.written_at, "seconds": max(seconds, 0.0), "end": end}
    facts |= {"machines": len(claim.machines), "slowness": slowness, "why": why}
    # The machine of a slow rank does not share its blame. The other machines only waited for this rank.
    facts |= {"slowness": None} if report.slow_ranks else {}
    whys = _whys_of_slow_ranks(report, before) if end != "wrong_numbers" else {}
    slow = {name: {"end": "slow", "why": why, "machines": 1} for name, why in whys.items()}
    return [SeenMachine.model_validate({"machine": it} | facts | slow.get(it.name, {})) for it in claim.machines]


def _whys_of_slow_ranks(report: SegmentReport, before: Attempt | None) -> dict[str, str]:
    """Return the evidence against the machines of slow ranks, by the name of the machine.

    If the same rank was slow on another machine in the attempt before, the data of this rank may be the cause.
    """
    earlier = before.report.slow_ranks if before is not None and before.report is not None else ()
    known = {each.rank: each.machine.name for each in earlier}
    found = ((each.machine.name, each) for each in report.slow_ranks)
    return {name: each.why for name, each in found if known.get(each.rank, name) == name}


def _wrong_numbers(attempt: Attempt, history: History) -> tuple[str, datetime] | None:
    """Return the evidence that the attempt's machine computed wrong numbers, and the time of the proof."""
    name = attempt.claim.attempt_id
    if attempt.verdict is not None and attempt.verdict.kind is VerdictKind.BROKEN:
        at = next(at for at, entry in enumerate(history.resumes) if entry.attempt_id == name)
        parent = history.resumes[at].parent
        later = (it for it in history.resumes[at + 1 :] if it.parent == parent and it.verdict.kind in _PROVEN)
        proof = next(later, None)
        if proof is not None and _has_ended_between(history, attempt.claim.written_at, proof.written_at):
            return None
        why = f"its resume from step {parent.step} was broken, and a later resume from there was not"
        return (why, proof.written_at) if proof is not None else None
    anomaly = attempt.report.anomaly if attempt.report is not None else None
    if anomaly is None or anomaly.kind != "non_finite":
        return None
    for each in (each for each in history.attempts if each.claim.epoch > attempt.claim.epoch):
        if _has_ended_between(history, attempt.claim.written_at, each.claim.written_at):
            return None
        plan, batch = history.plan_of(each.claim.segment, each.claim.attempt), anomaly.batch
        is_skipped = plan is None or any(skip.overlaps(batch.samples_seen, batch.sample_count) for skip in plan.skips)
        if not is_skipped and any(ref.step >= anomaly.step for ref in each.commits):
            return f"{anomaly.channel} was {anomaly.value} at step {anomaly.step}, and finite in a later attempt", (
                each.claim.written_at
            )
    return None


def _has_ended_between(history: History, begin: datetime, end: datetime) -> bool:
    """Whether the run ended between two times. A person may then have changed the recipe before the next start."""
    decided = (entry for entry in history.decisions if begin < entry.written_at <= end)
    return any(entry.plan is None and entry.action != "import" for entry in decided)


def usual_step_seconds(history: History, attempt: Attempt | None) -> float | None:
    """Return the usual duration of a step on an attempt's hardware, or None if too few attempts measured it."""
    return None if attempt is None else _usual_step_seconds(history, least=2).get(_hardware(attempt))


def _usual_step_seconds(history: History, *, least: int = _LEAST_ATTEMPTS) -> dict[Hardware, float]:
    """Return the median duration of a step for each hardware with enough attempts."""
    times: defaultdict[Hardware, list[float]] = defaultdict(list)
    for each in history.attempts:
        seconds = _step_seconds(each) if each.claim.machines else None
        if seconds is not None:
            times[_hardware(each)].append(seconds)
    return {like: median(found) for like, found in times.items() if len(found) >= least}


def _step_seconds(attempt: Attempt) -> float | None:
    report = attempt.report
    if report is None or report.train_steps < _LEAST_STEPS or not report.train_seconds:
        return None
    if report.median_step_seconds is not None:
        return report.median_step_seconds
    return report.train_seconds / report.train_steps


def _hardware(attempt: Attempt) -> Hardware:
    here = attempt.claim.environment
    return here.device, here.processor, here.device_processors, here.threads, here.world_size
