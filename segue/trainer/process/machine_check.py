"""The check of this machine before an attempt claims the run: memory, a matrix product with a known result, disk, and
the health of the accelerators.

A thread writes to the disk and queries the driver while the process imports torch. The check does not write to the
store, because the claim is the first write to the store. This module is fast to import.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from segue.clock import SystemClock
from segue.errors import UnfitMachineError
from segue.launch.assignment import Assignment
from segue.launch.rendezvous import KUBERNETES_NODE, RAY_NODE
from segue.records import Machine, MachineCheck, MachineKind
from segue.runlog.entries import MachineEntry
from segue.runlog.log import RunLog
from segue.stores.retry import patiently

if TYPE_CHECKING:
    import torch

LIMIT_SECONDS = 3.0
"""Longest time, in seconds, of those parts of the check that do not need torch. If a part gives no answer in this time,
the machine still passes that part."""
_DISK_BYTES, _LEAST_MEMORY_BYTES = 1 << 20, 256 << 20
_SIDE = 256
_PRODUCT = "d7b9b809a503367dff0add8906e574600da0b787da6488ae62f44db931aaa9c8"
"""SHA-256 of the product. The factors are small whole numbers, so every device and library computes the product
exactly."""
_QUERY = ("uuid", "ecc.errors.uncorrected.volatile.total", "pcie.link.width.current", "pcie.link.width.max")
_NO_XID = "Xid errors were not read, because only root may read them"
_NAMES: Mapping[str, MachineKind] = {RAY_NODE: "ray", "SLURMD_NODENAME": "slurm", KUBERNETES_NODE: "kubernetes"}
"""Environment variables with the name of this node in its cluster. The first variable that is set is used."""


class _Part(NamedTuple):
    """The result of one part of the check."""

    result: str
    is_problem: bool = False


class _Parts(threading.Thread):
    """The parts of the check that need no torch."""

    def __init__(self) -> None:
        super().__init__(name="segue-machine-check", daemon=True)
        self.clock = SystemClock()
        self.end_at = self.clock.monotonic() + LIMIT_SECONDS
        self.disk = self.driver = _Part(f"no answer within {LIMIT_SECONDS:g} s")
        self.accelerators: dict[str, tuple[str, ...]] = {}
        """The values that the driver reports for each accelerator, by the accelerator's UUID."""
        self.start()

    def run(self) -> None:
        self.disk = _disk()
        self.driver = self._ask_driver()

    def _ask_driver(self) -> _Part:
        command = shutil.which("nvidia-smi")
        if command is None:
            return _Part("no driver to ask")
        asked = [command, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            return _Part(f"nvidia-smi gave no answer ({type(error).__name__})")
        rows = (tuple(word.strip() for word in line.split(",")) for line in answer.stdout.splitlines())
        self.accelerators = {row[0]: row[1:] for row in rows if len(row) == len(_QUERY)}
        return _Part("the driver does not list this accelerator")


_begun: list[_Parts] = []
"""The check that has begun in this process. The list has at most one element."""


def begin() -> None:
    """If the check has not begun, begin it in a thread. The call returns immediately."""
    if not _begun:
        _begun.append(_Parts())


def finish(device: torch.device, machine: Machine) -> MachineCheck:
    """Return the result of the check.

    The call waits for the product. For the disk and the driver, the call waits at most until three seconds after the
    beginning of the check.
    """
    begin()
    parts = _begun.pop()
    asked_at = parts.clock.monotonic()
    found = {"memory": _unless_it_fails(_memory, device), "product": _unless_it_fails(_product, device)}
    parts.join(max(parts.end_at - parts.clock.monotonic(), 0.0))
    judged = [_judged(*parts.accelerators[serial]) for serial in machine.devices if serial in parts.accelerators]
    found |= {"disk": parts.disk, "device": judged[0] if judged else parts.driver}
    found["store"] = _Part("the claim is its first write")
    return MachineCheck(
        seconds=parts.clock.monotonic() - asked_at,
        results={name: part.result for name, part in found.items()},
        problems=tuple(f"{name}: {part.result}" for name, part in found.items() if part.is_problem),
    )


def require_fit(runlog: RunLog, assignment: Assignment, *, device: torch.device, machine: Machine) -> MachineCheck:
    """Return the result of the check. If this machine failed the check, write the result to the run's log.

    Raises:
        UnfitMachineError: the machine failed the check. The run has to continue on another machine.
    """
    check, plan = finish(device, machine), assignment.plan
    if not check.problems:
        return check
    place = {"segment": plan.segment, "attempt": plan.attempt, "deployment": plan.deployment}
    facts = place | {"machine": machine, "machine_check": check}
    patiently(lambda: runlog.append(lambda stamp: MachineEntry.model_validate(stamp(epoch=0) | facts)), what="log")
    raise UnfitMachineError(machine=machine.in_words, problems=check.problems)


def machine_here(device: torch.device) -> Machine:
    """Return the names of this machine and of the accelerator that this rank uses."""
    kind, name = next(
        ((kind, os.environ[variable]) for variable, kind in _NAMES.items() if os.environ.get(variable)),
        ("host", socket.gethostname()),
    )
    if device.type != "cuda":
        return Machine.model_validate({"kind": kind, "name": name})
    import torch

    serial = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return Machine.model_validate({"kind": kind, "name": name, "devices": (serial,)})


def _disk() -> _Part:
    written, folder = os.urandom(_DISK_BYTES), "the temporary folder"
    try:
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(written)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # Read from the disk, not from memory.
            file.seek(0)
            is_equal = file.read() == written
    except OSError as error:
        # A full or read-only folder is no fault of the machine, and a run may not need it.
        return _Part(f"1 MiB cannot be written to {folder} ({error.strerror})", error.errno == errno.EIO)
    if not is_equal:
        return _Part(f"1 MiB was read back from {folder} with other bytes than were written", is_problem=True)
    return _Part(f"1 MiB was written to {folder} and read back")


def _judged(errors: str, width: str, most: str) -> _Part:
    """Judge the driver's numbers of one accelerator. If the driver has no number for a property, the driver returns a
    text instead."""
    result = f"{errors} uncorrected ECC errors since the driver was loaded, {width} of {most} PCIe lanes; {_NO_XID}"
    return _Part(result, is_problem=errors.isdigit() and int(errors) > 0)


def _unless_it_fails(part: Callable[[torch.device], _Part], device: torch.device) -> _Part:
    """Return the result of a part. An error of the accelerator is a problem; any other error is only recorded."""
    try:
        return part(device)
    except RuntimeError as error:  # The type of torch for all errors of accelerators.
        from segue.trainer.health.failures import is_of_device

        return _Part(f"{type(error).__name__}: {error}", is_of_device(error))


def _memory(device: torch.device) -> _Part:
    """Read the free memory of the machine and of the accelerator."""
    file = Path("/proc/meminfo")
    found = re.search(r"MemAvailable:\s+(\d+) kB", file.read_text(encoding="ascii")) if file.exists() else None
    free = {"the machine": int(found[1]) * 1024} if found else {}
    if device.type == "cuda":
        import torch

        free["the accelerator"] = torch.cuda.mem_get_info(device)[0]
    result = ", ".join(f"{size / 1e9:.1f} GB of {what} are free" for what, size in free.items())
    return _Part(result or "not known", min(free.values(), default=_LEAST_MEMORY_BYTES) < _LEAST_MEMORY_BYTES)


def _product(device: torch.device) -> _Part:
    """Multiply two matrices of whole numbers, whose product every device and library computes exactly."""
    import torch

    factor = torch.arange(_SIDE * _SIDE, dtype=torch.float32, device=device).remainder(7).reshape(_SIDE, _SIDE)
    product = torch.mm(factor, factor.T).to("cpu", torch.int32).numpy().tobytes()
    if hashlib.sha256(product).hexdigest() != _PRODUCT:
        return _Part(f"a product of two matrices on {device} has a wrong number", is_problem=True)
    return _Part("exact")
