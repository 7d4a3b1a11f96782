"""Checks this machine: memory, files, cores, disks, accelerators and versions.

Run the checks on a machine of the run's work pool.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from segue.doctor.check import Item, Result, fail, ok, skipped, warn
from segue.doctor.probe import NO_TORCH
from segue.doctor.subject import Subject
from segue.launch.determinism import DETERMINISTIC_VARIABLES
from segue.launch.memory import free_bytes
from segue.records import Environment
from segue.runlog import keys
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.stores import LocalStore
from segue.units import size

_SHARED = Path("/dev/shm")  # noqa: S108 - a mount that every Linux has
_SHARED_BYTES = 2**30
_DESCRIPTORS, _DESCRIPTORS_AT_ALL = 1024, 256
_BESIDE = 1.05
"""Factor on the memory of the state and its copies, for a reserve of 5 %."""
_MEMORY_SHARE = 0.8
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_CUBLAS_DETERMINISTIC = (":4096:8", ":16:8")
"""The two values of the variable CUBLAS_WORKSPACE_CONFIG that PyTorch's notes on reproducibility allow."""
_GROUPS = Path("/sys/fs/cgroup")
_GPU_DEVICES = "nvidia[0-9]*"
"""Pattern of the device files of NVIDIA accelerators.

The device files of AMD are not used, because a processor's graphics unit has the same files.
"""


def items(subject: Subject) -> list[Item]:
    """Return the checks of this machine.

    The checks use results of the store's checks and the recipe's checks. Those checks run earlier.
    """
    valid, readable = "spec.valid", ("store.read", "store.list")
    probe_seconds = 180.0
    return [
        Item("machine.torch", partial(torch, subject), (), probe_seconds),
        Item("machine.shared-memory", partial(shared_memory, _SHARED)),
        Item("machine.file-descriptors", file_descriptors),
        Item("machine.cores", partial(cores, subject)),
        Item("machine.memory", partial(memory, subject), (valid, "machine.torch", *readable)),
        Item("machine.disk", partial(disk, subject), (valid, *readable)),
        Item("machine.accelerator", partial(accelerator, subject), (valid, "machine.torch", *readable)),
        Item("machine.determinism", partial(determinism, subject), (valid,)),
        Item("machine.nccl", partial(nccl, subject), (valid, "machine.torch")),
        Item("machine.versions", partial(versions, subject), (valid, "machine.torch", *readable)),
    ]


def torch(subject: Subject) -> Result:
    """Check that torch can be imported."""
    facts = subject.probed.torch
    if facts is None:
        return fail(f"torch cannot be imported: {subject.probed.why}", fix=NO_TORCH)
    return ok(f"Python {facts.python}, torch {facts.torch}, accelerators: {facts.accelerators}")


def shared_memory(folder: Path) -> Result:
    """Check the space in /dev/shm. Staging buffers are anonymous memory and do not use /dev/shm."""
    try:
        room = shutil.disk_usage(folder).total
    except OSError as error:
        return fail(f"{folder} cannot be used ({error.strerror})", fix="mount a tmpfs there.")
    return judge_shared_memory(folder, room)


def judge_shared_memory(folder: Path, room: int) -> Result:
    """Judge whether data loader workers and NCCL have enough shared memory to exchange data. The function is pure."""
    if room >= _SHARED_BYTES:
        return ok(f"{folder} has {size(room)}")
    return warn(
        f"{folder} has {size(room)}; data loader workers and NCCL exchange data there, and a bus error kills them if "
        "it is full",
        fix="docker run --shm-size=2g; on Kubernetes, mount an emptyDir with medium: Memory there.",
    )


def file_descriptors() -> Result:
    """Check how many files a process on this machine may open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or limit >= _DESCRIPTORS:
        return ok("no limit on open files" if limit == resource.RLIM_INFINITY else f"{limit} open files are permitted")
    fix = f"raise the limit (ulimit -n {4 * _DESCRIPTORS}, LimitNOFILE= of systemd, --ulimit of docker)."
    reason = f"only {limit} files may be open; a data loader worker opens one file for each tensor that it passes on"
    return fail(reason, fix=fix) if limit < _DESCRIPTORS_AT_ALL else warn(reason, fix=fix)


def cores(subject: Subject, *, groups: Path = _GROUPS) -> Result:
    """Check that the machine has one core for each rank, and one more core for the writer process."""
    ranks = (subject.spec.ranks_of_a_node if subject.spec is not None else 1) or max(subject.accelerators, 1)
    found = min(float(len(os.sched_getaffinity(0))), _permitted_cores(groups))
    if found >= ranks + 1:
        return ok(f"cores: {found:g}, ranks: {ranks}")
    return warn(
        f"cores: {found:g}, ranks: {ranks}: too few for the ranks and the process that writes checkpoints, so "
        "a save slows training",
        fix="give the machine or container more cores.",
    )


def _permitted_cores(groups: Path) -> float:
    """Return the core limit of this container's control group (version 2 or 1). If there is no limit, return inf."""
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((groups / name).read_text(encoding="ascii") for name in names).split()
        except (OSError, ValueError):
            continue  # There is no such limit here.
        return int(quota) / int(period) if quota not in ("max", "-1") else math.inf
    return math.inf


