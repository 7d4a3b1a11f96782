"""Names the state that a resume has lost.

A finding names the root cause, then its consequences, and then the fix. The module is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from segue.continuity.recipe_diff import CHANGEABLE, CONFIG, NEXT_BATCHES, SURROUNDINGS, UNTRACKED
from segue.records import Finding

UNREGISTERED = "unregistered state"
"""The component name in findings about untracked state."""
CARRIED = "carried"
"""The channel of findings about lost values that affect later steps. A resume with such a finding is never exact."""
OUTSIDE = "outside the checkpoint"
"""The component name in findings about a difference whose cause is outside the compared values."""

NO_BATCHES_FIX = (
    "segue sees batches only if run.epochs loops over run.batches; if the batches may differ, use a loader that "
    "continues (ResumableLoader, StatefulDataLoader) with a framework, and run.batches in a loop"
)
"""The fix for a loss that differs in a framework or in a program without `run.batches`."""

PROCESS = "values of the process"
"""The component name for times and unseeded random values, which differ in each process and are never compared."""
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
"""Text before the recipe field that leads to an untracked value, if the value's path does not begin with the field."""
_MOST_CAUSES, _MOST_FIXES = 6, 6
_OF_DATA = ("data.", "batches")
"""Prefixes of the component names of data.

The prefix `data.` is for a recipe, and the prefix `batches` is for the loaders of a program.
"""
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
"""The components that most likely cause a difference, by the first channel that differs."""
_OF_BATCHES = ("batch_fingerprint", "streams", "input_fingerprint")
_OF_NUMBERS = ("loss", "grad_norm")

_REGISTER = "register it in Recipe.extra (a program: run.track)"
_ALSO = "also different"
_SAID = {UNREGISTERED: "changed since the commit, and in no component", PROCESS: "not compared"}
_FIXES = {
    PROCESS: "compute it from the config or the step number; a loss must not depend on the time or on unseeded "
    "randomness",
    ORDER: f"compute the order of samples from the seed alone; if a sampler or a data set has state, {_REGISTER}",
    CONTENT: "compute a sample only from its index and the seeded RNG streams; add a counter or generator of the data "
    "set to Recipe.extra, and keep times and changing files out of batches",
    SCHEDULE: "change learning rates through the scheduler alone; if the learning rates depend on other state, "
    f"{_REGISTER}",
    SCALE: "pass the scaler as Recipe.scaler (a program: run.track)",
    UPDATE: f"if a hook, a wrapper or after_step has its own state, {_REGISTER}",
    METRIC: f"if evaluate uses its own weights or values, {_REGISTER}",
    OUTSIDE: "look for values other than arguments that loss, hooks, after_step and the data set read; if such a value "
    f"changes in training, {_REGISTER}; if a kernel is not deterministic, call "
    "torch.use_deterministic_algorithms(True) in build",
}


def fix_of(component: str, channel: str) -> str:
    """Return the fix for a finding about this component and channel."""
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
            "draw from the global RNG streams only in steps and samples; if the number of draws depends on "
            "other state, " + _REGISTER
        )
    return _FIXES.get(component, f"if something else changes {component} in training, {_REGISTER}")


def explained(
    findings: tuple[Finding, ...],
    *,
    untracked: Sequence[Finding],
    noted: Sequence[Finding],
    compared: Collection[str],
) -> tuple[Finding, ...]:
    """Return the findings of a replay with their fixes. The first finding names the root cause.

    All values in `compared` are equal, so none of them is the cause. The cause is in `untracked` values or in `noted`
    differences of the setup. A different random stream or sample order is itself the cause.
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
        sentence = f"{first.sentence}; all compared values are equal ({seen}), so segue does not compare the cause"
        first = first.model_copy(update={"component": OUTSIDE, "sentence": sentence})
    elif causes:
        advised = [with_fix(first).fix or "", *(cause.fix for cause in (*untracked, *noted) if cause.fix)]
        sentence = "; ".join((first.sentence, *causes[:_MOST_CAUSES], *more))
        fix = "; ".join(list(dict.fromkeys(advised))[:_MOST_FIXES])
        first = first.model_copy(update={"sentence": sentence, "fix": fix})
    return (with_fix(first), *map(with_fix, others))


def unreplayed(*, untracked: Sequence[Finding], noted: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the finding for a resume without a replayed step.

    The finding lists the values that differ from the commit.
    """
    known = [*untracked, *(finding for finding in noted if finding.component != PROCESS)]
    if not known:
        return ()
    said = [finding.sentence for finding in known]
    more = [f"{len(said) - _MOST_CAUSES} more"] if len(said) > _MOST_CAUSES else []
    sentence = f"no step was replayed; changed since the commit: {'; '.join(said[:_MOST_CAUSES] + more)}"
    return (with_fix(known[0]).model_copy(update={"sentence": sentence}),)


def _rank_of(finding: Finding, channel: str) -> tuple[bool, bool]:
    return finding.channel != CARRIED, not _is_near(finding, channel)


def _by_carried(first: Finding, untracked: Sequence[Finding], noted: Sequence[Finding]) -> Finding:
    """Return the finding about a replay that differs because values that affect later steps were lost."""
    causes = [finding for finding in untracked if finding.channel == CARRIED]
    more = [f"{len(causes) - _MOST_CAUSES} more"] if len(causes) > _MOST_CAUSES else []
    said = "; ".join([cause.sentence for cause in causes[:_MOST_CAUSES]] + more)
    fixes = list(dict.fromkeys(cause.fix for cause in causes))[:_MOST_FIXES]
    also = [finding.sentence for finding in (*untracked, *noted) if finding.channel != CARRIED][:_MOST_CAUSES]
    sentence = f"{said}. In the replay, {first.sentence}{f'; {_ALSO}: ' if also else ''}{'; '.join(also)}"
    return first.model_copy(update={"component": UNREGISTERED, "sentence": sentence, "fix": "; ".join(fixes)})


def with_causes(finding: Finding, *, untracked: Sequence[Finding], noted: Sequence[Finding]) -> Finding:
    """If a recipe is not reproducible, add to its finding the values that differ from process to process."""
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
    """Return the cause among the candidates. Return None if the finding itself is the cause."""
    if first.channel in _OF_NUMBERS:
        candidates = [*untracked, *noted]
    elif first.channel == "input_fingerprint" or (first.channel == "streams" and first.step is not None):
        candidates = list(untracked)
    else:
        # A difference outside the loss channel is its own cause if no value near that channel changed.
        candidates = [finding for finding in (*untracked, *noted) if _is_near(finding, first.channel)]
    return with_fix(candidates[0]) if candidates else None


def with_fix(finding: Finding) -> Finding:
    """Return the finding with its fix."""
    return finding if finding.fix else finding.model_copy(update={"fix": fix_of(finding.component, finding.channel)})
