"""The examples: a bare script each, the same script as a program of segue, and the proof that it is resumed exactly."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from segue.records import VerdictKind
from segue.resume_drill import drill_spec
from segue.spec import RunSpec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
STEPS = {"chargpt": 121, "digits": 150, "gan": 300, "huggingface": 160, "lightning": 150, "lora": 100}
OPTIONS = {
    "chargpt": ["120"],
    "digits": ["--epochs", "3"],
    "gan": ["--steps", "300"],
    "lora": ["--steps", "100"],
}
"""What makes the bare script end where the run does."""


def changed_lines(name: str) -> list[str]:
    """The lines of an example that differ from the bare script, as in a unified diff."""
    bare, changed = ((EXAMPLES / name / file).read_text().splitlines() for file in ("bare.py", "train.py"))
    lines = difflib.unified_diff(bare, changed, n=0, lineterm="")
    return [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---") and line[1:].strip()]


def test_every_program_among_the_examples_is_tested():
    assert set(STEPS) == {path.parent.name for path in EXAMPLES.glob("*/train.py")}


@pytest.mark.parametrize("name", STEPS)
def test_an_example_differs_from_the_bare_script_in_six_lines_at_most(name):
    added = [line for line in changed_lines(name) if line.startswith("+")]
    assert 1 <= len(added) <= 6


@pytest.mark.parametrize("name", STEPS)
def test_the_docs_show_the_difference(name):
    shown = (ROOT / "docs/examples.md").read_text()
    assert "\n".join(changed_lines(name)) in shown


@pytest.mark.soak
@pytest.mark.parametrize("name", STEPS)
def test_an_example_that_is_killed_twice_ends_as_the_bare_script_does(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = OPTIONS.get(name, [])
    command = [sys.executable, "-m", f"examples.{name}.bare", *options]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ, stdout=subprocess.DEVNULL)
    file = tmp_path / f"{name}.pt"
    bare = torch.load(file)
    file.unlink()
    spec = RunSpec.parse(
        {
            "run_id": name,
            "program": {"command": ["python", "-m", f"examples.{name}.train", *options]},
            "steps": STEPS[name],
            "threads": 1,
            "store": {"url": str(tmp_path / "store")},
        }
    )
    report = drill_spec(spec, kills=2)
    assert (report.kills, report.identical, report.verdict, report.differing) == (2, True, VerdictKind.EXACT, ())
    ours = torch.load(file)
    assert bare.keys() == ours.keys()
    assert all(torch.equal(value, ours[key]) for key, value in bare.items())


@pytest.mark.matrix
def test_a_save_of_an_adapter_holds_little_more_than_the_adapter(tmp_path, monkeypatch, make_spec, open_log):
    from segue.controller.local_run import run_here
    from segue.runlog.history import read_history

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = ["python", "-m", "examples.lora.train", "--steps", "20", "--width", "512"]
    spec = make_spec(
        recipe=None, program={"command": command}, steps=20, checkpoints={"every_steps": 5, "full_every": 10}
    )
    runlog = open_log(spec)
    assert run_here(spec, runlog, on_line=lambda _: None).action == "finished"
    first, *others = [checkpoint.manifest for checkpoint in read_history(runlog.reload()).checkpoints]
    assert others
    shares = [manifest.new_bytes / first.new_bytes for manifest in others]
    assert max(shares) <= 0.03
