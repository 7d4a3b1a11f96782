"""`python -m benchmarks checkpoint`: compares savers and uploaders with each other and with the machine's limits, in
one run."""

from __future__ import annotations

import importlib.util
import os
import platform
import random
import resource
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint.limits import LimitBench
from benchmarks.checkpoint.null_server import null_server
from benchmarks.checkpoint.overlap import OverlapBench
from benchmarks.checkpoint.rounds import SaverRounds, UploaderRounds
from benchmarks.checkpoint.savers import OURS, SAVERS, exact_bytes
from benchmarks.checkpoint.steps import StepSizes
from benchmarks.checkpoint.uploads import UPLOADERS, made_bucket
from benchmarks.checkpoint.worker import Worker, WorkerError
from benchmarks.checkpoint.worker_group import MACHINE, Scene
from benchmarks.common.files import file_system
from benchmarks.common.samples import LIMIT_KEYS, OVERLAP_KEYS, Samples
from segue.errors import MissingExtraError, SegueError, UsageError

NAMES = tuple(dict.fromkeys((*SAVERS, *UPLOADERS)))
_WORKER_BYTES = 250_000_000
"""Approximate memory of a process that has imported torch and has no state yet."""


@dataclass(frozen=True)
class Options:
    """The options of the measurement."""

    size_bytes: int = 500_000_000
    tensors: int = 40
    many_tensors: int = 10_000
    """Number of tensors of the second state, for which stall, writing and restore are measured; 0: no second state."""
    rounds: int = 3
    seed: int = 0
    """Seed of the order within each round."""
    folder: Path = Path(".segue/bench")
    """The file system to measure."""
    endpoint_url: str | None = None
    """The S3 endpoint for uploads, with the credentials that boto3 finds; None: a null server on this machine."""
    only: tuple[str, ...] = NAMES
    threads: int | None = None
    """Number of torch's threads in the savers' processes; None: torch's default. The memcpy limit always uses one
    thread."""
    steps: bool = True
    """Whether to measure how saves slow training steps."""

    @property
    def rounds_many_tensors(self) -> int:
        """Number of rounds for many tensors. It is smaller, because some savers take ten times as long for ten thousand
        tensors."""
        return max(1, self.rounds // 2) if self.many_tensors else 0

    @property
    def rounds_steps(self) -> int:
        """Number of rounds of steps: a third of the rounds, because each figure is already the median of many steps."""
        return -(-self.rounds // 3) if self.steps else 0

    def chosen(self, known: dict[str, str]) -> list[str]:
        return [name for name in known if name in self.only]


class UnknownSaverError(UsageError):
    """There is no saver or uploader with the given name."""

    def __init__(self, *, names: tuple[str, ...]) -> None:
        self.names = names
        super().__init__(f"nothing to measure is called {', '.join(names)}. Known: {', '.join(NAMES)}.")


class NoRoomError(UsageError):
    """The machine has too little memory or disk for the requested size."""

    def __init__(self, *, what: str, needed_bytes: int, free_bytes: int) -> None:
        self.what, self.needed_bytes, self.free_bytes = what, needed_bytes, free_bytes
        super().__init__(
            f"about {needed_bytes / 1e9:.1f} GB of {what} are needed and {free_bytes / 1e9:.1f} GB are free. "
            "Give a smaller --size, or fewer names with --only."
        )


class NoLimitError(SegueError):
    """The limits could not be measured, so no ratio can be computed."""

    def __init__(self, *, why: str) -> None:
        self.why = why
        super().__init__(f"the machine's limits cannot be measured: {why}. Check --folder and the free space there.")


def measure(options: Options, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything and return the report. No file, process or bucket is left behind, even after an error.

    Raises:
        UsageError: this machine cannot measure the requested figures; nothing was started.
        NoLimitError: a copy or a write fails even without a saver.
    """
    samples: dict[str, Samples] = defaultdict(Samples)
    facts = _checked(options)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as folder:
        try:
            with _limits(options, Path(folder).absolute()) as limits:
                scene = Scene(
                    folder=Path(folder).absolute(),
                    limits=limits,
                    threads=options.threads or torch.get_num_threads(),
                    shuffle=random.Random(options.seed),
                    say=say,
                    samples=samples,
                )
                _measure_all(scene, options)
        except WorkerError as error:
            raise NoLimitError(why=error.why) from error
    return facts | _machine(samples[MACHINE]) | _report(samples, options)


@contextmanager
def _limits(options: Options, folder: Path) -> Iterator[Worker[LimitBench]]:
    # A state has at least two elements a tensor, which can be more than was asked for.
    tensors = (options.tensors, options.many_tensors or 1)
    most_bytes = max(exact_bytes(size_bytes=options.size_bytes, tensors=number) for number in tensors)
    worker = Worker.start(LimitBench, folder / "limits.log", most_bytes=most_bytes, folder=folder / "limits")
    try:
        worker.ready()
        yield worker
    finally:
        worker.close()


def _measure_all(scene: Scene, options: Options) -> None:
    limits = scene.limits.run(LimitBench.measure, options.size_bytes)
    scene.say(f"limits: {limits.memcpy_seconds:.3f} s to copy the bytes, {limits.write_seconds:.3f} s to write them")
    scene.say("calibrating training steps")
    sizes = scene.limits.run(LimitBench.calibrate_steps, scene.threads) if options.steps else None
    savers, uploaders = options.chosen(SAVERS), options.chosen(UPLOADERS)
    if savers:
        _measure_savers(scene, options, savers, sizes)
    if OURS in savers:
        _measure_overlap(scene, options)
    if savers and options.many_tensors:
        _measure_many_tensors(scene, options, savers)
    if uploaders:
        _measure_uploaders(scene, options, uploaders, sizes)


def _measure_savers(scene: Scene, options: Options, names: list[str], sizes: StepSizes | None) -> None:
    with SaverRounds(scene, size_bytes=options.size_bytes, tensors=options.tensors) as group:
        group.enlist(names)
        for number in range(1, options.rounds + 1):
            scene.say(f"round {number} of {options.rounds}")
            group.save_round()
            group.restore_round()
        # After the other rounds, because a process that has trained keeps memory, which is not that of a save.
        _measure_steps(scene, options, group, sizes)


def _measure_overlap(scene: Scene, options: Options) -> None:
    ours = scene.samples[OURS]
    worker = Worker.start(
        OverlapBench, scene.folder / "overlap.log", size_bytes=options.size_bytes, threads=scene.threads
    )
    try:
        worker.ready()
        for number in range(1, options.rounds + 1):
            scene.say(f"round {number} of {options.rounds} of overlapped staging")
            times = worker.run(OverlapBench.round)
            ours.add(stall_overlapped_x_memcpy=times.stall_x_memcpy, step_overlapped_x_memcpy=times.step_x_memcpy)
    except WorkerError as error:
        ours.fail(OVERLAP_KEYS, error.why)
    finally:
        worker.close()


def _measure_many_tensors(scene: Scene, options: Options, names: list[str]) -> None:
    size_bytes, tensors = options.size_bytes, options.many_tensors
    with SaverRounds(scene, size_bytes=size_bytes, tensors=tensors, suffix="_many_tensors") as group:
        group.enlist(names)
        for number in range(1, options.rounds_many_tensors + 1):
            scene.say(f"round {number} of {options.rounds_many_tensors} with many tensors")
            group.save_round()
            group.restore_round()


def _measure_uploaders(scene: Scene, options: Options, names: list[str], sizes: StepSizes | None) -> None:
    size_bytes, tensors = options.size_bytes, options.tensors
    with (
        null_server() as null_port,
        made_bucket(
            endpoint_url=options.endpoint_url or f"http://127.0.0.1:{null_port}", is_null=options.endpoint_url is None
        ) as bucket,
        UploaderRounds(scene, size_bytes=size_bytes, tensors=tensors, bucket=bucket, null_port=null_port) as group,
    ):
        group.enlist(names)
        for number in range(1, options.rounds + 1):
            scene.say(f"round {number} of {options.rounds} of uploads")
            group.upload_round()
        _measure_steps(scene, options, group, sizes)


def _measure_steps(
    scene: Scene, options: Options, group: SaverRounds | UploaderRounds, sizes: StepSizes | None
) -> None:
    if sizes is None:
        return
    for number in range(1, options.rounds_steps + 1):
        scene.say(f"round {number} of {options.rounds_steps} of steps")
        group.step_round(sizes)


def _checked(options: Options) -> dict[str, Any]:
    """The facts known beforehand.

    Raises:
        UsageError: a name is unknown, or memory or disk is too small.
    """
    if unknown := tuple(name for name in options.only if name not in NAMES):
        raise UnknownSaverError(names=unknown)
    if options.chosen(UPLOADERS) and not all(map(importlib.util.find_spec, ("boto3", "obstore"))):
        raise MissingExtraError(extra="s3", needed_for="Measuring uploads")
    options.folder.mkdir(parents=True, exist_ok=True)
    savers, uploaders = len(options.chosen(SAVERS)), len(options.chosen(UPLOADERS))
    # Each worker keeps its state and a copy; the busiest one has two more, and so have the limits.
    needed_bytes = max(savers, uploaders) * (2 * options.size_bytes + _WORKER_BYTES) + 4 * options.size_bytes
    if needed_bytes > (free_bytes := _available_bytes()):
        raise NoRoomError(what="memory", needed_bytes=needed_bytes, free_bytes=free_bytes)
    # A measurement of steps makes up to twelve saves before it deletes them.
    needed_bytes, free_bytes = 14 * options.size_bytes, shutil.disk_usage(options.folder).free
    if needed_bytes > free_bytes:
        raise NoRoomError(what="disk", needed_bytes=needed_bytes, free_bytes=free_bytes)
    return {
        "size_bytes": options.size_bytes,
        "tensors": options.tensors,
        "many_tensors": options.many_tensors,
        "rounds": options.rounds,
        "rounds_many_tensors": options.rounds_many_tensors,
        "rounds_steps": options.rounds_steps,
        "seed": options.seed,
        "torch_threads": options.threads or torch.get_num_threads(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average_before": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "file_system": file_system(options.folder),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "upload_endpoint": options.endpoint_url or "null server",
    }


def _machine(machine: Samples) -> dict[str, Any]:
    values = machine.values
    return {
        "write_limit": _write_limit(values["write_is_direct"]),
        "restore_is_cold": all(values["restore_is_cold"]) if values["restore_is_cold"] else None,
    } | {key: machine.median(key) for key in LIMIT_KEYS}


def _write_limit(is_direct: list[float]) -> str | None:
    if not is_direct:
        return None
    return "O_DIRECT + fsync" if all(is_direct) else "buffered + fsync: O_DIRECT refused"


def _report(samples: dict[str, Samples], options: Options) -> dict[str, Any]:
    peers = [name for name in NAMES if name in options.only and name != OURS]
    return samples[OURS].figures() | {
        "ours_failed": samples[OURS].reasons(),
        "peers": {name: samples[name].figures() for name in peers},
        "peers_failed": {name: samples[name].reasons() for name in peers if samples[name].failures},
    }


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise NoRoomError(what="memory", needed_bytes=0, free_bytes=0)
