"""The window of a slot: its files by the calendar, what they hold, and what is missing, late or changed, by name."""

from __future__ import annotations

from datetime import UTC, datetime

import pandas as pd
import pytest

from segue.errors import DataUnreadableError, NoDataError, SpecError
from segue.parsing import parsed
from segue.retraining.spec import RetrainSpec, Window
from segue.retraining.window import changes_since, window_of

JULY = datetime(2013, 7, 3, 6, tzinfo=UTC)
AUGUST = datetime(2013, 8, 3, 6, tzinfo=UTC)

RUN = {"recipe": "train:build", "steps": 10}


def spec_of(folder, **data) -> RetrainSpec:
    common = {"files": f"{folder}/flights-%Y-%m.parquet", "period": "month", "periods": 2}
    return parsed(RetrainSpec, {"name": "flights", "data": common | data, "run": RUN}, source="retrain.toml")


def write(folder, *months: int, rows: int = 5) -> None:
    for month in months:
        pd.DataFrame({"delay": range(rows)}).to_parquet(folder / f"flights-2013-{month:02}.parquet")


def window(spec, slot=JULY) -> Window:
    return window_of(spec, slot)[0]


def roles(window: Window) -> dict[str, bool]:
    return {file.period: file.is_held_back for file in window.files}


def test_a_sliding_window_ends_with_the_newest_complete_period_which_is_held_back(tmp_path):
    write(tmp_path, 1, 2, 3, 4, 5, 6, 7, rows=7)
    found, local = window_of(spec_of(tmp_path), JULY)
    assert roles(found) == {"2013-04": False, "2013-05": False, "2013-06": True}
    assert [file.path for file in found.training] == [str(tmp_path / f"flights-2013-0{n}.parquet") for n in (4, 5)]
    assert {file.rows for file in found.files} == {7}
    assert {path: str(each) for path, each in local.items()} == {file.path: file.path for file in found.files}
    later = window(spec_of(tmp_path), AUGUST)
    assert roles(later) == {"2013-05": False, "2013-06": False, "2013-07": True}


def test_a_growing_window_begins_with_the_same_period_at_each_slot(tmp_path):
    write(tmp_path, *range(1, 8))
    spec = spec_of(tmp_path, window="growing", since="2013-02-10", held_back_periods=2)
    assert roles(window(spec)) == {"2013-02": 0, "2013-03": 0, "2013-04": 0, "2013-05": 1, "2013-06": 1}
    assert len(window(spec, AUGUST).training) == 4


def test_a_period_is_left_until_its_delay_has_passed(tmp_path):
    write(tmp_path, *range(1, 8))
    assert "2013-06" not in roles(window(spec_of(tmp_path, delay_hours=72)))


def test_the_time_zone_decides_which_period_is_complete(tmp_path):
    write(tmp_path, *range(1, 8))
    midnight = datetime(2013, 6, 30, 22, 30, tzinfo=UTC)
    spec = spec_of(tmp_path).model_copy(update={"timezone": "Europe/Berlin"})
    assert [next(reversed(roles(window(each, midnight)))) for each in (spec, spec_of(tmp_path))] == [
        "2013-06",
        "2013-05",
    ]


def test_a_period_without_files_stops_the_slot_and_is_named(tmp_path):
    write(tmp_path, 4, 6)
    with pytest.raises(NoDataError, match=rf"files are missing: {tmp_path}/flights-2013-05\.parquet\. Fix: wait"):
        window(spec_of(tmp_path))


def test_a_period_without_files_may_be_left_out_and_is_kept_in_the_record(tmp_path):
    write(tmp_path, 4, 6)
    found = window(spec_of(tmp_path, on_missing="warn"))
    assert roles(found) == {"2013-04": False, "2013-06": True}
    assert [each.period for each in found.missing] == ["2013-05"]


@pytest.mark.parametrize(("months", "what"), [((6,), "train on"), ((4, 5), "evaluate with"), ((), "train on")])
def test_no_slot_is_without_files_to_train_on_or_to_evaluate_with(tmp_path, months, what):
    write(tmp_path, *months)
    with pytest.raises(NoDataError, match=f"there are no files to {what}: "):
        window(spec_of(tmp_path, on_missing="warn"))


def test_a_period_may_have_many_files_and_a_folder_of_its_own(tmp_path):
    for month in (5, 6):
        folder = tmp_path / "2013" / f"{month:02}"
        folder.mkdir(parents=True)
        for part in ("b.csv", "a.parquet"):
            frame = pd.DataFrame({"delay": [1, 2], "note": ["one", "two\nlines"]})
            frame.to_csv(folder / part, index=False) if part.endswith("csv") else frame.to_parquet(folder / part)
        (folder / "_SUCCESS").touch()
    found = window(spec_of(tmp_path, files=f"{tmp_path}/%Y/%m/", periods=1))
    assert [(file.path.rpartition("/")[2], file.rows) for file in found.training] == [("a.parquet", 2), ("b.csv", 2)]


