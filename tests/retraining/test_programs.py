"""Programs on a schedule: what is refused before anything is bought, and a slot from its files to its version."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch

import segue
from examples.chargpt.texts import FILES, FOLDER, deliver
from segue.clock import SystemClock
from segue.continuity.program_code import sources_of
from segue.controller.steps import decide_next, open_run
from segue.errors import ProgramError, PublishError, RetrainJobError, SpecError
from segue.records import StopReason
from segue.retraining.diff import differences
from segue.retraining.gate.window_check import check_window
from segue.retraining.pages import card
from segue.retraining.program_check import asks_for_files, notes_on_files, require_publishable
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.candidate_jobs import CheckJob, run_job
from segue.retraining.versions.scoring import require_functions
from segue.retraining.window import window_of
from segue.runlog.history import read_history
from segue.spec import ProgramSpec
from tests.retraining.monthly import Monthly
from tests.retraining.test_versions import added, begun, evaluated, trained
from tests.support.command import Desk
from tests.support.observers import stop_when_proven

ROOT = Path(__file__).parents[2]
LINE = ROOT / "tests/programs/monthly_line.py"
EXAMPLE = ROOT / "examples/chargpt/retrain.toml"
BY_LINE = {
    "run": {"recipe": None, "program": {"command": ["python", str(LINE)]}},
    "publish": {"component": "line"},
}
TRACKS = "run = segue.session()\nrun.track(model=model, optimizer=optimizer)\n"
READS = 'frame = read(run.config["data"])\n'
GUARDED = "def main():\n    run.track(model=model)\nif __name__ == '__main__':\n    main()\n"


@pytest.fixture
def monthly(tmp_path, fork_server) -> Monthly:
    made = Monthly(tmp_path / "points", **BY_LINE)
    made.trainers = fork_server
    return made


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spec_of(folder: Path, script: str, **fields) -> RetrainSpec:
    """A retraining of `train.py` with this content."""
    (folder / "train.py").write_text(script)
    monthly = Monthly(folder / "points", run={"recipe": None, "program": {"command": ["python", "train.py"]}})
    monthly.write_spec(**{"run": {"recipe": None, "program": {"command": ["python", "train.py"]}}} | fields)
    return monthly.spec


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"run": {"config": {"data": ["a.csv"]}}}, "run: config.data is where each slot's files are passed; remove it"),
        ({"run": {"config": {"reading": 1}}}, "run: config.reading is where"),
        ({"run": {"config": {"lr": float("inf")}}}, "run: must be a run spec: config.lr: must be a JSON value"),
        (
            {"start_from": "in_service"},
            "run: a program begins with weights of its own: start_from",
        ),
        ({"publish": {"model": None}}, "evaluation: needs publish.model"),
    ],
)
def test_what_a_slot_of_a_program_cannot_have_is_named(monthly, fields, problem):
    run = BY_LINE["run"] | fields.get("run", {})
    monthly.write_spec(**fields | {"run": run})
    with pytest.raises(SpecError) as caught:
        RetrainSpec.from_toml(monthly.file)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("script", "fields", "problem"),
    [
        (
            "run = segue.session()\nrun.track(net=net, optimizer=optimizer)\n" + READS,
            {},
            "publish.component: the program tracks net, optimizer, and no 'model'; name one of these, or call "
            "run.track(model=...)",
        ),
        (TRACKS + READS, {"publish": {"component": "extra.average"}}, "and no 'extra.average'; name one of these. Fix"),
        ("from segue.integrations.transformers import SegueCallback\n", {}, "run.program: its checkpoints hold"),
    ],
)
def test_a_program_that_cannot_be_published_is_refused(folder, script, fields, problem):
    with pytest.raises(SpecError) as caught:
        require_publishable(spec_of(folder, script, **fields), folder=folder)
    assert problem in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("script", "fields"),
    [
        (TRACKS, {}),
        ("run = segue.session()\nrun.track(**parts)\n", {}),  # Names that are not written out are not judged.
        ("house.loop(epochs=3)\naim.track(net=net)\n", {}),  # Nor is a session in a package.
        (TRACKS + "run.track(net=net)\n", {}),
        (TRACKS + "aim.track(loss, name='loss')\n", {}),
        ("run = segue.session()\nrun.track(net=net)\n", {"publish": {"component": "net"}}),
        (GUARDED, {"publish": {"model": "train:model"}, "evaluation": {"scores": "train:scores"}}),
        # What another library tracks is none of a session's, and one that is handed on may track elsewhere.
        ("run = segue.session()\nrun.track(ema=ema)\naim.track(value=1, name='loss')\n", {}),
        ("run = segue.session()\nhouse.Trainer(run, model)\nrun.track(ema=ema)\n", {}),
        ("run = segue.session()\ntrack = run.track\ntrack(model=model)\nrun.track(ema=ema)\n", {}),
        (
            "class Loop:\n    def go(self):\n        self.run = segue.session()\n        self.run.track(model=model)\n",
            {},
        ),
    ],
)
def test_a_program_that_can_be_published_passes(folder, script, fields):
    assert require_publishable(spec_of(folder, script + READS, **fields), folder=folder) == ()


def test_the_command_refuses_such_a_program_and_starts_nothing(folder, monkeypatch, capsys):
    spec_of(folder, "run = segue.session()\nrun.track(net=net)\n" + READS)
    said = Desk(folder, monkeypatch, capsys).refused("retrain", "start", "points/retrain.toml")
    assert said.startswith("segue: points/retrain.toml is not valid: publish.component: the program tracks net")


def test_a_program_that_is_not_there_is_refused(folder):
    spec = spec_of(folder, TRACKS)
    (folder / "train.py").unlink()
    with pytest.raises(ProgramError):
        require_publishable(spec, folder=folder)


def test_a_module_in_a_package_is_a_program_too(folder, monkeypatch):
    (folder / "house").mkdir()
    (folder / "house/__init__.py").write_text("")
    (folder / "house/loop.py").write_text("import segue\nfrom house.parts import frame\n" + TRACKS)
    (folder / "house/parts.py").write_text("def frame(run):\n    return segue.data_frame(run.config)\n")
    spec = spec_of(folder, "", publish={"model": "house.parts:frame"})
    run = spec.run | {"program": {"command": ["python", "-m", "house.loop"]}}
    assert require_publishable(spec.model_copy(update={"run": run}), folder=folder) == ()


@pytest.mark.parametrize(
    ("code", "asks"),
    [
        (READS, True),
        ('files = run.config.get("data", [])', True),
        ("config = run.config\nframe = segue.data_frame(config)", True),
        ("def main(data, lr):\n    pass\nmain(**run.config)", True),
        ("options = argparse.Namespace(**run.config)\nread(options.data)", True),
        ('files = json.load(open(os.environ["SEGUE_CONFIG"]))["data"]', True),
        ("frame = pandas.read_csv('all.csv')", False),
        ("lr = run.config['lr']\nframe = pandas.read_csv('all.csv')", False),
        ("data = open('all.txt').read()", False),
        ('"""Reads run.config, and its data."""', False),
    ],
)
def test_it_is_known_whether_a_program_asks_for_its_files(folder, code, asks):
    (folder / "train.py").write_text(code)
    assert asks_for_files(list(sources_of(("python", "train.py"), folder=folder))) is asks


def test_a_program_that_does_not_ask_for_its_files_is_named_and_not_refused(folder):
    (note,) = require_publishable(spec_of(folder, TRACKS), folder=folder)
    said = "no file of the program (train.py) asks for the files of its run: it trains without them, unless"
    assert note.startswith(said)
    assert notes_on_files(ProgramSpec(command=("python", "-m", "json.tool")), folder=folder) == ()  # Nobody's file.


@pytest.mark.matrix
def test_a_slot_of_a_program_trains_on_its_files_and_is_published(monthly):
    monthly.write(1, 2, 3, 4)
    job = trained(monthly, 4)
    models = added(monthly, job)
    first = models.version(1)
    assert (models.in_service, first.why) == (1, "no model was in service")
    state = segue.load_model("points", store=monthly.store_folder)
    assert state["weight"].item() == pytest.approx(2.0, abs=0.2)
    there = segue.load_checkpoint(first.run_id, store=monthly.store_folder)["line"]["state"]
    assert all(torch.equal(state[name], there[name]) for name in state)
    assert set(first.training.hashes) == {"code", "config"}
    monthly.write_spec(run=BY_LINE["run"] | {"config": {"lr": 1e-4}})
    models = added(monthly, trained(monthly, 5))
    second = models.version(2)
    assert (models.in_service, second.compared_with, second.config) == (1, 1, {"lr": 1e-4})
    assert "the gain in absolute_error is -" in second.why
    assert "config.lr" in {each.what for each in differences(models, 1, 2)}
    assert f"python {LINE}" in card(models, 1).replace("\\", "")


@pytest.mark.matrix
def test_a_compiled_module_is_published_by_the_names_of_the_one_inside(monthly):
    monthly.write(1, 2, 3)
    monthly.write_spec(run=BY_LINE["run"] | {"config": {"compiled": True}})
    assert added(monthly, trained(monthly, 4)).in_service == 1
    assert {*segue.load_model("points", store=monthly.store_folder)} == {"weight", "bias"}


@pytest.mark.matrix
def test_a_slot_of_a_program_that_is_killed_goes_on_with_the_same_files(monthly):
    monthly.write(1, 2, 3)
    monthly.write_spec(run=BY_LINE["run"] | {"config": {"pause_seconds": 0.05}})
    start = begun(monthly, 4)
    runlog = open_run(start.run, clock=SystemClock())
    monthly.trainers.run_attempt(runlog, start.run, observer=stop_when_proven(signal.SIGKILL))
    content = (monthly.folder / "2013-02.parquet").read_bytes()
    monthly.write(2, slope=9.0)
    refused = monthly.trainers.run_attempt(runlog, start.run)
    assert (refused.stop_reason, refused.failure.type) == (StopReason.FAILED, "DataChangedError")
    assert decide_next(runlog, start.run, clock=SystemClock()).action == "failed"
    (monthly.folder / "2013-02.parquet").write_bytes(content)
    assert monthly.trainers.run_attempt(runlog, start.run).stop_reason is StopReason.FINISHED
    assert read_history(runlog.reload()).attempts[-1].verdict.kind.value == "exact"


@pytest.mark.matrix
def test_the_example_passes_its_own_checks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = RetrainSpec.from_toml(EXAMPLE)
    for number in range(FILES):
        deliver(number, FOLDER)
    now = datetime(2026, 1, 5, 6, tzinfo=UTC)
    window, local = window_of(spec, now)
    assert [(len(window.training), len(window.held_back)), window.columns["text"]] == [(2, 1), "string"]
    gate = check_window(spec, window, local, slot=now, folder=EXAMPLE.parent, before=None)
    assert (gate.outcome, gate.findings) == ("passed", ())
    assert require_publishable(spec, folder=ROOT) == ()
    require_functions(spec)


def test_a_component_that_is_not_there_is_named_after_all(monthly):
    monthly.write(1, 2, 3)
    job = trained(monthly, 4)
    other = job.spec.model_copy(update={"publish": job.spec.publish.model_copy(update={"component": "net"})})
    with pytest.raises(PublishError, match="the checkpoint has no such component; it has"):
        evaluated(job.model_copy(update={"spec": other}))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"publish": {"model": "tests.recipes.monthly:modle"}}, "publish.model: tests.recipes.monthly:modle: module "),
        pytest.param(
            {"evaluation": {"scores": "tests.recipes.nothing:scores"}},
            "evaluation.scores: tests.recipes.nothing:scores",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            {"evaluation": {"scores": "tests.recipes.monthly:model"}},
            "evaluation.scores: tests.recipes.monthly:model cannot be called as model(model, frame)",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_functions_that_are_not_there_are_found_before_anything_is_trained(monthly, fields, problem):
    monthly.write_spec(**{name: BY_LINE.get(name, {}) | table for name, table in fields.items()})
    with pytest.raises(RetrainJobError) as caught:
        run_job(CheckJob(spec=monthly.spec), what="check of the functions", on_line=lambda _: None)
    assert problem in str(caught.value)


UNGUARDED = """
import pathlib
import segue

