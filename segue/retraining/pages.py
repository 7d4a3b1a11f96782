"""Writes the pages of a model as markdown: the card of a version, the check of a window, and the history of slots.

The module is pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo

from segue.markup import Markup, blocks, bold, bullets, code, heading, inline, table
from segue.retraining.gate.record import Finding, GateResult
from segue.retraining.history import WAITING, Models, SlotState
from segue.retraining.model_record import Artifact, Candidate, Choice, Comparison, Decision, Interval, SlotStart
from segue.retraining.spec import Window
from segue.units import duration, money

_MOST_FINDINGS = 30
_MOST_FILES = 40
_WIDEST = 60
"""Maximum number of characters of a reason in the history's tables."""


def card(models: Models, number: int, *, zone: tzinfo = UTC) -> str:
    """Return the model card of a version."""
    version = models.version(number)
    start = models.slots[version.slot].start
    status = version_status(models, number)
    run = Markup(f"{code(version.run_id)}, step {version.step}, attempt {code(version.attempt_id)}")
    rows = [("slot", _moment(version.slot, zone)), ("run", run), ("begins with", _beginning(start))]
    if version.slot in models.triggers:
        rows.append(("begun by", inline(models.triggers[version.slot].why)))
    rows += [*_training_rows(version), ("weights", _file(version.weights))]
    if version.program is not None:
        rows.append(("program", _file(version.program)))
    if start is not None and start.run is not None:
        rows.append(("trained by", code(start.run.workload)))
    parts = [
        heading(f"{models.name}, version {number}", level=1),
        Markup(f"{bold(status)}: {inline(version.why)}."),
        bullets(decision_lines(models, number, zone=zone)),
        table(("", ""), rows),
        heading("Evaluation"),
        *comparison_lines(version.comparisons, version.compared_with),
    ]
    if start is not None:
        parts += [heading("Data"), *window_lines(start.window, start.changes)]
        parts += [heading("Check of the data"), *gate_lines(start.gate)]
    return f"{blocks(*parts)}\n"


def version_status(models: Models, number: int) -> str:
    """Return in words whether a version is, was or may come into service."""
    if models.in_service == number:
        return "in service"
    if number in models.waiting:
        return f"{WAITING} until {_until(models.waiting[number], UTC)}"
    was = any(event.in_service == number for event in models.events)
    return "was in service" if was else "never in service"


def decision_lines(models: Models, number: int, *, zone: tzinfo) -> list[str]:
    """Return the decisions about a version, each with its person and time."""
    return [
        f"{_moment(event.at, zone)}: {event.record.sentence}"
        for event in models.events
        if isinstance(event.record, Decision) and event.version == number
    ]


def question(models: Models, number: int, *, zone: tzinfo, problem: str = "") -> str:
    """Return the text that asks a person whether to promote a version.

    `problem` is the reason why the previous answer failed.
    """
    version, state = models.version(number), models.slot_of(number)
    there = f"version {models.in_service}" if models.in_service is not None else "none"
    found = f"the evaluation supports the promotion: {version.why}" if version.comparisons else version.why
    parts = [
        Markup(f"Is version {number} of {bold(models.name)} to be promoted? In service now: {inline(there)}."),
        inline(f"{found[:1].upper()}{found[1:]}."),
    ]
    if problem:
        parts.insert(0, inline(f"The last answer could not be followed: {problem}"))
    parts.append(inline(f"Without an answer by {_until(state, zone)} it is not promoted."))
    if version.comparisons:
        parts += comparison_lines(version.comparisons, version.compared_with)
    return f"{blocks(*parts)}\n"


def comparison_lines(comparisons: Sequence[Comparison], compared_with: int | None) -> Iterator[Markup]:
    """Return a table of metrics, and a table of subgroups."""
    if not comparisons:
        yield inline("Not evaluated.")
        return
    there = f"version {compared_with}" if compared_with is not None else "in service"
    rows = []
    for each in comparisons:
        gain = _interval(each.gain, as_percent=True) if each.gain is not None else None
        other = _interval(each.in_service) if each.in_service is not None else None
        mine = _interval(each.candidate) if each.candidate is not None else each.value_in_words
        rows.append((each.metric, mine, other, gain))
    yield table(("metric (less is better)", "candidate", there, "gain"), rows)
    groups = {name: gain for each in comparisons for name, gain in each.groups.items()}
    counts = {name: count for each in comparisons for name, count in each.group_rows.items()}
    by_gain = sorted(groups.items(), key=lambda group: group[1])
    of_groups = [(name, counts.get(name), f"{100 * gain:+.2f} %") for name, gain in by_gain]
    yield table(("subgroup", "rows", "gain"), of_groups)
    yield bullets([note for each in comparisons for note in each.group_notes])


def window_lines(window: Window, changes: Sequence[str]) -> Iterator[Markup]:
    """Return the files of a window with rows and hashes, and the changes since the previous window."""
    rows: list[tuple[object, ...]] = []
    for file in window.files[-_MOST_FILES:]:
        use = "evaluation" if file.is_held_back else "training"
        rows.append((file.period, code(file.path), file.rows, code(file.sha256[:16]), use))
    rows += [(each.period, Markup(f"missing: {code(each.pattern)}"), "", "", "") for each in window.missing]
    yield table(("period", "file", "rows", "SHA-256, first 16 of 64 digits", "used for"), rows)
    if len(window.files) > _MOST_FILES:
        yield inline(f"The newest {_MOST_FILES} of {len(window.files)} files.")
    yield bullets(changes)


