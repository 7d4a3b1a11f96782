"""The continuity benchmark's own promises: it finds, it misses and it alarms as what is measured does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from benchmarks.continuity import matrix, tasks
from benchmarks.continuity.controls import CONTROLS
from benchmarks.continuity.faults import Fault
from benchmarks.continuity.matrix import Options, measure, passed, quick
from benchmarks.continuity.recipes import FEATURES, MODELS, OPTIMIZERS, RECIPE, Settings, build, edited
from benchmarks.continuity.rules import has_outlier, is_mean_worse, windows
from benchmarks.continuity.tasks import KINDS, CleanTask, FaultyTask, features_of
from segue.records import VerdictKind

KEYS = {
    "kinds",
    "trials",
    "detected_share",
    "detected_before_first_step_share",
    "detected_before_first_step_trials_share",
    "named_share",
    "clean",
    "false_alarms",
    "sigkills",
    "smoothness_detected_share",
    "smoothness_false_alarm_share",
    "by_kind",
    "seconds",
}
EARLY = ("optimizer dropped", "torch stream one draw ahead", "optimizer over copies of the parameters")
LATE = ("one batch skipped", "another activation")
SMALL = Options(models=("flights",), optimizers=("adamw",), seeds=1, points=1, jobs=1, kills=0, pairs=0, scripts=None)
NO_CLEAN = replace(SMALL, controls=())
SUSPICIOUS = ("epoch ends at the resume point", "newest checkpoint damaged", "cache that grows")


@pytest.fixture(scope="module")
def report():
    said = []
    options = replace(SMALL, kinds=(*EARLY, *LATE), controls=SUSPICIOUS, clean_seeds=1, clean_rounds=1)
    found = measure(options, say=said.append)
    assert said
    return found


@pytest.mark.matrix
def test_faults_are_found_and_named_and_commit_nothing(report):
    assert report.keys() >= KEYS
    foregone = {kind.name for kind in KINDS if kind.is_foregone}.intersection(EARLY)
    assert foregone
    assert report["trials"] == len(EARLY) + len(LATE) == report["kinds"] + report["foregone"]["kinds"]
    assert report["axes"]["injected"]["kinds"] == report["kinds"]
    assert report["foregone"]["kinds"] == len(foregone)
    assert (report["detected_share"], report["named_share"], report["faulty_commits"]) == (1.0, 1.0, 0)
    assert all(report["by_kind"][name]["detected_before_first_step_share"] == 1.0 for name in EARLY)
    assert report["detected_before_first_step_share"] >= len(EARLY) / report["trials"]
    assert json.loads(json.dumps(report)) == report


@pytest.mark.matrix
def test_suspicious_but_clean_resumes_are_no_false_alarms(report):
    assert (report["clean"], report["false_alarms"]) == (len(SUSPICIOUS), 0)
    assert report["clean_as_expected_share"] == 1.0
    assert report["by_control"]["newest checkpoint damaged"]["verdicts"] == {"exact": 1}
    assert passed(report)


@pytest.mark.matrix
def test_a_kind_that_is_made_harmless_is_reported_as_missed(monkeypatch):
    harmless = tuple(replace(kind, fault=Fault()) for kind in KINDS if kind.name == "optimizer dropped")
    monkeypatch.setattr(tasks, "KINDS", harmless)
    monkeypatch.setattr(matrix, "KINDS", harmless)
    found = measure(NO_CLEAN, say=lambda text: None)
    assert (found["trials"], found["detected_share"], found["missed_kinds"]) == (1, 0.0, ["optimizer dropped"])
    assert found["faulty_commits"] == 1
    assert found["named_share"] == 0.0


@pytest.mark.matrix
def test_a_fault_that_changes_nothing_is_not_counted(monkeypatch):
    same = Fault(trees={"optimizer": lambda tree, live: tree})
    unchanged = tuple(replace(kind, fault=same) for kind in KINDS if kind.name == "optimizer dropped")
    monkeypatch.setattr(tasks, "KINDS", unchanged)
    monkeypatch.setattr(matrix, "KINDS", unchanged)
    found = measure(NO_CLEAN, say=lambda text: None)
    assert (found["kinds"], found["trials"], found["detected_share"]) == (0, 0, None)
    assert found["by_kind"]["optimizer dropped"]["not_applicable"] == ["flights adamw"]
    assert not passed(found)


@pytest.mark.matrix
def test_a_clean_resume_that_is_called_broken_is_a_false_alarm(monkeypatch):
    # To a resume of a run that keeps state to itself, nothing looks clean.
    strange = replace(CONTROLS[0], config=lambda model: {"hidden": "loss"})
    monkeypatch.setattr(tasks, "CONTROLS", (strange,))
    outcomes = CleanTask("flights", "adamw", 0, strange.name, rounds=1).run()
    assert [(o.verdict, o.is_as_expected) for o in outcomes] == [(VerdictKind.BROKEN, False)]


def test_every_kind_is_declared_sanely():
    names = [kind.name for kind in KINDS]
    assert len(set(names)) == len(names) >= 60
    known = frozenset().union(*FEATURES.values())
    pairs = [features_of(model, optimizer) for model in MODELS for optimizer in OPTIMIZERS]
    for kind in KINDS:
        assert kind.components, kind.name
        assert kind.needs <= known, kind.name
        assert any(kind.applies_to(features) for features in pairs), kind.name
        assert kind.fault != Fault() or kind.family == "unregistered", kind.name
        Settings(**kind.config | kind.fault.edit)
        if kind.fault.edit:  # What nobody changed cannot be found.
            assert Settings(**kind.config) != Settings(**kind.config | kind.fault.edit), kind.name
    for control in CONTROLS:
        assert all(Settings(**control.config(model)) for model in MODELS)


def test_an_edit_of_the_source_ends_with_its_block():
    with edited(dropout=0.5):
        assert "p=0.5" in repr(build({"model": "digits"}).model)
    assert "p=0.1" in repr(build({"model": "digits"}).model)
    assert RECIPE.endswith(":build")


@pytest.mark.parametrize(("last", "is_worse"), [(1.049, False), (1.051, True), (float("nan"), True)])
def test_the_mean_rule_alarms_above_five_percent(last, is_worse):
    assert is_mean_worse([1.0] * 50, [last] * 20) is is_worse


@pytest.mark.parametrize(("worst", "is_outlier"), [(1.29, False), (1.31, True), (float("nan"), True)])
def test_the_outlier_rule_alarms_above_three_sigma(worst, is_outlier):
    before = [0.9, 1.1] * 25
    assert has_outlier(before, [1.0] * 19 + [worst]) is is_outlier


@pytest.mark.parametrize(("level", "is_outlier"), [(1.19, False), (1.21, True)])
def test_the_outlier_rule_alarms_when_the_mean_is_a_fifth_worse(level, is_outlier):
    before = [0.0, 2.0] * 25
    assert has_outlier(before, [level] * 20) is is_outlier


def test_windows_are_fifty_steps_before_and_twenty_after_the_parent():
    before, after = windows({n: float(n) for n in range(1, 101)}, parent_step=57)
    assert (before[0], before[-1], after[0], after[-1]) == (8.0, 57.0, 58.0, 77.0)


@pytest.mark.matrix
def test_a_task_leaves_no_files_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "workplace", lambda: tmp_path)
    (outcome,) = FaultyTask("digits", "sgd", 0, 57, ("weights not restored",)).run()
    assert (outcome.is_detected, outcome.component, outcome.found_at) == (True, "model", None)
    assert list(tmp_path.iterdir()) == []


def test_quick_has_every_kind_and_every_model():
    options = quick(Options())
    assert (options.kinds, options.models, options.optimizers) == (None, MODELS, OPTIMIZERS)
    assert options.seeds < Options().seeds


@pytest.mark.parametrize("wrong", [["--kinds", "no such fault"], ["--models", "no such model"]])
def test_what_is_not_there_is_refused_before_anything_is_measured(wrong):
    run = CliRunner().invoke(app, ["continuity", *wrong])
    assert run.exit_code == 2
    assert "there is no" in run.output
