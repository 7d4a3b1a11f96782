"""A trainer that is a job, with programs in the place of Slurm's commands: answers that a real cluster rarely gives."""

from __future__ import annotations

import os
import stat
import time

import pytest

from segue.controller.local_run import run_here
from segue.controller.segment import TrainerEnd
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.memory import RecentKills
from segue.launch.registry import launch
from segue.launch.slurm import orders, submission
from segue.launch.slurm import slurm_trainer as trainers
from segue.launch.slurm.slurm_problems import require_slurm, slurm_problems
from segue.records import Capacity, SegmentPlan, StopReason

pytestmark = pytest.mark.matrix

PARTITION = "PartitionName=spot MaxNodes=UNLIMITED MaxTime=01:00:00 TotalNodes=2"
NO_MUNGE = 'echo "error: If munged is up, restart with --num-threads=10" >&2; exit 239'
UNKNOWN = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
AWAY = 'echo "error: Unable to contact slurm controller (connect failure)" >&2; exit 1'


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Writes Slurm's commands as shell scripts; each call is a line of the returned file."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    calls.touch()

    def write(**scripts):
        for name in ("sbatch", "scontrol", "scancel", "squeue", "sinfo", "sacct"):
            program = folder / name
            half = folder / f".{name}"  # One that runs must not change below it.
            body = scripts.get(name, "exit 1" if name == "sacct" else "exit 0")
            half.write_text(f'#!/bin/bash\necho {name} "$@" >> {calls}\n{body}\n')
            half.chmod(half.stat().st_mode | stat.S_IXUSR)
            half.rename(program)
        return calls

    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    waits = {
        trainers: ("_LOOK", "_UNKNOWN", "_FORGOTTEN"),
        orders: ("_AGAIN", "_REPEAT"),
        submission: ("_LOOK", "_SUBMIT_AGAIN", "_SILENT", "_UNSURE"),
    }
    for module, names in waits.items():
        for name in names:
            monkeypatch.setattr(module, f"{name}_SECONDS", 0.3)
    return write


def scontrol(job):
    return f'[ "$1" = --all ] && shift; case "$2" in partition) echo {PARTITION} ;; job) {job} ;; esac'


def show(state, *, name, code="0:0", nodes="n1"):
    lines = f"JobId=7 JobName=%s\\n   JobState={state} Reason=Resources\\n ExitCode={code}\\n   NodeList={nodes}\\n"
    return f'printf "{lines}" {name}'


def until(holds):
    give_up_at = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.fixture
def start(make_slurm_spec):
    def make(segment=0):
        plan = SegmentPlan(segment=segment, attempt=1, capacity=Capacity.SPOT, deployment="segment/spot")
        return launch(Assignment(spec=make_slurm_spec(), plan=plan))

    return make


def test_a_job_that_slurm_does_not_know_counts_as_running_until_its_trainer_is_told_to_end(commands, start):
    calls = commands(sbatch='[ "$1" = --test-only ] || echo 7', scontrol=scontrol(UNKNOWN))
    trainer = start()
    until(lambda: calls.read_text().count("show job 7") > 4)
    assert trainer.poll() is None
    trainer.give_notice()
    assert trainer.wait(60) == -9
    assert trainer.ending.in_words == "its Slurm job 7 is no longer known to Slurm"
    assert f"scancel --name={trainer.name} --signal=SIGTERM 7" in calls.read_text()


def test_a_job_of_another_name_that_has_the_id_now_is_not_taken_for_the_trainers(commands, start):
    calls = commands(
        sbatch='[ "$1" = --test-only ] || echo 7', scontrol=scontrol(show("COMPLETED", name="someone-elses"))
    )
    trainer = start()
    until(lambda: calls.read_text().count("show job 7") > 4)
    assert trainer.poll() is None
    trainer.kill()
    assert trainer.wait(60) == -9
    assert all(f"--name={trainer.name}" in line for line in calls.read_text().splitlines() if "scancel" in line)


