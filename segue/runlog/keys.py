"""Functions for the keys of all objects that segue writes to a store."""

from __future__ import annotations

import re

_COMMAND = re.compile(r"[^/]+/spares/spare([0-9]{1,9})/order\.json")
_PACK = re.compile(r"[^/]+/log-packs/([0-9a-f]{32})/([0-9]{8})\.pack")
_SLOT = re.compile(r"[^/]+/log/([0-9]{8})\.json")


def run_prefix(run_id: str) -> str:
    return f"{run_id}/"


_MODEL = "_model-"


def model_folder(name: str) -> str:
    """Folder of the log of a model. A run id cannot have this form."""
    return f"{_MODEL}{name}"


def model_of(folder: str) -> str | None:
    """The name of the model whose log is in this top-level folder; None if the folder is not of a model."""
    return folder.removeprefix(_MODEL) if folder.startswith(_MODEL) else None


def model_file(name: str, folder: str, file: str) -> str:
    """Key of a file of a version or a slot of a model."""
    return f"{model_folder(name)}/{folder}/{file}"


def seen_key(model: str) -> str:
    """Key of the record with the results of the last check of a model's triggers; each check overwrites it."""
    return f"{model_folder(model)}/triggers/seen.json"


def docs_prefix(model: str, stamp: str) -> str:
    """Prefix of the keys of a slot's Data Docs."""
    return f"{model_folder(model)}/slots/{stamp}/docs/"


def verifications_folder(run_id: str) -> str:
    """Folder of the log of the scheduled verifications of a run. A run id cannot have this form."""
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
    """Key of the pack that begins with this slot of a log."""
    return f"{run_id}/log-packs/{log_id}/{first_slot:08d}.pack"


def log_and_slot_of(key: str) -> tuple[str, int] | None:
    """The log id and the first slot in the key of a pack; None for any other key."""
    found = _PACK.fullmatch(key)
    return (found[1], int(found[2])) if found else None


def slot_of(key: str) -> int | None:
    """The slot of a log key; None for any other key."""
    found = _SLOT.fullmatch(key)
    return int(found[1]) if found else None


_ID_CHARACTERS = 8
_ATTEMPT = re.compile(rf"seg[0-9]+-a[0-9]+-e(?P<epoch>[0-9]+)(?:-(?P<log>[0-9a-f]{{{_ID_CHARACTERS}}}))?")


def attempt_id(segment: int, attempt: int, epoch: int, *, log_id: str = "") -> str:
    """The id of an attempt, unique in all logs of a run: each claim of a log has another epoch, each log another id."""
    return "-".join([f"seg{segment:03d}", f"a{attempt}", f"e{epoch}", *filter(None, [log_id[:_ID_CHARACTERS]])])


def epoch_of(attempt_id: str, *, log_id: str) -> int | None:
    """The epoch in the id of an attempt; None if the text is not such an id, or the id belongs to another log.

    Ids of version 0.1 do not contain the id of their log.
    """
    found = _ATTEMPT.fullmatch(attempt_id)
    if found is None or found["log"] not in (None, log_id[:_ID_CHARACTERS]):
        return None
    return int(found["epoch"])


def step_prefix(run_id: str, attempt: str, step: int) -> str:
    return f"{run_id}/attempts/{attempt}/step-{step:09d}/"


def shard_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Name of a shard relative to the folder of the run, as used in manifests.

    If a save is repeated by another writer process, its shards have other names: the second try may store other bytes,
    and the bytes of the first try may have been adopted.
    """
    return f"{_stem(attempt, step, rank, try_number)}.safetensors"


def state_name(attempt: str, step: int, rank: int, *, try_number: int = 1) -> str:
    """Name of the index beside a shard."""
    return f"{_stem(attempt, step, rank, try_number)}.json"


def is_of_repeated_save(name: str) -> bool:
    """Whether the name of a shard belongs to a second or later try of a save."""
    return ".try-" in name


def _stem(attempt: str, step: int, rank: int, try_number: int) -> str:
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}" + (f".try-{try_number}" if try_number > 1 else "")


def prepared_name(attempt: str, step: int, rank: int) -> str:
    """Name of the prepared commit, which is stored after the shards of a save."""
    return f"attempts/{attempt}/step-{step:09d}/rank-{rank}.commit.json"


def attempts_prefix(run_id: str) -> str:
    return f"{run_id}/attempts/"


def attempt_prefix(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/"


def heartbeat_key(run_id: str, attempt: str) -> str:
    return f"{run_id}/attempts/{attempt}/heartbeat.json"


def recall_key(run_id: str, attempt: str) -> str:
    """Key of the recall: if this object exists, the attempt must commit and end."""
    return f"{run_id}/attempts/{attempt}/recall.json"


def disturbance_key(run_id: str, attempt: str) -> str:
    """Key of the request to kill the trainer of an attempt or to send a notice to it; used only by drills."""
    return f"{run_id}/attempts/{attempt}/drill.json"


def queue_key(run_id: str, segment: int, attempt: int) -> str:
    """Key of the reason why an attempt still waits; the segment writes it until the attempt claims the run."""
    return f"{run_id}/queue/seg{segment:03d}-a{attempt}.json"


MEMORY_PREFIX = ".pools/"
PARENTS_PREFIX = ".parents/"
PROBE_KEY = ".probe"
"""Key of the object that is written to test whether the store can be written."""
LOOK_KEY, LOOK_BEGUN_KEY = ".last-look", ".look-begun"
"""Keys of the objects that a recovery check writes at its end and at its start."""


def memory_key(number: int) -> str:
    """Key of one version of the memory of the store's pools; each change has the next number."""
    return f"{MEMORY_PREFIX}{number:08d}.json"


def parent_key(run_id: str) -> str:
    """Key of the record of a run's parent. The object exists while the run is open, so a listing finds open runs."""
    return f"{PARENTS_PREFIX}{run_id}.json"


def standbys_prefix(run_id: str) -> str:
    return f"{run_id}/spares/"


def standby_status_key(run_id: str, standby: str) -> str:
    """Key of the status (heartbeat) of a standby."""
    return f"{run_id}/spares/{standby}/word.json"


def standby_command_key(run_id: str, standby: str) -> str:
    """Key of the parent's command to a standby."""
    return f"{run_id}/spares/{standby}/order.json"


def standby_id(number: int) -> str:
    return f"spare{number}"  # Version 0.1 used "spare"; names in the store do not change.


def commanded_standby(key: str) -> int | None:
    """The number of the standby in the key of a command; None for any other key."""
    found = _COMMAND.fullmatch(key)
    return int(found[1]) if found else None


def metrics_prefix(run_id: str) -> str:
    return f"{run_id}/metrics/"


def metrics_of_attempt(run_id: str, attempt: str) -> str:
    """The prefix of the keys of all parts of the loss curve of an attempt; no other key has this prefix."""
    return f"{run_id}/metrics/{attempt}-p"


def metrics_key(run_id: str, attempt: str, part: int) -> str:
    return f"{metrics_of_attempt(run_id, attempt)}{part:04d}.parquet"
