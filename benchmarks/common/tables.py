"""The report of a benchmark as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint.savers import OURS, SAVERS
from benchmarks.checkpoint.uploads import UPLOADERS

_SAVE_COLUMNS = {
    "stall\nx memcpy": "stall_x_memcpy",
    "many\ntensors": "stall_x_memcpy_many_tensors",
    "durable\nx write": "durable_x_write",
    "many \ntensors": "durable_x_write_many_tensors",
    "memory\nx state": "memory_x_state",
}
_AROUND_COLUMNS = {
    "matmul step\nwriting": "step_slowdown_writing",
    "dispatch step\nwriting": "step_slowdown_writing_dispatch",
    "training lost\nx memcpy": "lost_x_memcpy",
    "restore\nx read": "restore_x_read",
    "many\ntensors": "restore_x_read_many_tensors",
}
_UPLOADER_COLUMNS = {
    "x boto3\ndefault": "upload_x_boto3_default",
    "x raw\nloop": "upload_x_loopback",
    "MB/s": "upload_mb_per_s",
    "CPU s\nper GB": "upload_cpu_seconds_per_gb",
    "matmul\nstep": "step_slowdown_uploading",
    "dispatch\nstep": "step_slowdown_uploading_dispatch",
}


def show(report: Mapping[str, Any], console: Console) -> None:
    """Print the figures of the savers, the uploads and the machine, and the reasons for missing figures."""
    rows = {OURS: report} | report["peers"]
    savers = [name for name in SAVERS if name in rows]
    console.print(_table(rows, savers, _SAVE_COLUMNS))
    console.print(_table(rows, savers, _AROUND_COLUMNS))
    console.print(_table(rows, [name for name in UPLOADERS if name in rows], _UPLOADER_COLUMNS))
    console.print(
        f"{report['size_bytes'] / 1e6:.0f} MB in {report['tensors']} tensors (many: {report['many_tensors']}), "
        f"{report['rounds']} rounds ({report['rounds_steps']} of steps), medians; "
        f"{report['cores']} cores, load {report['load_average_before']} before, "
        f"{report['file_system']}, torch {report['torch']}; uploads to: {report['upload_endpoint']}"
    )
    cold = {True: "cold", False: "not cold: the files could not be dropped from memory", None: "not measured"}
    console.print(
        f"limits: memcpy {_shown(report['memcpy_gb_per_s'])} GB/s, write {_shown(report['write_mb_per_s'])} MB/s "
        f"({report['write_limit'] or 'not measured'}), read {_shown(report['cold_read_mb_per_s'])} MB/s "
        f"({cold[report['restore_is_cold']]}), loopback {_shown(report['loopback_mb_per_s'])} MB/s"
    )
    for name, reasons in ({OURS: report["ours_failed"]} | report["peers_failed"]).items():
        for why, keys in reasons.items():
            console.print(f"{name}: no {', '.join(keys)}: {why}", markup=False, style="red")


def _table(rows: Mapping[str, Mapping[str, Any]], names: Sequence[str], columns: Mapping[str, str]) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("", no_wrap=True)
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for name in names:
        table.add_row(name, *(_shown(rows[name][key]) for key in columns.values()))
    return table


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
