"""Computes the outcome of a verification from the histories of its two runs. The module is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segue.notices.disturbance import DisturbanceKind
from segue.records import Capacity, VerdictKind
from segue.reports.cost_report import cost_report
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.verification.drill_comparison import Problem, Resume, differing, has_noise, problems_of, resumes_of, worst
from segue.verification.runs import DrillRuns, own_preemptions
from segue.verification.verifications import Outcome, Verification

_ASKED = {DisturbanceKind.KILL: "kill", DisturbanceKind.NOTICE: "notice"}


@dataclass(frozen=True)
class Found:
    """The histories of the two runs of a verification, and the disturbances."""

    undisturbed: History
    disturbed: History
    hits: Mapping[str, DisturbanceKind]
    """The disturbances that each ended an attempt on spot, by the attempt's id."""
    said: str | None = None
    """The parent's message about a run that did not finish."""


def judge_verification(runs: DrillRuns, found: Found, *, kinds: Sequence[DisturbanceKind]) -> Verification:
    """Return the outcome of a verification. `kinds` contains the kinds of requested disturbances."""
    own = resumes_of(found.undisturbed, {})
    resumes = (*own, *resumes_of(found.disturbed, found.hits))
    unfinished = _unfinished(runs, found)
    differ = () if unfinished else _differing(found)
    unexplained = () if _is_noise(found, differ) else differ
    problems = problems_of(resumes, unexplained) or _unfinished_problems(unfinished)
    outcome, reason = _outcome(found, resumes, differ, unfinished=unfinished, kinds=kinds)
    if outcome is Outcome.NOT_PROVEN and not unfinished:
        problems = (Problem(component="verification", sentence=reason, fix=_fix_of_proof(found, differ)),)
    costs = [
        cost_report(spec, history)
        for spec, history in ((runs.undisturbed, found.undisturbed), (runs.disturbed, found.disturbed))
    ]
    made = list(found.hits.values())
    return Verification(
        slot=runs.slot,
        run_id=runs.spec.run_id,
        workload=runs.spec.workload,
        steps=runs.spec.steps,
        undisturbed=runs.undisturbed.run_id,
        disturbed=runs.disturbed.run_id,
        outcome=outcome,
        reason=reason,
        is_conclusive=not unfinished or outcome is Outcome.NOT_CONTINUOUS,
        verdict=worst(resumes),
        identical=not unfinished and not differ,
        kills=made.count(DisturbanceKind.KILL),
        notices=made.count(DisturbanceKind.NOTICE),
        preemptions=own_preemptions(found.undisturbed, 0) + own_preemptions(found.disturbed, len(made)),
        resumes=resumes,
        differing=differ,
        problems=problems,
        seconds=round(sum(cost.spot_seconds + cost.on_demand_seconds for cost in costs), 3),
        cost=round(sum(cost.cost for cost in costs), 6),
        currency=runs.spec.pools.currency,
    )


def _outcome(
    found: Found,
    resumes: Sequence[Resume],
    differ: Sequence[str],
    *,
    unfinished: Mapping[str, str],
    kinds: Sequence[DisturbanceKind],
) -> tuple[Outcome, str]:
    if any(resume.verdict.kind is VerdictKind.BROKEN for resume in resumes):
        problem = problems_of([r for r in resumes if r.verdict.kind is VerdictKind.BROKEN], ())[0]
        return Outcome.NOT_CONTINUOUS, problem.sentence
    if unfinished:
        which, why = next(iter(unfinished.items()))
        # After a broken rehearsal, the run has ended without a resume.
        is_broken = any(_action(history) == "broken" for history in (found.undisturbed, found.disturbed))
        return (
            Outcome.NOT_CONTINUOUS if is_broken else Outcome.NOT_PROVEN,
            f"the {which} run did not finish: {why}",
        )
    missed = [_ASKED[kind] for kind in dict.fromkeys(kinds) if kind not in found.hits.values()]
    if differ and not _is_noise(found, differ):
        changed = _environments_differ(found)
        if changed:
            where = ", ".join(changed)
            return (
                Outcome.NOT_PROVEN,
                f"the two runs trained on machines that differ in {where}, and their results differ too",
            )
        return Outcome.NOT_CONTINUOUS, f"the final states differ in {', '.join(differ)}"
    if missed:
        return Outcome.NOT_PROVEN, f"no {' and no '.join(missed)} hit an attempt on spot"
    doubtful = next((resume for resume in resumes if not resume.is_sound), None)
    if doubtful is not None:
        return Outcome.NOT_PROVEN, f"the resume from step {doubtful.step} is {doubtful.sentence}"
    return Outcome.PASSED, _passed(found, resumes, differ)