def test_without_periods_each_file_is_one(tmp_path):
    write(tmp_path, 1, 2, 3, 4)
    files = f"{tmp_path}/flights-*.parquet"
    sliding = window(spec_of(tmp_path, files=files, period=None, periods=1))
    assert [(file.period, file.is_held_back) for file in sliding.files] == [
        ("flights-2013-03.parquet", False),
        ("flights-2013-04.parquet", True),
    ]
    growing = spec_of(tmp_path, files=files, period=None, periods=None, window="growing", held_back_periods=0)
    assert len(window(growing).training) == 4


def test_paths_are_absolute_because_segments_run_elsewhere(tmp_path, monkeypatch):
    write(tmp_path, 4, 5, 6)
    monkeypatch.chdir(tmp_path)
    assert {file.path.rpartition("/")[0] for file in window(spec_of(".")).files} == {str(tmp_path)}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("flights-2013-05.parquet", b"PAR1 no parquet", "Parquet"),
        ("flights-2013-05.csv", b'a,b\n1,2\n1,2,3\n"', "CSV"),
        ("flights-2013-05.txt", b"", "its name does not end with"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_format_is_named(tmp_path, name, content, why):
    write(tmp_path, 4, 6)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataUnreadableError, match=rf"{name} could not be read: .*{why}"):
        window(spec_of(tmp_path, files=f"{tmp_path}/flights-%Y-%m.*"))


@pytest.mark.matrix
def test_files_of_a_bucket_are_found_and_copied_once(bucket, tmp_path):
    write(tmp_path, 4, 5, 6)
    for month in (4, 5, 6):
        name = f"flights-2013-{month:02}.parquet"
        bucket.client.upload_file(str(tmp_path / name), bucket.name, f"lake/2013/{month:02}/{name}")
    files = f"s3://{bucket.name}/lake/%Y/%m/"
    spec = spec_of(tmp_path, files=files, endpoint_url=bucket.url, cache_folder=str(tmp_path / "cache"))
    found, local = window_of(spec, JULY)
    here = window(spec_of(tmp_path))
    assert [file.sha256 for file in found.files] == [file.sha256 for file in here.files]
    assert found.files[0].path == f"s3://{bucket.name}/lake/2013/04/flights-2013-04.parquet"
    assert {path.parent for path in local.values()} == {tmp_path / "cache"}
    bucket.client.delete_object(Bucket=bucket.name, Key="lake/2013/05/flights-2013-05.parquet")
    with pytest.raises(NoDataError, match=f"files are missing: s3://{bucket.name}/lake/2013/05/"):  # Nothing is cached.
        window(spec)


def test_late_changed_and_gone_files_are_named(tmp_path):
    files = f"{tmp_path}/flights-%Y-%m*.parquet"
    spec = spec_of(tmp_path, files=files, on_missing="warn", periods=3)
    write(tmp_path, 3, 4, 6)
    pd.DataFrame({"delay": [1]}).to_parquet(tmp_path / "flights-2013-06-b.parquet")
    before = window(spec)
    assert changes_since(before, before) == ()
    write(tmp_path, 5, 7)
    write(tmp_path, 4, rows=6)
    pd.DataFrame({"delay": [1]}).to_parquet(tmp_path / "flights-2013-04-more.parquet")
    (tmp_path / "flights-2013-06-b.parquet").unlink()
    assert changes_since(before, window(spec, AUGUST)) == (
        f"{tmp_path}/flights-2013-04-more.parquet is late: the previous window had other files of 2013-04 only",
        f"{tmp_path}/flights-2013-04.parquet has other content than in the previous window (5 rows then, 6 now)",
        f"{tmp_path}/flights-2013-05.parquet is late: the previous window had no files of 2013-05",
        f"{tmp_path}/flights-2013-06-b.parquet is missing, but was in the previous window",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"periods": None}, "data.periods: required for a sliding window: the number of periods to train on"),
        ({"window": "growing"}, "data.since: required for a growing window of periods: a day in its first one"),
        ({"period": None}, "data.period: required if files has fields of strftime: hour, day, week or month"),
        ({"period": "fortnight"}, "data.period: "),
        ({"held_back": 1}, "data.held_back: unknown field; did you mean 'held_back_periods'?"),
    ],
)
def test_a_window_that_is_none_is_refused_with_what_is_missing(tmp_path, fields, message):
    with pytest.raises(SpecError) as raised:
        spec_of(tmp_path, **fields)
    assert message in str(raised.value)
    assert "got {" not in str(raised.value)