if __name__ == "__main__":
    pathlib.Path("guarded").touch()


def model(config): ...


def scores(model, frame): ...


with LOOP:
    run.track(model=None)
    for step in run.steps(10):
        pathlib.Path("trained").touch()
        run.report(loss=0.0)
"""


@pytest.mark.parametrize("module", [pytest.param("train", marks=pytest.mark.matrix), "near"])
@pytest.mark.parametrize(
    "loop",
    ["segue.session() as run", pytest.param("segue.session(local='mine') as run", marks=pytest.mark.matrix)],
)
def test_a_program_is_not_trained_where_its_functions_are_imported(folder, module, loop):
    (folder / "near.py").write_text("from train import model, scores\n")
    functions = {"publish": {"model": f"{module}:model"}, "evaluation": {"scores": f"{module}:scores"}}
    spec = spec_of(folder, UNGUARDED.replace("LOOP", loop), **functions)
    with pytest.raises(RetrainJobError) as caught:
        run_job(CheckJob(spec=spec), what="check of the functions", on_line=lambda _: None)
    assert "an import of what publishes or evaluates a version reached a training loop" in str(caught.value)
    assert 'put the loop into `if __name__ == "__main__":`' in str(caught.value)
    assert not (folder / "trained").exists()
    assert not (folder / "mine").exists()


@pytest.mark.matrix
def test_functions_of_a_package_that_is_run_pass(folder):
    (folder / "gpt").mkdir()
    (folder / "gpt/__init__.py").write_text("def model(config): ...\ndef scores(model, frame): ...\n")
    (folder / "gpt/__main__.py").write_text(UNGUARDED.replace("LOOP", "segue.session() as run") + READS)
    run = {"recipe": None, "program": {"command": ["python", "-m", "gpt"]}}
    functions = {"publish": {"model": "gpt:model"}, "evaluation": {"scores": "gpt:scores"}}
    spec = spec_of(folder, "", **functions, run=run)
    assert run_job(CheckJob(spec=spec), what="check of the functions", on_line=lambda _: None).notes == ()


@pytest.mark.matrix
def test_functions_that_are_there_pass(monthly):
    assert run_job(CheckJob(spec=monthly.spec), what="check of the functions", on_line=lambda _: None).error is None
