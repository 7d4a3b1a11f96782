"""What a program gets from its run: `[config]`, and the run's files, here and in the processes that it starts."""

from __future__ import annotations

import hashlib
import json
import signal
from pathlib import Path

import pytest
import toml

import segue
from segue.clock import SystemClock
from segue.controller.steps import check_start, open_run
from segue.errors import CodeChangedError, DriftError, SessionError
from segue.interop.code_check import refuse_changed_code
from segue.records import StopReason, VerdictKind
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from tests.support.command import Desk
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/configured.py"
CONFIG = {"lr": 0.02, "names": ["a", "b"], "deep": {"of": [1, None, True]}}


def data_of(*files: Path) -> dict[str, list[dict[str, str | int]]]:
    """The files of a run, as a spec has them."""
    hashes = [(file, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]
    return {"files": [{"path": str(path), "sha256": sha, "size_bytes": path.stat().st_size} for path, sha in hashes]}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "may.txt"
    file.write_text("some text")
    return file


@pytest.fixture
def make_program(make_spec):
    def make(**fields):
        command = ["python", str(PROGRAM)]
        return make_spec(**{"recipe": None, "program": {"command": command}, "config": CONFIG} | fields)

    return make


def test_outside_a_segment_the_config_is_empty_or_that_of_the_named_file(tmp_path, monkeypatch):
    assert segue.session().config == {}
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("SEGUE_CONFIG", str(tmp_path / "mine.json"))
    assert segue.session().config == CONFIG


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "No such file"), ("{", "not a config"), ("[1]", "a list, not an object"), ('{"a": NaN}', "NaN is no JSON")],
)
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path, monkeypatch, content, why):
    file = tmp_path / "mine.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SEGUE_CONFIG", str(file))
    with pytest.raises(SessionError, match=why) as caught:
        _ = segue.session().config
    assert str(file) in str(caught.value)


def test_a_local_session_has_the_config_of_the_named_file_and_records_it(tmp_path, monkeypatch, file):
    (tmp_path / "mine.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("SEGUE_CONFIG", str(tmp_path / "mine.json"))
    with segue.session(local=tmp_path / "run") as run:
        found = run.config
        for _ in run.steps(3):
            run.report(loss=1.0)
    assert found == CONFIG
    assert segue.open_run("local", store=str(tmp_path / "run")).spec.config == CONFIG


def test_a_program_and_the_processes_that_it_starts_have_config_and_files(fork_server, make_program, open_log, file):
    spec = make_program(data=data_of(file))
    assert fork_server.run_attempt(open_log(spec), spec).stop_reason is StopReason.FINISHED
    whole = CONFIG | {"data": [str(file)]}
    assert json.loads(Path("given.json").read_text()) == [whole, whole, whole, True]


@pytest.mark.matrix
def test_each_rank_has_config_and_files(ranks_fork_server, make_program, open_log, file):
    spec = make_program(data=data_of(file), ranks=2)
    assert ranks_fork_server.run_attempt(open_log(spec), spec, ranks=2).stop_reason is StopReason.FINISHED
    whole = CONFIG | {"data": [str(file)]}
    for rank in range(2):
        assert json.loads(Path(f"given{rank}.json").read_text()) == [whole, whole, whole, True]


def test_without_a_config_nothing_is_added_to_the_environment(fork_server, make_program, open_log, file, monkeypatch):
    monkeypatch.setenv("SEGUE_CONFIG", "/of/another/run.json")
    spec = make_program(config={})
    assert fork_server.run_attempt(open_log(spec), spec).stop_reason is StopReason.FINISHED
    assert json.loads(Path("given.json").read_text()) == [{}, {}, {}, False]


def test_a_resume_with_another_config_or_file_is_refused_before_it_starts(fork_server, make_program, open_log, file):
    spec = make_program(data=data_of(file))
    fork_server.run_attempt(open_log(spec), spec)
    other = file.with_name("june.txt")
    other.write_text("other text")
    for fields, name in (
        ({"config": CONFIG | {"lr": 0.5}, "data": data_of(file)}, "config.lr"),
        ({"data": data_of(other)}, f"data.{other}"),
    ):
        with pytest.raises(DriftError) as caught:
            check_start(make_program(**fields), clock=SystemClock(), accept_drift=False)
        assert name in caught.value.fields


@pytest.mark.matrix
def test_an_accepted_config_is_another_setup_that_was_meant(fork_server, make_program, open_log, file):
    slow = make_program(config=CONFIG | {"pause_seconds": 0.03}, data=data_of(file))
    fork_server.run_attempt(open_log(slow), slow, observer=stop_when_proven(signal.SIGKILL))
    spec = make_program(config=CONFIG | {"weight_decay": 0.5}, data=data_of(file))
    runlog = open_run(spec, clock=SystemClock(), accept_drift=True)
    assert fork_server.run_attempt(runlog, spec).stop_reason is StopReason.FINISHED
    verdict = read_history(runlog.reload()).attempts[-1].verdict
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())


def test_a_program_that_does_not_ask_for_the_files_of_its_run_is_named_by_the_command(file, monkeypatch, capsys):
    file.with_name("train.py").write_text("import segue\nrun = segue.session()\n")
    fields = {"steps": 3, "program": {"command": ["python", "train.py"]}, "data": data_of(file)}
    file.with_name("run.toml").write_text(toml.dumps(fields | {"store": {"url": str(file)}}))  # No folder.
    said = Desk(file.parent, monkeypatch, capsys).run("run", "--config", "run.toml")
    assert said.code != 0
    assert "note: no file of the program (train.py) asks for the files of its run" in said.err.replace("\n", " ")


@pytest.mark.matrix
def test_changed_code_of_a_program_with_a_config_is_refused_before_it_starts(fork_server, make_spec, open_log, file):
    script = file.with_name("configured.py")
    script.write_text(PROGRAM.read_text())
    fields = {"recipe": None, "program": {"command": ["python", str(script)]}, "config": CONFIG}
    spec = make_spec(**fields, data=data_of(file))
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    refuse_changed_code(runlog.reload(), spec, None)
    script.write_text(script.read_text().replace(".square()", ".abs()"))
    with pytest.raises(CodeChangedError):
        refuse_changed_code(runlog, spec, None)


def test_a_file_that_has_changed_ends_the_attempt_before_the_program_runs(fork_server, make_program, open_log, file):
    spec = make_program(data=data_of(file))
    file.write_text("another text")
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "DataChangedError")
    assert not Path("given.json").exists()


@pytest.mark.matrix
def test_the_drill_of_a_program_has_its_config_and_files_in_both_runs(make_program, file):
    spec = make_program(config=CONFIG | {"pause_seconds": 0.03}, data=data_of(file))
    report = drill_spec(spec, kills=1)
    assert (report.identical, report.verdict) == (True, VerdictKind.EXACT)
    assert json.loads(Path("given.json").read_text())[0]["data"] == [str(file)]