def memory(subject: Subject) -> Result:
    """Check that the free memory suffices for the state and its copies."""
    assert subject.spec is not None
    if subject.state_bytes is None:
        return skipped("the size of the state is not known: the run has no checkpoint, and the rehearsal was not made")
    on_device = _uses_accelerator(subject, subject.spec)
    copies = subject.spec.checkpoints.staging_buffers + (0 if on_device else subject.spec.ranks_of_a_node or 1)
    return judge_memory(subject.state_bytes, copies=copies, free=free_bytes())


def judge_memory(state_bytes: int, *, copies: int, free: float) -> Result:
    """Judge whether this number of copies of the state fits into the free memory. The function is pure."""
    needed = _BESIDE * copies * state_bytes
    reason = f"{copies} copies of {size(state_bytes)} of state need {size(needed)} of memory, {size(free)} are free"
    fix = "use a larger machine or memory limit, or checkpoints.staging_buffers = 1."
    if needed > free:
        return fail(reason, fix=fix)
    return warn(reason, fix=fix) if needed > _MEMORY_SHARE * free else ok(reason)


def disk(subject: Subject) -> Result:
    """Check the free disk space for checkpoints in the fast folder, and in the store if the store is a folder."""
    assert subject.spec is not None
    kept = subject.spec.checkpoints
    folders = [subject.opened.root] if isinstance(subject.opened, LocalStore) else []
    folders += [Path(kept.fast_folder)] if kept.fast_folder is not None else []
    if not folders:
        return skipped("no checkpoint is kept on a disk of this machine")
    for folder in folders:
        above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            return fail(f"{folder} cannot be created or written", fix="give the right to write there, or name another.")
        if subject.state_bytes is None:
            continue
        stored, free = _stored_bytes(folder / keys.attempts_prefix(subject.spec.run_id)), shutil.disk_usage(above).free
        needed = max((kept.keep + 1) * subject.state_bytes - stored, subject.state_bytes)
        if needed > free:
            there = f" beside the {size(stored)} that are there" if stored else ""
            return fail(
                f"{folder} needs {size(needed)} for {kept.keep} checkpoints and the next one{there}, {size(free)} are "
                "free",
                fix="free space, or lower checkpoints.keep.",
            )
    if subject.state_bytes is None:
        return skipped(f"{' and '.join(map(str, folders))}: writable; the size of the state is not known")
    return ok(f"{' and '.join(map(str, folders))}: room for {kept.keep + 1} checkpoints")