def gate_lines(gate: GateResult) -> Iterator[Markup]:
    """Return the outcome and the findings of the check."""
    counts = f"{gate.expectations} expectations over {gate.rows:,} rows, {len(gate.findings)} not met."
    yield inline(f"{gate.outcome}: {counts}")
    yield table(("about", "expectation", "found", "where"), map(_finding_row, gate.findings[:_MOST_FINDINGS]))
    if len(gate.findings) > _MOST_FINDINGS:
        yield inline(f"and {len(gate.findings) - _MOST_FINDINGS} more.")


def gate_page(start: SlotStart, *, name: str, zone: tzinfo, docs: str | None) -> str:
    """Return the page about the check of a slot's window."""
    gate = start.gate
    verdict = {"passed": "Data passed", "warned": "Data passed with warnings", "failed": "Data refused"}[gate.outcome]
    parts = [Markup(f"{bold(verdict)} for the slot {_moment(start.slot, zone)} of {inline(name)}.")]
    if gate.outcome == "failed":
        parts.append(inline("Nothing was bought, and the model in service is unchanged."))
    parts += gate_lines(gate)
    if docs is not None:
        parts.append(Markup(f"Data Docs: {code(docs)} in the store; `segue data docs` opens them."))
    return f"{blocks(*parts, *window_lines(start.window, start.changes))}\n"


def history_page(models: Models, *, zone: tzinfo) -> str:
    """Return all slots, versions and promotions of a model, newest first."""
    now = f"version {models.in_service} is in service" if models.in_service is not None else "none is in service"
    slots = table(
        ("slot", "begun by", "outcome", "version", "why"),
        [_slot_row(models, state, zone) for state in reversed([*models.slots.values()])],
    )
    before, rows = None, list[tuple[object, ...]]()
    for event in models.events:
        if event.in_service != before or isinstance(event.record, Choice):
            rows.append((_moment(event.at, zone), event.in_service, _short(event.why)))
            before = event.in_service
    in_service = table(("since", "version", "why"), rows[::-1])
    head = Markup(f"{bold(models.name)}: {now}.")
    return f"{blocks(head, heading('Slots'), slots, heading('In service'), in_service)}\n"


def _slot_row(models: Models, state: SlotState, zone: tzinfo) -> tuple[object, ...]:
    why = _short(state.end.why) if state.end is not None else f"until {_until(state, zone)}" if state.is_waiting else ""
    trigger = models.triggers.get(state.slot)
    begun_by = _short(trigger.why) if trigger is not None else ""
    return (_moment(state.slot, zone), begun_by, state.outcome_in_words, state.version, why)


def _finding_row(finding: Finding) -> tuple[str, ...]:
    level = " (warning)" if finding.is_warning else ""
    return (f"{finding.about}{level}", finding.expectation, finding.observed, "; ".join(finding.places[:3]))


def _training_rows(version: Candidate) -> Iterator[tuple[str, str]]:
    training = version.training
    yield "cost", f"{money(training.cost, training.currency)}{_compared_cost(training.saved_share)}"
    yield "segments", f"{training.segments}, {training.preemptions} preemptions"
    verdicts = ", ".join(f"{count} {kind}" for kind, count in training.verdicts.items())
    yield "resumes", verdicts or "none"
    if training.late_seconds is not None:
        side = "late" if training.late_seconds > 0 else "early"
        yield "deadline", f"{duration(abs(training.late_seconds))} {side}"
    yield from ((f"hash of {name}", code(value)) for name, value in training.hashes.items())


def _compared_cost(saved_share: float | None) -> str:
    if saved_share is None:
        return ""
    side = "less" if saved_share >= 0 else "more"
    return f", {abs(saved_share):.0%} {side} than on-demand alone"


def _beginning(start: SlotStart | None) -> str:
    if start is None or start.start_version is None:
        kind = start.run.kind if start is not None and start.run is not None else "recipe"
        return f"weights as the {kind} builds them"
    return f"the weights of version {start.start_version}"


def _interval(interval: Interval, *, as_percent: bool = False) -> str:
    def shown(value: float) -> str:
        return f"{100 * value:+.2f} %" if as_percent else f"{value:.4g}"

    return f"{shown(interval.value)} ({shown(interval.low)} to {shown(interval.high)})"


def _until(state: SlotState, zone: tzinfo) -> str:
    assert state.decide_by is not None
    return _moment(state.decide_by, zone)


def _short(text: str) -> str:
    """Return the beginning of a reason, because Prefect cuts wide tables. Cards and states contain the whole reason."""
    return textwrap.shorten(text, _WIDEST, placeholder=" ...")


def _file(artifact: Artifact) -> Markup:
    return Markup(f"{code(artifact.key)}, SHA-256 {code(artifact.sha256)}")


def _moment(moment: datetime, zone: tzinfo) -> str:
    return f"{moment.astimezone(zone):%Y-%m-%d %H:%M %Z}"
