"""Bad input for Slurm: found before anything is submitted, one sentence each, with its fix."""

from __future__ import annotations

import os
import shutil

import pytest

from segue.errors import SlurmSetupError
from segue.launch.slurm.slurm_problems import require_slurm, slurm_problems


def test_a_run_without_a_slurm_table_has_no_slurm_problems(make_spec):
    assert slurm_problems(make_spec()) == []


def test_a_machine_without_slurms_commands_is_named_with_the_fix(make_slurm_spec, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SlurmSetupError) as refused:
        require_slurm(make_slurm_spec())
    assert "this machine has no sbatch, scontrol, scancel, squeue" in str(refused.value)
    assert "Fix: run segments on a machine with Slurm's commands" in str(refused.value)


@pytest.mark.matrix
def test_a_run_that_fits_the_cluster_has_no_problems_also_while_all_nodes_are_drained(cluster, make_slurm_spec):
    spec = make_slurm_spec({"nodes": 2}, ranks=2, segment={"hours": 0.5})
    assert slurm_problems(spec) == []
    cluster.drain()
    try:
        assert ["too few usable nodes" in problem.what for problem in slurm_problems(spec)] == [True, True]
        require_slurm(spec)
    finally:
        cluster.resume()


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("slurm", "fields", "what", "fix"),
    [
        ({"spot": "nope"}, {}, "there is no Slurm partition 'nope'", "set slurm.spot"),
        ({"nodes": 3}, {"ranks": 3}, "3 nodes can never start in the partition 'spot', which permits 2", "to 2"),
        ({}, {"segment": {"hours": 3.0}}, "need jobs of 200 minutes, and the partition 'spot' permits 60", "segment"),
        ({"options": ["--gres=gpu:1"]}, {}, "with --gres=gpu:1: Invalid generic resource", "correct slurm.options"),
        ({"options": ["--constraint=a100"]}, {}, "Invalid feature specification", "correct slurm.options"),
        ({"options": ["--mem=99999"]}, {}, "Requested node configuration is not available", "correct slurm.options"),
        ({"options": ["--bogus=1"]}, {}, "unrecognized option", "correct slurm.options"),
        (
            {"spot": "strict"},
            {},
            "kills a preempted job after 3 s (GraceTime and KillWait)",
            "lower grace_seconds to 3",
        ),
        ({"folder": "/proc/jobs"}, {}, "the folder /proc/jobs for the output of jobs cannot be written", "all nodes"),
    ],
)
def test_what_the_cluster_cannot_run_is_named_with_its_fix(cluster, make_slurm_spec, slurm, fields, what, fix):
    found = slurm_problems(make_slurm_spec(slurm, **fields))
    assert any(what in problem.what and fix in problem.fix for problem in found), found


@pytest.mark.matrix
def test_a_partition_in_which_a_user_has_no_rights_is_named(cluster, make_slurm_spec, tmp_path, monkeypatch):
    """As another user than root, whom no partition refuses."""
    for name in ("sbatch", "scontrol", "scancel", "squeue", "sinfo"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\nexec runuser -u nobody -- {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    for folder in (cluster.folder / "munge", *cluster.folder.parents, cluster.folder):
        folder.chmod(folder.stat().st_mode | 0o011)  # The other user reaches the cluster's socket.
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = slurm_problems(make_slurm_spec({"spot": "strict"}))
    (problem,) = found
    assert problem.what == (
        "there is no Slurm partition 'strict' that this user may use (User's group not permitted to use this partition)"
    )