def test_a_job_whose_submission_was_not_answered_is_looked_for_before_it_is_submitted_again(commands, start):
    calls = commands(sbatch=f'[ "$1" = --test-only ] || {{ {AWAY}; }}', scontrol=scontrol(AWAY), squeue=AWAY)
    trainer = start()
    until(lambda: calls.read_text().count("squeue") > 2)
    silent = "its Slurm job is being submitted, but Slurm does not answer (Unable to contact slurm controller"
    assert trainer.why_waiting().startswith(silent)
    assert calls.read_text().count("sbatch --parsable") == 1
    commands(squeue="echo 7", scontrol=scontrol(UNKNOWN), sbatch="echo 8")
    until(lambda: trainer.job_id is not None)
    assert trainer.job_id == "7"
    assert calls.read_text().count("sbatch --parsable") == 1
    trainer.kill()
    trainer.wait(60)


def test_a_submission_without_an_answer_may_take_a_while_to_become_a_job(commands, start, monkeypatch):
    monkeypatch.setattr(submission, "_UNSURE_SECONDS", 3.0)
    calls = commands(sbatch=AWAY, scontrol=scontrol(UNKNOWN))
    trainer = start(segment=1)
    until(lambda: calls.read_text().count("squeue --all --noheader --states=all") > 3)
    assert calls.read_text().count("sbatch --parsable") == 1, "the controller answers, but may still take it"
    commands(sbatch="echo 8", scontrol=scontrol(UNKNOWN))
    until(lambda: trainer.job_id == "8")
    trainer.kill()
    trainer.wait(60)


def test_an_attempt_that_is_ended_meanwhile_takes_its_job_back(commands, start, monkeypatch):
    monkeypatch.setattr(submission, "_UNSURE_SECONDS", 600.0)
    calls = commands(sbatch=AWAY, scontrol=scontrol(UNKNOWN))
    trainer = start(segment=1)
    until(lambda: "squeue --all --noheader --states=all" in calls.read_text())
    trainer.give_notice()
    assert trainer.wait(60) == ExitCode.NOTICE
    assert not trainer.ending.had_machine
    assert f"scancel --name={trainer.name}\n" in calls.read_text()


def test_of_two_jobs_of_one_submission_one_is_kept(commands, start):
    calls = commands(sbatch=AWAY, scontrol=scontrol(UNKNOWN), squeue="echo 7; echo 8")
    trainer = start(segment=1)
    until(lambda: trainer.job_id == "7")
    until(lambda: f"scancel --name={trainer.name} 8\n" in calls.read_text())
    trainer.kill()
    trainer.wait(60)


@pytest.mark.parametrize(("printed", "found"), [("echo Welcome; echo '7;cluster'", "none"), ("echo Welcome", "7")])
def test_the_id_of_a_job_is_found_among_what_a_site_prints(commands, start, printed, found):
    commands(sbatch=printed, scontrol=scontrol(UNKNOWN), squeue=f"echo {found}" if found != "none" else "exit 1")
    trainer = start(segment=1)
    until(lambda: trainer.job_id == "7")
    trainer.kill()
    trainer.wait(60)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_job_that_was_forgotten_in_the_queue_does_not_wait_there_for_ever(commands, start, monkeypatch, is_told):
    commands(sbatch="echo 7", scontrol=scontrol(show("PENDING", name="$NAME", nodes="(null)")), scancel=NO_MUNGE)
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: "Resources" in (trainer.why_waiting() or ""))
    if is_told:
        trainer.give_notice()
    commands(scontrol=scontrol(UNKNOWN), scancel=NO_MUNGE)
    assert trainer.wait(60) == -9
    assert "Slurm has forgotten its job 7" in trainer.ending.in_words
    assert (trainer.ending.had_machine, trainer.ending.was_refused) == (False, not is_told)


