"""Checks a window before any capacity is bought, with the user's suite and with segue's own measures of the files.

Expectations are evaluated over all rows, one group of columns at a time, to keep only this group in memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from segue.curves.great_expectations import build_docs, ephemeral_context
from segue.retraining.gate.columns import Columns, columns_of
from segue.retraining.gate.measures import DIFFERENCES, derived
from segue.retraining.gate.profile import profile_of
from segue.retraining.gate.record import Finding, GateResult
from segue.retraining.gate.suite import Expectation, by_columns, read_suite
from segue.retraining.spec import RetrainSpec, Window

if TYPE_CHECKING:
    import pandas as pd

_MOST_PLACES = 10
_SOURCE = "data"
_NEEDED_FOR = "The check of the data"
_LARGE_BYTES = 2**24
"""Frames above this size in bytes are freed at once, which takes 0.3 s."""


def check_window(
    spec: RetrainSpec,
    window: Window,
    local: Mapping[str, Path],
    *,
    slot: datetime,
    folder: Path,
    before: tuple[Window, GateResult] | None = None,
    docs: Path | None = None,
) -> GateResult:
    """Evaluate every expectation of `spec.gate`. `folder` contains retrain.toml, and `before` is the previous slot.

    If `docs` is given, Data Docs are written into this folder. The first page of Data Docs is `index.html`.

    Raises:
        DataUnreadableError: a file is damaged, or a value does not have the type of its column.
        MissingExtraError: great-expectations is not installed.
        OutputError: `docs` cannot be written.
        SpecError: the suite cannot be read, or has an entry that is not an expectation.
    """
    known = {file.sha256 for file in before[0].files} if before is not None else set()
    paths = {file.path for file in window.files}
    new = {file.path for file in window.files if file.sha256 not in known} or paths
    with (
        columns_of(window.files, local, window.columns, spec.data.reading) as columns,
        ephemeral_context(docs, needed_for=_NEEDED_FOR) as (gx, context),
    ):
        suite = read_suite(folder / spec.gate.suite, gx) if spec.gate.suite is not None else ()
        validator = _Validator(context)
        found = [*_of_suite(suite, columns, validator)]
        profiles = before[1].profiles if before is not None else {}
        for measure in derived(spec.gate, columns, window, slot=slot, new=columns.only(new), before=profiles):
            made = tuple(getattr(gx.expectations, name)(**arguments) for name, arguments in measure.expected)
            results = validator.validate(measure.frame, made)
            subjects = [str(each) for each in measure.frame.iloc[:, 0]]
            about, place = measure.name, subjects.__getitem__
            found += [_finding(each, about, place, is_warning=False, of=measure.of) for each in results]
        if docs is not None:
            validator.write_docs(docs, name=spec.name, run_name=f"{slot.astimezone(UTC):%Y-%m-%dT%H%MZ}")
        findings = tuple(each for each in found if each is not None)
        return GateResult(
            outcome=_outcome(spec, findings),
            expectations=len(found),
            rows=columns.rows,
            findings=findings,
            profiles={name: profile_of(columns.read([name])[name]) for name in columns.names},
        )


def _outcome(spec: RetrainSpec, findings: Sequence[Finding]) -> Literal["passed", "warned", "failed"]:
    stops = any(not each.is_warning for each in findings) and spec.gate.on_failure == "stop"
    return "failed" if stops else "warned" if findings else "passed"


def _of_suite(suite: Sequence[Expectation], columns: Columns, validator: _Validator) -> Iterator[Finding | None]:
    """Yield the finding of each expectation, or None for an expectation that is met."""
    for names, expectations in by_columns(suite).items():
        missing = [name for name in names or () if name not in columns.names]
        if missing:
            observed = f"the data has no column {', '.join(missing)}"
            yield from (_unmet(each, names or (), observed) for each in expectations)
        elif names == ():
            for each in expectations:
                frame = columns.count() if each.counts_rows else columns.outline()
                yield _finding(validator.validate(frame, [each.made])[0], "the table", str, each.is_warning)
        else:
            frame = columns.read(columns.names if names is None else names)
            results = validator.validate(frame, [each.made for each in expectations])
            for each, result in zip(expectations, results, strict=True):
                about = ", ".join(names or ("rows with a condition",))
                yield _finding(result, about, columns.place_of, each.is_warning)


def _finding(
    result: Any, about: str, place_of: Callable[[int], str], is_warning: bool, *, of: str = "rows"
) -> Finding | None:
    if result.success:
        return None
    found = result.result
    rows = [row for row in found.get("partial_unexpected_index_list") or () if isinstance(row, int)]
    return Finding(
        expectation=result.expectation_config.type,
        about=about,
        is_warning=is_warning,
        observed=_observed(result, of),
        places=tuple(place_of(row) for row in rows[:_MOST_PLACES]),
    )


def _observed(result: Any, of: str) -> str:
    found = result.result
    if not found:  # The expectation could not be evaluated; Great Expectations keeps the exception.
        return f"it could not be evaluated: {_reason(result.exception_info)}"
    if "unexpected_count" not in found:
        return f"observed {_shown(found.get('observed_value'))}"
    if of == DIFFERENCES:  # The places describe the differences.
        count = found["unexpected_count"]
        return f"{count} {of if count > 1 else of.removesuffix('s')}"
    shown = ", ".join(dict.fromkeys(map(_shown, found.get("partial_unexpected_list", ())[:3])))
    return f"{found['unexpected_count']} of {found['element_count']} {of}, e.g. {shown}"


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _reason(exceptions: Any) -> str:
    """Return the message of an exception that Great Expectations kept.

    Great Expectations keeps it as a dict, or as a dict with one exception for each metric.
    """
    if not isinstance(exceptions, dict):
        return str(exceptions)
    message = exceptions.get("exception_message")
    return str(message) if message else "; ".join(dict.fromkeys(map(_reason, exceptions.values())))


def _unmet(expectation: Expectation, names: Sequence[str], observed: str) -> Finding:
    return Finding(
        expectation=expectation.kind, about=", ".join(names), is_warning=expectation.is_warning, observed=observed
    )


class _Validator:
    """Evaluates expectations for frames, and keeps the results for the Data Docs."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._results: list[Any] = []

    def validate(self, frame: pd.DataFrame, expectations: Sequence[Any]) -> list[Any]:
        """Return the results, in the order of the expectations."""
        source = self._context.data_sources.add_pandas(_SOURCE)
        try:
            whole = source.add_dataframe_asset(_SOURCE).add_batch_definition_whole_dataframe(_SOURCE)
            batch = whole.get_batch(batch_parameters={"dataframe": frame})
            # With a longer result format, many wrong rows would take minutes.
            options = {"result_format": "SUMMARY", "partial_unexpected_count": _MOST_PLACES}
            results = [batch.validate(each, result_format=options) for each in expectations]
        finally:
            self._context.data_sources.delete(_SOURCE)  # The data source would keep the frame.
        self._results += results
        del batch
        if frame.memory_usage().sum() > _LARGE_BYTES:
            # The objects of Great Expectations refer to each other, and would keep the columns of many groups.
            gc.collect()
        return results

    def write_docs(self, folder: Path, *, name: str, run_name: str) -> None:
        """Write all results as one page of Data Docs, and an index page."""
        from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.data_context.types.resource_identifiers import (
            ExpectationSuiteIdentifier,
            ValidationResultIdentifier,
        )

        met = sum(bool(each.success) for each in self._results)
        count = len(self._results)
        result = ExpectationSuiteValidationResult(
            success=met == count,
            results=self._results,
            suite_name=name,
            statistics={
                "evaluated_expectations": count,
                "successful_expectations": met,
                "unsuccessful_expectations": count - met,
                "success_percent": 100 * met / count if count else 100.0,
            },
            meta={"run_id": {"run_name": run_name}},
        )
        key = ValidationResultIdentifier(
            expectation_suite_identifier=ExpectationSuiteIdentifier(name=name),
            run_id=RunIdentifier(run_name=run_name),
            batch_identifier=_SOURCE,
        )
        self._context.validation_results_store.set(key, result)
        build_docs(self._context, folder)
