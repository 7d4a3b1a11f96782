"""`python -m benchmarks.accelerator.peers`: the cost of saves by torch, DCP and segue for the training of one GPT. Each
method trains in a separate process, and its row is printed when the process ends.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.accelerator import gpt
from benchmarks.common.child import child_environment

_WARM_UP = 20
_SECONDS, _LONGEST_SECONDS = 60.0, 600.0
OURS = {"segue_nosave": None, "segue": "blocking", "segue_overlapped": "overlapped"}
"""How segue stages its saves, by the name of the row."""


class Training(NamedTuple):
    """The length of the training, and the interval of its saves."""

    size: str
    steps: int
    every: int
    folder: Path


class Saver(NamedTuple):
    """A peer, as a function that saves. Its blocking time is measured around the call. Its result is durable once
    awaited."""

    save: Callable[[dict[str, Any], Path], Any]
    close: Callable[[], None] = lambda: None


def main() -> int:
    """Exit code 0: every requested method was measured."""
    names = ("bare", *PEERS, *OURS)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accelerator.peers", description=__doc__)
    parser.add_argument("--only", default=",".join(names), help=f"these of {', '.join(names)}")
    parser.add_argument("--size", choices=tuple(gpt.SIZES), default="370M", help="parameters; default: 370M")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--every", type=int, default=30, help="steps between two saves")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="the most that one way may take")
    parser.add_argument("--json", type=Path, help="file that gets the figures, after each row")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are written; default: a temporary folder")
    parser.add_argument("--as", dest="name", choices=names, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.name is not None:
        training = Training(given.size, given.steps, given.every, given.folder)
        found = _ours(training, OURS[given.name]) if given.name in OURS else _peer(training, given.name)
        given.json.write_text(json.dumps(found))
        return 0
    rows: dict[str, dict[str, Any]] = {}
    _say(f"{'':18s} {'step':>9s} {'lost per save':>14s} {'call':>8s} {'longest step':>13s} {'durable after':>14s}")
    for name in given.only.split(","):
        rows[name] = _in_process(name, given)
        _say(_row(name, rows, given))
        if given.json is not None:
            given.json.write_text(json.dumps(rows, indent=1))
    return int(any("why" in row for row in rows.values()))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _in_process(name: str, given: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="segue-peers-", dir=given.folder) as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.accelerator.peers", "--as", name, "--json", str(file)]
        command += ["--size", given.size, "--steps", str(given.steps), "--every", str(given.every), "--folder", folder]
        try:
            done = subprocess.run(
                command, env=child_environment(), capture_output=True, text=True, timeout=given.seconds, check=False
            )
        except subprocess.TimeoutExpired as error:
            return {"why": f"not done in {given.seconds:.0f} s {_end(error.stderr)}"}
        if done.returncode or not file.exists():
            return {"why": f"exit code {done.returncode} {_end(done.stderr)}"}
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def _end(text: str | bytes | None) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return shown[-1500:]


def _row(name: str, rows: dict[str, dict[str, Any]], given: argparse.Namespace) -> str:
    row = rows[name]
    if "why" in row:
        return f"{name:18s} {row['why']}"
    first = min(_WARM_UP, given.steps // 3)
    times = row["times"][first - 1 :]
    gaps = [after - before for before, after in pairwise(times)]
    row["step_seconds"], row["longest_seconds"] = statistics.median(gaps), max(gaps)
    base = rows.get("segue_nosave" if name in OURS else "bare", {}).get("times", [])[first - 1 :]
    saves = sum(first <= step < given.steps for step in range(given.every, given.steps, given.every))
    if len(base) == len(times) and saves and name not in ("bare", "segue_nosave"):
        row["lost_seconds"] = ((times[-1] - times[0]) - (base[-1] - base[0])) / saves
    cells = [f"{1000 * row['step_seconds']:.1f} ms"]
    cells += [f"{row['lost_seconds']:.3f} s" if "lost_seconds" in row else ""]
    cells += [f"{statistics.median(row['calls']):.3f} s" if row.get("calls") else ""]
    cells += [f"{1000 * row['longest_seconds']:.0f} ms"]
    cells += [", ".join(f"{seconds:.1f}" for seconds in row.get("durable", ()))]
    widths = (9, 14, 8, 13, 14)
    return f"{name:18s} " + " ".join(f"{cell:>{width}s}" for cell, width in zip(cells, widths, strict=True))


def _peer(training: Training, name: str) -> dict[str, Any]:
    """Train in a plain loop, which saves with a peer, or makes no saves."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    size = gpt.SIZES[training.size]
    model = gpt.GPT(size).to(device)
    optimizer, batches = gpt.optimizer_of(model), iter(gpt.loader_of(size))
    saver = PEERS[name]() if name in PEERS else None
    calls: list[float] = []
    durable: list[float] = []
    pending, last = None, None
    for step in range(1, training.steps + 1):
        batch = [tensor.to(device, non_blocking=True) for tensor in next(batches)]
        optimizer.zero_grad(set_to_none=True)
        loss = gpt.loss_of(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if last is not None:
            float(last)
        last = loss.detach()
        if saver is not None and step % training.every == 0 and step < training.steps:
            _wait(device)
            began = time.perf_counter()
            if pending is not None:
                pending.result()
            pending = saver.save(_tensors_of(model, optimizer), training.folder / f"step-{step}")
            calls.append(time.perf_counter() - began)
            if pending is None:
                durable.append(calls[-1])
            else:
                pending.add_done_callback(lambda _, began=began: durable.append(time.perf_counter() - began))
        gpt.TIMES.append(time.perf_counter())
    _wait(device)
    gpt.TIMES[-1] = time.perf_counter()
    if pending is not None:
        pending.result()
    if saver is not None:
        saver.close()
    return {"times": gpt.TIMES, "calls": calls, "durable": durable, "parameters": _parameters(model)}


def _tensors_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The state, without the few numbers in the optimizer's groups, because DCP's stager of torch 2.11 cannot copy
    classes."""
    found = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    slots = optimizer.state_dict()["state"]
    return found | {f"optimizer.{n}.{name}": value for n, slot in slots.items() for name, value in slot.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _torch_save() -> Saver:
    def save(state: dict[str, Any], path: Path) -> None:
        torch.save(state, path)

    return Saver(save)


def _dcp_sync() -> Saver:
    from torch.distributed.checkpoint import state_dict_saver as dcp

    def save(state: dict[str, Any], path: Path) -> None:
        dcp.save(state, checkpoint_id=path, no_dist=True)

    return Saver(save)


def _group() -> Callable[[], None]:
    import torch.distributed as dist

    dist.init_process_group("cpu:gloo", init_method="tcp://127.0.0.1:29577", rank=0, world_size=1)
    return dist.destroy_process_group


def _dcp_async_thread() -> Saver:
    from torch.distributed.checkpoint import state_dict_saver as dcp

    return Saver(lambda state, path: dcp.async_save(state, checkpoint_id=path), _group())


def _dcp_async_process() -> Saver:
    """A save that is staged in pinned and shared memory, and written by another process. The call waits for the copy,
    because the weights may not change before the copy is complete, and a user's loop cannot wait elsewhere."""
    from torch.distributed.checkpoint import state_dict_saver as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    close, on_device = _group(), torch.cuda.is_available()
    options = StagingOptions(
        use_pinned_memory=on_device,
        use_shared_memory=True,
        use_async_staging=on_device,
        use_non_blocking_copy=on_device,
    )
    stager = DefaultStager(options)

    def save(state: dict[str, Any], path: Path) -> Any:
        kind = AsyncCheckpointerType.PROCESS
        found: Any = dcp.async_save(state, checkpoint_id=path, async_checkpointer_type=kind, async_stager=stager)
        if not hasattr(found, "staging_completion"):
            return found
        found.staging_completion.result()
        return found.upload_completion

    return Saver(save, close)


PEERS = {
    "torch_save": _torch_save,
    "dcp_sync": _dcp_sync,
    "dcp_async_thread": _dcp_async_thread,
    "dcp_async_process": _dcp_async_process,
}


def _ours(training: Training, staging: str | None) -> dict[str, Any]:
    """Run a whole attempt. Without `staging`, the attempt makes no save before its end."""
    from segue.clock import SystemClock
    from segue.controller.steps import decide_next, open_run
    from segue.launch.assignment import Assignment
    from segue.launch.registry import launch
    from segue.spec import RunSpec

    store, file = training.folder / "store", training.folder / "times.json"
    shutil.rmtree(store, ignore_errors=True)
    checkpoints = {"every_steps": training.every, "staging": staging} if staging else {"every_steps": 100_000}
    spec = RunSpec.parse(
        {
            "run_id": "gpt",
            "recipe": "benchmarks.accelerator.gpt:build",
            "config": {"size": training.size, "steps": training.steps, "times_file": str(file)},
            "steps": training.steps,
            "ranks": 1,
            "device": "auto" if torch.cuda.is_available() else "cpu",
            "store": {"url": str(store)},
            "checkpoints": checkpoints,
            "continuity": {"rehearsal": "off"},
        }
    )
    clock = SystemClock()
    plan = decide_next(open_run(spec, clock=clock), spec, clock=clock).plan
    assert plan is not None
    lines: list[str] = []
    trainer = launch(Assignment(spec=spec, plan=plan), on_line=lambda line: lines.append(line.text))
    try:
        code = trainer.wait(_LONGEST_SECONDS)
    finally:
        trainer.kill()
    if code or not file.exists():
        raise RuntimeError("\n".join([f"the attempt ended with code {code}", *lines[-20:]]))
    return {"times": json.loads(file.read_text()), "durable": _durable(lines), "lines": _telling(lines)}


def _durable(lines: Sequence[str]) -> list[float]:
    """Of each commit, but the one of the run's end."""
    ends = [line.rpartition("seconds=")[2] for line in lines if "checkpoint committed" in line]
    return [float(end) for end in ends[:-1]]


def _telling(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if "WARNING" in line or "ERROR" in line or "committed" in line]


if __name__ == "__main__":
    sys.exit(main())
