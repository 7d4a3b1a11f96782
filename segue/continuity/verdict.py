"""The verdict about a resume: expected and observed digests and rows go in, a verdict comes out. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Sequence
from typing import NamedTuple

from segue.checkpoints.format.digests import Digests, owners
from segue.continuity.recipe_diff import CODE, CONFIG, DATA, HYPERPARAMETERS, NOT_STATE, UNTRACKED, SetupChanges
from segue.records import Finding, Verdict, VerdictKind, WitnessRow

EXACT_CHANNELS = ("batch_fingerprint", "streams", "input_fingerprint", "lr", "loss_scale")
"""Channels that are equal on every machine: they do not depend on the order of sums."""

TOLERANCES = {"loss": 1e-4, "grad_norm": 1e-3, "param_norm": 1e-4}
"""Largest relative difference if the environment changed (fp32, at most 8 steps; see docs/continuity.md)."""

UNREGISTERED = "unregistered state"
"""The component of values that training changes and no state_dict holds."""

_WORLD_SIZE = "world_size"

FLOORS = {"loss": 1e-6, "grad_norm": 1e-6, "param_norm": 0.0}
"""Absolute differences below these are rounding: a loss near 0 is the difference of larger terms."""

_CAUSES = {
    "batch_fingerprint": (
        "data order",
        "the batch has other samples: the data position or the shuffle was not restored",
    ),
    "streams": ("randomness", "a random stream has another state after the batch was drawn"),
    "input_fingerprint": (
        "data content",
        "the batch has the same samples with other content: the data set or its transforms changed",
    ),
    "lr": ("scheduler", "the learning rate differs: the scheduler or the optimizer's param_groups were not restored"),
    "loss_scale": ("scaler", "the loss scale differs: the gradient scaler was not restored"),
    "loss": ("model or randomness", "the loss differs on the same batch: weights, a random stream or the code changed"),
    "grad_norm": (
        "model or randomness",
        "the gradient norm differs at the same loss: the loss or clipping code changed, or reads what is not tracked",
    ),
    "param_norm": (
        "optimizer",
        "the parameter norm differs after the same gradient: the optimizer's state was not restored",
    ),
}
"""In the order of cause and effect inside a step: the first channel that differs is the one to name."""


class Prelude(NamedTuple):
    """What is known of a step before it is made."""

    step: int
    batch_fingerprint: str
    input_fingerprint: str
    streams: dict[str, str] | None


def judge(
    *,
    committed: Digests,
    restored: Digests,
    witness: Sequence[WitnessRow],
    replay: Sequence[WitnessRow],
    environment_changes: tuple[str, ...],
    setup: SetupChanges = SetupChanges(),  # noqa: B008 - frozen
    untracked: str = "",
    early: tuple[Finding, ...] = (),
) -> Verdict:
    """Whether a resume continued the run.

    `committed` are the digests of the checkpoint, `restored` those of the live objects after the restore. `witness` has
    the rows of the steps that followed the commit, `replay` the same steps as the resumed attempt made them. Rows are
    matched by step; a row that only one side has is not compared, and `rows_compared` counts those that were. `setup`
    are the differences between the recipe and the checkpoint's: after an accepted change, rows that differ prove
    nothing. `untracked` names changed values that no state_dict holds: they may explain rows that differ. `early` has
    the findings about a step that was therefore not made.
    """
    pairs = _pairs(witness, replay)
    before_steps = (*digest_findings(committed, restored), *setup.findings)
    of_rows = _explained(early or _row_findings_of(pairs, environment_changes), untracked, setup.noted)
    honest = _of_randomness(environment_changes)
    is_other = any(finding.channel not in honest for finding in of_rows)
    findings = (*before_steps, *(setup.accepted if is_other else ()), *of_rows)
    if before_steps or (is_other and not setup.accepted):
        kind = VerdictKind.BROKEN
    elif findings or not pairs:
        kind = VerdictKind.UNVERIFIED
    else:
        kind = VerdictKind.EQUIVALENT if environment_changes else VerdictKind.EXACT
    return Verdict(
        kind=kind,
        findings=findings,
        components_compared=len(committed.components.keys() - {CONFIG, UNTRACKED}),
        rows_compared=len(pairs),
        environment_changes=environment_changes,
        not_compared=_not_compared(committed, pairs),
    )


def _not_compared(committed: Digests, pairs: Sequence[tuple[WitnessRow, WitnessRow]]) -> tuple[str, ...]:
    """What a resume of this training code cannot show: programs and frameworks hand over less than recipes."""
    rows = [row for row, _ in pairs]
    is_seen = {
        "the code": CODE in committed.components,
        "settings": HYPERPARAMETERS in committed.components,
        "the data set": DATA in committed.components,
        "which samples a batch has": not rows or any(row.batch_fingerprint for row in rows),
        "the content of batches": not rows or any(row.input_fingerprint for row in rows),
        "random streams in the steps": not rows or any(row.streams is not None for row in rows),
    }
    return tuple(name for name, is_known in is_seen.items() if not is_known)


def digest_findings(committed: Digests, restored: Digests) -> tuple[Finding, ...]:
    """One finding for each component whose live state is not the committed one."""
    findings: list[Finding] = []
    for component, expected in committed.components.items():
        if component in NOT_STATE or restored.components.get(component) == expected:
            continue
        findings.append(
            Finding(
                component=component,
                channel="digest",
                sentence=f"{component} was not restored: {_what_differs(component, committed, restored)}",
            )
        )
    findings += [
        Finding(
            component=name, channel="digest", sentence=f"{name} has no state in the checkpoint: the recipe has it since"
        )
        for name in restored.components
        if name not in committed.components and name not in NOT_STATE and not name.startswith("rng.")
    ]
    return tuple(findings)


def state_findings(committed: Digests, live: Digests) -> tuple[Finding, ...]:
    """One finding for each component that was restored and changed before the first step."""
    again = digest_findings(committed, live)
    changed = "changed between the restore and the first step"
    return tuple(f.model_copy(update={"sentence": f.sentence.replace("was not restored", changed, 1)}) for f in again)


def prelude_findings(
    expected: WitnessRow, seen: Prelude, *, environment_changes: tuple[str, ...], is_first: bool
) -> tuple[Finding, ...]:
    """What differs before a step is made; the step is then not made."""
    skip = (*(name for name in _CAUSES if name not in Prelude._fields), *_not_comparable(environment_changes))
    found = row_findings([(expected, seen)], exact=True, skip=skip)
    return tuple(f.model_copy(update={"step": None if is_first else f.step}) for f in found)


def row_findings(
    pairs: Sequence[tuple[WitnessRow, WitnessRow | Prelude]], *, exact: bool, skip: Container[str] = ()
) -> tuple[Finding, ...]:
    """The first channel that differs at the first step that differs; later ones follow from it."""
    for expected, found in pairs:
        for channel, (component, meaning) in _CAUSES.items():
            if channel in skip:
                continue
            before, after = getattr(expected, channel), getattr(found, channel)
            if _agree(channel, before, after, exact=exact):
                continue
            if channel == "streams":
                stream, before, after = _of_first_stream(before, after)
            sentence = f"{meaning} (step {expected.step}, {channel} was {_show(before)}, now {_show(after)})"
            named = stream if channel == "streams" else component
            return (Finding(component=named, channel=channel, step=expected.step, sentence=sentence),)
    return ()


def _explained(findings: tuple[Finding, ...], untracked: str, noted: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings with a cause that no digest shows: where all digests agree, a loss differs for another reason."""
    if not findings or not (untracked or noted):
        return findings
    first = findings[0]
    causes = [*(finding.sentence for finding in noted), *([untracked] if untracked else [])]
    named = noted[0].component if noted else UNREGISTERED
    component = named if first.component == _CAUSES["loss"][0] else first.component
    explained = first.model_copy(update={"component": component, "sentence": "; ".join((first.sentence, *causes))})
    return (explained, *findings[1:])


