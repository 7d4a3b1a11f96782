"""The rounds of the measurement: limit, one saver, limit, another saver, limit, and so on. Every ratio uses values of
one round."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from benchmarks.checkpoint.limits import LimitBench, Limits
from benchmarks.checkpoint.savers import exact_bytes
from benchmarks.checkpoint.saving import Saved, SaverBench
from benchmarks.checkpoint.steps import StepKind, StepSizes
from benchmarks.checkpoint.uploading import UploaderBench
from benchmarks.checkpoint.uploads import BOTO3_DEFAULT, Bucket
from benchmarks.checkpoint.worker import Worker
from benchmarks.checkpoint.worker_group import RankGroup, Scene
from benchmarks.common.files import make_cold
from benchmarks.common.memory import PeakMemory, cpu_seconds, family, pss_bytes
from benchmarks.common.samples import MANY_TENSORS_KEYS, SAVER_KEYS, UPLOADER_KEYS

_MEGABYTE = 1e6
_GIGABYTE = 1e9
_SUFFIX = {StepKind.MATMUL: "", StepKind.DISPATCH: "_dispatch"}


class SaverRounds(RankGroup[SaverBench]):
    """Saves and loads of a state in a number of tensors, by several savers."""

    def __init__(self, scene: Scene, *, size_bytes: int, tensors: int, suffix: str = "") -> None:
        """`suffix` is the end of the names of this state's figures."""
        super().__init__(scene, name=f"{tensors} tensors", keys=MANY_TENSORS_KEYS if suffix else SAVER_KEYS)
        self._state_bytes = exact_bytes(size_bytes=size_bytes, tensors=tensors)
        self._tensors, self._suffix = tensors, suffix
        self._before_bytes: dict[str, int] = {}
        self._is_background: dict[str, bool] = {}

    def start(self, name: str) -> Worker[SaverBench]:
        log, folder, size_bytes = self.log_of(name), self.folder_of(name), self._state_bytes
        tensors, threads = self._tensors, self.scene.threads
        return Worker.start(
            SaverBench, log, name, size_bytes=size_bytes, tensors=tensors, folder=folder, threads=threads
        )

    def prepare(self, name: str, worker: Worker[SaverBench]) -> None:
        facts = worker.run(SaverBench.facts)
        self._is_background[name] = facts.is_background
        self.scene.samples[name].facts |= asdict(facts)
        self._before_bytes[name] = pss_bytes(family(worker.pid))
        first, limit = worker.run(SaverBench.prepare), self._limit()
        self.scene.say(
            f"first save of {name}: blocked {first.stall_seconds:.3f} s, durable {first.durable_seconds:.3f} s"
        )
        self._add(name, first_stall_x_memcpy=first.stall_seconds / limit.memcpy_seconds)

    def save_round(self) -> None:
        """Measure each saver once, between two measurements of the limits."""
        keys = self._keys("stall_x_memcpy", "durable_x_write", "stall_seconds", "durable_seconds")
        before = self._limit()
        for name, worker in self.each(*keys):
            with self.may_fail(name, *keys):
                times = worker.run(SaverBench.save)
                after = self._limit()
                memcpy_seconds = (before.memcpy_seconds + after.memcpy_seconds) / 2
                write_seconds = (before.write_seconds + after.write_seconds) / 2
                self._add(
                    name,
                    stall_x_memcpy=times.stall_seconds / memcpy_seconds,
                    stall_seconds=times.stall_seconds,
                    durable_x_write=times.durable_seconds / write_seconds,
                    durable_seconds=times.durable_seconds,
                )
                before = after

    def restore_round(self) -> None:
        """Measure each saver's memory during a save, and its cold load together with a cold read of the same files."""
        keys = self._keys("restore_x_read", "restore_seconds", "memory_x_state")
        for name, worker in self.each(*keys):
            with self.may_fail(name, *keys):
                with PeakMemory(worker.pid) as memory:
                    saved = worker.run(SaverBench.save_marked)
                extra_bytes = memory.peak_bytes - self._before_bytes[name]
                self._add(name, memory_x_state=extra_bytes / self._state_bytes)
                self._load(name, worker, saved)
                worker.run(SaverBench.drop, saved.step)

    def step_round(self, sizes: StepSizes) -> None:
        """Measure training steps while each saver writes in the background, and the training time that one save takes.

        A saver that only blocks slows no step: the time that it takes is its stall."""
        for kind in StepKind:
            key = f"step_slowdown_writing{_SUFFIX[kind]}"
            keys = (key, "lost_x_memcpy", "lost_seconds") if kind is StepKind.MATMUL else (key,)
            for name, worker in self.each(*keys):
                with self.may_fail(name, *keys):
                    if self._is_background[name]:
                        found = worker.run(SaverBench.slowdown, kind, sizes)
                        self._add(name, **{key: found.ratio})
                        lost_seconds = found.lost_seconds
                    else:
                        lost_seconds = worker.run(SaverBench.save).stall_seconds
                    if kind is StepKind.MATMUL:
                        copy_seconds = self._limit().memcpy_seconds
                        self._add(name, lost_seconds=lost_seconds, lost_x_memcpy=lost_seconds / copy_seconds)

    def _load(self, name: str, worker: Worker[SaverBench], saved: Saved) -> None:
        read_seconds = load_seconds = 0.0
        for what in self.scene.shuffle.sample(("read", "load"), 2):
            is_cold = make_cold(saved.files)
            self.scene.machine.add(restore_is_cold=is_cold)
            if what == "load":
                load_seconds = worker.run(SaverBench.load, saved.step)
            else:
                read_seconds = self._read(saved.files, is_cold=is_cold)
        self.scene.machine.add(cold_read_mb_per_s=saved.size_bytes / read_seconds / _MEGABYTE)
        self._add(name, restore_x_read=load_seconds / read_seconds, restore_seconds=load_seconds)

    def _read(self, files: list[Path], *, is_cold: bool) -> float:
        # Files that cannot be dropped from the page cache are read without it; the report then shows that.
        return self.scene.limits.run(LimitBench.read, files, direct=not is_cold)

    def _limit(self) -> Limits:
        limit = self.scene.limits.run(LimitBench.measure, self._state_bytes)
        self.scene.machine.add(
            memcpy_gb_per_s=self._state_bytes / limit.memcpy_seconds / _GIGABYTE,
            write_mb_per_s=self._state_bytes / limit.write_seconds / _MEGABYTE,
            write_is_direct=limit.write_is_direct,
        )
        return limit

    def _keys(self, *keys: str) -> tuple[str, ...]:
        """Those of these figures that are requested for this state."""
        return tuple(key + self._suffix for key in keys if key + self._suffix in self.keys)

    def _add(self, name: str, **values: float) -> None:
        wanted = {key + self._suffix: value for key, value in values.items() if key + self._suffix in self.keys}
        self.scene.samples[name].add(**wanted)


