"""The job of an attempt: options of sbatch and script."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.errors import SpecError
from segue.launch.assignment import Assignment
from segue.launch.node import nodes_of_slurm
from segue.launch.slurm.script import batch_script, job_name, limit_minutes, older_jobs, sbatch_command
from segue.launch.slurm.slurm_partition import Partition
from segue.policy.handover import may_come_back
from segue.records import Capacity, SegmentPlan
from segue.runlog.history import read_history

PARTITION = Partition(name="spot", nodes=8, most_nodes=None, longest_minutes=None)


def plan(**fields):
    return SegmentPlan(
        **({"segment": 2, "attempt": 3, "capacity": Capacity.SPOT, "deployment": "segment/spot"} | fields)
    )


def command(spec, made=None, **options):
    assignment = Assignment(spec=spec, plan=made or plan())
    options = {"name": "a-job", "output": Path("/shared/a-job.out"), "partition": PARTITION} | options
    return sbatch_command(assignment, **options)


def test_a_job_asks_for_its_partition_and_for_a_signal_to_the_trainer_ahead_of_its_end(make_slurm_spec):
    spec = make_slurm_spec({"nodes": 2, "options": ["--gres=gpu:4"]}, ranks=8)
    assert command(spec) == [
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--job-name=a-job",
        "--comment=segue run tiny, segment 2, attempt 3, spot",
        "--signal=USR1@20",
        "--output=/shared/a-job.out",
        "--open-mode=append",
        "--export=ALL",
        "--partition=spot",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gres=gpu:4",
    ]
    assert "--partition=ondemand" in command(spec, plan(capacity=Capacity.ON_DEMAND))
    ahead = make_slurm_spec(liveness={"usr1_seconds": 90.5})
    assert "--signal=USR1@91" in command(ahead)


@pytest.mark.parametrize(
    ("avoided", "nodes", "options", "excluded"),
    [
        (("n1", "n2"), 2, [], ["--exclude=n1,n2"]),
        (("n1", "n2"), 7, [], []),
        (("n1",), 2, ["--exclude=n9"], ["--exclude=n9"]),
        ((), 2, [], []),
    ],
)
def test_a_job_excludes_bad_nodes_if_the_partition_has_enough_others_and_the_spec_excludes_none(
    make_slurm_spec, avoided, nodes, options, excluded
):
    spec = make_slurm_spec({"nodes": nodes, "options": options}, ranks=nodes)
    found = command(spec, plan(avoided_nodes=avoided))
    assert [option for option in found if option.startswith("--exclude")] == excluded


def test_the_time_limit_leaves_room_for_the_boot_and_is_no_longer_than_the_partition_permits(make_slurm_spec):
    spec = make_slurm_spec()
    assert "--time=72" in command(spec, plan(max_seconds=3600.0)), "a notice of 25 s, up to a minute early"
    early = make_slurm_spec(liveness={"usr1_seconds": 900})
    assert "--time=86" in command(early, plan(max_seconds=3600.0))
    assert "--time=60" in command(spec, plan(max_seconds=3600.0), partition=replace(PARTITION, longest_minutes=60))
    assert not any("--time" in option for option in command(spec, partition=replace(PARTITION, longest_minutes=60)))
    defaults = replace(PARTITION, has_default_time=True)
    assert not any("--time" in option for option in command(spec, partition=defaults)), "refused before"
    assert "--time=60" in command(spec, partition=replace(defaults, longest_minutes=60))
    assert limit_minutes(100_000.0, spec) == 1835


def test_the_variables_of_the_segment_go_with_the_job_unless_the_options_say_which(make_slurm_spec):
    options = command(make_slurm_spec({"options": ["--export=HOME,PATH"]}))
    assert [option for option in options if option.startswith("--export")] == ["--export=HOME,PATH"]


def test_a_percent_sign_in_the_folder_is_no_pattern_of_slurm(make_slurm_spec):
    assert "--output=/a/100%%j/x.out" in command(make_slurm_spec(), output=Path("/a/100%j/x.out"))


def test_jobs_of_earlier_attempts_are_known_by_their_names_and_those_of_other_runs_are_left(make_slurm_spec):
    spec = make_slurm_spec()
    own, elsewhere = (Assignment(spec=each, plan=plan()) for each in (spec, in_another_store(spec)))
    names = [
        job_name(Assignment(spec=spec, plan=plan(segment=segment, attempt=attempt)), key="0a1b2c3d")
        for segment, attempt in ((1, 9), (2, 2), (2, 3), (2, 4), (3, 1))
    ]
    others = [job_name(elsewhere, key="0a1b2c3d").replace("seg2", "seg1"), "segue-tiny-seg1-a1-abc", "train"]
    shown = "\n".join(f"{number} {name}" for number, name in enumerate([*names, *others]))
    assert older_jobs(shown, own) == ["0", "1"]


def in_another_store(spec):
    return spec.model_copy(update={"store": spec.store.model_copy(update={"url": "s3://elsewhere/runs"})})


@pytest.mark.parametrize(("ends_with", "code"), [("exit 11", 11), ("kill -9 $$", 137), ("exit 0", 0)])
def test_the_script_gives_every_node_the_assignment_and_ends_with_the_code_of_srun(
    make_slurm_spec, tmp_path, ends_with, code
):
    assignment = Assignment(spec=make_slurm_spec(config={"text": "$(exit) `x` 'y' \\ END"}), plan=plan())
    script = batch_script(assignment, python="/opt/a python/bin/python")
    assert "END_OF_THE_ASSIGNMENT" not in assignment.model_dump_json()
    program = tmp_path / "srun"
    program.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/options\ncat > {tmp_path}/given\n{ends_with}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script.encode(), env=env, timeout=60, check=False)
    assert done.returncode == code
    assert Assignment.model_validate(json.loads((tmp_path / "given").read_text())) == assignment
    options = (tmp_path / "options").read_text().splitlines()
    assert options[-4:] == ["/opt/a python/bin/python", "-u", "-m", "segue.launch.node"]
    assert {"--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1"} <= set(options)


def test_ranks_meet_on_the_first_node_at_a_port_of_their_job():
    variables = {"SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    first = nodes_of_slurm(variables | {"SLURM_JOB_ID": "41"})
    assert (first.how_many, first.number, first.address) == (2, 1, "10.0.0.7")
    assert first.port != nodes_of_slurm(variables | {"SLURM_JOB_ID": "42"}).port
    assert nodes_of_slurm(variables | {"SLURM_JOB_ID": "999999999"}).port < 32768


@pytest.mark.parametrize(
    ("slurm", "problem"),
    [
        ({"options": ["-N2"]}, "is not a long option"),
        ({"options": ["--gres gpu:1\n--array=1"]}, "is not a long option"),
        ({"options": ["--time=10"]}, "--time cannot be given: set segment.hours"),
        ({"options": ["--array=1-4"]}, "--array cannot be given"),
        ({"options": ["--arr=1-4"]}, "--array cannot be given"),
        ({"options": ["--parti=other"]}, "--partition cannot be given"),
        ({"options": ["--clusters=other"]}, "--clusters cannot be given"),
        ({"folder": "a\\b"}, "slurm.folder"),
        ({"nodes": 3}, "ranks must be a multiple of nodes; ranks is 4, and nodes is 3"),
        ({"spot": "a;b"}, "slurm.spot"),
    ],
)
def test_a_table_that_cannot_be_carried_out_is_refused_by_name(make_slurm_spec, slurm, problem):
    with pytest.raises(SpecError, match="slurm") as refused:
        make_slurm_spec(slurm, ranks=4)
    assert problem in str(refused.value)


def test_a_run_without_slurm_has_no_such_field_in_its_record(make_spec, make_slurm_spec):
    assert "slurm" not in make_spec().model_dump(mode="json")
    spec = make_slurm_spec()
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


def test_a_segment_ends_only_where_a_person_asks_for_it_and_keeps_no_nodes(make_spec, make_slurm_spec, open_log):
    plans = {}
    for name, spec in {
        "here": make_spec(run_id="here"),
        "there": make_slurm_spec(run_id="there"),
        "asked": make_slurm_spec(run_id="asked", segment={"hours": 1.0}),
    }.items():
        plans[name] = decide_next(open_log(spec), spec, clock=SystemClock()).plan
    assert (plans["here"].keeps_machine, plans["here"].max_seconds is not None) == (True, True)
    assert (plans["there"].keeps_machine, plans["there"].max_seconds) == (False, None)
    assert (plans["asked"].keeps_machine, plans["asked"].max_seconds) == (False, 3600.0)


def test_on_demand_waits_for_no_standby(make_slurm_spec, make_spec, open_log):
    deadline = {"deadline": SystemClock().now() + timedelta(hours=1)}
    here, there = make_spec(**deadline), make_slurm_spec(**deadline)
    history = read_history(open_log(here))
    assert (may_come_back(here, history), may_come_back(there, history)) == (True, False)
