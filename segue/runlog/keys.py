"""Keys of the objects in a run's folder. Every key in the store is made here."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"[^/]+/spares/spare([0-9]{1,9})/order\.json")
_PACK = re.compile(r"[^/]+/log-packs/([0-9a-f]{32})/([0-9]{8})\.pack")
_SLOT = re.compile(r"[^/]+/log/([0-9]{8})\.json")


def run_prefix(run_id: str) -> str:
    return f"{run_id}/"


_MODEL = "_model-"


def model_folder(name: str) -> str:
    """Folder of a model's log. No run can have this name."""
    return f"{_MODEL}{name}"


def model_of(folder: str) -> str | None:
    """The model whose log a top-level folder holds; None for any other folder."""
    return folder.removeprefix(_MODEL) if folder.startswith(_MODEL) else None


def model_file(name: str, folder: str, file: str) -> str:
    """A file of a version or a slot of a model."""
    return f"{model_folder(name)}/{folder}/{file}"


def seen_key(model: str) -> str:
    """Key of the record of what the last look for a model's triggers saw; the record is overwritten."""
    return f"{model_folder(model)}/triggers/seen.json"


def docs_prefix(model: str, stamp: str) -> str:
    """Prefix of the keys of a slot's Data Docs."""
    return f"{model_folder(model)}/slots/{stamp}/docs/"


def verifications_folder(run_id: str) -> str:
    """Folder of the log of a run's scheduled verifications. No run can have this name."""
    return f"_verify-{run_id}"


def is_run_folder(name: str) -> bool:
    """Whether a top-level folder may be a run's."""
    return not name.startswith("_")


def log_prefix(run_id: str) -> str:
    return f"{run_id}/log/"


def log_key(run_id: str, slot: int) -> str:
    return f"{run_id}/log/{slot:08d}.json"


def packs_prefix(run_id: str) -> str:
    return f"{run_id}/log-packs/"


def pack_key(run_id: str, log_id: str, first_slot: int) -> str:
    """Key of the pack of a log's records from a slot on."""
    return f"{run_id}/log-packs/{log_id}/{first_slot:08d}.pack"


def log_and_slot_of(key: str) -> tuple[str, int] | None:
    """The log's id and the first slot of a pack's key; None for any other key."""
    found = _PACK.fullmatch(key)
    return (found[1], int(found[2])) if found else None


def slot_of(key: str) -> int | None:
    """The slot of a log key; None for any other key."""
    found = _SLOT.fullmatch(key)
    return int(found[1]) if found else None


_ID_CHARACTERS = 8
_ATTEMPT = re.compile(rf"seg[0-9]+-a[0-9]+-e(?P<epoch>[0-9]+)(?:-(?P<log>[0-9a-f]{{{_ID_CHARACTERS}}}))?")


def attempt_id(segment: int, attempt: int, epoch: int, *, log_id: str = "") -> str:
    """An id unique among all logs: no two claims of a log share an epoch, and no two logs of a run share an id."""
    return "-".join([f"seg{segment:03d}", f"a{attempt}", f"e{epoch}", *filter(None, [log_id[:_ID_CHARACTERS]])])


def epoch_of(attempt_id: str, *, log_id: str) -> int | None:
    """The epoch in an attempt's id; None if it is no id, or an id of another log of the same run.

    Ids of version 0.1 do not name their log.
    """
    found = _ATTEMPT.fullmatch(attempt_id)
    if found is None or found["log"] not in (None, log_id[:_ID_CHARACTERS]):
        return None
    return int(found["epoch"])


def step_prefix(run_id: str, attempt: str, step: int) -> str:
    return f"{run_id}/attempts/{attempt}/step-{step:09d}/"


def shard_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Name of a shard relative to the run's folder, as manifests hold it.

    A save that is tried again with another writer process has its own names: the second try may store other bytes, and
    the bytes of the first try may have been adopted.
    """
    return f"{_stem(attempt, step, rank, try_number)}.safetensors"


def state_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Name of the index beside a shard."""
    return f"{_stem(attempt, step, rank, try_number)}.json"


def is_of_repeated_save(name: str) -> bool:
    """Whether a shard's name is of a second or later try."""
    return ".try-" in name


def _stem(attempt: str, step: int, rank: int, try_number: int) -> str:
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}" + (f".try-{try_number}" if try_number > 1 else "")


def prepared_name(attempt: str, step: int, rank: int) -> str:
    """Name of the prepared commit, stored after the shards of a save."""
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}.commit.json"


def attempts_prefix(run_id: str) -> str:
    return f"{run_id}/attempts/"


def attempt_prefix(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/"


def heartbeat_key(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/heartbeat.json"


def recall_key(run_id: str, attempt: str) -> str:
    """Key of an object whose existence requests that the attempt commits and ends."""
    return f"{run_id}/attempts/{attempt}/recall.json"


def disturbance_key(run_id: str, attempt: str) -> str:
    """Key of the request to kill the attempt's trainer or to send it a notice; only drills read it."""
    return f"{run_id}/attempts/{attempt}/drill.json"


def queue_key(run_id: str, segment: int, attempt: int) -> str:
    """Key of the segment's note about what its attempt waits for, as long as the attempt has not claimed the run."""
    return f"{run_id}/queue/seg{segment:03d}-a{attempt}.json"


PARENTS_PREFIX = ".parents/"
PROBE_KEY = ".probe"
"""Key of an object that shows whether the store can be written."""
LOOK_KEY, LOOK_BEGUN_KEY = ".last-look", ".look-begun"
"""Keys of the object that recovery's last look wrote at its end, and of the one that its newest look wrote first."""


def parent_key(run_id: str) -> str:
    """Key of the record of a run's parent. It exists while the run is open, so that a listing finds the open runs."""
    return f"{PARENTS_PREFIX}{run_id}.json"


def standbys_prefix(run_id: str) -> str:
    return f"{run_id}/spares/"


def standby_status_key(run_id: str, standby: str) -> str:
    """Key of a standby's status, which is its heartbeat."""
    return f"{run_id}/spares/{standby}/word.json"


def standby_command_key(run_id: str, standby: str) -> str:
    """Key of the parent's command to a standby."""
    return f"{run_id}/spares/{standby}/order.json"


def standby_id(number: int) -> str:
    return f"spare{number}"  # Version 0.1 used this name; names in the store do not change.


def commanded_standby(key: str) -> int | None:
    """The number of the standby of a command's key; None for any other key."""
    found = _COMMAND.fullmatch(key)
    return int(found[1]) if found else None


def metrics_prefix(run_id: str) -> str:
    return f"{run_id}/metrics/"


def metrics_of_attempt(run_id: str, attempt: str) -> str:
    """The common beginning of the keys of the parts of an attempt's loss curve, and of no other keys."""
    return f"{run_id}/metrics/{attempt}-p"


def metrics_key(run_id: str, attempt: str, part: int) -> str:
    return f"{metrics_of_attempt(run_id, attempt)}{part:04d}.parquet"
