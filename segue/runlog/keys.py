"""Where things lie in a run's folder. Every key of the store is made here."""

from __future__ import annotations

import re

_ORDER = re.compile(r"[^/]+/spares/spare([0-9]{1,9})/order\.json")
_SLOT = re.compile(r"[^/]+/log/([0-9]{8})\.json")


def log_prefix(run_id: str) -> str:
    return f"{run_id}/log/"


def log_key(run_id: str, slot: int) -> str:
    return f"{run_id}/log/{slot:08d}.json"


def slot_of(key: str) -> int | None:
    """The slot a log key stands for; None for a foreign file."""
    found = _SLOT.fullmatch(key)
    return int(found[1]) if found else None


def attempt_id(segment: int, attempt: int, epoch: int) -> str:
    """Unique for ever: no two claims of a run share an epoch."""
    return f"seg{segment:03d}-a{attempt}-e{epoch}"


def step_prefix(run_id: str, attempt: str, step: int) -> str:
    return f"{run_id}/attempts/{attempt}/step-{step:09d}/"


def shard_name(attempt: str, step: int, rank: int) -> str:
    """Relative to the run's folder, as manifests hold it."""
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}.safetensors"


def state_name(attempt: str, step: int, rank: int) -> str:
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}.json"


def attempts_prefix(run_id: str) -> str:
    return f"{run_id}/attempts/"


def attempt_prefix(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/"


def heartbeat_key(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/heartbeat.json"


def recall_key(run_id: str, attempt: str) -> str:
    """Its presence asks the attempt to commit and end."""
    return f"{run_id}/attempts/{attempt}/recall.json"


def standbys_prefix(run_id: str) -> str:
    return f"{run_id}/spares/"


def standby_status_key(run_id: str, standby: str) -> str:
    """Its sign of life."""
    return f"{run_id}/spares/{standby}/word.json"


def standby_command_key(run_id: str, standby: str) -> str:
    """What it is to do."""
    return f"{run_id}/spares/{standby}/order.json"


def standby_id(number: int) -> str:
    return f"spare{number}"  # As version 0.1 named them: names in the store stay.


def commanded_standby(key: str) -> int | None:
    """The number of the standby that an order's key stands for; None for any other key."""
    found = _ORDER.fullmatch(key)
    return int(found[1]) if found else None


def metrics_prefix(run_id: str) -> str:
    return f"{run_id}/metrics/"


def metrics_key(run_id: str, attempt: str, part: int) -> str:
    return f"{run_id}/metrics/{attempt}-p{part:04d}.parquet"
