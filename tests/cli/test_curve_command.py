"""`segue curve`: a table, files, a check with its exit code, a picture; refusals in one paragraph."""

from __future__ import annotations

import json
import sys
from csv import DictReader

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from segue.cli import main
from segue.curves.frame import curve


@pytest.fixture
def segue(monkeypatch, capsys):
    """The command in this process: what it says and the code it ends with."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["segue", *arguments])
        with pytest.raises(SystemExit) as end:
            main.main()
        return end.value.code or 0, *capsys.readouterr()

    return run


def refused(outcome):
    code, out, err = outcome
    assert (code, out) == (2, "")
    assert err.startswith("segue: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.matrix
@pytest.mark.parametrize("words", [("curve", "nightly"), ("curve", "show", "nightly")])
def test_people_get_the_newest_steps(segue, resumed, words):
    code, out, err = segue(*words, "--store", str(resumed.store))
    assert (code, err) == (0, "")
    assert out.endswith("nightly: 60 rows, steps 1 to 60\n")
    assert " 41 " in out
    assert " 40 " not in out


@pytest.mark.matrix
def test_files_hold_the_frame_to_the_last_bit(segue, resumed, tmp_path):
    as_csv, parquet = tmp_path / "c.csv", tmp_path / "c.parquet"
    more = ("--store", str(resumed.store), "--json")
    code, out, err = segue("curve", "nightly", "--csv", str(as_csv), "--parquet", str(parquet), *more)
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "run": "nightly",
        "rows": 60,
        "first_step": 1,
        "last_step": 60,
        "files": [str(as_csv), str(parquet)],
    }
    frame = curve(resumed.log)
    pd.testing.assert_frame_equal(pd.read_parquet(parquet), frame)
    rows = list(DictReader(as_csv.read_text().splitlines()))
    for name in ("loss", "lr", "param_norm"):
        written = [float(row[name] or "nan") for row in rows]
        np.testing.assert_array_equal(written, frame[name].to_numpy(), err_msg=name)
    assert frame["param_norm"].notna().any()


def test_the_help_lists_resume_and_not_its_old_name(segue):
    _, out, _ = segue("curve", "--help")
    listed = [line.split()[1] for line in out.splitlines() if line.startswith("│ ")]
    assert [name for name in listed if name in {"show", "check", "resume", "seam"}] == ["show", "check", "resume"]


def test_superseded_steps_come_on_request(segue, resumed):
    _, out, _ = segue("curve", "nightly", "--superseded", "--store", str(resumed.store), "--json")
    assert json.loads(out)["rows"] == 70


def test_a_run_that_has_no_checkpoint_yet_has_no_rows(segue, make_spec, open_log):
    log = open_log(make_spec())
    code, out, err = segue("curve", "tiny", "--store", log.store.url)
    assert (code, err) == (0, "")
    assert out.endswith("tiny: 0 rows, no step committed yet\n")


@pytest.mark.matrix
def test_a_check_of_a_clean_curve_ends_with_0_and_writes_data_docs(segue, resumed, tmp_path):
    docs = tmp_path / "docs"
    code, out, err = segue("curve", "check", "nightly", "--docs", str(docs), "--store", str(resumed.store))
    assert (code, err) == (0, "")
    assert "nightly: nothing failed in steps 1 to 60; " in out
    assert out.endswith(f"Data Docs: {docs / 'index.html'}\n")
    assert (docs / "index.html").exists()


@pytest.mark.matrix
def test_a_check_that_fails_ends_with_3_and_says_which_and_where(segue, resumed, tmp_path):
    run = resumed.copy(tmp_path / "store")
    (path,) = run.store.glob("nightly/metrics/seg001-*-p0000.parquet")
    table = pq.read_table(path)
    pq.write_table(table.filter([step not in {41, 42, 43} for step in table["step"].to_pylist()]), path)
    code, out, err = segue("curve", "check", "nightly", "--store", str(run.store), "--json")
    assert (code, err) == (3, "")
    told = json.loads(out)
    assert told["passed"] is False
    failed = {item["name"]: item["steps"] for item in told["expectations"] if item["outcome"] == "failed"}
    assert failed == {"files as committed": [], "as many rows as steps": [], "contiguous steps": [44]}
    code, out, _ = segue("curve", "check", "nightly", "--store", str(run.store))
    assert code == 3
    assert "FAILED: steps are missing or repeated (first: step 44)." in out


@pytest.mark.parametrize("command", ["resume", "seam"])
def test_a_resume_point_becomes_a_png(segue, resumed, tmp_path, command):
    out = tmp_path / "resume.png"
    code, said, err = segue("curve", command, "nightly", "--out", str(out), "--store", str(resumed.store))
    assert (code, said, err) == (0, f"resume point written to {out}\n", "")
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("nightli",), "no run 'nightli' in "),
        (("check", "nightli"), "no run 'nightli' in "),
        (("nightly", "--csv", "{tmp}/no/c.csv"), "/no/c.csv cannot be written ("),
        (("nightly", "--parquet", "{tmp}/no/c.parquet"), "/no/c.parquet cannot be written ("),
        (
            ("resume", "nightly", "--out", "{tmp}/no/s.png"),
            "/no/s.png cannot be written (No such file or directory)",
        ),
        (("resume", "nightly", "--out", "{tmp}/s.png", "--segment", "0"), "choose one of 1.1 (segment.attempt)."),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_paragraph(segue, resumed, tmp_path, asked, said):
    words = [word.format(tmp=tmp_path) for word in asked]
    assert said in refused(segue("curve", *words, "--store", str(resumed.store)))
    assert list(tmp_path.iterdir()) == []