def test_a_job_that_was_forgotten_before_it_was_seen_may_train_and_does_not_wait(commands, start):
    commands(sbatch="echo 7", scontrol=scontrol(UNKNOWN))
    trainer = start(segment=1)
    until(lambda: trainer.job_id is not None and trainer.why_waiting() is None)
    assert trainer.poll() is None, "its heartbeat decides"
    trainer.kill()
    trainer.wait(60)


@pytest.mark.parametrize("is_told", [False, True])
def test_a_job_that_somebody_takes_out_of_the_queue_is_submitted_again_after_a_pause(
    commands, start, monkeypatch, is_told
):
    commands(sbatch="echo 7", scontrol=scontrol(show("PENDING", name="$NAME", nodes="(null)")))
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: "Resources" in (trainer.why_waiting() or ""))
    if is_told:
        trainer.give_notice()
    commands(scontrol=scontrol(show("CANCELLED", name="$NAME", nodes="(null)")))
    assert trainer.wait(60) == -9
    assert (trainer.ending.had_machine, trainer.ending.was_refused) == (False, not is_told)


@pytest.mark.parametrize(("before", "had_machine"), [("CONFIGURING", False), ("RUNNING", True)])
def test_a_node_that_does_not_boot_is_no_machine_that_was_lost(commands, start, monkeypatch, before, had_machine):
    calls = commands(sbatch="echo 7", scontrol=scontrol(show(before, name="$NAME")))
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: calls.read_text().count("show job 7") > 3)
    commands(scontrol=scontrol(show("NODE_FAIL", name="$NAME")))
    assert trainer.wait(60) == -9
    assert trainer.ending.had_machine is had_machine


def test_a_job_that_is_cleaned_up_for_minutes_has_ended(commands, start, monkeypatch):
    monkeypatch.setattr(trainers, "_COMPLETING_SECONDS", -20.0)  # The run's grace period is added.
    commands(sbatch="echo 7", scontrol=scontrol(show("COMPLETING", name="$NAME")))
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    assert trainer.wait(60) == -9
    assert "its nodes are being cleaned up" in trainer.ending.in_words


def test_a_step_that_was_out_of_memory_is_known_by_what_slurm_wrote(commands, start, monkeypatch):
    commands(sbatch="echo 7", scontrol=scontrol(show("RUNNING", name="$NAME")))
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: trainer.why_waiting() is None)
    trainer.output.write_text("step 1\nsrun: error: n1: task 0: Out Of Memory\nsrun: Terminating StepId=7.0\n")
    commands(scontrol=scontrol(show("FAILED", name="$NAME", code="1:0")))
    assert trainer.wait(60) == 1
    end = TrainerEnd.of(trainer.poll(), kills=RecentKills(), elsewhere=trainer.ending)
    assert end.reason is StopReason.OUT_OF_MEMORY


def test_a_cluster_that_wants_a_time_limit_says_how_to_set_one(make_slurm_spec, commands):
    wants = 'echo "sbatch: error: Time limit specification required, but not provided" >&2; exit 1'
    unlimited = scontrol(UNKNOWN).replace("MaxTime=01:00:00", "MaxTime=UNLIMITED")
    calls = commands(scontrol=unlimited, sbatch=f'case "$*" in *--time=*) exit 0 ;; esac; {wants}')
    found = slurm_problems(make_slurm_spec())
    assert {problem.fix for problem in found} == {"set segment.hours, so that segments end at a checkpoint"}
    assert slurm_problems(make_slurm_spec(segment={"hours": 1})) == []
    assert "--test-only --no-requeue --time=" in calls.read_text()


