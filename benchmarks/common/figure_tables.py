"""The rows of the tables in docs/benchmarks.md: which figures of which benchmark, and their targets."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.common.figures import Column, Figure, FigureTable

_MANY = "_many_tensors"
_SAVERS = (
    Column("segue", has_targets=True),
    Column("safetensors (not verified)", "peers/safetensors"),
    Column("torch.save", "peers/torch_save"),
    Column("torch.save in a thread", "peers/torch_save_thread"),
    Column("dcp.save", "peers/dcp_save"),
    Column("dcp.async_save, thread", "peers/dcp_async_thread"),
    Column("dcp.async_save, process", "peers/dcp_async_process"),
)
_SAVES = (
    Figure("stall of a blocking save x memcpy", "stall_x_memcpy", most=0.55),
    Figure("stall of a blocking save x memcpy, many tensors", f"stall_x_memcpy{_MANY}", most=0.7),
    Figure("stall of the first save x memcpy", "first_stall_x_memcpy", most=1.2),
    Figure("stall of the first save x memcpy, many tensors", f"first_stall_x_memcpy{_MANY}", most=1.2),
    Figure("overlapped save: stall x memcpy", "stall_overlapped_x_memcpy", most=0.03),
    Figure("overlapped save: extra time of the step x memcpy", "step_overlapped_x_memcpy"),
    Figure("durable x write", "durable_x_write", most=1.2),
    Figure("durable x write, many tensors", f"durable_x_write{_MANY}", most=1.3),
    Figure("training time lost beside matmul steps x memcpy", "lost_x_memcpy", most=1.5),
    Figure("training time lost beside matmul steps, seconds", "lost_seconds"),
    Figure("step slow-down while writing, matmul", "step_slowdown_writing", most=1.15),
    Figure("step slow-down while writing, dispatch", "step_slowdown_writing_dispatch", most=1.15),
    Figure("restore from a cold cache x read", "restore_x_read", most=0.8),
    Figure("restore from a cold cache x read, many tensors", f"restore_x_read{_MANY}", most=1.1),
    Figure("memory x state", "memory_x_state", most=1.05),
)
_UPLOADERS = (
    Column("segue", has_targets=True),
    Column("boto3", "peers/boto3_default"),
    Column("boto3, parts of 64 MB", "peers/boto3_64mb_x4"),
    Column("obstore", "peers/obstore_signed"),
    Column("obstore, not signed", "peers/obstore_unsigned"),
)
_UPLOADS = (
    Figure("upload to the null server, MB/s", "upload_mb_per_s", least=4_800),
    Figure("processor seconds a GB", "upload_cpu_seconds_per_gb", most=0.6),
    Figure("step slow-down while uploading, matmul", "step_slowdown_uploading", most=1.1),
    Figure("step slow-down while uploading, dispatch", "step_slowdown_uploading_dispatch", most=1.1),
)
_MACHINE = (
    Figure("memcpy of one thread, GB/s", "memcpy_gb_per_s"),
    Figure("O_DIRECT write, MB/s", "write_mb_per_s"),
    Figure("read from a cold cache, MB/s", "cold_read_mb_per_s"),
    Figure("loopback, MB/s", "loopback_mb_per_s"),
)
_LOOPS = {"recipe": (1.04, 1.01, 0.3), "session": (1.03, 1.005, 0.3), "lightning": None, "accelerate": None}
"""Targets of a short step, a long step and the start, by loop; None: a loop of another framework."""
_MEMORY_MB, _MEMORY_WITH_STATE_MB = 60, 94


def _of_loops() -> Iterator[Figure]:
    """The figures of `bench overhead`, each for every loop."""
    for name, targets in _LOOPS.items():
        short, long, start = targets or (None, None, None)
        less, more = (_MEMORY_MB, _MEMORY_WITH_STATE_MB) if targets else (None, None)
        title = name if targets else name.capitalize()
        yield Figure(f"{title}: short step x bare step", f"{name}/small_x_bare", most=short)
        yield Figure(f"{title}: long step x bare step", f"{name}/large_x_bare", most=long)
        yield Figure(f"{title}: start beyond bare, seconds", f"{name}/startup_seconds_beyond_bare", most=start)
        yield Figure(f"{title}: memory beyond bare, MB", f"{name}/small_memory_mb_beyond_bare", most=less)
        yield Figure(
            f"{title}: memory beyond bare with a state of 32 MB, MB", f"{name}/large_memory_mb_beyond_bare", most=more
        )


_BARE = (
    Figure("bare loop with a DataLoader: short step, ms", "bare_loader/small_step_ms"),
    Figure("bare loop with a DataLoader: long step, ms", "bare_loader/large_step_ms"),
)
_TURNAROUND = (
    Figure("from the decision to the first new step, seconds", "decision_to_first_step_seconds", most=2.0),
    Figure("slowest", "slowest_seconds", most=3.0),
    Figure("part for orchestration", "orchestration_seconds", most=1.0),
    Figure("from the decision to the flow run", "decision_to_created_seconds"),
    Figure("from the flow run to its first line", "created_to_running_seconds"),
    Figure("from the first line to the claim", "running_to_claim_seconds"),
    Figure("from the claim to the first new step", "claim_to_first_step_seconds"),
    Figure("planned end: from the last step to the next step", "planned_end_seconds", most=1.2),
    Figure("slowest planned end", "slowest_planned_end_seconds"),
    Figure("planned end: from the last step to the report", "planned_end_last_step_to_report_seconds"),
    Figure("planned end: from the report to the decision", "planned_end_report_to_decision_seconds"),
    Figure("planned end: from the decision to the claim", "planned_end_decision_to_claim_seconds"),
    Figure("planned end: from the claim to the next step", "planned_end_claim_to_first_step_seconds"),
    Figure(
        "`segue run` without a Prefect: from the command to the first step", "cold_run_to_first_step_seconds", most=12
    ),
    Figure("without a Prefect: from the command to the first decision", "cold_run_command_to_decision_seconds"),
    Figure("without a Prefect: from the decision to the claim", "cold_run_decision_to_claim_seconds"),
    Figure(
        "`segue run` with a running Prefect: from the command to the first step",
        "warm_run_to_first_step_seconds",
        most=5,
    ),
    Figure("with a running Prefect: from the command to the first decision", "warm_run_command_to_decision_seconds"),
    Figure("with a running Prefect: from the decision to the claim", "warm_run_decision_to_claim_seconds"),
    Figure("from the SIGKILL of a trainer to its report in the log", "death_to_report_seconds", most=0.15),
    Figure("slowest report", "slowest_death_to_report_seconds"),
)
_LENGTHS = (100, 1_000, 10_000)
"""The lengths of the logs of `bench waiting`."""


def _of_waiting() -> Iterator[Figure]:
    """The figures of `bench waiting`: each cost for every length of the log, and the reloads of the longest."""
    for place, title in (("local", "folder"), ("remote", "remote store")):
        for length in _LENGTHS:
            what = f"share of a core, {title}, {length:,} records"
            yield Figure(what, f"cpu_share_{place}_{length}", most=0.02)
    for length in _LENGTHS:
        what = f"requests a minute, remote store, {length:,} records"
        yield Figure(what, f"requests_a_minute_remote_{length}", most=30)
    stores = {"local": "a folder", "remote": "a remote store with 20 ms a request", "s3": "moto behind 20 ms"}
    for name, title in stores.items():
        what = f"reload of {_LENGTHS[-1]:,} records from {title}, seconds"
        yield Figure(what, f"reload_seconds_{name}", most=3.0)
        yield Figure(f"{what}, without packs", f"reload_seconds_{name}_without_packs")


_GROWTH = {
    "save, by bytes of the state": ("save until it is committed, by state", 1.0),
    "restore, by bytes of the state": ("verified restore, by state", 1.0),
    "save, by tensors": ("save until it is committed, by tensors of a state of 16 MB", 1.0),
    "restore, by tensors": ("verified restore, by tensors of a state of 16 MB", 1.0),
    "first read of a log, by records": ("read of a log, by records", 1.0),
    "look of a parent at a log with one new record": ("look at a log that has one new record, by records", 0.2),
    "`segue status`, by records": ("`segue status`, by records", 0.2),
    "`segue checkpoints`, by records": ("`segue checkpoints`, by records", 0.2),
    "`segue runs`, by runs in a folder": ("`segue runs`, by runs of the store", 1.0),
    "`segue runs`, by runs in a bucket": ("`segue runs`, by runs of a bucket with 20 ms a request", 1.0),
    "loss curve, by rows": ("record and write of the loss curve, by rows", 1.0),
}
"""The operation in the JSON of `bench growth` and its largest exponent, by the title of its row."""

TABLES: dict[str, tuple[FigureTable, ...]] = {
    "checkpoint": (
        FigureTable(_SAVES, _SAVERS),
        FigureTable(_UPLOADS, _UPLOADERS),
        FigureTable(_MACHINE, (Column("limits of the machine"),)),
    ),
    "overhead": (FigureTable((*_of_loops(), *_BARE)),),
    "growth": (
        FigureTable(
            tuple(Figure(what, f"growth/{name}/exponent", most=most) for what, (name, most) in _GROWTH.items()),
            (Column("exponent", has_targets=True),),
        ),
    ),
    "turnaround": (FigureTable(_TURNAROUND),),
    "waiting": (FigureTable(tuple(_of_waiting())),),
    "crash": (
        FigureTable(
            (
                Figure("kills", "kills"),
                Figure("commits lost", "commits_lost", most=0),
                Figure("records lost", "records_lost", most=0),
                Figure("incomplete commits visible", "torn_visible", most=0),
                Figure("final weights identical in all runs", "final_identical", least=True),
                Figure("unreferenced shards left", "orphans_left", most=0),
                Figure("attempts", "attempts"),
                Figure("commits", "commits"),
            )
        ),
    ),
    "fencing": (
        FigureTable(
            (
                Figure("worlds", "worlds"),
                Figure("wrong answers of the store", "wrong_reads"),
                Figure("commits", "commits"),
                Figure("resumes", "resumes"),
                Figure("worlds with a lost commit", "lost", most=0),
                Figure("worlds with a commit that cannot be read", "torn", most=0),
                Figure("worlds with a resume from an old checkpoint", "stale", most=0),
                Figure("worlds with a record that exists twice", "double", most=0),
                Figure("worlds with a checkpoint of another log", "foreign", most=0),
                Figure("worlds that ended with an error", "crash", most=0),
            )
        ),
    ),
    "datacheck": (
        FigureTable(
            (
                Figure("seconds for all rows, with imports and hashes", "seconds", most=30),
                Figure("peak memory, GB", "peak GB", most=2),
            ),
            (Column("segue", "results/segue", has_targets=True), Column("one frame", "results/one frame")),
        ),
    ),
    "dispatch": (
        FigureTable(
            (
                Figure("segments started one after the other", "dispatches"),
                Figure("requests", "requests"),
                Figure("requests refused", "requests_refused", most=0),
                Figure("seconds to the segment's process: median", "start_median_seconds"),
                Figure("99th percentile", "start_p99_seconds"),
                Figure("longest", "start_longest_seconds"),
                Figure("seconds until the whole stack is up", "stack_up_seconds", most=8),
            )
        ),
    ),
}
"""The tables of each benchmark."""
