"""Traces of spot availability: read by the rules of their names, cut into windows, refused with the fix."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from segue.errors import TraceError
from segue.simulation.traces import Trace, long_enough, read_trace, read_traces, windows


def write(folder: Path, name: str, data: object, *, gap: object = 600) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"metadata": {"gap_seconds": gap}, "data": data}))
    return path


def test_an_availability_file_is_read_as_it_is(tmp_path):
    trace = read_trace(write(tmp_path, "a22-us-west-2a_k80_8", [1, 0, 1, 1]))
    assert (trace.name, trace.tick_seconds, list(trace.up)) == ("a22-us-west-2a_k80_8", 600.0, [1, 0, 1, 1])
    assert trace.seconds == 2400.0


def test_irregular_probes_are_resampled_to_ten_minutes(tmp_path):
    # 200 s apart: every third entry is ten minutes on.
    trace = read_trace(write(tmp_path, "a23-us-east-1a_v100_1", [1, 0, 0, 0, 1, 1, 1], gap=200))
    assert (trace.tick_seconds, list(trace.up)) == (600.0, [1, 0, 1])


def test_a_held_instance_is_up_where_it_lived_through_eight_samples(tmp_path):
    trace = read_trace(write(tmp_path, "p23-v100-us-east-1c_v100_1", [1] * 8 + [1] * 7 + [0] + [1] * 3, gap=32))
    assert (trace.tick_seconds, list(trace.up)) == (256.0, [True, False])


@pytest.mark.parametrize(("name", "up"), [("p23-4node-x_v100_1", [0, 1, 0]), ("p23-16node-x", [0, 0, 0])])
def test_a_gang_is_up_when_all_of_its_nodes_are(tmp_path, name, up):
    trace = read_trace(write(tmp_path, name, [3, 4, 0], gap=300))
    assert (trace.tick_seconds, list(trace.up)) == (300.0, up)


def test_a_folder_gives_all_of_its_files_by_name(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path / "below", "b", [1])
    write(tmp_path, "a", [0])
    (tmp_path / "README.md").write_text("no trace")
    assert [trace.name for trace in read_traces(tmp_path)] == ["a", "b"]
    assert [trace.name for trace in read_traces(tmp_path / "a.json")] == ["a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no", "is not JSON"),
        ("\xff", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"data": [1]}', "has no number in metadata.gap_seconds"),
        ('{"metadata": [], "data": [1]}', "has no number in metadata.gap_seconds"),
        ('{"metadata": {"gap_seconds": "600"}, "data": [1]}', "has no number in metadata.gap_seconds"),
        ('{"metadata": {"gap_seconds": -600}, "data": [1]}', "has metadata.gap_seconds = -600"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', "has metadata.gap_seconds = nan"),
        ('{"metadata": {"gap_seconds": 600}, "data": []}', "has no data"),
        ('{"metadata": {"gap_seconds": 600}}', "has no data"),
        ('{"metadata": {"gap_seconds": 600}, "data": [1, "up"]}', "has entries in data that are not numbers"),
        ('{"metadata": {"gap_seconds": 600}, "data": [1, -1]}', "has entries in data that are not numbers"),
    ],
)
def test_what_is_no_trace_is_refused_with_the_name_of_its_file(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(TraceError, match=r"x\.json") as caught:
        read_traces(path)
    assert said in str(caught.value)
    assert caught.value.fix in str(caught.value)


def test_a_path_that_is_not_there_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(TraceError, match=r"nowhere cannot be read \(No such file or directory\)"):
        read_traces(tmp_path / "nowhere")
    with pytest.raises(TraceError, match=r"holds no \.json file"):
        read_traces(tmp_path)


def test_windows_have_random_starts_and_the_length_requested():
    trace = Trace("x", 600.0, np.arange(100) % 2 == 0)
    rows = windows(trace, seconds=3600.0, count=50, random=np.random.default_rng(0))
    assert rows.shape == (50, 7)
    assert 0 < rows[:, 0].sum() < 50
    assert (rows[:, 0] != rows[:, 1]).all()


def test_a_window_may_be_the_whole_trace_and_no_more():
    trace = Trace("x", 600.0, np.ones(7, bool))
    assert windows(trace, seconds=3600.0, count=2, random=np.random.default_rng(0)).shape == (2, 7)
    with pytest.raises(TraceError, match="x covers"):
        windows(trace, seconds=3600.1, count=2, random=np.random.default_rng(0))
    with pytest.raises(TraceError, match=r"x covers 70 min, and the job needs 2\.0 h\. Fix: use a longer trace"):
        windows(trace, seconds=7200.0, count=2, random=np.random.default_rng(0))


def test_short_traces_are_not_used_and_refused_where_all_are_short():
    short, long = Trace("short", 600.0, np.ones(3, bool)), Trace("long", 600.0, np.ones(30, bool))
    assert long_enough([short, long], seconds=3600.0) == ([long], [short])
    with pytest.raises(TraceError, match=r"short, long cover at most 5\.0 h, and the job needs 10\.0 h"):
        long_enough([short, long], seconds=36000.0)


def test_finer_ticks_have_the_same_availability():
    finer = Trace("x", 600.0, np.array([True, False])).finer(250.0)
    assert (finer.tick_seconds, list(finer.up)) == (200.0, [True] * 3 + [False] * 3)
    assert finer.finer(200.0).tick_seconds == 200.0


def test_the_mean_life_is_that_of_the_up_intervals():
    assert Trace("x", 600.0, np.array([1, 1, 0, 1, 0, 0], bool)).mean_up_seconds() == 900.0
    assert Trace("x", 600.0, np.zeros(3, bool)).mean_up_seconds() is None


def test_its_error_comes_from_another_process_with_its_facts():
    error = TraceError(source="x", why="is none", fix="Give another.")
    other = pickle.loads(pickle.dumps(error))
    assert (str(other), other.source, other.fix, other.exit_code) == (str(error), "x", "Give another.", 2)