def test_a_cluster_that_wants_a_time_limit_gets_the_longest_of_the_partition_and_others_none(commands, start):
    wants = 'echo "sbatch: error: Time limit specification required, but not provided" >&2; exit 1'
    calls = commands(scontrol=scontrol(UNKNOWN), sbatch=f'case "$*" in *--time=60*) echo 7; exit 0 ;; esac; {wants}')
    trainer = start()
    until(lambda: trainer.job_id == "7")
    submitted = [line for line in calls.read_text().splitlines() if line.startswith("sbatch --parsable")]
    assert ["--time=" in line for line in submitted] == [False, True]
    trainer.kill()
    trainer.wait(60)


def test_a_job_that_sbatch_refuses_for_now_is_submitted_again_and_shown_as_waiting(commands, start):
    refuses = 'echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1'
    calls = commands(sbatch=f'[ "$1" = --test-only ] || {{ {refuses}; }}', scontrol=scontrol(UNKNOWN))
    trainer = start()
    until(lambda: calls.read_text().count("sbatch --parsable") > 1)
    # While it is being submitted again it shows that.
    until(lambda: "which sbatch refuses (QOSMaxSubmitJobPerUserLimit)" in trainer.why_waiting())
    trainer.give_notice()
    assert trainer.wait(60) == ExitCode.NOTICE
    assert (trainer.ending.had_machine, trainer.job_id) == (False, None)


def test_what_is_refused_in_the_middle_of_a_run_is_waited_for(commands, start):
    refuses = 'echo "sbatch: error: Invalid account or account/partition combination specified" >&2; exit 1'
    calls = commands(sbatch=refuses, scontrol=scontrol(UNKNOWN))
    trainer = start(segment=3)
    until(lambda: "which sbatch refuses (Invalid account" in (trainer.why_waiting() or ""))
    until(lambda: calls.read_text().count("sbatch --parsable") > 1)
    commands(sbatch="echo 7", scontrol=scontrol(UNKNOWN))
    until(lambda: trainer.job_id == "7")
    trainer.kill()
    trainer.wait(60)


def test_a_notice_is_sent_until_the_job_has_ended_also_when_a_command_fails(commands, start, monkeypatch):
    calls = commands(sbatch="echo 7", scontrol=scontrol(show("RUNNING", name="$NAME")), scancel=NO_MUNGE)
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: trainer.why_waiting() is None)
    trainer.give_notice()
    until(lambda: calls.read_text().count("--state=PENDING 7") > 2)
    assert "--signal=SIGTERM" not in calls.read_text(), "it was not told to end while it waits"
    commands(scontrol=scontrol(show("RUNNING", name="$NAME")))
    until(lambda: calls.read_text().count("--signal=SIGTERM 7") > 5)
    commands(scontrol=scontrol(show("CANCELLED", name="$NAME")))
    assert trainer.wait(60) == -9


def test_a_kill_that_slurm_does_not_take_is_sent_again(commands, start, monkeypatch):
    calls = commands(sbatch="echo 7", scontrol=scontrol(show("RUNNING", name="$NAME")), scancel=NO_MUNGE)
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: trainer.why_waiting() is None)
    trainer.kill()
    until(lambda: calls.read_text().count(f"scancel --name={trainer.name} 7") > 2)
    commands(scontrol=scontrol(show("CANCELLED", name="$NAME")))
    assert trainer.wait(60) == -9


def test_an_end_does_not_wait_for_ever_for_the_answer_to_a_submission(commands, start, monkeypatch):
    monkeypatch.setattr(orders, "_GIVE_UP_SECONDS", 0.3)
    calls = commands(sbatch=AWAY, scontrol=scontrol(AWAY), squeue=AWAY)
    trainer = start(segment=1)
    until(lambda: "squeue" in calls.read_text())
    trainer.kill()
    assert trainer.wait(60) == -9
    assert "it is unknown whether its Slurm job" in trainer.ending.in_words


