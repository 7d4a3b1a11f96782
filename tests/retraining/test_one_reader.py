"""Data check, fingerprint of the window, evaluation, recipe and profile take one frame from a file, or none does."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

import segue
from segue.data.config import config_with_data
from segue.data.files import checked_copies
from segue.data.frames import facts_of, read_frame
from segue.data.tables.column_types import layout_of
from segue.errors import DataContentError, NoDataError
from segue.parsing import parsed
from segue.retraining.gate.columns import columns_of
from segue.retraining.slots import run_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import window_of
from segue.spec import Reading
from tests.data.dialects import Column, Dialect, columns, dialects, faithful, plain, write

SLOT = datetime(2026, 1, 1, tzinfo=UTC)
FILES = 3


@st.composite
def windows(draw):
    suffixes = draw(st.lists(st.sampled_from(["csv", "csv", "csv.gz", "parquet"]), min_size=FILES, max_size=FILES))
    return draw(columns(files=FILES)), draw(dialects), suffixes


def spec_of(folder: Path, reading: Reading) -> RetrainSpec:
    fields = {
        "name": "m",
        "data": {"files": f"{folder}/", "periods": FILES - 1, "reading": reading.model_dump(mode="json")},
        "run": {"recipe": "train:build", "steps": 1},
    }
    return parsed(RetrainSpec, fields, source="retrain.toml")


def frames_of(folder: Path, reading: Reading) -> dict[str, tuple[pd.DataFrame, ...]]:
    """What each reader sees of the files to train on, and of those that are held back."""
    spec = spec_of(folder, reading)
    window, local = window_of(spec, SLOT)
    with columns_of(window.files, local, window.columns, reading) as table:
        training = sum(file.rows or 0 for file in window.training)
        check = table.read(table.names)
        assert table.rows == len(check), "the fingerprint has as many rows"
    held = [(path, facts_of(path, name=path.name, reading=reading)) for path in local.values()]
    layout = layout_of([(path.name, facts) for path, facts in held], reading)
    with columns_of(window.files, local, layout.columns, reading) as table:
        profile = table.read(table.names)
    data = window.data_of(window.held_back, spec.data)
    run = run_of(spec, SLOT, window, now=SLOT)
    return {
        "check": (check[:training], check[training:]),
        "profile": (profile[:training], profile[training:]),
        "used": (
            segue.data_frame(config_with_data(run)),
            read_frame(checked_copies(data), types=data.columns, reading=data.reading),
        ),
    }


def agree(found: tuple[list[Column], Dialect, list[str]]) -> None:
    held, dialect, suffixes = found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            paths = [write(folder / f"{n}.{suffix}", held, n, dialect) for n, suffix in enumerate(suffixes)]
        except UnicodeEncodeError:
            return
        try:
            readers = frames_of(folder, dialect.reading)
        except NoDataError:
            return
        except DataContentError:
            with pytest.raises(DataContentError):
                read_frame(paths, reading=dialect.reading)
            return
        for reader in ("profile", "used"):
            for one, other in zip(readers["check"], readers[reader], strict=True):
                if not len(one.columns):
                    continue
                same = other[list(one.columns)].reset_index(drop=True)  # The check has what every file has.
                assert_frame_equal(one.reset_index(drop=True), same, check_exact=True)
        frame = pd.concat(readers["check"], ignore_index=True)
        for column in held:
            if faithful(column, dialect) and column.name in frame:
                expected = [value for values in column.values for value in values]
                assert [plain(value) for value in frame[column.name]] == expected


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_every_reader_takes_the_same_frame_of_files_in_any_dialect_or_they_are_refused(found):
    agree(found)


@pytest.mark.matrix
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(windows())
def test_every_reader_takes_the_same_frame_in_two_thousand_dialects(found):
    agree(found)
