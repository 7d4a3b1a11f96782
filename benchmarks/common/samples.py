"""The samples of each round, and their figures in the report."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field

SAVER_KEYS = (
    "stall_x_memcpy",
    "stall_seconds",
    "first_stall_x_memcpy",
    "durable_x_write",
    "durable_seconds",
    "step_slowdown_writing",
    "step_slowdown_writing_dispatch",
    "lost_x_memcpy",
    "lost_seconds",
    "restore_x_read",
    "restore_seconds",
    "memory_x_state",
)
MANY_TENSORS_KEYS = (
    "stall_x_memcpy_many_tensors",
    "first_stall_x_memcpy_many_tensors",
    "durable_x_write_many_tensors",
    "restore_x_read_many_tensors",
)
UPLOADER_KEYS = (
    "upload_x_boto3_default",
    "upload_x_loopback",
    "upload_mb_per_s",
    "upload_cpu_seconds_per_gb",
    "step_slowdown_uploading",
    "step_slowdown_uploading_dispatch",
)
OVERLAP_KEYS = ("stall_overlapped_x_memcpy", "step_overlapped_x_memcpy")
KEYS = (*SAVER_KEYS, *OVERLAP_KEYS, *MANY_TENSORS_KEYS, *UPLOADER_KEYS)
"""Every key of a report on one saver or uploader. Figures with `_x_` are divided by the limit that was measured with
them."""

LIMIT_KEYS = ("memcpy_gb_per_s", "write_mb_per_s", "cold_read_mb_per_s", "loopback_mb_per_s")


@dataclass
class Samples:
    """Samples of one saver, uploader or limit. A key that failed once has no figure, even if earlier samples
    succeeded."""

    values: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)
    """The reason why there is no figure, by key."""
    facts: dict[str, object] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        """Add one sample for each of these keys."""
        for key, value in values.items():
            self.values[key].append(value)

    def fail(self, keys: tuple[str, ...], why: str) -> None:
        """Record that these keys have no figure. If a key already has a reason, the first reason stays."""
        for key in keys:
            self.failures.setdefault(key, why)

    def median(self, key: str) -> float | None:
        """The median over rounds; None if the key was not measured."""
        if key in self.failures or not self.values.get(key):
            return None
        return rounded(statistics.median(self.values[key]))

    def quartiles(self, key: str) -> list[float] | None:
        """First and third quartile over rounds, None like the median."""
        if self.median(key) is None:
            return None
        values = self.values[key]
        if len(values) == 1:
            return [rounded(values[0])] * 2
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        return [rounded(low), rounded(high)]

    def figures(self, keys: tuple[str, ...] = KEYS) -> dict[str, object]:
        """The report: a median for every key, its quartiles under `quartiles`, and the facts."""
        quartiles = {key: self.quartiles(key) for key in keys if self.median(key) is not None}
        return {key: self.median(key) for key in keys} | self.facts | {"quartiles": quartiles}

    def reasons(self) -> dict[str, list[str]]:
        """The keys without a figure, by the reason."""
        found: dict[str, list[str]] = defaultdict(list)
        for key, why in self.failures.items():
            found[why].append(key)
        return dict(found)


def rounded(value: float) -> float:
    """Round to four significant digits, because further digits would be noise."""
    return float(f"{value:.4g}")