def test_a_job_that_could_not_start_its_trainer_says_why(commands, start, monkeypatch):
    commands(sbatch="echo 7", scontrol=scontrol(show("PENDING", name="$NAME")))
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: trainer.why_waiting() and "waits in the queue" in trainer.why_waiting())
    trainer.output.write_text("srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_NODE are mutually exclusive.\nend\n")
    commands(scontrol=scontrol(show("FAILED", name="$NAME", code="1:0")))
    assert trainer.wait(60) == 1
    assert trainer.ending.in_words == (
        "its Slurm job 7 ended as FAILED with exit code 1 "
        "(srun: fatal: SLURM_MEM_PER_CPU, SLURM_MEM_PER_NODE are mutually exclusive.)"
    )


def test_jobs_of_earlier_attempts_are_taken_out_of_the_queue(commands, start):
    commands(sbatch="echo 6", scontrol=scontrol(UNKNOWN))
    dead = start()
    until(lambda: dead.job_id)
    calls = commands(sbatch="echo 7", scontrol=scontrol(UNKNOWN), squeue=f"echo 6 {dead.name}; echo 5 segue-other-seg0")
    trainer = start(segment=1)
    until(lambda: trainer.job_id == "7")
    assert "scancel --state=PENDING 6\n" in calls.read_text()
    for each in (trainer, dead):
        each.kill()
        each.wait(60)


def test_variables_of_a_job_in_which_the_segment_runs_do_not_reach_the_commands(commands, start, monkeypatch):
    for name in ("SLURM_MEM_PER_CPU", "SBATCH_ARRAY_INX", "SCANCEL_STATE", "SLURM_CONF", "STORE_KEY"):
        monkeypatch.setenv(name, "set")
    calls = commands(sbatch='env >> "$0.env"; echo 7', scontrol=scontrol(UNKNOWN))
    trainer = start(segment=1)
    until(lambda: trainer.job_id)
    found = (calls.parent / "bin" / "sbatch.env").read_text().splitlines()
    kept = {line for line in found if line.endswith("=set")}
    assert kept == {"SLURM_CONF=set", "STORE_KEY=set"}
    trainer.kill()
    trainer.wait(60)


def test_a_waiting_job_says_why_and_an_end_for_memory_is_one(commands, start, monkeypatch):
    calls = commands(
        sbatch='[ "$1" = --test-only ] || echo 7', scontrol=scontrol(show("PENDING", name="$NAME", nodes="(null)"))
    )
    trainer = start()
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: "Resources" in (trainer.why_waiting() or ""))
    commands(scontrol=scontrol(show("RUNNING", name="$NAME")))
    until(lambda: trainer.why_waiting() is None)
    assert not trainer.is_known_to_run(), "its node may be gone: nobody may take that for a hang"
    trainer.freeze()
    trainer.thaw()
    until(lambda: "--signal=SIGCONT 7" in calls.read_text())
    assert calls.read_text().index("--signal=SIGSTOP 7") < calls.read_text().index("--signal=SIGCONT 7")
    commands(scontrol=scontrol(show("OUT_OF_MEMORY", name="$NAME", code="0:125")))
    assert trainer.wait(60) == -9
    end = TrainerEnd.of(trainer.poll(), kills=RecentKills(), elsewhere=trainer.ending)
    assert (end.reason, end.why) == (
        StopReason.OUT_OF_MEMORY,
        "its Slurm job 7 ended as OUT_OF_MEMORY without a report",
    )


def test_a_run_that_asks_for_what_the_cluster_has_not_ends_at_once_with_the_fix(make_slurm_spec, open_log, commands):
    commands(scontrol='[ "$2" = config ] || { echo "Partition spot not found"; exit 1; }')
    spec = make_slurm_spec()
    decision = run_here(spec, open_log(spec), on_line=lambda line: None)
    assert decision.action == "failed"
    assert "there is no Slurm partition 'spot'" in decision.reason
    assert "Fix: set slurm.spot to a partition that `sinfo` lists" in decision.reason


