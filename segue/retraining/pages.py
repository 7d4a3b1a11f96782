"""Pages of a model, as markdown: the card of a version, the check of a window, the history of slots. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, tzinfo

from segue.retraining.gate.record import GateResult
from segue.retraining.model_record import Candidate, Choice, Comparison, Interval, SlotStart
from segue.retraining.models import Models, SlotState
from segue.retraining.spec import Window
from segue.units import duration, money

_MOST_FINDINGS = 30
_MOST_FILES = 40
_WIDEST = 60
"""Characters of a reason in a table of the history."""


def card(models: Models, number: int, *, zone: tzinfo = UTC) -> str:
    """The model card of a version."""
    version = models.version(number)
    start = models.slots[version.slot].start
    status = "in service" if models.in_service == number else version_status(models, number)
    lines = [
        f"# {models.name}, version {number}",
        "",
        f"**{status}**: {version.why}.",
        "",
        "| | |",
        "|---|---|",
        f"| slot | {version.slot.astimezone(zone):%Y-%m-%d %H:%M %Z} |",
        f"| run | `{version.run_id}`, step {version.step}, attempt `{version.attempt_id}` |",
        f"| begins with | {_beginning(start)} |",
        *(f"| {name} | {value} |" for name, value in _training_rows(version)),
        f"| weights | `{version.weights.key}`, SHA-256 `{version.weights.sha256}` |",
    ]
    if version.program is not None:
        lines.append(f"| program | `{version.program.key}`, SHA-256 `{version.program.sha256}` |")
    lines += ["", "## Evaluation", "", *comparison_lines(version.comparisons, version.compared_with)]
    if start is not None:
        lines += ["", "## Data", "", *window_lines(start.window, start.changes)]
        lines += ["", "## Check of the data", "", *gate_lines(start.gate)]
    return "\n".join(lines) + "\n"


def version_status(models: Models, number: int) -> str:
    """Whether a version is or was in service, in words."""
    if models.in_service == number:
        return "in service"
    was = any(event.in_service == number for event in models.events)
    return "was in service" if was else "never in service"


def comparison_lines(comparisons: Sequence[Comparison], compared_with: int | None) -> Iterator[str]:
    """A table of metrics, and one of subgroups."""
    if not comparisons:
        yield "Not evaluated."
        return
    there = f"version {compared_with}" if compared_with is not None else "in service"
    yield f"| metric (less is better) | candidate | {there} | gain |"
    yield "|---|---|---|---|"
    for each in comparisons:
        gain = _interval(each.gain, as_percent=True) if each.gain is not None else "-"
        other = _interval(each.in_service) if each.in_service is not None else "-"
        yield f"| {each.metric} | {_interval(each.candidate)} | {other} | {gain} |"
    groups = {name: gain for each in comparisons for name, gain in each.groups.items()}
    if groups:
        yield ""
        yield "| subgroup | gain |"
        yield "|---|---|"
        yield from (f"| {name} | {100 * gain:+.2f} % |" for name, gain in sorted(groups.items(), key=lambda g: g[1]))


def window_lines(window: Window, changes: Sequence[str]) -> Iterator[str]:
    """The files of a window with their rows and hashes, and what has changed since the window before."""
    yield "| period | file | rows | SHA-256, first 16 of 64 digits | used for |"
    yield "|---|---|---|---|---|"
    for file in window.files[-_MOST_FILES:]:
        use = "evaluation" if file.is_held_back else "training"
        yield f"| {file.period} | `{file.path}` | {file.rows} | `{file.sha256[:16]}` | {use} |"
    for missing in window.missing:
        yield f"| {missing.period} | missing: `{missing.pattern}` | | | |"
    if len(window.files) > _MOST_FILES:
        yield ""
        yield f"The newest {_MOST_FILES} of {len(window.files)} files."
    if changes:
        yield ""
        yield from (f"* {change}" for change in changes)


def gate_lines(gate: GateResult) -> Iterator[str]:
    """What the check found."""
    yield f"{gate.outcome}: {gate.expectations} expectations over {gate.rows:,} rows, {len(gate.findings)} not met."
    if gate.findings:
        yield ""
        yield "| about | expectation | found | where |"
        yield "|---|---|---|---|"
    for finding in gate.findings[:_MOST_FINDINGS]:
        level = " (warning)" if finding.is_warning else ""
        where = "; ".join(finding.places[:3])
        yield f"| {finding.about}{level} | {finding.expectation} | {_cell(finding.observed)} | {_cell(where)} |"
    if len(gate.findings) > _MOST_FINDINGS:
        yield ""
        yield f"and {len(gate.findings) - _MOST_FINDINGS} more."


def gate_page(start: SlotStart, *, name: str, zone: tzinfo, docs: str | None) -> str:
    """The check of a slot's window."""
    gate = start.gate
    verdict = {"passed": "Data passed", "warned": "Data passed with warnings", "failed": "Data refused"}[gate.outcome]
    lines = [f"**{verdict}** for the slot {start.slot.astimezone(zone):%Y-%m-%d %H:%M %Z} of {name}.", ""]
    if gate.outcome == "failed":
        lines += ["Nothing was bought, and the model in service is unchanged.", ""]
    lines += [*gate_lines(gate), ""]
    if docs is not None:
        lines += [f"Data Docs: `{docs}` in the store; `segue data docs` opens them.", ""]
    return "\n".join([*lines, *window_lines(start.window, start.changes)]) + "\n"


