"""The results of a matrix of resumes, as one JSON object. The functions are pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from benchmarks.continuity.axes import Trial, figures
from benchmarks.continuity.blind.cases import Axis
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.controls import CONTROLS
from benchmarks.continuity.faults import Kind
from benchmarks.continuity.tasks import Outcome

_BLIND_SHARE = 0.05


def report_of(
    kinds: Sequence[Kind],
    outcomes: Sequence[Outcome],
    scripts: Sequence[BlindOutcome] = (),
    *,
    levels: Mapping[str, Sequence[BlindOutcome]] = MappingProxyType({}),
    kills: Mapping[str, Any],
    cost: Mapping[str, Any],
    applicable: Mapping[str, Sequence[tuple[str, str]]],
    seconds: float,
    jobs: int,
) -> dict[str, Any]:
    """All figures: the figures of injected faults (`outcomes`) in detail, and the figures of `scripts` by axis.

    `applicable` are the pairs of model and optimizer in which a kind can change something.
    """
    names = {kind.name for kind in kinds}
    faulty = [outcome for outcome in outcomes if outcome.name in names]
    controls = {control.name for control in CONTROLS}
    clean = [outcome for outcome in outcomes if outcome.name in controls]
    rows = {kind.name: _row(kind, [o for o in faulty if o.name == kind.name], applicable[kind.name]) for kind in kinds}
    tried = [row for row in rows.values() if row["trials"]]
    early = [row for row in tried if row["detected_before_first_step_share"] == 1.0]
    smooth = [row for row in tried if (row["smoothness_share"] or 0.0) < _BLIND_SHARE]
    by_axis = figures([*_injected(kinds, faulty), *_controlled(clean), *trials_of(scripts)])
    return {
        **by_axis,
        "levels": _levels(scripts, levels),
        "trials": len(faulty),
        "detected_before_first_step_share": _of(len(early), len(tried)),
        "detected_before_first_step_trials_share": _share(_is_early(o) for o in faulty),
        "faulty_commits": sum(o.commits for o in faulty),
        "missed_kinds": [name for name, row in rows.items() if row["trials"] and row["detected_share"] < 1],
        "clean": by_axis["clean"] + kills.get("sigkill_resumes", 0),
        "false_alarms": by_axis["false_alarms"] + kills.get("sigkill_false_alarms", 0),
        "clean_verdicts": dict(Counter(o.verdict for o in clean)),
        "clean_as_expected_share": _share(o.is_as_expected for o in clean),
        "sigkills": 0,
        **kills,
        **_smoothness(faulty, clean),
        "smoothness_blind_kinds": len(smooth),
        **cost,
        "by_kind": rows,
        "by_control": _controls(clean),
        "problems": [
            *_problems(kinds, outcomes),
            *(f"{each.name}: {each.problem}" for each in scripts if each.problem),
            *kills.get("sigkill_problems", ()),
        ],
        "cores": len(os.sched_getaffinity(0)),
        "jobs": jobs,
        "trial_seconds": round(sum(o.seconds for o in outcomes) / len(outcomes), 3) if outcomes else None,
        "seconds": round(seconds, 1),
    }


def _injected(kinds: Sequence[Kind], faulty: Sequence[Outcome]) -> list[Trial]:
    foregone = {kind.name for kind in kinds if kind.is_foregone}
    return [
        Trial(
            kind=o.name,
            axis="injected",
            is_found=o.is_detected,
            is_named=o.is_as_expected,
            is_advised=o.is_advised,
            is_foregone=o.name in foregone,
        )
        for o in faulty
    ]


def _controlled(clean: Sequence[Outcome]) -> list[Trial]:
    return [Trial(kind=o.name, axis="sound", is_sound=True, is_found=o.verdict == "broken") for o in clean]


def trials_of(scripts: Sequence[BlindOutcome]) -> list[Trial]:
    """The resumes of training scripts, for the figures of their axes."""
    return [
        Trial(
            kind=each.name,
            axis=each.axis,
            is_sound=each.is_sound,
            is_found=each.is_found,
            is_named=each.is_named,
            is_advised=each.is_advised,
            is_enough=each.is_enough,
            acts_after=each.acts_after,
            is_named_at_commit=each.is_named_at_commit,
            noise=each.noise,
        )
        for each in scripts
    ]


def _levels(scripts: Sequence[BlindOutcome], levels: Mapping[str, Sequence[BlindOutcome]]) -> dict[str, Any]:
    """The detection of unregistered state at each level, for the same scripts whose lost state affects the replay."""
    if not levels:
        return {}
    as_recipe = [o for o in scripts if o.axis == Axis.UNREGISTERED and not o.noise and o.acts_within_window]
    resumed = ({o.name for o in made if not o.problem} for made in levels.values())
    names = {o.name for o in as_recipe}.intersection(*resumed)
    rows = {"recipe": as_recipe, **levels}
    return {level: _of_level(made, names) for level, made in rows.items()}


def _of_level(outcomes: Sequence[BlindOutcome], names: Collection[str]) -> dict[str, Any]:
    tried, not_resumed = [o for o in outcomes if o.name in names], [o.name for o in outcomes if o.problem]
    made = [o for o in tried if o.is_found or o.acts_after is not None]
    return {
        "kinds": len(made),
        "detected_share": _share(o.is_found for o in made),
        "named_share": _share(o.is_found and o.is_named for o in made),
        "named_at_first_commit_share": _share(bool(o.is_named_at_commit) for o in made),
        "missed": [o.name for o in made if not o.is_found],
        "unnamed": [o.name for o in made if o.is_found and not o.is_named],
        "kept": [o.name for o in tried if o not in made],
        "not_resumed": not_resumed,
    }


def _row(kind: Kind, found: Sequence[Outcome], applicable: Sequence[tuple[str, str]]) -> dict[str, Any]:
    detected = [outcome for outcome in found if outcome.is_detected]
    tried = {(outcome.model, outcome.optimizer) for outcome in found}
    return {
        "family": kind.family,
        "trials": len(found),
        "detected_share": _share(o.is_detected for o in found),
        "detected_before_first_step_share": _share(_is_early(o) for o in found),
        "named_share": _share(o.is_as_expected for o in detected),
        "named": dict(Counter(o.component for o in detected)),
        "latest_step": max((o.found_at - o.step for o in detected if o.found_at is not None), default=None),
        "commits": sum(o.commits for o in found),
        "smoothness_share": _share(
            bool(o.is_mean_worse or o.has_outlier) for o in found if o.is_mean_worse is not None
        ),
        "models": sorted({model for model, _ in tried}),
        "not_applicable": [f"{m} {o}" for m, o in applicable if (m, o) not in tried],
    }


def _smoothness(faulty: Sequence[Outcome], clean: Sequence[Outcome]) -> dict[str, Any]:
    """The results of both rules on the same resumes. A refused resume has no losses to judge."""
    looked = [o for o in faulty if o.is_mean_worse is not None]
    calm = [o for o in clean if o.is_mean_worse is not None]
    return {
        "smoothness_detected_share": _share(bool(o.is_mean_worse or o.has_outlier) for o in looked),
        "smoothness_false_alarm_share": _share(bool(o.is_mean_worse or o.has_outlier) for o in calm),
        "mean_rule_detected_share": _share(bool(o.is_mean_worse) for o in looked),
        "mean_rule_false_alarm_share": _share(bool(o.is_mean_worse) for o in calm),
        "outlier_rule_detected_share": _share(bool(o.has_outlier) for o in looked),
        "outlier_rule_false_alarm_share": _share(bool(o.has_outlier) for o in calm),
    }


def _controls(clean: Sequence[Outcome]) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for control in CONTROLS:
        found = [o for o in clean if o.name == control.name]
        rows[control.name] = {
            "resumes": len(found),
            "verdicts": dict(Counter(o.verdict for o in found)),
            "as_expected_share": _share(o.is_as_expected for o in found),
            "smoothness_share": _share(bool(o.is_mean_worse or o.has_outlier) for o in found),
        }
    return rows


def _problems(kinds: Sequence[Kind], outcomes: Sequence[Outcome]) -> list[str]:
    """The problems that a person must check before trusting a figure."""
    found = Counter(o.name for o in outcomes if o.verdict == "none")
    made = {o.name for o in outcomes}
    return [
        *(f"{name}: {count} resumes came to no verdict" for name, count in found.items()),
        *(f"{kind.name}: never tried, for it changed nothing" for kind in kinds if kind.name not in made),
    ]


def _is_early(outcome: Outcome) -> bool:
    return outcome.is_detected and outcome.found_at is None


def _share(answers: Iterable[bool]) -> float | None:
    given = list(answers)
    return _of(sum(given), len(given))


def _of(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None
