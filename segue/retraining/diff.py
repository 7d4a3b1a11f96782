"""Computes the differences between two versions of a model. The module is pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from segue.retraining.history import Models
from segue.retraining.model_record import Candidate, SlotStart
from segue.retraining.spec import WindowFile
from segue.units import money


class Difference(NamedTuple):
    """A property in which two versions differ. If a version lacks the property, its value is None."""

    what: str
    one: str | None
    other: str | None


def differences(models: Models, one: int, other: int) -> list[Difference]:
    """Return all differences of two versions: slot, run, data, gate, configuration, code, metrics and cost.

    Raises:
        UnknownVersionError: there is no such version.
    """
    facts = [dict(_facts(models.version(number), models)) for number in (one, other)]
    names = dict.fromkeys([*facts[0], *facts[1]])
    pairs = (Difference(name, facts[0].get(name), facts[1].get(name)) for name in names)
    return [pair for pair in pairs if pair.one != pair.other]


def _facts(version: Candidate, models: Models) -> Iterator[tuple[str, str]]:
    start = models.slots[version.slot].start
    yield "slot", version.slot.isoformat(timespec="minutes")
    yield "run", version.run_id
    yield "step", str(version.step)
    if start is not None:
        yield from _data_facts(start)
    if start is not None and start.run is not None:
        yield "trained by", start.run.workload
    yield from ((f"config.{name}", repr(value)) for name, value in sorted(version.config.items()))
    yield from ((f"hash of {name}", value) for name, value in sorted(version.training.hashes.items()))
    yield from ((each.metric, each.value_in_words) for each in version.comparisons)
    yield "cost", money(version.training.cost, version.training.currency)
    yield "preemptions", str(version.training.preemptions)
    yield "SHA-256 of the weights", version.weights.sha256


def _data_facts(start: SlotStart) -> Iterator[tuple[str, str]]:
    yield "begins with", "scratch" if start.start_version is None else f"version {start.start_version}"
    yield "check of the data", f"{start.gate.outcome}, {len(start.gate.findings)} findings"
    yield "rows", str(sum(file.rows or 0 for file in start.window.training))
    yield from ((f"file {path}", text) for path, text in _files(start.window.files).items())


def _files(files: tuple[WindowFile, ...]) -> Mapping[str, str]:
    return {file.path: f"{'evaluation' if file.is_held_back else 'training'} SHA-256 {file.sha256}" for file in files}
