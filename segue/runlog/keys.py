"""Makes the keys of all objects that segue writes to a store."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"[^/]+/spares/spare([0-9]{1,9})/order\.json")
_PACK = re.compile(r"[^/]+/log-packs/([0-9a-f]{32})/([0-9]{8})\.pack")
_SLOT = re.compile(r"[^/]+/log/([0-9]{8})\.json")


def run_prefix(run_id: str) -> str:
    return f"{run_id}/"


_MODEL = "_model-"


def model_folder(name: str) -> str:
    """Return the folder of the log of a model. No run id has the form of this folder name."""
    return f"{_MODEL}{name}"


def model_of(folder: str) -> str | None:
    """Return the model whose log is in this top-level folder. Return None if the folder does not belong to a model."""
    return folder.removeprefix(_MODEL) if folder.startswith(_MODEL) else None


def model_file(name: str, folder: str, file: str) -> str:
    """Return the key of a file that belongs to a version or a slot of a model."""
    return f"{model_folder(name)}/{folder}/{file}"


def seen_key(model: str) -> str:
    """Return the key of the record with the results of the last check of a model's triggers.

    Each check overwrites the record.
    """
    return f"{model_folder(model)}/triggers/seen.json"


def docs_prefix(model: str, stamp: str) -> str:
    """Return the prefix of the keys of a slot's Data Docs."""
    return f"{model_folder(model)}/slots/{stamp}/docs/"


def verifications_folder(run_id: str) -> str:
    """Return the folder of the log of a run's scheduled verifications. No run id has the form of this folder name."""
    return f"_verify-{run_id}"


def is_run_folder(name: str) -> bool:
    """Whether a top-level folder may be the folder of a run."""
    return not name.startswith("_")


def log_prefix(run_id: str) -> str:
    return f"{run_id}/log/"


def log_key(run_id: str, slot: int) -> str:
    return f"{run_id}/log/{slot:08d}.json"


def packs_prefix(run_id: str) -> str:
    return f"{run_id}/log-packs/"


def pack_key(run_id: str, log_id: str, first_slot: int) -> str:
    """Return the key of the pack that begins with this slot of a log."""
    return f"{run_id}/log-packs/{log_id}/{first_slot:08d}.pack"


def log_and_slot_of(key: str) -> tuple[str, int] | None:
    """Return the log id and the first slot in the key of a pack. Return None for any other key."""
    found = _PACK.fullmatch(key)
    return (found[1], int(found[2])) if found else None


def slot_of(key: str) -> int | None:
    """Return the slot of a log key. Return None for any other key."""
    found = _SLOT.fullmatch(key)
    return int(found[1]) if found else None


_ID_CHARACTERS = 8
_ATTEMPT = re.compile(rf"seg[0-9]+-a[0-9]+-e(?P<epoch>[0-9]+)(?:-(?P<log>[0-9a-f]{{{_ID_CHARACTERS}}}))?")


def attempt_id(segment: int, attempt: int, epoch: int, *, log_id: str = "") -> str:
    """Return the id of an attempt.

    The id is unique in all logs of a run. Each claim of a log has a different epoch, and each log has a different id.
    """
    return "-".join([f"seg{segment:03d}", f"a{attempt}", f"e{epoch}", *filter(None, [log_id[:_ID_CHARACTERS]])])


def epoch_of(attempt_id: str, *, log_id: str) -> int | None:
    """Return the epoch in the id of an attempt. Return None for another text, or for an id of another log.

    Attempt ids of version 0.1 do not contain the id of their log.
    """
    found = _ATTEMPT.fullmatch(attempt_id)
    if found is None or found["log"] not in (None, log_id[:_ID_CHARACTERS]):
        return None
    return int(found["epoch"])


def step_prefix(run_id: str, attempt: str, step: int) -> str:
    return f"{run_id}/attempts/{attempt}/step-{step:09d}/"


def shard_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Return the name of a shard relative to the folder of the run, as manifests use it.

    If another writer process repeats a save, the second try must not overwrite the shards of the first try. The second
    try may store other bytes, and an attempt may have adopted the bytes of the first try. Each try therefore has its
    own shard names.
    """
    return f"{_stem(attempt, step, rank, try_number)}.safetensors"


def state_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Return the name of the index that is stored next to a shard."""
    return f"{_stem(attempt, step, rank, try_number)}.json"


def is_of_repeated_save(name: str) -> bool:
    """Whether the name of a shard belongs to a second or later try of a save."""
    return ".try-" in name


def _stem(attempt: str, step: int, rank: int, try_number: int) -> str:
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}" + (f".try-{try_number}" if try_number > 1 else "")


def prepared_name(attempt: str, step: int, rank: int) -> str:
    """Return the name of the prepared commit, which is stored after the shards of a save."""
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}.commit.json"


def attempts_prefix(run_id: str) -> str:
    return f"{run_id}/attempts/"


def attempt_prefix(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/"


def heartbeat_key(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/heartbeat.json"


def recall_key(run_id: str, attempt: str) -> str:
    """Return the key of the recall. If the store has an object with this key, the attempt must commit and end."""
    return f"{run_id}/attempts/{attempt}/recall.json"


def disturbance_key(run_id: str, attempt: str) -> str:
    """Return the key of a drill's request to kill the trainer of an attempt or to send it a notice."""
    return f"{run_id}/attempts/{attempt}/drill.json"


def queue_key(run_id: str, segment: int, attempt: int) -> str:
    """Return the key of the reason why an attempt waits. Until the attempt claims the run, its segment updates this
    object.
    """
    return f"{run_id}/queue/seg{segment:03d}-a{attempt}.json"


MEMORY_PREFIX = ".pools/"
PARENTS_PREFIX = ".parents/"
PROBE_KEY = ".probe"
"""Key of the object with which segue tests whether the store can be written."""
LOOK_KEY, LOOK_BEGUN_KEY = ".last-look", ".look-begun"
"""Keys of the objects that a recovery check writes at its end and at its start."""


def memory_key(number: int) -> str:
    """Return the key of one version of the memory of the store's pools. Each change gets the next number."""
    return f"{MEMORY_PREFIX}{number:08d}.json"


def parent_key(run_id: str) -> str:
    """Return the key of the record of a run's parent. The record exists while the run is open."""
    return f"{PARENTS_PREFIX}{run_id}.json"


def standbys_prefix(run_id: str) -> str:
    return f"{run_id}/spares/"


def standby_status_key(run_id: str, standby: str) -> str:
    """Return the key of the status (heartbeat) of a standby."""
    return f"{run_id}/spares/{standby}/word.json"


def standby_command_key(run_id: str, standby: str) -> str:
    """Return the key of the parent's command to a standby."""
    return f"{run_id}/spares/{standby}/order.json"


def standby_id(number: int) -> str:
    return f"spare{number}"  # Version 0.1 used "spare"; names in the store do not change.


def commanded_standby(key: str) -> int | None:
    """Return the number of the standby in the key of a command. Return None for any other key."""
    found = _COMMAND.fullmatch(key)
    return int(found[1]) if found else None


def metrics_prefix(run_id: str) -> str:
    return f"{run_id}/metrics/"


def metrics_of_attempt(run_id: str, attempt: str) -> str:
    """Return the prefix of the keys of all parts of an attempt's loss curve. No other key has this prefix."""
    return f"{run_id}/metrics/{attempt}-p"


def metrics_key(run_id: str, attempt: str, part: int) -> str:
    return f"{metrics_of_attempt(run_id, attempt)}{part:04d}.parquet"
