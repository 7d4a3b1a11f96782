"""Names for state that a resume has lost: the root cause before its consequences, and the fix. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from segue.continuity.recipe_diff import CHANGEABLE, CONFIG, NEXT_BATCHES, SURROUNDINGS, UNTRACKED
from segue.records import Finding

UNREGISTERED = "unregistered state"
"""The component of values that training changes and no component holds."""
CARRIED = "carried"
"""The channel of lost values that decide what follows: with such values lost, no verdict is exact."""
OUTSIDE = "outside the checkpoint"
"""The component of a difference whose cause is not among the compared values."""

NO_BATCHES_FIX = (
    "batches are seen only where run.epochs loops over run.batches: if they can be others, give a framework a loader "
    "that continues (ResumableLoader, StatefulDataLoader), and a loop run.batches"
)
"""The fix of a loss that differs in a framework, or in a program without `run.batches`."""

PROCESS = "values of the process"
"""The component of times and unseeded randomness, which differ between any two processes and are never compared."""
UNREAD = "unread"
"""The channel of findings about objects whose state cannot be compared."""

ORDER, CONTENT, SCHEDULE, SCALE, UPDATE, METRIC = (
    "data order",
    "data content",
    "scheduler",
    "scaler",
    "optimizer",
    "evaluate",
)
REACHED_FROM = "reached from "
"""Precedes the field of the recipe that leads to an untracked value, if the value's path does not begin with it."""
_MOST_CAUSES, _MOST_FIXES = 6, 6
_OF_DATA = ("data.", "batches")
"""Beginnings of the components of data: of a recipe, and of the loaders of a program."""
_NEAREST = {
    "batch_fingerprint": _OF_DATA,
    "streams": _OF_DATA,
    "input_fingerprint": _OF_DATA,
    "lr": ("scheduler", "optimizer", "after_step", "step", "loss"),
    "loss_scale": ("scaler", "after_step"),
    "loss": ("loss", "model", "step"),
    "grad_norm": ("model", "step", "loss"),
    "param_norm": ("optimizer", "after_step", "step", "model"),
    "state": ("extra", "after_step", "model"),
    METRIC: ("evaluate", "model", "extra"),
}
"""Where the cause of a difference is most likely, by the first channel that differs."""
_OF_BATCHES = ("batch_fingerprint", "streams", "input_fingerprint")
_OF_NUMBERS = ("loss", "grad_norm")

_REGISTER = "register it in Recipe.extra (a program: run.track)"
_ALSO = "also different"
_SAID = {UNREGISTERED: "changed since the commit, and in no component", PROCESS: "not compared"}
_FIXES = {
    PROCESS: "compute it from the config or the number of the step: no loss may depend on the time, or on randomness "
    "that nothing seeds",
    ORDER: f"let the order of samples follow from the seed alone; if a sampler or a data set has state, {_REGISTER}",
    CONTENT: "let a sample follow from its index and the seeded streams alone; a counter or generator of the data set "
    "belongs in Recipe.extra, a time or a file that changes does not belong in a batch",
    SCHEDULE: f"change learning rates through the scheduler alone; if they depend on other state, {_REGISTER}",
    SCALE: "pass the scaler as Recipe.scaler (a program: run.track)",
    UPDATE: f"if a hook, a wrapper or after_step has state of its own, {_REGISTER}",
    METRIC: f"if evaluate uses weights or values of its own, {_REGISTER}",
    OUTSIDE: "look for what loss, hooks, after_step and the data set read besides their arguments; if it changes in "
    f"training, {_REGISTER}; if a kernel is not deterministic, call torch.use_deterministic_algorithms(True) in build",
}


def fix_of(component: str, channel: str) -> str:
    """The fix for a finding."""
    if component in CHANGEABLE:
        return f"undo the change, or accept it by naming {component} in continuity.accept"
    if component == NEXT_BATCHES:
        return "use the data set, batch size and seed that the run had before, or start a new run"
    if component == SURROUNDINGS:
        return "set it to the same value on every machine, or pass it in the run's config, which a resume compares"
    if channel == "digest":
        return f"restore all of {component} in its load_state_dict, and do not change it before the first step"
    if component.startswith("rng."):
        return (
            "draw from the global streams only in steps and samples; if how much is drawn depends on other state, "
            + _REGISTER
        )
    return _FIXES.get(component, f"if something else changes {component} in training, {_REGISTER}")


