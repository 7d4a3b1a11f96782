"""Computes the verdict about a resume from expected and observed digests and rows. The module is pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from segue.checkpoints.format.digests import Digests, owners
from segue.continuity.agreement import NO_TOLERANCES, TOLERANCES, agree, compared_parts, is_same_part
from segue.continuity.differences import STATE
from segue.continuity.naming import (
    CARRIED,
    CONTENT,
    METRIC,
    NO_BATCHES_FIX,
    ORDER,
    OUTSIDE,
    SCALE,
    SCHEDULE,
    UNREAD,
    UNREGISTERED,
    UPDATE,
    explained,
    unreplayed,
    with_causes,
    with_fix,
)
from segue.continuity.noise import NONE, Noise, tolerances
from segue.continuity.recipe_diff import (
    CODE,
    CONFIG,
    DATA,
    HYPERPARAMETERS,
    NOT_STATE,
    UNTRACKED,
    SetupChanges,
)
from segue.records import Finding, StateMark, Verdict, VerdictKind, WitnessRow

_WORLD_SIZE, _DEVICE = "world_size", "device"
_OF_DEVICE = frozenset({_DEVICE, "device_processors", "reduced_precision"})
ACCELERATOR_STREAMS = ("rng.cuda",)
_SAME_DEVICE = "if the resume must be proven, resume on the same type of device"

_CAUSES = {
    "batch_fingerprint": (
        ORDER,
        "the batch has other samples: the data position or the shuffle was not restored",
    ),
    "streams": ("randomness", "an RNG stream has another state after the batch was drawn"),
    "input_fingerprint": (
        CONTENT,
        "the batch has the same samples with other content: the data set or its transforms changed",
    ),
    "lr": (SCHEDULE, "the learning rate differs"),
    "loss_scale": (SCALE, "the loss scale differs"),
    "loss": (OUTSIDE, "the loss differs on the same batch, with the same weights"),
    "grad_norm": (OUTSIDE, "the gradient norm differs at the same loss"),
    "param_norm": (UPDATE, "the parameter norm differs after the same gradient"),
    "state": (OUTSIDE, "the state differs after the same steps"),
}
"""The channels, causes before effects. A finding names the first channel that differs."""


_UNSEEN = "the loss differs with the same weights, on a batch that segue cannot see"


class Prelude(NamedTuple):
    """What is known about a step before the step runs."""

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
    untracked: Sequence[Finding] = (),
    early: tuple[Finding, ...] = (),
    metric: tuple[Finding, ...] = (),
    noise: Noise = NONE,
) -> Verdict:
    """Return the verdict on whether a resume continued the run.

    `committed` contains the digests of the checkpoint. `restored` contains the digests of the live objects after the
    restore. `witness` contains the rows of the steps after the commit. `replay` contains the rows of the same steps in
    the resumed attempt. The function compares the rows of steps that both sides have. `setup` contains the changes of
    the setup since the checkpoint. If a person accepted a change of the setup, rows that differ prove nothing.
    `untracked` contains findings about untracked state that has changed since the commit, which may explain rows that
    differ. `early` contains the findings that prevented a step. `metric` contains findings about the user's metric,
    which is evaluated again after the resume. `noise` contains the differences between replays of the same steps from
    one state.
    """
    pairs = _pairs(witness, replay)
    found = digest_findings(committed, restored, environment_changes=environment_changes)
    before_steps = (*map(with_fix, found), *map(with_fix, setup.findings))
    allowed = tolerances(noise.floats, witness)
    # Differences of rows come before differences at a later step. The metric is last, because it depends on all else.
    of_rows = _row_findings_of(pairs, environment_changes, allowed) or early or metric
    is_unreproducible = noise.unreproducible is not None and bool(of_rows)
    if noise.unreproducible is not None and of_rows:
        of_rows = (with_causes(noise.unreproducible, untracked=untracked, noted=setup.noted),)
    else:
        compared = committed.components.keys()
        of_rows = explained(of_rows, untracked=untracked, noted=setup.noted, compared=compared)
    # If only the metric differs and no lost state explains the difference, training continues unchanged.
    proves_nothing = (*_of_randomness(environment_changes), *(() if _is_lost(of_rows) else (METRIC,)))
    is_other = any(finding.channel not in proves_nothing for finding in of_rows)
    unmatched = _streams_of_another_device(committed, restored, environment_changes)
    carried = tuple(finding for finding in untracked if finding.channel == CARRIED)
    is_known = bool(pairs or before_steps or of_rows or carried)
    unproven = () if is_known else unreplayed(untracked=untracked, noted=setup.noted)
    findings = (*before_steps, *(setup.accepted if is_other else ()), *of_rows, *unmatched, *unproven)
    if before_steps or (is_other and not setup.accepted and not is_unreproducible):
        kind, findings = VerdictKind.BROKEN, (*findings, *carried)
    elif carried:
        # All compared values are equal. The lost value thus has an effect only later, or an effect that no step shows.
        kind, findings = VerdictKind.UNVERIFIED, (*carried, *findings)
    elif findings or not pairs:
        kind = VerdictKind.UNVERIFIED
    else:
        kind = VerdictKind.EQUIVALENT if environment_changes or noise.floats else VerdictKind.EXACT
    return Verdict(
        kind=kind,
        findings=findings,
        components_compared=len(committed.components.keys() - {CONFIG, UNTRACKED}),
        rows_compared=len(pairs),
        environment_changes=environment_changes,
        not_compared=(*_not_compared(committed, pairs), *_unread(setup.noted)),
        noise=dict(noise.floats),
    )


def _is_lost(findings: Sequence[Finding]) -> bool:
    return any(finding.component == UNREGISTERED for finding in findings)


def _unread(noted: Sequence[Finding]) -> Iterator[str]:
    return (finding.sentence for finding in noted if finding.channel == UNREAD)


def _not_compared(committed: Digests, pairs: Sequence[tuple[WitnessRow, WitnessRow]]) -> tuple[str, ...]:
    """List the parts that the resume cannot compare, because the code does not expose them.

    Programs and frameworks expose fewer parts than recipes.
    """
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


def digest_findings(
    committed: Digests, restored: Digests, *, environment_changes: Container[str] = ()
) -> tuple[Finding, ...]:
    """Return one finding for each component whose live state differs from the committed state.

    On a different device, the random streams of the earlier device are missing. Missing streams alone are no loss of
    state.
    """
    findings: list[Finding] = []
    unmatched = _unmatched_streams(committed, restored) if _DEVICE in environment_changes else ()
    for component, expected in committed.components.items():
        if component in NOT_STATE or component in unmatched or restored.components.get(component) == expected:
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
            component=name, channel="digest", sentence=f"{name} is new in the recipe and has no state in the checkpoint"
        )
        for name in restored.components
        if name not in committed.components and name not in NOT_STATE and not name.startswith("rng.")
    ]
    return tuple(findings)


def _unmatched_streams(committed: Digests, restored: Digests) -> tuple[str, ...]:
    return tuple(
        name for name in ACCELERATOR_STREAMS if name in committed.components and name not in restored.components
    )


def _streams_of_another_device(
    committed: Digests, restored: Digests, environment_changes: Container[str]
) -> tuple[Finding, ...]:
    if _DEVICE not in environment_changes:
        return ()
    why = "this device has no such RNG stream, so from now on the recipe draws different random numbers"
    return tuple(
        Finding(component=name, channel="device", sentence=f"{name} was not restored: {why}", fix=_SAME_DEVICE)
        for name in _unmatched_streams(committed, restored)
    )


def state_findings(committed: Digests, live: Digests) -> tuple[Finding, ...]:
    """Return one finding for each component that was restored but changed before the first step."""
    again = digest_findings(committed, live)
    changed = "changed between the restore and the first step"
    return tuple(f.model_copy(update={"sentence": f.sentence.replace("was not restored", changed, 1)}) for f in again)


def prelude_findings(
    expected: WitnessRow, seen: Prelude, *, environment_changes: tuple[str, ...], is_first: bool
) -> tuple[Finding, ...]:
    """Return the differences that are known before a step runs. If there is a difference, the step does not run."""
    skip = (*(name for name in _CAUSES if name not in Prelude._fields), *_not_comparable(environment_changes))
    found = row_findings([(expected, seen)], exact=True, skip=skip)
    return tuple(f.model_copy(update={"step": None if is_first else f.step}) for f in found)


def row_findings(
    pairs: Sequence[tuple[WitnessRow, WitnessRow | Prelude]],
    *,
    exact: bool,
    skip: Container[str] = (),
    allowed: Mapping[str, float] = NO_TOLERANCES,
) -> tuple[Finding, ...]:
    """Return the finding about the first channel that differs, at the first step that differs.

    All other differences are consequences of the first difference.
    """
    for expected, found in pairs:
        for channel, (component, meaning) in _CAUSES.items():
            if channel in skip:
                continue
            before: Any = getattr(expected, channel)
            after: Any = getattr(found, channel)
            if agree(channel, before, after, exact=exact, allowed=allowed):
                continue
            named = component
            if channel == "streams":
                named, before, after = _of_first_stream(before, after)
            is_unseen = channel == "loss" and not (expected.batch_fingerprint or expected.input_fingerprint)
            what = _UNSEEN if is_unseen else meaning
            sentence = f"{what} (step {expected.step}, {channel} was {_show(before)}, now {_show(after)})"
            if channel == "state":
                named, sentence = _of_parts(before, after, exact=exact, allowed=allowed)
            fix = NO_BATCHES_FIX if is_unseen else ""
            return (Finding(component=named, channel=channel, step=expected.step, sentence=sentence, fix=fix),)
    return ()


def _row_findings_of(
    pairs: Sequence[tuple[WitnessRow, WitnessRow]], environment_changes: tuple[str, ...], allowed: Mapping[str, float]
) -> tuple[Finding, ...]:
    exact, skip = not environment_changes, _not_comparable(environment_changes)
    honest = _of_randomness(environment_changes)
    # A permitted difference must not hide wrong samples of a later step. The loss scale depends on the gradients.
    after_all = row_findings(pairs, exact=exact, skip=(*skip, *honest, "loss_scale")) if honest else ()
    return after_all or row_findings(pairs, exact=exact, skip=skip, allowed=allowed)


def _not_comparable(environment_changes: Collection[str]) -> tuple[str, ...]:
    # The count of random numbers that a kernel draws depends on its instructions.
    streams = ("streams",) if set(environment_changes) - {"threads"} else ()
    # Each rank hashes its own part of a batch and of the state, and these parts depend on the number of ranks. The
    # samples are still compared, by the batch fingerprint.
    return (*streams, "input_fingerprint", "state") if _WORLD_SIZE in environment_changes else streams


def _of_randomness(environment_changes: Collection[str]) -> tuple[str, ...]:
    """Return the channels that may differ because the number of ranks or the device has changed.

    Equal values of the returned channels are evidence of continuity, but different values prove nothing. Dropout and
    batch statistics depend on the distribution of samples to ranks. Dropout masks depend on the number of
    multiprocessors of the device. Sums in bf16 and TF32 depend on the order of the additions.
    """
    if _WORLD_SIZE in environment_changes:
        return (*TOLERANCES, "loss_scale")
    is_other_device = not _OF_DEVICE.isdisjoint(environment_changes)
    return (*TOLERANCES, "loss_scale", STATE) if is_other_device else ()


def _pairs(witness: Sequence[WitnessRow], replay: Sequence[WitnessRow]) -> list[tuple[WitnessRow, WitnessRow]]:
    replayed = {row.step: row for row in replay}
    return [(row, replayed[row.step]) for row in sorted(witness, key=lambda row: row.step) if row.step in replayed]


def _of_first_stream(before: dict[str, str], after: dict[str, str]) -> tuple[str, str, str]:
    """Return the name of the first random stream that differs, and the hashes of this stream."""
    name = next(name for name in before if before[name] != after.get(name))
    return name, before[name], after.get(name, "absent")


def _of_parts(
    before: dict[str, StateMark], after: dict[str, StateMark], *, exact: bool, allowed: Mapping[str, float]
) -> tuple[str, str]:
    """Return the component and the sentence of the finding about parts of the state that differ after the replay."""
    compared = compared_parts(before, after, exact=exact)
    parts = [
        name for name in compared if not is_same_part(name, before[name], after[name], exact=exact, allowed=allowed)
    ]
    # The reason for a difference depends on whether steps use the part or the part only stores results.
    chosen = min(parts, key=lambda name: (name == "model", name.startswith("optimizer")))
    sentence = (
        f"{' and '.join(parts[:4])}: the values after the replayed steps differ, although loss and norms are equal; "
        "the code that updates these values has changed, or depends on state outside the checkpoint"
    )
    return chosen.partition(": ")[0], sentence


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
    return "one of its values that are not tensors differs"


def _show(value: object) -> str:
    return repr(value) if isinstance(value, float) else str(value)