def history_page(models: Models, *, zone: tzinfo) -> str:
    """All slots, versions and promotions of a model, newest first."""
    now = f"version {models.in_service} is in service" if models.in_service is not None else "none is in service"
    lines = [
        f"**{models.name}**: {now}.",
        "",
        "## Slots",
        "",
        "| slot | outcome | version | why |",
        "|---|---|---|---|",
    ]
    lines += [_slot_row(state, zone) for state in reversed([*models.slots.values()])]
    lines += ["", "## In service", "", "| since | version | why |", "|---|---|---|"]
    before, rows = None, []
    for event in models.events:
        if event.in_service != before or isinstance(event.record, Choice):
            why = _short(event.record.why)
            rows.append(f"| {event.at.astimezone(zone):%Y-%m-%d %H:%M %Z} | {event.in_service} | {why} |")
            before = event.in_service
    return "\n".join([*lines, *reversed(rows)]) + "\n"


def _slot_row(state: SlotState, zone: tzinfo) -> str:
    why = _short(state.end.why) if state.end is not None else ""
    version = state.version if state.version is not None else "-"
    return f"| {state.slot.astimezone(zone):%Y-%m-%d %H:%M %Z} | {state.outcome_in_words} | {version} | {why} |"


def _training_rows(version: Candidate) -> Iterator[tuple[str, str]]:
    training = version.training
    yield "cost", f"{money(training.cost, training.currency)}{_compared_cost(training.saved_share)}"
    yield "segments", f"{training.segments}, {training.preemptions} preemptions"
    verdicts = ", ".join(f"{count} {kind}" for kind, count in training.verdicts.items())
    yield "resumes", verdicts or "none"
    if training.late_seconds is not None:
        side = "late" if training.late_seconds > 0 else "early"
        yield "deadline", f"{duration(abs(training.late_seconds))} {side}"
    yield from ((f"hash of {name}", f"`{value}`") for name, value in training.hashes.items())


def _compared_cost(saved_share: float | None) -> str:
    if saved_share is None:
        return ""
    side = "less" if saved_share >= 0 else "more"
    return f", {abs(saved_share):.0%} {side} than on-demand alone"


def _beginning(start: SlotStart | None) -> str:
    if start is None or start.start_version is None:
        return "weights as the recipe builds them"
    return f"the weights of version {start.start_version}"


def _interval(interval: Interval, *, as_percent: bool = False) -> str:
    def shown(value: float) -> str:
        return f"{100 * value:+.2f} %" if as_percent else f"{value:.4g}"

    return f"{shown(interval.value)} ({shown(interval.low)} to {shown(interval.high)})"


def _short(text: str) -> str:
    """The beginning of a reason: Prefect cuts off what is wider than the page. Cards and states have all of it."""
    return _cell(textwrap.shorten(text, _WIDEST, placeholder=" ..."))


def _cell(text: str) -> str:
    """Text that does not break a row of a table."""
    return text.replace("|", "\\|").replace("\n", " ")