def _stored_bytes(folder: Path) -> int:
    """Return the number of bytes that the run's checkpoints already use in this folder."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # A run that trains may remove files at the same time.
                found += Path(above, name).stat().st_size
    return found


def accelerator(subject: Subject, *, devices: Path = Path("/dev")) -> Result:
    """Check that this machine has as many accelerators as the run needs."""
    assert subject.spec is not None
    has_gpu = next(devices.glob(_GPU_DEVICES), None) is not None
    return judge_accelerator(subject.spec, subject.history, accelerators=subject.accelerators, has_gpu=has_gpu)


def judge_accelerator(spec: RunSpec, history: History, *, accelerators: int, has_gpu: bool) -> Result:
    """Judge whether the accelerators suffice.

    `has_gpu` is also true for a GPU that torch does not see. The function is pure.
    """
    devices = [attempt.claim.environment.device for attempt in history.attempts]
    used = next((name for name in reversed(devices) if name != "cpu"), None)
    asked = spec.device == "cuda" or (spec.device == "auto" and used is not None)
    fix = "check the driver (`nvidia-smi`), or run this on a machine of the pool."
    if spec.device == "auto" and has_gpu and not (asked or accelerators or spec.trains_elsewhere):
        return warn(
            "this machine has an accelerator, but torch does not see it: the run would train on the processor",
            fix="install torch for it, check the driver (`nvidia-smi`), or set device to cpu.",
        )
    if spec.device == "cpu" or (not asked and not accelerators):
        return ok("the run trains on the processor")
    if spec.trains_elsewhere and not accelerators:
        return skipped(
            "the run trains on a cluster, and torch sees no accelerator here; make this check on a node of the cluster"
        )
    if not accelerators:
        what = "device is cuda" if spec.device == "cuda" else f"the run has trained on {used}"
        return fail(f"{what}, but torch sees no accelerator here", fix=fix)
    ranks = spec.ranks_of_a_node or 1
    if ranks > accelerators:
        return fail(f"{ranks} ranks need {ranks} accelerators, but torch sees {accelerators}", fix=fix)
    return ok(f"accelerators: {accelerators}")


def determinism(subject: Subject) -> Result:
    """If the run sets `deterministic`, check that no environment variable disables deterministic kernels."""
    assert subject.spec is not None
    if not subject.spec.deterministic:
        return skipped("deterministic is not set")
    return judge_determinism(subject.environ)


def judge_determinism(environ: Mapping[str, str]) -> Result:
    """Judge the environment variables that deterministic kernels need.

    If a variable is not set, segue sets it. The function is pure.
    """
    given = {name: environ[name] for name in DETERMINISTIC_VARIABLES if name in environ}
    if given.get(_CUBLAS, _CUBLAS_DETERMINISTIC[0]) not in _CUBLAS_DETERMINISTIC:
        return fail(
            f"{_CUBLAS}={given[_CUBLAS]} makes the results of cuBLAS vary from run to run, so torch refuses to train",
            fix=f"unset {_CUBLAS}, or set it to {' or '.join(_CUBLAS_DETERMINISTIC)}.",
        )
    others = {name: text for name, text in given.items() if name != _CUBLAS and text != DETERMINISTIC_VARIABLES[name]}
    if others:
        name, text = next(iter(others.items()))
        return warn(
            f"{name}={text} may let results differ between machines",
            fix=f"unset {name}, or set it to {DETERMINISTIC_VARIABLES[name]}.",
        )
    return ok("the libraries that torch uses are limited to deterministic kernels")


def nccl(subject: Subject) -> Result:
    """Check that several ranks can exchange gradients between accelerators."""
    assert subject.spec is not None
    facts = subject.probed.torch
    has_nccl = facts is not None and facts.has_nccl
    return judge_nccl(subject.spec, accelerators=subject.accelerators, has_nccl=has_nccl)


def judge_nccl(spec: RunSpec, *, accelerators: int, has_nccl: bool) -> Result:
    """Judge whether torch has NCCL, if the run needs NCCL. The function is pure."""
    ranks = spec.ranks or accelerators
    if ranks < 2 or spec.device == "cpu" or not accelerators:
        return skipped("the run does not train with several ranks on accelerators")
    if not has_nccl:
        return fail(
            f"{ranks} ranks on accelerators need NCCL, but this build of torch does not have it",
            fix="install torch for CUDA.",
        )
    return ok(f"torch has NCCL for {ranks} ranks")


def versions(subject: Subject) -> Result:
    """Compare the versions of Python and torch with the versions in the run's newest attempt."""
    claims = [attempt.claim.environment for attempt in subject.history.attempts]
    facts = subject.probed.torch
    if not claims or facts is None:
        return skipped("the run has not trained yet, so there is nothing to compare")
    return judge_versions(claims[-1], python=facts.python, torch_version=facts.torch)


def judge_versions(last: Environment, *, python: str, torch_version: str) -> Result:
    """Judge whether the versions of Python and torch differ from the newest attempt. The function is pure."""
    pairs = (("Python", last.python, python), ("torch", last.torch, torch_version))
    changed = [f"{name} {before}, here is {now}" for name, before, now in pairs if before and before != now]
    if changed:
        return warn(
            f"the run has trained with {' and '.join(changed)}: a resume may then not be `exact`, "
            "but `equivalent` at best",
            fix="use the image or environment of the run's newest attempt.",
        )
    return ok(f"Python {python} and torch {torch_version}, as in the run's newest attempt")


def _uses_accelerator(subject: Subject, spec: RunSpec) -> bool:
    return spec.device != "cpu" and subject.accelerators > 0
