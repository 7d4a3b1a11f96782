"""Runs Great Expectations without its log lines and analytics, and returns outcomes and Data Docs."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from segue.curves.data_docs import complete
from segue.errors import MissingExtraError, OutputError
from segue.markup import html

if TYPE_CHECKING:
    import pandas as pd

_ANALYTICS = "GX_ANALYTICS_ENABLED"
SITE = "segue"
"""Name of the site of Data Docs in the context of Great Expectations."""
_MOST_SHOWN = 20
_CHATTY = ("great_expectations", "great_expectations.data_context.types.base")
"""The loggers to silence. The second logger has its own level, so it needs a separate entry."""
_WARNED_OF_AT_IMPORT = ("module 'sre_(constants|parse)' is deprecated",)


class Expected(NamedTuple):
    """One expectation for a frame.

    `kind` is the name of the expectation's class in `great_expectations.expectations`.
    """

    name: str
    kind: str
    arguments: Mapping[str, Any]
    promise: str
    """The sentence that the Data Docs show for the expectation."""


class Validation(NamedTuple):
    """The outcome of an expectation, as reported by Great Expectations."""

    met: bool
    observed: str
    steps: tuple[int, ...]
    """The first steps that do not meet the expectation, if the expectation is about steps."""


def validate(
    frames: Mapping[str, tuple[pd.DataFrame, Sequence[Expected]]], *, run_id: str, docs: Path | None = None
) -> dict[str, Validation]:
    """Return the outcome of each expectation, by its name. Every frame needs a column `step` and a unique index.

    If `docs` is given, the function writes Data Docs into this folder, with an `index.html`. At the end, it restores
    the environment variables and the caller's own Great Expectations context. The function does not use the network.

    Raises:
        MissingExtraError: great-expectations is not installed.
        OutputError: `docs` cannot be written.
    """
    with ephemeral_context(docs, needed_for="The check of a loss curve") as (gx, context):
        source = context.data_sources.add_pandas(run_id)
        definitions, batches = [], {}
        for name, (frame, expected) in frames.items():
            batches[name] = frame
            asset = source.add_dataframe_asset(name)
            suite = gx.ExpectationSuite(name=name, expectations=[_expectation(gx, item) for item in expected])
            definition = gx.ValidationDefinition(
                name=name, data=asset.add_batch_definition_whole_dataframe(name), suite=context.suites.add(suite)
            )
            definitions.append(context.validation_definitions.add(definition))
        outcomes: dict[str, Validation] = {}
        for definition in definitions:
            # `unexpected_index_column_names` is not used, because it takes minutes if many rows are wrong.
            checkpoint = gx.Checkpoint(
                name=definition.name, validation_definitions=[definition], result_format="SUMMARY"
            )
            frame = batches[definition.name]
            run = context.checkpoints.add(checkpoint).run(batch_parameters={"dataframe": frame})
            for found in next(iter(run.run_results.values())).results:
                outcomes[found.expectation_config.meta["name"]] = _outcome(found, frame)
        if docs is not None:
            build_docs(context, docs)
    return outcomes


def build_docs(context: Any, folder: Path) -> None:
    """Write the Data Docs of a context into the folder of its site, as pages that need no internet.

    The function escapes all texts in the context, because Great Expectations writes names and values into its pages
    without escaping. Otherwise a column could have a name that runs a script in the browser.
    """
    _escape_texts(context)
    context.build_data_docs(site_names=[SITE])
    complete(folder)


def _escape_texts(context: Any) -> None:
    results, suites = context.validation_results_store, context.expectations_store
    for key in results.list_keys():
        results.set(key, results.deserialize(_as_html(results.get(key).to_json_dict())))
    for key in suites.list_keys():
        suite = suites.deserialize_suite_dict(suites.get(key)).to_json_dict()
        suites.update(key, suites.deserialize_suite_dict(_as_html(suite)))


def _as_html(value: Any) -> Any:
    if isinstance(value, str):
        return html(value)
    if isinstance(value, dict):
        return {_as_html(name): _as_html(inner) for name, inner in value.items()}
    return [_as_html(inner) for inner in value] if isinstance(value, list) else value


def _expectation(gx: Any, item: Expected) -> Any:
    make = getattr(gx.expectations, item.kind)
    return make(**item.arguments, description=item.promise, meta={"name": item.name})


def _outcome(found: Any, frame: pd.DataFrame) -> Validation:
    result = found.result
    if found.success:
        return Validation(met=True, observed="as expected", steps=())
    if not result:  # The expectation could not be evaluated; the result has the exception.
        return Validation(met=False, observed=str(found.exception_info)[:300], steps=())
    if "unexpected_count" not in result:
        return Validation(met=False, observed=str(result.get("observed_value")), steps=())
    rows = frame.loc[list(result.get("partial_unexpected_index_list") or ())]
    columns = [name for name in _columns(found.expectation_config.kwargs) if name != "step"]
    shown = ", ".join(f"{name} {_plain(rows.iloc[0][name])}" for name in columns) if len(rows) else ""
    count = f"{result['unexpected_count']} of {result['element_count']} rows"
    steps = tuple(dict.fromkeys(int(step) for step in rows["step"]))
    return Validation(met=False, observed=f"{count}; the first: {shown}" if shown else count, steps=steps[:_MOST_SHOWN])


def _columns(arguments: Mapping[str, Any]) -> list[str]:
    names = (arguments.get(name) for name in ("column", "column_A", "column_B"))
    return [name for name in names if name is not None] or list(arguments.get("column_list", ()))


def _plain(value: Any) -> str:
    number = value.item() if hasattr(value, "item") else value
    return repr(number) if isinstance(number, float) else str(number)


@contextmanager
def ephemeral_context(docs: Path | None, *, needed_for: str) -> Iterator[tuple[Any, Any]]:
    """Provide the package Great Expectations and a temporary context of this package.

    If `docs` is given, `build_docs` can write Data Docs into this folder.

    Raises:
        MissingExtraError: great-expectations is not installed. The error contains `needed_for`.
        OutputError: `docs` cannot be written.
    """
    with _without_analytics(), _without_info_logs():
        gx = _import(needed_for)
        from great_expectations.data_context.data_context.context_factory import project_manager
        from great_expectations.data_context.types.base import ProgressBarsConfig
        from great_expectations.exceptions.exceptions import DataContextRequiredError

        try:
            before = project_manager.get_current_project()
        except DataContextRequiredError:
            before = None
        try:
            context = gx.get_context(mode="ephemeral")
            context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
            if docs is not None:
                context.add_data_docs_site(SITE, _site(docs))
            yield gx, context
        finally:
            # The context of a notebook stays the current context.
            project_manager.set_project(before)


def _import(needed_for: str) -> Any:
    with warnings.catch_warnings():
        # These warnings come from the imports of the package and its plotting library; no user of segue could fix them.
        for text in _WARNED_OF_AT_IMPORT:
            warnings.filterwarnings("ignore", message=text, category=DeprecationWarning)
        try:
            import great_expectations as gx
            import great_expectations.expectations
        except ImportError:
            raise MissingExtraError(extra="data", needed_for=needed_for) from None
    return gx


@contextmanager
def _without_analytics() -> Iterator[None]:
    before = os.environ.get(_ANALYTICS)
    os.environ[_ANALYTICS] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ANALYTICS]
        else:
            os.environ[_ANALYTICS] = before


@contextmanager
def _without_info_logs() -> Iterator[None]:
    """While the block runs, hide the package's log lines below the level of warnings."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _site(folder: Path) -> dict[str, Any]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise OutputError(path=str(folder), why=error.strerror or type(error).__name__) from None
    return {
        "class_name": "SiteBuilder",
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(folder.absolute()),
        },
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
