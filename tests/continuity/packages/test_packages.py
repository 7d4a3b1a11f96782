"""Versions of the packages that the training code imports: recorded, and a difference at a resume is said."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from segue.records import Environment, VerdictKind
from segue.runlog.history import read_history
from segue.user_objects import users_files
from segue.user_objects.users_files import imported_packages
from tests.continuity.packages.packaged import install


@pytest.fixture
def resumed(fork_server, make_spec, open_log, tmp_path):
    """The history of a run whose second attempt has another version of its package."""

    def resume(*, version: str, scale: float):
        install(tmp_path / "packages", version="1.0", scale=1.0)
        config = {"packages": str(tmp_path / "packages"), "fault": "none", "marker": str(tmp_path / "built-before")}
        config |= {"raise_first_at": 26, "pause_seconds": 0.02}
        spec = make_spec(recipe="tests.continuity.packages.packaged:build", steps=40, config=config)
        runlog = open_log(spec)
        fork_server.run_attempt(runlog, spec)
        install(tmp_path / "packages", version=version, scale=scale)
        report = fork_server.run_attempt(runlog, spec)
        return read_history(runlog), report

    return resume


def test_another_version_that_computes_the_same_is_said_and_the_resume_is_exact(resumed):
    history, _ = resumed(version="1.1", scale=1.0)
    first, last = history.checkpoints[0].manifest, history.newest.manifest
    assert first.environment.packages["segue_measured"] == "1.0"
    assert last.environment.packages["segue_measured"] == "1.1"
    verdict = history.attempts[-1].verdict
    assert verdict.kind is VerdictKind.EXACT
    assert verdict.sentence.endswith("; environment differs in segue_measured 1.0 (now 1.1)")


@pytest.mark.matrix
def test_another_version_that_rounds_otherwise_is_judged_within_tolerances(resumed):
    history, _ = resumed(version="1.1", scale=1.0 + 1e-6)
    verdict = history.attempts[-1].verdict
    assert verdict.kind is VerdictKind.EQUIVALENT
    assert "environment differs in segue_measured 1.0 (now 1.1)" in verdict.sentence


@pytest.mark.matrix
def test_a_version_that_computes_something_else_is_named_as_the_cause(resumed):
    history, report = resumed(version="2.0", scale=1.5)
    (finding, *_) = history.attempts[-1].verdict.findings
    assert history.attempts[-1].verdict.kind is VerdictKind.BROKEN
    assert "other versions of packages: segue_measured 1.0 (now 2.0)" in finding.sentence
    assert "resume with the versions of the checkpoint" in finding.fix
    assert report.failure.type == "BrokenResumeError"


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np",
        "from numpy.linalg import norm",
        "import os, numpy.random as r, sys",
        "def build():\n    import numpy\n",
        "try:\n\tfrom numpy import array\nexcept ImportError: pass",
        "from numpy import (\n    array,\n)",
    ],
)
def test_an_import_anywhere_in_a_file_of_the_user_counts(line, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text(line)
    module = type(sys)("mine")
    module.__file__ = str(file)
    monkeypatch.setattr(users_files, "_files_of_the_user", lambda: [str(file)])
    assert imported_packages() == {"numpy": metadata.version("numpy")}


def test_a_package_with_another_name_than_its_module_is_found_and_what_is_not_loaded_is_not(tmp_path, monkeypatch):
    import yaml

    file = tmp_path / "mine.py"
    file.write_text("import yaml, json, torch, segue, nowhere_at_all\nfrom . import own\nfrom mine import x\n")
    monkeypatch.setattr(users_files, "_files_of_the_user", lambda: [str(file), str(tmp_path / "gone.py")])
    assert imported_packages() == {"yaml": yaml.__version__}


def test_packages_that_only_one_side_has_say_nothing_and_name_no_other_environment():
    before = Environment(torch="2.13", device="cpu", instruction_set="AVX2", threads=1, packages={"a": "1", "b": "1"})
    now = before.model_copy(update={"packages": {"b": "1", "c": "1"}})
    assert (before.differs_from(now), before.other_packages(now)) == ((), ())
    assert before.other_packages(now.model_copy(update={"packages": {"b": "2"}})) == ("b 1 (now 2)",)
    assert before.short_id == now.short_id
    assert "packages" not in before.model_copy(update={"packages": {}}).model_dump_json()