def explained(
    findings: tuple[Finding, ...],
    *,
    untracked: Sequence[Finding],
    noted: Sequence[Finding],
    compared: Collection[str],
) -> tuple[Finding, ...]:
    """The findings of a replay, the first one named after its root cause, and each with its fix.

    Everything in `compared` has been found equal, so the cause lies elsewhere: in `untracked` values, or in `noted`
    differences of the setup. A stray draw from a stream, and samples in another order, are causes themselves.
    """
    if not findings:
        return ()
    first, others = findings[0], findings[1:]
    untracked = sorted(untracked, key=lambda finding: _rank_of(finding, first.channel))
    if untracked and untracked[0].channel == CARRIED and first.channel not in _OF_BATCHES:
        return (_by_carried(first, untracked, noted), *map(with_fix, others))
    causes = [finding.sentence for finding in (*untracked, *noted)]
    more = [f"{len(causes) - _MOST_CAUSES} more"] if len(causes) > _MOST_CAUSES else []
    named = _cause_of(first, untracked, noted)
    if named is not None:
        what = _SAID.get(named.component, _ALSO)
        sentence = f"{first.sentence}; {what}: {'; '.join(causes[:_MOST_CAUSES] + more)}"
        same = untracked if named.component == UNREGISTERED else (named,)
        fixes = list(dict.fromkeys(with_fix(finding).fix for finding in same))[:_MOST_FIXES]
        fixes += [first.fix] if first.fix else []
        update = {"component": named.component, "sentence": sentence, "fix": "; ".join(fixes)}
        first = first.model_copy(update=update)
    elif first.channel in _OF_NUMBERS:
        seen = ", ".join(sorted(name for name in compared if name not in (CONFIG, UNTRACKED)))
        sentence = f"{first.sentence}; the cause lies outside what was compared and is equal ({seen})"
        first = first.model_copy(update={"component": OUTSIDE, "sentence": sentence})
    elif causes:
        advised = [with_fix(first).fix or "", *(cause.fix for cause in (*untracked, *noted) if cause.fix)]
        sentence = "; ".join((first.sentence, *causes[:_MOST_CAUSES], *more))
        fix = "; ".join(list(dict.fromkeys(advised))[:_MOST_FIXES])
        first = first.model_copy(update={"sentence": sentence, "fix": fix})
    return (with_fix(first), *map(with_fix, others))


def unreplayed(*, untracked: Sequence[Finding], noted: Sequence[Finding]) -> tuple[Finding, ...]:
    """The finding about a resume without a replayed step: the values that differ from the record of the commit."""
    known = [*untracked, *(finding for finding in noted if finding.component != PROCESS)]
    if not known:
        return ()
    said = [finding.sentence for finding in known]
    more = [f"{len(said) - _MOST_CAUSES} more"] if len(said) > _MOST_CAUSES else []
    sentence = f"no step was replayed; since the commit this has changed: {'; '.join(said[:_MOST_CAUSES] + more)}"
    return (with_fix(known[0]).model_copy(update={"sentence": sentence}),)


def _rank_of(finding: Finding, channel: str) -> tuple[bool, bool]:
    return finding.channel != CARRIED, not _is_near(finding, channel)


def _by_carried(first: Finding, untracked: Sequence[Finding], noted: Sequence[Finding]) -> Finding:
    """The finding of a replay with a known cause: lost values that decide what follows."""
    causes = [finding for finding in untracked if finding.channel == CARRIED]
    more = [f"{len(causes) - _MOST_CAUSES} more"] if len(causes) > _MOST_CAUSES else []
    said = "; ".join([cause.sentence for cause in causes[:_MOST_CAUSES]] + more)
    fixes = list(dict.fromkeys(cause.fix for cause in causes))[:_MOST_FIXES]
    also = [finding.sentence for finding in (*untracked, *noted) if finding.channel != CARRIED][:_MOST_CAUSES]
    sentence = f"{said}. In the replay, {first.sentence}{f'; {_ALSO}: ' if also else ''}{'; '.join(also)}"
    return first.model_copy(update={"component": UNREGISTERED, "sentence": sentence, "fix": "; ".join(fixes)})


def with_causes(finding: Finding, *, untracked: Sequence[Finding], noted: Sequence[Finding]) -> Finding:
    """The finding about a recipe that every process runs differently, with the values that differ in each process."""
    causes = [cause.sentence for cause in (*noted, *untracked)]
    if not causes:
        return finding
    more = [f"{len(causes) - _MOST_CAUSES} more"] if len(causes) > _MOST_CAUSES else []
    sentence = f"{finding.sentence}; different in each process: {'; '.join(causes[:_MOST_CAUSES] + more)}"
    return finding.model_copy(update={"sentence": sentence})


def _is_near(finding: Finding, channel: str) -> bool:
    roots = _NEAREST.get(channel, ())
    return finding.sentence.startswith(roots) or any(f"{REACHED_FROM}{root}" in finding.sentence for root in roots)


def _cause_of(first: Finding, untracked: Sequence[Finding], noted: Sequence[Finding]) -> Finding | None:
    """The cause among the candidates; None if the finding itself is the cause."""
    if first.channel in _OF_NUMBERS:
        candidates = [*untracked, *noted]
    elif first.channel == "input_fingerprint" or (first.channel == "streams" and first.step is not None):
        candidates = list(untracked)
    else:
        # A number other than the loss has a cause of its own, unless something changed at the place where it is made.
        candidates = [finding for finding in (*untracked, *noted) if _is_near(finding, first.channel)]
    return with_fix(candidates[0]) if candidates else None


def with_fix(finding: Finding) -> Finding:
    """The finding with its fix."""
    return finding if finding.fix else finding.model_copy(update={"fix": fix_of(finding.component, finding.channel)})
