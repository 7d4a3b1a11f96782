"""Which soak tests are in which quarter. A file stays in its quarter: only then each is run at every fourth turn."""

from __future__ import annotations

QUARTERS: tuple[dict[str, int], ...] = (
    {
        "tests/benchmarks/chaos/test_chaos_bench.py": 45,
        "tests/benchmarks/test_checkpoint_bench.py": 60,
        "tests/cli/test_export_command.py": 15,
        "tests/controller/costs/test_budget.py": 10,
        "tests/controller/test_random_availability.py": 60,
        "tests/doctor/test_command.py": 20,
        "tests/examples/test_examples.py": 180,
        "tests/flows/deployments/test_warm_worker.py": 40,
        "tests/flows/schedules/test_slots_run.py": 520,
        "tests/flows/test_outage.py": 240,
        "tests/flows/test_restarts.py": 120,
        "tests/launch/ray/test_bad_input.py": 35,
        "tests/launch/slurm/test_cluster.py": 90,
        "tests/retraining/test_versions.py": 30,
        "tests/sessions/test_local_session.py": 20,
        "tests/trainer/ranks/test_endings.py": 40,
        "tests/trainer/replays/test_noisy_resumes.py": 100,
        "tests/trainer/replays/test_rehearsal.py": 20,
    },
    {
        "tests/benchmarks/test_accelerator_bench.py": 40,
        "tests/benchmarks/test_crash_bench.py": 90,
        "tests/cli/test_drill_command.py": 75,
        "tests/controller/test_supervision.py": 30,
        "tests/flows/deployments/test_stack.py": 80,
        "tests/flows/ecs/test_tasks.py": 40,
        "tests/flows/schedules/test_demo_of_retraining.py": 300,
        "tests/flows/test_handover.py": 60,
        "tests/integrations/test_mlflow.py": 60,
        "tests/launch/ray/test_cluster.py": 140,
        "tests/launch/test_early.py": 5,
        "tests/sessions/test_session.py": 20,
        "tests/test_mutants.py": 600,
        "tests/trainer/health/test_watchdog.py": 15,
        "tests/trainer/ranks/test_resumes.py": 30,
        "tests/trainer/ranks/test_unanswered.py": 40,
        "tests/trainer/test_notice_sources.py": 20,
    },
    {
        "tests/benchmarks/test_continuity_blind.py": 60,
        "tests/checkpoints/test_pruning.py": 15,
        "tests/docs/test_code_blocks.py": 60,
        "tests/flows/deployments/test_demo.py": 150,
        "tests/flows/deployments/test_scripts.py": 120,
        "tests/flows/kubernetes/test_waits.py": 150,
        "tests/flows/test_budget.py": 40,
        "tests/flows/test_process_ends.py": 240,
        "tests/flows/test_recovery.py": 300,
        "tests/flows/test_runs.py": 60,
        "tests/flows/test_store_outage.py": 120,
        "tests/integrations/test_frameworks.py": 45,
        "tests/launch/test_nodes.py": 75,
        "tests/launch/test_output.py": 10,
        "tests/launch/test_torchrun.py": 15,
        "tests/sessions/test_session_epochs.py": 80,
        "tests/stores/test_iam_policy.py": 20,
        "tests/trainer/ranks/test_saving.py": 30,
        "tests/trainer/replays/test_fresh_processes.py": 40,
    },
    {
        "tests/benchmarks/test_fleet_bench.py": 240,
        "tests/cli/test_costs_command.py": 15,
        "tests/cli/test_drill_ci.py": 40,
        "tests/continuity/noise/test_noise.py": 20,
        "tests/flows/deployments/test_serve.py": 240,
        "tests/flows/schedules/test_verify_resume.py": 200,
        "tests/flows/test_live_run.py": 60,
        "tests/flows/test_planned_ends.py": 150,
        "tests/flows/test_pools.py": 60,
        "tests/flows/test_security.py": 80,
        "tests/flows/test_two_hosts.py": 90,
        "tests/flows/waiting/test_clock_jumps.py": 120,
        "tests/integrations/test_ends_of_epochs.py": 110,
        "tests/integrations/test_trackers.py": 20,
        "tests/launch/ray/test_driver.py": 40,
        "tests/sessions/test_session_ranks.py": 30,
        "tests/stores/test_secrets.py": 20,
        "tests/trainer/ranks/test_ddp.py": 15,
        "tests/trainer/workloads/test_on_ranks.py": 40,
        "tests/verification/test_in_buckets.py": 60,
    },
)
"""File -> seconds that all its soak tests take together on a quiet machine, one by one."""

NUMBER = len(QUARTERS)


def chosen(commits: int) -> int:
    """The quarter that CI runs, from the number of commits."""
    return commits % NUMBER


def quarter_of(file: str) -> int | None:
    """The quarter of a file. None for one that is in no quarter: each of them then has it."""
    return next((number for number, files in enumerate(QUARTERS) if file in files), None)


def lightest() -> int:
    """The quarter that another file belongs into."""
    return min(range(NUMBER), key=lambda number: sum(QUARTERS[number].values()))
