"""The benchmarks of an accelerator run, on a processor at a small size; their figures mean nothing there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

MODULE = [sys.executable, "-m", "benchmarks.accelerator"]


@pytest.mark.soak
def test_every_figure_is_measured_and_written(tmp_path):
    file = tmp_path / "figures.json"
    command = [*MODULE, "--on", "cpu", "--bytes", "4000000", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert len(figures) == 24
    assert all(figure["value"] == figure["value"] for figure in figures.values())
    assert figures["resume, from the start of its process to the first step"]["value"] > 0.1
    assert sum(figure["limit"] is not None for figure in figures.values()) == 12
    assert all(name[:20] in done.stdout for name in figures)


@pytest.mark.matrix
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a device")
def test_without_a_device_nothing_is_measured_and_the_reason_is_said(tmp_path):
    done = subprocess.run(MODULE, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "this machine shows no CUDA device" in " ".join(done.stdout.split())