def _passed(found: Found, resumes: Sequence[Resume], differ: Sequence[str]) -> str:
    made = list(found.hits.values())
    counts = [
        f"{count} {kind.value}{'' if count == 1 else 's'}" for kind in DisturbanceKind if (count := made.count(kind))
    ]
    after = f"after {' and '.join(counts)}"
    said = f"{after} the final state is identical to that of the undisturbed run"
    if differ:
        said = f"{after} every resume is within the noise of kernels that are not deterministic"
    replayed = sum(resume.excuse is None for resume in resumes)
    said += f"; {replayed} of {len(resumes)} resumes were replayed"
    if worst(resumes) is VerdictKind.EQUIVALENT:
        changes = dict.fromkeys(name for resume in resumes for name in resume.verdict.environment_changes)
        if changes:
            said += f", but only within tolerances, because the machines differ in {', '.join(changes)}"
    return said


def _unfinished(runs: DrillRuns, found: Found) -> dict[str, str]:
    """Return the runs that have not reached their goal, each with the reason."""
    pairs: tuple[tuple[str, RunSpec, History], ...] = (
        ("undisturbed", runs.undisturbed, found.undisturbed),
        ("disturbed", runs.disturbed, found.disturbed),
    )
    return {name: _why(history, found.said) for name, spec, history in pairs if not history.is_finished(spec)}


def _why(history: History, said: str | None) -> str:
    if history.is_over and history.decisions:
        last = history.decisions[-1]
        return f"{last.action}: {last.reason.rstrip('.')}"
    return (said or ("it has not ended" if history.decisions else "it was not started")).rstrip(".")


def _action(history: History) -> str | None:
    return history.decisions[-1].action if history.is_over and history.decisions else None


def _unfinished_problems(unfinished: Mapping[str, str]) -> tuple[Problem, ...]:
    fix = "correct the errors that its last segments report, then start the flow run again, which continues it."
    return tuple(
        Problem(component="run", sentence=f"the {name} run did not finish: {why}", fix=fix)
        for name, why in unfinished.items()
    )


def _differing(found: Found) -> tuple[str, ...]:
    one, other = found.undisturbed.newest, found.disturbed.newest
    return differing(one, other) if one is not None and other is not None else ("checkpoint",)


def _is_noise(found: Found, differ: Sequence[str]) -> bool:
    """Whether kernel noise explains the differences, because the disturbed run's replays from one state also differ."""
    history = found.disturbed
    is_noisy = bool(history.rehearsed_noise) or any(entry.verdict.noise for entry in history.resumes)
    return is_noisy and all(map(has_noise, differ))


def _environments_differ(found: Found) -> tuple[str, ...]:
    """Return the parts of the environment that differ between attempts of the two runs."""
    seen = [a.claim.environment for history in (found.undisturbed, found.disturbed) for a in history.attempts]
    return tuple(dict.fromkeys(name for other in seen[1:] for name in seen[0].differs_from(other)))


def _fix_of_proof(found: Found, differ: Sequence[str]) -> str:
    if differ and _environments_differ(found):
        return "run the verification on one spot pool of equal machines (pools.spot), and set threads."
    if not any(attempt.claim.capacity is Capacity.SPOT for attempt in found.disturbed.attempts):
        return "the run never trained on spot; use a spot pool that is cheaper than on-demand (pools.spot_price)."
    if not found.hits:
        return (
            "set a higher value for `steps`, so that the run lasts a minute or more on spot, or save more often "
            "(checkpoints.every_steps)."
        )
    return "set a higher value for `steps`, because the run ended before all disturbances were made."