@pytest.mark.parametrize(
    ("fields", "what", "fix"),
    [
        ("DefaultTime=00:10:00 MaxTime=UNLIMITED PreemptMode=OFF", "end after its DefaultTime", "set segment.hours"),
        ("GraceTime=5 PreemptMode=CANCEL", "kills a preempted job after 15 s (GraceTime and KillWait)", "to 15"),
        ("GraceTime=0 PreemptMode=GANG,SUSPEND", "suspends preempted jobs", "PreemptMode to CANCEL"),
    ],
)
def test_a_partition_whose_preemption_is_another_end_than_expected_is_named(
    make_slurm_spec, commands, fields, what, fix
):
    preemption = "PreemptType             = preempt/partition_prio\\nKillWait                = 10 sec"
    settings = f'if [ "$2" = config ]; then printf "{preemption}\\n"; fi'
    commands(scontrol=f"{settings}; {scontrol(UNKNOWN).replace(PARTITION, PARTITION + ' ' + fields)}")
    found = slurm_problems(make_slurm_spec())
    assert {(what in problem.what, fix in problem.fix) for problem in found} == {(True, True)}, found


def test_where_a_qos_decides_on_preemptions_the_partition_says_nothing_of_the_grace_period(make_slurm_spec, commands):
    settings = 'if [ "$2" = config ]; then printf "PreemptType = preempt/qos\\nKillWait = 10 sec\\n"; fi'
    suspends = f"{PARTITION} GraceTime=0 PreemptMode=GANG,SUSPEND"
    commands(scontrol=f"{settings}; {scontrol(UNKNOWN).replace(PARTITION, suspends)}")
    assert slurm_problems(make_slurm_spec()) == []


def test_a_qos_that_does_not_exist_is_a_problem_of_the_run(make_slurm_spec, commands):
    commands(scontrol=scontrol(UNKNOWN), sbatch='echo "sbatch: error: Invalid qos specification" >&2; exit 1')
    assert "Invalid qos specification" in slurm_problems(make_slurm_spec())[0].what


def test_a_signal_that_a_job_does_not_take_keeps_no_kill_from_it(commands, start, monkeypatch):
    refuses = 'case "$*" in *USR2*) echo "scancel: error: Job is pending execution" >&2; exit 1 ;; esac'
    calls = commands(sbatch="echo 7", scontrol=scontrol(show("PENDING", name="$NAME")), scancel=refuses)
    trainer = start(segment=1)
    monkeypatch.setenv("NAME", trainer.name)
    until(lambda: "Resources" in (trainer.why_waiting() or ""))
    trainer.dump_stacks()
    trainer.kill()
    until(lambda: f"scancel --name={trainer.name} 7\n" in calls.read_text())
    commands(scontrol=scontrol(show("CANCELLED", name="$NAME", nodes="(null)")))
    assert trainer.wait(60) is not None


def test_a_limit_on_jobs_at_a_time_is_no_reason_to_refuse_the_run(make_slurm_spec, commands, caplog):
    limit = 'echo "sbatch: error: Job violates accounting/QOS policy (job submit limit, size, time)" >&2; exit 1'
    commands(scontrol=scontrol(UNKNOWN), sbatch=limit)
    require_slurm(make_slurm_spec())
    assert "for now: Job violates accounting/QOS policy" in caplog.text


def test_a_machine_on_which_munge_is_down_does_not_say_that_a_partition_is_missing(make_slurm_spec, commands):
    commands(scontrol='echo "slurm_load_partitions error: Protocol authentication error" >&2; exit 1')
    (problem,) = slurm_problems(make_slurm_spec())
    assert (problem.is_certain, "does not answer" in problem.what) == (False, True)


def test_a_controller_that_is_away_is_no_reason_to_refuse_the_run(make_slurm_spec, commands, caplog):
    commands(scontrol=AWAY, sbatch=AWAY)
    require_slurm(make_slurm_spec())
    assert "partitions and rights are not checked. Fix: check that slurmctld" in caplog.text
