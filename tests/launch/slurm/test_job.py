"""What is read out of Slurm's answers, with outputs of Slurm 22.05."""

from __future__ import annotations

import pytest

from segue.launch.slurm.commands import CommandResult
from segue.launch.slurm.job import SlurmJob, job_accounted, job_completed, job_shown
from segue.launch.slurm.slurm_partition import minutes_of, partition_shown

NAME = "segue-tiny-seg0-a1-0a1b2c3d"
SHOWN = """JobId=1 JobName={name}
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState={state} Reason={reason} Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code}
   Partition=spot AllocNode:Sid=localhost:24884
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList={nodes}
   BatchHost=n1
   Comment=JobState=COMPLETED
"""
COMPLETED = (
    "JobId=1 UserId=root(0) GroupId=root(0) Name={name} JobState={state} Partition=spot TimeLimit=60 "
    "StartTime=2026-11-25T22:14:27 NodeList={nodes} NodeCnt=1 WorkDir=/tmp ReservationName= ExitCode={code}\n"
)


def shown(state="RUNNING", *, name=NAME, reason="None", code="0:0", nodes="n1"):
    return SHOWN.format(name=name, state=state, reason=reason, code=code, nodes=nodes)


def test_a_job_is_read_with_its_state_its_reason_and_its_exit_code():
    assert job_shown(shown(), name=NAME) == SlurmJob("RUNNING")
    waiting = job_shown(shown("PENDING", reason="Resources", nodes="(null)"), name=NAME)
    assert (waiting.is_waiting, waiting.has_ended, waiting.reason) == (True, False, "Resources")
    assert job_shown(shown("FAILED", reason="NonZeroExitCode", code="11:0"), name=NAME).trainer_code == 11


@pytest.mark.parametrize(
    "text", ["", "garbage", "No jobs in the system", shown()[:20], shown(name="another"), "JobId="]
)
def test_another_job_of_the_same_id_and_what_cannot_be_read_are_no_job(text):
    assert job_shown(text, name=NAME) is None
    assert job_accounted(text, name=NAME) is None
    assert job_completed(text, name=NAME) is None


@pytest.mark.parametrize(
    ("state", "code", "trainer_code", "words"),
    [
        ("COMPLETED", "0:0", 0, "ended as COMPLETED with exit code 0"),
        ("FAILED", "13:0", 13, "ended as FAILED with exit code 13"),
        ("FAILED", "137:0", -9, "ended as FAILED by signal 9"),
        ("FAILED", "0:15", -15, "ended as FAILED by signal 15"),
        ("PREEMPTED", "0:9", -9, "ended as PREEMPTED"),
        ("NODE_FAIL", "0:0", -9, "ended as NODE_FAIL"),
        ("TIMEOUT", "0:1", -9, "ended as TIMEOUT"),
        ("CANCELLED", "11:0", -9, "ended as CANCELLED"),
        ("OUT_OF_MEMORY", "0:125", -9, "ended as OUT_OF_MEMORY"),
    ],
)
def test_the_end_of_a_job_says_how_its_trainer_ended(state, code, trainer_code, words):
    job = job_shown(shown(state, code=code), name=NAME)
    assert (job.has_ended, job.trainer_code, job.in_words) == (True, trainer_code, words)
    assert job.was_out_of_memory is (state == "OUT_OF_MEMORY")
    from_file = job_completed(COMPLETED.format(name=NAME, state=state, code=code, nodes="n1"), name=NAME)
    assert (from_file.trainer_code, from_file.in_words, from_file.had_nodes(None)) == (trainer_code, words, True)
    from_accounting = job_accounted(f"other|FAILED|1:0|n1\n{NAME}|{state}|{code}|n1\n", name=NAME)
    assert from_accounting.trainer_code == trainer_code


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "REVOKED", "SOMETHING_NEW"])
def test_a_job_in_any_other_state_has_not_ended(state):
    assert not job_shown(shown(state), name=NAME).has_ended


def test_a_job_that_was_cancelled_in_the_queue_had_no_nodes():
    assert not job_shown(shown("CANCELLED", nodes="(null)"), name=NAME).had_nodes(None)
    assert not job_completed(
        COMPLETED.format(name=NAME, state="CANCELLED", code="0:0", nodes="(null)"), name=NAME
    ).had_nodes(None)
    assert not job_accounted(f"{NAME}|CANCELLED by 0|0:0|None assigned", name=NAME).had_nodes(None)
    assert job_accounted(f"{NAME}|CANCELLED by 0|0:0|n1", name=NAME).had_nodes(None)


@pytest.mark.parametrize(
    ("trouble", "is_silence", "is_unknown"),
    [
        ("scontrol: error: Unable to contact slurm controller (connect failure)", True, False),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", True, False),
        ("slurm_load_jobs error: Invalid job id specified", False, True),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", False, False),
    ],
)
def test_an_absent_controller_is_told_from_one_that_does_not_know_the_job(trouble, is_silence, is_unknown):
    answer = CommandResult(1, "", trouble)
    assert (answer.is_silence, answer.is_unknown_job) == (is_silence, is_unknown)


def test_the_reason_of_a_failed_command_is_one_line():
    answer = CommandResult(
        1, "", "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition\n"
    )
    assert answer.why == "invalid partition specified: nope; Invalid partition"
    assert CommandResult(3, "", "").why == "exit code 3"


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("01:00:00", 60), ("1-02:30:00", 1590), ("30:00", 30), ("UNLIMITED", None), ("INFINITE", None), ("", None)],
)
def test_time_limits_are_read_in_minutes(text, minutes):
    assert minutes_of(text) == minutes


def test_a_partition_is_read_with_its_limits():
    text = (
        "PartitionName=spot\n   MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0\n   State=UP TotalCPUs=6 TotalNodes=3\n"
    )
    found = partition_shown(text)
    assert (found.name, found.nodes, found.most_nodes, found.longest_minutes) == ("spot", 3, None, 60)
    assert partition_shown(text.replace("MaxNodes=UNLIMITED", "MaxNodes=2")).most_nodes == 2
    assert partition_shown("") is None
    assert partition_shown("Partition nope not found") is None