class UploaderRounds(RankGroup[UploaderBench]):
    """Uploads of a state to one bucket, by several uploaders."""

    def __init__(self, scene: Scene, *, size_bytes: int, tensors: int, bucket: Bucket, null_port: int) -> None:
        """`null_port` is the port of a null server on this machine, for the loopback limit."""
        super().__init__(scene, name="uploads", keys=UPLOADER_KEYS)
        self._state_bytes = exact_bytes(size_bytes=size_bytes, tensors=tensors)
        self._tensors, self._bucket, self._null_port = tensors, bucket, null_port
        self._is_boto3_wanted = False

    def start(self, name: str) -> Worker[UploaderBench]:
        self._is_boto3_wanted |= name == BOTO3_DEFAULT
        log, size_bytes, tensors, threads = self.log_of(name), self._state_bytes, self._tensors, self.scene.threads
        return Worker.start(
            UploaderBench, log, name, size_bytes=size_bytes, tensors=tensors, bucket=self._bucket, threads=threads
        )

    def prepare(self, name: str, worker: Worker[UploaderBench]) -> None:
        self.scene.samples[name].facts |= {"upload_note": worker.run(UploaderBench.note)}
        worker.run(UploaderBench.prepare)

    def upload_round(self) -> None:
        """Measure each uploader once, between two measurements of the loopback limit, and compare it with boto3 in the
        same round."""
        keys = ("upload_mb_per_s", "upload_x_loopback", "upload_cpu_seconds_per_gb")
        took: dict[str, float] = {}
        before_seconds = self._limit()
        for name, worker in self.each(*keys):
            with self.may_fail(name, *keys):
                cpu_before_seconds = cpu_seconds(worker.pid)
                seconds = worker.run(UploaderBench.upload)
                cpu_used_seconds = cpu_seconds(worker.pid) - cpu_before_seconds
                after_seconds = self._limit()
                self.scene.samples[name].add(
                    upload_mb_per_s=self._state_bytes / seconds / _MEGABYTE,
                    upload_x_loopback=(before_seconds + after_seconds) / 2 / seconds,
                    upload_cpu_seconds_per_gb=cpu_used_seconds / self._state_bytes * _GIGABYTE,
                )
                took[name], before_seconds = seconds, after_seconds
        for name, seconds in took.items():
            if BOTO3_DEFAULT in took:
                self.scene.samples[name].add(upload_x_boto3_default=took[BOTO3_DEFAULT] / seconds)
            elif self._is_boto3_wanted:
                self.scene.samples[name].fail(
                    ("upload_x_boto3_default",), f"{BOTO3_DEFAULT} was not measured in the same round"
                )

    def step_round(self, sizes: StepSizes) -> None:
        """Measure training steps while each uploader uploads in the background."""
        for kind in StepKind:
            key = f"step_slowdown_uploading{_SUFFIX[kind]}"
            for name, worker in self.each(key):
                with self.may_fail(name, key):
                    ratio = worker.run(UploaderBench.slowdown, kind, sizes).ratio
                    self.scene.samples[name].add(**{key: ratio})

    def _limit(self) -> float:
        seconds = self.scene.limits.run(LimitBench.upload, self._state_bytes, self._null_port)
        self.scene.machine.add(loopback_mb_per_s=self._state_bytes / seconds / _MEGABYTE)
        return seconds