def _row_findings_of(
    pairs: Sequence[tuple[WitnessRow, WitnessRow]], environment_changes: tuple[str, ...]
) -> tuple[Finding, ...]:
    exact, skip = not environment_changes, _not_comparable(environment_changes)
    honest = _of_randomness(environment_changes)
    # A permitted difference would hide wrong samples of a later step. The loss scale follows from the gradients.
    after_all = row_findings(pairs, exact=exact, skip=(*skip, *honest, "loss_scale")) if honest else ()
    return after_all or row_findings(pairs, exact=exact, skip=skip)


def _not_comparable(environment_changes: Collection[str]) -> tuple[str, ...]:
    # How much a kernel draws from a stream depends on its instructions.
    streams = ("streams",) if set(environment_changes) - {"threads"} else ()
    # Each rank hashes its own part of a batch, and the parts changed. The batch fingerprint still compares the samples.
    return (*streams, "input_fingerprint") if _WORLD_SIZE in environment_changes else streams


def _of_randomness(environment_changes: Container[str]) -> tuple[str, ...]:
    """Channels that another number of ranks may change: dropout and batch statistics depend on which rank has which
    samples. Equal values prove something; different values prove nothing."""
    return (*TOLERANCES, "loss_scale") if _WORLD_SIZE in environment_changes else ()


def _pairs(witness: Sequence[WitnessRow], replay: Sequence[WitnessRow]) -> list[tuple[WitnessRow, WitnessRow]]:
    replayed = {row.step: row for row in replay}
    return [(row, replayed[row.step]) for row in sorted(witness, key=lambda row: row.step) if row.step in replayed]


def _of_first_stream(before: dict[str, str], after: dict[str, str]) -> tuple[str, str, str]:
    """The first stream that differs, and its hashes."""
    name = next(name for name in before if before[name] != after.get(name))
    return name, before[name], after.get(name, "absent")


def _agree(channel: str, before: object, after: object, *, exact: bool) -> bool:
    if channel == "streams" and (before is None or after is None):
        return True  # Not every row has them.
    if channel in EXACT_CHANNELS or not isinstance(before, float) or not isinstance(after, float):
        return before == after
    if before == after or (math.isnan(before) and math.isnan(after)):
        return True
    return not exact and math.isclose(before, after, rel_tol=TOLERANCES[channel], abs_tol=FLOORS[channel])


def _what_differs(component: str, committed: Digests, restored: Digests) -> str:
    expected = {name for name, owner in owners(committed.tensors, committed.components) if owner == component}
    found = {name for name, owner in owners(restored.tensors, restored.components) if owner == component}
    absent, added = sorted(expected - found), sorted(found - expected)
    if component not in restored.components or (absent and len(absent) == len(expected)):
        return "the live object has none of its state"
    if absent:
        return f"{len(absent)} of its {len(expected)} tensors are absent, e.g. {absent[0]}"
    changed = sorted(name for name in expected if restored.tensors[name] != committed.tensors[name])
    if changed:
        return f"{len(changed)} of its {len(expected)} tensors differ, e.g. {changed[0]}"
    if added:
        return f"it has {len(added)} tensors that the checkpoint lacks, e.g. {added[0]}"
    return "one of its values that are no tensors differs"


def _show(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
